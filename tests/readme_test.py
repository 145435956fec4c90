"""Runs the commands in READMEs.

In a block that names no language and begins with `$ `, such lines are commands, and the others are
what they print; a line `...` stands for any lines. In other blocks, lines that begin with the name of a
program must succeed; two spaces or a `#` end them. What a README leaves, its later blocks find. Every
folder has a plan of two devices, my.plan, and the files in FILES.

    readme_test.py PIPEC PIPERUN README...
"""

import os
import re
import subprocess
import sys
import tempfile

FILES = {
    "xl.json": '{"model_type": "gpt2", "vocab_size": 50257, "n_positions": 1024, "n_embd": 1600, '
               '"n_layer": 48, "n_head": 25}',
    "config.json": '{"model_type": "gpt2", "vocab_size": 256, "n_positions": 128, "n_embd": 16, '
                   '"n_layer": 8, "n_head": 2}',
    "llama-7b.json": '{"model_type": "llama", "vocab_size": 32000, "max_position_embeddings": 4096, '
                     '"hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 32, '
                     '"num_attention_heads": 32}',
    "text.txt": "text " * 9999,
}
PREPARE = ("pipec compile --scheme 1f1b --devices 2 --microbatches 4 --model config.json -o my.plan",
           "pipec compile --scheme gpipe --devices 2 --microbatches 4 --model config.json -o other.plan",
           "pipec compile --scheme 1f1b --devices 4 --microbatches 8 -o their.plan",
           "pipec show their.plan --format torch-csv > theirs.csv")
# What cannot run in a test, and why.
ELSEWHERE = {
    " ... ": "stands for options",
    "-hosts ": "several hosts",
    "srun ": "Slurm",
    "--backend cuda": "a GPU",
    "bazel ": "builds",
    "tools/": "builds, or installs",
    "gpu_check": "a GPU",
    "tar ": "the bundle",
    "Qwen2.5-0.5B": "a model with its weights: python/finetune_walk_test.py",
}
PROGRAMS = re.compile(r"(?:[\w/-]*/)?(?:pipec|piperun|mpiexec|srun|bazel|gpu_check|tar) "
                      r"|tools/(?!build)\w+(?: |$)")

# Of a command that takes long, which depends on the machine.
PROGRESS = re.compile(r"pipec: .* \(\d+ s\)")


def blocks(text):
    """Those that name no language, by their lines."""
    return [block.split("\n")[:-1]
            for language, block in re.findall(r"^```(\w*)\n(.*?)^```$", text, re.S | re.M) if not language]


def examples(lines):
    """(command, what it prints as lines) of a block that begins with `$ `."""
    command, printed = None, []
    for line in lines:
        if line.startswith("$ "):
            if command:
                yield command, printed
            command, printed = line[2:], []
        elif command.endswith("\\"):
            command = command[:-1] + line.strip()
        else:
            printed.append(line)
    yield command, printed


def commands(lines):
    """Those of another block."""
    text = re.sub(r" *\\\n *", " ", "\n".join(lines))
    for line in text.split("\n"):
        if PROGRAMS.match(line):
            yield re.split(r"  |\s#", line)[0].strip()


def matches(wanted, got):
    pattern = "".join(r"(?:[^\n]*\n)*?" if line == "..." else re.escape(line) + "\n"
                      for line in wanted)
    return re.fullmatch(pattern, "".join(line + "\n" for line in got)) is not None


class Runner:
    def __init__(self, programs):
        folders = [os.path.dirname(os.path.abspath(program)) for program in programs]
        self.environment = dict(os.environ, PATH=os.pathsep.join(folders + [os.environ["PATH"]]))
        self.has_mpi = subprocess.run("command -v mpiexec", shell=True, env=self.environment,
                                      stdout=subprocess.DEVNULL).returncode == 0
        self.ran = self.failed = self.elsewhere = 0

    def run(self, readme, folder, command, wanted):
        self.ran += 1
        run = subprocess.run(["bash", "-c", command], cwd=folder, stdout=subprocess.PIPE,
                             stderr=subprocess.STDOUT, text=True, env=self.environment)
        got = [line for line in run.stdout.splitlines() if not PROGRESS.fullmatch(line)]
        if run.returncode == 0 and (wanted is None or matches(wanted, got)):
            return
        self.failed += 1
        print(f"{readme}: $ {command}\n  prints (exit {run.returncode})")
        print("\n".join("  | " + line for line in got))
        if wanted is not None:
            print("  instead of")
            print("\n".join("  | " + line for line in wanted))

    def read(self, readme):
        with open(readme, encoding="utf-8") as file:
            text = file.read()
        with tempfile.TemporaryDirectory() as folder:
            for name, content in FILES.items():
                with open(os.path.join(folder, name), "w") as file:
                    file.write(content)
            for command in PREPARE:
                self.run(readme, folder, command, None)
            for lines in blocks(text):
                if lines[0].startswith("$ "):
                    for command, wanted in examples(lines):
                        self.run(readme, folder, command, wanted)
                    continue
                for command in commands(lines):
                    if any(mark in command for mark in ELSEWHERE) or (
                            "mpiexec" in command and not self.has_mpi):
                        self.elsewhere += 1
                        print(f"not here: {command}")
                    else:
                        self.run(readme, folder, command, None)


def main():
    runner = Runner(sys.argv[1:3])
    for readme in sys.argv[3:]:
        runner.read(os.path.abspath(readme))
    print(f"{runner.ran} commands, {runner.failed} wrong; {runner.elsewhere} cannot run here")
    sys.exit(1 if runner.failed or runner.ran < 65 else 0)


main()
