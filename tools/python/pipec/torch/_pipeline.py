"""Executes a plan's instruction list: one rank's part of a training step.

The list is bound once: each instruction becomes a bound method and its arguments. What a rank does,
in which order, and what it waits for is the plan's; nothing is decided here.
"""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from ._errors import PipelineError
from ._exchange import Exchange
from ._gradients import Gradients
from ._groups import Groups
from ._layout import Layout
from ._place import Place, Stage, place
from ._random import generators, preserved, step_seed
from ._shapes import learn_shapes
from ._stage import StageRunner, Values, moved
from ._state import Names, agreement, load_state_dict, state_dict, tied_parameters
from ._trace import Recorder, write_trace
from ._watch import Watch, checked_seconds

_log = logging.getLogger("pipec")


class Pipeline:
    """Trains the stages of this rank as the plan says.

    plan       a `pipec.Plan`: of one tp peer, without ZeRO, whose steps do not overlap
    parts      this rank's modules by `Stage` (of `place(plan).stages`), or by the stage's number
               where the plan has one pipe. Stage 0 is called with a micro-batch of `inputs`: a
               tensor, a tuple of arguments or a dictionary of named ones; the others with what the
               stage before returned, a tensor or a tuple of tensors.
    loss       loss(output, target) -> a tensor of one number, of the last stage's output; needed
               where that is held. A step's loss is the sum over micro-batches of loss * scale.
    optimizer  one over this rank's parameters; None: gradients are left in `.grad`
    tied       names of parameters that are one tensor: [("wte.weight", "lm_head.weight")]. Their
               stages are the plan's (`pipec compile --tied 0,S-1`).
    max_norm   clips the gradients by the norm over all stages; the plan has to have it
    seed       of the random numbers of the forwards, see `micro_seed`
    debug      compares the bits of each recomputed output with those of its forward
    silent_seconds  how long a rank may be without a sign of life before the others end
    stall_seconds   how long a step may go on without any rank reaching its next instruction

    Made by all ranks at the same time. Copies of a stage start from those of the first copy.
    """

    def __init__(self, plan, parts: Mapping[Any, nn.Module], *, loss: Callable | None = None,
                 optimizer: torch.optim.Optimizer | None = None,
                 tied: Sequence[Sequence[str]] = (), max_norm: float | None = None, seed: int = 0,
                 debug: bool = False, silent_seconds: float = 6.0,
                 stall_seconds: float = 600.0):
        self.plan = plan
        self.steps = 0
        """How many steps have been made; the next one's random numbers depend on it."""
        # A mistake of one rank ends all.
        with agreement(plan, max_norm=max_norm, seed=seed, tied=tied):
            self.place: Place = place(plan)
            self._layout = Layout(plan, self.place)
            self.parts = checked_parts(self.place, parts, len(plan.pipes))
            self.device = device_of(self.parts)
            check_options(plan, self.place, loss, max_norm, seed)
            check_optimizer(self.parts, loss, optimizer)
            checked_seconds(silent_seconds, stall_seconds)
            tied_here = tied_parameters(self.parts, self._layout.tied, tied)
        self.optimizer, self._seed = optimizer, seed
        self._calls: dict[str, list[tuple[Callable, tuple]]] = {}  # by routine, once it has run
        self._recorder: Recorder | None = None
        self._closed = False
        self._known: set[tuple[int, int]] = set()  # signatures and pipes that have been probed
        self._watch = Watch(self.place.rank, plan.devices * plan.replicas, self._layout.text,
                            silent_seconds, stall_seconds)
        try:
            with self._watch.during("construction"):
                self._construct(loss, max_norm, tied_here, debug)
        except BaseException:
            self._watch.close()
            raise

    def _construct(self, loss: Callable | None, max_norm: float | None,
                   tied: list[list[nn.Parameter]], debug: bool) -> None:
        plan, layout = self.plan, self._layout
        self._names = Names(self.parts, tied)
        self._groups = Groups(plan, self.place, layout.flows, layout.sets, self.device)
        self._values = Values()
        self._runners = {
            key: StageRunner(part, key.stage, plan.stages, self._values, loss, self.device,
                             layout.split(key), debug) for key, part in self.parts.items()}
        self._gradients = Gradients(self.parts, plan.stages, tied,
                                    min(layout.tied, default=-1), self.optimizer, max_norm,
                                    self.device)
        self._exchange = Exchange(self._groups, self._values, self._runners, layout.pipes,
                                  plan.p2p == "blocking", self.device)
        self._names.broadcast(layout, self._groups)

    @property
    def microbatches(self) -> int:
        """How many the next step has: the plan's M, unless a batch-ramp has fewer there."""
        return self.plan.microbatches_of(self.plan.routine_of(self.steps))

    @property
    def grad_norm(self) -> Tensor | None:
        """The norm of the last step's gradients before clipping; None where the plan has none."""
        return self._gradients.norm

    def step(self, inputs: Sequence | None = None, targets: Sequence | None = None,
             scale: float | Tensor = 1.0, kwargs: Sequence[dict] | None = None
             ) -> list[Tensor | None]:
        """One training step.

        inputs, targets   lists of `microbatches`; None where this rank needs none
        scale    what each loss is multiplied by: 1 / (tokens of all micro-batches and replicas)
                 where `loss` is a sum over tokens
        kwargs   of each micro-batch, further named arguments of all stages of this rank
        Returns the losses times `scale` by micro-batch, None for those of other ranks.
        """
        routine = self.plan.routine_of(self.steps)
        losses = self._run(routine, inputs, targets, scale, kwargs)
        self.steps += 1
        return losses

    def evaluate(self, inputs: Sequence | None = None, targets: Sequence | None = None,
                 scale: float | Tensor = 1.0, kwargs: Sequence[dict] | None = None
                 ) -> list[Tensor | None]:
        """The losses of M micro-batches without training; the modules are in evaluation mode
        meanwhile.

        The plan has to have evaluation lists (`pipec.compile` makes them).
        """
        if "evaluation" not in self.plan.routines:
            raise ValueError("plan: no evaluation lists (pipec compile --evaluation)")
        before = [(module, module.training) for part in self.parts.values()
                  for module in part.modules()]
        try:
            for part in self.parts.values():
                part.eval()
            return self._run("evaluation", inputs, targets, scale, kwargs)
        finally:
            for module, training in before:
                module.training = training

    def total(self, losses: Sequence[Tensor | None]) -> float:
        """The sum of losses over all ranks; called by all."""
        mine = [loss.double() for loss in losses if loss is not None]
        sum = torch.stack(mine).sum() if mine else torch.zeros((), dtype=torch.float64)
        if self.plan.devices * self.plan.replicas > 1:
            sum = sum.to(self.device)
            with self._watch.during("total"):
                dist.all_reduce(sum)
        return sum.item()

    def state_dict(self) -> dict[str, Any]:
        """Of this rank: parameters, buffers and the optimizer's state by the model's names.

        For `torch.distributed.checkpoint.save`; what one plan saved, another one loads.
        """
        return state_dict(self._names, self.optimizer, self.steps)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """What `state_dict` returned, on a plan with the same parameters on whatever ranks."""
        self.steps = load_state_dict(self._names, self.optimizer, state)

    @contextmanager
    def trace(self, path: str | os.PathLike[str]) -> Iterator[None]:
        """Records when the instructions of the steps inside begin and end; called by all ranks.

        At its end rank 0 writes the file: a Chrome trace, which `Plan.why` compares with what was
        predicted (of a batch-ramp's steps those that its option `routine` names). The first two
        steps are left out there if there are more.
        """
        self._recorder = Recorder(self.device)
        try:
            yield
            write_trace(self._recorder, self.place, self._layout, path)
        finally:
            self._recorder = None

    def close(self) -> None:
        """Ends the watch over the other ranks, and makes modules what they were."""
        if self._closed:
            return
        self._closed = True
        self._watch.close()
        self._groups.destroy()
        for runner in self._runners.values():
            runner.remove()

    def __enter__(self) -> Pipeline:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    def _bind(self, routine: str) -> list[tuple[Callable, tuple]]:
        """The calls of a list, one for each instruction."""
        bound: list[tuple[Callable, tuple]] = []
        rows, keys = self._layout.rows(routine), []
        for row, following in zip(rows, [*rows[1:], None]):
            if row.op != "STEP":
                bound.append(self._bound(routine, row))
                continue
            keys.append(self._layout.key(routine, row))
            if following is not None and following.op == "STEP":
                bound.append((nothing, ()))  # adjacent ones are one call of the optimizer
            else:
                bound.append((self._update, (tuple(keys),)))
                keys = []
        return bound

    def _bound(self, routine: str, row) -> tuple[Callable, tuple]:
        """What an instruction does."""
        exchange, gradients, layout = self._exchange, self._gradients, self._layout
        op, micro, key = row.op, row.micro, layout.key(routine, row)
        if op == "WAIT":
            if row.value in ("act", "grad"):
                wait = exchange.sent if row.sent else exchange.arrived
                return wait, ((row.value, row.stage, micro),)
            return {"wgrad": lambda: (gradients.wait, (key, max(row.bucket, 0))),
                    "tied": lambda: (gradients.wait_tied, ()),
                    "norm": lambda: (gradients.wait_norm, ())}[row.value]()
        if op.startswith("SEND"):
            kind = op.removeprefix("SEND_")
            return exchange.send, ((kind, row.stage, micro), *self._groups.to(row.peer, kind))
        if op.startswith("RECV"):
            kind = op.removeprefix("RECV_")
            return exchange.receive, ((kind, row.stage, micro),
                                      *self._groups.of_sender(row.peer, kind))
        if op == "REDUCE_grad":
            return gradients.reduce, (key, max(row.bucket, 0), layout.buckets[routine][key.stage],
                                      self._groups.of(layout.copies(key.stage)))
        if op == "REDUCE_tied":
            return gradients.reduce_tied, (self._groups.of(layout.tied_ranks),)
        if op == "NORM_grad":
            return gradients.add_squares, (key,)
        if op == "REDUCE_norm":
            return gradients.reduce_norm, (self._groups.of(layout.replica_ranks),)
        runner = self._runners[key]
        if op == "LOAD":
            return self._load, (runner, micro)
        return {"FW": runner.forward, "CFW": runner.forward_drop, "RE": runner.recompute,
                "BW": runner.backward, "BW_input": runner.backward_input,
                "BW_weight": runner.backward_weight, "EVAL": runner.evaluate}[op], (micro,)

    def _update(self, keys: tuple[Stage, ...]) -> None:
        """STEP of some stages; copies of weights in another type are of the past then."""
        self._gradients.step(keys)
        if self._values.autocast:
            torch.clear_autocast_cache()
            for runner in self._runners.values():
                runner.forget_casts()

    def _load(self, runner: StageRunner, micro: int) -> None:
        runner.load(micro, self._inputs[micro] if runner.first else None,
                    self._targets[micro] if runner.last else None)

    def _run(self, routine: str, inputs, targets, scale, kwargs) -> list[Tensor | None]:
        values, micros, watch = self._values, len(self._layout.pipes[routine]), self._watch
        kind, trains = self.device.type, routine != "evaluation"
        values.routine = routine
        try:
            with (watch.during(routine), torch.enable_grad(),
                  preserved(generators(self.device))):
                if torch.is_inference_mode_enabled():
                    raise RuntimeError(f"{routine}: inside torch.inference_mode() (outside of it)")
                if routine not in self._calls:
                    self._calls[routine] = self._bind(routine)
                calls = self._calls[routine]
                self._take(micros, inputs, targets, scale, kwargs)
                values.seed = step_seed(self._seed, self.steps, self.place.replica)
                values.autocast = kind if torch.is_autocast_enabled(kind) else None
                if trains:
                    self._gradients.begin()
                learn_shapes(self, self._inputs)
                if self._recorder is None or not trains:
                    for watch.index, (call, arguments) in enumerate(calls):
                        call(*arguments)
                else:
                    self._recorder.run(routine, calls, watch)
                self._check_nothing_left()
                return [values.losses.get(m) for m in range(micros)]
        finally:
            self._clear()

    def _take(self, micros: int, inputs, targets, scale, kwargs) -> None:
        place, values, ramp = self.place, self._values, self.plan.batch_ramp
        right = f"the plan's {micros}"
        if ramp and values.routine != "evaluation":
            right = f"{micros} after {self.steps} steps, by batch-ramp {ramp}"
        self._inputs = checked_batches("inputs", inputs, micros, right, place.needs_inputs)
        self._targets = checked_batches("targets", targets, micros, right, place.needs_targets)
        for micro, named in enumerate(checked_batches("kwargs", kwargs, micros, right, False) or ()):
            if not isinstance(named, Mapping):
                raise TypeError(f"kwargs: {type(named).__name__} for micro-batch {micro} "
                                "(a dictionary)")
        values.kwargs = None if kwargs is None else [moved(named, self.device) for named in kwargs]
        if not (isinstance(scale, Tensor) and scale.numel() == 1 or
                isinstance(scale, (int, float)) and math.isfinite(scale)):
            raise ValueError(f"scale: {scale!r} (a number, or a tensor of one)")
        values.scale = scale

    def _check_nothing_left(self) -> None:
        left = self._values.left() + self._exchange.left() + self._gradients.left()
        for runner in self._runners.values():
            left += runner.left()
        if left:
            raise PipelineError(f"left over at the end: {', '.join(left[:8])}")

    def _clear(self) -> None:
        self._inputs = self._targets = self._values.kwargs = None
        self._values.clear()
        self._exchange.clear()
        self._gradients.clear()
        for runner in self._runners.values():
            runner.clear()


