"""Faults in a plan and in the executor: each is an error, or a difference from one process.

The plans are edited behind the compiler's back, as none of them would be proved.
"""

from __future__ import annotations

import functools
import gc
import unittest
import weakref
from contextlib import nullcontext
from unittest import mock

import torch

import pipec
import pipec.torch
from models import (SEED, Normed, TextStage, difference, gradients_of, image_batch, image_loss,
                    one_process, text_batch, text_loss)
from pipec.torch import _stage
from pipec.torch._split import Splitter
from pipec.torch._stage import StageRunner
from pool import Failed, close_all, pool_of

SCALE = 1 / 64


class EditedList:
    def __init__(self, rows: list):
        self._rows = rows

    def __len__(self) -> int:
        return len(self._rows)

    def rows(self):
        return iter(self._rows)

    def text(self, i: int) -> str:
        row = self._rows[i]
        return f"{row.op} s{row.stage} m{row.micro}"


class EditedPlan(pipec.Plan):
    """A plan with another step on one device."""

    def lists(self, routine="step"):
        lists = super().lists(routine)
        if routine != "step":
            return lists
        edited = [list(instructions.rows()) for instructions in lists]
        self.edit(edited)
        return [EditedList(rows) for rows in edited]


def place_of(rows: list, op: str, stage: int, micro: int = -1, **fields) -> int:
    return next(i for i, row in enumerate(rows)
                if (row.op, row.stage, row.micro) == (op, stage, micro)
                and all(getattr(row, name) == value for name, value in fields.items()))


def swap(device: int, one: tuple, other: tuple):
    def edit(lists: list[list]) -> None:
        rows = lists[device]
        a, b = place_of(rows, *one), place_of(rows, *other)
        rows[a], rows[b] = rows[b], rows[a]
    return edit


def remove(device: int, *of: object, **fields):
    def edit(lists: list[list]) -> None:
        del lists[device][place_of(lists[device], *of, **fields)]
    return edit


def move_behind(device: int, what: tuple, behind: tuple):
    def edit(lists: list[list]) -> None:
        row = lists[device].pop(place_of(lists[device], *what))
        lists[device].insert(place_of(lists[device], *behind) + 1, row)
    return edit


def rename(device: int, of: tuple, micro: int):
    def edit(lists: list[list]) -> None:
        at = place_of(lists[device], *of)
        lists[device][at] = lists[device][at]._replace(micro=micro)
    return edit


DIFFERS = "differs"
# Each with the plan's scheme and what finds it.
EDITS = {
    "receives swapped": ("gpipe", swap(1, ("RECV_act", 0, 0), ("RECV_act", 0, 1)),
                         r"'WAIT s0 m0': KeyError"),
    "sends swapped": ("gpipe", move_behind(0, ("SEND_act", 0, 0), ("SEND_act", 0, 1)), DIFFERS),
    "gradients swapped": ("gpipe", swap(0, ("RECV_grad", 0, 0), ("RECV_grad", 0, 1)),
                          r"'WAIT s0 m0': KeyError"),
    "BW missing": ("1f1b", remove(0, "BW", 0, 1), r"left over at the end: grad s0 m1, stash s0 m1"),
    "BW missing, whose gradient is sent": ("1f1b", remove(1, "BW", 1, 1),
                                           r"'SEND_grad s0 m1': KeyError: \(0, 1\)"),
    "BW before its gradient": ("1f1b", swap(0, ("BW", 0, 0), ("BW", 0, 1)), r"'BW s0 m1': KeyError"),
    "BW after STEP": ("1f1b", move_behind(0, ("BW", 0, 3), ("STEP", 0)),
                      r"'BW s0 m3': .*modified by an inplace operation"),
    "STEP before the last BW": ("1f1b", move_behind(1, ("STEP", 1), ("BW", 1, 2)), DIFFERS),
    "half of a BW missing": ("zb-h1", remove(0, "BW_weight", 0, 1),
                             "left over at the end: BW_weight s0 m1"),
    "WAIT missing": ("1f1b", remove(1, "WAIT", 0, 1, value="act"), r"'FW s1 m1': KeyError: \(0, 1\)"),
    "WAIT for a send missing": ("1f1b", remove(0, "WAIT", 0, 1, value="act", sent=True),
                                "left over at the end: sending act s0 m1"),
    "SEND of another micro-batch": ("1f1b", rename(0, ("SEND_act", 0, 1), 2),
                                    r"'SEND_act s0 m2': KeyError"),
    "RECV missing": ("1f1b", remove(1, "RECV_act", 0, 3), r"'WAIT s0 m3': KeyError"),
}


