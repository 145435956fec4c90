"""What a pipeline offers beside its steps: evaluation, checkpoints, autocast, compiled stages."""

from __future__ import annotations

import copy
import tempfile
import unittest

import torch
import torch.distributed.checkpoint as dcp
from torch import nn

import pipec
import pipec.torch
from models import (SEED, WIDTH, TextStage, difference, gradients_of, one_process, text_batch,
                    text_loss)
from pool import close_all, pool_of

SCALE = 1 / 64


def evaluate(rank: int, data: bytes) -> float:
    torch.set_default_dtype(torch.float64)
    plan = pipec.Plan(data)
    me = pipec.torch.place(plan)
    parts = {key: TextStage(key.stage, plan.stages, dropout=0.5) for key in me.stages}
    pipe = pipec.torch.Pipeline(plan, parts, loss=text_loss)
    inputs, targets = text_batch(plan.microbatches, me.replica)
    arguments = (inputs if me.needs_inputs else None, targets if me.needs_targets else None, SCALE)
    losses = pipe.evaluate(*arguments)
    assert all(part.training for part in parts.values())
    assert all(p.grad is None for part in parts.values() for p in part.parameters())
    stages = [TextStage(stage, plan.stages).eval() for stage in range(plan.stages)]
    with torch.no_grad():
        expected = one_process(stages, text_loss, [(inputs, targets)], SCALE)
    again = pipe.step(*arguments)  # an evaluation leaves a pipeline ready for a step
    pipe.close()
    worst = [difference(loss, expected[0, m]) for m, loss in enumerate(losses) if loss is not None]
    moved = [difference(a, b) for a, b in zip(losses, again) if a is not None]
    assert all(moved), "dropout was on in the evaluation, or off in the step"
    return max(worst, default=0.0)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down, self.dropout = (nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH),
                                            nn.Dropout(0.1))

    def forward(self, x):
        return x + self.dropout(self.down(torch.relu(self.up(x))))


def model_of_blocks() -> nn.Sequential:
    torch.manual_seed(5)
    return nn.Sequential(nn.Embedding(61, WIDTH), *[Block() for _ in range(6)],
                         nn.Linear(WIDTH, 61))


def resume(rank: int, data: bytes, folder: str, steps: range) -> dict:
    """Some steps; from what is in the folder, if they are not the first. Returns parameters."""
    torch.set_default_dtype(torch.float64)
    plan = pipec.Plan(data)
    me = pipec.torch.place(plan)
    model = model_of_blocks()
    if steps[0] > 0:
        for p in model.parameters():  # what is loaded must not be there before
            p.data.zero_()
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0  # its masks are those of stages, which are others
    parts = {key: pipec.torch.cut(model, key.stage, plan.stages) for key in me.stages}
    optimizer = torch.optim.AdamW([p for part in parts.values() for p in part.parameters()], lr=1e-2)
    pipe = pipec.torch.Pipeline(plan, parts, loss=text_loss, optimizer=optimizer, max_norm=1.0)
    if steps[0] > 0:
        state = pipe.state_dict()
        dcp.load(state, checkpoint_id=folder)
        pipe.load_state_dict(state)
        assert pipe.steps == steps[0], pipe.steps
    for step in steps:
        # The same batch whatever the number of replicas.
        share = plan.microbatches
        inputs, targets = text_batch(share * plan.replicas, 0, step)
        mine = slice(me.replica * share, (me.replica + 1) * share)
        pipe.step(inputs[mine] if me.needs_inputs else None,
                  targets[mine] if me.needs_targets else None, SCALE)
    dcp.save(pipe.state_dict(), checkpoint_id=folder)
    pipe.close()
    return {name: p.detach() for part in parts.values() for name, p in part.named_parameters()}


