#!/usr/bin/env python3
"""tools/gpu_check rehearsed without a GPU: its calls from an empty folder in an empty environment.

The bundle's programs are stand-ins that print what the real ones print, or hang, crash, fail or
print nothing. One call of each kind runs the real piperun over the fake of CUDA.
"""

import json
import re
import shutil
import signal
import sys
import time
import unittest
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from unittest import mock

from gpu_bundle import (CASES, DEVICE, FAULTS, SANITIZER_ERRORS, SMI, SPEEDS, STEPS, TOOLKIT,
                        BundleTest, is_right, says, write_program)
from gpu import call as call_module
from gpu import calls

# Of a program: the calls that use it, the kinds of checks that fail, and where it stands.
PLANTED = {
    "kernels": ("first", ["kernels", "speed"], "gpu_kernels"),
    "piperun": ("first", ["train", "profile", "tune", "price"], "piperun"),
    "pipec": ("first", ["train", "profile", "tune", "price"], "pipec"),
    "price": ("first", ["price"], "price_torch.py"),
    "races": ("second", ["race", "ranks"], "piperun"),
    "races' pipec": ("second", ["race", "ranks"], "pipec"),
    "ncu": ("second", ["ncu"], "tools/ncu"),
    "nccl": ("second", ["nccl"], "gpu_nccl"),
    "many runs": ("more", ["train", "race", "schemes", "experiments", "price"], "piperun"),
    "tables": ("tables", ["tune"], "piperun"),
    "torch": ("torch", ["torch"], "bench_torch.py"),
    "predict": ("predict", ["predict"], "piperun"),
    "predict's pipec": ("predict", ["predict"], "pipec"),
    "sanitizer": ("sanitize", ["sanitize"], "tools/compute-sanitizer"),
    "fakes": ("fakes", ["fakes"], "cuda_run_test"),
}


