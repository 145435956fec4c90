"""Process groups of a run, and the messages in them.

An asynchronous plan has one group for each kind of message in each direction of a pair of devices:
NCCL orders what is in one group, so that messages of two directions could wait for one another in a
circle, and an act behind a grad that is not due. A blocking plan has one group for all its messages,
each of which is sent alone: its order is proved for that. Groups are made before the first step, in
the same order on all ranks, disjoint ones together (`split_group`), and each is used once, so that
nothing is set up during a step.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import torch.distributed as dist

from ._place import ranks_of

Ranks = tuple[int, ...]
Flow = tuple[int, int, str]  # from, to, and "act" or "grad"


def rounds_of(sets: Mapping[Any, Ranks]) -> list[dict[Any, Ranks]]:
    """Sets of ranks, by name, in rounds: those of one round are disjoint. In order of the sets."""
    rounds: list[dict[Any, Ranks]] = []
    for name, ranks in sets.items():
        free = (row for row in rounds if not any(set(ranks) & set(other) for other in row.values()))
        row = next(free, None)
        if row is None:
            rounds.append(row := {})
        row[name] = ranks
    return rounds


def make_groups(sets: Mapping[Any, Ranks], rank: int) -> dict[Any, dist.ProcessGroup]:
    """A group for each set of ranks, in their order; those that this rank is in. A collective."""
    mine = {}
    for row in rounds_of(sets):
        own = next((name for name, ranks in row.items() if rank in ranks), None)
        group = _split(list(row.values()))
        if own is not None:
            mine[own] = group
    return mine


def _split(row: list[Ranks]):
    """Disjoint groups at once with NCCL, if it can; else one after the other.

    gloo takes 5 seconds to split a group, and 0.1 to make one.
    """
    if "nccl" in dist.get_backend() and hasattr(dist, "split_group"):
        try:
            return dist.split_group(split_ranks=[list(ranks) for ranks in row])
        except (RuntimeError, ValueError):
            pass  # as without a device_id of init_process_group, which all ranks find alike
    made = [dist.new_group(list(ranks), sort_ranks=False) for ranks in row]
    return next((group for group in made if group != dist.GroupMember.NON_GROUP_MEMBER), None)


class Groups:
    """The groups of this rank. `flows`: those of the plan's messages, between its devices."""

    def __init__(self, plan, place, flows: list[Flow], sets: list[Ranks], device: torch.device):
        """`sets`: the ranks of the collectives, of all replicas, as all ranks state them."""
        replicas = [ranks_of(plan, replica) for replica in range(plan.replicas)]
        self.rank, self._peers = place.rank, replicas[place.replica]  # by device
        self.staged = False  # messages go through the host
        self._flows: dict[Flow, dist.ProcessGroup] = {}  # between ranks
        self._sets: dict[Ranks, dist.ProcessGroup] = {}
        self.control: dist.ProcessGroup | None = None  # of a replica, between hosts' memories
        if plan.devices * plan.replicas == 1:
            return
        self.staged = device.type == "cuda" and "nccl" not in dist.get_backend()
        of_message = torch.zeros(1, device="cpu" if self.staged else device)
        of_ranks = [(ranks[a], ranks[b], kind) for a, b, kind in flows for ranks in replicas]
        if plan.p2p == "blocking":
            made = make_groups(dict(enumerate(replicas)), self.rank) if plan.devices > 1 else {}
            for group in made.values():
                dist.all_reduce(of_message, group=group)
                self._flows = {flow: group for flow in of_ranks if self.rank in flow[:2]}
        else:
            self._flows = make_groups({flow: flow[:2] for flow in of_ranks}, self.rank)
            for flow in of_ranks:
                sender, receiver, _ = flow
                if self.rank == sender:
                    dist.send(of_message, receiver, group=self._flows[flow])
                elif self.rank == receiver:
                    dist.recv(of_message, sender, group=self._flows[flow])
        distinct = {ranks: ranks for ranks in sets if len(ranks) > 1}
        self._sets = make_groups(distinct, self.rank)
        for ranks in distinct:
            if self.rank in ranks:
                dist.all_reduce(torch.zeros(1, device=device), group=self._sets[ranks])
        if plan.devices > 1:
            made = [dist.new_group(list(ranks), backend="gloo") for ranks in replicas]
            self.control = made[place.replica]

    def destroy(self) -> None:
        for group in {*self._flows.values(), *self._sets.values(), self.control} - {None}:
            dist.destroy_process_group(group)

    def to(self, device: int, kind: str) -> tuple[int, dist.ProcessGroup]:
        """The rank of a device of this replica, and the group of messages to it."""
        peer = self._peers[device]
        return peer, self._flows[self.rank, peer, kind]

    def of_sender(self, device: int, kind: str) -> tuple[int, dist.ProcessGroup]:
        """The same of messages from it."""
        peer = self._peers[device]
        return peer, self._flows[peer, self.rank, kind]

    def of(self, ranks: Ranks) -> dist.ProcessGroup | None:
        """The group of a collective; None where this rank is its only member."""
        return self._sets[ranks] if len(ranks) > 1 else None
