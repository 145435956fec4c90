"""What NCCL is asked for, without a GPU: the calls of each rank are those of pipec's proof.

    nccl_calls_test.py [--all]      plans of 2 devices, or also of 4
"""

from __future__ import annotations

import sys
import unittest
from typing import NamedTuple
from unittest import mock

import torch.distributed as dist

import pipec
from nccl_calls import Call, Recorder, recorded
from pipec.torch._exchange import Exchange
from pipec.torch import _groups
from plans_test import SCHEMES, compiled


class Expected(NamedTuple):
    name: str
    communicator: int
    ranks: frozenset
    peer: int | None


def proved(plan) -> dict:
    """Of the assignment that the executor has: a communicator a direction and kind, or one for all."""
    sharing = "all" if plan.p2p == "blocking" else "kind"
    return plan.verify(transport="nccl", communicators=sharing)["nccl"]


def expected_calls(plan, rank: int, nccl: dict) -> list[Expected]:
    """What the plan's list has for NCCL, in the communicators of the proof."""
    places = [pipec.torch.place(plan, at) for at in range(plan.devices * plan.replicas)]
    rank_at = {(at.replica, at.device): at.rank for at in places}
    replica, device = places[rank].replica, places[rank].device
    blocking = plan.p2p == "blocking"

    def ranks_of(communicator: dict) -> frozenset:
        replicas = range(plan.replicas) if communicator["replicas"] else [replica]
        return frozenset(rank_at[r, d] for r in replicas for d in communicator["devices"])

    calls = []
    for row in plan.lists()[device].rows():
        kind = row.op.split("_")[-1]
        if row.op.startswith(("SEND", "RECV")):
            ends = (device, row.peer) if row.op.startswith("SEND") else (row.peer, device)
            number = next(flow["communicator"] for flow in nccl["flows"]
                          if (flow["from"], flow["to"], flow["kind"]) == (*ends, kind))
            name = row.op[:4].lower()
            calls.append(Expected(name if blocking else "i" + name, number,
                                  ranks_of(nccl["communicators"][number]),
                                  rank_at[replica, row.peer]))
        elif row.op.startswith("REDUCE"):
            for collective in nccl["collectives"]:
                wanted = row.op, max(row.stage, -1), max(row.bucket, -1)
                if (collective["op"], collective.get("stage", -1), collective.get("bucket", -1)) \
                        == wanted and device in collective["devices"]:
                    number = collective["communicator"]
                    if number is not None:
                        calls.append(Expected("all_reduce", number,
                                              ranks_of(nccl["communicators"][number]), None))
    return calls


def without_waits(calls: list[Call]) -> list[Call]:
    return [call for call in calls if not call.name.startswith("wait")]


def difference(calls: list[Call], expected: list[Expected]) -> str | None:
    """Of the calls of a step from the expected ones; each communicator has to be one group."""
    calls = without_waits(calls)
    group_of: dict[int, int] = {}
    for i, (call, wanted) in enumerate(zip(calls, expected)):
        got = call.name, frozenset(call.ranks), call.peer
        if got != (wanted.name, wanted.ranks, wanted.peer):
            return f"call {i} is {call}, not {wanted}"
        if group_of.setdefault(wanted.communicator, call.group) != call.group:
            return f"call {i}: communicator {wanted.communicator} is several groups"
    if len(calls) != len(expected):
        return f"{len(calls)} calls, not {len(expected)}"
    if len(set(group_of.values())) < len(group_of):
        return "several communicators are one group"
    return None


def stuck(sequences: list[list[Call]]) -> str | None:
    """Whether calls that each wait for their partners, rank by rank, do not all come to an end."""
    at = [0] * len(sequences)
    heads = lambda rank: sequences[rank][at[rank]] if at[rank] < len(sequences[rank]) else None
    moved = True
    while moved:
        moved = False
        for rank in range(len(sequences)):
            call = heads(rank)
            if call is None:
                continue
            members = call.ranks if call.peer is None else (rank, call.peer)
            partner = {"send": "recv", "recv": "send"}.get(call.name, call.name)
            if all(other == rank or (head := heads(other)) is not None and head.name == partner
                   and head.ranks == call.ranks and head.peer == (None if call.peer is None else rank)
                   for other in members):
                for member in members:
                    at[member] += 1
                moved = True
    left = [f"rank {rank}: {heads(rank)}" for rank in range(len(sequences)) if heads(rank)]
    return "; ".join(left) or None


def creation_fault(recorders: list[Recorder]) -> str | None:
    """What is wrong with what ranks do before the first step."""
    for recorder in recorders:
        if recorder.created != recorders[0].created:
            return f"rank {recorder.rank} makes {recorder.created}, rank 0 {recorders[0].created}"
    if fault := stuck([recorder.calls for recorder in recorders]):
        return "the first use of groups: " + fault
    return None


