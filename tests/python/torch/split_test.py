"""Split backwards of one stage: the gradients of a whole backward, less memory in between."""

import copy
import gc
import io
import pickle
import threading
import unittest
import weakref

import torch
from torch import nn
from torch.nn import functional as F

from split_modules import (CONVOLUTIONS, MODULES, TOKENS, WIDTH, Block, Splitter, distance, halves,
                           hidden, leaves, roots, tokens, twins, whole)

ORDERS = (None, [("I", 0), ("W", 0), ("I", 1), ("W", 1), ("I", 2), ("W", 2)],
          [("I", 2), ("I", 0), ("W", 2), ("I", 1), ("W", 0), ("W", 1)])
# A reentrant checkpoint runs a backward of its own and adds to .grad in the midst of it.
OTHER_ORDER = "a layer three times, once in a reentrant checkpoint"


class Modules(unittest.TestCase):
    def compare(self, make, inputs, tolerance, needs=True, order=None):
        one, other = twins(make)
        expected = whole(one, inputs, needs)
        if order:  # the same order of additions to .grad, and of results
            one, _ = twins(make)
            expected = in_order(one, inputs, needs, [m for half, m in order if half == "I"])
        found = halves(other, inputs, needs, order)
        self.assertLessEqual(distance(found, expected), tolerance)

    def test_gradients_have_the_bits_of_a_whole_backward(self):
        for name, (make, make_input) in MODULES.items():
            for needs in (True, False):
                with self.subTest(name, needs=needs):
                    self.compare(make, [make_input(m) for m in range(3)],
                                 1e-14 if name == OTHER_ORDER else 0, needs)

    def test_transposed_input(self):
        class Transposed(nn.Module):  # of a size at which the bits of the other product differ
            def __init__(self):
                super().__init__()
                self.layer = nn.Linear(257, 300)

            def forward(self, x):
                return self.layer((2 * x).t())

        self.compare(Transposed, [torch.randn(257, 130, dtype=torch.double)], 0)

    def test_convolutions(self):
        for name, (make, make_input) in CONVOLUTIONS.items():
            for needs in (True, False):
                with self.subTest(name, needs=needs):
                    self.compare(make, [make_input(m) for m in range(3)], 1e-12, needs)

    def test_order_of_halves(self):
        for order in ORDERS[1:]:
            for name in ("dropout", "checkpoint", "alias of a gradient", "frozen"):
                make, make_input = MODULES[name]
                with self.subTest(name, order=order):
                    self.compare(make, [make_input(m) for m in range(3)], 1e-14, order=order)

    def test_whole_backward_of_a_wrapped_stage(self):
        for name, (make, make_input) in {**MODULES, **CONVOLUTIONS}.items():
            with self.subTest(name):
                one, other = twins(make)
                inputs = [make_input(m) for m in range(2)]
                Splitter(other)
                self.assertEqual(distance(whole(other, inputs), whole(one, inputs)), 0)

    def test_whole_backward_of_a_recorded_forward(self):
        one, other = twins(Block)
        x, = leaves([hidden(0)])
        splitter = Splitter(other)
        outputs, gradients = roots(splitter.forward(0, x))
        found = splitter.whole_backward(0, outputs, gradients, [x])
        expected = whole(one, [hidden(0)])
        self.assertEqual(distance(list(found), expected[1:2]), 0)
        self.assertEqual(distance([p.grad for p in other.parameters()], expected[2:]), 0)

    def test_names(self):
        splitter = Splitter(MODULES["frozen"][0]())
        self.assertEqual(splitter.splittable, ["block.down.weight", "last.weight", "last.bias"])
        self.assertEqual(splitter.whole, ["block.norm.weight", "block.norm.bias", "block.up.bias"])
        self.assertEqual(Splitter(MODULES["tied inside"][0]()).whole[0], "embedding.weight")
        self.assertEqual(Splitter(nn.Identity()).splittable, [])
        self.assertEqual(Splitter(MODULES["MultiheadAttention"][0]()).splittable,
                         ["first.weight", "first.bias", "last.weight", "last.bias"])

    def test_a_lost_gradient_is_seen(self):
        one, other = twins(Block)
        splitter = Splitter(other)
        forward = splitter.input_half

        def lossy(key, *args):
            result = forward(key, *args)
            splitter._records[key].queue.pop()
            return result

        splitter.input_half = lossy
        inputs = [hidden(0)]
        self.assertGreater(distance(halves(other, inputs, splitter=splitter), whole(one, inputs)),
                           1e-3)


