"""What a profile measures, what plans made of it predict, and traces of their runs."""

from __future__ import annotations

import json
import os
import tempfile
import time
import unittest

import torch
from torch import nn

import pipec
import pipec.torch
from models import SEED, TextStage, image_batch, image_loss, text_batch, text_loss
from pool import close_all, pool_of

SECONDS = 0.03


class Slow(TextStage):
    """Stage s sleeps (s + 1) * SECONDS in each forward."""

    def __init__(self, stage, stages):
        super().__init__(stage, stages)
        self.seconds = (stage + 1) * SECONDS

    def forward(self, x):
        time.sleep(self.seconds)
        return super().forward(x)


class Images(nn.Module):
    """A convolution with statistics that each forward moves."""

    def __init__(self, stage, stages):
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3 if stage == 0 else 8, 8, 3, padding=1), nn.BatchNorm2d(8)
        self.head = nn.Linear(8, 10) if stage == stages - 1 else None

    def forward(self, x):
        x = self.norm(self.conv(x))
        return x if self.head is None else self.head(x.mean((2, 3)))


def profiled(make, stages, batch=text_batch, loss=text_loss, **options):
    modules = [make(s, stages) for s in range(stages)]
    inputs, targets = batch(1, 0)
    return modules, pipec.torch.profile(modules, inputs[0], loss=loss, target=targets[0],
                                        repeats=2, **options)


def traced(rank: int, data: bytes, path: str, costs) -> tuple:
    plan = pipec.Plan(data)
    me = pipec.torch.place(plan)
    parts = {key: Slow(key.stage, plan.stages) for key in me.stages}
    optimizer = torch.optim.AdamW([p for part in parts.values() for p in part.parameters()])
    pipe = pipec.torch.Pipeline(plan, parts, loss=text_loss, optimizer=optimizer, seed=SEED)
    inputs, targets = text_batch(plan.microbatches, 0)
    with pipe.trace(path):
        for _ in range(3):
            pipe.step(inputs, targets)
    comparison = pipec.torch.compare(pipe, lambda: pipe.step(inputs, targets), costs=costs, steps=2)
    pipe.close()
    return comparison


def measured_costs(rank: int):
    _, costs = profiled(TextStage, 2)
    return costs


