"""Random numbers that do not depend on the schedule.

Before each forward the generators are seeded from (seed, step, replica, stage, micro-batch). So dropout
masks are the same whatever the plan, a recomputation draws those of its forward, and a single
process can reproduce them (`micro_seed`).
"""

from __future__ import annotations

import torch

_MASK = (1 << 64) - 1


def _mix(x: int, value: int) -> int:
    """SplitMix64 of x and one more number."""
    x = (x + 0x9E3779B97F4A7C15 * (value + 1)) & _MASK
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & _MASK
    return x ^ (x >> 31)


def step_seed(seed: int, step: int, replica: int) -> int:
    return _mix(_mix(_mix(0, seed), step), replica)


def stage_seed(base: int, stage: int, micro: int) -> int:
    return _mix(_mix(base, stage), micro)


def micro_seed(seed: int, step: int, stage: int, micro: int, replica: int = 0) -> int:
    """What `Pipeline` seeds the generators with before the forward of a stage on a micro-batch.

    `step` counts from 0. In a single process, `torch.manual_seed(micro_seed(...))` before the same
    forward gives the same random numbers.
    """
    return stage_seed(step_seed(seed, step, replica), stage, micro)


def generators(device: torch.device) -> list[torch.Generator]:
    """Those that modules on this device draw from."""
    found = [torch.default_generator]
    if device.type == "cuda":
        index = torch.cuda.current_device() if device.index is None else device.index
        found.append(torch.cuda.default_generators[index])
    return found


class preserved:
    """A context that leaves the states of generators as they were."""

    def __init__(self, generators: list[torch.Generator]):
        self._generators = generators

    def __enter__(self):
        # Not as tensors, of which each would be 5 KB of a step's memory.
        self._states = [generator.clone_state() for generator in self._generators]

    def __exit__(self, *_):
        for generator, state in zip(self._generators, self._states):
            generator.set_state(state.get_state())
