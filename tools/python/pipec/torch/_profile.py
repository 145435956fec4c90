"""Measures what the stages of a model cost: the times and bytes that plans are made from.

Each stage runs on real values, instruction by instruction, with what `Pipeline` runs them with: so
a recomputation has its seeds and buffers, and a split backward is the one that a plan will run.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from ._bundle import Spec
from ._costs import Costs
from ._memory import Meter, bytes_of
from ._random import generators, preserved
from ._split_layers import is_split
from ._state import agreement
from ._stage import StageRunner, Values, arguments_of, mapped, moved, replaced, tensors_of

_SPLIT, _WHOLE = 0, 1  # numbers of micro-batches: of the first the backward is split
_WAYS = {"plain": (_WHOLE, ("FW", "BW")), "drop": (_WHOLE, ("CFW", "RE", "BW")),
         "split": (_SPLIT, ("FW", "BW_input", "BW_weight")),
         "both": (_SPLIT, ("CFW", "RE", "BW_input", "BW_weight"))}
_METHODS = {"FW": StageRunner.forward, "CFW": StageRunner.forward_drop,
            "RE": StageRunner.recompute, "BW": StageRunner.backward,
            "BW_input": StageRunner.backward_input, "BW_weight": StageRunner.backward_weight}


def profile(parts: Sequence[nn.Module] | Mapping[int, nn.Module], example: Any, *,
            loss: Callable | None = None, target: Any = None, split: bool = True,
            optimizer: Callable[[list[nn.Parameter]], torch.optim.Optimizer] | None =
            torch.optim.AdamW, kwargs: dict | None = None, repeats: int = 5) -> Costs:
    """Runs all stages of a model, one after the other, in this process.

        costs = pipec.torch.profile(stages, tokens, loss=loss_sum, target=targets)
        plan = pipec.compile(scheme="zb-v", devices=4, microbatches=16, costs=costs,
                             memory_limit="20GiB")

    parts      the modules of all stages in their order, on one device, in the mode in which they
               are to be trained; afterwards they are as they were
    example    one micro-batch of inputs, as `Pipeline.step` takes it
    loss, target, kwargs   as of `Pipeline` and its `step`, of that micro-batch
    split      also measures backwards in two halves
    optimizer  makes one of parameters, for the bytes of its state and the time of a step
    repeats    of each measurement, of which the median counts

    What is measured: f, b, r, bi, bw, step in seconds; stash, input, work, act, grad, weights and
    transient in bytes: `pipec help compile` says what they are. Where torch.distributed is up, all
    ranks call this: messages between ranks 0 and 1 are measured, too (latency, post and bandwidth),
    and all return what rank 0 measured.
    """
    modules = modules_of(parts)
    if not repeats >= 1:
        raise ValueError(f"repeats: {repeats} (a whole number from 1 on)")
    if loss is None:
        raise ValueError("loss: None (a function, as of Pipeline)")
    devices = {p.device for module in modules for p in module.parameters()}
    if len(devices) > 1:
        raise ValueError(f"parts: on {', '.join(sorted(map(str, devices)))} (on one device)")
    device = devices.pop() if devices else torch.device("cpu")
    of: dict[str, list[float]] = {}
    x: Any = arguments_of(moved(example, device))
    with agreement(None), preserved(generators(device)):
        read = 0  # bytes of the act that the stage reads
        for stage, module in enumerate(modules):
            trial = Trial(module, stage, len(modules), x, loss, device, split, kwargs)
            with trial:
                y = trial.probe()
                row = {**trial.times(example, target, repeats),
                       **trial.bytes(example, target, read),
                       **optimizer_costs(module, optimizer, repeats)}
            read = row["act"]
            for key, value in row.items():
                of.setdefault(key, []).append(value)
            x = mapped(lambda t: t.detach().requires_grad_(t.requires_grad), y)
    if dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1:
        of.update({key: [value] * len(modules)
                   for key, value in message_costs(max(of["act"]), device, repeats).items()})
        message = [of]
        dist.broadcast_object_list(message, 0)
        of = message[0]
    return Costs(len(modules), of)


def modules_of(parts: Any) -> list[nn.Module]:
    """The stages in their order."""
    if isinstance(parts, Mapping):
        if sorted(parts) != list(range(len(parts))):
            raise ValueError(f"parts: stages {', '.join(map(str, parts))} (all, from 0 on)")
        parts = [parts[stage] for stage in range(len(parts))]
    if not isinstance(parts, (list, tuple, nn.ModuleList)) or not parts:
        raise TypeError(f"parts: {type(parts).__name__} (a list of the modules of all stages)")
    for stage, part in enumerate(parts):
        if not isinstance(part, nn.Module):
            raise TypeError(f"parts: {stage} is a {type(part).__name__} (a torch.nn.Module)")
    return list(parts)


class Trial:
    """One stage, which leaves its module as it was: gradients, buffers, layers."""

    def __init__(self, module: nn.Module, stage: int, stages: int, x: Any, loss: Callable,
                 device: torch.device, split: bool, kwargs: dict | None):
        """x: what the stage reads, for the first one its arguments."""
        self._module, self._stage, self._device, self._x = module, stage, device, x
        self._values = values = Values()
        values.signatures = [0, 0]
        values.kwargs = None if kwargs is None else [kwargs, kwargs]
        values.autocast = device.type if torch.is_autocast_enabled(device.type) else None
        self._was_split = any(map(is_split, module.modules()))
        self._runner = StageRunner(module, stage, stages, values, loss, device,
                                   {values.routine: {_SPLIT} if split else set()}, False)
        self._ways = {name: way for name, way in _WAYS.items() if split or way[0] == _WHOLE}

    def __enter__(self) -> None:
        self._gradients = [(p, p.grad) for p in self._module.parameters()]
        self._replaced = replaced(self._runner.buffers, [getattr(owner, name).clone() for
                                                         owner, name in self._runner.buffers])
        self._replaced.__enter__()
        for p, _ in self._gradients:
            p.grad = None

    def __exit__(self, *error) -> None:
        self._runner.clear()
        self._replaced.__exit__(*error)
        for p, grad in self._gradients:
            p.grad = grad
        if not self._was_split:
            self._runner.remove()

    def probe(self) -> Any:
        """What the stage returns."""
        y = self._runner.probe(self._x, _WHOLE, 0)
        self._sent = [spec for spec in self._runner.specs[0][1] if spec is not None]
        self._dy = tuple(torch.full(spec.shape, 1e-3, dtype=spec.dtype, device=self._device)
                         for spec in self._sent if spec.requires_grad)
        return y

    def play(self, way: str, example: Any, target: Any, point: Callable[[str], None]) -> None:
        """Runs instructions on one micro-batch. Calls `point` before each, after it, and when what
        it wrote for others is gone."""
        values, runner, stage = self._values, self._runner, self._stage
        micro, ops = self._ways[way]
        point("start")
        runner.load(micro, example, target)
        if stage > 0:
            values.act[stage - 1, micro] = mapped(lambda t: t.detach().clone(), self._x)
        for op in ops:
            if op in ("BW", "BW_input") and not runner.last:
                values.grad[stage, micro] = mapped(torch.clone, self._dy)
            point(op)
            _METHODS[op](runner, micro)
            point(op + " done")
            for written in (values.act, values.grad, values.losses):
                written.clear()
            point(op + " left")

    def times(self, example: Any, target: Any, repeats: int) -> dict[str, float]:
        """In seconds, medians."""
        found: dict[str, list[float]] = {}
        last = 0.0

        def point(name: str) -> None:
            nonlocal last
            now = clock(self._device)
            if name.endswith(" done"):
                found.setdefault(name.removesuffix(" done"), []).append(now - last)
            last = time.perf_counter()

        for turn in range(repeats + 1):
            if turn == 1:
                found.clear()  # it was to warm up
            for way in self._ways:
                self.play(way, example, target, point)
        keys = {"FW": "f", "BW": "b", "RE": "r", "BW_input": "bi", "BW_weight": "bw"}
        return {key: statistics.median(found[op]) for op, key in keys.items() if op in found}

    def bytes(self, example: Any, target: Any, read: int) -> dict[str, int]:
        """As the compiler counts them; `read`: bytes of the act that the stage reads.

        Gradients of parameters are there by now, as they are in all micro-batches but the first.
        """
        points: dict[str, int] = {}
        with Meter(self._device) as meter:
            for way in self._ways:
                self.play(way, example, target,
                          lambda name: points.__setitem__(f"{way} {name}", meter.mark()))

        def alive(way: str, name: str, bytes: list[int] = meter.alive) -> int:
            return bytes[points[f"{way} {name}"]] - meter.alive[points[f"{way} start"]]

        def left(*ops: str) -> int:
            return max(alive(way, f"{op} left") for way, (_, run) in self._ways.items()
                       for op in ops if op in run)

        act = sum(map(size_of, self._sent))
        grad = sum(size_of(spec) for spec in self._sent if spec.requires_grad)
        back = 0 if self._runner.first else bytes_of(t for t in tensors_of(self._x)
                                                     if t.requires_grad)
        stash, kept = left("FW", "RE"), left("CFW")
        work = left("BW_input") if "split" in self._ways else None
        both = stash + grad + back
        counted = {"FW": max(read, stash) + act, "CFW": max(read, kept) + act,
                   "RE": max(kept, stash), "BW": both,
                   "BW_input": max(both, (work or 0) + back), "BW_weight": work}
        transient = max(alive(way, f"{op} done", meter.most) - counted[op]
                        for way, (_, ops) in self._ways.items() for op in ops)
        row = {"stash": stash, "input": kept, "act": act, "grad": grad,
               "transient": max(0, transient)}
        return row if work is None else {**row, "work": work}


def optimizer_costs(module: nn.Module, optimizer: Callable | None, repeats: int
                    ) -> dict[str, float]:
    """Bytes of weights, buffers, gradients and the optimizer's state, and the seconds of a step."""
    held = bytes_of([*module.parameters(), *module.buffers()])
    trained = [nn.Parameter(p.detach().clone()) for p in module.parameters() if p.requires_grad]
    for p in trained:
        p.grad = torch.zeros_like(p)
    held += bytes_of(p.grad for p in trained)
    if optimizer is None or not trained:
        return {"weights": held, "step": 0.0}
    made = optimizer(trained)
    made.step()
    held += bytes_of(value for state in made.state.values() for value in state.values()
                     if isinstance(value, Tensor))
    seconds = []
    for _ in range(repeats):
        begin = clock(trained[0].device)
        made.step()
        seconds.append(clock(trained[0].device) - begin)
    return {"weights": held, "step": statistics.median(seconds)}


