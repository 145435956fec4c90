"""Training on prompts of which the completions count, from tools/tokens to losses, beside a plain loop
in PyTorch (finetune_reference.py): schemes, ranks as threads and processes, replicas, tensor
parallelism, shuffled passes, validation, and continued in the middle of a pass.

    finetune_test.py PIPEC PIPERUN TOOLS
"""

import copy
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

import torch
import transformers

from finetune_model import write_model, write_prompts
from finetune_reference import Sequences, steps, train, worst

PIPEC, PIPERUN, TOOLS = (Path(each).resolve() for each in sys.argv[1:4])
TOKENS_PER_SEQUENCE, PER_STEP, PASSES, SEED, VAL_EVERY = 24, 16, 2, 3, 5
# fp32 sums in another order: PyTorch's own losses in fp32 and in fp64 are 1.2e-7 apart.
TOLERANCE = 1e-6
STEPS_OF_PASS, FROM = 13, 7  # where a training is interrupted in each pass
# scheme, devices, tp, dp, processes or threads
ONE = ("gpipe", 1, 1, 1, "threads")
SAME_BITS = [
    ONE,
    ("1f1b", 2, 1, 1, "threads"),
    ("1f1b", 2, 1, 1, "processes"),
    ("zb-v", 2, 1, 1, "processes"),
    ("1f1b", 4, 1, 1, "threads"),
    ("1f1b", 4, 1, 1, "processes"),
]
ROUNDED = [("1f1b", 1, 1, 2), ("1f1b", 1, 2, 1), ("1f1b", 2, 1, 2), ("zb-v", 2, 2, 1)]


class Case(unittest.TestCase):
    maxDiff = None

    @classmethod
    def setUpClass(cls):
        cls.temporary = tempfile.TemporaryDirectory()
        cls.folder = Path(cls.temporary.name)
        os.chdir(cls.folder)
        transformers.utils.logging.disable_progress_bar()
        torch.set_num_threads(1)
        cls.model = write_model(cls.folder / "model")
        for name, first, count in (("d", 0, 200), ("v", 200, 30)):
            write_prompts(f"{name}.jsonl", first, count)
            for pad, options in (("rows", ["--pad", TOKENS_PER_SEQUENCE]), ("stream", [])):
                cls.call(
                    TOOLS / "tokens",
                    f"{name}.jsonl",
                    "--tokenizer",
                    "model",
                    "-o",
                    f"{name}.{pad}",
                    *options,
                )
        cls.plans, cls.expected = {}, {}

    @classmethod
    def tearDownClass(cls):
        os.chdir("/")
        cls.temporary.cleanup()

    @staticmethod
    def call(*words):
        run = subprocess.run(
            [*map(str, words)],
            capture_output=True,
            text=True,
            timeout=300,
            env=dict(os.environ, PYTHON=sys.executable),
        )
        if run.returncode:
            raise AssertionError(
                f"{' '.join(map(str, words))}: exit {run.returncode}\n{run.stdout}{run.stderr}"
            )
        return run.stdout

    def plan(self, scheme, devices, tp, dp):
        """Always of PER_STEP sequences a step."""
        name = f"{scheme}-{devices}-{tp}-{dp}.plan"
        if not Path(name).exists():
            self.call(
                PIPEC,
                "compile",
                "--scheme",
                scheme,
                "--devices",
                devices,
                "--tp",
                tp,
                "--dp",
                dp,
                "--microbatches",
                PER_STEP // dp // 2,
                "--micro-batch-size",
                2,
                "--model",
                "model",
                "--seq-length",
                TOKENS_PER_SEQUENCE,
                "-o",
                name,
            )
        return name

    def run_plan(self, cut, data, *options, start=("--weights", "model"), seed=SEED):
        """The lines of the log, and in the order of SAME_BITS' numbers: losses and norms, as text."""
        *cut, how = cut
        scheme, devices, tp, dp = cut
        launch = ["mpiexec", "-n", devices * tp * dp] if how == "processes" else []
        Path("log").unlink(missing_ok=True)
        self.call(
            *launch,
            PIPERUN,
            self.plan(*cut),
            "--data",
            f"d.{data}",
            "--epochs",
            PASSES,
            "--lr",
            "1e-3",
            "--seed",
            seed,
            "--log",
            "log",
            *start,
            *options,
        )
        lines = [json.loads(line) for line in Path("log").read_text().splitlines()]
        bits = re.findall(r'"loss":([^,]*),"grad_norm":([^,}]*)', Path("log").read_text())
        self.assertEqual(len(bits), len(lines))
        return lines, bits

    def reference(self, data, shuffled):
        """What PyTorch computes: losses, norms, validations of all of v, and of its first batch."""
        key = data, shuffled
        if key not in self.expected:
            sequences, validation = (
                Sequences(self.folder / f"{name}.{data}", TOKENS_PER_SEQUENCE) for name in "dv"
            )
            order = list(steps(sequences, PER_STEP, PASSES, SEED if shuffled else None))
            batches = list(steps(validation, PER_STEP, 1))
            self.assertGreater(len(batches), 1)
            results = [
                train(copy.deepcopy(self.model), sequences, order, validation, VAL_EVERY, some)
                for some in (batches, batches[:1])
            ]
            self.expected[key] = (*results[0], results[1][2])
        return self.expected[key]

    def assert_close(self, lines, expected, what, first=0):
        losses, norms = ([line[key] for line in lines] for key in ("loss", "grad_norm"))
        errors = worst(losses, expected[0][first:]), worst(norms, expected[1][first:])
        print(f"{what}: losses within {errors[0]:.1e} of PyTorch's, norms {errors[1]:.1e}")
        self.assertLess(errors[0], TOLERANCE, what)
        self.assertLess(errors[1], 10 * TOLERANCE, what)  # as the optimizer has moved weights by then

    def available(self, cuts):
        if shutil.which("mpiexec"):
            return cuts
        print("SKIPPED: processes, as mpiexec is not there")
        return [cut for cut in cuts if cut[-1] == "threads"]


