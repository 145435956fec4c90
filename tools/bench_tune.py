"""Runs what pipec tune chooses and what it rejects (tools/bench_tune.sh)."""

import json
import os
import shlex
import statistics
import subprocess
import sys
import tempfile

STEPS = 9
ROUNDS = 3  # after which the fastest are chosen
FINALISTS, FINAL_ROUNDS = 4, 9  # which are then run anew: what they were chosen for does not count
BATCH = 16
SIZES = [1, 2, 4, 8]  # of micro-batches that are profiled
PROFILES = 4  # of each size
WITHIN = 1.1  # candidates that may take so many times what the best one takes
MOST = 24  # of them: the half that may be fastest, and of the others some of all

GPT2 = {"model_type": "gpt2", "n_layer": 6, "n_embd": 128, "n_head": 4, "vocab_size": 512,
        "n_positions": 64}
WIDE = {**GPT2, "n_embd": 256, "n_layer": 4, "tie_word_embeddings": False}
LLAMA = {"model_type": "llama", "num_hidden_layers": 8, "hidden_size": 96,
         "intermediate_size": 256, "num_attention_heads": 4, "num_key_value_heads": 2,
         "vocab_size": 2048, "max_position_embeddings": 64, "tie_word_embeddings": False}
CASES = [("gpt2, 6 layers of 128", GPT2, "1GiB"), ("gpt2, 4 layers of 256", WIDE, "46MiB"),
         ("llama, 8 layers of 96", LLAMA, "14MiB")]


def output(*command):
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def steps_of(piperun, plan, *more):
    """The seconds of each step, without the first two."""
    output(piperun, plan, "--data", "text.txt", "--bytes", "--steps", str(STEPS), "--log", "log.jsonl", *more)
    with open("log.jsonl") as log:
        return [json.loads(line)["step_seconds"] for line in log][2:]


def name_of(c):
    stages = f" V={c['stages_per_device']}" if c["stages_per_device"] else ""
    scheme = c["scheme"] + (" without a pipeline" if c["pp"] == 1 else "")
    passes = " " + c["passes"] if c["passes"] else ""
    return (f"{scheme}{stages} pp {c['pp']} tp {c['tp']} dp {c['dp']}, {c['microbatches']} "
            f"micro-batches of {c['micro_batch_size']}{passes}")


def tune(pipec, piperun, memory):
    """With profiles of 1F1B for each size of a micro-batch, in turn: the machine's speed drifts."""
    profiles = []
    for size in SIZES:
        output(pipec, "compile", "--scheme", "1f1b", "--devices", "2", "--microbatches", "8",
               "--micro-batch-size", str(size), "--model", "config.json", "-o", f"size{size}.plan")
    for number in range(PROFILES):
        for size in SIZES:
            profiles.append(f"profile{number}_{size}.json")
            steps_of(piperun, f"size{size}.plan", "--profile", profiles[-1])
    return json.loads(output(pipec, "tune", "--model", "config.json", "--devices", "2",
                             "--global-batch-size", str(BATCH), "--device-memory", memory,
                             "--costs", ",".join(profiles), "--format", "json"))


def race(piperun, pick, contenders, number):
    """Each of the contenders beside the pick, first and second in turn."""
    for run in contenders:
        pair = (run["plan"], pick["plan"]) if number % 2 == 0 else (pick["plan"], run["plan"])
        first, second = (statistics.median(steps_of(piperun, plan)) for plan in pair)
        run["ratios"].append(first / second if number % 2 == 0 else second / first)


def ratio(run):
    return statistics.median(run["ratios"])


def run_case(pipec, piperun, title, model, memory):
    with open("config.json", "w") as config:
        json.dump(model, config)
    tuned = tune(pipec, piperun, memory)
    seconds = lambda c: c.get("step_seconds") or c["step_seconds_at_least"]
    chosen = [c for c in tuned["candidates"]
              if c["fits"] and seconds(c) <= WITHIN * seconds(tuned["best"])]
    if len(chosen) > MOST:
        rest = chosen[MOST // 2:]
        chosen = chosen[:MOST // 2] + rest[::-(-len(rest) // (MOST - MOST // 2))]
    limit = tuned["memory"]
    runs = []
    for i, candidate in enumerate(chosen):
        plan = f"{i}.plan"
        command = shlex.split(candidate["command"])
        output(pipec, *command[1:-1], plan)
        simulated = json.loads(output(pipec, "simulate", plan, "--format", "json"))
        if max(d["peak_bytes"] for d in simulated["devices"]) > limit:
            continue  # its bound fits, its plan does not
        runs.append({"plan": plan, "candidate": candidate, "ratios": []})
    # The pick beside each of them, so that both meet the same machine; it also beside itself. After
    # each round the faster half of the others stays.
    pick = runs[0]
    others = contenders = runs[1:]
    if not others:
        print(f"{title}, {memory}: no other plan may be within {WITHIN:g}")
        return
    for number in range(ROUNDS):
        race(piperun, pick, contenders, number)
        contenders = sorted(contenders, key=ratio)
        contenders = contenders[:max(FINALISTS, (len(contenders) + 1) // 2)]
    finalists = contenders[:FINALISTS]
    slowest = max(others, key=ratio)
    print(f"{title}, {memory}: {name_of(pick['candidate'])} against {len(others)} others, the "
          f"slowest at {ratio(slowest):.2f}: {name_of(slowest['candidate'])}")
    for run in [pick, *finalists]:
        run["ratios"] = []
    for number in range(FINAL_ROUNDS):
        race(piperun, pick, [pick, *finalists], number)
    scatter = pick["ratios"]
    print(f"  beside itself it takes {min(scatter):.2f} to {max(scatter):.2f} of its time, "
          f"{ratio(pick):.2f} in the middle; the fastest of the others, run anew:")
    for run in sorted(finalists, key=ratio):
        print(f"  {ratio(run):.2f} ({min(run['ratios']):.2f} to {max(run['ratios']):.2f}) "
              f"{name_of(run['candidate'])}", flush=True)


def main():
    pipec, piperun = (os.path.abspath(path) for path in sys.argv[1:])
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        with open("text.txt", "w") as text:
            text.writelines(f"{i}\n" for i in range(300000))
        for title, model, memory in CASES:
            run_case(pipec, piperun, title, model, memory)


main()
