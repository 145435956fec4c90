"""Loss of a model with an exported adapter, and of the merged model, against piperun's own.

   lora_loss.py BASE RUN TEXT      RUN: a folder with adapter, merged, and the log of a step
"""

import json
import pathlib
import sys

import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM

BATCH, TOKENS = 4, 24  # of a step: 2 micro-batches of 2


def loss_of(model, text):
    data = torch.tensor(list(text[:BATCH * TOKENS + 1]))
    tokens, targets = data[:-1].view(BATCH, TOKENS), data[1:].view(BATCH, TOKENS)
    with torch.no_grad():
        logits = model.eval()(tokens).logits
    return torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten()).item()


def main(base, run, text):
    run, text = pathlib.Path(run), pathlib.Path(text).read_bytes()
    want = json.loads((run / "log").read_text())["loss"]
    plain = AutoModelForCausalLM.from_pretrained(base, attn_implementation="eager")
    before = loss_of(plain, text)
    adapted = PeftModel.from_pretrained(plain, run / "adapter")
    missing = [name for name, parameter in adapted.named_parameters()
               if "lora_B" in name and not parameter.any()]
    merged = AutoModelForCausalLM.from_pretrained(run / "merged", attn_implementation="eager")
    losses = {"peft": loss_of(adapted, text), "merged": loss_of(merged, text)}
    print(f"{run.name}: {before:.6f} before, piperun {want:.7f}, {losses}")
    assert before > want + 0.05, "training has not changed the loss"
    assert not missing, f"not in the exported adapter: {missing}"
    for name, loss in losses.items():
        assert abs(loss - want) < 1e-5 * want, f"{name}: {loss}, piperun has {want}"


if __name__ == "__main__":
    main(*sys.argv[1:])