def compiled_stages(rank: int, data: bytes, in_place: bool) -> float:
    """The worst relative error of a gradient of compiled stages, in fp32."""
    torch.set_default_dtype(torch.float32)
    plan = pipec.Plan(data)
    me = pipec.torch.place(plan)
    plain = [TextStage(stage, plan.stages) for stage in range(plan.stages)]
    parts = {}
    for key in me.stages:
        part = TextStage(key.stage, plan.stages)
        if in_place:
            part.compile(fullgraph=True)
        parts[key] = part if in_place else torch.compile(part, fullgraph=True)
    for module in [m for part in [*plain, *parts.values()] for m in part.modules()]:
        if isinstance(module, nn.Dropout):
            module.p = 0.0  # compiled ones draw other masks
    pipe = pipec.torch.Pipeline(plan, parts, loss=text_loss, debug=True)
    worst = 0.0
    for step in range(2):
        inputs, targets = text_batch(plan.microbatches, me.replica, step)
        pipe.step(inputs if me.needs_inputs else None, targets if me.needs_targets else None, SCALE)
        for stage in plain:
            stage.zero_grad()
        one_process(plain, text_loss, [(inputs, targets)], SCALE, step)
        for key, part in parts.items():
            expected = gradients_of(plain[key.stage])
            for name, got in gradients_of(part).items():
                worst = max(worst, difference(got, expected[name.removeprefix("_orig_mod.")]))
    pipe.close()
    return worst


def autocast(rank: int, data: bytes) -> float:
    """The worst difference from one process, both in bfloat16 autocast with fp32 weights."""
    torch.set_default_dtype(torch.float32)
    plan = pipec.Plan(data)
    me = pipec.torch.place(plan)
    parts = {key: TextStage(key.stage, plan.stages) for key in me.stages}
    optimizer = torch.optim.SGD([p for part in parts.values() for p in part.parameters()], lr=0.1)
    pipe = pipec.torch.Pipeline(plan, parts, loss=text_loss, optimizer=optimizer, seed=SEED,
                                debug=True)
    stages = [TextStage(stage, plan.stages) for stage in range(plan.stages)]
    reference = torch.optim.SGD([p for stage in stages for p in stage.parameters()], lr=0.1)
    worst = 0.0
    batches = [text_batch(plan.microbatches, me.replica, step) for step in range(2)]
    with torch.autocast("cpu", torch.bfloat16):  # one region, in which weights change
        for inputs, targets in batches:
            losses = pipe.step(inputs if me.needs_inputs else None,
                               targets if me.needs_targets else None, SCALE)
    for step, (inputs, targets) in enumerate(batches):
        reference.zero_grad()
        for m, (x, target) in enumerate(zip(inputs, targets)):
            with torch.autocast("cpu", torch.bfloat16):
                for number, stage in enumerate(stages):
                    torch.manual_seed(pipec.torch.micro_seed(SEED, step, number, m))
                    x = stage(x)
                loss = text_loss(x, target) * SCALE
            loss.backward()
            if step == 1 and losses[m] is not None:
                worst = max(worst, difference(losses[m], loss.detach()))
        reference.step()
    for key, part in parts.items():
        expected = gradients_of(stages[key.stage])
        for name, got in gradients_of(part).items():
            worst = max(worst, difference(got, expected[name]))
    pipe.close()
    return worst


class Scaled(TextStage):
    """Changes a named argument in place; has a parameter that is never used."""

    def __init__(self, stage, stages):
        super().__init__(stage, stages)
        self.idle = nn.Parameter(torch.ones(3))

    def forward(self, x, gain):
        return super().forward(x) * gain.mul_(2)


