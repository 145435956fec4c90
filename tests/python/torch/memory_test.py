"""Memory: the allocator's peak of a step beside what a profile of the stages predicts of the plan.

Two processes, a GPT-2 of some MiB. A plan's predicted peak is what is alive (weights, stashes, kept
inputs, work, messages) and what one instruction needs while it runs.
"""

from __future__ import annotations

import unittest
from functools import lru_cache

import torch
from torch import nn
from torch.nn import functional as F

import pipec
import pipec.torch
from models import text_loss
from pipec.torch._compare import peak_of
from pipec.torch._memory import Meter, bytes_of
from pool import close_all, pool_of

WIDTH, HEADS, LAYERS, VOCABULARY, TOKENS, SEQUENCES = 96, 4, 4, 300, 64, 4
MICROS = 6


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm_1, self.norm_2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.proj = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x):
        q, k, v = (part.view(*x.shape[:2], HEADS, -1).transpose(1, 2)
                   for part in self.qkv(self.norm_1(x)).split(WIDTH, dim=2))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + F.dropout(self.proj(y.transpose(1, 2).reshape(x.shape)), 0.1)
        return x + F.dropout(self.down(F.gelu(self.up(self.norm_2(x)))), 0.1)


class Embedding(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens, self.positions = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(TOKENS, WIDTH)

    def forward(self, tokens):
        return F.dropout(self.tokens(tokens) + self.positions.weight, 0.1)


def stage_of(number: int, stages: int) -> nn.Module:
    torch.manual_seed(number)
    share = LAYERS // stages
    return nn.Sequential(*[Embedding()] * (number == 0), *(Block() for _ in range(share)),
                         *[nn.LayerNorm(WIDTH), nn.Linear(WIDTH, VOCABULARY, bias=False)]
                         * (number == stages - 1))


def batch():
    text = torch.randint(VOCABULARY, (MICROS, SEQUENCES, TOKENS + 1),
                         generator=torch.Generator().manual_seed(5))
    return list(text[:, :, :-1]), list(text[:, :, 1:])


@lru_cache(maxsize=None)
def costs_of(stages: int) -> pipec.torch.Costs:
    torch.set_num_threads(1)
    inputs, targets = batch()
    return pipec.torch.profile([stage_of(s, stages) for s in range(stages)], inputs[0],
                               loss=text_loss, target=targets[0], repeats=1)


def predicted(plan, costs) -> list[int]:
    return [device["peak_bytes"] for device in plan.simulate(costs=costs)["devices"]]


def measured(rank: int, data: bytes) -> tuple[int, int]:
    """Of this rank, in bytes: the peak of a step, and what it leaves beside gradients."""
    plan = pipec.Plan(data)
    me = pipec.torch.place(plan)
    parts = {key: stage_of(key.stage, plan.stages) for key in me.stages}
    optimizer = torch.optim.AdamW([p for part in parts.values() for p in part.parameters()])
    pipe = pipec.torch.Pipeline(plan, parts, loss=text_loss, optimizer=optimizer)
    inputs, targets = batch()
    step = lambda: pipe.step(inputs, targets, 1 / (MICROS * SEQUENCES * TOKENS))  # noqa: E731
    step()
    peak = peak_of(pipe, step)
    for p in pipe.optimizer.param_groups[0]["params"]:
        p.grad = None
    with Meter(pipe.device) as meter:
        step()
        meter.mark()
    pipe.close()
    gradients = bytes_of(p.grad for p in pipe.optimizer.param_groups[0]["params"])
    return peak, meter.alive[0] - gradients


PLANS = {
    "1f1b": (2, dict(scheme="1f1b")),
    "mario": (4, dict(scheme="interleaved", passes="mario")),
    "zb-v": (4, dict(scheme="zb-v")),
    "limit": (2, dict(scheme="1f1b", memory_limit="1")),
    "chimera": (2, dict(scheme="chimera")),
}


class Memory(unittest.TestCase):
    def test_peaks(self):
        """No device has more than is predicted, nor is a fifth more predicted than there is; and
        nothing is left after a step."""
        for name, (stages, options) in PLANS.items():
            with self.subTest(plan=name):
                costs = costs_of(stages)
                plan = pipec.compile(devices=2, microbatches=MICROS, costs=costs, **options)
                peaks, left = zip(*pool_of(2).run(measured, plan.bytes))
                self.assertEqual(left, (0, 0))
                expected = predicted(plan, costs)
                print(f"{name:<8}" + "".join(
                    f"   d{d}: predicted {most:9} B, measured {peak:9} B ({peak / most:.3f})"
                    for d, (most, peak) in enumerate(zip(expected, peaks))), flush=True)
                for most, peak in zip(expected, peaks):
                    self.assertLessEqual(peak, most)
                    self.assertGreaterEqual(peak, most / 1.2)

    def test_limit_in_bytes(self):
        """fit-memory keeps a limit that 1F1B does not."""
        costs = costs_of(2)
        options = dict(scheme="1f1b", devices=2, microbatches=MICROS, costs=costs)
        plain = pipec.compile(**options)
        stash = max(costs.of["stash"])
        limit = int(max(predicted(plain, costs)) - 0.5 * stash)
        fitted = pipec.compile(**options, memory_limit=f"{limit}B")
        for plan, keeps in ((plain, False), (fitted, True)):
            most = max(peak for peak, _ in pool_of(2).run(measured, plan.bytes))
            self.assertEqual(most <= limit, keeps, (most, limit))


def tearDownModule():
    close_all()


if __name__ == "__main__":
    unittest.main()
