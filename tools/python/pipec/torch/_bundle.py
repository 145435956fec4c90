"""Bundles: what goes from one stage to the next, a tuple of tensors or of None."""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

Bundle = tuple  # of Tensor | None


class Spec(NamedTuple):
    """One tensor of a bundle; None stands for None."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    requires_grad: bool


def as_bundle(value: Any, where: str) -> Bundle:
    """What a stage returned, as a tuple."""
    if isinstance(value, Tensor):
        return (value,)
    if isinstance(value, (tuple, list)) and all(t is None or isinstance(t, Tensor) for t in value):
        return tuple(value)
    kinds = (", ".join(type(t).__name__ for t in value) if type(value) in (tuple, list) else
             type(value).__name__)
    raise TypeError(f"{where} returns {kinds} (a tensor, or a tuple of tensors)")


def spec_of(bundle: Bundle) -> tuple[Spec | None, ...]:
    return tuple(None if t is None else Spec(tuple(t.shape), t.dtype, t.requires_grad)
                 for t in bundle)


def text_of(spec: tuple[Spec | None, ...]) -> str:
    return ", ".join("None" if t is None else
                     f"{str(t.dtype).removeprefix('torch.')}{list(t.shape)}" for t in spec)


def same_layout(bundle: Bundle, spec: tuple[Spec | None, ...]) -> bool:
    """Whether shapes and types are as in the spec."""
    if len(bundle) != len(spec):
        return False
    for t, s in zip(bundle, spec):
        if (t is None) != (s is None):
            return False
        if t is not None and (t.shape != s.shape or t.dtype != s.dtype):
            return False
    return True


def detached(bundle: Bundle) -> Bundle:
    return tuple(None if t is None else t.detach() for t in bundle)


def digest(bundle: Bundle) -> int:
    """A checksum of all bits."""
    sum = 0
    for t in bundle:
        if t is not None:
            raw = t.detach().contiguous().cpu().reshape(-1).view(torch.uint8)
            sum = zlib.crc32(raw.numpy().tobytes(), sum)
    return sum


def signature(inputs: Any) -> int:
    """63 bits that say the structure, shapes and types of one micro-batch's inputs."""

    def describe(value: Any) -> str:
        if isinstance(value, Tensor):
            return f"{list(value.shape)}{value.dtype}"
        if isinstance(value, (tuple, list)):
            return "(" + ",".join(map(describe, value)) + ")"
        if isinstance(value, Mapping):
            return "{" + ",".join(f"{k}:{describe(v)}" for k, v in value.items()) + "}"
        return repr(value)

    hash = hashlib.blake2b(describe(inputs).encode(), digest_size=8).digest()
    return int.from_bytes(hash, "little") >> 1