def in_order(module, inputs, needs, order):
    """As `whole`, with all forwards first and the backwards in this order."""
    kept, results = [], []
    for micro, x in enumerate(inputs):
        x, = leaves([x]) if needs else [x]
        torch.manual_seed(micro)
        kept.append((x, roots(module(x))))
    for micro in order:
        x, (outputs, gradients) = kept[micro]
        torch.autograd.backward(outputs, gradients)
        results += [y.detach() for y in outputs] + [x.grad]
    return results + [p.grad for p in module.parameters()] + list(module.buffers())


class Kept:
    """A tensor that autograd saved."""

    def __init__(self, tensor):
        self.tensor = tensor


class Memory(unittest.TestCase):
    def setUp(self):
        gc.collect()
        gc.disable()
        self.addCleanup(gc.enable)

    def run_input_half(self, splitter, x):
        """Returns bytes that autograd saved in the forward, and those still held after I."""
        saved = []

        def pack(tensor):
            kept = Kept(tensor)
            saved.append(weakref.ref(kept))
            return kept

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda kept: kept.tensor):
            output = splitter.forward(0, x)
        parameters = {p.data_ptr() for p in splitter.module.parameters()}

        def held():
            storages = {k().tensor.untyped_storage().data_ptr(): k().tensor.untyped_storage()
                        for k in saved if k() is not None}
            return sum(s.nbytes() for at, s in storages.items() if at not in parameters)

        before = held()
        splitter.input_half(0, *roots(output))
        del output
        return before, held()

    def test_work_is_the_inputs_and_gradients_of_layers(self):
        stage = nn.Sequential(Block(), Block()).double()
        splitter = Splitter(stage)
        before, after = self.run_input_half(splitter, *leaves([hidden(0)]))
        row = hidden(0).numel() * 8
        # A block's layers: x and dy of up are 1 + 2 rows, those of down 2 + 1; dy of down is also
        # the gradient that came from outside, and what flows along the residual path.
        self.assertEqual(splitter.work_bytes(0), 2 * 6 * row)
        self.assertEqual(after, 0)
        self.assertGreater(before, 1.1 * splitter.work_bytes(0) / 2)
        splitter.weight_half(0)

    def test_shared_inputs_count_once(self):
        class Projections(nn.Module):
            def __init__(self):
                super().__init__()
                self.q, self.k, self.v = (nn.Linear(WIDTH, WIDTH) for _ in range(3))

            def forward(self, x):
                x = torch.tanh(x)
                return torch.tanh(self.q(x)) * self.k(x) * self.v(x)

        splitter = Splitter(Projections().double())
        self.run_input_half(splitter, *leaves([hidden(0)]))
        self.assertEqual(splitter.work_bytes(0), (1 + 3) * hidden(0).numel() * 8)

    def test_nothing_is_left_without_the_garbage_collector(self):
        stage = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH), nn.Tanh()).double()
        seen = []
        stage[0].register_forward_hook(lambda _, args, y: seen.append(weakref.ref(y)))
        splitter = Splitter(stage)
        x, = leaves([hidden(0)])
        outputs, gradients = roots(splitter.forward(0, x))
        splitter.input_half(0, outputs, gradients)
        del outputs, gradients
        self.assertIsNone(seen[0]())  # the graph between the layers is gone, the numbers are not
        record = weakref.ref(splitter._records[0])
        work = [weakref.ref(w.dy) for w in record().queue]
        splitter.weight_half(0)
        self.assertIsNone(record())
        self.assertEqual([w() for w in work], [None, None])

    def test_a_checkpoint_inside_keeps_only_its_input(self):
        for reentrant in (False, True):
            with self.subTest(reentrant=reentrant):
                stage = MODULES["reentrant checkpoint" if reentrant else "checkpoint"][0]().double()
                inside = []
                stage.block.up.register_forward_hook(lambda _, args, y: inside.append(
                    weakref.ref(args[0])))
                splitter = Splitter(stage)
                output = splitter.forward(0, *leaves([hidden(0)]))
                self.assertIsNone(inside[0]())
                splitter.input_half(0, *roots(output))
                splitter.weight_half(0)


