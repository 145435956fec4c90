#!/usr/bin/env python3
"""tools/gpu_check rehearsed without a GPU: its calls from an empty folder in an empty environment.

The bundle's programs are stand-ins that print what the real ones print, or hang, crash, fail or
print nothing. One call of each kind runs the real piperun over the fake of CUDA.

  gpu_check_test.py TOOLS PIPEC PIPERUN FAKE_PLUGIN LISTING...
"""

import importlib
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
import unittest
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from unittest import mock

TOOLS, PIPEC, PIPERUN, PLUGIN = (Path(path).absolute() for path in sys.argv[1:5])
LISTINGS = [Path(path) for path in sys.argv[5:]]
sys.dont_write_bytecode = True
sys.path.insert(0, str(TOOLS))
CALLS = importlib.import_module("gpu.calls")
PROFILE = importlib.import_module("gpu.profile")
CALL = importlib.import_module("gpu.call")

TINY = {"layers": 2, "heads": 2, "width": 16, "inner": 32, "kv_heads": 2, "batch": 2, "tokens": 16,
        "vocabulary": 128}
REAL = json.loads((TOOLS / "gpu/models.json").read_text())["models"]
STEPS = 6  # of which four are warm-up


def tiny(model):
    """The real table's row with a model that takes no time."""
    row = {**TINY, "family": model["family"]}
    if "race" in model:
        row["race"] = {**model["race"], "sequences": 16, "measured": [2, 4], "steps": 1}
    return {**row, "batch": [4, 2] if isinstance(model["batch"], list) else 2}


MODELS = {
    "steps": STEPS, "profiled_steps": STEPS, "torch_vocabulary": 128,
    "models": {name: tiny(model) for name, model in REAL.items()},
    "schemes": {"only": ["1f1b"], "dtypes": ["fp32"], "model": {
        "model_type": "gpt2", "vocab_size": 128, "n_positions": 16, "n_embd": 16, "n_layer": 4,
        "n_head": 2, "tie_word_embeddings": False}},
    "predict": {"steps": STEPS, "warm_up": 2, "profiled": [16, 2, 2, ""],
                "plans": [[16, 1, 2, ""], [16, 2, 2, "apply-checkpoint"], [8, 4, 2, ""]]},
}

DEVICE = """name: NVIDIA H200
memory_bytes: 150754820096
multiprocessors: 132
sm: 90
l2_bytes: 62914560
driver_cuda: 13.0
runtime_cuda: 13.0"""
CASES = """layer norm forward, rows of 768               ok 0.31
attention backward, 64                   ok 0.77"""
SPEEDS = """ceiling: a copy of 1 GiB                              499.4 us    4300.1 GB/s    100.0 %
ceiling: a product 8192 x 8192 x 8192                1395.2 us     788.1 TFLOP/s 100.0 %
layer norm forward, C 768                              17.9 us    2812.0 GB/s     65.4 %"""
SANITIZER = """========= COMPUTE-SANITIZER
layer norm forward, rows of 768               ok 0.31
========= ERROR SUMMARY: 0 errors"""
SANITIZER_ERRORS = """========= COMPUTE-SANITIZER
========= Invalid __global__ read of size 4 bytes
=========     at Forward+0x1a0
=========     by thread (0,0,0) in block (3,0,0)
=========     Address 0x7f is out of bounds
=========
layer norm forward, rows of 768               ok 0.31
========= ERROR SUMMARY: 1 error"""
RACES = """========= COMPUTE-SANITIZER
layer norm forward, rows of 768               ok 0.31
========= RACECHECK SUMMARY: 0 hazards displayed (0 errors, 0 warnings)"""
TOOLKIT = "/usr/local/cuda/lib64"
SMI = "| NVIDIA-SMI 580.159.04    Driver Version: 580.159.04    CUDA Version: 13.0     |"
LIBRARIES = f"""	linux-vdso.so.1 (0x00007ffd4b5f2000)
	libcublasLt.so.13 => {TOOLKIT}/libcublasLt.so.13 (0x00007fb216e00000)
	libnccl.so.2 => {{here}}/lib/libnccl.so.2 (0x00007fb206e00000)
	libcupti.so.13 => not found"""
