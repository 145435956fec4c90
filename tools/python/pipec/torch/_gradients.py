"""Gradients after the backwards: summed over copies, over tied stages, their norm, the optimizer.

Reductions are sums: the losses are to be scaled so that the sum over all micro-batches and replicas
is the step's loss. A parameter of which no copy has a gradient keeps `grad` None, so that an
optimizer leaves it alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from ._place import Stage

_BUCKET_BYTES = 25 << 20


class Reduction:
    """A sum over a group, under way: gradients of some parameters, and which of them there are."""

    def __init__(self, parameters: list[nn.Parameter], group: dist.ProcessGroup):
        """REQUIRES: parameters of one type on one device."""
        self._parameters = parameters
        first = parameters[0]
        parts = [torch.zeros_like(p).reshape(-1) if p.grad is None else p.grad.reshape(-1)
                 for p in parameters]
        self._missing = [i for i, p in enumerate(parameters) if p.grad is None]
        have = torch.ones(len(parameters), dtype=first.dtype, device=first.device)
        for i in self._missing:
            have[i] = 0
        parts.append(have)
        self._flat = torch.cat(parts)
        for p in parameters:
            p.grad = None  # from here on a part of the flat tensor
        self._work = dist.all_reduce(self._flat, group=group, async_op=True)

    def wait(self) -> None:
        self._work.wait()
        sizes = [p.numel() for p in self._parameters]
        *parts, have = self._flat.split([*sizes, len(sizes)])
        # Only what this copy lacks has to be looked up, which on a GPU waits for the reduction.
        lacking = {i for i in self._missing if not have[i]}
        for i, (parameter, part) in enumerate(zip(self._parameters, parts)):
            if i not in lacking:
                parameter.grad = part.view_as(parameter)


def reductions(parameters: Sequence[nn.Parameter], group: dist.ProcessGroup) -> list[Reduction]:
    """In buckets of one type each, in the order given for each type."""
    parameters = sorted(parameters, key=lambda p: str(p.dtype))
    made: list[Reduction] = []
    bucket: list[nn.Parameter] = []
    bytes = 0
    for p in [*parameters, None]:
        full = bucket and (p is None or bytes >= _BUCKET_BYTES or p.dtype != bucket[0].dtype or
                           p.device != bucket[0].device)
        if full:
            made.append(Reduction(bucket, group))
            bucket, bytes = [], 0
        if p is not None:
            check_dense(p)
            bucket.append(p)
            bytes += p.numel() * p.element_size()
    return made


def check_dense(parameter: nn.Parameter) -> None:
    if parameter.grad is not None and parameter.grad.is_sparse:
        raise ValueError("a sparse gradient (dense ones: an embedding with sparse=False)")


class Gradients:
    """The parameters of a rank's stages, and what the plan does with their gradients."""

    def __init__(self, parts: dict[Stage, nn.Module], stages: int, tied: list[list[nn.Parameter]],
                 tied_stage: int, optimizer: torch.optim.Optimizer | None,
                 max_norm: float | None, device: torch.device):
        """`tied`: of each tied tensor the parameters of this rank; it counts at `tied_stage`."""
        self._tied, self._tied_stage = tied, tied_stage
        shared = {id(p) for ps in tied for p in ps}
        self.all = list(dict.fromkeys(p for part in parts.values() for p in part.parameters()))
        self._trained = [p.requires_grad for p in self.all]
        self._own = {key: [p for p in part.parameters() if p.requires_grad and id(p) not in shared]
                     for key, part in parts.items()}
        # A parameter that two stages share belongs to the first of them.
        seen: set[int] = set()
        self._whole = {}
        for key, part in parts.items():
            self._whole[key] = [p for p in part.parameters()
                                if p.requires_grad and id(p) not in seen]
            seen.update(id(p) for p in part.parameters())
        self._optimizer, self._max_norm = optimizer, max_norm
        self._squares = torch.zeros(stages, dtype=torch.float64, device=device)
        self._under_way: dict[Any, list[Reduction]] = {}
        self._norm_work: dist.Work | None = None
        self.norm: Tensor | None = None
        """The norm of all gradients of the step, before clipping; on the device."""

    def begin(self) -> None:
        if self._trained != [p.requires_grad for p in self.all]:
            # Shapes of messages and reductions depend on it.
            raise ValueError("parts: requires_grad of a parameter has changed (a new Pipeline)")
        for p in self.all:
            p.grad = None
        self._squares.zero_()
        self.norm = None

    def reduce(self, key: Stage, bucket: int, buckets: int, group: dist.ProcessGroup | None) -> None:
        """Starts to sum one of a stage's buckets; last parameters first."""
        if group is not None:
            parameters = self._own[key][::-1]
            share = -(-len(parameters) // buckets)
            self._under_way[key, bucket] = reductions(
                parameters[bucket * share:(bucket + 1) * share], group)

    def wait(self, key: Any, bucket: int) -> None:
        for reduction in self._under_way.pop((key, bucket), ()):
            reduction.wait()

    def reduce_tied(self, group: dist.ProcessGroup | None) -> None:
        """Starts to sum the gradients of tied tensors over all copies of their stages."""
        for parameters in self._tied:
            first, *others = dict.fromkeys(parameters)
            for other in others:
                if other.grad is not None:
                    first.grad = other.grad if first.grad is None else first.grad + other.grad
        if group is not None:
            self._under_way["tied", 0] = reductions([ps[0] for ps in self._tied], group)

    def wait_tied(self) -> None:
        self.wait("tied", 0)
        for first, *others in self._tied:
            for other in others:
                if other is not first:
                    other.grad = None if first.grad is None else first.grad.clone()

    def add_squares(self, key: Stage) -> None:
        parameters = list(self._own[key])
        if key.stage == self._tied_stage:
            parameters += [ps[0] for ps in self._tied]
        for p in parameters:
            check_dense(p)
        norms = [torch.linalg.vector_norm(p.grad, dtype=torch.promote_types(p.dtype, torch.float32))
                 for p in parameters if p.grad is not None]
        if norms:
            self._squares[key.stage] = torch.stack([n.double() for n in norms]).square().sum()

    def reduce_norm(self, group: dist.ProcessGroup | None) -> None:
        # By stage, so that the sum has the same order, and bits, on whatever devices they are.
        if group is not None:
            self._norm_work = dist.all_reduce(self._squares, group=group, async_op=True)

    def wait_norm(self) -> None:
        if self._norm_work is not None:
            self._norm_work.wait()
            self._norm_work = None
        self.norm = self._squares.sum().sqrt()

    def step(self, keys: tuple[Stage, ...]) -> None:
        """The optimizer on the parameters of these stages alone."""
        parameters = list(dict.fromkeys(p for key in keys for p in self._whole[key]))
        if self._max_norm is not None:
            nn.utils.clip_grads_with_norm_(parameters, self._max_norm, self.norm)
        if self._optimizer is None:
            return
        if len(keys) == len(self._whole):
            self._optimizer.step()
            return
        chosen = {id(p) for p in parameters}
        groups = self._optimizer.param_groups
        before = [group["params"] for group in groups]
        try:
            for group in groups:
                group["params"] = [p for p in group["params"] if id(p) in chosen]
            self._optimizer.step()
        finally:
            for group, parameters in zip(groups, before):
                group["params"] = parameters

    def left(self) -> list[str]:
        return [f"reduction {what}" for what in self._under_way]

    def clear(self) -> None:
        self._under_way.clear()
        self._norm_work = None
