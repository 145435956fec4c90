"""Training whole models: plans, a step's time in figures, and the checks that need no more.

tools/gpu/models.json has the models' sizes, predictions.json what a step should take.
"""

import base64
import json
import os
import re
import statistics
import sys
from array import array

from gpu.machine import PEAKS, by_name
from gpu.profile import GROUPS, read_profile, summarize

WARM_UP_STEPS = 4
# Of a GPU's memory, for what is in no plan: CUDA's own, cuBLASLt's and NCCL's.
SPARE_BYTES = 2 << 30


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


def config_of(model):
    """Hugging Face's configuration. No dropout."""
    common = {"vocab_size": model["vocabulary"], "tie_word_embeddings": True}
    if model["family"] == "gpt2":
        return {**common, "model_type": "gpt2", "n_positions": model["tokens"],
                "n_embd": model["width"], "n_layer": model["layers"], "n_head": model["heads"],
                "n_inner": model["inner"], "activation_function": "gelu_new",
                "layer_norm_epsilon": 1e-5, "embd_pdrop": 0, "resid_pdrop": 0, "attn_pdrop": 0}
    return {**common, "model_type": model["family"], "max_position_embeddings": model["tokens"],
            "hidden_size": model["width"], "intermediate_size": model["inner"],
            "num_hidden_layers": model["layers"], "num_attention_heads": model["heads"],
            "num_key_value_heads": model["kv_heads"], "rms_norm_eps": 1e-6,
            "rope_theta": model.get("rope_theta", 10000.0)}


def operations_per_token(model, attention):
    """6N + `attention` LCT, of a forward and a backward.

    N: the numbers of all matrices that are multiplied, the embedding as the head's; no biases,
    norms or positions.
    """
    layers, width, inner = model["layers"], model["width"], model["inner"]
    if model["family"] == "gpt2":
        parameters = layers * (4 * width * width + 2 * width * inner)
    else:
        keys = model["kv_heads"] / model["heads"]
        parameters = layers * (2 * width * width * (1 + keys) + 3 * width * inner)
    parameters += model["vocabulary"] * width
    return 6 * parameters + attention * layers * width * model["tokens"]


def utilizations(model, tokens_per_second, peak):
    """Both conventions: ours, and that of llm.c and LLM.Q, which count half of the attention."""
    return {f"mfu_6N_{attention}LCT":
            float(f"{tokens_per_second * operations_per_token(model, attention) / peak:.3g}")
            for attention in (12, 6)}


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


def compile_plan(call, name, batch=None, microbatches=1, keep="", programs=None):
    """The plan's path, and what is wrong. One device, `microbatches` of `batch` sequences."""
    model = call.models["models"][name]
    batch = batch or batch_of(call, name)
    label = f"{name}_{batch}x{microbatches}{'_keep_' + keep if keep else ''}"
    label += "" if programs in (None, call.here) else f"_{programs.name}"
    config, plan = call.work / f"{name}.json", call.work / f"{label}.plan"
    config.write_text(json.dumps(config_of(model)))
    if plan.exists():
        return plan, None
    ran = call.run(f"plan_{label}", [
        (programs or call.here) / "pipec", "compile", "--scheme", "1f1b", "--devices", 1,
        "--microbatches", microbatches, "--model", config, "--micro-batch-size", batch,
        "--seq-length", model["tokens"], "--dtype", "bf16", "--backend", "cuda",
        *(["--keep", keep] if keep else []), "-o", plan])
    if ran.status == 0 and plan.exists():
        return plan, None
    return plan, ran.problem or "WRONG no plan"


def fits(call, name, batch, keep=""):
    """Whether steps of several micro-batches of that size fit the GPU, by the plan's own peak."""
    plan, problem = compile_plan(call, name, batch, microbatches=2, keep=keep)
    ran = None if problem else call.run(f"peak_{plan.stem}", [
        call.here / "pipec", "simulate", plan, "--format", "json"])
    if problem or ran.problem or "memory_bytes" not in call.gpu:
        return False
    peak = max(device["peak_bytes"] for device in json.loads(ran.text)["devices"])
    return peak <= int(call.gpu["memory_bytes"]) - SPARE_BYTES


def batch_of(call, name):
    """The sequences of a micro-batch: of the sizes that a model has, the largest that fits."""
    sizes = call.models["models"][name]["batch"]
    if not isinstance(sizes, list):
        return sizes
    return next((size for size in sizes[:-1] if fits(call, name, size)), sizes[-1])


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


def check_train(call, name):
    """Tokens/s and MFU of steps of one micro-batch; beside them those of an earlier build."""
    for suffix, programs in call.builds():
        problem, found = train(call, f"train_{name}{suffix}", name, programs=programs)
        call.note("train", name + suffix, problem or "ok", **found)


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
    call.note("profile", f"{name}{suffix}, the step", result, ms=round(step.seconds * 1e3, 4),
              **total)


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
