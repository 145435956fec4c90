"""pipec.torch beside torch.distributed.pipelining: the yardstick of tools/bench_python.sh.

Two processes over gloo, one thread each. In one run, in turn:
* steps of a GPT-2 of 8 layers of 256, where memory has no limit: the same schedules on both sides;
* the same where memory is what PyTorch's 1F1B takes with every stage checkpointed: plans of ours
  that fit-memory makes from a profile, under that limit in bytes;
* the calling thread's processor time per instruction where stages do nothing.
Prints medians, in brackets the quartiles.
"""

from __future__ import annotations

import argparse
import gc
import os
import statistics
import tempfile
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.distributed.pipelining import (PipelineStage, Schedule1F1B, ScheduleInterleaved1F1B,
                                          ScheduleZBVZeroBubble)
from torch.distributed.pipelining.schedules import _PipelineScheduleRuntime
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

import pipec
import pipec.torch
from bench_torch import Block
from pipec.torch._compare import gathered
from pipec.torch._memory import Meter

RANKS, LAYERS, WIDTH, HEADS, VOCABULARY = 2, 8, 256, 4, 1000
SEQUENCES, TOKENS = 2, 128  # of a micro-batch
CPU = torch.device("cpu")


class Stage(nn.Module):
    def __init__(self, number, stages):
        super().__init__()
        torch.manual_seed(number)
        self.wte = nn.Embedding(VOCABULARY, WIDTH) if number == 0 else None
        self.blocks = nn.Sequential(*(Block(0.1, WIDTH, HEADS) for _ in range(LAYERS // stages)))
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False) if number == stages - 1 else None

    def forward(self, x):
        x = self.blocks(x if self.wte is None else self.wte(x))
        return x if self.head is None else self.head(x)


class Checkpointed(Stage):
    """Keeps its input alone."""

    def forward(self, x):
        return checkpoint(super().forward, x, use_reentrant=False)


class Nothing(nn.Module):
    def __init__(self, number, stages):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1))

    def forward(self, x):
        return x * self.weight


def text_loss(logits, targets):
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


def number_loss(y, targets):
    return y.sum()


def text_batch(micros):
    text = torch.randint(VOCABULARY, (micros * SEQUENCES, TOKENS + 1),
                         generator=torch.Generator().manual_seed(1))
    return text[:, :-1].contiguous(), text[:, 1:].contiguous()


def number_batch(micros):
    return torch.ones(micros, 1), torch.ones(micros, 1)


class Ours:
    def __init__(self, plan, make=Stage, loss=text_loss, batch=text_batch):
        me = pipec.torch.place(plan)
        self.parts = {key: make(key.stage, plan.stages) for key in me.stages}
        self.optimizer = torch.optim.AdamW([p for part in self.parts.values()
                                            for p in part.parameters()])
        self.pipe = pipec.torch.Pipeline(plan, self.parts, loss=loss, optimizer=self.optimizer)
        self.inputs, self.targets = (t.chunk(plan.microbatches) for t in batch(plan.microbatches))
        self.count = len(plan.lists()[me.device])

    def step(self):
        self.pipe.step(self.inputs, self.targets, 1 / len(self.inputs))


class Theirs:
    """`schedule` makes PyTorch's schedule of the rank's PipelineStages."""

    def __init__(self, schedule, pipes, micros, make=Stage, loss=text_loss, batch=text_batch):
        stages = len(pipes)
        mine = [s for s, device in enumerate(pipes) if device == dist.get_rank()]
        self.parts = {s: make(s, stages) for s in mine}
        self.optimizer = torch.optim.AdamW([p for part in self.parts.values()
                                            for p in part.parameters()])
        self.schedule = schedule([PipelineStage(part, s, stages, CPU) for s, part in
                                  self.parts.items()], micros, loss)
        self.inputs, self.targets = batch(micros)
        self.first, self.last = 0 in mine, stages - 1 in mine
        comms = getattr(self.schedule, "pipeline_order_with_comms", None)
        self.count = len(comms[dist.get_rank()]) if comms else 0

    def step(self):
        self.optimizer.zero_grad()
        self.schedule.step(*([self.inputs] if self.first else []),
                           **({"target": self.targets, "losses": []} if self.last else {}))
        self.optimizer.step()


