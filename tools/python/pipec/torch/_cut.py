"""Cuts a model into the stages of a pipeline.

A stage holds a copy of its own part of the model and nothing of the others', under the names that
parameters have in the model: the state dicts of all stages together are the model's.
"""

from __future__ import annotations

import copy
import warnings
from typing import Any, Iterable, NamedTuple, Sequence

import torch
from torch import nn

Tensor = torch.Tensor

# Decoders of which the stages one after the other were seen to be the model, to the bit.
# Others multiply or normalize the embeddings outside of the embedding, for example, and would do
# it again in each stage.
TESTED = frozenset({"gpt2", "llama", "mistral", "qwen2", "qwen3"})


class Tie(tuple):
    """Names of parameters that are one in the model, as Pipeline's `tied` takes them.

    Attributes:
        stages: the stages that hold them, in the order of the names.
    """

    stages: tuple[int, ...]

    def __new__(cls, names: Iterable[str], stages: Iterable[int]) -> "Tie":
        tie = super().__new__(cls, names)
        tie.stages = tuple(stages)
        return tie


class _Part(NamedTuple):
    """A submodule of the model, by name, and the stage that holds it."""

    name: str
    module: nn.Module
    stage: int


def cut(model: nn.Module | Sequence[nn.Module], stage: int, stages: int,
        layers: Sequence[int] | str | None = None) -> nn.Module:
    """Returns one stage of the model, a copy of its part of the parameters.

    The model is a decoder of transformers (GPT-2, or one whose configuration names its parts:
    LLaMA, Qwen2, Qwen3, Mistral and others), an nn.Sequential, or a list of modules that is run as
    an nn.Sequential runs them.

    A decoder's first stage takes the token ids [sequences, tokens], the others the hidden states
    [sequences, tokens, width]; the last returns the logits [sequences, tokens, vocabulary] (of a
    model without a head the last hidden states), the others the hidden states. More positional
    arguments are an attention mask and position ids; stages that are not last return them behind
    the hidden states, so that they travel along. Keyword arguments (use_cache is False) do not.

    Args:
        model: may be on the meta device; so is then the stage. to_empty() and load_state_dict()
            fill it, but not what no state dict holds, as the rotary tables of LLaMA.
        stage: from 0.
        stages: how many the model is cut into.
        layers: layers (or modules of the list) of each stage; None: as even as can be; "auto":
            such that the stage with the most parameters has as few as can be, where embeddings
            do not count, as they cost hardly any time.
    Raises:
        ValueError: in one line, if the model cannot be cut like this.
    """
    if not 0 <= stage < stages:
        raise ValueError(f"cut: stage: {stage} of {stages} stages (0 to {stages - 1})")
    parts = _parts(model, stages, layers)
    if _is_list(model):
        shared: dict[int, Any] = {}  # what two modules of one stage share
        return _Chain((p.name, copy.deepcopy(p.module, shared)) for p in parts if p.stage == stage)
    memo = {id(p.module): _NoPositions() if p.name.endswith("wpe") else _Skipped()
            for p in parts if p.stage != stage}
    result = copy.deepcopy(model, memo)
    result.__class__ = _decoder_class(type(model))
    result._pipec_place = (stage == 0, stage == stages - 1)
    return result


def ties(model: nn.Module | Sequence[nn.Module], stages: int,
         layers: Sequence[int] | str | None = None) -> list[Tie]:
    """The parameters that the model holds once and its stages, cut likewise, more than once.

    They start equal; Pipeline(tied=ties(model, stages)) keeps them so. `stages` of a tie, joined
    by commas, are what `pipec compile --tied` wants.
    """
    parts = _parts(model, stages, layers)
    same: dict[int, list[tuple[str, int]]] = {}
    stage_of: dict[str, int] = {}
    for part in parts:
        for name, p in part.module.named_parameters(prefix=part.name, remove_duplicate=False):
            same.setdefault(id(p), []).append((name, part.stage))
            stage_of[name] = part.stage
    groups = list(same.values())
    keys = getattr(model, "_tied_weights_keys", None)
    if isinstance(keys, dict) and getattr(model.config, "tie_word_embeddings", False):
        groups += [[(name, stage_of[name]) for name in pair] for pair in keys.items()
                   if stage_of.keys() >= set(pair)]  # not yet one parameter, but to be tied
    found: dict[tuple[str, ...], Tie] = {}
    for group in groups:
        first: dict[int, str] = {}  # one name for each stage
        for name, stage in group:
            first.setdefault(stage, name)
        if len(first) > 1:
            held = sorted(first)
            names = tuple(first[stage] for stage in held)
            found.setdefault(names, Tie(names, held))
    return list(found.values())


