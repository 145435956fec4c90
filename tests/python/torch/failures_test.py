"""What ends a run: killed and stopped ranks, exceptions, stalls, wrong arguments; and what does not.

A rank that is blocked in a receive cannot raise: it ends with status 1 and a line on standard error.
"""

from __future__ import annotations

import os
import re
import signal
import tempfile
import time
import unittest
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

import pipec
import pipec.torch
from models import TextStage, text_batch, text_loss
from pool import Pool, close_all

MOST_SECONDS = 10
PAUSE_SECONDS = 120  # longer than any test waits


def plan_of(**options) -> pipec.Plan:
    return pipec.compile(**{"scheme": "1f1b", "devices": 3, "microbatches": 4, **options})


class Actor(TextStage):
    """A stage that does something in a forward of the second step."""

    def __init__(self, stage: int, stages: int, act=None):
        super().__init__(stage, stages)
        self.calls, self.act = -1, act  # the first one is for the shapes

    def forward(self, x):
        if self.calls == 5 and self.act is not None:
            self.act()
        self.calls += 1
        return super().forward(x)


def redirected(rank: int, folder: str) -> None:
    descriptor = os.open(f"{folder}/{rank}", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(descriptor, 2)


def pause(folder: str) -> None:
    Path(folder, "there").touch()
    time.sleep(PAUSE_SECONDS)


def refuse(folder: str) -> None:
    raise KeyError("no such word")


def train(rank: int, data: bytes, actor: int, act, folder: str, options: dict) -> str:
    """Two steps; `actor` acts in the second one."""
    plan = pipec.Plan(data)
    me = pipec.torch.place(plan)
    parts = {key: Actor(key.stage, plan.stages, (lambda: act(folder)) if rank == actor else None)
             for key in me.stages}
    pipe = pipec.torch.Pipeline(plan, parts, loss=text_loss, **options)
    inputs, targets = text_batch(plan.microbatches, me.replica)
    for _ in range(2):
        pipe.step(inputs if me.needs_inputs else None, targets if me.needs_targets else None)
    pipe.close()
    return "ended"


class Run:
    """A function on processes, and how each of them ends."""

    def __init__(self, test: unittest.TestCase, world: int, function, *arguments,
                 method: str = "forkserver"):
        folder = tempfile.TemporaryDirectory()
        test.addCleanup(folder.cleanup)
        self.folder, self.pool = folder.name, Pool(world, method)
        test.addCleanup(self.pool.kill)
        self.pool.run(redirected, self.folder)
        self.pool.start(function, *[self.folder if a is FOLDER else a for a in arguments])

    def await_actor(self) -> None:
        """Until it acts, and all others wait for it, and all know where the others are."""
        end = time.monotonic() + 60
        while not Path(self.folder, "there").exists():
            assert time.monotonic() < end
            time.sleep(0.05)
        time.sleep(2.5)

    def signal(self, rank: int, number: int) -> None:
        os.kill(self.pool.processes[rank].pid, number)

    def errors(self, rank: int) -> str:
        return Path(self.folder, str(rank)).read_text()

    def end_of(self, rank: int, since: float, seconds: float = MOST_SECONDS) -> str:
        """What it raised or printed, if it ends within `seconds`."""
        good, text = self.pool.result(rank, max(0.0, since + seconds - time.monotonic()))
        assert not good, f"rank {rank} returned {text}"
        if "ended with status" in text:
            assert "status 1" in text, text
            lines = [line for line in self.errors(rank).splitlines() if "pipec: error" in line]
            assert len(lines) == 1, self.errors(rank)
            return lines[0]
        assert text.startswith("PipelineError: "), text
        return text.splitlines()[0]


FOLDER = object()  # an argument: the run's folder


class Failures(unittest.TestCase):
    def check_positions(self, plan: pipec.Plan, line: str, expected: dict[int, str]) -> None:
        """The line names an instruction of each rank, and these."""
        for rank in range(plan.devices * plan.replicas):
            found = re.search(rf"rank {rank}, instruction (\d+) '([^']*)'", line)
            self.assertIsNotNone(found, f"rank {rank} in: {line}")
            index, text = found.groups()
            self.assertEqual(plan.lists()[pipec.torch.place(plan, rank).device].text(int(index)), text)
            self.assertEqual(text, expected.get(rank, text))

    def check_signal(self, victim: int, number: int) -> None:
        plan = plan_of()
        run = Run(self, 3, train, plan.bytes, victim, pause, FOLDER, {})
        run.await_actor()
        run.signal(victim, number)
        since = time.monotonic()
        for rank in {0, 1, 2} - {victim}:
            line = run.end_of(rank, since)
            self.check_positions(plan, line, {victim: f"FW s{victim} m1"})

    def test_first_rank_killed(self):
        """The one that keeps the store."""
        self.check_signal(0, signal.SIGKILL)

    def test_middle_rank_killed(self):
        self.check_signal(1, signal.SIGKILL)

    def test_first_rank_stopped(self):
        self.check_signal(0, signal.SIGSTOP)

    def test_last_rank_stopped(self):
        self.check_signal(2, signal.SIGSTOP)

    def test_exception_in_a_stage(self):
        plan = plan_of()
        run = Run(self, 3, train, plan.bytes, 1, refuse, FOLDER, {})
        since = time.monotonic() + 20  # of two steps
        lines = [run.end_of(rank, since) for rank in range(3)]
        self.assertRegex(lines[1], r"^PipelineError: rank 1, instruction \d+ 'FW s1 m1': "
                                   "KeyError: 'no such word'")
        for line in lines:
            self.assertIn("KeyError: 'no such word'", line)
            self.check_positions(plan, line, {1: "FW s1 m1"})

    def test_stall(self):
        """A rank that sleeps, but is alive."""
        plan = plan_of()
        run = Run(self, 3, train, plan.bytes, 2, pause, FOLDER, {"stall_seconds": 4})
        run.await_actor()
        since = time.monotonic()
        for rank in range(3):
            line = run.end_of(rank, since)
            self.assertIn("no rank has moved for 4 s", line)
            self.check_positions(plan, line, {2: "FW s2 m1"})


def lazy(rank: int, data: bytes) -> None:
    """Steps with long pauses of some ranks; it ends without a farewell."""
    plan = pipec.Plan(data)
    me = pipec.torch.place(plan)
    parts = {key: TextStage(key.stage, plan.stages) for key in me.stages}
    pipe = pipec.torch.Pipeline(plan, parts, loss=text_loss, silent_seconds=3.0, stall_seconds=60)
    inputs, targets = text_batch(plan.microbatches, me.replica)
    for step in range(3):
        pipe.step(inputs if me.needs_inputs else None, targets if me.needs_targets else None)
        if step % 3 == rank:
            time.sleep(4)


def close(rank: int, data: bytes) -> float:
    """The seconds that the end of the watch takes, where all are ready for it."""
    plan = pipec.Plan(data)
    me = pipec.torch.place(plan)
    best = 1e9
    for _ in range(3):
        parts = {key: TextStage(key.stage, plan.stages) for key in me.stages}
        pipe = pipec.torch.Pipeline(plan, parts, loss=text_loss)
        inputs, targets = text_batch(plan.microbatches, me.replica)
        pipe.step(inputs if me.needs_inputs else None, targets if me.needs_targets else None)
        dist.barrier()
        before = time.monotonic()
        pipe.close()
        best = min(best, time.monotonic() - before)
        try:
            pipe.step()
        except pipec.torch.PipelineError as error:
            assert "closed" in str(error), error
    return best


class Healthy(unittest.TestCase):
    def test_pauses_and_early_ends(self):
        """Nobody is ended, or prints a word, because others are slow or have ended."""
        for reverse in (False, True):  # rank 0, which keeps the store, is the first, or the last
            with self.subTest(reverse=reverse):
                plan = plan_of(grad_norm="off")
                run = Run(self, 3, lazy, plan.bytes, method="spawn")
                self.assertEqual([run.pool.result(rank) for rank in range(3)], 3 * [(True, None)])
                order = [2, 1, 0] if reverse else [0, 1, 2]
                for rank in order:
                    run.pool.pipes[rank].send(None)
                    time.sleep(1.5)
                for rank in order:
                    run.pool.processes[rank].join(10)
                    self.assertEqual(run.pool.processes[rank].exitcode, 0)
                    self.assertEqual(run.errors(rank), "")

    def test_close_is_quick(self):
        run = Run(self, 3, close, plan_of().bytes)
        for rank in range(3):
            good, seconds = run.pool.result(rank)
            self.assertTrue(good, seconds)
            self.assertLess(seconds, 0.5)
            self.assertEqual(run.errors(rank), "")


class OneProcess(unittest.TestCase):
    """Wrong arguments, where nobody else is."""

    def setUp(self):
        self.plan = plan_of(devices=1, microbatches=2, evaluation=True)
        self.inputs, self.targets = text_batch(2, 0)

    def pipe(self, part=None, loss=text_loss, plan=None, **options):
        plan = plan or self.plan
        return pipec.torch.Pipeline(plan, {0: part or TextStage(0, 1)}, loss=loss, **options)

    def check(self, text: str, function, *arguments, **named):
        with self.assertRaisesRegex(Exception, text) as caught:
            function(*arguments, **named)
        self.assertNotIn("\n", str(caught.exception))

    def test_place(self):
        place = pipec.torch.place
        self.check("plan: str ", place, "1f1b")
        self.check("plan: 3 devices x 1 replicas, but no process group", place, plan_of())
        for rank in (3, -1, "0", 1.0, True):
            self.check("rank: ", place, plan_of(), rank)
        self.check("plan: .*versions", place, plan_of(scheme="pipedream"), 0)

    def test_pipeline(self):
        make, part = pipec.torch.Pipeline, TextStage(0, 1)
        good = dict(loss=text_loss)
        for text, plan, parts, options in (
                ("plan: bytes", self.plan.bytes, {0: part}, good),
                ("parts: list ", self.plan, [part], good),
                ("parts: no module for Stage", self.plan, {}, good),
                ("parts: Stage.stage=1, pipe=0. is not on rank 0", self.plan, {0: part, 1: part}, good),
                ("parts: 0.5 is not on rank 0", self.plan, {0.5: part}, good),
                ("parts: .*is a function", self.plan, {0: text_loss}, good),
                ("loss: None", self.plan, {0: part}, {}),
                ("loss: 3", self.plan, {0: part}, dict(loss=3)),
                ("max_norm: nan", self.plan, {0: part}, dict(good, max_norm=float("nan"))),
                ("max_norm: '1'", self.plan, {0: part}, dict(good, max_norm="1")),
                ("max_norm: 0", self.plan, {0: part}, dict(good, max_norm=0)),
                ("max_norm: the plan has no norm", plan_of(devices=1, grad_norm="off"), {0: part},
                 dict(good, max_norm=1.0)),
                ("optimizer: type", self.plan, {0: part}, dict(good, optimizer=torch.optim.SGD)),
                ("seed: 'x'", self.plan, {0: part}, dict(good, seed="x")),
                ("silent_seconds: 0", self.plan, {0: part}, dict(good, silent_seconds=0)),
                ("stall_seconds: nan", self.plan, {0: part}, dict(good, stall_seconds=float("nan"))),
                ("tied: ", self.plan, {0: part}, dict(good, tied=[("up.weight", "head.weight")])),
                ("tied: 5 ", self.plan, {0: part}, dict(good, tied=5))):
            with self.subTest(text=text):
                self.check(text, make, plan, parts, **options)

    def test_step(self):
        x, y = self.inputs, self.targets
        pipe = self.pipe()
        pipe.step(x, y)
        for text, arguments, named in (
                ("inputs: None", (), {}), ("targets: None", (x,), {}),
                ("inputs: 1 micro-batches", (x[:1], y), {}),
                ("inputs: Tensor", (torch.stack(x), y), {}),
                ("targets: dict", (x, dict(enumerate(y))), {}),
                ("inputs: int", (5, y), {}), ("kwargs: 3 ", (x, y), dict(kwargs=[{}] * 3)),
                ("kwargs: int for", (x, y), dict(kwargs=[1, 2])),
                ("scale: nan", (x, y, float("nan")), {}), ("scale: 'x'", (x, y, "x"), {}),
                ("scale: tensor", (x, y, torch.ones(2)), {}),
                ("instruction 1 'FW s0 m0': .*argument", (x, y), dict(kwargs=[dict(no=1)] * 2)),
                ("at the beginning of its step: TypeError: ", ([None, None], y), {})):
            with self.subTest(text=text):
                self.check(text, pipe.step, *arguments, **named)
        pipe.step(x, y)  # mistakes leave a pipeline of one process as it was
        self.check("inputs: 1 micro-batches", pipe.evaluate, x[:1], y)

    def test_what_user_code_returns(self):
        for text, loss in (("loss: returns .*shape .2, 12", lambda x, y: x[:, :, 0]),
                           ("loss: returns float", lambda x, y: 1.0), ("loss: returns None", lambda x, y: None),
                           ("loss: needs no gradient", lambda x, y: x.detach().sum())):
            with self.subTest(text=text):
                self.check(text, self.pipe(loss=loss).step, self.inputs, self.targets)
        for text, output in (("stage 0 returns str", "x"), ("stage 0 returns dict", {}),
                             ("stage 0 returns Tensor, int", (torch.ones(1), 1))):
            with self.subTest(text=text):
                part = nn.Identity()
                part.forward = lambda x: output
                plan = plan_of(scheme="interleaved", devices=1, microbatches=2)
                self.check(text, pipec.torch.Pipeline(
                    plan, {0: part, 1: TextStage(1, 2)}, loss=text_loss).step,
                    self.inputs, self.targets)

    def test_changes_between_steps(self):
        plan = plan_of(scheme="interleaved", devices=1, microbatches=2)
        parts = {0: TextStage(0, 2), 1: TextStage(1, 2)}
        pipe = pipec.torch.Pipeline(plan, parts, loss=text_loss)
        pipe.step(self.inputs, self.targets)
        parts[0].forward = lambda x: TextStage.forward(parts[0], x)[:, :-1]
        self.check("stage 0, micro-batch 0 returns .* but returned", pipe.step, self.inputs,
                   self.targets)
        del parts[0].forward
        pipe.step(self.inputs, self.targets)
        parts[0].requires_grad_(False)
        self.check("parts: requires_grad of a parameter has changed", pipe.step, self.inputs, self.targets)

    def test_sparse_gradients(self):
        part = TextStage(0, 1)
        part.embedding = nn.Embedding(61, 32, sparse=True)
        self.check("a sparse gradient", self.pipe(part).step, self.inputs, self.targets)


def make_wrongly(rank: int, data: bytes, other: bytes) -> dict[str, str]:
    """What a mistake of rank 1 alone raises on this rank."""
    plan = pipec.Plan(data)
    me = pipec.torch.place(plan)
    caught = {}

    def check(name: str, plan=plan, parts=None, **options) -> None:
        good = {key: TextStage(key.stage, 2) for key in me.stages}
        if rank == 0:
            plan, parts, options = pipec.Plan(data), None, {}
        try:
            pipec.torch.Pipeline(plan, good if parts is None else parts,
                                 **{"loss": text_loss, **options})
            caught[name] = "made"
        except Exception as error:
            caught[name] = f"{type(error).__name__}: {error}"

    stage = TextStage(1, 2)
    check("plan: NoneType", plan=None)
    check("plan: rank . has another one", plan=pipec.Plan(other))
    check("plan: 3 devices x 1 replicas, but 2 processes", plan=plan_of())
    check("parts: list", parts=[stage])
    check("parts: no module", parts={})
    check("parts: .*pipe=0. is not on rank 1", parts={0: stage})
    check("loss: None", loss=None)
    check("max_norm: nan", max_norm=float("nan"))
    check("max_norm: rank . has another value", max_norm=1.0)
    check("seed: rank . has another value", seed=1)
    other = TextStage(1, 2)
    check("optimizer: has no parameter of parts", optimizer=torch.optim.SGD(other.parameters()))
    check("optimizer: has a parameter twice",
          parts={1: stage}, optimizer=torch.optim.SGD([*stage.parameters(), *stage.parameters()]))
    check("loss: has parameters to train", loss=other)
    check("silent_seconds: -1", silent_seconds=-1)
    check("tied: ", tied=[("embedding.weight", "head.weight")])
    torch.manual_seed(0)
    uninitialized = nn.LazyLinear(3)
    check("parts: .*LazyLinear", parts={1: nn.Sequential(stage, uninitialized)})
    return caught


def step_wrongly(rank: int, data: bytes) -> None:
    plan = pipec.Plan(data)
    me = pipec.torch.place(plan)
    parts = {key: TextStage(key.stage, plan.stages) for key in me.stages}
    pipe = pipec.torch.Pipeline(plan, parts, loss=text_loss)
    inputs, targets = text_batch(plan.microbatches, 0)
    pipe.step(targets if rank else inputs, targets)  # inputs that nobody needs do no harm
    pipe.step(inputs[rank:], targets[rank:])


def evaluate_and_step(rank: int, data: bytes) -> None:
    plan = pipec.Plan(data)
    me = pipec.torch.place(plan)
    parts = {key: TextStage(key.stage, plan.stages) for key in me.stages}
    pipe = pipec.torch.Pipeline(plan, parts, loss=text_loss)
    inputs, targets = text_batch(plan.microbatches, 0)
    (pipe.step if rank else pipe.evaluate)(inputs, targets)


def step_alone(rank: int, data: bytes) -> None:
    plan = pipec.Plan(data)
    me = pipec.torch.place(plan)
    parts = {key: TextStage(key.stage, plan.stages) for key in me.stages}
    pipe = pipec.torch.Pipeline(plan, parts, loss=text_loss)
    inputs, targets = text_batch(plan.microbatches, 0)
    for _ in range(2 - rank):
        pipe.step(inputs, targets)
    pipe.close()


def copies_that_differ(rank: int, data: bytes) -> dict[str, str]:
    """What replicas whose modules differ raise on this rank; what a good pair ends with."""
    plan = pipec.Plan(data)
    key = pipec.torch.place(plan).stages[0]
    caught = {}

    class Odd(nn.Module):
        def __init__(self, kind: str):
            super().__init__()
            torch.manual_seed(rank)
            wide = torch.randn(4, 6, dtype=torch.float64 if kind == "dtype" and rank else None)
            self.a = nn.Parameter(wide[:, :3 if kind != "shape" or rank else 2])
            self.b = nn.Parameter(wide[:, 3:].clone(), requires_grad=kind != "frozen" or not rank)
            self.register_buffer("c", torch.arange(5).expand(3000, 5))
            self.register_buffer("d", torch.arange(3 + rank, 6 + rank).to(torch.int16))

        def forward(self, x):
            return x.sum() * self.a.sum() * self.b.sum()

    for kind in ("shape", "dtype", "frozen", ""):
        part = Odd(kind)
        try:
            pipe = pipec.torch.Pipeline(plan, {key: part}, loss=lambda x, y: x)
            caught["made"] = str([part.a.tolist(), part.b.tolist(), part.d.tolist()])
            pipe.close()
        except Exception as error:
            caught[kind] = f"{type(error).__name__}: {error}"
    return caught


class SomeProcesses(unittest.TestCase):
    """Mistakes of one of two ranks."""

    def setUp(self):
        self.plan = plan_of(devices=2, evaluation=True)

    def test_construction(self):
        other = plan_of(devices=2, scheme="gpipe")
        run = Run(self, 2, make_wrongly, self.plan.bytes, other.bytes)
        results = [run.pool.result(rank) for rank in range(2)]
        self.assertTrue(all(good for good, _ in results), results)
        for rank, (_, caught) in enumerate(results):
            for expected, text in caught.items():
                with self.subTest(rank=rank, expected=expected):
                    self.assertRegex(text, expected)
                    self.assertNotIn("\n", text)
            self.assertEqual(run.errors(rank), "")

    def test_copies(self):
        """They have to be alike, and start alike, however their memory is laid out."""
        plan = plan_of(devices=1, dp=2)
        run = Run(self, 2, copies_that_differ, plan.bytes)
        results = [run.pool.result(rank) for rank in range(2)]
        self.assertTrue(all(good for good, _ in results), results)
        self.assertEqual(results[0][1].pop("made"), results[1][1].pop("made"))
        for _, caught in results:
            self.assertEqual(set(caught), {"shape", "dtype", "frozen"})
            for text in caught.values():
                self.assertRegex(text, "ValueError: parts: [ab] of stage 0 is .* on rank 1")

    def check_words(self, function, expected: str, blocked: int) -> None:
        run = Run(self, 2, function, self.plan.bytes)
        since = time.monotonic() + 20  # of what goes before
        for rank in (1 - blocked, blocked):
            if function is step_alone and rank == 1:
                continue
            self.assertRegex(run.end_of(rank, since), expected)

    def test_wrong_step(self):
        self.check_words(step_wrongly, "rank 1, at the beginning of its step: ValueError: inputs: 3 "
                         r".*\(rank 0, at the beginning of its step\)", blocked=0)

    def test_other_routine(self):
        self.check_words(evaluate_and_step, "the ranks are in different routines", blocked=0)

    def test_step_too_many(self):
        self.check_words(step_alone, "rank 1 has ended before this step", blocked=0)


def tearDownModule():
    close_all()


if __name__ == "__main__":
    unittest.main()