def multi(kind):
    return lambda stages, micros, loss: kind(stages, micros, loss_fn=loss)


def single(stages, micros, loss):
    return Schedule1F1B(stages[0], micros, loss_fn=loss)


def from_plan(plan):
    """The runtime of PyTorch on a plan of ours, as it lowers it."""

    def make(stages, micros, loss):
        schedule = _PipelineScheduleRuntime(stages, micros, loss_fn=loss)
        handle, path = tempfile.mkstemp(suffix=".csv")
        with os.fdopen(handle, "w") as file:
            file.write(plan.show("torch-csv"))
        schedule._load_csv(path)
        os.unlink(path)
        return schedule

    return make


def peak_of(contender) -> int:
    """Bytes of this rank in a step, without weights and optimizer: the most of both ranks."""
    gc.collect()
    for part in contender.parts.values():
        for p in part.parameters():
            p.grad = None
    with Meter(CPU) as meter:
        contender.step()
        meter.mark()
    return max(gathered(max(meter.most)))


def timed(contenders, rounds):
    """By name, steps in turn: (seconds of the slower rank, processor seconds of this thread)."""
    found = {name: [] for name in contenders}
    for turn in range(rounds + 1):
        for name, contender in contenders.items():
            dist.barrier()
            wall, cpu = time.perf_counter(), time.thread_time()
            contender.step()
            cpu = time.thread_time() - cpu
            wall = time.perf_counter() - wall
            both = gathered((wall, cpu))
            if turn > 0:  # the first is to warm up
                found[name].append((max(w for w, _ in both), sum(c for _, c in both)))
    return found


def quartiles(values, scale=1.0, digits=1):
    low, middle, high = statistics.quantiles(values, n=4)
    return f"{middle * scale:.{digits}f} ({low * scale:.{digits}f} to {high * scale:.{digits}f})"


def costs_of(stages, found={}):
    if stages not in found:
        inputs, targets = (t[:SEQUENCES] for t in text_batch(1))
        found[stages] = pipec.torch.profile([Stage(s, stages) for s in range(stages)], inputs,
                                            loss=text_loss, target=targets, repeats=3)
    return found[stages]


def fitting(micros, limit):
    """The plan of ours that is predicted to be the fastest within a limit in bytes, with a name."""
    found = []
    for scheme, stages, options in (("1f1b", 2, {}), ("zb-h1", 2, {}), ("zb-v", 4, {}),
                                    ("interleaved", 4, {}),
                                    ("interleaved", 8, {"stages_per_device": 4})):
        try:
            plan = pipec.compile(scheme=scheme, devices=RANKS, microbatches=micros, grad_norm="off",
                                 costs=costs_of(stages), memory_limit=f"{limit}B", **options)
        except pipec.Error:
            continue  # does not fit
        found.append((plan.simulate()["makespan"], f"{scheme}, {stages} stages", plan))
    return min(found, key=lambda row: row[0])[1:] if found else None


