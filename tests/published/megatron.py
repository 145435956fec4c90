"""Megatron-LM's golden values: step times and memory of a 7B model, memory of small models."""

from published import kept
from published.judge import Judge, percent
from published.pipec import facts, gpt, llama, most_alive

GB = 1e9


def megatron_7b(pipec):
    published = facts("megatron_7b.json")
    shape = published["model"]
    # An MLP that is not gated stands as a gated one of two thirds of its width, in eights.
    model = pipec.file("model.json", llama(shape["layers"], shape["hidden"], shape["heads"],
                                           shape["tokens"], shape["vocabulary"], shape["groups"],
                                           shape["ffn"] * 2 // 3 // 8 * 8))
    judge, fastest = Judge(), {}
    for row in published["rows"]:
        tp, pp, v = row["tp"], row["pp"], row["v"]
        pipec.compile(
            *scheme(v), "--devices", pp, "--microbatches", row["microbatches"],
            "--micro-batch-size", row["micro_batch_size"], "--tp", tp, "--dp", row["dp"], "--rank-order", "tp,dp,pp", "--zero", 1,
            "--model", model, "--dtype", "bf16", "--backend", "cuda",
            "--machine", row["machine"])
        step = pipec.predict()["makespan"]
        alive = last_device(pipec.shown(), shape | row, tp, gated=False, dropout=True)
        held = kept.state(row["dp"]) * kept.parameters(
            shape, shape["layers"] / pp, 2 if pp == 1 else 1, tp, gated=False, biases=True)
        most = held + alive
        judge.time(step, row["step_s"], "step")
        judge.bytes(held, row["held"])
        judge.bytes(most, row["peak"])
        fastest.setdefault(row["machine"], []).append((f"TP {tp}" if pp == 1 else f"PP {pp}", step, row["step_s"]))
        yield (row["machine"], f"TP {tp}" if pp == 1 else f"PP {pp}, V {v}",
               f"{step:.3f}", f"{row['step_s']:.3f}", percent(step, row["step_s"]),
               f"{held / GB:.2f}", f"{row['held'] / GB:.2f}", percent(held, row["held"]),
               f"{most / GB:.2f}", f"{row['peak'] / GB:.2f}", percent(most, row["peak"]))
    won = [f"{machine} {min(plans, key=lambda p: p[1])[0]} (measured {min(plans, key=lambda p: p[2])[0]})"
           for machine, plans in fastest.items()]
    yield f"The faster of the two: {', '.join(won)}."
    yield judge


def megatron_small(pipec):
    published = facts("megatron_small.json")
    judge = Judge()
    for row in published["rows"]:
        shape = published["model"]
        if row["gated"]:
            shape = shape | {"ffn": shape["hidden"] * 8 // 3 // 64 * 64}
        tp, pp, layers = row["tp"], row["pp"], row["layers"]
        dp = 8 // (tp * pp)
        model = gpt(layers, shape["hidden"], shape["heads"], shape["tokens"], shape["vocabulary"])
        pipec.compile(
            *scheme(row["v"]), "--devices", pp,
            "--microbatches", row["batch"] // shape["micro_batch_size"] // dp,
            "--micro-batch-size", shape["micro_batch_size"], "--tp", tp, "--dp", dp, "--rank-order", "tp,dp,pp", "--zero", row["zero"],
            "--model", pipec.file("model.json", model | {"tie_word_embeddings": row["tied"]}),
            "--dtype", "bf16", "--backend", "cuda", "--machine", "h100-sxm",
            *listed("--group-size", row.get("group")),
            *listed("--layers-per-stage", ",".join(map(str, row.get("layers_per_stage", [])))))
        shown = pipec.shown()
        alive = last_device(shown, shape, tp, gated=row["gated"], dropout=True, scores=row["scores"])
        on_last = sum(n for n, device in zip(shown["layers_per_stage"], shown["pipes"][0]["device_of"])
                      if device == pp - 1)
        held = kept.state(dp if row["zero"] else 1) * kept.parameters(
            shape, on_last, 1, tp, row["gated"], biases=True)
        measured = row["peak"] - row["held"]
        if not row.get("fused_loss"):
            judge.bytes(alive, measured)
        yield (row["case"].removeprefix("gpt3_mcore_"), pp, row["v"],
               most_alive(shown, lambda stage: shown["layers_per_stage"][stage])[-1],
               f"{alive / 1e6:.0f}", f"{measured / 1e6:.0f}", percent(alive, measured),
               f"{held / 1e6:.0f}", f"{row['held'] / 1e6:.0f}", f"{(row['held'] - held) / 1e6:+.0f}")
    yield judge


def last_device(shown, model, tp, **layout):
    """What is alive at most on the pipeline's last device, which writes the golden values."""
    layer, last = kept.layer(model, tp, **layout), shown["stages"] - 1
    return most_alive(shown, lambda stage: layer * shown["layers_per_stage"][stage] +
                      (kept.logits(model, tp) if stage == last else 0))[-1]


def scheme(v):
    return ["--scheme", "1f1b"] if v == 1 else ["--scheme", "interleaved", "--stages-per-device", v]


def listed(option, value):
    return [option, value] if value else []
