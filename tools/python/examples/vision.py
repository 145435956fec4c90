"""An image classifier, an nn.Sequential, on two processes in a V: ZB-V, whose backwards are split.

    torchrun --nproc-per-node 2 vision.py [--steps 30]

The images are noise around one colour a class.
"""

import argparse

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F

import pipec
import pipec.torch

MICROBATCHES, IMAGES, CLASSES = 4, 8, 10


class Residual(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.one, self.two = (nn.Conv2d(width, width, 3, padding=1) for _ in range(2))
        self.norm = nn.GroupNorm(4, width)

    def forward(self, x):
        return x + self.two(F.relu(self.norm(self.one(x))))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=30)
    steps = parser.parse_args().steps
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    plan = pipec.compile(scheme="zb-v", devices=2, microbatches=MICROBATCHES)
    me = pipec.torch.place(plan)

    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 16, 3, padding=1), *[Residual(16) for _ in range(8)],
                          nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, CLASSES))
    parts = {key: pipec.torch.cut(model, key.stage, plan.stages) for key in me.stages}
    optimizer = torch.optim.SGD([p for part in parts.values() for p in part.parameters()],
                                lr=0.05, momentum=0.9)
    loss_sum = nn.CrossEntropyLoss(reduction="sum")
    pipe = pipec.torch.Pipeline(plan, parts, loss=loss_sum, optimizer=optimizer, max_norm=1.0)

    generator = torch.Generator().manual_seed(1)
    colours = torch.randn(CLASSES, 3, 1, 1, generator=generator)
    for step in range(steps):
        labels = torch.randint(CLASSES, (MICROBATCHES, IMAGES), generator=generator)
        images = colours[labels] + torch.randn(MICROBATCHES, IMAGES, 3, 16, 16, generator=generator)
        losses = pipe.step(inputs=list(images) if me.needs_inputs else None,
                           targets=list(labels) if me.needs_targets else None,
                           scale=1 / labels.numel())
        loss = pipe.total(losses)
        if me.rank == 0:
            print(f"step {step + 1}/{steps}  loss {loss:.4f}", flush=True)
    pipe.close()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