class _Chain(nn.Sequential):
    """Some modules of a list, one after the other, under their names in the list."""

    def __init__(self, modules: Iterable[tuple[str, nn.Module]]) -> None:
        super().__init__()
        for name, module in modules:
            self.add_module(name, module)

    def forward(self, *args: Any) -> Any:
        return super().forward(args[0] if len(args) == 1 else args)


class _Skipped(nn.Module):
    """Stands where a stage does not hold a layer: returns its first argument."""

    def forward(self, x: Any, *args: Any, **kwargs: Any) -> Any:
        return x


class _NoPositions(nn.Module):
    """Stands for GPT-2's position embeddings in stages that are not first: x + -0.0 is x."""

    def forward(self, positions: Tensor) -> Tensor:
        return torch.full((), -0.0, device=positions.device)


_CLASSES: dict[type, type] = {}


def _decoder_class(base: type) -> type:
    """The class of a stage of a decoder of this class."""
    if base in _CLASSES:
        return _CLASSES[base]

    class Stage(base):
        def forward(self, x: Tensor, attention_mask: Tensor | None = None,
                    position_ids: Tensor | None = None, **kwargs: Any) -> Any:
            first, last = self._pipec_place
            kwargs = {"use_cache": False, "return_dict": True, **kwargs}
            kwargs["input_ids" if first else "inputs_embeds"] = x
            call = super().forward if last or self.base_model is self else self.base_model
            output = call(attention_mask=attention_mask, position_ids=position_ids, **kwargs)
            if last:
                logits = getattr(output, "logits", None)
                return output.last_hidden_state if logits is None else logits
            extra = (attention_mask, position_ids)
            while extra and extra[-1] is None:
                extra = extra[:-1]
            return (output.last_hidden_state, *extra) if extra else output.last_hidden_state

        def __reduce_ex__(self, protocol: int) -> Any:
            return _new_stage, (base,), self.__dict__

    Stage.__name__, Stage.__qualname__ = base.__name__, base.__qualname__
    _CLASSES[base] = Stage
    return Stage


def _new_stage(base: type) -> nn.Module:
    stage = _decoder_class(base)
    return stage.__new__(stage)


def _is_list(model: Any) -> bool:
    return isinstance(model, (nn.Sequential, nn.ModuleList, list, tuple))


def _parts(model: Any, stages: int, layers: Sequence[int] | str | None) -> list[_Part]:
    """The parts of the model in its order; together they hold all of its parameters."""
    if not _is_list(model):
        return _decoder_parts(model, stages, layers)
    if isinstance(model, nn.Sequential) and type(model).forward is not nn.Sequential.forward:
        raise ValueError(f"cut: model: {type(model).__name__} is an nn.Sequential with a forward "
                         "of its own (a plain one, or a list of modules)")
    if isinstance(model, nn.Module):  # with a module that stands there twice, under both names
        modules = [(name, m) for name, m in model.named_modules(remove_duplicate=False)
                   if name and "." not in name]
    else:
        modules = [(str(i), m) for i, m in enumerate(model)]
    for name, m in modules:
        if not isinstance(m, nn.Module):
            raise ValueError(f"cut: model: element {name} is a {type(m).__name__} (an nn.Module)")
    places = _places([_weight(m) for _, m in modules], stages, layers, "modules")
    if len(set(places)) < stages:
        empty = min(set(range(stages)) - set(places))
        raise ValueError(f"cut: layers: stage {empty} has none (at least one module)")
    return [_Part(name, m, place) for (name, m), place in zip(modules, places)]


