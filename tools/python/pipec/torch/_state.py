"""Names: of parameters in the whole model, of tied tensors, in checkpoints."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint.state_dict import (StateDictOptions, get_model_state_dict,
                                                     get_optimizer_state_dict,
                                                     set_model_state_dict,
                                                     set_optimizer_state_dict)

from ._errors import PipelineError
from ._place import Stage

_FLAT = StateDictOptions(flatten_optimizer_state_dict=True, strict=False)


def plain(name: str) -> str:
    """Without what torch.compile puts before the names of a module."""
    return name.replace("_orig_mod.", "")


class agreement:
    """A context in which all ranks check what they were given: an error of one is raised by all."""

    def __init__(self, plan, **options: Any):
        """`options` are to be equal, too."""
        self._plan, self._options = plan, options

    def __enter__(self):
        pass

    def __exit__(self, _, error, __):
        if not (dist.is_available() and dist.is_initialized()):
            return
        if error is not None and (not isinstance(error, Exception) or
                                  isinstance(error, PipelineError)):
            return  # the user's interruption; what all ranks have been told
        data = getattr(self._plan, "bytes", None)
        here = (None if error is None else f"{type(error).__name__}: {error}",
                {"plan": hashlib.sha256(data).hexdigest() if isinstance(data, bytes) else "",
                 **{name: repr(value) for name, value in self._options.items()}})
        everywhere = [here] * dist.get_world_size()
        dist.all_gather_object(everywhere, here)
        if error is not None:
            return
        for rank, (text, _) in enumerate(everywhere):
            if text is not None:
                raise ValueError(f"rank {rank}: {text}")
        for rank, (_, given) in enumerate(everywhere):
            for name, value in given.items():
                if value != here[1][name]:
                    other = "one" if name == "plan" else f"value, {value}"
                    raise ValueError(f"{name}: rank {rank} has another {other} (the same on all ranks)")


class Names:
    """Whose names in checkpoints are the model's, or begin with the stage's number if two stages
    have equal names."""

    def __init__(self, parts: dict[Stage, nn.Module], tied: list[list[nn.Parameter]]):
        """A collective call."""
        self.parts, self.tied = parts, tied
        self.container = nn.ModuleDict({f"s{k.stage}p{k.pipe}": part for k, part in parts.items()})
        here: dict[Any, dict[str, tuple]] = {
            key.stage: {plain(name): kind_of(t) for name, t in
                        [*part.named_parameters(), *part.named_buffers()]}
            for key, part in parts.items()}
        if tied:
            here["tied"] = {f"tied tensor {i}": kind_of(ps[0]) for i, ps in enumerate(tied)}
        everywhere = [here]
        if dist.is_available() and dist.is_initialized():
            everywhere = [None] * dist.get_world_size()
            dist.all_gather_object(everywhere, here)
        of_stages: dict[Any, dict[str, tuple]] = {}
        for rank, held in enumerate(everywhere):
            for stage, kinds in held.items():
                first = of_stages.setdefault(stage, kinds)
                for name in {**first, **kinds} if list(first.items()) != list(kinds.items()) else ():
                    if first.get(name) != kinds.get(name):
                        raise ValueError(
                            f"parts: {name} of stage {stage} is {kinds.get(name)} on rank {rank}, "
                            f"{first.get(name)} on others (copies are alike)")
                if list(first) != list(kinds):
                    raise ValueError(f"parts: stage {stage} has its parameters in another order on "
                                     f"rank {rank} (copies are alike)")
        of_stages.pop("tied", None)
        count = Counter(name for names in of_stages.values() for name in names)
        prefixed = any(n > 1 for n in count.values())
        self.prefixes = {f"s{k.stage}p{k.pipe}.": f"stages.{k.stage}." if prefixed else ""
                         for k in parts}

    def broadcast(self, layout, groups) -> None:
        """Copies of a stage, and of a tied tensor, start from the first of them."""
        with torch.no_grad():
            for key, part in self.parts.items():
                ranks = layout.copies(key.stage)
                if len(ranks) > 1:
                    for tensor in [*part.parameters(), *part.buffers()]:
                        broadcast(tensor, layout.first_copy(key.stage), groups.of(ranks))
            for first, *others in self.tied:
                if len(layout.tied_ranks) > 1:
                    broadcast(first, layout.first_copy(min(layout.tied)),
                              groups.of(layout.tied_ranks))
                for other in others:
                    other.copy_(first)


def kind_of(tensor: torch.Tensor) -> tuple:
    return tuple(tensor.shape), str(tensor.dtype), tensor.requires_grad


def broadcast(tensor: torch.Tensor, source: int, group) -> None:
    """Any tensor, as bytes; one whose elements share memory, such as an expanded one, stays."""
    if any(stride == 0 and size > 1 for size, stride in zip(tensor.shape, tensor.stride())):
        return
    dense = tensor.detach().clone(memory_format=torch.contiguous_format)
    if dense.numel():
        dist.broadcast(dense.view(-1).view(torch.uint8), source, group)
        tensor.copy_(dense)


def tied_parameters(parts: dict[Stage, nn.Module], stages: tuple[int, ...],
                    tied: Sequence[Sequence[str]]) -> list[list[nn.Parameter]]:
    """This rank's parameters of each tied tensor, by the names of its parameters."""
    if isinstance(tied, str) or not isinstance(tied, Sequence):
        raise TypeError(f"tied: {tied!r} (a list of tuples of names)")
    if bool(tied) != bool(stages):
        raise ValueError(
            f"tied: {list(tied)}, but the plan's tied stages are {list(stages)} "
            "(both or neither: pipec compile --tied 0,S-1)")
    named = {key: {plain(name): p for name, p in part.named_parameters(remove_duplicate=False)}
             for key, part in parts.items()}
    groups: list[list[nn.Parameter]] = []
    for names in tied:
        names = (names,) if isinstance(names, str) else tuple(names)
        group: list[nn.Parameter] = []
        for key, of_stage in named.items():
            found = list(dict.fromkeys(of_stage[name] for name in names if name in of_stage))
            if bool(found) != (key.stage in stages) or len(found) > 1:
                raise ValueError(
                    f"tied: stage {key.stage} has {len(found)} of {', '.join(names)} (one in each "
                    f"of the plan's tied stages {', '.join(map(str, stages))}, none elsewhere)")
            group += found
        shapes = {tuple(p.shape) for p in group}
        if len(shapes) > 1:
            raise ValueError(f"tied: {', '.join(names)} have shapes {sorted(shapes)} (one)")
        if group:
            groups.append(group)
    shared = {id(p) for group in groups for p in group}
    owner: dict[int, int] = {}
    for key, of_stage in named.items():
        for name, p in of_stage.items():
            stage = owner.setdefault(id(p), key.stage)
            if stage != key.stage and id(p) not in shared and p.requires_grad:
                raise ValueError(f"parts: stages {stage} and {key.stage} share {name} (tied=, and "
                                 f"pipec compile --tied {stage},{key.stage})")
    return groups


