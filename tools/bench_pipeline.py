"""One training step of a pipeline of GPT-2 in PyTorch: the yardstick of tools/bench_pipeline.sh.

torch.distributed.pipelining, 1F1B or ZB-V, two processes with one thread each, gloo: forward,
backward, the tied embedding's gradient summed over both ends, clipping by the norm over all stages,
fused AdamW (decay for matrices only): the same step as piperun's. Prints the best and the median
seconds of a step, and the mean processor seconds of both processes together.
"""

import argparse
import json
import os
import statistics
import tempfile
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleZBVZeroBubble
from torch.nn import functional as F

from bench_torch import Block

RANKS = 2


class Stage(nn.Module):
    """That many layers, the first ones with the embeddings, the last ones with the head."""

    def __init__(self, layers, config, first, last):
        super().__init__()
        self.first, self.last = first, last
        self.dropout = config["embd_pdrop"]
        width = config["n_embd"]
        if first or last:
            self.wte = nn.Embedding(config["vocab_size"], width)
        if first:
            self.wpe = nn.Embedding(config["n_positions"], width)
        self.blocks = nn.ModuleList(
            Block(config["attn_pdrop"], width, config["n_head"]) for _ in range(layers))
        if last:
            self.ln_f = nn.LayerNorm(width)
        for parameter in self.parameters():
            if parameter.dim() > 1:
                nn.init.normal_(parameter, std=0.02)

    def forward(self, x):
        if self.first:
            x = F.dropout(self.wte(x) + self.wpe.weight[:x.shape[1]], self.dropout)
        for block in self.blocks:
            x = block(x)
        return F.linear(self.ln_f(x), self.wte.weight) if self.last else x


def loss_of(logits, targets):
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


def clip(parameters, elsewhere):
    """By the norm over all stages, in which the tied embedding counts once."""
    mine = [p.grad for p in parameters if p is not elsewhere]
    square = nn.utils.get_total_norm(mine) ** 2
    dist.all_reduce(square)
    nn.utils.clip_grads_with_norm_(parameters, 1.0, square.sqrt())


def work(rank, args, config, folder):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank,
                            world_size=RANKS)
    count = len(args.layers)
    mine = [rank] if args.schedule == "1f1b" else [rank, count - 1 - rank]  # a V
    torch.manual_seed(1)  # both ends of the model draw the same tied embedding
    modules = {i: Stage(args.layers[i], config, i == 0, i == count - 1) for i in mine}
    first, last = modules.get(0), modules.get(count - 1)
    if first and last:
        last.wte = first.wte
    tied = None if bool(first) == bool(last) else (first or last).wte.weight
    parameters = list(dict.fromkeys(p for m in modules.values() for p in m.parameters()))
    matrices = [p for p in parameters if p.dim() > 1]
    vectors = [p for p in parameters if p.dim() == 1]
    optimizer = torch.optim.AdamW([{"params": matrices, "weight_decay": 0.1},
                                   {"params": vectors, "weight_decay": 0.0}],
                                  lr=3e-4, betas=(0.9, 0.95), fused=True)
    stages = [PipelineStage(m, i, count, torch.device("cpu")) for i, m in modules.items()]
    if args.schedule == "1f1b":
        schedule = Schedule1F1B(stages[0], args.microbatches, loss_fn=loss_of)
    else:
        schedule = ScheduleZBVZeroBubble(stages, args.microbatches, loss_fn=loss_of)
    text = torch.randint(config["vocab_size"], (args.batch * args.microbatches, args.tokens + 1))
    seconds, cpu = [], 0
    for step in range(args.steps + 2):
        dist.barrier()
        if step == 2:
            cpu = time.process_time()
        start = time.perf_counter()
        optimizer.zero_grad()
        inputs = [text[:, :-1].contiguous()] if first else []
        outputs = {"target": text[:, 1:].contiguous(), "losses": []} if last else {}
        schedule.step(*inputs, **outputs)
        if tied is not None:
            dist.all_reduce(tied.grad)
        clip(parameters, tied if last else None)
        optimizer.step()
        if step >= 2:
            seconds.append(time.perf_counter() - start)
    slowest = torch.tensor(seconds)
    all_cpu = torch.tensor((time.process_time() - cpu) / args.steps)
    dist.all_reduce(slowest, dist.ReduceOp.MAX)
    dist.all_reduce(all_cpu)
    if rank == 0:
        print(f"{slowest.min():.5f} {statistics.median(slowest.tolist()):.5f} {all_cpu:.5f}",
              flush=True)
    dist.destroy_process_group()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", required=True)
    parser.add_argument("--batch", type=int, required=True)
    parser.add_argument("--tokens", type=int, required=True)
    parser.add_argument("--microbatches", type=int, required=True)
    parser.add_argument("--layers", required=True, help="of each stage, as in 9,3")
    parser.add_argument("--schedule", choices=["1f1b", "zb-v"], required=True)
    parser.add_argument("--steps", type=int, default=5)
    args = parser.parse_args()
    with open(args.model, encoding="utf-8") as file:
        config = json.load(file)
    args.layers = [int(n) for n in args.layers.split(",")]
    os.environ["OMP_NUM_THREADS"] = "1"
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(work, (args, config, folder), nprocs=RANKS)


if __name__ == "__main__":
    main()
