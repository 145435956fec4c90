"""Training over a batch-ramp, beside PyTorch's training in one process on the same micro-batches."""

from __future__ import annotations

import json
import os
import tempfile
import unittest

import torch

import pipec
import pipec.torch
from models import SEED, TextStage, difference, one_process, text_batch, text_loss
from pool import close_all, pool_of

SCALE = 1 / 64
RAMP, SIZES = "4@0,6@2,2@4,6@5", (4, 4, 6, 6, 2, 6)
MOST_ERROR = 1e-12  # where copies of a stage add up in another order


def stages_of(plan, keys) -> dict:
    return {key: TextStage(getattr(key, "stage", key), plan.stages) for key in keys}


def optimizer_of(parts) -> torch.optim.Optimizer:
    return torch.optim.AdamW([p for part in parts.values() for p in part.parameters()], lr=1e-2)


def pipe_of(plan, me) -> pipec.torch.Pipeline:
    parts = stages_of(plan, me.stages)
    return pipec.torch.Pipeline(plan, parts, loss=text_loss, optimizer=optimizer_of(parts),
                                seed=SEED, debug=True)


def batch_of(me, micros: int, step: int) -> tuple:
    inputs, targets = text_batch(micros, me.replica, step)
    return inputs if me.needs_inputs else None, targets if me.needs_targets else None


def train(rank: int, data: bytes, resumes: int) -> float:
    """The worst difference of a rank's losses and weights. `resumes`: before this step."""
    torch.set_default_dtype(torch.float64)
    plan = pipec.Plan(data)
    me = pipec.torch.place(plan)
    stages = stages_of(plan, range(plan.stages))
    optimizer = optimizer_of(stages)
    pipe, worst = pipe_of(plan, me), 0.0
    for step, micros in enumerate(SIZES):
        if step == resumes:
            state = pipe.state_dict()
            pipe.close()
            pipe = pipe_of(plan, me)
            pipe.load_state_dict(state)
        assert pipe.microbatches == micros, (step, pipe.microbatches)
        losses = pipe.step(*batch_of(me, micros, step), SCALE)
        optimizer.zero_grad()
        batches = [text_batch(micros, replica, step) for replica in range(plan.replicas)]
        expected = one_process(list(stages.values()), text_loss, batches, SCALE, step)
        optimizer.step()
        pipes = plan.pipes_of(plan.routine_of(step))
        held = [m for m, loss in enumerate(losses) if loss is not None]
        assert held == [m for m in range(micros) if plan.pipes[pipes[m]][-1] == me.device], held
        worst = max([worst, *(difference(losses[m], expected[me.replica, m]) for m in held)])
        if step == 3:
            pipe.evaluate(*batch_of(me, plan.microbatches, 9), SCALE)
    pipe.close()
    for key, part in pipe.parts.items():
        wanted = dict(stages[key.stage].named_parameters())
        for name, p in part.named_parameters():
            worst = max(worst, difference(p.detach(), wanted[name].detach()))
    return worst


def traced(rank: int, data: bytes, path: str) -> None:
    torch.set_default_dtype(torch.float64)
    plan = pipec.Plan(data)
    me = pipec.torch.place(plan)
    pipe = pipe_of(plan, me)
    with pipe.trace(path):
        for step, micros in enumerate(SIZES):
            pipe.step(*batch_of(me, micros, step), SCALE)
    pipe.close()


class Ramp(unittest.TestCase):
    def test_training(self):
        """Each plan is resumed before another step. Of chimera's micro-batches on four devices the
        second one has another pipe in a step of two."""
        for resumes, options in enumerate((dict(scheme="1f1b"), dict(scheme="zb-v"),
                                           dict(scheme="zb-h1", p2p="blocking"),
                                           dict(scheme="interleaved", passes="mario"),
                                           dict(scheme="1f1b", passes="mario,split-backward"),
                                           dict(scheme="chimera", devices=4,
                                                passes="split-backward"),
                                           dict(scheme="1f1b", dp=2))):
            with self.subTest(**options):
                plan = pipec.compile(**{"devices": 2, "batch_ramp": RAMP, **options})
                for worst in pool_of(plan.devices * plan.replicas).run(train, plan.bytes, resumes):
                    self.assertLessEqual(
                        worst, MOST_ERROR if plan.replicas * len(plan.pipes) > 1 else 0.0)

    def test_number_of_inputs(self):
        torch.set_default_dtype(torch.float64)
        plan = pipec.compile(scheme="interleaved", devices=1, batch_ramp="1@0,2@1")
        pipe = pipe_of(plan, pipec.torch.place(plan))
        one, two = text_batch(1, 0), text_batch(2, 0)

        def check(text: str, call, *arguments) -> None:
            with self.assertRaisesRegex(pipec.torch.PipelineError, text):
                call(*arguments)

        check("inputs: 2 micro-batches .1 after 0 steps, by batch-ramp 1@0,2@1", pipe.step, *two)
        check("inputs: None .a list of 1 micro-batches", pipe.step)
        pipe.step(*one)
        check("inputs: 1 micro-batches .2 after 1 steps", pipe.step, *one)
        check("inputs: 1 micro-batches .the plan's 2", pipe.evaluate, *one)
        pipe.step(*two)
        self.assertEqual(pipe.steps, 2)
        pipe.close()

    def test_trace(self):
        """Events of each size under its name, which `why` takes."""
        plan = pipec.compile(scheme="chimera", devices=2, batch_ramp=RAMP, costs="f=1ms,b=2ms")
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "trace.json")
            pool_of(2).run(traced, plan.bytes, path)
            with open(path) as file:
                events = [e for e in json.load(file)["traceEvents"] if e["ph"] == "X"]
            for routine in ("step", "step-4", "step-2"):
                why = plan.why(path, routine=routine)
                self.assertGreater(why["measured"]["makespan"], 0)
        for number, micros in enumerate(SIZES, 1):
            args = [e["args"] for e in events if e["args"]["step"] == number]
            routine = plan.routine_of(number - 1)
            self.assertEqual({a.get("routine", "step") for a in args}, {routine})
            self.assertEqual(len(args), sum(map(len, plan.lists(routine))))

    def test_compare(self):
        """Steps of the size that is the next one's turn."""
        torch.set_default_dtype(torch.float64)
        plan = pipec.compile(scheme="interleaved", devices=1, batch_ramp="1@0,8@9", costs="f=1,b=2")
        with pipe_of(plan, pipec.torch.place(plan)) as pipe:
            comparison = pipec.torch.compare(pipe, lambda: pipe.step(*text_batch(1, 0)), steps=2)
        self.assertEqual([kind["count"] for kind in comparison.why["measured"]["kinds"]
                          if kind["op"] == "FW"], [2])


def tearDownModule():
    close_all()


if __name__ == "__main__":
    unittest.main()