class TrainingTest(Case):
    def test_what_counts(self):
        """Some tokens, and not all; and the last step of a pass has fewer sequences."""
        for data in ("rows", "stream"):
            sequences = Sequences(self.folder / f"d.{data}", TOKENS_PER_SEQUENCE)
            counting = [int((sequences[n][1] >= 0).sum()) for n in range(sequences.count)]
            self.assertLess(0, sum(counting))
            self.assertLess(sum(counting), 0.8 * TOKENS_PER_SEQUENCE * sequences.count)
            self.assertNotEqual(sequences.count % PER_STEP, 0)

    def test_one_copy_has_the_same_bits(self):
        for data in ("rows", "stream"):
            for shuffle in ([], ["--shuffle"]):
                wanted = None
                for cut in self.available(SAME_BITS if data == "rows" else SAME_BITS[:4]):
                    lines, bits = self.run_plan(cut, data, *shuffle)
                    wanted = wanted or bits
                    self.assertEqual(bits, wanted, (cut, data, shuffle))
                self.assert_close(lines, self.reference(data, bool(shuffle)), f"{data} {shuffle}")

    def test_copies_and_peers_have_rounded_bits(self):
        """And the same ones, in threads and in processes."""
        for cut in ROUNDED:
            threads, processes = ((*cut, how) for how in ("threads", "processes"))
            wanted = None
            for each in self.available([threads, processes]):
                lines, bits = self.run_plan(each, "rows", "--shuffle")
                wanted = wanted or bits
                self.assertEqual(bits, wanted, each)
            self.assert_close(lines, self.reference("rows", True), f"{cut}")

    def test_a_step_without_targets(self):
        """Prompts that fill the rows of the second step; and of one row of the first."""
        write_prompts("holes.jsonl", 0, 3 * PER_STEP)
        lines = Path("holes.jsonl").read_text().splitlines()
        for i in (3, *range(PER_STEP, 2 * PER_STEP)):
            lines[i] = json.dumps({"prompt": "much " * TOKENS_PER_SEQUENCE, "completion": "nothing"})
        Path("holes.jsonl").write_text("\n".join(lines))
        self.call(
            TOOLS / "tokens",
            "holes.jsonl",
            "--tokenizer",
            "model",
            "-o",
            "d.holes",
            "--pad",
            TOKENS_PER_SEQUENCE,
        )
        sequences = Sequences(self.folder / "d.holes", TOKENS_PER_SEQUENCE)
        wanted = train(copy.deepcopy(self.model), sequences, steps(sequences, PER_STEP, PASSES))[0]
        self.assertEqual([loss is None for loss in wanted], [False, True, False] * PASSES)
        for cut in self.available([ONE, ("zb-v", 2, 1, 1, "processes"), ("1f1b", 2, 1, 2, "threads")]):
            losses = [line["loss"] for line in self.run_plan(cut, "holes")[0]]
            self.assertEqual([loss is None for loss in losses], [loss is None for loss in wanted])
            self.assertLess(worst(filter(None, losses), filter(None, wanted)), TOLERANCE, cut)

    def test_passes_differ(self):
        """A shuffled one from the next, from another seed's and from the file's order."""
        wanted = self.run_plan(ONE, "rows", "--shuffle")[1]
        self.assertNotEqual(self.run_plan(ONE, "rows")[1], wanted)
        self.assertNotEqual(self.run_plan(ONE, "rows", "--shuffle", seed=SEED + 1)[1], wanted)

    def test_validation(self):
        for data in ("rows", "stream"):
            for cut in self.available(
                [ONE, ("zb-v", 2, 1, 1, "processes"), ("1f1b", 2, 1, 2, "threads")]
            ):
                for batches, expected in (("all", 2), ("1", 3)):
                    if cut != ONE and batches == "1":
                        continue
                    lines, _ = self.run_plan(
                        cut,
                        data,
                        "--shuffle",
                        "--val-data",
                        f"v.{data}",
                        "--val-every",
                        VAL_EVERY,
                        "--val-batches",
                        batches,
                    )
                    expected = self.reference(data, True)[expected]
                    got = {line["step"]: line["val_loss"] for line in lines if "val_loss" in line}
                    self.assertEqual(list(got), list(expected))
                    self.assertLess(
                        worst(got.values(), expected.values()), TOLERANCE, (cut, data, batches)
                    )