TUNED = """nn 64x128x32 32,128,128 bf16 set bias - gelu                       2.0 us, 3 of 57; the first 2.5 us; without its GELU, 0.7 us; algorithm 66, tile 20, stages 0, split-K 1, reduction 0, workspace 0
tn 32x64x128 32,64,64 bf16-sum add - - -                           1.0 us, 1 of 9; the first 1.0 us; algorithm 67, tile 1, stages 0, split-K 2, reduction 2, workspace 4096
nn 1x128x32 32,128,128 bf16 set - - -                            refused (not supported): computed by piperun's own kernel
"""
NCU = """==PROF== Connected to process 7
[7] gpu_kernels@127.0.0.1
  KeyGradients (8, 192, 1)x(384, 1, 1), Context 1, Stream 7, Device 0, CC 9.0
    Section: GPU Speed Of Light Throughput
    ----------------------- ----------- ------------
    Metric Name             Metric Unit Metric Value
    ----------------------- ----------- ------------
    Duration                         us       303.20
    DRAM Throughput                   %        12.34
    Registers Per Thread register/thread          168
  QueryGradients (8, 192, 1)x(384, 1, 1), Context 1, Stream 7, Device 0, CC 9.0
    Duration                         us     1,202.10"""
LOOP = """512 KiB to itself                                     25.0 us      21.0 GB/s
messages of 512 KiB to 64 MiB"""
PRICE = """attention backward | flash, any order | 100.0 us
attention backward | flash, one order | 140.0 us
attention backward | cuDNN, any order | 90.0 us
attention backward | cuDNN, one order | refused: No available kernel. Aborting execution.
embedding backward | index_add, any order | 30.0 us
embedding backward | index_add, one order | 80.0 us"""
TORCH = """
print("torch 2.11.0+cu130: best 0.070000 s, median 0.072000 s a step, CPU time 0.070 s, "
      "vocabulary 128, attention flash")
"""
CATCH = "All tests passed (12 assertions in 3 test cases)"

# As nvcc mangles them, and a kernel of cuBLASLt's.
KERNELS = {
    "norm": "_ZN2pp7kernels4cuda48_GLOBAL__N__421e5a9a_12_norm_cuda_cu_f3fbb678_117ForwardI"
        "NS0_8BFloat16ELi8ELNS1_6CentreE1ELi4EEEvNS0_20LayerNormForwardArgsIT_EE",
    "gelu": "_ZN2pp7kernels4cuda7ForEachILi8ENS1_48_GLOBAL__N__136769bd_12_gelu_cuda_cu_1e8"
        "8ae0d_1115GeluForwardEachINS0_8BFloat16EEEEEvlT0_",
    "adamw": "_ZN2pp7kernels4cuda46_GLOBAL__N__cb81afd3_13_adamw_cuda_cu_c7ccc48e4StepILNS0_"
        "8RoundingE1EEEvNS1_11TensorBatchINS0_11AdamWTensorEEENS2_7OptionsE",
    "product": "nvjet_sm90_tst_128x256_64x4_1x2_h_bz_coopA_NNT",
}


def records(steps, kernels=("norm", "product", "gelu")):
    """What tools/gpu/profile.cc writes: of each kernel 1000 ns, 100 ns after the one before."""
    lines = ["name\t0\tcopy", "name\t1\tfill"]
    numbers = {name: i + 2 for i, name in enumerate(KERNELS)}
    lines += [f"name\t{numbers[name]}\t{mangled}" for name, mangled in KERNELS.items()]
    at = 10000
    for _ in range(steps):
        for kernel in (*kernels, "adamw", "adamw"):
            lines.append(f"run\t{numbers[kernel]}\t{at}\t{at + 1000}")
            at += 1100
        # Another stream copies the loss meanwhile.
        lines.append(f"run\t0\t{at - 1650}\t{at - 1600}")
    return "\n".join(lines) + "\n"