def steps(args, rank, say):
    micros = 8
    compiled = lambda scheme, **options: pipec.compile(  # noqa: E731
        scheme=scheme, devices=RANKS, microbatches=micros, grad_norm="off", **options)
    zbv = compiled("zb-v").pipes[0]
    contenders = {
        "1f1b": (Ours(compiled("1f1b")), Theirs(single, (0, 1), micros)),
        "interleaved": (Ours(compiled("interleaved")),
                        Theirs(multi(ScheduleInterleaved1F1B), (0, 1, 0, 1), micros)),
        "zb-v": (Ours(compiled("zb-v")), Theirs(multi(ScheduleZBVZeroBubble), zbv, micros))}
    checkpointed = Theirs(single, (0, 1), micros, Checkpointed)
    everything = {f"{who} {name}": one for name, pair in contenders.items()
                  for who, one in zip(("ours", "torch"), pair)}
    everything["torch 1f1b, checkpoints"] = checkpointed
    for one in everything.values():
        one.step()
    peak = peak_of(checkpointed)
    # The profile counts weights and the optimizer's state, too.
    held = 3 * sum(p.numel() * p.element_size() for part in checkpointed.parts.values()
                   for p in part.parameters())
    held = max(gathered(held))
    costs_of(2), costs_of(4), costs_of(8)
    message = [fitting(micros, peak + held) if rank == 0 else None]
    dist.broadcast_object_list(message, 0)
    mario = compiled("1f1b", passes="mario", costs=costs_of(2))
    everything["ours 1f1b, mario"] = Ours(mario)
    if message[0] is not None:
        name, plan = message[0]
        everything["ours, fit-memory"] = Ours(plan)
        say(f"  ours, fit-memory: {name}, within {(peak + held) / (1 << 20):.1f} MiB with weights")
    for one in everything.values():
        one.step()
    peaks = {name: peak_of(one) for name, one in everything.items()}
    found = timed(everything, args.rounds)
    for name, rows in found.items():
        say(f"  {name:<26} {quartiles([w for w, _ in rows], 1e3):>26} ms"
            f" {quartiles([c for _, c in rows], 1e3):>26} ms of processors"
            f" {peaks[name] / (1 << 20):9.1f} MiB")
    wall = {name: statistics.median(w for w, _ in rows) for name, rows in found.items()}
    cpu = {name: statistics.median(c for _, c in rows) for name, rows in found.items()}
    for name in contenders:
        pairs = list(zip(found[f"ours {name}"], found[f"torch {name}"]))
        say(f"  {name}: ours / torch: {quartiles([a / b for (a, _), (b, _) in pairs], 1, 2)}, of"
            f" processors {quartiles([a / b for (_, a), (_, b) in pairs], 1, 2)}")
    for name in ("ours 1f1b, mario", "ours, fit-memory"):
        if name in wall:
            plain, full = wall["torch 1f1b"], wall["torch 1f1b, checkpoints"]
            c_plain, c_full = cpu["torch 1f1b"], cpu["torch 1f1b, checkpoints"]
            say(f"  {name}: {100 * (wall[name] / plain - 1):+.0f} % beside torch's "
                f"{100 * (full / plain - 1):+.0f} %: {(wall[name] - plain) / (full - plain):.2f} of"
                f" the extra time; of processors {(cpu[name] - c_plain) / (c_full - c_plain):.2f}")


def overhead(args, rank, say):
    micros = 16
    contenders = {}
    for scheme in ("1f1b", "interleaved", "zb-h1", "zb-v"):
        plan = pipec.compile(scheme=scheme, devices=RANKS, microbatches=micros, grad_norm="off")
        contenders[f"ours {scheme}"] = Ours(plan, Nothing, number_loss, number_batch)
        contenders[f"torch {scheme}"] = Theirs(from_plan(plan), plan.pipes[0], micros, Nothing,
                                               number_loss, number_batch)
    counts = {name: sum(gathered(one.count)) for name, one in contenders.items()}
    found = timed(contenders, args.turns)
    for name, rows in found.items():
        each = [c / counts[name] for _, c in rows]
        say(f"  {name:<20} {quartiles(each, 1e6):>22}, at best {min(each) * 1e6:.1f} us each of"
            f" {counts[name]} instructions, a step {quartiles([w for w, _ in rows], 1e3):>22} ms")
    for scheme in ("1f1b", "interleaved", "zb-h1", "zb-v"):
        pairs = zip(found[f"ours {scheme}"], found[f"torch {scheme}"])
        say(f"  {scheme}: ours / torch, processor time of a step: "
            f"{quartiles([a / b for (_, a), (_, b) in pairs], 1, 2)}")


def work(rank, args, folder):
    torch.set_num_threads(1)
    os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank,
                            world_size=RANKS)
    say = lambda text: print(text, flush=True) if rank == 0 else None  # noqa: E731
    if "overhead" in args.parts:
        say("Stages that do nothing, M = 16: the calling thread's time, both ranks")
        overhead(args, rank, say)
    if "steps" in args.parts:
        say(f"GPT-2, {LAYERS} layers of {WIDTH}, M = 8, steps in turn, {args.rounds} of each")
        steps(args, rank, say)
    dist.barrier()
    dist.destroy_process_group()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=10, help="steps of each contender")
    parser.add_argument("--turns", type=int, default=100, help="the same where stages do nothing")
    parser.add_argument("--parts", nargs="+", default=["overhead", "steps"])
    args = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = "1"
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(work, (args, folder), nprocs=RANKS)


if __name__ == "__main__":
    main()