def message_costs(act_bytes: int, device: torch.device, repeats: int) -> dict[str, float]:
    """Of messages between ranks 0 and 1, called by all; what rank 0 measured is right."""
    if device.type == "cuda" and "nccl" not in dist.get_backend():
        device = torch.device("cpu")  # as messages go through the host
    rank, found = dist.get_rank(), []
    large = max(act_bytes, 1 << 20)
    post: list[float] = []
    for size in (4, large):
        there = torch.zeros(size, dtype=torch.uint8, device=device)
        back = torch.zeros_like(there)
        trips = []
        for _ in range(4 * repeats + 1):
            begin = clock(device)
            if rank == 0:
                work = dist.isend(there, 1)
                post.append(time.perf_counter() - begin)
                work.wait()
                dist.recv(back, 1)
            elif rank == 1:
                dist.recv(back, 0)
                dist.send(there, 0)
            trips.append(clock(device) - begin)
        found.append(min(trips[1:]) / 2)  # what others do meanwhile only makes it longer
    small, long = found
    seconds = long - small if long > small else long
    return {"latency": small, "post": statistics.median(post or [0.0]),
            "bandwidth": large / seconds}


def clock(device: torch.device) -> float:
    """Seconds, when all that the device was given is done."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()


def size_of(spec: Spec) -> int:
    """Bytes of a tensor like that."""
    return torch.Size(spec.shape).numel() * spec.dtype.itemsize
