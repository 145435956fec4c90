"""SimuMax's measured steps of dense models on a B200 node."""

from published import kept
from published.judge import Judge, percent
from published.pipec import GIB, facts, llama, most_alive


def simumax(pipec):
    published = facts("simumax_b200.json")
    judge = Judge()
    for row in published["rows"]:
        shape = published["models"][row["model"]]
        tp, pp, dp = row["tp"], row["pp"], row["dp"]
        model = llama(shape["layers"], shape["hidden"], shape["heads"], shape["tokens"],
                      kept.padded(shape["vocabulary"], tp), shape["groups"], shape["ffn"])
        pipec.compile(
            "--scheme", "1f1b", "--devices", pp, "--microbatches", row["microbatches"], "--tp", tp,
            *(["--sequence-parallel"] if tp > 1 else []), "--dp", dp, "--rank-order", "tp,dp,pp", "--zero", 1, "--reduce", "late",
            "--p2p", "blocking", "--model", pipec.file("model.json", model), "--dtype", "bf16",
            "--backend", "cuda", "--machine", "b200")
        step = pipec.predict()["makespan"]
        most = max(memory(pipec.shown(), shape, tp, pp, dp))
        measured = max(row["peak_mib"]) / 1024
        sequences = row["microbatches"] * dp
        judge.time(step / sequences, row["step_s"] / sequences, row["model"])
        if row["microbatches"] == 4:  # the same for all
            judge.bytes(most, measured)
        yield (row["model"], tp, pp, dp, row["microbatches"], f"{step * 1000:.0f}",
               f"{row['step_s'] * 1000:.0f}", percent(step, row["step_s"]),
               percent(row["simumax_s"], row["step_s"]), f"{most:.2f}", f"{measured:.2f}",
               percent(most, measured))
    yield judge


def memory(shown, shape, tp, pp, dp):
    """GiB of each device."""
    layer, last = kept.layer(shape, tp, sequence_parallel=True), shown["stages"] - 1
    alive = most_alive(shown, lambda stage: layer * shown["layers_per_stage"][stage] +
                       (kept.logits(shape, tp) if stage == last else 0))
    # Transformer Engine keeps a gradient in two bytes of each shape of a layer's weights.
    unused = 2 * kept.parameters(shape, 1, 0, tp)
    for device in range(pp):
        ends = (device == 0) + (device == pp - 1)
        held = kept.state(dp) * kept.parameters(shape, shape["layers"] / pp, ends, tp)
        yield (held + alive[device] + unused) / GIB
