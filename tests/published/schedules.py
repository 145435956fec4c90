"""Schedules beside each other: Primus on an MI300, torchtitan and MLPerf with 405B."""

from published import kept
from published.judge import Judge, percent
from published.pipec import GIB, costs_of, facts, llama, most_alive, peak


def primus(pipec):
    published = facts("primus_llama2.json")
    shape = published["model"]
    model = pipec.file("model.json", llama(shape["layers"], shape["hidden"], shape["heads"],
                                           shape["tokens"], shape["vocabulary"], ffn=shape["ffn"]))
    rows = []
    for row in published["rows"]:
        pipec.compile("--scheme", row["ours"], *(["--stages-per-device", row["v"]] if "v" in row else []),
                      "--devices", 8, "--microbatches", published["microbatches"], "--model", model,
                      "--dtype", "bf16", "--backend", "cuda", "--machine", "mi300x")
        rows.append((row, pipec.predict()["makespan"], list(counts(pipec.shown(), shape))))
    # Bytes of a parameter and of a layer's activations, by the first device of the first two rows.
    (first, _, a), (second, _, b) = rows[:2]
    of_layer = (second["gib"] - first["gib"]) / (b[0][1] - a[0][1])
    of_parameter = (first["gib"] - of_layer * a[0][1]) / a[0][0]
    judge = Judge()
    for i, (row, step, devices) in enumerate(rows):
        gained, theirs = rows[0][1] / step, row["tokens_s"] / first["tokens_s"]
        most = max(held * of_parameter + layers * of_layer + head for held, layers, head in devices)
        if i > 0:
            judge.time(gained, theirs, "gained")
        else:
            judge.place(gained, theirs, "gained")
        if i > 1:
            judge.bytes(most, row["gib"])
        yield (row["theirs"], row["ours"], f"{gained:.3f}", f"{theirs:.3f}",
               "-" if i == 0 else percent(gained, theirs), f"{max(d[1] for d in devices):g}",
               f"{most:.2f}", f"{row['gib']:.2f}", "-" if i < 2 else percent(most, row["gib"]))
    yield (f"By the first two rows: {of_parameter * GIB:.1f} bytes a parameter, "
           f"{of_layer * GIB / shape['tokens'] / shape['hidden']:.1f} a layer, token and channel.")
    yield judge


def counts(shown, shape):
    """For each device: parameters, layers alive at most, and GiB of logits meanwhile."""
    device_of, last = shown["pipes"][0]["device_of"], shown["stages"] - 1
    layers = most_alive(shown, lambda stage: shown["layers_per_stage"][stage])
    for device in range(shown["devices"]):
        held = [stage for stage, its in enumerate(device_of) if its == device]
        parameters = kept.parameters(shape, sum(shown["layers_per_stage"][stage] for stage in held),
                                     (0 in held) + (last in held))
        # The head's backward is not cut, so that the logits of one micro-batch are alive.
        yield (parameters, layers[device],
               kept.logits(shape, each=2) / GIB if last in held else 0)


def torchtitan(pipec):
    published = facts("torchtitan_405b.json")
    model = pipec.file("model.json", llama_of(published["model"]))
    judge, first = Judge(), None
    for row in published["rows"]:
        pipec.compile(
            "--scheme", row["scheme"], *(["--stages-per-device", row["v"]] if row["v"] > 1 else []),
            "--devices", published["pp"], "--microbatches", published["microbatches"],
            "--micro-batch-size", published["micro_batch_size"], "--tp", published["tp"],
            "--sequence-parallel", "--dp", published["dp"], "--rank-order", "tp,dp,pp", "--zero", 1,
            "--layers-per-stage", ",".join(map(str, row["layers_per_stage"])),
            "--passes", "apply-checkpoint", "--model", model, "--dtype", "bf16", "--backend", "cuda",
            "--machine", "h100-sxm")
        predicted = pipec.predict()
        tokens = (published["microbatches"] * published["micro_batch_size"] * published["model"]["tokens"]
                  / predicted["makespan"] / published["pp"] / published["tp"])
        most = peak(predicted) / GIB
        first = first or (tokens, row["tokens_s"], most, row["gib"])
        judge.time(tokens, row["tokens_s"], "tokens")
        yield (row["scheme"], f"{tokens:.1f}", row["tokens_s"], f"{tokens / first[0]:.2f}",
               f"{row['tokens_s'] / first[1]:.2f}", f"{most:.1f}", row["gib"],
               f"{most - first[2]:+.1f}", f"{row['gib'] - first[3]:+.1f}")
    yield judge