def nothing() -> None:
    """A STEP that the next one does, too."""


def check_optimizer(parts: dict[Stage, nn.Module], loss: Any, optimizer: Any) -> None:
    if isinstance(loss, nn.Module) and any(p.requires_grad for p in loss.parameters()):
        raise ValueError("loss: has parameters to train (the last stage has them)")
    if optimizer is None:
        return
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise TypeError(f"optimizer: {type(optimizer).__name__} (a torch.optim.Optimizer, or None)")
    listed = [id(p) for group in optimizer.param_groups for p in group["params"]]
    held = set(listed)
    if len(held) < len(listed):
        raise ValueError("optimizer: has a parameter twice (once: list(dict.fromkeys(parameters)))")
    trained = {name: p for part in parts.values() for name, p in part.named_parameters()
               if p.requires_grad}
    left = [name for name, p in trained.items() if id(p) not in held]
    if trained and len(left) == len(trained):
        raise ValueError("optimizer: has no parameter of parts (one over their parameters, which "
                         "`cut` has copied)")
    if left:
        _log.warning("optimizer: has not %s%s: never updated", left[0],
                     f" and {len(left) - 1} more parameters of parts" if len(left) > 1 else "")


def check_options(plan, place: Place, loss: Any, max_norm: Any, seed: Any) -> None:
    if place.needs_targets and not callable(loss):
        raise ValueError(f"loss: {loss!r} (a function, on a rank with the last stage)")
    if isinstance(seed, bool) or not isinstance(seed, int):
        raise TypeError(f"seed: {seed!r} (a whole number)")
    if max_norm is None:
        return
    if isinstance(max_norm, bool) or not isinstance(max_norm, (int, float)) or not max_norm > 0:
        raise ValueError(f"max_norm: {max_norm!r} (a positive number, or None)")
    if not plan.clip:
        raise ValueError("max_norm: the plan has no norm (pipec compile --grad-norm exact)")


