"""Bytes that PyTorch's allocator has given out, now and at most.

On a GPU the allocator counts by itself. On a CPU its events are recorded, as `torch.profiler` sees
them: what tensors say of themselves misses what an operation holds while it runs.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterable

import torch
from torch import Tensor
from torch.profiler import ProfilerActivity, profile, record_function

_MARK = "pipec mark "
# Otherwise the profiler says on standard error when it begins and ends.
os.environ.setdefault("KINETO_LOG_LEVEL", "99")


class Meter:
    """A context that measures between its marks.

    Attributes, complete after the end:
        alive: by mark, the bytes given out since the context's begin and not yet given back.
        most: by mark, the most of that since the mark before (at mark 0: since the begin).
    """

    def __init__(self, device: torch.device):
        self.alive: list[int] = []
        self.most: list[int] = []
        self._device = device
        self._marks = 0
        self._profile: profile | None = None

    def __enter__(self) -> Meter:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
            torch.cuda.reset_peak_memory_stats(self._device)
            self._begin = torch.cuda.memory_allocated(self._device)
        else:
            self._profile = profile(activities=[ProfilerActivity.CPU], profile_memory=True)
            self._profile.__enter__()
        return self

    def mark(self) -> int:
        """A mark's number, from 0."""
        if self._profile is None:
            self.alive.append(torch.cuda.memory_allocated(self._device) - self._begin)
            self.most.append(torch.cuda.max_memory_allocated(self._device) - self._begin)
            torch.cuda.reset_peak_memory_stats(self._device)
        else:
            with record_function(f"{_MARK}{self._marks}"):
                pass
        self._marks += 1
        return self._marks - 1

    def __exit__(self, *error) -> None:
        if self._profile is not None:
            self._profile.__exit__(*error)
            if error[0] is None:
                self._read()

    def _read(self) -> None:
        handle, path = tempfile.mkstemp(suffix=".json")
        os.close(handle)
        try:
            self._profile.export_chrome_trace(path)
            with open(path) as file:
                events = json.load(file)["traceEvents"]
        finally:
            os.unlink(path)
        seen: list[tuple[float, int, int]] = []  # time, mark or -1, bytes
        for event in events:
            name = event.get("name", "")
            if name == "[memory]" and event["args"]["Device Type"] == 0:
                seen.append((event["ts"], -1, event["args"]["Bytes"]))
            elif name.startswith(_MARK) and event.get("ph") == "X":
                seen.append((event["ts"], int(name.removeprefix(_MARK)), 0))
        alive = most = 0
        for _, mark, bytes in sorted(seen, key=lambda row: row[0]):
            alive += bytes
            most = max(most, alive)
            if mark >= 0:
                self.alive.append(alive)
                self.most.append(most)
                most = alive
        if len(self.alive) != self._marks:
            raise RuntimeError(f"the profiler recorded {len(self.alive)} of {self._marks} marks")


def bytes_of(tensors: Iterable[Tensor | None]) -> int:
    """Of their storages, each counted once."""
    storages = {}
    for tensor in tensors:
        if tensor is not None:
            storage = tensor.untyped_storage()
            storages[storage.data_ptr()] = storage.nbytes()
    return sum(storages.values())
