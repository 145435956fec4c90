"""A LLaMA of transformers on two processes, four stages each, in an eighth of 1F1B's activations.

    torchrun --nproc-per-node 2 llama.py [--steps 20]

The data is this file, byte by byte.
"""

import argparse

import torch
import torch.distributed as dist
from torch.nn import functional as F
from transformers import LlamaConfig, LlamaForCausalLM

import pipec
import pipec.torch

DEVICES, MICROBATCHES, SEQUENCES, TOKENS = 2, 8, 2, 64


def loss_sum(logits, targets):
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="sum")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=20)
    steps = parser.parse_args().steps
    torch.set_num_threads(1)
    dist.init_process_group("gloo")

    shape = dict(devices=DEVICES, microbatches=MICROBATCHES)
    usual = pipec.compile(scheme="1f1b", **shape)
    # Recomputation that hides in bubbles. memory_limit=0.8 instead of it searches for half a minute,
    # for the fastest plan with at most 0.8 activations.
    plan = pipec.compile(scheme="interleaved", stages_per_device=4, passes="mario", **shape)
    me = pipec.torch.place(plan)

    config = LlamaConfig(vocab_size=256, hidden_size=128, intermediate_size=256,
                         num_hidden_layers=8, num_attention_heads=4)
    torch.manual_seed(0)
    model = LlamaForCausalLM(config)
    parts = {key: pipec.torch.cut(model, key.stage, plan.stages) for key in me.stages}
    optimizer = torch.optim.AdamW([p for part in parts.values() for p in part.parameters()], lr=1e-3)
    pipe = pipec.torch.Pipeline(plan, parts, loss=loss_sum, optimizer=optimizer, max_norm=1.0)

    if me.rank == 0:
        for name, of in (("1F1B", usual), ("this", plan)):
            predicted = of.simulate()
            most = max(device["peak_activations"] for device in predicted["devices"])
            print(f"{name}: {predicted['makespan']:g} T, at most {most:g} activations", flush=True)
    text = torch.tensor(list(open(__file__, "rb").read()))
    generator = torch.Generator().manual_seed(1)
    for step in range(steps):
        starts = torch.randint(len(text) - TOKENS, (MICROBATCHES, SEQUENCES), generator=generator)
        rows = [torch.stack([text[i:i + TOKENS + 1] for i in of_micro]) for of_micro in starts]
        losses = pipe.step(inputs=[r[:, :-1] for r in rows], targets=[r[:, 1:] for r in rows],
                           scale=1 / (MICROBATCHES * SEQUENCES * TOKENS))
        loss = pipe.total(losses)
        if me.rank == 0:
            print(f"step {step + 1}/{steps}  loss {loss:.4f}  norm {pipe.grad_norm:.3f}", flush=True)
    pipe.close()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