class GpuCheckTest(BundleTest):
    def assert_dead(self, pids):
        for pid in pids:
            for _ in range(100):
                stat = Path(f"/proc/{pid}/stat")
                if not stat.exists() or stat.read_text().split(") ")[1][0] == "Z":
                    break
                time.sleep(0.05)
            else:
                self.fail(f"process {pid} is alive")

    def test_all_is_right(self):
        def run(call):
            bundle = self.bundle(call)
            write_program(bundle.tools / "nvidia-smi", says(SMI))
            return (call, bundle, *bundle.call(call))

        with ThreadPoolExecutor(4) as pool:
            for call, bundle, status, output, rows in pool.map(run, calls.CALLS):
                with self.subTest(call=call):
                    self.assertEqual(status, 0, output)
                    kinds = {check.kind for check in calls.CALLS[call]}
                    self.assertEqual({row["check"] for row in rows}, kinds)
                    for row in rows:
                        if row["name"] == "found":
                            self.assertEqual((row["libcublasLt.so.13"], row["libcupti.so.13"]),
                                             (f"{TOOLKIT}/libcublasLt.so.13", "not found"))
                        elif row["check"] == "device":
                            self.assertEqual((row["name"], row["driver"], row["driver_cuda"]),
                                             ("NVIDIA H200", "580.159.04", "13.0"))
                            self.assertEqual(row["bf16_peak"], 989e12)
                    for name, text in bundle.packed().items():
                        if name.startswith(("logs/experiment", "logs/profile")):
                            self.assertRegex(text, r"^(\$ env |\{\"step\"|name\t|  +us )")
                    if call == "more":
                        log = bundle.packed()["logs/experiment_EAGER_loading.txt"]
                        self.assertRegex(log, r"^\$ env .*CUDA_MODULE_LOADING=EAGER .*/piperun ")

    def test_over_the_fake(self):
        bundle = self.bundle()
        bundle.use_the_fake()
        status, output, rows = bundle.call("first", "race/qwen2.5-1.5B", "schemes", "predict")
        self.assertEqual(status, 0, output)
        trained = [row for row in rows if "tokens_per_second" in row]
        self.assertEqual([row["check"] for row in trained],
                         ["train"] * 6 + ["tune"] * 4 + ["price"] * 2 + ["race"])
        for row in trained:
            self.assertEqual(row["steps"], 2 if row["check"] == "race" else STEPS)
            self.assertIn("starting_kernels_percent", row)
            for figure in ("tokens_per_second", "mfu_6N_12LCT", "mfu_6N_6LCT", "peak_bytes"):
                self.assertGreater(row[figure], 0, row)
        schemes = [row for row in rows if row["check"] == "schemes"]
        self.assertEqual([row["name"] for row in schemes], ["1f1b fp32, 4 ranks on one GPU"])
        self.assertLess(schemes[0]["from_cpu"], 1e-5)
        predicted = [row for row in rows if row["check"] == "predict"]
        self.assertEqual(len(predicted), 4, output)
        for row in predicted[:3]:
            self.assertGreater(row["predicted_ms"], 0)
            self.assertGreater(row["ms"], 0)

    def test_faults(self):
        def run(case):
            (name, (call, kinds, program)), fault = case
            bundle = self.bundle(f"{name} {fault}".replace(" ", "_"))
            bundle.plant(program, fault)
            seconds = "10" if fault == "hang" else "200"
            return (name, fault, kinds, bundle, *bundle.call(call, "--seconds", seconds))

        cases = [(planted, fault) for fault in FAULTS for planted in PLANTED.items()]
        with ThreadPoolExecutor(8) as pool:
            for name, fault, kinds, bundle, status, output, rows in pool.map(run, cases):
                with self.subTest(program=name, fault=fault):
                    _, result, in_log = FAULTS[fault]
                    self.assertEqual(status, 1, output)
                    for kind in kinds:
                        of_kind = [row for row in rows if row["check"] == kind]
                        self.assertTrue(of_kind, f"no row of {kind}: {output}")
                        planted = [row for row in of_kind if re.search(result, row["result"])]
                        self.assertTrue(planted, of_kind)
                    self.assertTrue([file for file, text in bundle.packed().items()
                                     if in_log in text.split("\n", 1)[-1] or in_log == "$ "], fault)
                    others = [row for row in rows if row["check"] not in kinds]
                    if fault == "hang":
                        self.assert_dead((bundle.here / "hung").read_text().split()
                                         if (bundle.here / "hung").exists() else
                                         (bundle.tools / "hung").read_text().split())
                    else:
                        self.assertEqual([row for row in others if not is_right(row)], [])

    def test_partial_results_of_what_is_cut_off(self):
        bundle = self.bundle()
        write_program(bundle.here / "gpu_kernels", f"""case $1 in
device) {says(DEVICE)} ;;
*) {says(SPEEDS)}
   {says(CASES)}
   sleep 1000 ;;
esac""")
        status, output, rows = bundle.call("kernels/ours", "speed", "--seconds", "4")
        self.assertEqual(status, 1, output)
        self.assertIn(2, [row.get("right") for row in rows], rows)
        speed = {row["name"]: row for row in rows if row["check"] == "speed"}
        self.assertEqual(speed["layer norm forward, C 768"]["GB/s"], 2812.0)
        self.assertEqual(speed["ceiling: a product 8192 x 8192 x 8192"]["TFLOP/s"], 788.1)
        self.assertRegex(speed["3 speeds"]["result"], "^cut off after")

    def test_a_wrong_case_and_a_refused_product(self):
        bundle = self.bundle()
        write_program(bundle.here / "gpu_kernels", f"""case $1 in
device) {says(DEVICE)} ;;
cases) {says("gelu  WRONG 3.50, other bits the second time")}; exit 1 ;;
speed) {says(SPEEDS)}; {says("ceiling: a product 8192 x 8192 x 8192  WRONG no algorithm")}; exit 1 ;;
esac""")
        status, output, rows = bundle.call("kernels/ours", "speed")
        self.assertEqual(status, 1, output)
        wrong = {row["name"]: row["result"] for row in rows if row["result"] != "ok"}
        self.assertEqual(wrong["gelu"], "WRONG 3.50, other bits the second time")
        self.assertEqual(wrong["ceiling: a product 8192 x 8192 x 8192"], "WRONG no algorithm")

    def test_output_that_nobody_foresaw(self):
        bundle = self.bundle()
        row = bundle.here / "piperun"
        row.write_text(row.read_text().replace('"loss": 5.5, ', ""))
        status, output, rows = bundle.call("train/gpt2-124M", "nccl")
        self.assertEqual(status, 1, output)
        self.assertEqual([row["result"] for row in rows[2:]], ["WRONG KeyError: 'loss'", "ok", "ok"])
        self.assertIn("KeyError", bundle.packed()["logs/train_gpt2-124M_error.txt"])

    def test_sanitizer_finds_an_error(self):
        bundle = self.bundle()
        write_program(bundle.tools / "compute-sanitizer", says(SANITIZER_ERRORS) + "\nexit 9")
        status, output, rows = bundle.call("sanitize/memcheck")
        self.assertEqual(status, 1)
        self.assertEqual(rows[-1]["result"], "WRONG status 9: 1 error")
        self.assertIn("Invalid __global__ read", output)
        self.assertIn("by thread (0,0,0) in block (3,0,0)", output)

    def test_every_program_at_once(self):
        """The two calls of a quarter of an hour, when all programs hang, crash or print nothing."""
        programs = ("piperun", "pipec", "gpu_kernels", "gpu_nccl", "price_torch.py", "tools/ncu",
                    "tools/ldd")

        def run(case):
            call, fault = case
            bundle = self.bundle(f"{call}_{fault}")
            for program in programs:
                bundle.plant(program, fault)
            began = time.monotonic()
            return (case, *bundle.call(call, "--seconds", "8"), time.monotonic() - began)

        cases = [(call, fault) for call in ("first", "second") for fault in FAULTS]
        with ThreadPoolExecutor(8) as pool:
            for case, status, output, rows, took in pool.map(run, cases):
                with self.subTest(case=case):
                    self.assertEqual(status, 1, output)
                    self.assertLess(took, 8 + 4)
                    kinds = [check.kind for check in calls.CALLS[case[0]]]
                    self.assertEqual({row["check"] for row in rows}, set(kinds))
                    for kind in set(kinds):
                        self.assertIn(f"\n{kind}: {calls.QUESTIONS[kind]}\n", output)

    def test_driver(self):
        bundle = self.bundle()
        text = ("gpu_kernels: error: no GPU: CUDA driver version is insufficient for CUDA runtime "
                "version (cpu)")
        write_program(bundle.here / "gpu_kernels", f"echo '{text}' >&2; exit 2")
        if not list(Path("/dev").glob("nvidia[0-9]*")):
            status, output, rows = bundle.call("first")
            self.assertEqual((status, len(output.strip().splitlines())), (1, 2), output)
            self.assertIn("no GPU in this machine", output)
        # There is one, and its driver is too old: the other checks run, and say so themselves.
        write_program(bundle.tools / "nvidia-smi", "echo 'GPU 0: NVIDIA H200 (UUID: GPU-1)'")
        status, output, rows = bundle.call("first")
        self.assertEqual(status, 1)
        device = [row for row in rows if row["name"].startswith("GPU 0: NVIDIA H200")]
        self.assertIn("insufficient", device[0]["result"])
        self.assertTrue([row for row in rows if row["check"] == "train"], output)

    def test_usage(self):
        bundle = self.bundle()
        for arguments in ([], ["frst"], ["first", "--seconds", "soon"], ["train/gpt2-3B"],
                          ["--bundle", "--nccl"], ["--bundle", "--old", "nosuch"]):
            status, output, rows = bundle.call(*arguments)
            self.assertEqual((status, rows), (2, []), output)
        self.assertIn("./gpu_check first", bundle.call()[1])
        self.assertEqual(list(bundle.folder.iterdir()), [])

    def test_stopped_from_outside(self):
        bundle = self.bundle()
        bundle.plant("gpu_kernels", "hang")
        child = bundle.start("kernels")
        while not (bundle.here / "hung").exists() or not (bundle.here / "hung").read_text():
            time.sleep(0.02)
        child.send_signal(signal.SIGTERM)
        child.communicate(timeout=60)
        self.assertEqual(child.returncode, 1)
        self.assertIn("logs/kernels_ours.txt", bundle.packed())
        self.assert_dead((bundle.here / "hung").read_text().split())

    def test_budgets(self):
        for call, of_call in calls.CALLS.items():
            self.assertEqual(sum(check.budget for check in of_call), calls.call_seconds([call]), call)
            self.assertEqual([c.kind for c in of_call if c.kind not in calls.QUESTIONS], [])
        # What is left of 15 minutes when the machine has started and the bundle is there.
        self.assertLessEqual(calls.call_seconds(["first"]), 450 - 30)
        self.assertLessEqual(calls.call_seconds(["second"]), 240 - 20)

    def test_no_check_takes_the_time_of_another(self):
        now, left = [1000.0], {}

        def take(seconds):
            def run(call, what):
                left[what] = call.left()
                now[0] += seconds
            return run

        with mock.patch.object(call_module.time, "monotonic", lambda: now[0]):
            call = call_module.Call(self.root, self.root, "a call", 110)
            checks = [("saves", 20, 10), ("uses all", 30, 40), ("overruns", 20, 60), ("last", 30, 0)]
            calls.run_checks(call, [calls.Check("kernels", what, budget, take(seconds))
                                    for what, budget, seconds in checks])
            self.assertEqual(call.finish(), 1)
        self.assertEqual(left, {"saves": 20, "uses all": 40, "overruns": 20})
        last = json.loads((self.root / "gpu_check.json").read_text().splitlines()[-1])
        self.assertEqual((last["name"], last["result"]), ("last", "not started: no time left"))

    def test_both_calls_by_the_clock(self):
        """Every check hangs, in a program that takes two seconds to die: all begin, in time."""
        now, begun = [0.0], []

        def hang(call, what):
            begun.append(call.left())
            now[0] += call.left() + call_module.KILL_SECONDS

        for name in ("first", "second"):
            seconds, now[0], begun[:] = calls.call_seconds([name]), 1000.0, []
            with mock.patch.object(call_module.time, "monotonic", lambda: now[0]):
                call = call_module.Call(self.root, self.root, name, seconds)
                calls.run_checks(call, [calls.Check(c.kind, c.what, c.budget, hang)
                                        for c in calls.CALLS[name]])
                call.finish()
            self.assertLessEqual(now[0] - 1000, seconds)
            self.assertEqual(len(begun), len(calls.CALLS[name]))
            for left, check in zip(begun, calls.CALLS[name]):
                self.assertGreater(left, 0.9 * check.budget - call_module.KILL_SECONDS)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