def lost_weights(self, micro):
    del self._records[micro]


def recompute_otherwise(self, micro, right=StageRunner.recompute):
    self._values.seed += 1
    try:
        right(self, micro)
    finally:
        self._values.seed -= 1


def leaking(self, micro, leaked=[], right=StageRunner.backward):
    leaked.append(self._stash[micro])
    right(self, micro)


def leaking_graphs(self, micro):
    retaining = functools.partial(torch.autograd.backward, retain_graph=True)
    with mock.patch.object(torch.autograd, "backward", retaining):
        leaking(self, micro)


FAULTS = {
    "weight gradients": lambda: mock.patch.object(Splitter, "weight_half", lost_weights),
    "random state": lambda: mock.patch.object(StageRunner, "recompute", recompute_otherwise),
    "buffers": lambda: mock.patch.object(_stage, "replaced", lambda *_: nullcontext()),
    "leaves": lambda: mock.patch.object(StageRunner, "backward", leaking),
    "graphs": lambda: mock.patch.object(StageRunner, "backward", leaking_graphs),
    "none": nullcontext,
}


MODELS = {"text": (TextStage, text_loss, text_batch), "normed": (Normed, image_loss, image_batch)}


def train(rank: int, data: bytes, edit: str | None, fault: str, model: str, debug: bool) -> float:
    """The worst difference from one process: of losses, gradients, weights and buffers."""
    torch.set_default_dtype(torch.float64)
    make, loss, batch = MODELS[model]
    plan = EditedPlan(data)
    object.__setattr__(plan, "edit", EDITS[edit][1] if edit else lambda lists: None)
    me = pipec.torch.place(plan)
    parts = {key: make(key.stage, plan.stages) for key in me.stages}
    optimizer = torch.optim.SGD([p for part in parts.values() for p in part.parameters()], lr=0.1)
    inputs, targets = batch(plan.microbatches, 0)
    with FAULTS[fault]():
        pipe = pipec.torch.Pipeline(plan, parts, loss=loss, optimizer=optimizer, seed=SEED,
                                    debug=debug, stall_seconds=5)
        losses = pipe.step(inputs if me.needs_inputs else None,
                           targets if me.needs_targets else None, SCALE)
        pipe.close()
    stages = [make(stage, plan.stages) for stage in range(plan.stages)]
    expected = one_process(stages, loss, [(inputs, targets)], SCALE)
    worst = max((difference(got, expected[0, m]) for m, got in enumerate(losses) if got is not None),
                default=0.0)
    torch.optim.SGD([p for stage in stages for p in stage.parameters()], lr=0.1).step()
    for key, part in parts.items():
        wanted = gradients_of(stages[key.stage])
        for name, got in gradients_of(part).items():
            worst = max(worst, difference(got, wanted[name]))
        state = stages[key.stage].state_dict()
        for name, got in part.state_dict().items():
            worst = max(worst, difference(got.double(), state[name].double()))
    return worst


class Held:
    """What autograd has saved."""

    def __init__(self, tensor: torch.Tensor):
        self.tensor = tensor


