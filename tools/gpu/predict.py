"""What pipec predicts from one profile on one GPU, against what piperun then takes: the table of
tools/bench_predict.sh for a pipeline of one device. Nothing measured is used for a prediction but
the profile of one plan.

tools/gpu/models.json has the plans.
"""

import json
import statistics

from gpu.plans import config_of
from gpu.training import random_tokens, rows_of


def compile_one(call, label, config, plan, tokens, microbatches, size, passes):
    ran = call.run(f"{label}_plan", [
        call.here / "pipec", "compile", "--scheme", "gpipe", "--devices", 1, "--microbatches",
        microbatches, "--model", config, "--micro-batch-size", size, "--seq-length", tokens,
        "--dtype", "bf16", "--backend", "cuda", "-o", plan,
        *(["--passes", passes] if passes else [])])
    return ran.problem


def measure(call, label, plan, *options):
    """What is wrong; the steps' seconds without the first ones, in order; and the peak's bytes."""
    log = call.work / f"{label}.jsonl"
    log.unlink(missing_ok=True)
    table = call.models["predict"]
    ran = call.run(label, [
        call.here / "piperun", plan, "--data", random_tokens(call), "--backend", "cuda",
        "--steps", table["steps"], "--log", log, *options])
    rows = rows_of(log)
    seconds = sorted(row["step_seconds"] for row in rows[table["warm_up"]:])
    problem = ran.problem or (None if len(seconds) > 2 else f"WRONG {len(rows)} steps")
    return problem, seconds, max(rows[-1]["peak_bytes"]) if rows else 0


def simulate(call, label, plan, *options):
    ran = call.run(label, [call.here / "pipec", "simulate", plan, "--format", "json", *options])
    if ran.problem:
        return ran.problem, {}
    try:
        return None, json.loads(ran.text)
    except ValueError as error:
        return f"WRONG {error}", {}


def predict_one(call, label, what, files, sizes):
    """Notes a row; returns (predicted, measured, scatter), or None."""
    config, plan, profile = files
    problem = compile_one(call, label, config, plan, *sizes)
    predicted = {}
    if problem is None:
        problem, predicted = simulate(call, f"{label}_simulate", plan, "--costs", profile)
    seconds, peak = [], 0
    if problem is None:
        problem, seconds, peak = measure(call, label, plan)
    if problem:
        call.note("predict", what, problem)
        return None
    median, scatter = statistics.median(seconds), seconds[-2] - seconds[1]
    planned = max(device["peak_bytes"] for device in predicted["devices"])
    result = "ok" if planned == peak else f"WRONG {planned} bytes planned, {peak} taken"
    call.note("predict", what, result, predicted_ms=round(1e3 * predicted["makespan"], 3),
              ms=round(1e3 * median, 3), scatter_percent=round(100 * scatter / median, 2),
              error_percent=round(100 * (predicted["makespan"] / median - 1), 2))
    return predicted["makespan"], median, scatter


def check_predict(call, name):
    """Every plan of the table, and how far predictions are off on average."""
    table = call.models["predict"]
    config = call.work / f"{name}.json"
    config.write_text(json.dumps(config_of(call.models["models"][name])))
    plan, profile = call.work / "predict.plan", call.logs / f"predict_{name}_profile.json"
    problem = compile_one(call, "predict_profile", config, plan, *table["profiled"])
    if problem is None:
        problem, _, _ = measure(call, "predict_profile", plan, "--profile", profile)
    if problem:
        call.note("predict", f"{name}, the profile", problem)
        return
    rows = []
    for number, sizes in enumerate(table["plans"]):
        tokens, microbatches, size, passes = sizes
        what = f"T {tokens}, {microbatches} x {size}{' ' + passes if passes else ''}"
        row = predict_one(call, f"predict_{number}", what, (config, plan, profile), sizes)
        rows += [row] if row else []
    if not rows:
        call.note("predict", name, "WRONG nothing was predicted")
        return
    pairs = [(a[0] - b[0]) * (a[1] - b[1]) > 0 for i, a in enumerate(rows) for b in rows[:i]
             if abs(a[1] - b[1]) > 2 * max(a[2], b[2])]
    call.note("predict", f"{name}, {len(rows)} plans",
              "ok" if len(rows) == len(table["plans"]) else "WRONG some are missing",
              error_percent=round(100 * statistics.mean(abs(p / m - 1) for p, m, _ in rows), 2),
              scatter_percent=round(100 * statistics.mean(s / m for _, m, s in rows), 2),
              pairs=len(pairs), in_order=sum(pairs))