class Behaviour(unittest.TestCase):
    def test_hooks_of_parameters_run_once_and_see_the_gradient(self):
        def hooked(module):
            seen = {}
            for name, p in module.named_parameters():
                p.register_hook(lambda g, name=name: seen.setdefault(name, []).append(g.clone()))
                p.register_post_accumulate_grad_hook(lambda p, name=name: seen.setdefault(
                    name, []).append(p.grad.clone()))
            return seen

        for name in ("block", "a layer three times", "a weight of three layers", "tied inside"):
            with self.subTest(name):
                one, other = twins(MODULES[name][0])
                expected, found = hooked(one), hooked(other)
                inputs = [MODULES[name][1](m) for m in range(2)]
                whole(one, inputs)
                halves(other, inputs)
                self.assertEqual(expected.keys(), found.keys())
                for key in expected:
                    self.assertEqual(len(expected[key]), 4)
                    self.assertEqual(distance(found[key], expected[key]), 0, key)

    def test_no_hook_of_a_deferred_parameter_runs_in_the_input_half(self):
        stage = Block().double()
        seen = []
        for name, p in stage.named_parameters():
            p.register_post_accumulate_grad_hook(lambda _, name=name: seen.append(name))
        splitter = Splitter(stage)
        splitter.input_half(0, *roots(splitter.forward(0, hidden(0))))
        self.assertEqual(sorted(seen), sorted(splitter.whole))
        splitter.weight_half(0)
        self.assertEqual(sorted(seen), sorted(splitter.whole + splitter.splittable))

    def test_hooks_of_modules(self):
        def hooked(module):
            seen = []
            for m in (module.up, module.down):
                m.register_forward_pre_hook(lambda _, args: (2 * args[0],))
                m.register_forward_hook(lambda _, args, y: y + 1)
                m.register_full_backward_hook(lambda _, dx, dy: seen.extend((*dx, *dy)))
                m.register_full_backward_pre_hook(lambda _, dy: (3 * dy[0],))
            return seen

        one, other = twins(Block)
        expected, found = hooked(one), hooked(other)
        self.assertEqual(distance(halves(other, [hidden(0)]), whole(one, [hidden(0)])), 0)
        self.assertEqual(distance(found, expected), 0)
        self.assertEqual(len(found), 4)

    def test_gradients_accumulate_in_place(self):
        stage = Block().double()
        splitter = Splitter(stage)
        for micro in range(2):
            splitter.whole_backward(micro, *roots(splitter.forward(micro, hidden(micro))))
            if micro == 0:
                places = [p.grad.data_ptr() for p in stage.parameters()]
        self.assertEqual(places, [p.grad.data_ptr() for p in stage.parameters()])

    def test_autocast(self):
        class Stage(nn.Module):
            def __init__(self):
                super().__init__()
                self.a, self.b, self.c = (nn.Linear(WIDTH, WIDTH) for _ in range(3))
                self.norm, self.conv = nn.LayerNorm(WIDTH), nn.Conv1d(TOKENS, TOKENS, 3, padding=1)

            def forward(self, x):  # x, a leaf, is used twice; a is called twice
                with torch.autocast("cpu", torch.bfloat16):
                    y = self.norm(self.a(x) + self.b(x))
                    y = self.c(self.a(y) + self.conv(y))
                with torch.autocast("cpu", enabled=False):
                    return self.b(y.float())

        pairs = []
        for _ in range(2):
            torch.manual_seed(1)
            pairs.append(Stage())
        inputs = [hidden(m).float() for m in range(3)]
        expected, found = whole(pairs[0], inputs), halves(pairs[1], inputs)
        convolution = [name.startswith("conv") for name, _ in pairs[0].named_parameters()]
        self.assertEqual(distance(found[:6], expected[:6]), 0)
        for f, e, last_bits in zip(found[6:], expected[6:], convolution):
            self.assertLessEqual(distance([f], [e]), 1e-2 if last_bits else 0)

    def test_autocast_region_of_a_step(self):
        pairs = []
        for _ in range(2):
            torch.manual_seed(1)
            pairs.append(nn.Sequential(Block(), Block()))
        one, other = pairs
        splitter = Splitter(other)
        optimizers = [torch.optim.SGD(m.parameters(), 0.5) for m in (one, other)]
        with torch.autocast("cpu", torch.bfloat16):
            for step in range(2):  # a stale copy of the weights would show in the second
                inputs = [hidden(2 * step + m).float() for m in range(2)]
                self.assertEqual(distance(halves(other, inputs, splitter=splitter),
                                          whole(one, inputs)), 0)
                for optimizer in optimizers:
                    optimizer.step()
                    optimizer.zero_grad()
                torch.clear_autocast_cache()
        self.assertEqual(len(splitter._casts), 8)  # one copy, however many micro-batches
        splitter.clear_casts()
        self.assertEqual(len(splitter._casts), 0)

    def test_recomputed_forward(self):
        stage, reference = twins(MODULES["dropout"][0])
        splitter = Splitter(stage)
        x, = leaves([hidden(0)])
        torch.manual_seed(0)
        with torch.no_grad():
            first = stage(x)
        torch.manual_seed(0)
        again = splitter.forward(0, x)
        self.assertTrue(torch.equal(first, again))
        outputs, gradients = roots(again)
        splitter.whole_backward(0, outputs, gradients)
        self.assertEqual(distance([p.grad for p in stage.parameters()],
                                  whole(reference, [hidden(0)])[2:]), 0)

    def test_backward_in_another_thread(self):
        for name in ("block", "reentrant checkpoint", "checkpoint"):
            with self.subTest(name):
                one, other = twins(MODULES[name][0])
                splitter = Splitter(other)
                x, = leaves([hidden(0)])
                torch.manual_seed(0)
                outputs, gradients = roots(splitter.forward(0, x))
                backward = torch.autograd.backward

                def elsewhere(*args):  # as the engine does for tensors of a GPU
                    thread = threading.Thread(target=backward, args=args)
                    thread.start()
                    thread.join()

                torch.autograd.backward = elsewhere
                try:
                    splitter.whole_backward(0, outputs, gradients)
                finally:
                    torch.autograd.backward = backward
                self.assertEqual(distance([p.grad for p in other.parameters()],
                                          whole(one, [hidden(0)])[2:]), 0)

    def test_copies_and_names(self):
        stage = nn.Sequential(Block(), nn.Conv2d(2, 2, 1))
        keys, text = list(stage.state_dict()), repr(stage)
        splitter = Splitter(stage)
        self.assertEqual((list(stage.state_dict()), repr(stage)), (keys, text))
        self.assertIsInstance(stage[0].up, nn.Linear)
        file = io.BytesIO()
        torch.save(stage, file)
        file.seek(0)
        for other in (copy.deepcopy(stage), pickle.loads(pickle.dumps(stage)),
                      torch.load(file, weights_only=False)):
            self.assertIs(type(other[0].up), nn.Linear)
            self.assertIs(type(other[1]), nn.Conv2d)
            with torch.no_grad():
                other[0].up.weight.zero_()  # its own weight is what it uses
                self.assertTrue(torch.equal(other[0].up(torch.ones(WIDTH)), other[0].up.bias))
        splitter.remove()
        self.assertIs(type(stage[0].up), nn.Linear)
        self.assertNotIn("_pipec_slot", stage[0].up.__dict__)

    def test_two_splitters_of_one_module(self):
        one, other = twins(Block)
        first, second = Splitter(other), Splitter(other)
        self.assertIs(type(other.up).__mro__[1], nn.Linear)
        expected = whole(one, [hidden(0), hidden(1)])
        outputs = [roots(s.forward(0, hidden(m))) for m, s in enumerate((first, second))]
        for s, pair in zip((first, second), outputs):
            s.input_half(0, *pair)
        second.weight_half(0)
        first.weight_half(0)
        self.assertLess(distance([p.grad for p in other.parameters()], expected[4:]), 1e-14)

    def test_a_weight_changed_too_early_is_found(self):
        stage = Block().double()
        splitter = Splitter(stage)
        output = splitter.forward(0, hidden(0))
        with torch.no_grad():
            stage.down.weight.add_(1)
        with self.assertRaisesRegex(RuntimeError, "modified by an inplace operation"):
            splitter.input_half(0, *roots(output))

    def test_work_changed_between_the_halves_is_found(self):
        for place in ("x", "dy"):
            with self.subTest(place):
                splitter = Splitter(Block().double())
                splitter.input_half(0, *roots(splitter.forward(0, hidden(0))))
                getattr(splitter._records[0].queue[0], place).add_(1)
                with self.assertRaisesRegex(RuntimeError, "between BW_input and BW_weight"):
                    splitter.weight_half(0)

    def test_wrong_orders(self):
        splitter = Splitter(Block().double())
        with self.assertRaisesRegex(RuntimeError, "3: no recorded forward .*pending: nothing"):
            splitter.input_half(3, [], [])
        output = splitter.forward(3, hidden(0))
        with self.assertRaisesRegex(RuntimeError, "3: a second forward"):
            splitter.forward(3, hidden(0))
        with self.assertRaisesRegex(RuntimeError, "3: no input half .*pending: 3 BW_input"):
            splitter.weight_half(3)
        self.assertEqual(splitter.pending(), [(3, "BW_input")])
        splitter.input_half(3, *roots(output))
        self.assertEqual(splitter.pending(), [(3, "BW_weight")])
        with self.assertRaisesRegex(RuntimeError, "3: no recorded forward"):
            splitter.input_half(3, *roots(output))
        splitter.weight_half(3)
        self.assertEqual(splitter.pending(), [])
        splitter.forward(4, hidden(0))
        splitter.drop(4)
        self.assertEqual(splitter.pending(), [])

    def test_a_forward_that_raises_leaves_nothing(self):
        stage = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH + 1, WIDTH))
        splitter = Splitter(stage)
        with self.assertRaises(RuntimeError):
            splitter.forward(0, torch.ones(1, WIDTH))
        self.assertEqual(splitter.pending(), [])
        self.assertIsNone(stage[0]._pipec_slot.record)

    def test_a_weight_that_becomes_computed(self):
        one, other = twins(lambda: nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)))
        splitter = Splitter(other)
        for module in (one, other):
            nn.utils.parametrizations.weight_norm(module[0])
        self.assertEqual(distance(halves(other, [hidden(0)], splitter=splitter),
                                  whole(one, [hidden(0)])), 0)

    def test_loss_and_padding_of_the_last_stage(self):
        class Last(nn.Module):
            def __init__(self):
                super().__init__()
                self.block, self.head = Block(), nn.Linear(WIDTH, WIDTH, bias=False)

            def forward(self, x):
                return F.cross_entropy(self.head(self.block(x)).flatten(0, 1),
                                       tokens(0).flatten(), ignore_index=1, reduction="sum")

        one, other = twins(Last)
        splitter = Splitter(other)
        x, = leaves([hidden(0)])
        scale = torch.tensor(0.125, dtype=torch.double)
        dx, = splitter.whole_backward(0, [splitter.forward(0, x)], [scale], [x])
        y, = leaves([hidden(0)])
        (one(y) * scale).backward()
        self.assertEqual(distance([dx] + [p.grad for p in other.parameters()],
                                  [y.grad] + [p.grad for p in one.parameters()]), 0)


torch.set_num_threads(1)  # of two cores that tests share

if __name__ == "__main__":
    unittest.main()
