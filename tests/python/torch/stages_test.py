"""Modules that a pipeline gets wrong easily, over some steps of AdamW, beside one process.

Each case is a way to make stages, trained under several plans: plain, with recomputation, with split
backwards, with two pipes and with replicas.
"""

from __future__ import annotations

import unittest
from dataclasses import dataclass, field
from typing import Any, Callable

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

import pipec
import pipec.torch
from models import (SEED, VOCABULARY, WIDTH, Normed, TextStage, difference, image_batch, image_loss,
                    one_process, text_batch, text_loss)
from pool import close_all, pool_of

STEPS = 3
SCALE = 1 / 64


class Frozen(TextStage):
    """The first stage needs no gradient at all, so that no grad message has anything in it."""

    def __init__(self, stage, stages):
        super().__init__(stage, stages)
        if stage == 0:
            self.requires_grad_(False)


class SpectralNormed(TextStage):
    """Vectors that each forward moves, and that its output depends on."""

    def __init__(self, stage, stages):
        super().__init__(stage, stages)
        nn.utils.parametrizations.spectral_norm(self.up)


class Rebound(TextStage):
    """A buffer that each forward replaces by another tensor, and that its output depends on."""

    def __init__(self, stage, stages):
        super().__init__(stage, stages)
        self.register_buffer("mean", torch.zeros(()))

    def forward(self, x):
        if self.embedding is not None:
            x = self.embedding(x)
        if self.training:
            self.mean = 0.5 * self.mean + 0.5 * x.detach().mean()
        x = x + self.mean + self.dropout(self.down(F.gelu(self.up(self.norm(x)))))
        return x if self.head is None else self.head(x)


class Checkpointed(TextStage):
    """A checkpoint of the user's own inside a stage."""

    reentrant = False

    def forward(self, x):
        if self.embedding is not None:
            x = self.embedding(x)
        x = x + checkpoint(lambda y: self.dropout(self.down(F.gelu(self.up(self.norm(y))))), x,
                           use_reentrant=self.reentrant)
        return x if self.head is None else self.head(x)


class ReentrantCheckpointed(Checkpointed):
    reentrant = True


class Twice(TextStage):
    """A layer that is called twice."""

    def forward(self, x):
        if self.embedding is not None:
            x = self.embedding(x)
        for _ in range(2):
            x = x + self.dropout(self.down(F.gelu(self.up(self.norm(x)))))
        return x if self.head is None else self.head(x)


class LowRank(TextStage):
    """A frozen linear layer beside two small ones, with a weight that is computed."""

    def __init__(self, stage, stages):
        super().__init__(stage, stages)
        self.up.weight.requires_grad_(False)
        self.a = nn.Parameter(torch.randn(4, WIDTH) * 0.1)
        self.b = nn.Parameter(torch.randn(2 * WIDTH, 4) * 0.1)

    def forward(self, x):
        if self.embedding is not None:
            x = self.embedding(x)
        up = F.linear(self.norm(x), self.up.weight + self.b @ self.a, self.up.bias)
        x = x + self.dropout(self.down(F.gelu(up)))
        return x if self.head is None else self.head(x)


class InPlace(TextStage):
    """The first operation changes the stage's input."""

    def forward(self, x):
        if self.embedding is not None:
            x = self.embedding(x)
        else:
            x.relu_()
        x = x + self.dropout(self.down(F.gelu(self.up(self.norm(x)))))
        return x if self.head is None else self.head(x)


class Bundled(TextStage):
    """Several tensors between stages: integers, one that skips stages, one that is not there."""

    def forward(self, x, positions=None, skip=None, nothing=None):
        if self.embedding is not None:
            positions = torch.arange(x.shape[1]).expand(x.shape)
            x = skip = self.embedding(x)
        x = x + self.dropout(self.down(F.gelu(self.up(self.norm(x))))) * (1 + positions[..., None])
        return (x, positions, skip, None) if self.head is None else self.head(x + skip)


class Unused(TextStage):
    """A parameter without a gradient, which weight decay must leave alone."""

    def __init__(self, stage, stages):
        super().__init__(stage, stages)
        self.idle = nn.Parameter(torch.ones(3))


class Tied(TextStage):
    """The head's weight is the embedding's."""

    def __init__(self, stage, stages):
        super().__init__(stage, stages)
        torch.manual_seed(99)
        weight = torch.randn(VOCABULARY, WIDTH) * 0.1
        for layer in (self.embedding, self.head):
            if layer is not None:
                layer.weight = nn.Parameter(weight.clone())


class Shared(Tied):
    """The same, and where a rank holds both ends they are one parameter."""


def longer(micros, replica, step=0):
    """Micro-batches of different lengths, other ones in each step."""
    return text_batch(micros, replica, step, lambda micro: 3 + (5 * micro + step) % 4)


@dataclass
class Case:
    make: Callable[[int, int], nn.Module]
    loss: Callable = text_loss
    batch: Callable = text_batch
    max_norm: float | None = 0.7
    plans: tuple[str, ...] = ("plain", "mario", "split")
    error: float = 1e-12
    tied: tuple[str, ...] = ()
    of_plan: dict[str, Any] = field(default_factory=dict)


