"""Who ran what when, in the form in which `piperun --trace` writes it.

On a CPU the times are those of the thread that runs the list: of an asynchronous message what its
instruction takes there. On a GPU they are those of the stream that computes. Clocks of several
hosts are taken as they are.
"""

from __future__ import annotations

import json
import os
import time

import torch
import torch.distributed as dist


class Recorder:
    """The times of steps on one rank."""

    def __init__(self, device: torch.device):
        self._cuda = device.type == "cuda"
        self._offset = time.time() - time.perf_counter()
        if self._cuda:
            torch.cuda.synchronize(device)
            self._offset = time.time()
            self._first = self._now()
        self._steps: list[tuple[str, list]] = []

    def _now(self):
        if not self._cuda:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def run(self, routine: str, calls: list, watch) -> None:
        """Runs a step's calls."""
        now = self._now
        times = [now()]
        for watch.index, (call, arguments) in enumerate(calls):
            call(*arguments)
            times.append(now())
        self._steps.append((routine, times))

    def steps(self) -> list[tuple[str, list[float]]]:
        """Of each step its routine, and the begin of each instruction and the end of the last, in
        seconds."""
        if self._cuda:
            torch.cuda.synchronize()
            return [(routine, [self._offset + self._first.elapsed_time(t) * 1e-3 for t in times])
                    for routine, times in self._steps]
        return [(routine, [self._offset + t for t in times]) for routine, times in self._steps]


def write_trace(recorder: Recorder, place, layout, path: str | os.PathLike[str]) -> None:
    """Called by all ranks; rank 0 writes what all recorded."""
    mine = place.device, recorder.steps()
    everywhere = [mine]
    if dist.is_available() and dist.is_initialized():
        everywhere = [None] * dist.get_world_size() if place.rank == 0 else None
        dist.gather_object(mine, everywhere, 0)
    if place.rank != 0:
        return
    begin = min((times[0] for _, steps in everywhere for _, times in steps), default=0.0)
    lines = []
    for rank, (device, steps) in enumerate(everywhere):
        rows = {routine: [(layout.text(routine, index, rank), row.op, *lane_of(row))
                          for index, row in enumerate(layout.lists[routine][device].rows())]
                for routine in dict.fromkeys(["step", *(routine for routine, _ in steps)])}
        lanes = {row[2:]: 0 for of_routine in rows.values() for row in of_routine}
        lines += [{"ph": "M", "name": "thread_name", "pid": rank, "tid": lane,
                   "args": {"name": name}} for lane, name in lanes]
        for number, (routine, times) in enumerate(steps, 1):
            which = {} if routine == "step" else {"routine": routine}
            for index, (text, op, lane, _) in enumerate(rows[routine]):
                lines.append({"ph": "X", "name": text, "cat": op, "pid": rank, "tid": lane,
                              "ts": round((times[index] - begin) * 1e6, 3),
                              "dur": round((times[index + 1] - times[index]) * 1e6, 3),
                              "args": {"step": number, "index": index, **which}})
    with open(path, "w") as file:
        file.write('{"displayTimeUnit":"ms","traceEvents":[\n')
        file.write(",\n".join(json.dumps(line, separators=(",", ":")) for line in lines))
        file.write("\n]}\n")


def lane_of(row) -> tuple[int, str]:
    """The number and name of the lane that an instruction is drawn in."""
    if row.op.startswith("SEND"):
        return 2 + 2 * row.peer, f"send to d{row.peer}"
    if row.op.startswith("RECV"):
        return 3 + 2 * row.peer, f"receive from d{row.peer}"
    return (1, "reduce") if row.op.startswith("REDUCE") else (0, "compute")