class ResumeTest(Case):
    OTHERS = [ONE, ("1f1b", 2, 1, 1, "threads"), ("zb-v", 2, 1, 1, "processes")]

    def test_in_the_middle_of_a_pass(self):
        """The first pass, and the second one; under other plans, from checkpoints of one run."""
        for shuffle in ([], ["--shuffle"]):
            wanted = self.run_plan(
                ("1f1b", 4, 1, 1, "threads"),
                "rows",
                *shuffle,
                *("--save", f"saves{len(shuffle)}", "--save-every", 1, "--keep", PASSES * STEPS_OF_PASS),
            )[1]
            for at in (FROM, STEPS_OF_PASS + FROM):
                saved = Path(f"saves{len(shuffle)}/step-{at:08}")
                for cut in self.available(self.OTHERS):
                    lines, bits = self.resumed(cut, saved, shuffle)
                    self.assertEqual(lines[0]["step"], at + 1)
                    self.assertEqual(bits, wanted[at:], (cut, at, shuffle))
                for cut in (("1f1b", 2, 1, 2, "threads"), ("1f1b", 1, 2, 1, "threads")):
                    lines, bits = self.resumed(cut, saved, shuffle)
                    self.assert_close(
                        lines, self.reference("rows", bool(shuffle)), f"resumed at {at} {cut}", at
                    )

    def resumed(self, cut, saved, shuffle):
        """From a folder that has that checkpoint alone."""
        shutil.rmtree("copied", ignore_errors=True)
        shutil.copytree(saved, f"copied/{saved.name}")
        return self.run_plan(cut, "rows", *shuffle, "--save", "copied", "--resume", start=())


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1] + sys.argv[4:])