def alive_after_steps(rank: int, data: bytes, fault: str) -> list[tuple[int, int]]:
    """How many tensors there are after each of some steps, without garbage collection: those that
    autograd has saved, and all."""
    plan = pipec.Plan(data)
    me = pipec.torch.place(plan)
    parts = {key: TextStage(key.stage, plan.stages) for key in me.stages}
    inputs, targets = text_batch(plan.microbatches, 0)
    held: weakref.WeakSet = weakref.WeakSet()
    saved = 0

    def pack(tensor):
        nonlocal saved
        saved += 1
        held.add(box := Held(tensor))
        return box

    counts = []
    gc.collect()
    gc.disable()
    try:
        with FAULTS[fault]():
            pipe = pipec.torch.Pipeline(plan, parts, loss=text_loss)
            for _ in range(3):
                with torch.autograd.graph.saved_tensors_hooks(pack, lambda box: box.tensor):
                    pipe.step(inputs if me.needs_inputs else None,
                              targets if me.needs_targets else None, SCALE)
                tensors = sum(issubclass(type(o), torch.Tensor) for o in gc.get_objects())
                counts.append((len(held), tensors))
            pipe.close()
    finally:
        gc.enable()
    assert saved > 0
    return counts


def plan_of(scheme: str, **options) -> pipec.Plan:
    return pipec.compile(scheme=scheme, devices=2, microbatches=4, **options)


class InAPlan(unittest.TestCase):
    def test_edits(self):
        for name, (scheme, _, expected) in EDITS.items():
            with self.subTest(name):
                plan = plan_of(scheme, grad_norm="off")
                if expected == DIFFERS:
                    self.assertGreater(max(pool_of(2).run(train, plan.bytes, name, "none", "text",
                                                          True)), 1e-4)
                    continue
                with self.assertRaisesRegex(Failed, expected):
                    pool_of(2).run(train, plan.bytes, name, "none", "text", True)

    def test_no_edit(self):
        """What the others are compared with."""
        for scheme in sorted({scheme for scheme, _, _ in EDITS.values()}):
            plan = plan_of(scheme, grad_norm="off")
            self.assertEqual(pool_of(2).run(train, plan.bytes, None, "none", "text", True), [0, 0])


class InTheExecutor(unittest.TestCase):
    def check(self, plan: pipec.Plan, fault: str, model: str, least: float) -> None:
        run = pool_of(2).run
        self.assertEqual(max(run(train, plan.bytes, None, "none", model, False)), 0)
        self.assertGreater(max(run(train, plan.bytes, None, fault, model, False)), least)

    def test_lost_weight_gradients(self):
        self.check(plan_of("zb-h1"), "weight gradients", "text", 0.1)

    def test_random_state_of_a_recomputation(self):
        plan = plan_of("1f1b", passes="mario")
        self.check(plan, "random state", "text", 1e-3)
        with self.assertRaisesRegex(Failed, r"'RE s\d m\d': .*recomputed output has other bits"):
            pool_of(2).run(train, plan.bytes, None, "random state", "text", True)

    def test_buffers_of_a_recomputation(self):
        self.check(plan_of("1f1b", passes="mario"), "buffers", "normed", 1e-3)

    def test_leaked_graph(self):
        for options in (dict(scheme="1f1b"), dict(scheme="1f1b", passes="mario"),
                        dict(scheme="zb-v")):
            with self.subTest(**options):
                plan = plan_of(**options)
                for counts in pool_of(2).run(alive_after_steps, plan.bytes, "none"):
                    self.assertEqual([saved for saved, _ in counts], [0, 0, 0])
                    self.assertEqual(counts[1], counts[2])
        plan = plan_of("1f1b")
        for first, *_, last in pool_of(2).run(alive_after_steps, plan.bytes, "graphs"):
            self.assertGreater(last[0], first[0])
        _, (*_, before, after) = pool_of(2).run(alive_after_steps, plan.bytes, "leaves")
        self.assertGreater(after[1], before[1])


def tearDownModule():
    close_all()


if __name__ == "__main__":
    unittest.main()