def checked_parts(place: Place, parts: Mapping[Any, nn.Module], pipes: int) -> dict[Stage, nn.Module]:
    """The modules by Stage, ascending."""
    if not isinstance(parts, Mapping):
        raise TypeError(f"parts: {type(parts).__name__} (a dictionary of modules by stage)")
    found = {}
    for key, part in parts.items():
        if isinstance(key, int) and pipes == 1:
            key = Stage(key, 0)
        if key not in place.stages:
            raise ValueError(f"parts: {key} is not on rank {place.rank} "
                             f"({', '.join(map(str, place.stages))})")
        if not isinstance(part, nn.Module):
            raise TypeError(f"parts: {key} is a {type(part).__name__} (a torch.nn.Module)")
        found[Stage(*key)] = part
    for key in place.stages:
        if key not in found:
            raise ValueError(f"parts: no module for {key} (all of place(plan).stages)")
    return {key: found[key] for key in place.stages}


def device_of(parts: dict[Stage, nn.Module]) -> torch.device:
    for key, part in parts.items():
        for module in part.modules():
            for p in module.parameters(recurse=False):
                if nn.parameter.is_lazy(p):
                    raise ValueError(f"parts: {key} has a {type(module).__name__} without its "
                                     "parameters (a module that has been called once)")
    devices = {p.device for part in parts.values() for p in part.parameters()}
    if len(devices) > 1:
        raise ValueError(f"parts: on {', '.join(sorted(map(str, devices)))} (on one device)")
    return devices.pop() if devices else torch.device("cpu")


def checked_batches(name: str, batches: Sequence | None, micros: int, right: str, needed: bool):
    if batches is None:
        if needed:
            raise ValueError(f"{name}: None (a list of {micros} micro-batches on this rank)")
        return None
    if isinstance(batches, Tensor) or not isinstance(batches, Sequence):
        raise TypeError(f"{name}: {type(batches).__name__} (a list of {micros} micro-batches)")
    if len(batches) != micros:
        raise ValueError(f"{name}: {len(batches)} micro-batches ({right})")
    return batches
