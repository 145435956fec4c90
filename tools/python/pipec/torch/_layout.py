"""What a rank reads from a plan: its lists, the ranks of collectives, the edges of messages."""

from __future__ import annotations

from ._place import Place, Stage, rank_of, ranks_of, replica_and_device


class Layout:
    def __init__(self, plan, place: Place):
        self._plan, self._place = plan, place
        self.pipes = {routine: plan.pipes_of(routine) for routine in ("step", *plan.routines)}
        """By routine: for each of its micro-batches its pipe."""
        self.lists = {routine: plan.lists(routine) for routine in self.pipes}
        self._rows = {routine: list(lists[place.device].rows())
                      for routine, lists in self.lists.items()}
        every = [(device, row) for lists in self.lists.values()
                 for device, instructions in enumerate(lists) for row in instructions.rows()]
        self.flows = list(dict.fromkeys((device, row.peer, row.op.removeprefix("SEND_"))
                                        for device, row in every if row.op.startswith("SEND_")))
        """Of messages: (from, to, kind)."""
        ops = {row.op for _, row in every}
        self.tied: tuple[int, ...] = tuple(plan.tied)
        """The stages that share tensors; of a plan with a model the first and the last."""
        if not self.tied and "REDUCE_tied" in ops:
            self.tied = 0, plan.stages - 1
        self.buckets = {routine: self._buckets(lists) for routine, lists in self.lists.items()}
        """By routine: in how many pieces each stage's gradients are reduced."""
        self.tied_ranks = self._ranks(self.tied)
        self.replica_ranks = ranks_of(plan, place.replica)
        """By device."""
        self.sets = self._sets(ops)

    def _ranks(self, stages) -> tuple[int, ...]:
        """Those that hold a copy of one of these stages, in any pipe and replica; ascending."""
        plan = self._plan
        return tuple(sorted({rank_of(plan, replica, devices[stage]) for stage in stages
                             for devices in plan.pipes for replica in range(plan.replicas)}))

    def _buckets(self, lists) -> list[int]:
        buckets = [1] * self._plan.stages
        for instructions in lists:
            for row in instructions.rows():
                if row.op == "REDUCE_grad":
                    buckets[row.stage] = max(buckets[row.stage], row.bucket + 1)
        return buckets

    def _sets(self, ops: set[str]) -> list[tuple[int, ...]]:
        plan = self._plan
        sets = [self.copies(stage) for stage in range(plan.stages)]
        if self.tied:
            sets.append(self.tied_ranks)
        if "REDUCE_norm" in ops:
            sets += [ranks_of(plan, replica) for replica in range(plan.replicas)]
        return sets

    def copies(self, stage: int) -> tuple[int, ...]:
        return self._ranks([stage])

    def first_copy(self, stage: int) -> int:
        """The rank whose weights the others start from."""
        return rank_of(self._plan, 0, self._plan.pipes[0][stage])

    def split(self, key: Stage) -> dict[str, set[int]]:
        """By routine: the micro-batches whose backward at this copy of a stage has two halves."""
        return {routine: {row.micro for row in rows
                          if row.op == "BW_input" and self.key(routine, row) == key}
                for routine, rows in self._rows.items()}

    def rows(self, routine: str) -> list:
        return self._rows[routine]

    def key(self, routine: str, row) -> Stage:
        """Which copy of a stage an instruction is about."""
        if row.pipe >= 0:
            return Stage(row.stage, row.pipe)
        return Stage(row.stage, self.pipes[routine][row.micro] if row.micro >= 0 else 0)

    def text(self, routine: str, index: int, rank: int) -> str:
        """An instruction of a rank's list."""
        _, device = replica_and_device(self._plan, rank)
        return self.lists[routine][device].text(index)
