"""The tables of papers: Megatron-LM on A100s, Mario, Fold3D."""

import json
import math

from published.pipec import GIB, gpt, llama, peak


def megatron(pipec):
    """Throughput of the paper's formula, over micro-batch sizes and stages on a device."""
    tokens, vocabulary = 2048, 51200
    published = {  # parameters: layers, hidden, heads, tp, pp, dp, sequences a step, TFLOP/s
        "1.7": (24, 2304, 24, 1, 1, 32, 512, 137), "3.6": (30, 3072, 32, 2, 1, 32, 512, 138),
        "7.5": (36, 4096, 32, 4, 1, 32, 512, 142), "18.4": (40, 6144, 48, 8, 1, 32, 1024, 135),
        "39.1": (48, 8192, 64, 8, 2, 32, 1536, 138), "76.1": (60, 10240, 80, 8, 4, 32, 1792, 140),
        "145.6": (80, 12288, 96, 8, 8, 24, 2304, 148),
        "310.1": (96, 16384, 128, 8, 16, 15, 2160, 155),
        "529.6": (105, 20480, 128, 8, 35, 9, 2520, 163),
        "1008": (128, 25600, 160, 8, 64, 6, 3072, 163)}
    for name, (layers, hidden, heads, tp, pp, dp, batch, measured) in published.items():
        model = pipec.file("model.json", gpt(layers, hidden, heads, tokens, vocabulary))
        flops = (96 * batch * tokens * layers * hidden**2 *
                 (1 + tokens / 6 / hidden + vocabulary / 16 / layers / hidden))
        reached = []
        for size in (1, 2):
            for stages in (1, 2, 3):
                if stages > 1 and (pp == 1 or layers % (pp * stages)):
                    continue
                scheme = ["1f1b"] if stages == 1 else ["interleaved", "--stages-per-device", stages]
                simulated = pipec.simulate(
                    "--scheme", *scheme, "--devices", pp, "--microbatches", batch // dp // size,
                    "--micro-batch-size", size, "--tp", tp, "--dp", dp, "--model", model,
                    "--dtype", "bf16", "--backend", "cuda", "--passes", "apply-checkpoint",
                    "--machine", "a100-80g")
                if simulated and peak(simulated) <= 80 * GIB:
                    reached.append(flops / simulated["makespan"] / (tp * pp * dp) / 1e12)
        low, high = min(reached), max(reached)
        yield (name, tp, pp, dp, measured, f"{low:.0f} to {high:.0f}",
               f"{low / measured * 100 - 100:+.0f} to {high / measured * 100 - 100:+.0f} %")


def mario(pipec):
    """Ratios of throughput and memory: V, X and W of four models, with four ways to recompute."""
    machines = json.loads(pipec.run("machines", "--format", "json").stdout)
    machine = next(m for m in machines if m["name"] == "a100-40g")
    pipec.file("nodes_of_4.json", machine | {"node": 4})
    small, large = ("GPT3-1.6B", "LLaMA2-3B"), ("GPT3-13B", "LLaMA2-13B")
    models = {"GPT3-1.6B": gpt(32, 2048, 16, 2048, 50257),
              "LLaMA2-3B": llama(32, 2560, 20, 2048, 32000),
              "GPT3-13B": gpt(64, 4096, 32, 2048, 50257),
              "LLaMA2-13B": llama(64, 4096, 32, 2048, 32000)}
    schemes = {"V": ["1f1b"], "X": ["chimera"], "W": ["interleaved", "--stages-per-device", 2]}
    passes = {"base": [], "ckpt": ["--passes", "apply-checkpoint"], "ovlp": ["--passes", "mario"],
              "lmbs": ["--passes", "mario"]}

    def simulated(p2p):
        runs = {}
        for name, model in models.items():
            file = pipec.file("model.json", model)
            for letter, scheme in schemes.items():
                for way, listed in passes.items():
                    size = (2 if name in small and letter != "W" else 1) * (2 if way == "lmbs" else 1)
                    runs[name, letter, way] = pipec.simulate(
                        "--scheme", *scheme, "--devices", 8 if name in small else 32,
                        "--microbatches", 128 // size, "--micro-batch-size", size, "--model", file,
                        "--dtype", "fp16", "--backend", "cuda", "--machine", "nodes_of_4.json",
                        "--p2p", p2p, *listed)
        return runs

    runs = [simulated("async"), simulated("blocking")]

    def row(title, published, names, letters, way, reference, digits):
        cells = []
        for run in runs:
            ratios = [run[name, letter, reference]["makespan"] / run[name, letter, way]["makespan"]
                      for name in names for letter in letters]
            mean = math.exp(sum(map(math.log, ratios)) / len(ratios))
            cells.append(f"{mean:.{digits}f}")
        return (title, published, *cells)

    title = "8 GPUs, both models, mean of V, X, W: throughput of ovlp, of base"
    yield row(title, "0.71", small, schemes, "ovlp", "base", 2)
    yield row("the same, lmbs of base", "1.25", small, schemes, "lmbs", "base", 2)
    yield row("32 GPUs, both models: ovlp of ckpt", "1.13", large, schemes, "ovlp", "ckpt", 2)
    yield row("the same, lmbs of ckpt", "1.36", large, schemes, "lmbs", "ckpt", 2)
    yield row("LLaMA2-13B, V: ovlp of base", "0.947", ["LLaMA2-13B"], "V", "ovlp", "base", 3)
    cells = []
    for run in runs:
        ranges = []
        for letter in schemes:
            ratios = [peak(run[name, letter, "base"]) / peak(run[name, letter, "ovlp"])
                      for name in models]
            ranges.append(f"{letter} {min(ratios):.1f} to {max(ratios):.1f}")
        cells.append(", ".join(ranges))
    yield ("peak memory, base over ovlp", "2 to 3", *cells)


def fold(pipec):
    """What of the reductions of gradients is not hidden, with more and more segments."""
    model = pipec.file("model.json", llama(30, 6656, 52, 2048, 32000))

    def step(devices, scheme, stages):
        listed = [scheme] if stages == 1 else [scheme, "--stages-per-device", stages]
        simulated = pipec.simulate(
            "--scheme", *listed, "--devices", devices, "--microbatches", 8, "--micro-batch-size", 1,
            "--tp", 4, "--dp", 4, "--model", model, "--dtype", "bf16", "--backend", "cuda",
            "--machine", "a100-80g", why=True)
        return simulated["makespan"], simulated["saved"]["reduction"]

    for devices, rows in ((5, [("fold-aiao", 2), ("fold-aiao", 3), ("fold-aiao", 6)]),
                          (2, [("interleaved", 3), ("fold-fifo", 3), ("fold-aiao", 3),
                               ("fold-aiao", 5)])):
        plain, whole = step(devices, "1f1b", 1)
        yield f"{devices} devices", "1f1b", f"{plain:.3f}", f"{whole:.3f}", "-", "-"
        for scheme, stages in rows:
            time, reduction = step(devices, scheme, stages)
            segments = scheme == "fold-aiao"
            yield ("", f"{scheme}, {f's = {stages}' if segments else f'{stages} stages on a device'}",
                   f"{time:.3f}", f"{reduction:.3f}", f"{(1 - reduction / whole) * 100:.0f} %",
                   f"{(1 - 1 / stages) * 100:.0f} %" if segments else "-")
