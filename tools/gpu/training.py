"""The checks that train whole models: speed, profile, algorithms of products, experiments, PyTorch.

tools/gpu/models.json has the models' sizes, predictions.json what a step should take.
"""

import base64
import json
import os
import re
import statistics
import sys

from gpu.machine import PEAKS, by_name
from gpu.profile import GROUPS, read_profile, summarize

WARM_UP_STEPS = 4
# Each beside the default: a name, piperun's options, changes of the environment.
EXPERIMENTS = [("default", [], {})] + [
    (setting, ["--cuda-experiments", setting], {})
    for setting in ("reduction=none", "reduction=compute", "alignment=16", "alignment=64",
                    "gelu=fused", "gelu=separate", "poll=5", "poll=50")
] + [("EAGER loading", [], {"CUDA_MODULE_LOADING": "EAGER"})]


def random_text(call):
    path = call.work / "text"
    if not path.exists():
        path.write_bytes(base64.b64encode(os.urandom(1 << 20)))
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


def config_of(model):
    """Hugging Face's configuration. No dropout."""
    common = {"vocab_size": model["vocabulary"], "tie_word_embeddings": True}
    if model["family"] == "gpt2":
        return {**common, "model_type": "gpt2", "n_positions": model["tokens"],
                "n_embd": model["width"], "n_layer": model["layers"], "n_head": model["heads"],
                "n_inner": model["inner"], "activation_function": "gelu_new",
                "layer_norm_epsilon": 1e-5, "embd_pdrop": 0, "resid_pdrop": 0, "attn_pdrop": 0}
    return {**common, "model_type": "llama", "max_position_embeddings": model["tokens"],
            "hidden_size": model["width"], "intermediate_size": model["inner"],
            "num_hidden_layers": model["layers"], "num_attention_heads": model["heads"],
            "num_key_value_heads": model["kv_heads"], "rms_norm_eps": 1e-6}


def operations_per_token(model):
    """6N + 12LCT, of a forward and a backward."""
    layers, width, inner = model["layers"], model["width"], model["inner"]
    if model["family"] == "gpt2":
        parameters = layers * (4 * width * width + 2 * width * inner)
    else:
        keys = model["kv_heads"] / model["heads"]
        parameters = layers * (2 * width * width * (1 + keys) + 3 * width * inner)
    parameters += model["vocabulary"] * width
    return 6 * parameters + 12 * layers * width * model["tokens"]


def figures(call, name, seconds):
    """Of a step: milliseconds, tokens/s, MFU where the GPU's peak is known; and the prediction."""
    model = call.models["models"][name]
    tokens = model["batch"] * model["tokens"] / seconds
    result = {"ms": round(1e3 * seconds, 2), "tokens_per_second": round(tokens)}
    peak = by_name(PEAKS, call.gpu.get("name", ""))
    if peak:
        result["mfu"] = float(f"{tokens * operations_per_token(model) / peak:.3g}")
    predicted = by_name(call.predictions, call.gpu.get("name", ""))
    if predicted and name in predicted:
        result["predicted_ms"] = round(sum(predicted[name].values()), 1)
    return result


def compile_plan(call, name):
    """The plan's path, and what is wrong."""
    model = call.models["models"][name]
    config, plan = call.work / f"{name}.json", call.work / f"{name}.plan"
    config.write_text(json.dumps(config_of(model)))
    if plan.exists():
        return plan, None
    ran = call.run(f"plan_{name}", [
        call.here / "pipec", "compile", "--scheme", "gpipe", "--devices", 1, "--microbatches", 1,
        "--model", config, "--micro-batch-size", model["batch"], "--seq-length", model["tokens"],
        "--dtype", "bf16", "--backend", "cuda", "-o", plan])
    if ran.status == 0 and plan.exists():
        return plan, None
    return plan, ran.problem or "WRONG no plan"