def llama_of(shape, **changes):
    shape = shape | changes
    return llama(shape["layers"], shape["hidden"], shape["heads"], shape["tokens"],
                 shape["vocabulary"], shape["groups"], shape["ffn"])


def mlperf(pipec):
    """Beyond its micro-batches: what a step takes more than M times what one more takes."""
    published = facts("mlperf_405b.json")
    # Context parallelism stands as twice the replicas of half the tokens.
    model = pipec.file("model.json", llama_of(published["model"], tokens=4096))
    judge, before = Judge(), None
    for row in published["rows"]:
        if before is None or row["machine"] != before[0]["machine"]:
            later = next(r for r in published["rows"] if r["machine"] == row["machine"] and r != row)
            pace = ((row["step_s"] - later["step_s"]) /
                    (row["microbatches"] - later["microbatches"]))
            before = None
        plan = step_405b(pipec, model, row["microbatches"], row["devices"] // 32,
                         paced(pipec, model, row, pace))
        predicted = pipec.predict(plan, "--why")
        step, free = predicted["makespan"], predicted["saved"]["reduction"]
        if before is not None:
            other, long, saved = before
            further = other["microbatches"] - row["microbatches"]
            micro, theirs = (long - step) / further, (other["step_s"] - row["step_s"]) / further
            ours = long / micro - other["microbatches"]
            beyond = other["step_s"] / theirs - other["microbatches"]
            judge.time(ours, beyond)
            yield (row["machine"], row["precision"],
                   f"{other['microbatches']}, {row['microbatches']}",
                   f"{long:.2f}, {step:.2f}", f"{other['step_s']:.2f}, {row['step_s']:.2f}",
                   f"{ours:.1f}", f"{beyond:.1f}", percent(ours, beyond),
                   f"{ours - saved / micro:.1f}")
        before = row, step, free
    yield judge


def step_405b(pipec, model, microbatches, replicas, machine):
    return pipec.compile(
        "--scheme", "interleaved", "--stages-per-device", 8, "--devices", 8,
        "--microbatches", microbatches, "--tp", 4, "--sequence-parallel", "--dp", replicas,
        "--rank-order", "tp,dp,pp", "--zero", 1,
        "--layers-per-stage", ",".join(["1"] + ["2"] * 62 + ["1"]), "--model", model,
        "--dtype", "bf16", "--backend", "cuda", "--machine", machine)


def paced(pipec, model, row, seconds):
    """The machine with a peak at which the busiest device takes so long for a micro-batch.

    What their reductions have else stands in it: fewer bytes of a parameter than a plan's 4 and 2
    as more bandwidth, larger buckets as less latency of each."""
    described = pipec.described(row["machine"])
    faster = (4 + 2) / (row["sum_bytes"] + row["gather_bytes"])
    copies = row["devices"] // 32
    sooner = (25 * 2**20 / 4) / max(40e6, 1e6 * copies)  # parameters of a bucket
    links = {name: {"bandwidth": scaled(described[name]["bandwidth"], "GB/s", faster),
                    "latency": scaled(described[name]["latency"], "us", sooner)}
             for name in ("inside", "between")}
    peak_flops = 2e15
    for _ in range(4):
        machine = pipec.machine(
            row["machine"], node=row["node"], cards=row["node"], **links,
            flops={dtype: peak_flops for dtype in ("fp32", "bf16", "fp16")})
        costs = costs_of(pipec.shown(step_405b(pipec, model, 8, 1, machine)))
        busiest = max(sum(costs["f"][device::8] + costs["b"][device::8]) / 8 for device in range(8))
        if abs(busiest / seconds - 1) < 0.01:
            break
        peak_flops *= busiest / seconds
    return machine


def scaled(value, unit, factor):
    return f"{float(value.removesuffix(unit)) * factor}{unit}"
