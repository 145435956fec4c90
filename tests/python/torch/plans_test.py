"""Every scheme, with passes, limits and kinds of messages: the losses and gradients of one process.

In fp64, with dropout. Where there is one copy of the weights and no convolution is split, all bits
are those of one process; elsewhere sums have another order, and the error is at most 1e-12.

    plans_test.py [--all]       a sample, or all plans, convolutions included
"""

from __future__ import annotations

import sys
import unittest
from types import SimpleNamespace

import torch
from torch.distributed import pipelining

import pipec
import pipec.torch
from models import MODELS, SEED, difference, gradients_of, one_process
from pool import close_all, pool_of

MOST_ERROR = 1e-12
# Those without versions of the weights.
SCHEMES = ("gpipe", "1f1b", "interleaved", "chimera", "fold-aiao", "fold-fifo", "zb-h1", "zb-h2",
           "zb-v", "v-half", "v-min", "hanayo", "dualpipe", "dualpipe-v")
WAYS = {"plain": {}, "mario": {"passes": "mario"}, "split": {"passes": "split-backward"},
        "limit": {"memory_limit": "1.5"}}


def compiled(scheme: str, way: str, p2p: str, replicas: int, devices: int):
    """The plan, or None where pipec has none of this kind."""
    try:
        return pipec.compile(scheme=scheme, devices=devices, microbatches=2 * devices, p2p=p2p,
                             dp=replicas, **WAYS[way])
    except pipec.Error as error:
        text = str(error)
        known = ("already", "overlap", "--memory-limit", "split-backward", "mario", "apply-checkpoint")
        if not any(word in text for word in known):
            raise
        return None


def schedule_of_pytorch(cls, per_rank: int):
    """A schedule of two ranks and four micro-batches, with what it asks of its stages as yet."""
    count = 2 * per_rank
    mine = [0, count - 1] if cls is pipelining.ScheduleZBVZeroBubble else range(0, count, 2)
    stages = [SimpleNamespace(stage_index=i, num_stages=count, group_size=2, group_rank=0, submod=None,
                              is_first=i == 0, is_last=i == count - 1, has_backward=True)
              for i in mine]
    return cls(stages if per_rank > 1 else stages[0], 4)


def run_plan(rank: int, data: bytes, model: str, debug: bool) -> tuple[float, float]:
    """The worst relative error of this rank's losses, and of its gradients."""
    torch.set_default_dtype(torch.float64)
    make, loss, batch = MODELS[model]
    plan = pipec.Plan(data)
    me = pipec.torch.place(plan)
    parts = {key: make(key.stage, plan.stages) for key in me.stages}
    pipe = pipec.torch.Pipeline(plan, parts, loss=loss, seed=SEED, debug=debug)
    batches = [batch(plan.microbatches, replica) for replica in range(plan.replicas)]
    inputs, targets = batches[me.replica]
    scale = 1 / 64
    losses = pipe.step(inputs if me.needs_inputs else None,
                       targets if me.needs_targets else None, scale)
    pipe.close()
    stages = [make(stage, plan.stages) for stage in range(plan.stages)]
    expected = one_process(stages, loss, batches, scale)
    held = [m for m, got in enumerate(losses) if got is not None]
    assert held == [m for m in range(plan.microbatches)
                    if plan.pipes[plan.pipe_of[m]][-1] == me.device], held
    worst_loss = max((difference(losses[m], expected[me.replica, m]) for m in held), default=0.0)
    worst = 0.0
    for key, part in parts.items():
        wanted = gradients_of(stages[key.stage])
        for name, got in gradients_of(part).items():
            worst = max(worst, difference(got, wanted[name]))
    return worst_loss, worst


class Plans(unittest.TestCase):
    everything = False

    def check(self, cases) -> int:
        count = 0
        for scheme, way, p2p, replicas, devices, model in cases:
            plan = compiled(scheme, way, p2p, replicas, devices)
            if plan is None:
                continue
            with self.subTest(scheme=scheme, way=way, p2p=p2p, dp=replicas, devices=devices,
                              model=model):
                results = pool_of(devices * replicas).run(run_plan, plan.bytes, model, True)
                one_copy = replicas * len(plan.pipes) == 1
                splits = any("BW_input" in (row.op for row in instructions.rows())
                             for instructions in plan.lists())
                exact = one_copy and not (model == "image" and splits)
                for rank, errors in enumerate(results):
                    self.assertLessEqual(max(errors), 0.0 if exact else MOST_ERROR, f"rank {rank}")
            count += 1
        return count

    def test_every_scheme(self):
        """Each scheme once, in turn with each way, kind of message and number of replicas."""
        ways = list(WAYS)
        cases = [(scheme, ways[i % 4], ("async", "blocking")[i // 2 % 2], 1, 2,
                  "image" if i % 7 == 3 else "text") for i, scheme in enumerate(SCHEMES)]
        cases += [(scheme, "plain", "async", 1, 2, "text") for scheme in SCHEMES]
        cases += [("1f1b", "mario", "async", 2, 2, "text"), ("chimera", "plain", "blocking", 2, 2, "text"),
                  ("zb-v", "plain", "async", 2, 2, "image"), ("1f1b", "plain", "async", 1, 4, "text"),
                  ("1f1b", "mario", "async", 1, 1, "text")]
        self.assertGreaterEqual(self.check(cases), 26)

    def test_schedules_of_pytorch(self):
        """Its schedule objects, imported and proved, with the messages that pipec places."""
        for cls, per_rank in ((pipelining.Schedule1F1B, 1), (pipelining.ScheduleInterleaved1F1B, 2),
                              (pipelining.ScheduleZBVZeroBubble, 2)):
            with self.subTest(cls.__name__):
                plan = pipec.import_(schedule_of_pytorch(cls, per_rank))
                self.assertEqual((plan.devices, plan.stages, plan.microbatches), (2, 2 * per_rank, 4))
                for errors in pool_of(2).run(run_plan, plan.bytes, "text", True):
                    self.assertEqual(max(errors), 0.0)

    def test_all(self):
        if not self.everything:
            self.skipTest("a sample has been run (--all runs all plans)")
        cases = [(scheme, way, p2p, replicas, devices, "image" if (devices, replicas) == (2, 2) else "text")
                 for devices in (2, 4) for replicas in (1, 2) if devices * replicas <= 4
                 for scheme in SCHEMES for way in WAYS for p2p in ("async", "blocking")]
        cases += [("1f1b", way, "async", replicas, 1, "text") for way in WAYS for replicas in (1, 2)]
        print(f"{self.check(cases)} plans run", flush=True)


def tearDownModule():
    close_all()


if __name__ == "__main__":
    Plans.everything = "--all" in sys.argv
    unittest.main(argv=[a for a in sys.argv if a != "--all"])
