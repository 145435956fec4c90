"""Takes every schedule class of torch.distributed.pipelining through `pipec import`.

    schedules.py PIPEC

Schedules are made without processes: they ask their stages for a few numbers, which a stand-in has.
Each must become a plan with the stages where PyTorch has them, whose compute actions are those of
the schedule, with the messages of either side. Prints a line a schedule; exit status 1 if any
differs.
"""

import importlib.util
import pathlib
import subprocess
import sys
import tempfile
import types

from torch.distributed import pipelining
from torch.distributed.pipelining import schedules

RANKS, MICROS = 4, 8

ROOT = pathlib.Path(__file__).resolve().parents[2]
SPEC = importlib.util.spec_from_file_location("schedules_csv",
                                              ROOT / "tools/python/pipec/torch/_schedules.py")
MODULE = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(MODULE)
schedule_csv = MODULE.schedule_csv


def stage(index, count, ranks):
    """A stage of rank 0 as far as a schedule asks for it before its first step."""
    return types.SimpleNamespace(stage_index=index, num_stages=count, group_size=ranks,
                                 group_rank=0, submod=None, is_first=index == 0,
                                 is_last=index == count - 1, has_backward=True)


def make(cls, per_rank):
    """A schedule of RANKS ranks, as rank 0 makes it, with per_rank stages on each."""
    count = RANKS * per_rank
    if issubclass(cls, schedules.PipelineScheduleSingle):
        return cls(stage(0, count, RANKS), MICROS)
    is_v = cls in (pipelining.ScheduleZBVZeroBubble, pipelining.ScheduleDualPipeV)
    mine = [0, count - 1] if is_v else range(0, count, RANKS)
    return cls([stage(index, count, RANKS) for index in mine], MICROS)


def run(pipec, *words):
    done = subprocess.run([pipec, *words], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise ValueError(done.stderr.strip())
    return done.stdout


def back(pipec, csv, messages):
    """The CSV of the plan that `pipec import` makes of this one."""
    with tempfile.TemporaryDirectory() as folder:
        source, plan = f"{folder}/schedule.csv", f"{folder}/plan"
        pathlib.Path(source).write_text(csv, encoding="ascii")
        run(pipec, "import", source, "-o", plan)
        run(pipec, "verify", plan)
        return run(pipec, "show", plan, "-q", "--format", "torch-csv", "--messages", messages)


def cells(csv, without):
    """Rows of cells, without those of these types."""
    return [[cell for cell in row.split(",") if not any(word in cell for word in without)]
            for row in csv.splitlines()]


def check(pipec, schedule):
    """What is wrong, or nothing."""
    compute = schedule_csv(schedule)
    for rank, row in enumerate(cells(compute, [])):
        for cell in row:
            for action in cell.strip("()").split(";"):
                index = int(action.split("F")[0].split("B")[0].split("I")[0].split("W")[0])
                where = getattr(schedule, "stage_index_to_group_rank", {}).get(index, index)
                if where != rank:
                    return f"{action} is in the row of rank {rank} (rank {where})"
    if cells(back(pipec, compute, "compute"), []) != cells(compute, []):
        return "other compute actions come back"
    if isinstance(schedule, schedules.PipelineScheduleSingle):
        return ""
    full = schedule_csv(schedule, "full")
    skipped = ["WAIT", "REDUCE", "SHARD"]
    if cells(back(pipec, full, "full"), skipped) != cells(full, skipped):
        return "other messages come back"
    return ""


def check_own(pipec, cls, scheme):
    """Whether pipec's scheme is PyTorch's schedule."""
    with tempfile.TemporaryDirectory() as folder:
        plan = f"{folder}/plan"
        run(pipec, "compile", "--scheme", scheme, "--devices", str(RANKS), "--microbatches",
            str(MICROS), "-o", plan)
        own = run(pipec, "show", plan, "-q", "--format", "torch-csv")
    return "" if own == schedule_csv(make(cls, 1)) else f"is not {scheme}"


def expect_refusal(schedule, error, words):
    try:
        schedule_csv(schedule)
    except error as raised:
        return "" if words in str(raised) else f"refused as {raised}"
    return "not refused"


def main():
    pipec = sys.argv[1]
    failed = 0
    cases = [(pipelining.ScheduleGPipe, 1), (pipelining.Schedule1F1B, 1),
             (pipelining.ScheduleInterleaved1F1B, 2), (pipelining.ScheduleInterleaved1F1B, 4),
             (pipelining.ScheduleLoopedBFS, 2), (pipelining.ScheduleInterleavedZeroBubble, 2),
             (pipelining.ScheduleZBVZeroBubble, 2), (pipelining.ScheduleDualPipeV, 2)]
    outcomes = [(f"{cls.__name__}, stages on a rank: {per_rank}", check(pipec, make(cls, per_rank)))
                for cls, per_rank in cases]
    for cls, scheme in (pipelining.ScheduleGPipe, "gpipe"), (pipelining.Schedule1F1B, "1f1b"):
        outcomes.append((f"{cls.__name__} and {scheme}", check_own(pipec, cls, scheme)))
    named = {name for name in schedules.__all__ if name.startswith("Schedule")}
    outcomes.append(("every class", str(named - {cls.__name__ for cls, _ in cases} or "")))
    # One that was loaded with its messages has them alone.
    loaded = schedules._PipelineScheduleRuntime([stage(0, RANKS, RANKS)], MICROS)
    lowered = make(pipelining.ScheduleInterleaved1F1B, 2)
    loaded.pipeline_order_with_comms = lowered.pipeline_order_with_comms
    outcomes.append(("loaded with messages", "" if schedule_csv(loaded) == schedule_csv(lowered)
                     else "other compute actions"))
    outcomes += [
        ("_ScheduleForwardOnly",
         expect_refusal(make(schedules._ScheduleForwardOnly, 1), ValueError, "states no order")),
        ("PipelineScheduleMulti",
         expect_refusal(make(schedules.PipelineScheduleMulti, 2), ValueError, "states no order")),
        ("no schedule", expect_refusal(3, TypeError, "int: is no schedule")),
    ]
    for name, wrong in outcomes:
        print(f"{name}: {wrong or 'ok'}")
        failed += wrong != ""
    sys.exit(failed > 0)


if __name__ == "__main__":
    main()
