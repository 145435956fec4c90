"""What was predicted of a plan, beside what a run of it takes: time and memory."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch.distributed as dist
from torch import Tensor

from ._memory import Meter, bytes_of
from ._state import agreement


@dataclass(frozen=True)
class Comparison:
    predicted_seconds: float
    seconds: float
    """Of a step, from its first instruction to the end of its last on any device; the median."""
    range_seconds: tuple[float, float]
    """The fastest and the slowest step."""
    predicted_bytes: list[int]
    """By device: the peak. Zeros without costs that count bytes."""
    bytes: list[int]
    """By device, the most of its replicas: the allocator's peak, of weights, gradients, the
    optimizer's state and what a step needs beside them."""
    why: dict[str, Any] = field(repr=False)
    """What `Plan.why` says of the run."""

    def __str__(self) -> str:
        low, high = self.range_seconds
        lines = [f"{'':<12}{'predicted':>14}{'measured':>14}",
                 f"{'step':<12}{self.predicted_seconds * 1e3:>11.2f} ms"
                 f"{self.seconds * 1e3:>11.2f} ms  ({low * 1e3:.2f} to {high * 1e3:.2f} ms)"]
        for device, (predicted, measured) in enumerate(zip(self.predicted_bytes, self.bytes)):
            lines.append(f"{f'd{device}, peak':<12}{predicted / (1 << 20):>10.2f} MiB"
                         f"{measured / (1 << 20):>10.2f} MiB")
        return "\n".join(lines)


def compare(pipe, step: Callable[[], Any], *, costs: Any = None, steps: int = 5) -> Comparison:
    """Makes steps + 3 training steps, of which two are to warm up and one is to measure memory.

        print(compare(pipe, lambda: pipe.step(inputs, targets), costs=costs))

    Called by all ranks; costs: what `profile` returned, by default those in the plan. Of a
    batch-ramp's steps those of the next one's size are compared.
    """
    if not steps >= 1:
        raise ValueError(f"steps: {steps} (a whole number from 1 on)")
    handle, path = tempfile.mkstemp(suffix=".json")
    os.close(handle)
    why, routine = None, pipe.plan.routine_of(pipe.steps)
    try:
        with agreement(pipe.plan):
            with pipe.trace(path):
                for _ in range(steps + 2):
                    step()
            if pipe.place.rank == 0:
                why = pipe.plan.why(path, costs=costs, routine=routine)
    finally:
        os.unlink(path)
    peaks = gathered((pipe.place.device, peak_of(pipe, step)))
    bytes = [max(peak for device, peak in peaks if device == d) for d in range(pipe.plan.devices)]
    why = gathered(why)[0]
    measured = why["measured"]
    return Comparison(why["makespan"], measured["makespan"],
                      (measured["fastest"], measured["slowest"]),
                      [device.get("peak_bytes", 0) for device in why["devices"]], bytes, why)


def peak_of(pipe, step: Callable[[], Any]) -> int:
    """The most bytes of this rank during a step."""
    for part in pipe.parts.values():
        for p in part.parameters():
            p.grad = None  # as a step begins
    held = [tensor for part in pipe.parts.values()
            for tensor in [*part.parameters(), *part.buffers()]]
    state = pipe.optimizer.state if pipe.optimizer is not None else {}
    held += [value for of in state.values() for value in of.values() if isinstance(value, Tensor)]
    with Meter(pipe.device) as meter:
        step()
        meter.mark()
    return bytes_of(held) + max(meter.most)


def gathered(value: Any) -> list[Any]:
    """Of all ranks."""
    if not (dist.is_available() and dist.is_initialized()):
        return [value]
    everywhere = [None] * dist.get_world_size()
    dist.all_gather_object(everywhere, value)
    return everywhere