def _decoder_parts(model: Any, stages: int, layers: Sequence[int] | str | None) -> list[_Part]:
    kind = type(model).__name__
    base = getattr(model, "base_model", None)
    config = getattr(base, "config", None)
    family = getattr(config, "model_type", None)
    if family == "gpt2":
        names = ["wte", "wpe", "drop", "h", "ln_f"]
    else:
        names = list(getattr(config, "base_model_pp_plan", None) or ())
    children = dict(base.named_children()) if isinstance(base, nn.Module) else {}
    names = [name for name in names if name in children]
    lists = [name for name in names if isinstance(children[name], nn.ModuleList)]
    head = base is model or (hasattr(model, "get_output_embeddings")
                             and model.get_output_embeddings() is not None)
    if len(lists) != 1 or not head:
        raise ValueError(f"cut: model: {kind} (a decoder of transformers whose parts are known: "
                         "GPT-2, LLaMA, Qwen2, Qwen3, Mistral and their like; an nn.Sequential; or "
                         "a list of modules)")
    if family not in TESTED:
        warnings.warn(f"cut: model: stages of {kind} were never compared with the whole; compare "
                      "their logits with the model's before training", stacklevel=3)
    prefix = "" if base is model else next(n for n, m in model.named_modules() if m is base) + "."
    at = names.index(lists[0])
    blocks = children[lists[0]]
    costs = [_weight(block) for block in blocks]
    heads = [(n, m) for n, m in model.named_children() if base is not model and m is not base]
    extra = sum(_weight(m) for _, m in heads)
    places = _places(costs, stages, layers, "layers", extra)
    parts = [_Part(prefix + name, children[name], 0) for name in names[:at]]
    parts += [_Part(f"{prefix}{names[at]}.{i}", block, place)
              for i, (block, place) in enumerate(zip(blocks, places))]
    parts += [_Part(prefix + name, children[name], stages - 1) for name in names[at + 1:]]
    parts += [_Part(name, m, stages - 1) for name, m in heads]
    held = {id(p) for part in parts for p in part.module.parameters()}
    for name, p in model.named_parameters():
        if id(p) not in held:
            raise ValueError(f"cut: model: {kind} has {name} outside of its layers, embeddings and "
                             "head (no stage would hold it)")
    return parts


def _weight(module: nn.Module) -> int:
    """Parameters of the module that take part in products."""
    return sum(p.numel() for m in module.modules() if not isinstance(m, nn.Embedding)
               for p in m.parameters(recurse=False))


def _places(costs: list[int], stages: int, layers: Sequence[int] | str | None, what: str,
            last: int = 0) -> list[int]:
    """The stage of each layer. last: what the last stage holds beside its layers."""
    count = len(costs)
    if layers is not None and not isinstance(layers, str):
        sizes = list(layers)
        wrong = next((n for n in sizes if not isinstance(n, int) or n < 0), None)
        if wrong is not None:
            raise ValueError(f"cut: layers: {wrong!r} (numbers from 0)")
        if len(sizes) != stages or sum(sizes) != count:
            raise ValueError(f"cut: layers: {','.join(map(str, sizes))} are {len(sizes)} stages of "
                             f"{sum(sizes)} {what} ({stages} stages of {count})")
        return [stage for stage, size in enumerate(sizes) for _ in range(size)]
    if isinstance(layers, str) and layers != "auto":
        raise ValueError(f"cut: layers: {layers!r} (a list of numbers, or 'auto')")
    if stages > count:
        raise ValueError(f"cut: stages: {stages} stages of {count} {what} (at most {count})")
    if layers is None:
        return [(2 * i + 1) * stages // (2 * count) for i in range(count)]
    return _balanced(costs, stages, last)


def _balanced(costs: list[int], stages: int, last: int) -> list[int]:
    """Contiguous, none empty, such that the largest sum is least; what is left over comes late."""
    count = len(costs)
    before = [0]
    for cost in costs:
        before.append(before[-1] + cost)
    # best[n]: (largest sum, start of the last stage) of the first n layers on s stages.
    best: list[list[tuple[int, int]]] = [[(before[n], 0) for n in range(count + 1)]]
    for s in range(1, stages):
        more = last if s == stages - 1 else 0
        best.append([min(((max(best[-1][k][0], before[n] - before[k] + more), k)
                          for k in range(s, n)), default=(sum(costs) + last + 1, 0))
                     for n in range(count + 1)])
    places, end = [0] * count, count
    for s in reversed(range(1, stages)):
        start = best[s][end][1]
        places[start:end] = [s] * (end - start)
        end = start
    return places
