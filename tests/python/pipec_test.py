"""What the Python package promises (tools/python/README.md), against what `pipec` itself prints.

$WHEEL is the wheel that is installed; `pipec` is in PATH. package_test.sh sees to both.
"""

import ast
import base64
import copy
import csv
import hashlib
import json
import logging
import os
import pickle
import random
import struct
import subprocess
import sys
import tempfile
import threading
import types
import unittest
import zipfile
from pathlib import Path
from unittest import mock

import numpy as np

import pipec

GPT2 = {
    "model_type": "gpt2",
    "vocab_size": 256,
    "n_positions": 16,
    "n_embd": 8,
    "n_layer": 4,
    "n_head": 2,
}


def shell(*words, data=None):
    """What the program prints, and its last line on standard error."""
    result = subprocess.run(["pipec", *map(str, words)], input=data, capture_output=True)
    lines = result.stderr.decode("utf-8", "surrogateescape").splitlines() or [""]
    return result.stdout, lines[-1]


class Case(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)
        self.config = self.folder / "config.json"
        self.config.write_text(json.dumps(GPT2))

    def assert_error(self, line, call, *arguments, **options):
        with self.assertRaises(pipec.Error) as caught:
            call(*arguments, **options)
        self.assertEqual(str(caught.exception), line)
        return caught.exception

    def plans(self):
        """One of each scheme, and of what else a plan may have."""
        for scheme in pipec.schemes():
            yield pipec.compile(scheme=scheme["name"], devices=4, microbatches=8)
        yield pipec.compile(scheme="zb-v", devices=2, microbatches=3, p2p="blocking", dp=2)
        yield pipec.compile(scheme="1f1b", devices=2, microbatches=2, dp=3, rank_order="tp,dp,pp")
        yield pipec.compile(
            scheme="1f1b", devices=4, microbatches=8, passes="mario", grad_norm="off"
        )
        yield pipec.compile(
            scheme="chimera",
            devices=2,
            microbatches=4,
            model=self.config,
            dp=2,
            zero=1,
            seq_length=8,
        )
        yield pipec.compile(scheme="1f1b", devices=1, microbatches=1)
        for scheme in ("1f1b", "chimera"):
            yield pipec.compile(scheme=scheme, devices=2, batch_ramp="4@0,2@3,8@5")