def is_right(row):
    return row["result"] == "ok" or row["result"].startswith("not possible: ")


def write_program(path, text):
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)


def says(text):
    return f"printf '%s\\n' {shlex.quote(text)}"


# What a program does instead, and what is then said of it.
FAULTS = {
    "hang": ("echo partial; trap '' TERM; sleep 1000 & echo $! >>\"$(dirname \"$0\")/hung\"; wait",
             r"^(cut off after|not started)", "partial"),
    "crash": ("echo partial; kill -SEGV $$", r"^WRONG signal SIGSEGV", "partial"),
    "nothing": ("exit 0", r"^WRONG printed nothing", "$ "),
    "error": ("echo 'boom: it failed' >&2; exit 3", r"^WRONG status 3: boom", "boom"),
}
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
    "many runs": ("more", ["train", "race", "schemes", "experiments", "tune", "price"],
                  "piperun"),
    "tables": ("tables", ["tune"], "piperun"),
    "torch": ("torch", ["torch"], "bench_torch.py"),
    "predict": ("predict", ["predict"], "piperun"),
    "predict's pipec": ("predict", ["predict"], "pipec"),
    "sanitizer": ("sanitize", ["sanitize"], "tools/compute-sanitizer"),
    "fakes": ("fakes", ["fakes"], "cuda_run_test"),
}


class Bundle:
    """An unpacked bundle of stand-ins, and an empty folder to start it in."""

    def __init__(self, root):
        self.here, self.folder = root / "bundle", root / "empty"
        self.tools = self.here / "tools"  # on the PATH
        self.folder.mkdir(parents=True)
        shutil.copytree(TOOLS / "gpu", self.here / "gpu")
        shutil.copy(TOOLS / "gpu_check", self.here)
        (self.here / "gpu/models.json").write_text(json.dumps(MODELS))
        (self.here / "libgpu_profile.so").touch()
        self.tools.mkdir()
        (self.here / "records.tsv").write_text(records(STEPS))
        self.profile = 'if [ -n "$GPU_PROFILE" ]; then cp "$here/records.tsv" "$GPU_PROFILE"; fi'
        row = {"step": 1, "loss": 5.5, "step_seconds": 0.072, "peak_bytes": [7]}
        self.nccl("2.32.3")
        write_program(self.here / "piperun", f"""here=$(dirname "$0") log=/dev/null
for word; do
  case $last in --log) log=$word ;; --steps) steps=$word ;; --tune-gemms) tune=1 ;; esac
  last=$word
done
{self.profile}
for _ in $(seq ${{steps:-0}}); do echo '{json.dumps(row)}'; done >"$log"
echo 'kernels 99.0 %  waiting 0.5 %  starting kernels 12.5 %'
[ -z "$tune" ] || {says(TUNED)}""")
        write_program(self.here / "pipec", """
for word; do [ "$last" = -o ] && : >"$word"; last=$word; done
case $1 in
schemes) echo '[{"name": "1f1b"}]' ;;
simulate) echo '{"makespan": 0.07, "devices": [{"peak_bytes": 7}]}' ;;
*) echo "1f1b  one forward, one backward" ;;
esac""")
        write_program(self.here / "gpu_kernels", f"""case $1 in
device) {says(DEVICE)} ;;
cases) {says(CASES)} ;;
speed | ceilings) {says(SPEEDS)} ;;
esac""")
        write_program(self.here / "gpu_nccl", says(LOOP))
        write_program(self.tools / "ncu", says(NCU) + "\nkill $$")  # as --kill leaves it
        for test in ("cuda_run_test", "nccl_run_test"):
            write_program(self.here / test, says(CATCH))
        write_program(self.tools / "compute-sanitizer",
                      f"case $2 in racecheck) {says(RACES)} ;; *) {says(SANITIZER)} ;; esac")
        write_program(self.tools / "ldd", says(LIBRARIES.format(here=self.here)))
        (self.here / "bench_torch.py").write_text(TORCH)
        (self.here / "price_torch.py").write_text(f"print({PRICE!r})")

    def nccl(self, version):
        (self.here / "lib").mkdir(exist_ok=True)
        (self.here / "lib/libnccl.so.2").write_bytes(
            b"\x7fELF\0NCCL version information\0NCCL version %s compiled\0" % version.encode())

    def plant(self, program, fault):
        path = self.here / program
        commands = FAULTS[fault][0]
        if program.endswith(".py"):
            write_program(path.with_suffix(".sh"), commands)
            path.write_text(f"import os\nos.execv('{path.with_suffix('.sh')}', ['{path}'])\n")
        elif program == "gpu_kernels":
            write_program(path, f"[ \"$1\" = device ] && {{ {says(DEVICE)}; exit; }}\n{commands}")
        else:
            write_program(path, commands)

    def use_the_fake(self):
        shutil.copy(PIPEC, self.here / "pipec")
        shutil.copy(PIPERUN, self.here / "real")
        shutil.copy(PLUGIN, self.here / "libpiperun_cuda.so")
        write_program(self.here / "piperun", f"""here=$(dirname "$0")
{self.profile}
exec "$here/real" "$@" """)

    def start(self, *arguments):
        path = f"{self.tools}:{Path(sys.executable).parent}:/usr/bin:/bin"
        return subprocess.Popen(["env", "-i", f"PATH={path}", str(self.here / "gpu_check"),
                                 *arguments], cwd=self.folder, stdout=subprocess.PIPE,
                                stderr=subprocess.STDOUT, text=True)

    def call(self, *arguments):
        """The exit status, the output, and the rows of gpu_check.json."""
        child = self.start(*arguments)
        output = child.communicate(timeout=200)[0]
        return child.returncode, output, self.rows()

    def rows(self):
        json_lines = self.folder / "gpu_check.json"
        if not json_lines.exists():
            return []
        rows = [json.loads(line) for line in json_lines.read_text().splitlines()]
        return [row for row in rows if "check" in row]

    def packed(self):
        with tarfile.open(self.folder / "gpu_check_logs.tar.gz") as logs:
            return {file.name: logs.extractfile(file).read().decode()
                    for file in logs.getmembers() if file.isfile()}


