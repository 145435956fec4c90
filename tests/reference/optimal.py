"""The shortest step under a memory limit, by an exact solver (OR-Tools' CP-SAT, from PyPI).

    optimal.py PIPEC optima.csv [--seconds S] [--workers N] [--only TEXT]

For each row of the table whose text holds TEXT it says whether its value is proved to be the
optimum, or between what the optimum lies after S seconds. Exit 1 if a value is below what was
proved possible, or above what was found. A plan is any order of each device's tasks in which a
stage adds its micro-batches' gradients in order, with any choice of what is dropped and recomputed,
which is what fit-memory chooses from, too.
"""

import argparse
import csv
import fractions
import json
import math
import os
import subprocess
import tempfile

from ortools.sat.python import cp_model

DEFAULTS = {"f": "1", "b": "2", "comm": "0", "in": "0"}


def per_stage(text, stages):
    values = [fractions.Fraction(value) for value in text.split(":")]
    return values * stages if len(values) == 1 else values


class Pipeline:
    """A row: where stages lie, and how long and how large everything is, in whole numbers."""

    def __init__(self, pipec, row):
        with tempfile.TemporaryDirectory() as folder:
            plan = os.path.join(folder, "plan.pp")
            command = [pipec, "compile", "--scheme", row["scheme"], "--devices", row["devices"],
                       "--microbatches", row["microbatches"], "--quiet", "-o", plan]
            if row["scheme"] in ("interleaved", "fold-aiao", "fold-fifo", "hanayo"):
                command += ["--stages-per-device", row["stages_per_device"]]
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
            shown = subprocess.run([pipec, "show", plan, "--format", "json"], check=True,
                                   capture_output=True).stdout
        program = json.loads(shown)
        self.devices, self.stages = program["devices"], program["stages"]
        self.micros = program["microbatches"]
        self.device_of = [pipe["device_of"] for pipe in program["pipes"]]
        self.pipe_of = program["pipe_of"]
        self.split = {i["stage"] for part in program["lists"] for i in part["body"]
                      if i["op"] == "BW_input"}
        costs = DEFAULTS | dict(part.split("=") for part in row["costs"].split(","))
        costs.setdefault("r", costs["f"])
        values = {name: per_stage(text, self.stages) for name, text in costs.items()}
        for half in ("bi", "bw"):
            values.setdefault(half, [b / 2 for b in values["b"]])
        share = fractions.Fraction(int(row["stages_per_device"]))
        for name in ("f", "b", "r", "bi", "bw"):
            values[name] = [value / share for value in values[name]]
        limit = [fractions.Fraction(part) for part in row["limit"].split(":")]
        limit = limit * self.devices if len(limit) == 1 else limit
        self.kept, dropped = 1 / share, values["in"]
        times = [value for name in ("f", "b", "r", "bi", "bw", "comm") for value in values[name]]
        self.tick = math.lcm(*(value.denominator for value in times))
        self.time = {name: [int(value * self.tick) for value in values[name]]
                     for name in ("f", "b", "r", "bi", "bw", "comm")}
        unit = math.lcm(*(value.denominator for value in limit + dropped + [self.kept]))
        self.kept = int(self.kept * unit)
        self.dropped = [int(value * unit) for value in dropped]
        self.limit = [int(value * unit) for value in limit]

    def device(self, stage, micro):
        return self.device_of[self.pipe_of[micro]][stage]


def model_of(p):
    """The model, and its makespan in ticks."""
    model = cp_model.CpModel()
    horizon = p.micros * sum(
        p.time["f"][s] + p.time["r"][s] + p.time["b"][s] + 2 * p.time["comm"][s]
        for s in range(p.stages))
    makespan = model.new_int_var(0, horizon, "makespan")
    busy = [[] for _ in range(p.devices)]
    memory = [[] for _ in range(p.devices)]  # (interval, weight)
    tasks = {}

    def task(kind, s, m, duration, present=None):
        start = model.new_int_var(0, horizon, "")
        if present is None:
            interval = model.new_fixed_size_interval_var(start, duration, "")
        else:
            interval = model.new_optional_fixed_size_interval_var(start, duration, present, "")
        busy[p.device(s, m)].append(interval)
        tasks[kind, s, m] = (start, start + duration)

    for m in range(p.micros):
        for s in range(p.stages):
            drop = model.new_bool_var("")
            task("F", s, m, p.time["f"][s])
            task("R", s, m, p.time["r"][s], drop)
            last = "B"
            if s in p.split:
                task("B", s, m, p.time["bi"][s])
                task("W", s, m, p.time["bw"][s])
                model.add(tasks["W", s, m][0] >= tasks["B", s, m][1])
                last = "W"
            else:
                task("B", s, m, p.time["b"][s])
            model.add(tasks["B", s, m][0] >= tasks["F", s, m][1])
            model.add(tasks["R", s, m][0] >= tasks["F", s, m][1]).only_enforce_if(drop)
            model.add(tasks["B", s, m][0] >= tasks["R", s, m][1]).only_enforce_if(drop)
            end = tasks[last, s, m][1]
            model.add(makespan >= end)
            # What the forward keeps and, where that is little, what the recompute adds.
            for kind, weight, present in (("F", p.kept, drop.negated()), ("F", p.dropped[s], drop),
                                          ("R", p.kept, drop)):
                size = model.new_int_var(0, horizon, "")
                memory[p.device(s, m)].append((model.new_optional_interval_var(
                    tasks[kind, s, m][0], size, end, present, ""), weight))
    for m in range(p.micros):
        for s in range(p.stages - 1):
            lag = p.time["comm"][s] if p.device(s, m) != p.device(s + 1, m) else 0
            model.add(tasks["F", s + 1, m][0] >= tasks["F", s, m][1] + lag)
            model.add(tasks["B", s, m][0] >= tasks["B", s + 1, m][1] + lag)
    for s in range(p.stages):
        last = "W" if s in p.split else "B"
        for pipe in range(len(p.device_of)):
            own = [m for m in range(p.micros) if p.pipe_of[m] == pipe]
            for one, other in zip(own, own[1:]):
                model.add(tasks[last, s, other][0] >= tasks[last, s, one][1])
    for d in range(p.devices):
        model.add_no_overlap(busy[d])
        intervals, weights = zip(*memory[d])
        model.add_cumulative(intervals, weights, p.limit[d])
    model.minimize(makespan)
    return model


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("pipec")
    parser.add_argument("table")
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--workers", type=int, default=os.cpu_count())
    parser.add_argument("--only", default="")
    args = parser.parse_args()
    wrong = 0
    with open(args.table, newline="") as file:
        for row in csv.DictReader(file):
            text = ",".join(row.values())
            if args.only not in text:
                continue
            pipeline = Pipeline(args.pipec, row)
            solver = cp_model.CpSolver()
            solver.parameters.max_time_in_seconds = args.seconds
            solver.parameters.num_workers = args.workers
            status = solver.solve(model_of(pipeline))
            least = solver.best_objective_bound / pipeline.tick
            found = math.inf
            if status in (cp_model.OPTIMAL, cp_model.FEASIBLE):
                found = solver.objective_value / pipeline.tick
            value = float(row["optimum"])
            says = "proved" if value == found and status == cp_model.OPTIMAL else f"between {least:g} and {found:g}"
            if value < least - 1e-9 or value > found + 1e-9:
                says += ", which the table's value is not"
                wrong += 1
            print(f"{text}: {says} ({solver.wall_time:.1f} s)", flush=True)
    return wrong > 0


if __name__ == "__main__":
    raise SystemExit(main())
