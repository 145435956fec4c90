"""Split backwards of compiled stages: right gradients, no graph break, no second compilation."""

import os
import unittest
import warnings

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from split_modules import (CONVOLUTIONS, MODULES, WIDTH, Block, Splitter, distance, halves, hidden,
                           leaves, roots, twins, whole)

warnings.filterwarnings("ignore")
# Every module takes two minutes.
EVERYTHING = os.environ.get("PIPEC_TEST_ALL") == "1"
SAMPLE = ("a layer three times", "first stage", "frozen", "Conv2d")
# What torch.compile cannot trace as one graph, split or not.
NOT_TRACED = {"reentrant checkpoint", "a layer three times, once in a reentrant checkpoint",
              "custom function", "weight_norm by hook", "LSTM", "weight_norm", "spectral_norm"}


class Compiled(unittest.TestCase):
    def setUp(self):
        torch._dynamo.reset()
        torch._dynamo.utils.counters.clear()

    def compare(self, make, make_input, tolerance, backend="aot_eager"):
        one, other = twins(make)
        inputs = [make_input(m) for m in range(3)]
        expected = whole(one, inputs, call=torch.compile(one, fullgraph=True, backend=backend))
        splitter = Splitter(torch.compile(other, fullgraph=True, backend=backend))
        self.measure(splitter, inputs[0])
        graphs = torch._dynamo.utils.counters["stats"]["unique_graphs"]
        found = halves(other, inputs, splitter=splitter)
        self.assertLessEqual(distance(found, expected), tolerance)
        self.assertFalse(torch._dynamo.utils.counters["graph_break"])
        self.assertLessEqual(torch._dynamo.utils.counters["stats"]["unique_graphs"], graphs + 1)
        return splitter

    def measure(self, splitter, x):
        """With the buffers as they were afterwards, as it is run in a pipeline."""
        buffers = [b.clone() for b in splitter.module.buffers()]
        splitter.measure(*leaves([x]))
        for b, old in zip(splitter.module.buffers(), buffers):
            b.copy_(old)

    def test_modules(self):
        for name, (make, make_input) in {**MODULES, **CONVOLUTIONS}.items():
            if name in SAMPLE or EVERYTHING and name not in NOT_TRACED:
                with self.subTest(name):
                    self.setUp()
                    self.compare(make, make_input, 1e-12)

    def test_inductor(self):
        for name in ("dropout", "checkpoint"):
            with self.subTest(name):
                self.setUp()
                self.compare(*MODULES[name], 1e-12, "inductor")

    def test_what_is_split_is_split(self):
        stage = nn.Sequential(Block(), Block()).double()
        stage.compile(fullgraph=True, backend="aot_eager")
        splitter = Splitter(stage)
        splitter.measure(hidden(0))
        splitter.input_half(0, *roots(splitter.forward(0, *leaves([hidden(0)]))))
        self.assertEqual([stage[0].up.weight.grad, stage[1].down.bias.grad], [None, None])
        self.assertIsNotNone(stage[0].norm.weight.grad)
        self.assertEqual(len(splitter._records[0].queue), 4)
        self.assertEqual(splitter.work_bytes(0), 2 * 6 * hidden(0).numel() * 8)
        splitter.weight_half(0)
        self.assertIsNotNone(stage[0].up.weight.grad)

    def test_blocks_compiled_one_by_one(self):
        one, other = twins(lambda: nn.Sequential(Block(), Block(), nn.Linear(WIDTH, WIDTH)))
        for block in other[:2]:
            block.compile(fullgraph=True, backend="aot_eager")
        splitter = Splitter(other)
        self.assertTrue(splitter.compiled)
        splitter.measure(hidden(0))
        inputs = [hidden(m) for m in range(3)]
        self.assertLess(distance(halves(other, inputs, splitter=splitter), whole(one, inputs)),
                        1e-12)
        self.assertEqual(torch._dynamo.utils.counters["stats"]["unique_graphs"], 1)  # for both

    def test_a_compiled_block_in_a_checkpoint(self):
        class Stage(nn.Module):
            def __init__(self, reentrant):
                super().__init__()
                self.block, self.last, self.reentrant = Block(), nn.Linear(WIDTH, WIDTH), reentrant

            def forward(self, x):
                return self.last(checkpoint(self.block, x, use_reentrant=self.reentrant))

        for reentrant in (False, True):
            with self.subTest(reentrant=reentrant):
                one, other = twins(lambda: Stage(reentrant))
                other.block.compile(fullgraph=True, backend="aot_eager")
                splitter = Splitter(other)
                splitter.measure(hidden(0))
                self.assertEqual(splitter.splittable, ["last.weight", "last.bias"])
                inputs = [hidden(m) for m in range(3)]
                self.assertLess(distance(halves(other, inputs, splitter=splitter),
                                         whole(one, inputs)), 1e-12)

    def test_lengths_that_differ(self):
        one, other = twins(lambda: nn.Sequential(Block(), Block()))
        other.compile(fullgraph=True, backend="aot_eager")
        splitter = Splitter(other)
        inputs = [hidden(0), hidden(1)[:, :3], hidden(2)[:2]]
        for x in inputs[:2]:  # the third is not measured, and whole
            splitter.measure(x)
        found = halves(other, inputs, splitter=splitter)
        self.assertLess(distance(found, whole(one, inputs)), 1e-12)

    def test_autocast(self):
        class Stage(nn.Module):
            def __init__(self):
                super().__init__()
                self.block, self.last = Block(), nn.Linear(WIDTH, WIDTH)

            def forward(self, x):
                with torch.autocast("cpu", torch.bfloat16):
                    return self.last(self.block(x))

        pairs = []
        for _ in range(2):
            torch.manual_seed(1)
            pairs.append(Stage())
        one, other = pairs
        inputs = [hidden(m).float() for m in range(2)]
        expected = whole(one, inputs, call=torch.compile(one, fullgraph=True, backend="aot_eager"))
        splitter = Splitter(torch.compile(other, fullgraph=True, backend="aot_eager"))
        splitter.measure(inputs[0])
        self.assertEqual(distance(halves(other, inputs, splitter=splitter), expected), 0)
        self.assertFalse(torch._dynamo.utils.counters["graph_break"])

    def test_recomputed_forward(self):
        stage, _ = twins(MODULES["dropout"][0])
        stage.compile(fullgraph=True, backend="inductor")
        splitter = Splitter(stage)
        splitter.measure(hidden(0))
        x, = leaves([hidden(0)])
        torch.manual_seed(0)
        with torch.no_grad():
            first = stage(x)
        torch.manual_seed(0)
        self.assertTrue(torch.equal(splitter.forward(0, x), first))

    def test_hooks_of_parameters_see_the_gradient(self):
        stage = Block().double()
        stage.compile(fullgraph=True, backend="aot_eager")
        seen = {}
        for name, p in stage.named_parameters():
            p.register_post_accumulate_grad_hook(lambda p, name=name: seen.setdefault(
                name, []).append(p.grad is not None))
        splitter = Splitter(stage)
        splitter.measure(hidden(0))
        splitter.input_half(0, *roots(splitter.forward(0, *leaves([hidden(0)]))))
        self.assertEqual(sorted(seen), sorted(splitter.whole))
        splitter.weight_half(0)
        self.assertEqual(seen, {name: [True] for name, _ in stage.named_parameters()})


torch.set_num_threads(1)  # of two cores that tests share

if __name__ == "__main__":
    unittest.main()
