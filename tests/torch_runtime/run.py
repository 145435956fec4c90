"""Executes schedules in PyTorch's own pipeline runtime, and compares with one device.

    run.py FILE.csv...        one process per rank (gloo, CPU)

Each file is a CSV as `pipec show --format torch-csv` writes it: "compute_only", or "compute_comms"
if it has messages. The model is a stack of small stages: an embedding, blocks, and a head with
cross-entropy. The loss of each micro-batch and every gradient must be those of the same stages run
one after the other on the same batch, up to rounding. Prints a line a file; exit status 1 if any
differs.
"""

import datetime
import itertools
import re
import sys
import tempfile

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining.schedules import _PipelineScheduleRuntime
from torch.nn import functional as F

VOCABULARY, WIDTH, TOKENS, SEQUENCES = 61, 32, 16, 2  # sequences per micro-batch
TIMEOUT = datetime.timedelta(seconds=60)


class Stage(nn.Module):
    def __init__(self, index, count):
        super().__init__()
        torch.manual_seed(index)
        self.embedding = nn.Embedding(VOCABULARY, WIDTH) if index == 0 else None
        self.norm, self.up, self.down = (nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 4 * WIDTH),
                                         nn.Linear(4 * WIDTH, WIDTH))
        self.head = nn.Linear(WIDTH, VOCABULARY) if index == count - 1 else None

    def forward(self, x):
        if self.embedding is not None:
            x = self.embedding(x)
        x = x + self.down(F.gelu(self.up(self.norm(x))))
        return x if self.head is None else self.head(x)


def loss_of(logits, targets):
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


class Schedule:
    """The sizes that a file states: the stages of each rank, and the micro-batches."""

    def __init__(self, path):
        with open(path) as file:
            text = file.read()
        rows = [re.findall(r"(\d+)[FIBW](\d+)", row) for row in text.splitlines()]
        self.path = path
        self.form = "compute_comms" if "SEND" in text else "compute_only"
        self.stages = [sorted({int(stage) for stage, _ in row}) for row in rows]
        self.count = 1 + max(map(max, self.stages))
        self.micros = 1 + max(int(micro) for row in rows for _, micro in row)

    def batch(self):
        generator = torch.Generator().manual_seed(1)
        size = (self.micros * SEQUENCES, TOKENS + 1)
        text = torch.randint(VOCABULARY, size, generator=generator)
        return text[:, :-1].contiguous(), text[:, 1:].contiguous()


def one_device(schedule):
    """The losses, by micro-batch, and the gradients of their mean, by stage."""
    stages = [Stage(index, schedule.count) for index in range(schedule.count)]
    model = nn.Sequential(*stages)
    micros = zip(*(tensor.chunk(schedule.micros) for tensor in schedule.batch()))
    losses = torch.stack([loss_of(model(tokens), targets) for tokens, targets in micros])
    losses.mean().backward()
    return losses.detach(), [[p.grad for p in stage.parameters()] for stage in stages]


def pipeline_stage(schedule, index):
    activation = torch.empty(SEQUENCES, TOKENS, WIDTH, requires_grad=True)
    tokens = torch.empty(SEQUENCES, TOKENS, dtype=torch.long)
    logits = torch.empty(SEQUENCES, TOKENS, VOCABULARY, requires_grad=True)
    return PipelineStage(Stage(index, schedule.count), index, schedule.count, torch.device("cpu"),
                         input_args=tokens if index == 0 else activation,
                         output_args=logits if index == schedule.count - 1 else activation)


def run_schedule(rank, schedule):
    stages = [pipeline_stage(schedule, index) for index in schedule.stages[rank]]
    runtime = _PipelineScheduleRuntime(stages, schedule.micros, loss_fn=loss_of)
    runtime._load_csv(schedule.path, format=schedule.form)
    tokens, targets = schedule.batch()
    losses = []
    runtime.step(*([tokens] if 0 in schedule.stages[rank] else []), target=targets, losses=losses)
    expected, gradients = one_device(schedule)
    if schedule.count - 1 in schedule.stages[rank]:
        torch.testing.assert_close(torch.stack(losses), expected)
    for stage in stages:
        for parameter, gradient in zip(stage.submod.parameters(), gradients[stage.stage_index],
                                       strict=True):
            torch.testing.assert_close(parameter.grad, gradient)


def run_rank(rank, schedules, done, store):
    """Runs all of them, and counts those that are as on one device."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank,
                            world_size=len(schedules[0].stages), timeout=TIMEOUT)
    for schedule in schedules:
        run_schedule(rank, schedule)
        dist.barrier()
        if rank == 0:
            done.value += 1
    dist.destroy_process_group()


def run_all(schedules):
    """Runs those of equally many ranks in the same processes. Whether all are right."""
    right = True
    while schedules:
        done = mp.get_context("spawn").Value("i", 0)
        error = None
        try:
            with tempfile.TemporaryDirectory() as folder:
                mp.spawn(run_rank, (schedules, done, f"{folder}/store"),
                         nprocs=len(schedules[0].stages))
        except Exception as raised:
            error, right = raised, False
        for index, schedule in enumerate(schedules[:done.value + 1]):
            text = (f"{schedule.path}: {schedule.form}, {len(schedule.stages)} ranks, "
                    f"{schedule.count} stages, {schedule.micros} micro-batches")
            outcome = "losses and gradients as on one device"
            print(f"{text}: {outcome if index < done.value else error}", flush=True)
        schedules = schedules[done.value + 1:]
    return right


def main():
    schedules = sorted(map(Schedule, sys.argv[1:]), key=lambda schedule: len(schedule.stages))
    groups = itertools.groupby(schedules, key=lambda schedule: len(schedule.stages))
    sys.exit(0 if all([run_all(list(group)) for _, group in groups]) else 1)


if __name__ == "__main__":
    main()
