"""Models and their plans for one device: configurations, operations, memory.

tools/gpu/models.json has the models' sizes.
"""

import json

# Of a GPU's memory, for what is in no plan: CUDA's own, cuBLASLt's and NCCL's.
SPARE_BYTES = 2 << 30


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
    """Whether steps of several micro-batches of that size fit the GPU, by the plan's own peak.

    What has no plan counts as if it did: whoever trains says why.
    """
    plan, problem = compile_plan(call, name, batch, microbatches=2, keep=keep)
    ran = None if problem else call.run(f"peak_{plan.stem}", [
        call.here / "pipec", "simulate", plan, "--format", "json"])
    if problem or ran.problem:
        return True
    if "memory_bytes" not in call.gpu:
        return False
    peak = max(device["peak_bytes"] for device in json.loads(ran.text)["devices"])
    return peak <= int(call.gpu["memory_bytes"]) - SPARE_BYTES


def batch_of(call, name):
    """The sequences of a micro-batch: of the sizes that a model has, the largest that fits."""
    sizes = call.models["models"][name]["batch"]
    if not isinstance(sizes, list):
        return sizes
    return next((size for size in sizes[:-1] if fits(call, name, size)), sizes[-1])


def keeping(call, check, name):
    """What to keep that would be recomputed: what the model's "keep" names, if it fits; or nothing.

    With the rows' names.
    """
    keep = call.models["models"][name].get("keep")
    if keep and fits(call, name, batch_of(call, name), keep):
        return [(f"{name}, keeps {keep}", keep), (name, "")]
    if keep:
        call.note(check, f"{name}, keeps {keep}", "not possible: too large for this GPU")
    return [(name, "")]
