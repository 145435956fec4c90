"""A schedule of one's own, written in Python, proved and run.

    torchrun --nproc-per-node 2 own_schedule.py

Pairs of micro-batches: two forwards, then their two backwards, the later one first. Only the order of
the computations is stated; messages, the optimizer's steps and the proof follow.
"""

import torch
import torch.distributed as dist
from torch import nn

import pipec
import pipec.torch


def pairs(devices, micros):
    lines = [f"program pairs stages {devices} microbatches {micros}"]
    for device in range(devices):
        lines.append(f"device {device} holds s{device}")
        for m in range(0, micros, 2):
            order = [("FW", m), ("FW", m + 1), ("BW", m + 1), ("BW", m)]
            lines += [f"  {op} s{device} m{micro}" for op, micro in order]
    return "\n".join(lines) + "\n"


# Device 0 has a micro-batch's backward before the next forward; device 1 starts with that one.
WRONG = """program wrong stages 2 microbatches 2
device 0 holds s0
  FW s0 m0
  BW s0 m0
  FW s0 m1
  BW s0 m1
device 1 holds s1
  FW s1 m1
  BW s1 m1
  FW s1 m0
  BW s1 m0
"""


def main():
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    plan = pipec.import_(pairs(devices=2, micros=6))
    me = pipec.torch.place(plan)
    if me.rank == 0:
        print(plan.show("grid"), flush=True)
        try:
            pipec.import_(WRONG)
        except pipec.Error as error:
            print(f"another one: {error}", flush=True)

    torch.manual_seed(me.device)
    part = nn.Sequential(nn.Linear(8, 8), nn.Tanh())
    pipe = pipec.torch.Pipeline(plan, {me.device: part}, loss=nn.MSELoss(reduction="sum"),
                                optimizer=torch.optim.SGD(part.parameters(), lr=0.1), max_norm=1.0)
    x = torch.randn(plan.microbatches, 4, 8, generator=torch.Generator().manual_seed(1))
    for step in range(20):
        loss = pipe.total(pipe.step(inputs=list(x), targets=list(x.flip(2)), scale=1 / x.numel()))
        if me.rank == 0:
            print(f"step {step + 1}  loss {loss:.4f}", flush=True)
    pipe.close()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
