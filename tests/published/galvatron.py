"""Galvatron's profiles of LLaMA-2 7B's layers."""

from published import kept
from published.judge import Judge, percent
from published.pipec import costs_of, facts, llama

MIB = 2**20


def galvatron_times(pipec):
    published = facts("galvatron_llama2_7b.json")
    judge = Judge()

    def forward(layers, sequences):
        compile_layers(pipec, published["model"], layers, sequences)
        return costs_of(pipec.shown())["f"][0] * 1000 / sequences

    for sequences, layer, other in published["times"]:
        two, four = forward(2, sequences), forward(4, sequences)
        ours = (four - two) / 2
        judge.time(ours, layer, "layer")
        yield (sequences, f"{ours:.2f}", f"{layer:.2f}", percent(ours, layer),
               f"{two - 2 * ours:.2f}", f"{other:.2f}", percent(two - 2 * ours, other))
    yield judge


def galvatron_memory(pipec):
    published = facts("galvatron_llama2_7b.json")
    shape, judge = published["model"], Judge()
    for row in published["states"]:
        ours = [16 * kept.parameters(shape, row["layers"] / row["pp"], 2 if row["pp"] == 1 else 1,
                                     row["tp"]) / row["dp"] / MIB] * 2
        measured = row["first"], row["last"]
        for mine, theirs in zip(ours, measured):
            judge.bytes(mine, theirs)
        yield (f"states, PP {row['pp']}, TP {row['tp']}, DP {row['dp']}, {row['layers']} layers",
               f"{ours[0]:.0f}, {ours[1]:.0f}", f"{measured[0]:.0f}, {measured[1]:.0f}",
               ", ".join(map(percent, ours, measured)))
    whole = None
    for tp, measured in published["kept"].items():
        compile_layers(pipec, shape, 1, 1, int(tp))
        one = stash(pipec)
        compile_layers(pipec, shape, 2, 1, int(tp))
        layer = stash(pipec) - one
        whole = whole or (layer, measured)
        share, theirs = layer / whole[0], measured / whole[1]
        if tp != "1":
            judge.bytes(share, theirs)
            yield (f"a layer's activations, TP {tp} of TP 1", f"{share:.3f}", f"{theirs:.3f}",
                   percent(share, theirs))
    yield judge


def compile_layers(pipec, shape, layers, sequences, tp=1):
    model = llama(layers, shape["hidden"], shape["heads"], shape["tokens"], shape["vocabulary"],
                  ffn=shape["ffn"])
    pipec.compile("--scheme", "gpipe", "--devices", 1, "--microbatches", 1,
                  "--micro-batch-size", sequences, "--tp", tp,
                  *(["--sequence-parallel"] if tp > 1 else []),
                  "--model", pipec.file("model.json", model), "--dtype", "bf16", "--backend", "cuda",
                  "--machine", "a100-80g")


def stash(pipec):
    """Bytes that the first stage keeps of a micro-batch."""
    sizes = pipec.must("show", "plan", "--format", "stages").splitlines()[2].split("|")[-1]
    return float(sizes.split()[1])
