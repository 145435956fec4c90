"""Messages: act and grad, as bundles of tensors, between the devices of a replica.

SEND and RECV only start; a WAIT ends them, unless the plan is blocking. On a GPU a WAIT makes the
current stream wait, never the host, and the WAIT for a send only drops the reference that keeps the
tensors alive, as nothing else may reuse their memory before.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import nullcontext

import torch
import torch.distributed as dist
from torch import Tensor

from ._bundle import Bundle
from ._groups import Groups
from ._place import Stage
from ._stage import StageRunner, Values

Value = tuple[str, int, int]  # "act" or "grad", stage, micro-batch


class Exchange:
    def __init__(self, groups: Groups, values: Values, runners: dict[Stage, StageRunner],
                 pipes: Mapping[str, Sequence[int]], blocking: bool, device: torch.device):
        """`pipes`: of each routine, for each micro-batch its pipe."""
        self._staged, self._values, self._runners = groups.staged, values, runners
        self._pipes = pipes
        self._device = torch.device("cpu") if groups.staged else device
        self._target = device
        self._blocking = blocking
        self._stream = torch.cuda.Stream(device) if self._device.type == "cuda" else None
        self._sending: dict[Value, tuple[list, list[Tensor]]] = {}
        self._dropped: list[tuple[list, list[Tensor]]] = []  # waited for, perhaps not over
        self._receiving: dict[Value, tuple[list, list[Tensor | None]]] = {}

    def send(self, value: Value, peer: int, group: dist.ProcessGroup) -> None:
        kind, stage, micro = value
        bundle = (self._values.act if kind == "act" else self._values.grad).pop((stage, micro))
        tensors = [t.resolve_conj().contiguous() for t in bundle if t is not None]
        if self._staged:
            tensors = [t.cpu() for t in tensors]
        if self._blocking:
            for tensor in tensors:
                dist.send(tensor, peer, group=group)
        else:
            works = [dist.isend(tensor, peer, group=group) for tensor in tensors]
            self._sending[value] = works, tensors

    def receive(self, value: Value, peer: int, group: dist.ProcessGroup) -> None:
        with torch.cuda.stream(self._stream) if self._stream else nullcontext():
            buffers = [None if spec is None else
                       torch.empty(spec.shape, dtype=spec.dtype, device=self._device)
                       for spec in self._specs(value)]
            if self._blocking:
                works = []
                for buffer in buffers:
                    if buffer is not None:
                        dist.recv(buffer, peer, group=group)
            else:
                works = [dist.irecv(buffer, peer, group=group) for buffer in buffers
                         if buffer is not None]
        self._receiving[value] = works, buffers
        if self._blocking:
            self.arrived(value)

    def _specs(self, value: Value):
        """Of the tensors of a message; None for a None in its place."""
        kind, stage, micro = value
        pipe = self._pipes[self._values.routine][micro]
        signature = self._values.signatures[micro]
        if kind == "act":
            return self._runners[Stage(stage + 1, pipe)].specs[signature][0]
        specs = self._runners[Stage(stage, pipe)].specs[signature][1]
        return [spec for spec in specs if spec is not None and spec.requires_grad]

    def arrived(self, value: Value) -> None:
        kind, stage, micro = value
        works, buffers = self._receiving.pop(value)
        for work in works:
            work.wait()
        if self._stream is not None:
            current = torch.cuda.current_stream(self._device)
            current.wait_stream(self._stream) if self._blocking else None
            for buffer in buffers:
                if buffer is not None:
                    buffer.record_stream(current)
        if self._staged:
            buffers = [None if b is None else b.to(self._target) for b in buffers]
        bundle: Bundle = tuple(buffers)
        (self._values.act if kind == "act" else self._values.grad)[stage, micro] = bundle

    def sent(self, value: Value) -> None:
        works, tensors = self._sending.pop(value)
        if self._stream is None:
            for work in works:
                work.wait()
            return
        self._dropped.append((works, tensors))
        self._prune()

    def _prune(self) -> None:
        self._dropped = [held for held in self._dropped
                         if not all(work.is_completed() for work in held[0])]

    def left(self) -> list[str]:
        return [f"{what} {kind} s{stage} m{micro}"
                for what, messages in (("sending", self._sending), ("receiving", self._receiving))
                for kind, stage, micro in messages]

    def clear(self) -> None:
        self._sending.clear()
        self._receiving.clear()
        self._prune()
