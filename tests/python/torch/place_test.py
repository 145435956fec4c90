"""Which rank has which device, in both orders of ranks: places, layouts, and what they add up to."""

from __future__ import annotations

import unittest

import torch

import pipec
import pipec.torch
from models import MODELS, SEED, gradients_of
from pipec.torch._layout import Layout
from pipec.torch._place import Stage, rank_of
from pool import close_all, pool_of

ORDERS = ("tp,pp,dp", "tp,dp,pp")


def plan_of(order: str, **options) -> pipec.Plan:
    return pipec.compile(**{"scheme": "1f1b", "devices": 2, "microbatches": 4, "dp": 3,
                            "rank_order": order, **options})


def trained(rank: int, data: bytes) -> dict:
    """The losses of two steps by step, replica and micro-batch; gradients, weights and norm."""
    torch.set_default_dtype(torch.float64)
    make, loss, batch = MODELS["text"]
    plan = pipec.Plan(data)
    me = pipec.torch.place(plan)
    parts = {key: make(key.stage, plan.stages) for key in me.stages}
    optimizer = torch.optim.SGD([p for part in parts.values() for p in part.parameters()], lr=0.1)
    pipe = pipec.torch.Pipeline(plan, parts, loss=loss, optimizer=optimizer, max_norm=0.01, seed=SEED,
                                debug=True)
    found: dict = {}
    for step in range(2):
        inputs, targets = batch(plan.microbatches, me.replica, step)
        losses = pipe.step(inputs if me.needs_inputs else None,
                           targets if me.needs_targets else None, 1 / 64)
        found |= {("loss", step, me.replica, m): one.item()
                  for m, one in enumerate(losses) if one is not None}
    pipe.close()
    found["norm", me.replica, me.device] = pipe.grad_norm.item()
    for key, part in parts.items():
        for name, p in part.named_parameters():
            found["weights", me.replica, *key, name] = p.detach().tolist()
        for name, gradient in gradients_of(part).items():
            found["gradient", me.replica, *key, name] = gradient.tolist()
    return found


class Places(unittest.TestCase):
    def test_places(self):
        """(replica, device) by rank."""
        expected = {"tp,pp,dp": [(0, 0), (0, 1), (1, 0), (1, 1), (2, 0), (2, 1)],
                    "tp,dp,pp": [(0, 0), (1, 0), (2, 0), (0, 1), (1, 1), (2, 1)]}
        for order, places in expected.items():
            plan = plan_of(order)
            for rank, (replica, device) in enumerate(places):
                with self.subTest(order=order, rank=rank):
                    me = pipec.torch.place(plan, rank)
                    self.assertEqual((me.rank, me.replica, me.device), (rank, replica, device))
                    self.assertEqual(me.stages, (Stage(device, 0),))
                    self.assertEqual((me.needs_inputs, me.needs_targets), (device == 0, device == 1))
                    self.assertEqual(rank_of(plan, replica, device), rank)

    def test_layouts(self):
        """Of replica 1, device 1: rank 3 or 4."""
        for order, rank, replica, copies, first in (
                ("tp,pp,dp", 3, (2, 3), [(0, 2, 4), (1, 3, 5)], [0, 1]),
                ("tp,dp,pp", 4, (1, 4), [(0, 1, 2), (3, 4, 5)], [0, 3])):
            with self.subTest(order=order):
                plan = plan_of(order, tied="0,S-1")
                layout = Layout(plan, pipec.torch.place(plan, rank))
                self.assertEqual(layout.replica_ranks, replica)
                self.assertEqual([layout.copies(stage) for stage in range(2)], copies)
                self.assertEqual([layout.first_copy(stage) for stage in range(2)], first)
                self.assertEqual(layout.tied_ranks, (0, 1, 2, 3, 4, 5))
                self.assertEqual(layout.sets[3:], [(0, 1), (2, 3), (4, 5)] if order == ORDERS[0]
                                 else [(0, 3), (1, 4), (2, 5)])
                lists = plan.lists()
                self.assertEqual([layout.text("step", 0, at) for at in range(6)],
                                 [lists[pipec.torch.place(plan, at).device].text(0)
                                  for at in range(6)])
                self.assertNotEqual(layout.text("step", 2, 0), layout.text("step", 2, 5))

    def test_both_train_alike(self):
        """With two copies the sum of gradients has one order: all bits are the same."""
        for options in (dict(), dict(p2p="blocking"), dict(scheme="zb-v", grad_norm="exact")):
            with self.subTest(**options):
                results = []
                for order in ORDERS:
                    together: dict = {}
                    for part in pool_of(4).run(trained, plan_of(order, dp=2, **options).bytes):
                        self.assertFalse(together.keys() & part.keys())
                        together |= part
                    results.append(together)
                losses = [key for key in results[0] if key[0] == "loss"]
                self.assertEqual(len(losses), 2 * 2 * 4)
                self.assertEqual(*results)


def tearDownModule():
    close_all()


if __name__ == "__main__":
    unittest.main()
