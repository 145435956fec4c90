"""Who holds what: the stages of a plan on the ranks of a run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch.distributed as dist

from .._plan import Plan


class Stage(NamedTuple):
    """One copy of a stage: its number along the model from 0, and its pipe (a copy of the model)."""

    stage: int
    pipe: int


@dataclass(frozen=True)
class Place:
    """One rank's part of a run of `devices` times `replicas` ranks."""

    rank: int
    device: int
    replica: int
    stages: tuple[Stage, ...]
    """The copies of stages that this rank holds, ascending."""
    needs_inputs: bool
    """Whether it holds the first stage, so that `Pipeline.step` needs `inputs` here."""
    needs_targets: bool
    """Whether it holds the last stage, so that `Pipeline.step` needs `targets` here."""


def refuse(plan) -> None:
    """Raises ValueError, with the reason, for a plan that PyTorch's modules cannot run."""
    if not isinstance(plan, Plan):
        raise TypeError(f"plan: {type(plan).__name__} (a pipec.Plan)")
    job = plan.job or {}
    if job.get("tp", 1) > 1:
        raise ValueError(f"plan: tensor parallelism, --tp {job['tp']} (1: a stage's own affair)")
    if plan.zero:
        raise ValueError(f"plan: --zero {plan.zero} (0: an optimizer with shards is not run)")
    if plan.overlaps:
        raise ValueError(f"plan: {plan.scheme}'s steps overlap, with versions of the weights "
                         "(a scheme whose steps begin and end empty)")


def rank_of(plan, replica: int, device: int) -> int:
    """The rank of a device, as the plan's rank_order has it (without tensor-parallel peers)."""
    if plan.rank_order == "tp,pp,dp":
        return replica * plan.devices + device
    return device * plan.replicas + replica


def replica_and_device(plan, rank: int) -> tuple[int, int]:
    """Where a rank is: the inverse of `rank_of`."""
    if plan.rank_order == "tp,pp,dp":
        return divmod(rank, plan.devices)
    device, replica = divmod(rank, plan.replicas)
    return replica, device


def ranks_of(plan, replica: int) -> tuple[int, ...]:
    """The ranks of a replica, by device; they ascend."""
    return tuple(rank_of(plan, replica, device) for device in range(plan.devices))


def place(plan, rank: int | None = None) -> Place:
    """What a rank holds; `rank` is by default that of torch.distributed, or 0 without it.

    The rank of a device is replica * plan.devices + device, or device * plan.replicas + replica
    where plan.rank_order is "tp,dp,pp".
    """
    refuse(plan)
    world = plan.devices * plan.replicas
    if rank is None:
        up = dist.is_available() and dist.is_initialized()
        rank, have = (dist.get_rank(), dist.get_world_size()) if up else (0, 1)
        if have != world:
            what = f"{have} processes" if up else "no process group"
            raise ValueError(f"plan: {plan.devices} devices x {plan.replicas} replicas, but {what} "
                             f"(torchrun --nproc-per-node {world})")
    if isinstance(rank, bool) or not isinstance(rank, int) or not 0 <= rank < world:
        raise ValueError(f"rank: {rank!r} (0 to {world - 1})")
    replica, device = replica_and_device(plan, rank)
    stages = tuple(sorted(Stage(stage, pipe) for pipe, devices in enumerate(plan.pipes)
                          for stage, holder in enumerate(devices) if holder == device))
    numbers = [key.stage for key in stages]
    if len(set(numbers)) < len(numbers):
        raise ValueError(f"plan: device {device} holds several copies of a stage (one at most)")
    return Place(rank, device, replica, stages, needs_inputs=0 in numbers,
                 needs_targets=plan.stages - 1 in numbers)
