"""torch.distributed with NCCL, of one rank, without other ranks: it records what it is asked for."""

from __future__ import annotations

from contextlib import contextmanager, nullcontext
from typing import Any, NamedTuple
from unittest import mock

import torch
import torch.distributed as dist

import pipec.torch
from pipec.torch import (_exchange, _gradients, _groups, _pipeline, _place, _shapes, _state, _watch)
from pipec.torch._bundle import Spec

WIDTH = 2


class Group:
    """Of these ranks; `number` says how many this rank's run had before."""

    def __init__(self, ranks: tuple[int, ...], number: int):
        self.ranks, self.number = ranks, number


class Call(NamedTuple):
    """One operation of a group, or a wait for it."""

    name: str
    group: int
    ranks: tuple[int, ...]
    peer: int | None  # of a message
    stream: str


class Recorder:
    """What the modules know as `dist`."""

    ProcessGroup, GroupMember, Work = dist.ProcessGroup, dist.GroupMember, dist.Work

    def __init__(self, rank: int, world: int):
        self.rank, self.world = rank, world
        self.calls: list[Call] = []
        self.created: list[tuple] = []  # the rounds of groups, as all ranks have to ask for them
        self.groups = 0
        self.stream = "compute"

    def is_available(self) -> bool:
        return True

    is_initialized = is_available

    def get_rank(self) -> int:
        return self.rank

    def get_world_size(self) -> int:
        return self.world

    def get_backend(self) -> str:
        return "nccl"

    def all_gather_object(self, everywhere: list, here: Any) -> None:
        everywhere[:] = [here] * self.world

    def broadcast(self, tensor, source, group) -> None:
        assert self.rank in group.ranks and source in group.ranks

    def split_group(self, split_ranks: list[list[int]]) -> Any:
        self.created.append(tuple(map(tuple, split_ranks)))
        flat = [rank for ranks in split_ranks for rank in ranks]
        assert len(flat) == len(set(flat)), f"groups that are not disjoint: {split_ranks}"
        self.groups += 1
        own = [tuple(ranks) for ranks in split_ranks if self.rank in ranks]
        return Group(own[0], self.groups) if own else dist.GroupMember.NON_GROUP_MEMBER

    def new_group(self, ranks: list[int], backend: str) -> Any:
        assert backend == "gloo", "NCCL's are split from the first"
        self.created.append((backend, *ranks))
        return Group(tuple(ranks), -1)

    def record(self, name: str, group: Group, peer: int | None = None) -> "RecordedWork":
        assert self.rank in group.ranks and (peer is None or peer in group.ranks)
        self.calls.append(Call(name, group.number, group.ranks, peer, self.stream))
        return RecordedWork(self, self.calls[-1])

    def isend(self, tensor, peer, group):
        return self.record("isend", group, peer)

    def irecv(self, tensor, peer, group):
        tensor.zero_()
        return self.record("irecv", group, peer)

    def send(self, tensor, peer, group) -> None:
        self.record("send", group, peer)

    def recv(self, tensor, peer, group) -> None:
        tensor.zero_()
        self.record("recv", group, peer)

    def all_reduce(self, tensor, group, async_op=False):
        return self.record("all_reduce", group)

    def batch_isend_irecv(self, operations: list) -> list:
        return [self.record(f"batch of {len(operations)}", op.group, op.peer) for op in operations]


class RecordedWork:
    def __init__(self, recorder: Recorder, call: Call):
        self._recorder, self._call = recorder, call

    def wait(self) -> None:
        self._recorder.calls.append(self._call._replace(name="wait " + self._call.name,
                                                        stream=self._recorder.stream))

    def is_completed(self) -> bool:
        return False


class Part(torch.nn.Linear):
    def __init__(self):
        super().__init__(WIDTH, WIDTH)


def without_shapes(pipeline, inputs) -> None:
    """What `learn_shapes` would learn of `Part`s."""
    pipeline._values.signatures = [0] * pipeline.plan.microbatches
    spec = Spec((1, WIDTH), torch.float32, True),
    for runner in pipeline._runners.values():
        runner.specs[0] = () if runner.first else spec, () if runner.last else spec


@contextmanager
def patched(recorder: Recorder):
    with mock.patch.multiple(_pipeline, dist=recorder, learn_shapes=without_shapes,
                             Watch=lambda rank, world, *rest: _watch.Watch(rank, 1, *rest)):
        with mock.patch.object(_exchange, "dist", recorder), \
                mock.patch.object(_gradients, "dist", recorder), \
                mock.patch.object(_groups, "dist", recorder), \
                mock.patch.object(_place, "dist", recorder), \
                mock.patch.object(_shapes, "dist", recorder), \
                mock.patch.object(_state, "dist", recorder):
            yield


@contextmanager
def fake_cuda(recorder: Recorder, exchange):
    """The exchange takes its tensors for CUDA's."""

    @contextmanager
    def stream(which):
        before, recorder.stream = recorder.stream, "side" if which is exchange._stream else "compute"
        yield
        recorder.stream = before

    exchange._stream = object()
    with mock.patch.object(torch.cuda, "stream", stream), \
            mock.patch.object(torch.cuda, "current_stream", mock.MagicMock()), \
            mock.patch.object(torch.Tensor, "record_stream", lambda *_: None):
        yield


def recorded(plan, rank: int, cuda: bool = False) -> tuple[Recorder, list[Call]]:
    """One rank's calls before its first step, and in one."""
    recorder = Recorder(rank, plan.devices * plan.replicas)
    with patched(recorder):
        me = pipec.torch.place(plan)
        parts = {key: Part() for key in me.stages}
        pipe = pipec.torch.Pipeline(plan, parts, loss=lambda x, y: x.sum())
        before = recorder.calls
        recorder.calls = []
        batch = [torch.ones(1, WIDTH)] * plan.microbatches
        with fake_cuda(recorder, pipe._exchange) if cuda else nullcontext():
            pipe.step(batch, batch)
        calls, recorder.calls = recorder.calls, before
    return recorder, calls