class Compiling(Case):
    def test_values_become_the_text_of_options(self):
        profile = types.SimpleNamespace(path=self.folder / "x.profile")
        profile.path.write_text("{}")
        for options, words in (
            (
                dict(passes=["apply-checkpoint", "overlap-recompute"]),
                "--passes apply-checkpoint,overlap-recompute",
            ),
            (dict(passes=()), ""),
            (dict(passes=None, zero=None), ""),
            (dict(costs=dict(f=[1, 2.5, 1, 1], b=2)), "--costs f=1:2.5:1:1,b=2"),
            (dict(costs={"f": "3ms", "b": "6ms"}), "--costs f=3ms,b=6ms"),
            (dict(memory_limit=[2, np.float32(2.5), 3, np.int64(3)]), "--memory-limit 2:2.5:3:3"),
            (dict(memory_limit=2), "--memory-limit 2"),
            (dict(dp=np.array(2), reduce="late"), "--dp 2 --reduce late"),
            (
                dict(model=self.config, layers_per_stage=np.array([1, 1, 1, 1])),
                f"--model {self.config} --layers-per-stage 1,1,1,1",
            ),
            (
                dict(model=str(self.config), sequence_parallel=True, tp=2),
                f"--model {self.config} --sequence-parallel --tp 2",
            ),
            (
                dict(model=self.config, sequence_parallel=False, tp=2),
                f"--model {self.config} --tp 2",
            ),
            (dict(sequence_parallel=False, time_passes=False), ""),
            (
                dict(model=self.config, sequence_parallel="false", tp=2),
                f"--model {self.config} --tp 2",
            ),
            (dict(quiet=True), ""),
        ):
            with self.subTest(options=options):
                plan = pipec.compile(scheme="1f1b", devices=4, microbatches=8, **options)
                given = (
                    "compile --scheme 1f1b --devices 4 --microbatches 8 --evaluation -o -".split()
                )
                self.assertEqual(plan.bytes, shell(*given, *words.split())[0])
        line = shell(
            "compile",
            "--scheme=1f1b",
            "--devices=4",
            "--microbatches=8",
            "-o-",
            "--costs",
            profile.path,
        )[1]
        self.assert_error(
            line[len("pipec: error: ") :],
            pipec.compile,
            scheme="1f1b",
            devices=4,
            microbatches=8,
            costs=profile,
        )

    def test_errors_are_the_lines_of_the_program(self):
        right = dict(scheme="1f1b", devices=4, microbatches=8)
        for options in (
            {},
            dict(right, microbatch=8),
            dict(right, scheme="zb-w"),
            dict(right, devices=0),
            dict(right, devices=-1),
            dict(right, devices=2.5),
            dict(right, devices=10**40),
            dict(right, devices="4 --dp 2"),
            dict(right, microbatches=2**31 - 1),
            dict(right, dp=""),
            dict(right, memory_limit=0.25),
            dict(right, memory_limit=float("nan")),
            dict(right, memory_limit=float("inf")),
            dict(right, costs="f=1,q=2"),
            dict(right, costs=self.folder),
            dict(right, costs="no\nsuch\nfile"),
            dict(right, machine="\udcff"),
            dict(right, sequence_parallel=True),
            dict(right, q=True),
            dict(right, print_after="all"),
            dict(right, model="--model"),
            dict(right, costs="f=1", machine="h200"),
        ):
            with self.subTest(options=options):
                words = ["compile", "-o", "-"]
                for name, value in options.items():
                    word = "true" if value is True else value
                    name = "--" + name.replace("_", "-")
                    words += [name, ""] if word == "" else [f"{name}={word}"]
                line = shell(*words)[1]
                self.assertTrue(line.startswith("pipec: error: "), line)
                error = self.assert_error(line[len("pipec: error: ") :], pipec.compile, **options)
                self.assertEqual(error.status, 2)
        self.assertEqual(repr(pickle.loads(pickle.dumps(error))), repr(error))
        self.assertEqual(pickle.loads(pickle.dumps(pipec.Error("x", status=1))).status, 1)

    def test_hostile_values_are_errors(self):
        loop = []
        loop.append(loop)
        for value in (
            object(),
            b"1f1b",
            {1, 2},
            (i for i in range(3)),
            1j,
            loop,
            [[[1]]],
            dict(f=dict(a=1)),
            10**5000,
            "a\0b",
            "\ud800",
            [None],
            types.SimpleNamespace(path=3.5j),
            "x" * 3_000_000,
            list(range(1_000_000)),
        ):
            with self.subTest(kind=type(value)):
                with self.assertRaises(pipec.Error):
                    pipec.compile(scheme="1f1b", devices=4, microbatches=8, costs=value)
        for name in (
            "",
            "--dp",
            "dp=2 ",
            "Devices",
            "a b",
            "output",
            "format",
            "help",
            "_dp",
            "d\np",
        ):
            with self.subTest(name=name):
                with self.assertRaises(pipec.Error):
                    pipec.compile(scheme="1f1b", devices=4, microbatches=8, **{name: 1})

    def test_notes_are_logged(self):
        with self.assertLogs("pipec", logging.INFO) as logs:
            pipec.compile(scheme="1f1b", devices=2, microbatches=2, costs="f=1ms,b=2")
        self.assertEqual(
            [(each.levelname, each.getMessage()) for each in logs.records],
            [
                (
                    "WARNING",
                    "--costs: b=2: in seconds and bytes, as f=1ms has a unit (a unit for each)",
                ),
                ("INFO", "plan: 1f1b on 2 devices, 2 micro-batches, 36 instructions"),
            ],
        )

    def test_threads(self):
        plans = [None] * 8

        def work(i):
            plans[i] = pipec.compile(scheme="zb-h1", devices=4, microbatches=8, memory_limit=3)

        threads = [threading.Thread(target=work, args=(i,)) for i in range(len(plans))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(len(set(plans)), 1)


class Reading(Case):
    def test_head_and_lists_are_those_of_json(self):
        for plan in self.plans():
            with self.subTest(plan=plan):
                shown = json.loads(plan.show("json"))
                for name in ("scheme", "passes", "p2p", "devices", "stages", "microbatches"):
                    self.assertEqual(getattr(plan, name), shown[name])
                self.assertEqual(
                    [list(pipe) for pipe in plan.pipes],
                    [pipe["device_of"] for pipe in shown["pipes"]],
                )
                self.assertEqual(list(plan.pipe_of), shown["pipe_of"])
                self.assertEqual(plan.rank_order, shown["rank_order"])
                self.assertEqual(plan.batch_ramp, shown["batch_ramp"])
                routines = shown.get("routines", [])
                self.assertEqual(plan.routines, tuple(routine["name"] for routine in routines))
                for routine in [dict(shown, name="step"), *routines]:
                    self.assertEqual(list(plan.pipes_of(routine["name"])), routine["pipe_of"])
                    self.assertEqual(
                        plan.microbatches_of(routine["name"]), routine["microbatches"]
                    )
                for routine, key in (
                    ("prologue",) * 2,
                    ("step", "body"),
                    ("epilogue",) * 2,
                    ("evaluation",) * 2,
                    *((name, name) for name in plan.routines),
                ):
                    lists = plan.lists(routine)
                    self.assertEqual(len(lists), plan.devices)
                    for program, row in zip(lists, shown["lists"]):
                        self.assertEqual([self.as_json(i) for i in program], row.get(key, []))

    def as_json(self, instruction):
        row = instruction._asdict()
        return {
            name: value
            for name, value in row.items()
            if value not in (None, -1) and value is not False
        }

    def test_text_is_that_of_show(self):
        for plan in self.plans():
            with self.subTest(plan=plan):
                lines = [
                    " ".join(line.split())
                    for line in plan.show().splitlines()
                    if line.startswith("  ")
                ]
                texts = []
                for device in range(plan.devices):
                    for routine in ("prologue", "step", "epilogue", *plan.routines):
                        program = plan.lists(routine)[device]
                        texts += [program.text(i) for i in range(len(program))]
                self.assertEqual(texts, lines)

    def test_attributes(self):
        plan = pipec.compile(
            scheme="1f1b",
            devices=2,
            microbatches=4,
            model=self.config,
            dp=2,
            zero=1,
            dtype="bf16",
            backend="cuda",
            micro_batch_size=3,
            seq_length=8,
            layers_per_stage=[1, 3],
            tp=2,
            sequence_parallel=True,
            keep="gelu",
            lora="r=4,alpha=8",
            documents=True,
            document_length=5,
            recompute="attention",
            grad_norm="off",
            costs="f=1,b=3",
            passes="apply-checkpoint",
            rank_order="tp,dp,pp",
        )
        self.assertEqual(plan.rank_order, "tp,dp,pp")
        job = plan.job
        self.assertEqual(job.pop("model")["n_embd"], 8)
        self.assertEqual(
            {key: job[key] for key in sorted(job) if key in JOB},
            dict(
                backend="cuda",
                document_length=5,
                documents=True,
                dtype="bf16",
                keep="gelu",
                layers_per_stage=[1, 3],
                lora="r=4,alpha=8,c_attn",
                micro_batch_size=3,
                recompute="attention",
                sequence_length=8,
                sequence_parallel=True,
                shapes=None,
                tp=2,
            ),
        )
        shapes = "2x8,1x4x3"
        mixed = pipec.compile(scheme="1f1b", devices=2, model=self.config, shapes=shapes)
        self.assertEqual((mixed.job["shapes"], mixed.microbatches), (shapes, 3))
        self.assertEqual(
            (plan.replicas, plan.zero, plan.clip, plan.costs, plan.passes, plan.tied),
            (2, 1, False, "f=1,b=3", "apply-checkpoint", ()),
        )
        self.assertTrue(all(map(len, plan.lists("evaluation"))))
        self.assertEqual(
            pipec.compile(scheme="1f1b", devices=4, microbatches=4, tied=[0, 3]).tied, (0, 3)
        )
        plain = pipec.compile(scheme="gpipe", devices=1, microbatches=1, evaluation=False)
        self.assertFalse(any(map(len, plain.lists("evaluation"))))
        self.assertEqual(
            (plain.replicas, plain.zero, plain.clip, plain.costs, plain.job), (1, 0, True, "", None)
        )
        self.assertEqual(plain.rank_order, "tp,pp,dp")
        self.assertEqual(
            repr(plain), "<pipec.Plan gpipe: 1 devices, 1 stages, 1 micro-batches, async>"
        )

    def test_ramp(self):
        plan = pipec.compile(scheme="1f1b", devices=2, batch_ramp="4@0,6@2,8@5,4@6")
        self.assertEqual((plan.batch_ramp, plan.microbatches), ("4@0,6@2,8@5,4@6", 8))
        self.assertEqual(plan.routines, ("step-4", "step-6", "evaluation"))
        names = [plan.routine_of(step) for step in range(8)]
        self.assertEqual(names, ["step-4"] * 2 + ["step-6"] * 3 + ["step"] + ["step-4"] * 2)
        self.assertEqual(plan.routine_of(10**12), "step-4")
        self.assertEqual([plan.microbatches_of(name) for name in names], [4, 4, 6, 6, 6, 8, 4, 4])
        self.assert_error("step: -1 (0 for the first one)", plan.routine_of, -1)
        for call in (plan.pipes_of, plan.microbatches_of):
            self.assert_error("routine: 'step-8' (step, step-4, step-6, evaluation)", call, "step-8")
        plain = pipec.compile(scheme="1f1b", devices=2, microbatches=8, evaluation=False)
        self.assertEqual((plain.batch_ramp, plain.routines, plain.routine_of(5)), ("", (), "step"))

    def test_columns(self):
        program = pipec.compile(scheme="1f1b", devices=2, microbatches=4).lists()[0]
        dtypes = dict(
            op="u1",
            stage="i4",
            micro="i4",
            peer="i4",
            value="u1",
            sent="?",
            bucket="i2",
            pipe="i2",
            version="i2",
            overlap="?",
        )
        numbers = {row["name"]: row["number"] for row in pipec.ops()}
        kinds = {row["name"]: row["number"] for row in pipec.values()}
        for name, dtype in dtypes.items():
            column = getattr(program, name)
            self.assertEqual((column.dtype, column.shape), (np.dtype(dtype), (len(program),)))
            with self.assertRaises(ValueError):
                column[0] = 1
        self.assertEqual((program.op == numbers["FW"]).sum(), 4)
        self.assertEqual(
            ((program.op == numbers["WAIT"]) & (program.value == kinds["grad"])).sum(), 4
        )
        self.assertEqual(program[-1], list(program)[-1])
        self.assertEqual(
            program[0], pipec.Instruction("LOAD", 0, 0, -1, None, False, -1, -1, -1, False)
        )
        for wrong in (len(program), -len(program) - 1):
            with self.assertRaises(IndexError):
                program[wrong]
            with self.assertRaises(IndexError):
                program.text(wrong)
        for wrong in (slice(0, 2), "op", None, 1.0):
            with self.assertRaises(TypeError):
                program[wrong]

    def test_a_plan_is_a_value(self):
        plan = pipec.compile(scheme="1f1b", devices=2, microbatches=4)
        other = pipec.compile(scheme="1f1b", devices=2, microbatches=5)
        for same in (
            pickle.loads(pickle.dumps(plan)),
            copy.deepcopy(plan),
            pipec.Plan(bytearray(plan.bytes)),
        ):
            self.assertEqual((same, hash(same), same.pipes), (plan, hash(plan), plan.pipes))
        self.assertNotEqual(plan, other)
        with self.assertRaises(AttributeError):
            plan.scheme = "gpipe"
        self.assert_error(
            "routine: 'body' (prologue, step, epilogue, evaluation)", plan.lists, "body"
        )
        pipec.ops()[0]["name"] = "changed"
        self.assertEqual(pipec.ops()[0]["name"], "LOAD")

    def test_damaged_bytes_are_errors(self):
        plan = pipec.compile(scheme="chimera", devices=2, batch_ramp="2@0,4@1", model=self.config)
        rng = random.Random(1)
        for length in [*range(0, 64), *rng.sample(range(len(plan.bytes)), 200)]:
            with self.assertRaises(pipec.Error):
                pipec.Plan(plan.bytes[:length])
        read = 0
        for _ in range(1500):
            data = bytearray(plan.bytes)
            for _ in range(rng.randint(1, 8)):
                at = rng.randrange(len(data) - 16)
                width = rng.choice((1, 2, 4))
                data[at : at + width] = rng.choice(
                    (b"\xff\xff\xff\xff", b"\x00\x00\x00\x80", rng.randbytes(4))
                )[:width]
            try:
                damaged = pipec.Plan(data)
                damaged.routine_of(0)
                for routine in ("step", *damaged.routines):
                    damaged.microbatches_of(routine)
                    for program in damaged.lists(routine):
                        [program.text(i) for i in range(min(len(program), 3))], len(
                            list(program.rows())
                        )
                damaged.job
                read += 1
            except pipec.Error:
                pass
        self.assertGreater(read, 100)
        for value in (b"", b"program", "text", None, 3, [1, 2]):
            with self.assertRaises((pipec.Error, TypeError)):
                pipec.Plan(value)

    def test_a_newer_format_is_refused(self):
        data = bytearray(pipec.compile(scheme="1f1b", devices=2, microbatches=2).bytes)
        root = struct.unpack_from("<I", data)[0]
        vtable = root - struct.unpack_from("<i", data, root)[0]
        struct.pack_into("<I", data, root + struct.unpack_from("<H", data, vtable + 4)[0], 99)
        self.assert_error(
            "plan: has format 99 (3 to 6: a newer package reads newer ones)", pipec.Plan, data
        )


JOB = (
    "backend",
    "document_length",
    "documents",
    "dtype",
    "keep",
    "layers_per_stage",
    "lora",
    "micro_batch_size",
    "recompute",
    "sequence_length",
    "sequence_parallel",
    "shapes",
    "tp",
)


class Files(Case):
    NAMES = (
        "a.plan",
        "a b.plan",
        "-a.plan",
        "-",
        "a\nb.plan",
        "\u00e4.plan",
        "a\udcff.plan",
        "-o",
        "--help",
    )

    def test_any_name_is_a_file(self):
        plan = pipec.compile(scheme="1f1b", devices=2, microbatches=2)
        os.chdir(self.folder)
        self.addCleanup(os.chdir, "/")
        for name in self.NAMES:
            for path in (name, Path(name)):
                with self.subTest(path=path):
                    plan.save(path)
                    self.assertEqual(pipec.load(path), plan)
                    self.assertEqual(pipec.load(path, verify=False), plan)
            Path(name).write_text(plan.show())
            if "\n" not in name:
                self.assertEqual(pipec.import_(name), plan)
            self.assertEqual(pipec.import_(Path(name), format="text"), plan)
            Path(name).write_text(json.dumps(GPT2))
            with_model = pipec.compile(scheme="1f1b", devices=2, microbatches=2, model=Path(name))
            self.assertEqual(with_model.job["model"]["n_embd"], 8)
            os.unlink(name)
        self.assertEqual(os.listdir(), ["config.json"])

    def test_what_cannot_be_read_or_written(self):
        plan = pipec.compile(scheme="1f1b", devices=2, microbatches=2)
        missing = self.folder / "no.plan"
        self.assert_error(
            f"{missing}: cannot be read: No such file or directory (a plan)", pipec.load, missing
        )
        self.assert_error("a\0b: cannot be read: embedded null byte (a plan)", pipec.load, "a\0b")
        with self.assertRaises(pipec.Error):
            pipec.load(self.folder)
        with self.assertRaises(OSError):
            plan.save(self.folder / "no" / "a.plan")
        (self.folder / "folder").mkdir()
        with self.assertRaises(OSError):
            plan.save(self.folder / "folder")
        self.assertEqual(sorted(os.listdir(self.folder)), ["config.json", "folder"])

    def test_a_loaded_file_is_proved(self):
        path = self.folder / "a.plan"
        plan = pipec.compile(scheme="1f1b", devices=2, microbatches=2)
        data = bytearray(plan.bytes)
        data[len(data) // 2] ^= 1
        path.write_bytes(data)
        with self.assertRaises(pipec.Error) as caught:
            pipec.load(path)
        self.assertRegex(str(caught.exception), f"^{path}: damaged")
        self.assertEqual(caught.exception.status, 2)


class Importing(Case):
    def test_lists(self):
        plan = pipec.compile(scheme="zb-v", devices=2, microbatches=4)
        lists, table = plan.show(), plan.show("torch-csv")
        (self.folder / "a.txt").write_text(lists)
        (self.folder / "a.csv").write_text(table)
        (self.folder / "b").write_text(table)
        self.assertEqual(pipec.import_(lists), plan)
        self.assertEqual(pipec.import_("\ufeff" + lists), plan)
        self.assertEqual(pipec.import_(self.folder / "a.txt"), plan)
        by_table = pipec.import_(table)
        self.assertEqual(by_table.stages, 4)
        self.assertEqual(pipec.import_(str(self.folder / "a.csv")), by_table)
        self.assertEqual(pipec.import_(self.folder / "b", format="torch-csv"), by_table)
        self.assertEqual(pipec.import_(table, dp=2, costs=dict(b=3)).replicas, 2)
        torch = {
            "pipec.torch": types.ModuleType("torch"),
            "pipec.torch._schedules": types.ModuleType("schedules"),
        }
        torch["pipec.torch._schedules"].schedule_csv = lambda schedule: schedule.table
        with mock.patch.dict(sys.modules, torch):
            self.assertEqual(pipec.import_(types.SimpleNamespace(table=table)), by_table)

    def test_a_layout_needs_no_lists(self):
        options = dict(model=self.config, microbatches=2)
        self.assertEqual(
            pipec.import_(layout="Et|tt|tL", **options),
            pipec.compile(scheme="1f1b", devices=3, layers_per_stage=[1, 2, 1], **options),
        )

    def test_errors(self):
        plan = pipec.compile(scheme="1f1b", devices=2, microbatches=2)
        lines = plan.show().splitlines()
        lines[2], lines[3] = lines[3], lines[2]
        with self.assertRaises(pipec.Error) as caught:
            pipec.import_("\n".join(lines))
        self.assertRegex(str(caught.exception), r"^lists: device 0, 'FW s0 m0' \(line 3\): ")
        for source, options in (
            ("\n", {}),
            ("a,b\n", {}),
            ("program\n\0", {}),
            ("\ud800\n", {}),
            ("", {}),
            ("a\0b", {}),
            (lines[0] + "\n", dict(format="csv")),
            (lines[0] + "\n", dict(format=3)),
        ):
            with self.subTest(source=source), self.assertRaises(pipec.Error):
                pipec.import_(source, **options)


class Predicting(Case):
    def test_simulate(self):
        plan = pipec.compile(scheme="1f1b", devices=2, microbatches=4, costs="f=1,b=3")
        (self.folder / "a.plan").write_bytes(plan.bytes)
        for options, words in (
            ({}, []),
            (dict(costs=dict(f=1, b=1)), ["--costs", "f=1,b=1"]),
            (dict(why=True, transport="rendezvous"), ["--why", "--transport", "rendezvous"]),
        ):
            out = shell("simulate", self.folder / "a.plan", "--format", "json", *words)[0]
            self.assertEqual(plan.simulate(**options), json.loads(out))
        self.assertEqual(plan.simulate()["makespan"], 20)
        self.assert_error("--machine: plan has no model", plan.simulate, machine="h200")
        self.assert_error(
            "--format: is not an option here (results are returned)", plan.simulate, format="svg"
        )

    def test_show(self):
        plan = pipec.compile(scheme="1f1b", devices=2, microbatches=4)
        (self.folder / "a.plan").write_bytes(plan.bytes)
        for format in ("text", "grid", "json", "svg", "html", "chrome-trace", "torch-csv"):
            out = shell("show", self.folder / "a.plan", "--format", format)[0]
            self.assertEqual(plan.show(format), out.decode())
        self.assertEqual(plan.show(device=1).split()[:2], ["device", "1"])
        self.assertTrue(plan._repr_svg_().startswith("<svg "))
        for format in ("pdf", None, "", "text -q"):
            with self.assertRaises(pipec.Error):
                plan.show(format)

    def test_verify(self):
        plan = pipec.compile(scheme="1f1b", devices=2, microbatches=4)
        (self.folder / "a.plan").write_bytes(plan.bytes)
        for options, words in (({}, []), (dict(transport="nccl"), ["--transport", "nccl"])):
            out = shell("verify", self.folder / "a.plan", "--format", "json", *words)[0]
            printed = json.loads(out)
            del printed["plan"]
            self.assertEqual(plan.verify(**options), printed)
            self.assertEqual("nccl" in printed, bool(options))

    def test_tune(self):
        options = dict(model=self.config, machine="a100-40g", devices=4, global_batch_size=8)
        with self.assertLogs("pipec", logging.WARNING) as logs:
            tuned = pipec.tune(**options)
        self.assertEqual(
            logs.records[0].getMessage(),
            "memory is counted for --backend cpu (GPUs: --backend cuda)",
        )
        words = f"tune --model {self.config} --machine a100-40g --devices 4".split()
        words += ["--global-batch-size", 8]
        report = json.loads(shell(*words, "--format", "json")[0])
        for key in ("scheme", "pp", "tp", "dp", "micro_batch_size", "passes", "fits"):
            self.assertEqual(
                [row[key] for row in tuned.candidates], [row[key] for row in report["candidates"]]
            )
        self.assertEqual(tuned.best, tuned.candidates[0])
        self.assertEqual(tuned.plan.scheme, tuned.best["scheme"])
        self.assertEqual(
            (tuned.plan.devices, tuned.plan.replicas), (tuned.best["pp"], tuned.best["dp"])
        )
        self.assertEqual(str(tuned).splitlines()[0], shell(*words)[0].decode().splitlines()[0])
        self.assert_error(
            "unknown option '--device' (did you mean --devices? pipec tune --help)",
            pipec.tune,
            device=4,
        )

    def test_lists_of_what_there_is(self):
        for command in ("schemes", "passes", "ops", "values", "machines"):
            self.assertEqual(
                getattr(pipec, command)(), json.loads(shell(command, "--format", "json")[0])
            )
        self.assertEqual(pipec.help("compile"), shell("help", "compile")[0].decode())
        self.assertEqual(pipec.help(), shell("help")[0].decode())
        for command in ("compil", "a\0b", "", "-x"):
            with self.subTest(command=command), self.assertRaises(pipec.Error):
                pipec.help(command)


class Program(Case):
    def program(self, text):
        path = self.folder / "pipec"
        path.write_text("#!/bin/bash\n" + text)
        path.chmod(0o755)
        return mock.patch.dict(os.environ, PIPEC=str(path))

    def compile(self):
        return pipec.compile(scheme="1f1b", devices=2, microbatches=2)

    def test_one_that_is_not_it(self):
        with mock.patch.dict(os.environ, PIPEC="/nonexistent"):
            self.assert_error(
                "pipec: '/nonexistent' cannot be run: No such file or directory", self.compile
            )
        with mock.patch.dict(os.environ, PIPEC=""), self.assertRaises(pipec.Error):
            self.compile()
        with mock.patch.dict(os.environ, PIPEC="/bin/true"):
            self.assertEqual(
                self.assert_error(
                    "PIPEC: '/bin/true' is not pipec (its path)", self.compile
                ).status,
                1,
            )
        with self.program("echo pipec 0.1, plans of format 1"):
            self.assert_error(
                f"PIPEC: {self.folder}/pipec is pipec 0.1 "
                f"(pipec {pipec.__version__}, as the package)",
                self.compile,
            )

    def test_one_that_dies(self):
        version = f'[[ $1 != --version ]] || exec echo "pipec {pipec.__version__}, x"; '
        with self.program(version + "kill -9 $$"):
            error = self.assert_error("pipec compile: was ended by SIGKILL", self.compile)
            self.assertEqual(error.status, -9)
        self.setUp()
        with self.program(version + "echo half; echo a line >&2; exit 3"):
            with self.assertLogs("pipec", logging.INFO) as logs:
                error = self.assert_error("pipec compile: ended with status 3", self.compile)
            self.assertEqual((error.status, logs.records[0].getMessage()), (3, "a line"))
        self.setUp()
        with self.program(version + "echo half a plan"):
            self.assert_error("plan: not a plan (what pipec wrote)", self.compile)

    def test_none(self):
        code = "import pipec; pipec.compile(scheme='1f1b', devices=2, microbatches=2)"
        package = Path(pipec.__file__).parent
        copied = self.folder / "copied"
        copied.mkdir()
        subprocess.run(["cp", "-r", package, copied], check=True)
        environment = dict(PATH="/nonexistent", PYTHONPATH=str(copied), PYTHONDONTWRITEBYTECODE="1")
        result = subprocess.run(
            ["/usr/bin/python3", "-c", code],
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        self.assertIn(
            "pipec.Error: pipec: the program is not installed with this package", result.stderr
        )
        result = subprocess.run(
            ["/usr/bin/python3", "-c", "import pipec, sys; print('torch' in sys.modules)"],
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        self.assertEqual((result.stdout, result.stderr), ("False\n", ""))

    def test_command_and_module(self):
        self.assertEqual(shell("--version")[0].decode().split()[1].rstrip(","), pipec.__version__)
        for words in (["--version"], ["compile", "--devices=0"], ["schemes"]):
            by_module = subprocess.run(
                [sys.executable, "-m", "pipec", *words], capture_output=True, check=False
            )
            by_name = subprocess.run(["pipec", *words], capture_output=True, check=False)
            self.assertEqual(
                (by_module.returncode, by_module.stdout, by_module.stderr),
                (by_name.returncode, by_name.stdout, by_name.stderr),
            )


class Wheel(unittest.TestCase):
    def setUp(self):
        self.path = Path(os.environ["WHEEL"])
        self.wheel = zipfile.ZipFile(self.path)
        self.addCleanup(self.wheel.close)

    def test_size_and_record(self):
        self.assertLess(self.path.stat().st_size, 4_000_000)
        names = set(self.wheel.namelist())
        (record,) = [name for name in names if name.endswith(".dist-info/RECORD")]
        rows = {
            name: (digest, size)
            for name, digest, size in csv.reader(self.wheel.read(record).decode().splitlines())
        }
        self.assertEqual(set(rows), names)
        for name in names - {record}:
            data = self.wheel.read(name)
            digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).decode().rstrip("=")
            self.assertEqual(rows[name], (f"sha256={digest}", str(len(data))))

    def test_the_program_needs_no_library(self):
        (name,) = [name for name in self.wheel.namelist() if name.endswith(".data/scripts/pipec")]
        elf = self.wheel.read(name)
        begin, size, count = (
            struct.unpack_from(code, elf, at)[0]
            for code, at in (("<Q", 32), ("<H", 54), ("<H", 56))
        )
        kinds = {struct.unpack_from("<I", elf, begin + size * i)[0] for i in range(count)}
        self.assertIn(1, kinds)  # PT_LOAD
        self.assertNotIn(3, kinds)  # PT_INTERP

    def test_types_know_all_options(self):
        table = json.loads(shell("options")[0])
        stub = ast.parse(self.wheel.read("pipec/_typed.pyi"))
        classes = {node.name: node for node in stub.body if isinstance(node, ast.ClassDef)}
        for command in ("compile", "import", "tune", "simulate", "show", "verify"):
            fields = {
                node.target.id
                for node in classes[f"{command.capitalize()}Options"].body
                if isinstance(node, ast.AnnAssign)
            }
            options = {
                row["name"][2:].replace("-", "_")
                for row in table[command]
                if row["name"].startswith("--")
            }
            self.assertEqual(fields, options - {"output", "format"})
        types = {
            node.target.id: ast.unparse(node.annotation)
            for node in classes["CompileOptions"].body
            if isinstance(node, ast.AnnAssign)
        }
        self.assertEqual(
            [
                types[name]
                for name in ("scheme", "devices", "dp", "quiet", "zero", "model", "memory_limit")
            ],
            [
                "Required[Text]",
                "Required[SupportsIndex]",
                "SupportsIndex",
                "bool",
                "Literal['0', '1', 0, 1]",
                "File",
                "Text",
            ],
        )


if __name__ == "__main__":
    unittest.main()
