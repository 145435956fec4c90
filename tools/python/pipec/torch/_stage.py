"""One copy of a stage: what each compute instruction does with its module.

A value is named by its kind, its stage and its micro-batch, is written once and read once. Those that
pass between stages are in `Values`; what a stage keeps for its own backward is in its `StageRunner`.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Mapping
from contextlib import nullcontext
from typing import Any, Callable

import torch
from torch import Tensor, nn
from torch.autograd.graph import get_gradient_edge

from ._bundle import (Bundle, as_bundle, detached, digest, same_layout, spec_of, text_of)
from ._errors import PipelineError
from ._random import generators, preserved, stage_seed
from ._split import Splitter

_log = logging.getLogger("pipec")
Specs = tuple  # of Spec | None


class Values:
    """What passes between instructions of one step on one rank."""

    def __init__(self) -> None:
        self.tokens: dict[int, tuple[tuple, dict]] = {}  # by micro-batch: arguments of stage 0
        self.targets: dict[int, Any] = {}
        self.act: dict[tuple[int, int], Bundle] = {}  # by stage and micro-batch
        self.grad: dict[tuple[int, int], Bundle] = {}
        self.losses: dict[int, Tensor] = {}
        self.routine = "step"  # that runs
        self.kwargs: list[dict] | None = None  # of every stage's forward, by micro-batch
        self.signatures: list[int] = []  # of the inputs, by micro-batch
        self.scale: Any = 1.0
        self.seed = 0  # of this step and replica
        self.autocast: str | None = None  # the device type, if autocast is on

    def left(self) -> list[str]:
        """The names of what nobody has read."""
        names = [f"tokens m{m}" for m in self.tokens] + [f"targets m{m}" for m in self.targets]
        names += [f"act s{s} m{m}" for s, m in self.act]
        return names + [f"grad s{s} m{m}" for s, m in self.grad]

    def clear(self) -> None:
        for values in (self.tokens, self.targets, self.act, self.grad, self.losses):
            values.clear()


class StageRunner:
    """A module, and what its forwards have left for its backwards."""

    def __init__(self, module: nn.Module, stage: int, stages: int, values: Values,
                 loss: Callable | None, device: torch.device, split: Mapping[str, set[int]],
                 debug: bool):
        """`split`: of each routine, the micro-batches whose backward has two halves."""
        self.module = module
        self.stage, self.first, self.last = stage, stage == 0, stage == stages - 1
        self.device = device
        self.specs: dict[int, tuple[Specs, Specs]] = {}  # act(s-1) and act(s), by signature
        self._values, self._loss, self._debug = values, loss, debug
        self._split = split
        self._splitter = Splitter(module) if any(split.values()) else None
        self._generators = generators(device)
        self.buffers = [(owner, name) for owner in module.modules()
                        for name, _ in owner.named_buffers(recurse=False)]
        self._moving: list[tuple[nn.Module, str]] = []  # buffers that a forward changes
        self._copies_input = False  # since the module changes it in place
        self._stash: dict[int, tuple[Bundle, list]] = {}
        self._input: dict[int, tuple[Any, Any, list[Tensor], int]] = {}
        self._one: Tensor | None = None  # the gradient of a loss

    # Instructions.

    def load(self, micro: int, inputs: Any, targets: Any) -> None:
        if self.first:
            self._values.tokens[micro] = arguments_of(moved(inputs, self.device))
        if self.last:
            self._values.targets[micro] = moved(targets, self.device)

    def forward(self, micro: int) -> None:
        x, target = self._take(micro)
        leaves = self._leaves(x, micro)
        outputs = self._call(self._arguments(leaves, micro), micro, record=True)
        self._keep(leaves, self._finish(outputs, micro, target), micro)

    def forward_drop(self, micro: int) -> None:
        x, target = self._take(micro)
        buffers = [getattr(owner, name).clone() for owner, name in self._moving]
        with torch.no_grad():
            outputs = self._call(self._arguments(x, micro), micro)
            self._finish(outputs, micro, target)
        check = digest(self._outputs(outputs)) if self._debug else 0
        self._input[micro] = x, target, buffers, check

    def recompute(self, micro: int) -> None:
        x, target, kept, check = self._input.pop(micro)
        moving = iter(kept)
        clones = [next(moving) if buffer in self._moving else getattr(*buffer).clone()
                  for buffer in self.buffers]
        with replaced(self.buffers, clones):
            leaves = self._leaves(x, micro)
            outputs = self._call(self._arguments(leaves, micro), micro, record=True)
        if self._debug and digest(self._outputs(outputs)) != check:
            raise PipelineError(
                f"stage {self.stage}, micro-batch {micro}: the recomputed output has other bits than "
                "the forward's (random numbers from outside of torch, or kernels that are not "
                "deterministic)")
        self._keep(leaves, self._finish(outputs, micro, target, again=True), micro)

    def backward(self, micro: int) -> None:
        leaves, roots = self._stash.pop(micro)
        gradients = self._gradients(micro)
        with self._no_autocast():
            if roots:
                torch.autograd.backward(roots, gradients)
        del roots, gradients
        self._hand_back(leaves, micro)

    def backward_input(self, micro: int) -> None:
        leaves, roots = self._stash.pop(micro)
        gradients = self._gradients(micro)
        with self._no_autocast():
            self._splitter.input_half(micro, roots, gradients)
        del roots, gradients
        self._hand_back(leaves, micro)

    def backward_weight(self, micro: int) -> None:
        with self._no_autocast():
            self._splitter.weight_half(micro)

    def evaluate(self, micro: int) -> None:
        x, target = self._take(micro)
        with torch.no_grad():
            self._finish(self._call(self._arguments(x, micro), micro), micro, target)

    # What they consist of.

    def _take(self, micro: int) -> tuple[Any, Any]:
        """The stage's input (for the first one its arguments), and for the last one the targets."""
        values = self._values
        x = values.tokens.pop(micro) if self.first else values.act.pop((self.stage - 1, micro))
        return x, values.targets.pop(micro) if self.last else None

    def _leaves(self, x: Any, micro: int) -> Any:
        """The received tensors as leaves of a graph; the first stage's arguments as they are."""
        if self.first:
            return x
        for tensor, spec in zip(x, self.specs[self._values.signatures[micro]][0]):
            if spec is not None and spec.requires_grad:
                tensor.requires_grad_(True)
        return x

    def _arguments(self, x: Any, micro: int) -> tuple[tuple, dict]:
        positional, named = x if self.first else (x, {})
        if self._values.kwargs is not None:
            named = {**named, **self._values.kwargs[micro]}
        return positional, named

    def _call(self, arguments: tuple[tuple, dict], micro: int, record: bool = False,
              measure: bool = False) -> Any:
        """The module on its arguments. `record`: with a backward, which may be split."""
        seed = stage_seed(self._values.seed, self.stage, micro)
        for generator in self._generators:
            generator.manual_seed(seed)
        positional, named = mapped(torch.clone, arguments) if self._copies_input else arguments
        if measure and self._splitter is not None:
            return self._splitter.measure(*positional, **named)
        if record and micro in self._split[self._values.routine]:
            return self._splitter.forward(micro, *positional, **named)
        return self.module(*positional, **named)

    def _outputs(self, outputs: Any) -> Bundle:
        return (outputs,) if self.last and isinstance(outputs, Tensor) else as_bundle(
            outputs, f"stage {self.stage}")

    def _finish(self, outputs: Any, micro: int, target: Any, again: bool = False) -> list:
        """Writes act or the loss, unless that was done before; the roots of the backward."""
        values = self._values
        if self.last:
            loss = self._loss(outputs, target)
            if not isinstance(loss, Tensor) or loss.numel() != 1:
                what = (f"a tensor of shape {list(loss.shape)}" if isinstance(loss, Tensor) else
                        type(loss).__name__)
                raise ValueError(f"loss: returns {what} (a tensor of one number)")
            loss = loss.reshape(()) * values.scale
            if not again:
                values.losses[micro] = loss.detach()
            if self._one is None or self._one.dtype != loss.dtype:
                self._one = torch.ones_like(loss)
            return [get_gradient_edge(loss)] if loss.requires_grad else []
        bundle = as_bundle(outputs, f"stage {self.stage}")
        if not again:
            expected = self.specs[values.signatures[micro]][1]
            if not same_layout(bundle, expected):
                raise ValueError(
                    f"stage {self.stage}, micro-batch {micro} returns {text_of(spec_of(bundle))}, "
                    f"but returned {text_of(expected)} for inputs of the same shapes")
            values.act[self.stage, micro] = detached(bundle)
        if torch.is_grad_enabled():
            self._check_needs(bundle, micro)
        return [get_gradient_edge(t) for t in bundle if t is not None and t.requires_grad]

    def _check_needs(self, bundle: Bundle, micro: int) -> None:
        """That a gradient will come for just those tensors that have one."""
        for i, (t, spec) in enumerate(zip(bundle, self.specs[self._values.signatures[micro]][1])):
            if t is not None and t.requires_grad != spec.requires_grad:
                now, before = ("a", "none") if t.requires_grad else ("no", "one")
                raise ValueError(
                    f"stage {self.stage}, micro-batch {micro}: its output {i} needs {now} gradient, "
                    f"but needed {before} for inputs of the same shapes")

    def _keep(self, leaves: Any, roots: list, micro: int) -> None:
        """Writes stash(s, m). The graph has what a backward needs; leaves receive its results."""
        if self.last and not roots:
            raise ValueError("loss: needs no gradient (a function of the output, not detached)")
        self._stash[micro] = () if self.first else leaves, roots

    def _gradients(self, micro: int) -> Any:
        return [self._one] if self.last else self._values.grad.pop((self.stage, micro))

    def _hand_back(self, leaves: Any, micro: int) -> None:
        """Writes grad(s-1, m): of each received tensor that needs a gradient."""
        if not self.first:
            self._values.grad[self.stage - 1, micro] = tuple(
                torch.zeros_like(t) if t.grad is None else t.grad
                for t in leaves if t is not None and t.requires_grad)

    def _no_autocast(self):
        kind = self._values.autocast
        return torch.autocast(kind, enabled=False) if kind else nullcontext()

    # Before the first step.

    def probe(self, x: Any, micro: int, signature: int) -> Bundle:
        """Runs the module once, to learn what it returns; leaves generators and buffers alone."""
        before = [getattr(owner, name) for owner, name in self.buffers]
        clones = [buffer.clone() for buffer in before]
        with preserved(self._generators), replaced(self.buffers, clones), torch.enable_grad():
            arguments = self._arguments(x, micro)
            try:
                copy = copied(arguments)
                outputs = self._call(copy, micro, measure=True)
                in_place = any(t._version for t in tensors_of(copy))
            except RuntimeError as error:
                if "leaf" not in str(error) or "in-place" not in str(error):
                    raise
                in_place = True
            if in_place and not self._copies_input:
                warnings.warn(f"stage {self.stage} changes its input in place: it is given a copy")
                self._copies_input = True
                outputs = self._call(copied(arguments), micro, measure=True)
            # A forward may change a buffer in place, or put another tensor in its place.
            after = [getattr(owner, name) for owner, name in self.buffers]
        for buffer, old, new in zip(self.buffers, before, after):
            if buffer not in self._moving and not torch.equal(old, new):
                self._moving.append(buffer)
        splitter = self._splitter
        if splitter is not None and not self.specs and splitter.whole and not splitter.splittable:
            _log.warning("stage %d: BW_input computes all gradients: no layer that is trained can be "
                         "split (nn.Linear, nn.Conv1d to 3d, transformers' Conv1D)", self.stage)
        if self.last:
            self.specs[signature] = spec_of(x) if not self.first else (), ()
            return ()
        bundle = as_bundle(outputs, f"stage {self.stage}")
        self.specs[signature] = spec_of(x) if not self.first else (), spec_of(bundle)
        return bundle

    def forget_casts(self) -> None:
        if self._splitter is not None:
            self._splitter.clear_casts()

    def left(self) -> list[str]:
        names = [f"stash s{self.stage} m{m}" for m in self._stash]
        names += [f"input s{self.stage} m{m}" for m in self._input]
        if self._splitter is not None:
            names += [f"{half} s{self.stage} m{m}" for m, half in self._splitter.pending()]
        return names

    def remove(self) -> None:
        """Makes the module's layers what they were."""
        if self._splitter is not None:
            self._splitter.remove()

    def clear(self) -> None:
        self._stash.clear()
        self._input.clear()
        if self._splitter is not None:
            for micro, _ in self._splitter.pending():
                self._splitter.drop(micro)


