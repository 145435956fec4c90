#!/usr/bin/env python3
"""What pipec tune picks, beside plans that people write by hand for the same question.

    by_hand_test.py PIPEC [QUESTION]...     fails if a plan of the list that fits is faster than the
                                            fastest that tune found, or the pick is slower than it
                                            by more than the model's error

LLaMA-2 7B on 64 H100s, with the network of the description and with one card for a node; LLaMA-3
70B on 256 and 405B on 8192. Needs python3.
"""

import json
import os
import subprocess
import sys
import tempfile

GIB = 2**30


def llama(layers, hidden, heads, groups, ffn, tokens, vocabulary):
    return {"model_type": "llama", "num_hidden_layers": layers, "hidden_size": hidden,
            "num_attention_heads": heads, "num_key_value_heads": groups, "intermediate_size": ffn,
            "max_position_embeddings": tokens, "vocab_size": vocabulary}


MODELS = {"7b": llama(32, 4096, 32, 32, 11008, 4096, 32000),
          "70b": llama(80, 8192, 64, 8, 28672, 8192, 128256),
          "405b": llama(126, 16384, 128, 8, 53248, 8192, 128256)}

# scheme, V (0: its own), pp, tp, micro-batch size, other options
PLANS_7B = [
    ("1f1b", 0, 1, 1, 1, ["--zero", "1"]),
    ("1f1b", 0, 1, 1, 2, ["--zero", "1", "--passes", "apply-checkpoint"]),
    ("1f1b", 0, 1, 2, 1, ["--zero", "1", "--sequence-parallel"]),
    ("1f1b", 0, 1, 4, 2, ["--zero", "0", "--sequence-parallel", "--keep", "swiglu"]),
    ("1f1b", 0, 1, 8, 4, ["--zero", "1", "--sequence-parallel"]),
    ("interleaved", 4, 2, 1, 1, ["--zero", "1"]),
    ("interleaved", 16, 2, 1, 1, ["--zero", "1", "--rank-order", "tp,dp,pp"]),
    ("interleaved", 16, 2, 1, 1, ["--zero", "0", "--keep", "norm,swiglu"]),
    ("interleaved", 8, 4, 1, 1, ["--zero", "0", "--rank-order", "tp,dp,pp"]),
    ("interleaved", 8, 4, 1, 1, ["--zero", "1", "--keep", "norm,swiglu"]),
    ("interleaved", 4, 8, 1, 1, ["--zero", "1"]),
    ("interleaved", 4, 4, 2, 1, ["--zero", "1", "--sequence-parallel"]),
    ("zb-v", 0, 8, 1, 1, ["--zero", "1"]),
    ("zb-v", 0, 4, 1, 1, ["--zero", "0", "--rank-order", "tp,dp,pp"]),
    ("fold-aiao", 32, 1, 1, 1, ["--zero", "1"]),
    ("interleaved", 32, 1, 2, 1, ["--zero", "1", "--sequence-parallel"]),
]
PLANS_70B = [
    ("interleaved", 5, 8, 4, 1, ["--zero", "1", "--sequence-parallel"]),
    ("interleaved", 10, 8, 2, 1, ["--zero", "1", "--sequence-parallel", "--rank-order", "tp,dp,pp"]),
    ("interleaved", 20, 4, 8, 1, ["--zero", "1", "--sequence-parallel"]),
    ("zb-v", 0, 8, 4, 1, ["--zero", "1", "--sequence-parallel", "--rank-order", "tp,dp,pp"]),
    ("1f1b", 0, 4, 8, 1, ["--zero", "1", "--sequence-parallel"]),
]
PLANS_405B = [
    ("interleaved", 8, 16, 8, 1, ["--zero", "1", "--sequence-parallel"]),
    ("interleaved", 4, 32, 8, 1, ["--zero", "1", "--sequence-parallel", "--rank-order", "tp,dp,pp"]),
    ("zb-v", 0, 16, 8, 1, ["--zero", "1", "--sequence-parallel"]),
    ("interleaved", 2, 32, 8, 1, ["--zero", "1", "--sequence-parallel"]),
    ("1f1b", 0, 32, 8, 1, ["--zero", "0", "--sequence-parallel"]),
]
# devices, sequences a step, network, plans
QUESTIONS = {
    "7b": ("7b", 64, 256, {}, PLANS_7B),
    "7b_one_card": ("7b", 64, 256, {"cards": 1, "card": "48GB/s"}, PLANS_7B),
    "70b": ("70b", 256, 1024, {}, PLANS_70B),
    "405b": ("405b", 8192, 8192, {}, PLANS_405B),
}


def main():
    pipec, *names = sys.argv[1:]
    pipec = os.path.abspath(pipec)
    wrong = 0
    with tempfile.TemporaryDirectory() as folder:
        def run(*words):
            return subprocess.run([pipec, *map(str, words)], cwd=folder, capture_output=True, text=True)

        machines = json.loads(run("machines", "--format", "json").stdout)
        h100 = next(machine for machine in machines if machine["name"] == "h100-sxm")
        for name in names or QUESTIONS:
            model, devices, batch, network, plans = QUESTIONS[name]
            for file, value in (("model.json", MODELS[model]), ("machine.json", h100 | network)):
                with open(os.path.join(folder, file), "w") as out:
                    json.dump(value, out)
            common = ["--model", "model.json", "--machine", "machine.json", "--dtype", "bf16",
                      "--backend", "cuda", "--quiet"]
            tuned = run("tune", *common, "--devices", devices, "--global-batch-size", batch,
                        "--format", "json")
            if tuned.returncode:
                sys.exit(tuned.stderr)
            tuned = json.loads(tuned.stdout)
            fastest = min(c["step_seconds"] for c in tuned["candidates"] if "step_seconds" in c and c["fits"])
            pick = tuned["best"]["step_seconds"]
            print(f"{name}: the pick {pick:.4g} s, the fastest {fastest:.4g} s")
            wrong += pick > fastest * (1 + tuned["model_error"])
            compared = 0
            for scheme, stages, pp, tp, size, others in plans:
                dp = devices // pp // tp
                words = ["--scheme", scheme, "--devices", pp, "--microbatches", batch // dp // size,
                         "--micro-batch-size", size, "--tp", tp, "--dp", dp,
                         "--layers-per-stage", "auto", *others]
                if stages:
                    words += ["--stages-per-device", stages]
                compiled = run("compile", *common, *words, "-o", "plan")
                if compiled.returncode:
                    sys.exit(f"{' '.join(map(str, words))}: {compiled.stderr}")
                plan = json.loads(run("simulate", "plan", "--format", "json").stdout)
                peak = max(device["peak_bytes"] for device in plan["devices"])
                fits = peak <= tuned["memory"]
                compared += fits
                beaten = fits and plan["makespan"] < fastest * (1 - 1e-9)
                wrong += beaten
                print(f"  {plan['makespan']:.4g} s, {peak / GIB:.1f} GiB{'' if fits else ': too much'}"
                      f"{': FASTER' if beaten else ''}   {' '.join(map(str, words))}")
            wrong += compared < 2
    return wrong > 0


if __name__ == "__main__":
    sys.exit(main())