PLANS = {
    "plain": dict(scheme="1f1b", devices=2, microbatches=4),
    "mario": dict(scheme="interleaved", devices=2, microbatches=4, passes="mario"),
    "split": dict(scheme="zb-v", devices=2, microbatches=4),
    "chimera": dict(scheme="chimera", devices=2, microbatches=4),
    "replicas": dict(scheme="zb-h1", devices=2, microbatches=2, dp=2),
    "late": dict(scheme="1f1b", devices=2, microbatches=4, p2p="blocking", grad_norm="off"),
}

CASES = {
    "text": Case(TextStage, plans=tuple(PLANS)),
    "frozen": Case(Frozen, plans=tuple(PLANS)),
    # Copies of a stage have statistics of their own.
    "batch norm": Case(Normed, image_loss, image_batch),
    "spectral norm": Case(SpectralNormed),
    "rebound": Case(Rebound),
    "checkpoint": Case(Checkpointed),
    "reentrant checkpoint": Case(ReentrantCheckpointed),
    "twice": Case(Twice),
    "low rank": Case(LowRank),
    "in place": Case(InPlace),
    "bundle": Case(Bundled, plans=tuple(PLANS)),
    "unused": Case(Unused, plans=("plain", "split", "chimera", "replicas")),
    "tied": Case(Tied, plans=tuple(PLANS), tied=("embedding.weight", "head.weight"),
                 of_plan={"tied": "0,S-1"}),
    "shared": Case(Shared, plans=tuple(PLANS), tied=("embedding.weight", "head.weight"),
                   of_plan={"tied": "0,S-1"}),
    "lengths": Case(TextStage, batch=longer, plans=tuple(PLANS)),
}


def optimizer_of(parameters):
    return torch.optim.AdamW(parameters, lr=1e-2, weight_decay=0.1) if parameters else None


def train(rank: int, data: bytes, name: str) -> float:
    """The worst relative difference of losses, parameters, buffers and the norm, on this rank."""
    torch.set_default_dtype(torch.float64)
    case = CASES[name]
    plan = pipec.Plan(data)
    max_norm = case.max_norm if plan.clip else None
    me = pipec.torch.place(plan)
    parts = {key: case.make(key.stage, plan.stages) for key in me.stages}
    ends = parts.get((0, 0)), parts.get((plan.stages - 1, 0))
    if case.make is Shared and all(ends):
        ends[1].head.weight = ends[0].embedding.weight
    trained = list(dict.fromkeys(p for part in parts.values() for p in part.parameters()
                                 if p.requires_grad))
    pipe = pipec.torch.Pipeline(plan, parts, loss=case.loss, optimizer=optimizer_of(trained),
                                max_norm=max_norm, seed=SEED, debug=True,
                                tied=[case.tied] if case.tied else ())
    stages = [case.make(stage, plan.stages) for stage in range(plan.stages)]
    if case.tied:
        stages[-1].head.weight = stages[0].embedding.weight
    everything = list(dict.fromkeys(p for stage in stages for p in stage.parameters()
                                    if p.requires_grad))
    optimizer = optimizer_of(everything)
    # Neither an evaluation nor a look at the state changes what follows.
    inputs, targets = case.batch(plan.microbatches, me.replica)
    pipe.evaluate(inputs if me.needs_inputs else None, targets if me.needs_targets else None)
    if pipe.optimizer is not None:
        pipe.state_dict()
    worst = 0.0
    for step in range(STEPS):
        batches = [case.batch(plan.microbatches, replica, step) for replica in range(plan.replicas)]
        inputs, targets = batches[me.replica]
        before = torch.get_rng_state()
        losses = pipe.step(inputs if me.needs_inputs else None,
                           targets if me.needs_targets else None, SCALE)
        assert torch.equal(before, torch.get_rng_state()), "the generator's state has moved"
        optimizer.zero_grad()
        expected = one_process(stages, case.loss, batches, SCALE, step)
        if max_norm is not None:
            norm = nn.utils.clip_grad_norm_(everything, max_norm)
            worst = max(worst, difference(pipe.grad_norm, norm))
        optimizer.step()
        for m, loss in enumerate(losses):
            if loss is not None:
                worst = max(worst, difference(loss, expected[me.replica, m]))
        total = pipe.total(losses)
        worst = max(worst, abs(total / sum(v.item() for v in expected.values()) - 1))
    for key, part in parts.items():
        wanted = dict(stages[key.stage].state_dict())
        assert list(wanted) == list(part.state_dict())
        for what, got in part.state_dict().items():
            worst = max(worst, difference(got.double(), wanted[what].double()))
    pipe.close()
    return worst


class Stages(unittest.TestCase):
    def check(self, name: str):
        for way in CASES[name].plans:
            with self.subTest(plan=way):
                plan = pipec.compile(**PLANS[way], **CASES[name].of_plan)
                for rank, worst in enumerate(pool_of(plan.devices * plan.replicas).run(
                        train, plan.bytes, name)):
                    self.assertLessEqual(worst, CASES[name].error, f"rank {rank}")


for _name in CASES:
    setattr(Stages, "test_" + _name.replace(" ", "_"),
            lambda self, name=_name: self.check(name))


def tearDownModule():
    close_all()


if __name__ == "__main__":
    unittest.main()