class replaced:
    """A context in which buffers have other values; afterwards they have those of before."""

    def __init__(self, buffers: list[tuple[nn.Module, str]], values: list[Tensor]):
        self._buffers, self._values = buffers, values

    def __enter__(self):
        self._before = [getattr(owner, name) for owner, name in self._buffers]
        for (owner, name), value in zip(self._buffers, self._values):
            setattr(owner, name, value)

    def __exit__(self, *_):
        for (owner, name), value in zip(self._buffers, self._before):
            setattr(owner, name, value)


def mapped(function: Callable[[Tensor], Tensor], value: Any) -> Any:
    """A structure of tuples, lists and dictionaries with each of its tensors replaced."""
    if isinstance(value, Tensor):
        return function(value)
    if isinstance(value, (tuple, list)):
        values = (mapped(function, v) for v in value)
        return type(value)(*values) if hasattr(value, "_fields") else type(value)(values)
    if isinstance(value, Mapping):
        return {k: mapped(function, v) for k, v in value.items()}
    return value


def moved(value: Any, device: torch.device) -> Any:
    return mapped(lambda t: t.to(device, non_blocking=True), value)


def copied(value: Any) -> Any:
    """Leaves with the same values, which need gradients where the tensors do."""
    return mapped(lambda t: t.detach().clone().requires_grad_(t.requires_grad), value)


def tensors_of(value: Any) -> list[Tensor]:
    found: list[Tensor] = []
    mapped(lambda t: found.append(t) or t, value)
    return found


def arguments_of(inputs: Any) -> tuple[tuple, dict]:
    """How stage 0 is called: a tensor, a tuple of arguments, or a dictionary of named ones."""
    if isinstance(inputs, Mapping):
        return (), dict(inputs)
    return (tuple(inputs), {}) if isinstance(inputs, (tuple, list)) else ((inputs,), {})