class OneProcess(unittest.TestCase):
    """Two stages on one device, without process groups."""

    def setUp(self):
        torch.set_default_dtype(torch.float64)
        self.plan = pipec.compile(scheme="interleaved", devices=1, microbatches=2, passes="mario")
        self.inputs, self.targets = text_batch(2, 0)

    def pipe(self):
        parts = {stage: Scaled(stage, 2) for stage in range(2)}
        optimizer = torch.optim.AdamW([p for part in parts.values() for p in part.parameters()])
        return pipec.torch.Pipeline(self.plan, parts, loss=text_loss, optimizer=optimizer, seed=SEED)

    def step(self, pipe):
        gains = [dict(gain=torch.tensor(1.5)) for _ in range(2)]
        losses = pipe.step(self.inputs, self.targets, SCALE, kwargs=gains)
        self.assertEqual([g["gain"].item() for g in gains], [1.5, 1.5])
        return losses

    def test_named_arguments_stay(self):
        with self.assertWarnsRegex(UserWarning, "stage 0 changes its input in place"):
            losses = self.step(self.pipe())
        stages = [Scaled(stage, 2) for stage in range(2)]
        for micro, (x, target) in enumerate(zip(self.inputs, self.targets)):
            for number, stage in enumerate(stages):
                torch.manual_seed(pipec.torch.micro_seed(SEED, 0, number, micro))
                x = stage(x, torch.tensor(1.5))
            self.assertEqual(losses[micro].item(), (text_loss(x, target) * SCALE).item())

    def test_state(self):
        """Saved before the first step, and after it: what follows is the same."""
        def train(saves: int) -> list[float]:
            pipe, losses = self.pipe(), []
            for step in range(3):
                if step < saves:
                    state = {part: dict(of) if isinstance(of, dict) else of
                             for part, of in pipe.state_dict().items()}
                    self.assertEqual(bool(pipe.optimizer.state), step > 0)
                    state = copy.deepcopy(state)
                    pipe = self.pipe()
                    pipe.load_state_dict(state)
                losses += [loss.item() for loss in self.step(pipe)]
            return losses

        expected = train(0)
        for saves in (1, 2, 3):
            self.assertEqual(train(saves), expected)


class Offers(unittest.TestCase):
    def test_evaluation(self):
        for scheme in ("1f1b", "zb-v", "chimera"):
            for p2p in ("async", "blocking"):
                with self.subTest(scheme=scheme, p2p=p2p):
                    plan = pipec.compile(scheme=scheme, devices=2, microbatches=4, p2p=p2p)
                    self.assertEqual(pool_of(2).run(evaluate, plan.bytes), [0.0, 0.0])

    def test_checkpoints_move_between_plans(self):
        """Three steps of one plan, and one step each of three plans, end with the same weights."""
        plans = [dict(scheme="zb-v", devices=2, microbatches=4),
                 dict(scheme="1f1b", devices=2, microbatches=2, dp=2),
                 dict(scheme="interleaved", devices=2, microbatches=4, passes="mario")]
        plans = [pipec.compile(**plan) for plan in plans]
        with tempfile.TemporaryDirectory() as at_once, tempfile.TemporaryDirectory() as in_turn:
            expected: dict = {}
            for part in pool_of(2).run(resume, plans[0].bytes, at_once, range(3)):
                expected |= part
            for step, plan in enumerate(plans):
                got: dict = {}
                for part in pool_of(plan.devices * plan.replicas).run(
                        resume, plan.bytes, in_turn, range(step, step + 1)):
                    got |= part
        self.assertEqual(got.keys(), expected.keys())
        for name in expected:
            self.assertLess(difference(got[name], expected[name]), 1e-12, name)

    def test_compiled_stages(self):
        for options in (dict(scheme="1f1b"), dict(scheme="zb-v"),
                        dict(scheme="1f1b", passes="mario")):
            for in_place in (False, True):
                with self.subTest(**options, in_place=in_place):
                    plan = pipec.compile(devices=2, microbatches=2, **options)
                    for worst in pool_of(2).run(compiled_stages, plan.bytes, in_place):
                        self.assertLess(worst, 1e-5)  # fused kernels round otherwise, in fp32

    def test_autocast(self):
        """With recomputation and STEPs; a backward in halves rounds where a whole one does."""
        for options in (dict(scheme="1f1b"), dict(scheme="interleaved", passes="mario"),
                        dict(scheme="zb-v")):
            with self.subTest(**options):
                plan = pipec.compile(devices=2, microbatches=4, **options)
                self.assertEqual(pool_of(2).run(autocast, plan.bytes), [0.0, 0.0])


def tearDownModule():
    close_all()


if __name__ == "__main__":
    unittest.main()