class Profile(unittest.TestCase):
    def test_modules_stay(self):
        before = torch.get_rng_state()
        torch.manual_seed(1)
        expected = [{name: t.clone() for name, t in Images(s, 2).state_dict().items()}
                    for s in range(2)]
        torch.manual_seed(1)
        state = torch.get_rng_state()
        modules = [Images(s, 2) for s in range(2)]
        kept = torch.ones_like(modules[0].conv.weight)
        modules[0].conv.weight.grad = kept
        state = torch.get_rng_state()
        inputs, targets = image_batch(1, 0)
        pipec.torch.profile(modules, inputs[0], loss=image_loss, target=targets[0], repeats=1)
        self.assertTrue(torch.equal(state, torch.get_rng_state()))
        torch.set_rng_state(before)
        for module, values in zip(modules, expected):
            for name, value in module.state_dict().items():
                self.assertTrue(torch.equal(value, values[name]), name)
            self.assertIs(type(module.conv), nn.Conv2d)
        self.assertIs(modules[0].conv.weight.grad, kept)
        self.assertTrue(torch.equal(kept, torch.ones_like(kept)))
        self.assertIsNone(modules[1].conv.weight.grad)

    def test_bytes(self):
        """Those that can be counted by hand."""
        modules, costs = profiled(TextStage, 3)
        act = 2 * 12 * 32 * 4
        self.assertEqual(costs.of["act"], [act, act, 0])
        self.assertEqual(costs.of["grad"], [act, act, 0])
        self.assertEqual(costs.of["input"], [0, act, act])
        for stage, module in enumerate(modules):
            parameters = list(module.parameters())
            elements = sum(p.numel() for p in parameters)
            # Each also has its number of steps.
            self.assertEqual(costs.of["weights"][stage], 4 * 4 * elements + 4 * len(parameters))
        # x and dy of both linear layers; dy of the second one is masked by the dropout, not kept.
        self.assertEqual(costs.of["work"][1], act * (1 + 2 + 2 + 1))
        for key in ("stash", "transient"):
            for value in costs.of[key]:
                self.assertTrue(act < value < 20 * act, (key, value))

    def test_seconds_are_of_stages(self):
        """Whatever V is, a device is busy for the sum of its stages' times."""
        _, costs = profiled(Slow, 4)
        for stage, seconds in enumerate(costs.of["f"]):
            self.assertTrue(0 <= seconds - (stage + 1) * SECONDS < SECONDS, costs.of["f"])
        of = costs.of
        for devices, scheme in ((4, "1f1b"), (2, "interleaved"), (2, "zb-v")):
            plan = pipec.compile(scheme=scheme, devices=devices, microbatches=4, costs=costs)
            backward = of["b"]
            if scheme == "zb-v":
                backward = [bi + bw for bi, bw in zip(of["bi"], of["bw"])]
            for text in (None, costs.text(4 // devices)):
                busy = [device["busy"] for device in plan.simulate(costs=text)["devices"]]
                for device in range(devices):
                    expected = sum(4 * (of["f"][s] + backward[s]) + of["step"][s]
                                   for s in range(4) if plan.pipes[0][s] == device)
                    self.assertAlmostEqual(busy[device], expected, delta=1e-6 * expected)
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "stages.json")
            costs.save(path)
            again = pipec.compile(scheme="1f1b", devices=4, microbatches=4, costs=path)
        self.assertEqual(again.costs, pipec.compile(scheme="1f1b", devices=4, microbatches=4,
                                                    costs=costs).costs)

    def test_messages(self):
        """Two ranks measure messages, and agree."""
        first, second = pool_of(2).run(measured_costs)
        self.assertEqual(first, second)
        for key, least, most in (("latency", 1e-6, 0.1), ("post", 1e-6, 0.1),
                                 ("bandwidth", 1e6, 1e12)):
            self.assertTrue(all(least < value < most for value in first.of[key]), first.of[key])

    def test_trace(self):
        _, costs = profiled(Slow, 2)
        plan = pipec.compile(scheme="1f1b", devices=2, microbatches=4, costs=costs)
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "trace.json")
            comparison, other = pool_of(2).run(traced, plan.bytes, path, costs)
            why = plan.why(path)
            with open(path) as file:
                events = [e for e in json.load(file)["traceEvents"] if e["ph"] == "X"]
        self.assertEqual(len(events), 3 * sum(map(len, plan.lists())))
        for event in events:
            if event["cat"] == "FW":
                stage = event["pid"]
                self.assertGreaterEqual(event["dur"], (stage + 1) * SECONDS * 1e6)
        kinds = {kind["op"]: kind for kind in why["measured"]["kinds"]}
        self.assertGreaterEqual(kinds["FW"]["measured"], 1.5 * SECONDS)
        self.assertLess(kinds["FW"]["predicted"], 2 * SECONDS)
        self.assertIn("critical_path", why)
        # The second device has 4 forwards of 2 * SECONDS, after one of the first.
        self.assertGreaterEqual(why["measured"]["makespan"], 9 * SECONDS)
        self.assertGreaterEqual(why["makespan"], 9 * SECONDS)
        self.assertEqual(comparison, other)
        self.assertGreaterEqual(comparison.seconds, 9 * SECONDS)
        self.assertEqual(comparison.predicted_bytes,
                         [device["peak_bytes"] for device in plan.simulate()["devices"]])
        for most, peak in zip(comparison.predicted_bytes, comparison.bytes):
            self.assertTrue(most / 1.3 <= peak <= most, comparison)
        print(comparison, flush=True)

    def test_hostile(self):
        stages = [TextStage(s, 2) for s in range(2)]
        x, target = torch.zeros(2, 12, dtype=torch.long), torch.zeros(2, 12, dtype=torch.long)
        for parts, options, error in (
                (stages, {}, ValueError), (None, {"loss": text_loss}, TypeError),
                ({1: stages[1]}, {"loss": text_loss}, ValueError),
                ([], {"loss": text_loss}, TypeError),
                ([*stages, None], {"loss": text_loss}, TypeError),
                (stages, {"loss": text_loss, "repeats": 0}, ValueError)):
            with self.assertRaisesRegex(error, r"^[a-z]+: "):
                pipec.torch.profile(parts, x, target=target, **options)


def tearDownModule():
    close_all()


if __name__ == "__main__":
    torch.set_num_threads(1)
    unittest.main()
