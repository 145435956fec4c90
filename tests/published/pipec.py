"""Plans and predictions of pipec, for tables that lay published runs beside them."""

import json
import os
import subprocess
import sys

GIB = 2**30
FACTS = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))),
                     "reference", "published")


def facts(name):
    """What others published, from tests/reference/published/."""
    with open(os.path.join(FACTS, name)) as file:
        return json.load(file)


class Pipec:
    """Compiles plans of one model on one machine, and simulates them."""

    def __init__(self, path, folder):
        self.path, self.folder = os.path.abspath(path), folder

    def file(self, name, value):
        with open(os.path.join(self.folder, name), "w") as file:
            json.dump(value, file)
        return name

    def machine(self, name, **changes):
        """A file of one of pipec's machines, changed."""
        return self.file(f"{name}_changed.json", self.described(name) | changes)

    def described(self, name):
        machines = json.loads(self.run("machines", "--format", "json").stdout)
        return next(machine for machine in machines if machine["name"] == name)

    def run(self, *args):
        return subprocess.run([self.path, *map(str, args)], cwd=self.folder, capture_output=True, text=True)

    def must(self, *args):
        ran = self.run(*args)
        if ran.returncode:
            sys.exit(f"{' '.join(map(str, args))}: {ran.stderr}")
        return ran.stdout

    def compile(self, *args, plan="plan"):
        self.must("compile", *args, "--quiet", "-o", plan)
        return plan

    def predict(self, plan="plan", *args):
        return json.loads(self.must("simulate", plan, "--format", "json", "--quiet", *args))

    def simulate(self, *args, why=False):
        """The prediction as JSON; none if the scheme does not have that shape."""
        compiled = self.run("compile", *args, "--quiet", "-o", "plan")
        if compiled.returncode == 2 and "microbatches" in compiled.stderr:
            return None
        if compiled.returncode:
            sys.exit(f"{' '.join(map(str, args))}: {compiled.stderr}")
        return self.predict("plan", *(["--why"] if why else []))

    def shown(self, plan="plan"):
        return json.loads(self.must("show", plan, "--format", "json"))


def peak(simulated):
    return max(device["peak_bytes"] for device in simulated["devices"])


def costs_of(shown):
    """{"f": seconds by stage, ...} of a plan that was compiled for a machine."""
    costs = dict(item.split("=") for item in shown["costs"].split(","))
    return {name: [float(part.rstrip("s")) for part in value.split(":")]
            for name, value in costs.items() if value.endswith("s")}


def most_alive(shown, bytes_of):
    """For each device the most that is alive between forwards and backwards of one of its lists.

    bytes_of(stage) says what a micro-batch keeps there. Where backwards are split it is kept until
    the weight half has ended, as trainers do whose products save input and output's gradient."""
    most = []
    for listed in shown["lists"]:
        now = peak_of_device = 0
        for item in listed["prologue"] + listed["body"] + listed.get("epilogue", []):
            if item["op"] == "FW":
                now += bytes_of(item["stage"])
                peak_of_device = max(peak_of_device, now)
            elif item["op"] in ("BW", "BW_weight"):
                now -= bytes_of(item["stage"])
        most.append(peak_of_device)
    return most


def gpt(layers, hidden, heads, tokens, vocabulary):
    return {"model_type": "gpt2", "n_layer": layers, "n_embd": hidden, "n_head": heads,
            "n_positions": tokens, "vocab_size": vocabulary}


def llama(layers, hidden, heads, tokens, vocabulary, groups=None, ffn=None):
    return {"model_type": "llama", "num_hidden_layers": layers, "hidden_size": hidden,
            "num_attention_heads": heads, "num_key_value_heads": groups or heads,
            "intermediate_size": ffn or -(-8 * hidden // 3 // 256) * 256,
            "max_position_embeddings": tokens, "vocab_size": vocabulary,
            "tie_word_embeddings": False}
