"""Runs the examples in READMEs: in a block, lines after `$ ` are commands, the others what they print.

A line `...` stands for any lines. What a block leaves, later blocks of the same README find; there is
a GPT-2 of 1.5 billion parameters, xl.json, and a small one, config.json, with a text.

    readme_test.py PIPEC PIPERUN README...
"""

import os
import re
import subprocess
import sys
import tempfile

XL = ('{"model_type": "gpt2", "vocab_size": 50257, "n_positions": 1024, "n_embd": 1600, '
      '"n_layer": 48, "n_head": 25}')
SMALL = ('{"model_type": "gpt2", "vocab_size": 256, "n_positions": 128, "n_embd": 32, '
         '"n_layer": 8, "n_head": 2}')


def examples(text):
    """(command, what it prints as lines) of each example."""
    for block in re.findall(r"^```\n(.*?)^```", text, re.S | re.M):
        lines = block.split("\n")[:-1]
        if not lines[0].startswith("$ "):
            continue
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


def matches(wanted, got):
    pattern = "".join(r"(?:[^\n]*\n)*?" if line == "..." else re.escape(line) + "\n"
                      for line in wanted)
    return re.fullmatch(pattern, "".join(line + "\n" for line in got)) is not None


def main():
    pipec, piperun = map(os.path.abspath, sys.argv[1:3])
    readmes = [os.path.abspath(path) for path in sys.argv[3:]]
    ran = failed = 0
    for readme in readmes:
        with open(readme, encoding="utf-8") as file:
            text = file.read()
        with tempfile.TemporaryDirectory() as folder:
            for name, content in (("xl.json", XL), ("config.json", SMALL), ("text.txt", "text " * 9999)):
                with open(os.path.join(folder, name), "w") as file:
                    file.write(content)
            for command, wanted in examples(text):
                script = f'pipec() {{ "{pipec}" "$@"; }}; piperun() {{ "{piperun}" "$@"; }}; {command}'
                run = subprocess.run(["bash", "-c", script], cwd=folder, stdout=subprocess.PIPE,
                                     stderr=subprocess.STDOUT, text=True)
                got = run.stdout.splitlines()
                ran += 1
                if run.returncode != 0 or not matches(wanted, got):
                    failed += 1
                    print(f"{readme}: $ {command}\n  prints (exit {run.returncode})")
                    print("\n".join("  | " + line for line in got))
                    print("  instead of")
                    print("\n".join("  | " + line for line in wanted))
    print(f"{ran} examples, {failed} wrong")
    sys.exit(1 if failed or ran < 6 else 0)


main()
