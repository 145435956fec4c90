"""README's way from prompts to a fine-tuned model, as it stands there: the blocks of its section, with a
small model in place of the one that it names. And the same without --lora, and with the adapter
merged into the weights.

    finetune_walk_test.py PIPEC PIPERUN TOOLS README
"""

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
import transformers
from peft import PeftModel
from transformers import AutoModelForCausalLM

from finetune_model import write_model, write_prompts
from finetune_reference import Sequences, counting, mean_loss

HEADING, BASE = "## A model of your own", "Qwen2.5-0.5B"
PIPEC, PIPERUN, TOOLS, README = (Path(each).resolve() for each in sys.argv[1:])


def block(kind):
    section = README.read_text("utf-8").split(HEADING + "\n")[1].split("\n## ")[0]
    (found,) = re.findall(rf"^```{kind}\n(.*?)^```", section, re.S | re.M)
    return found


def changed(text, *pairs):
    """With other words in place of some, which have to be there."""
    for old, new in pairs:
        assert old in text, (old, text)
        text = text.replace(old, new)
    return text


def run(*command):
    """What it prints, which is shown, too."""
    environment = dict(
        os.environ,
        PYTHON=sys.executable,
        PATH=os.pathsep.join([str(PIPEC.parent), str(PIPERUN.parent), os.environ["PATH"]]),
    )
    result = subprocess.run(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment
    )
    print(result.stdout)
    assert result.returncode == 0, f"{command}: exit {result.returncode}"
    return result.stdout


def loss_on(sequences, model):
    batch = sequences.batch(range(sequences.count))
    with torch.no_grad():
        return mean_loss(model.eval(), [batch], counting([batch])).item()


def main():
    transformers.utils.logging.disable_progress_bar()
    os.symlink(TOOLS, "tools")
    before = write_model(Path(BASE))
    write_prompts("train.jsonl", 0, 200)
    write_prompts("test.jsonl", 200, 30)
    words = block("")
    printed = {
        "adapter": run("bash", "-ec", words),
        "merged": run("bash", "-ec", changed(words, ("--export adapter", "--export-merged merged"))),
        "tuned": run("bash", "-ec", changed(words, ("--lora r=8,alpha=16 ", ""), ("adapter", "tuned"))),
    }
    answer = run(sys.executable, "-W", "ignore", "-c", block("python"))
    prompt = re.search(r'tokenizer\("(.*?)"', block("python"))[1]
    assert re.search(rf"^{re.escape(prompt)}.", answer, re.M), answer

    models = {
        "adapter": PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(BASE), "adapter")
    }
    models |= {name: AutoModelForCausalLM.from_pretrained(name) for name in ("merged", "tuned")}
    sequences = Sequences(Path("test.tokens"), int(re.search(r"--seq-length (\d+)", words)[1]))
    at_first = loss_on(sequences, before)
    for name, model in models.items():
        # Of the last step, four digits.
        (theirs,) = re.findall(r"step (\d+)/\1 .*?val (\d\S+)", printed[name])[-1][1:]
        loss = loss_on(sequences, model)
        print(f"{name}: piperun {theirs}, transformers {loss:.6f}, before {at_first:.6f}")
        assert abs(float(theirs) - loss) < 6e-5, name
        assert loss < at_first - 1e-3, name


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        main()
        os.chdir("/")