class GpuCheckTest(unittest.TestCase):
    def setUp(self):
        self.root = Path(tempfile.mkdtemp(prefix="gpu_check_test."))
        self.addCleanup(shutil.rmtree, self.root, ignore_errors=True)

    def bundle(self, name="one"):
        return Bundle(self.root / name)

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
            for call, bundle, status, output, rows in pool.map(run, CALLS.CALLS):
                with self.subTest(call=call):
                    self.assertEqual(status, 0, output)
                    kinds = {check.kind for check in CALLS.CALLS[call]}
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
                         ["train"] * 3 + ["tune"] * 4 + ["price"] * 2 + ["race"])
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
            seconds = "4" if fault == "hang" else "200"
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
speed) {says(SPEEDS)}; {says("124M qkv 768 x 2304, forward      WRONG no algorithm")}; exit 1 ;;
esac""")
        status, output, rows = bundle.call("kernels/ours", "speed")
        self.assertEqual(status, 1, output)
        wrong = {row["name"]: row["result"] for row in rows if row["result"] != "ok"}
        self.assertEqual(wrong["gelu"], "WRONG 3.50, other bits the second time")
        self.assertEqual(wrong["124M qkv 768 x 2304, forward"], "WRONG no algorithm")

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
        for arguments in ([], ["frst"], ["first", "--seconds", "soon"], ["train/gpt2-3B"]):
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

    def test_ratio_to_pytorch(self):
        bundle = self.bundle()
        self.assertEqual(bundle.call("train/gpt2-124M")[0], 0)
        status, output, rows = bundle.call("torch/gpt2-124M/compile/cudnn")
        self.assertEqual((status, rows[-1]["ours_ms"], rows[-1]["ours_of_theirs"]), (0, 72.0, 1.0))

    def test_profile(self):
        bundle = self.bundle()
        status, output, rows = bundle.call("profile/gpt2-124M")
        self.assertEqual(status, 0, output)
        ms = {row["name"]: row for row in rows if row["check"] == "profile"}
        self.assertEqual(ms["gpt2-124M, products"]["ms"], 0.001)
        self.assertEqual(ms["gpt2-124M, norms, elementwise, bias"]["launches"], 3)
        self.assertEqual(ms["gpt2-124M, gaps between launches"]["ms"], 0.0005)
        self.assertEqual(ms["gpt2-124M, the step"]["ms"], 0.0055)
        self.assertEqual(ms["gpt2-124M, products"]["predicted_ms"], 42)
        self.assertIn("gelu GeluForwardEach", bundle.packed()["logs/profile_gpt2-124M_kernels.txt"])
        for text, why in ((records(STEPS - 1), "AdamW runs 5 times in 6 steps"),
                          ("lost\t7\n" + records(STEPS), "7 records lost"),
                          ("", "no records of CUPTI")):
            (bundle.here / "records.tsv").write_text(text)
            status, output, rows = bundle.call("profile/gpt2-124M")
            self.assertEqual((status, rows[-1]["result"]), (1, f"WRONG {why}"))

    def test_every_kernel_has_a_group(self):
        if LISTINGS[0].name == "no_nvcc":
            print("SKIPPED the groups of the kernels for a GPU: there is no nvcc")
            return
        kernels = set()
        for listing in LISTINGS:
            if listing.suffix == ".ptx":
                kernels |= set(re.findall(r"\.entry (\w+)", listing.read_text()))
        self.assertGreater(len(kernels), 100)
        self.assertEqual([k for k in kernels if PROFILE.group_of(k) is None], [])
        self.assertEqual([k for k in kernels if not re.fullmatch(r"\w+ [A-Z]\w+",
                                                                 PROFILE.short_name(k))], [])
        self.assertIsNone(PROFILE.group_of("_ZN2at6native13reduce_kernelE"))

    def test_budgets(self):
        for call, of_call in CALLS.CALLS.items():
            self.assertEqual(sum(check.budget for check in of_call), CALLS.call_seconds([call]), call)
            self.assertEqual([c.kind for c in of_call if c.kind not in CALLS.QUESTIONS], [])
        # What is left of 15 minutes when the machine has started and the bundle is there.
        self.assertLessEqual(CALLS.call_seconds(["first"]), 450 - 30)
        self.assertLessEqual(CALLS.call_seconds(["second"]), 240 - 20)

    def test_no_check_takes_the_time_of_another(self):
        now, left = [1000.0], {}

        def take(seconds):
            def run(call, what):
                left[what] = call.left()
                now[0] += seconds
            return run

        with mock.patch.object(CALL.time, "monotonic", lambda: now[0]):
            call = CALL.Call(self.root, self.root, "a call", 110)
            checks = [("saves", 20, 10), ("uses all", 30, 40), ("overruns", 20, 60), ("last", 30, 0)]
            CALLS.run_checks(call, [CALLS.Check("kernels", what, budget, take(seconds))
                                    for what, budget, seconds in checks])
            self.assertEqual(call.finish(), 1)
        self.assertEqual(left, {"saves": 20, "uses all": 40, "overruns": 20})
        last = json.loads((self.root / "gpu_check.json").read_text().splitlines()[-1])
        self.assertEqual((last["name"], last["result"]), ("last", "not started: no time left"))

    def test_predictions(self):
        """Of an H200: an H100's, with what memory bounds by the ratio of the two copies' speeds."""
        predictions = json.loads((TOOLS / "gpu/predictions.json").read_text())
        bound = (PROFILE.ELEMENTS, PROFILE.CROSS_ENTROPY, PROFILE.OPTIMIZER)
        for model, groups in predictions["H100"].items():
            self.assertIn(model, REAL)
            self.assertEqual(tuple(groups), PROFILE.GROUPS)
            for group, ms in groups.items():
                scale = 2.8 / 4.3 if group in bound else 1
                self.assertAlmostEqual(predictions["H200"][model][group], ms * scale, delta=0.051)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