class Calls(unittest.TestCase):
    everything = False

    def plans(self):
        for devices in (2, 4) if self.everything else (2,):
            for scheme in SCHEMES:
                for p2p in ("async", "blocking"):
                    for replicas in (1, 2):
                        plan = compiled(scheme, "plain", p2p, replicas, devices)
                        if plan is not None:
                            yield plan
        for scheme, p2p in (("chimera", "async"), ("1f1b", "blocking")):
            yield pipec.compile(scheme=scheme, devices=2, microbatches=4, dp=3, p2p=p2p,
                                rank_order="tp,dp,pp")

    def test_every_scheme(self):
        count = 0
        for plan in self.plans():
            with self.subTest(scheme=plan.scheme, p2p=plan.p2p, dp=plan.replicas,
                              order=plan.rank_order):
                nccl, world = proved(plan), plan.devices * plan.replicas
                runs = [recorded(plan, rank) for rank in range(world)]
                self.assertIsNone(creation_fault([recorder for recorder, _ in runs]))
                for rank, (recorder, calls) in enumerate(runs):
                    self.assertIsNone(difference(calls, expected_calls(plan, rank, nccl)), rank)
                    used = {call.group for call in recorder.calls}
                    self.assertLessEqual({call.group for call in calls}, used, "not used before")
                if plan.p2p == "blocking":
                    messages = [[call for call in without_waits(calls) if call.peer is not None]
                                for _, calls in runs]
                    self.assertIsNone(stuck(messages))
            count += 1
        self.assertGreaterEqual(count, 40)

    def stream_fault(self, plan) -> str | None:
        """On a GPU a wait for a send would make the compute stream wait."""
        receives = 0
        for rank in range(plan.devices):
            for call in recorded(plan, rank, cuda=True)[1]:
                if call.name.startswith("wait isend"):
                    return f"a wait for a send on the {call.stream} stream"
                if call.name in ("irecv", "recv") and call.stream != "side":
                    return f"a receive behind what the {call.stream} stream does"
                if call.name.startswith("isend") and call.stream != "compute":
                    return f"a send before the {call.stream} stream has what it sends"
                if call.name == "wait irecv" and call.stream != "compute":
                    return "the compute stream does not wait for a message"
                receives += call.name in ("irecv", "recv")
        self.assertTrue(receives)
        return None

    def test_streams(self):
        for scheme in ("1f1b", "zb-v"):
            for p2p in ("async", "blocking"):
                self.assertIsNone(self.stream_fault(compiled(scheme, "plain", p2p, 1, 2)), p2p)


class Planted(unittest.TestCase):
    """Faults that these checks find."""

    def check(self, expected: str, plan) -> None:
        nccl = proved(plan)
        faults = [difference(recorded(plan, rank)[1], expected_calls(plan, rank, nccl))
                  for rank in range(plan.devices)]
        self.assertTrue(any(fault and expected in fault for fault in faults), faults)

    def test_two_messages_in_a_batch(self):
        right = Exchange.send
        kept = []

        def send(self, value, peer, group):
            """Keeps each second message, and sends it together with the one before."""
            if kept and kept[-1][1:] == (peer, group):
                operations = [mock.Mock(peer=peer, group=group)] * 2
                self._values.act.pop(value[1:], None) or self._values.grad.pop(value[1:])
                works = __import__("pipec.torch._exchange", fromlist=["dist"]).dist.batch_isend_irecv(
                    operations)
                self._sending[kept[-1][0]] = self._sending[value] = works, []
                kept.clear()
            else:
                kept.append((value, peer, group))
                bundle = self._values.act if value[0] == "act" else self._values.grad
                bundle.pop(value[1:])
                self._sending[value] = [], []

        with mock.patch.object(Exchange, "send", send):
            self.check("batch of 2", compiled("gpipe", "plain", "async", 1, 2))
        self.assertIs(Exchange.send, right)

    def test_one_group_for_both_directions(self):
        """Of an asynchronous plan, whose proof for that would fail."""
        plan = compiled("1f1b", "plain", "async", 1, 2)

        def to(self, device, kind):
            return self._peers[device], self._flows[min(self._flows)]

        with mock.patch.object(_groups.Groups, "to", to):
            self.check("several", plan)

    def test_wrong_peer(self):
        plan = compiled("1f1b", "plain", "async", 1, 4)
        right = Exchange.receive

        def receive(self, value, peer, group):
            right(self, value, next(r for r in group.ranks if r != peer), group)

        with mock.patch.object(Exchange, "receive", receive):
            self.check("call", plan)

    def test_groups_in_another_order(self):
        plan = compiled("1f1b", "plain", "async", 1, 4)
        right = _groups.rounds_of
        recorders = []
        for rank in range(4):
            order = (lambda sets: right(sets)[::-1]) if rank == 2 else right
            with mock.patch.object(_groups, "rounds_of", order):
                recorders.append(recorded(plan, rank)[0])
        self.assertRegex(creation_fault(recorders) or "", "rank 2 makes")

    def test_groups_that_overlap(self):
        plan = compiled("1f1b", "plain", "async", 1, 4)
        with mock.patch.object(_groups, "rounds_of", lambda sets: [dict(sets)]):
            with self.assertRaisesRegex(Exception, "not disjoint"):
                recorded(plan, 0)

    def test_first_use_in_another_order(self):
        plan = compiled("1f1b", "plain", "async", 1, 4)
        recorders = [recorded(plan, rank)[0] for rank in range(4)]
        self.assertIsNone(creation_fault(recorders))
        calls = recorders[1].calls
        one, other = (i for i, call in enumerate(calls) if call.peer == 0)
        calls[one], calls[other] = calls[other], calls[one]
        self.assertRegex(creation_fault(recorders) or "", "the first use of groups")

    def test_wait_for_a_send(self):
        def sent(self, value):
            for work in self._sending.pop(value)[0]:
                work.wait()

        with mock.patch.object(Exchange, "sent", sent):
            fault = Calls.stream_fault(self, compiled("1f1b", "plain", "async", 1, 2))
        self.assertEqual(fault, "a wait for a send on the compute stream")

    def test_receive_on_the_compute_stream(self):
        right = Exchange.receive

        def receive(self, *arguments):
            stream, self._stream = self._stream, None
            try:
                right(self, *arguments)
            finally:
                self._stream = stream

        with mock.patch.object(Exchange, "receive", receive):
            fault = Calls.stream_fault(self, compiled("1f1b", "plain", "async", 1, 2))
        self.assertEqual(fault, "a receive behind what the compute stream does")


if __name__ == "__main__":
    Calls.everything = "--all" in sys.argv
    unittest.main(argv=[a for a in sys.argv if a != "--all"])
