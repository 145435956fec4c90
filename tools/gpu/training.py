"""Training whole models: a step's time in figures, and the checks that need no more.

tools/gpu/predictions.json has what a step should take.
"""

import base64
import json
import os
import re
import statistics
import sys
from array import array

from gpu.machine import PEAKS, by_name
from gpu.plans import batch_of, compile_plan, keeping, utilizations
from gpu.profile import GROUPS, read_profile, summarize

WARM_UP_STEPS = 4


def random_text(call):
    path = call.work / "text"
    if not path.exists():
        path.write_bytes(base64.b64encode(os.urandom(1 << 20)))
    return path


def random_tokens(call):
    """A token file of llm.c's, of tokens that every model has, all as often."""
    path = call.work / "tokens.bin"
    if not path.exists():
        most = min(model["vocabulary"] for model in call.models["models"].values())
        tokens = array("H", (token % most for token in array("H", os.urandom(2 << 20))))
        header = array("i", [20240520, 1, len(tokens)] + 253 * [0])
        path.write_bytes(header.tobytes() + tokens.tobytes())
    return path


def rows_of(log):
    """What piperun --log wrote, also where its end is missing."""
    rows = []
    for line in log.read_text().splitlines() if log.exists() else ():
        try:
            rows.append(json.loads(line))
        except ValueError:
            break
    return rows


def losses(log):
    return [row["loss"] for row in rows_of(log) if isinstance(row.get("loss"), float)]


def figures(call, name, seconds, sequences):
    """Of a step: milliseconds, tokens/s, MFU where the GPU's peak is known; and the prediction."""
    model = call.models["models"][name]
    tokens = sequences * model["tokens"] / seconds
    result = {"ms": round(1e3 * seconds, 2), "tokens_per_second": round(tokens)}
    peak = by_name(PEAKS, call.gpu.get("name", ""))
    if peak:
        result.update(utilizations(model, tokens, peak))
    predicted = by_name(call.predictions, call.gpu.get("name", ""))
    if predicted and name in predicted and sequences == model["batch"]:
        result["predicted_ms"] = round(sum(predicted[name].values()), 1)
    return result


def train(call, label, name, options=(), env=None, steps=None, warm_up=WARM_UP_STEPS, **plan_of):
    """Trains for some steps. Returns what is wrong, and the figures of the median step."""
    plan_of["batch"] = plan_of.get("batch") or batch_of(call, name)
    plan, problem = compile_plan(call, name, **plan_of)
    if problem:
        return problem, {}
    log = call.logs / f"{label}_steps.jsonl"
    log.unlink(missing_ok=True)
    ran = call.run(label, [
        (plan_of.get("programs") or call.here) / "piperun", plan, "--data",
        random_tokens(call), "--backend", "cuda", "--steps", steps or call.models["steps"],
        "--log", log, *options], env=env)
    rows = rows_of(log)
    seconds = [row["step_seconds"] for row in rows[warm_up:]]
    if not seconds:
        return ran.problem or f"WRONG {len(rows)} steps", {"steps": len(rows)}
    sequences = plan_of["batch"] * plan_of.get("microbatches", 1)
    found = {"steps": len(rows), **figures(call, name, statistics.median(seconds), sequences),
             "loss": rows[-1]["loss"], "peak_bytes": max(rows[-1]["peak_bytes"])}
    starting = re.search(r"starting kernels ([0-9.]+) %", ran.text)
    if starting:
        found["starting_kernels_percent"] = float(starting[1])
    problem = ran.problem
    if problem is None and len(rows) != (steps or call.models["steps"]):
        problem = f"WRONG {len(rows)} steps"
    return problem, found


def in_time(call, check, variants):
    """Those (name, and what is special) for which there is time, if none takes longer than others."""
    took = 0.0
    for what, special in variants:
        before = call.left()
        if took > before:
            call.note(check, what, "not started: no time left")
            continue
        yield what, special
        took = max(took, before - call.left())


def check_train(call, name):
    """Tokens/s and MFU of steps of one micro-batch, also of an earlier build, with what plans may
    keep, and with each of the choices of --cuda-experiments that models.json names."""
    variants = [(what, {"keep": keep}) for what, keep in reversed(keeping(call, "train", name))]
    variants += [(name + suffix, {"programs": programs}) for suffix, programs in call.builds()[1:]]
    variants += [(f"{name}, {choice}", {"options": ["--cuda-experiments", choice]})
                 for choice in call.models["choices"]]
    for what, special in in_time(call, "train", variants):
        problem, found = train(call, f"train_{what}", name, **special)
        call.note("train", what, problem or "ok", **found)


def check_profile(call, name):
    """One real step, summed per kernel and group, beside the prediction and an earlier build's."""
    library = call.here / "libgpu_profile.so"
    if not library.exists():
        call.note("profile", name, "WRONG this bundle was built without CUPTI")
        return
    for suffix, programs in call.builds():
        profile(call, name, suffix, programs, library)


def profile(call, name, suffix, programs, library):
    records = call.logs / f"profile_{name}{suffix}.tsv"
    records.unlink(missing_ok=True)
    steps = call.models["profiled_steps"]
    problem, _ = train(call, f"profile_{name}{suffix}", name, steps=steps, programs=programs,
                       env={"CUDA_INJECTION64_PATH": str(library), "GPU_PROFILE": str(records)})
    text = records.read_text() if records.exists() else ""
    step, why = read_profile(text, steps)
    if step is None:
        call.note("profile", name + suffix, problem or f"WRONG {why}")
        return
    predicted = (by_name(call.predictions, call.gpu.get("name", "")) or {}).get(name, {})
    groups, kernels, unknown = summarize(step)
    (call.logs / f"profile_{name}{suffix}_kernels.txt").write_text(kernels)
    for group in GROUPS:
        beside = {"predicted_ms": predicted[group]} if group in predicted else {}
        call.note("profile", f"{name}{suffix}, {group}", "ok", **groups[group], **beside)
    total = {"predicted_ms": round(sum(predicted.values()), 1)} if predicted else {}
    result = problem or (f"WRONG unknown kernels: {', '.join(unknown)}" if unknown else "ok")
    milliseconds = round(step.seconds * 1e3, 4)
    beside = round(sum(row["ms"] for row in groups.values()) - milliseconds, 4)
    call.note("profile", f"{name}{suffix}, the step", result, ms=milliseconds,
              side_by_side_ms=beside, **total)


def check_torch(call, what):
    """MODEL/compile|eager/flash|cudnn in PyTorch, and how our own step compares."""
    name, mode, attention = what.split("/")
    model = call.models["models"][name]
    ran = call.run(f"torch_{what}", [
        sys.executable, call.here / "bench_torch.py", "--device", "cuda", "--model",
        model["family"], "--layers", model["layers"], "--heads", model["heads"], "--width",
        model["width"], "--inner", model["inner"], "--kv-heads", model["kv_heads"], "--batch",
        model["batch"], "--tokens", model["tokens"], "--dropout", 0, "--steps", 10, "--vocabulary",
        call.models["torch_vocabulary"], "--attention", attention,
        *(["--compile"] if mode == "compile" else [])], ours=False)
    median = re.search(r"median ([0-9.]+) s a step", ran.text)
    found = figures(call, name, float(median[1]), model["batch"]) if median else {}
    found.pop("predicted_ms", None)
    ours = call.known("train", name)
    if found and ours:
        found["ours_ms"], found["ours_of_theirs"] = ours["ms"], round(ours["ms"] / found["ms"], 3)
    problem = ran.problem or (None if median else "WRONG no time")
    call.note("torch", f"{name} {mode} {attention}", problem or "ok", **found)
