"""What the stages of a model cost, as `pipec` reads it."""

from __future__ import annotations

import json
import os
import tempfile
import weakref
from dataclasses import dataclass, field
from typing import Any

# Keys of `pipec compile --costs` that say what a whole device takes: of its V stages each has 1/V.
_OF_DEVICE = ("f", "b", "r", "bi", "bw", "fb", "reduce", "step")
_BYTES = ("stash", "input", "work", "act", "grad", "weights", "transient")


@dataclass(frozen=True)
class Costs:
    """Times in seconds and sizes in bytes of one micro-batch, of each stage.

    An option `costs` takes them: `pipec.compile(costs=costs)`, `plan.simulate(costs=costs)`.
    """

    stages: int
    of: dict[str, list[float]]
    """By the keys of `pipec compile --costs`: a number for each stage, of that stage alone."""
    _file: list[str] = field(default_factory=list, init=False, repr=False, compare=False)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes a file of costs, for `pipec ... --costs FILE`."""
        with open(path, "w") as file:
            json.dump({"costs": self.of}, file, indent=1)
            file.write("\n")

    @property
    def path(self) -> str:
        """Of such a file, which is there as long as this object."""
        if not self._file:
            handle, path = tempfile.mkstemp(prefix="pipec-costs-", suffix=".json")
            os.close(handle)
            self.save(path)
            self._file.append(path)
            weakref.finalize(self, os.unlink, path)
        return self._file[0]

    def text(self, stages_per_device: int = 1) -> str:
        """The same as the option's text, "f=0.1s:0.2s,...", whose times are of a whole device."""
        parts = []
        for key, values in self.of.items():
            times = stages_per_device if key in _OF_DEVICE else 1
            unit = "B" if key in _BYTES else "B/s" if key == "bandwidth" else "s"
            parts.append(f"{key}=" + ":".join(f"{value * times:.9g}{unit}" for value in values))
        return ",".join(parts)

    def __reduce__(self) -> tuple[Any, ...]:
        return Costs, (self.stages, self.of)

    def __str__(self) -> str:
        """A table with a row for each stage: milliseconds and mebibytes."""
        keys = [key for key in self.of if key != "bandwidth"]
        rows = [["stage", *(f"{key} MiB" if key in _BYTES else f"{key} ms" for key in keys)]]
        for stage in range(self.stages):
            rows.append([str(stage), *(f"{self.of[key][stage] / (1 << 20):.3f}" if key in _BYTES
                                       else f"{self.of[key][stage] * 1e3:.3f}" for key in keys)])
        return "\n".join("".join(f"{cell:>14}" for cell in row) for row in rows)
