"""Process groups of a run, and the messages in them.

An asynchronous plan has one group for each directed edge (from, to): NCCL orders what is in one
group, so that messages of two edges in one group could wait for one another in a circle. A blocking
plan has one group for all its messages, each of which is sent alone: its order is proved for that.
Groups are made before the first step, in the same order on all ranks, disjoint ones together
(`split_group`), and each is used once, so that nothing is set up during a step.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor


def rounds_of(sets: list[tuple[int, ...]]) -> list[list[tuple[int, ...]]]:
    """Sets of ranks in rounds: those of one round are disjoint. In order of the sets."""
    rounds: list[list[tuple[int, ...]]] = []
    for ranks in sets:
        for row in rounds:
            if not any(set(ranks) & set(other) for other in row):
                row.append(ranks)
                break
        else:
            rounds.append([ranks])
    return rounds


def make_groups(sets: list[tuple[int, ...]], rank: int) -> dict[tuple[int, ...], dist.ProcessGroup]:
    """A group for each set of ranks, in their order; those that this rank is in. A collective."""
    mine = {}
    for row in rounds_of(sets):
        own = next((ranks for ranks in row if rank in ranks), None)
        group = _split(row)
        if own is not None:
            mine[own] = group
    return mine


def _split(row: list[tuple[int, ...]]):
    """Disjoint groups at once, where the backend can; else one after the other."""
    if hasattr(dist, "split_group"):
        try:
            return dist.split_group(split_ranks=[list(ranks) for ranks in row])
        except (RuntimeError, ValueError):
            pass  # the backend cannot, which all ranks find alike
    made = [dist.new_group(list(ranks), sort_ranks=False) for ranks in row]
    return next((group for group in made if group != dist.GroupMember.NON_GROUP_MEMBER), None)


class Groups:
    """The groups of this rank. `edges`: the (from, to) devices that messages of the plan go along."""

    def __init__(self, plan, place, edges: list[tuple[int, int]], sets: list[tuple[int, ...]],
                 device: torch.device):
        """`sets`: the ranks of the collectives, of all replicas, as all ranks state them."""
        self.rank, self._first = place.rank, place.replica * plan.devices
        self.staged = False  # messages go through the host
        self._edges: dict[tuple[int, int], dist.ProcessGroup] = {}
        self._sets: dict[tuple[int, ...], dist.ProcessGroup] = {}
        self.control: dist.ProcessGroup | None = None  # of a replica, between hosts' memories
        if plan.devices * plan.replicas == 1:
            return
        self.staged = device.type == "cuda" and "nccl" not in dist.get_backend()
        of_message = torch.zeros(1, device="cpu" if self.staged else device)
        firsts = range(0, plan.devices * plan.replicas, plan.devices)
        replicas = [tuple(range(first, first + plan.devices)) for first in firsts]
        directed = [(first + a, first + b) for a, b in edges for first in firsts]
        if plan.p2p == "blocking":
            made = make_groups(replicas, self.rank) if plan.devices > 1 else {}
            for group in made.values():
                dist.all_reduce(of_message, group=group)
                self._edges = {edge: group for edge in directed if self.rank in edge}
        else:
            self._edges = make_groups(directed, self.rank)
            for sender, receiver in directed:
                if self.rank == sender:
                    dist.send(of_message, receiver, group=self._edges[sender, receiver])
                elif self.rank == receiver:
                    dist.recv(of_message, sender, group=self._edges[sender, receiver])
        distinct = [ranks for ranks in dict.fromkeys(sets) if len(ranks) > 1]
        self._sets = make_groups(distinct, self.rank)
        for ranks in distinct:
            if self.rank in ranks:
                dist.all_reduce(torch.zeros(1, device=device), group=self._sets[ranks])
        if plan.devices > 1:
            made = [dist.new_group(list(ranks), backend="gloo") for ranks in replicas]
            self.control = made[place.replica]

    def edge_to(self, device: int) -> tuple[int, dist.ProcessGroup]:
        """The rank of a device of this replica, and the group of messages to it."""
        peer = self._first + device
        return peer, self._edges[self.rank, peer]

    def edge_from(self, device: int) -> tuple[int, dist.ProcessGroup]:
        peer = self._first + device
        return peer, self._edges[peer, self.rank]

    def of(self, ranks: tuple[int, ...]) -> dist.ProcessGroup | None:
        """The group of a collective; None where this rank is its only member."""
        return self._sets[ranks] if len(ranks) > 1 else None