def train(call, label, name, options=(), env=None, steps=None):
    """Trains for some steps. Returns what is wrong, and the figures of the median step."""
    plan, problem = compile_plan(call, name)
    if problem:
        return problem, {}
    log = call.logs / f"{label}_steps.jsonl"
    log.unlink(missing_ok=True)
    ran = call.run(label, [
        call.here / "piperun", plan, "--data", random_text(call), "--bytes", "--backend", "cuda",
        "--steps", steps or call.models["steps"], "--log", log, *options], env=env)
    rows = rows_of(log)
    seconds = [row["step_seconds"] for row in rows[WARM_UP_STEPS:]]
    if not seconds:
        return ran.problem or f"WRONG {len(rows)} steps", {"steps": len(rows)}
    found = {"steps": len(rows), **figures(call, name, statistics.median(seconds)),
             "loss": rows[-1]["loss"], "peak_bytes": max(rows[-1]["peak_bytes"])}
    starting = re.search(r"starting kernels ([0-9.]+) %", ran.text)
    if starting:
        found["starting_kernels_percent"] = float(starting[1])
    problem = ran.problem
    if problem is None and len(rows) != (steps or call.models["steps"]):
        problem = f"WRONG {len(rows)} steps"
    return problem, found


def check_train(call, name):
    """Tokens/s and MFU."""
    problem, found = train(call, f"train_{name}", name)
    call.note("train", name, problem or "ok", **found)


def check_tune(call, name):
    """The same before and after the fastest of cuBLASLt's algorithms are taken."""
    gemms = call.logs / f"gemms_{name}.txt"
    problem, before = train(call, f"tune_{name}_before", name)
    call.note("tune", f"{name}, first choices", problem or "ok", **before)
    plan, problem = compile_plan(call, name)
    if problem is None:
        problem = call.run(f"tune_{name}", [
            call.here / "piperun", plan, "--backend", "cuda", "--tune-gemms", gemms]).problem
    after = {}
    if problem is None:
        problem, after = train(call, f"tune_{name}_after", name, ["--gemms", gemms])
    call.note("tune", f"{name}, the fastest", problem or "ok", **after)


def check_experiments(call, name):
    """Each change alone beside the default."""
    default = None
    for label, options, env in EXPERIMENTS:
        problem, found = train(call, f"experiment_{label}", name, options, env)
        default = default or found.get("ms")
        if default and "ms" in found:
            found["of_default"] = round(found["ms"] / default, 3)
        call.note("experiments", f"{name}, {label}", problem or "ok", **found)


def check_profile(call, name):
    """One real step, summed per kernel and group, beside the prediction."""
    library = call.here / "libgpu_profile.so"
    if not library.exists():
        call.note("profile", name, "WRONG this bundle was built without CUPTI")
        return
    records = call.logs / f"profile_{name}.tsv"
    records.unlink(missing_ok=True)
    steps = call.models["profiled_steps"]
    problem, _ = train(call, f"profile_{name}", name, steps=steps,
                       env={"CUDA_INJECTION64_PATH": str(library), "GPU_PROFILE": str(records)})
    text = records.read_text() if records.exists() else ""
    step, why = read_profile(text, steps)
    if step is None:
        call.note("profile", name, problem or f"WRONG {why}")
        return
    predicted = (by_name(call.predictions, call.gpu.get("name", "")) or {}).get(name, {})
    groups, kernels, unknown = summarize(step)
    (call.logs / f"profile_{name}_kernels.txt").write_text(kernels)
    for group in GROUPS:
        beside = {"predicted_ms": predicted[group]} if group in predicted else {}
        call.note("profile", f"{name}, {group}", "ok", **groups[group], **beside)
    total = {"predicted_ms": round(sum(predicted.values()), 1)} if predicted else {}
    result = problem or (f"WRONG unknown kernels: {', '.join(unknown)}" if unknown else "ok")
    call.note("profile", f"{name}, the step", result, ms=round(step.seconds * 1e3, 4), **total)


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
    found = figures(call, name, float(median[1])) if median else {}
    found.pop("predicted_ms", None)
    ours = [row["ms"] for row in call.earlier
            if row.get("check") == "train" and row.get("name") == name and "ms" in row]
    if found and ours:
        found["ours_ms"], found["ours_of_theirs"] = ours[-1], round(ours[-1] / found["ms"], 3)
    problem = ran.problem or (None if median else "WRONG no time")
    call.note("torch", f"{name} {mode} {attention}", problem or "ok", **found)