def renamed(state: Mapping[str, Any], pairs: Sequence[tuple[str, str]]) -> dict[str, Any]:
    """Keys with the first prefix that fits replaced."""

    def name(key: str) -> str:
        for old, new in pairs:
            if key.startswith(old):
                return new + key[len(old):]
        return key

    return {name(key): value for key, value in state.items()}


def state_dict(names: Names, optimizer: torch.optim.Optimizer | None, steps: int) -> dict[str, Any]:
    pairs = list(names.prefixes.items())
    state = {"model": renamed(get_model_state_dict(names.container), pairs), "steps": steps}
    if optimizer is not None:
        fresh = not optimizer.state
        of = get_optimizer_state_dict(names.container, optimizer, options=_FLAT)
        if fresh:
            # PyTorch has filled it in by a step with a learning rate of 0, which is to count nowhere.
            for key, value in of.items():
                if key.startswith("state.") and key.endswith(".step"):
                    of[key] = torch.zeros_like(value) if isinstance(value, torch.Tensor) else 0
            optimizer.state.clear()
        state["optimizer"] = renamed(of, [(kind + old, kind + new) for old, new in pairs
                                          for kind in ("state.", "param_groups.")])
    return state


def load_state_dict(names: Names, optimizer: torch.optim.Optimizer | None,
                    state: Mapping[str, Any]) -> int:
    before = dict(optimizer.state) if optimizer is not None else {}
    if optimizer is not None:
        for p in names.container.parameters():
            p.grad = None
        optimizer.state.clear()
    try:
        own = state_dict(names, optimizer, 0)
    finally:
        if optimizer is not None:
            optimizer.state.update(before)
    parameters = {next(iter(renamed({name: None}, list(names.prefixes.items())))): p
                  for name, p in names.container.named_parameters(remove_duplicate=False)}
    given = dict(state.get("optimizer", ()))
    # A parameter that has never had a gradient has no state.
    idle = [name for name in parameters if not any(key.startswith(f"state.{name}.") for key in given)]
    given.update((key, value) for key, value in own.get("optimizer", {}).items()
                 if any(key.startswith(f"state.{name}.") for name in idle))
    for part, have in (("model", state.get("model", ())), ("optimizer", given)):
        missing = sorted(set(own.get(part, ())) - set(have))
        if missing:
            raise ValueError(f"state: no {missing[0]} in its {part!r}"
                             + (f", nor {len(missing) - 1} others" if len(missing) > 1 else ""))
    back = renamed_back(names, get_model_state_dict(names.container), state["model"])
    set_model_state_dict(names.container, back)
    if optimizer is not None:
        keys = get_optimizer_state_dict(names.container, optimizer, options=_FLAT)
        optimizer.state.clear()
        set_optimizer_state_dict(names.container, optimizer, renamed_back(names, keys, given),
                                 options=_FLAT)
        for name in idle:
            optimizer.state.pop(parameters[name], None)
    return int(state["steps"])


def renamed_back(names: Names, own: Mapping[str, Any], state: Mapping[str, Any]) -> dict[str, Any]:
    """The values of `state` under this rank's own keys."""
    pairs = [(kind + old, kind + new) for old, new in names.prefixes.items()
             for kind in ("", "state.", "param_groups.")]
    return {key: state[next(iter(renamed({key: None}, pairs)))] for key in own}
