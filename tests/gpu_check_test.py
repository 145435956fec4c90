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
import struct
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
NCCL_LIBRARY = importlib.import_module("gpu.nccl_library")
TRAINING = importlib.import_module("gpu.training")

TINY = {"layers": 2, "heads": 2, "width": 16, "inner": 32, "kv_heads": 2, "batch": 2, "tokens": 16,
        "vocabulary": 128}
REAL = json.loads((TOOLS / "gpu/models.json").read_text())["models"]
STEPS = 6  # of which four are warm-up


def tiny(model):
    """The real table's row with a model that takes no time."""
    row = {**TINY, "family": model["family"]}
    if "race" in model:
        row["race"] = {**model["race"], "sequences": 32, "measured": [2, 4], "steps": 1}
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

    def test_mfu(self):
        """In percent, of ours and of half of the attention: tools/gpu_check on an H200, by llm.c."""
        for name, ours, theirs in (("gpt2-124M", 49.0, 45.8), ("gpt2-1.5B", 53.4, 51.0),
                                   ("llama-1B", 58.8, 57.1), ("llama-3B", 57.0, 55.4)):
            whole, half = (TRAINING.operations_per_token(REAL[name], n) for n in (12, 6))
            self.assertAlmostEqual(ours * half / whole, theirs, delta=0.06)
        anchors = [model["race"]["llmq_h100"] for model in REAL.values()
                   if "llmq_h100" in model.get("race", {})]
        self.assertEqual(len(anchors), 3)
        for model in REAL.values():
            anchor = model.get("race", {}).get("llmq_h100")
            if anchor:
                found = TRAINING.utilizations(model, anchor["llmq_tokens_per_second"], 989e12)
                self.assertAlmostEqual(found["mfu_6N_6LCT"], anchor["llmq_mfu_6N_6LCT"],
                                       delta=0.0006)

    def test_races_fit(self):
        """By the real plans: the smallest size an H100, and the largest an H200, with room."""
        for name, model in REAL.items():
            if "race" not in model:
                continue
            self.assertEqual(model["race"]["sequences"] * model["tokens"], 524288)
            sizes = model["batch"] if isinstance(model["batch"], list) else [model["batch"]]
            (self.root / "config.json").write_text(json.dumps(TRAINING.config_of(model)))
            for batch, most in ((sizes[-1], 76), (sizes[0], 137)):
                self.assertEqual(model["race"]["sequences"] % batch, 0)
                plan = self.root / "race.plan"
                subprocess.run([PIPEC, "compile", "--scheme", "1f1b", "--devices", "1", "-q",
                                "--microbatches", str(model["race"]["sequences"] // batch),
                                "--model", self.root / "config.json", "--micro-batch-size",
                                str(batch), "--seq-length", str(model["tokens"]), "--dtype", "bf16",
                                "--backend", "cuda", "-o", plan], check=True)
                shown = subprocess.run([PIPEC, "simulate", plan, "--format", "json"], check=True,
                                       stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
                peak = json.loads(shown.stdout)["devices"][0]["peak_bytes"]
                self.assertLess(peak, most << 30, name)

    def race(self, name, memory, peaks, keep=""):
        """Rows of a race where a step takes 0.5 s, and 0.25 s for each micro-batch of 4."""
        bundle = self.bundle(name)
        models = {**MODELS, "models": {**MODELS["models"], "qwen2.5-1.5B": {
            **MODELS["models"]["qwen2.5-1.5B"], "keep": keep}}}
        (bundle.here / "gpu/models.json").write_text(json.dumps(models))
        write_program(bundle.here / "gpu_kernels",
                      says(re.sub("memory_bytes: .*", f"memory_bytes: {memory << 30}", DEVICE)))
        cases = "".join(f"*{plan}*) echo {peak} ;; " for plan, peak in peaks.items())
        write_program(bundle.here / "pipec", f"""
for word; do [ "$last" = -o ] && : >"$word"; last=$word; done
[ "$1" = compile ] && echo compiled && exit
gib=$(case $2 in {cases} esac)
echo '{{"devices": [{{"peak_bytes": '$((gib << 30))'}}]}}'""")
        row = '{"step": 1, "loss": 5.5, "step_seconds": %s, "peak_bytes": [7]}'
        write_program(bundle.here / "piperun", f"""
for word; do [ "$last" = --log ] && log=$word; last=$word; done
name=${{1##*/}} && name=${{name%%_keep*}} && name=${{name%.plan}} && name=${{name##*_}}
seconds=$(awk "BEGIN {{print 0.5 + 0.25 * ${{name#*x}} * ${{name%x*}} / 4}}")
for _ in 1 2; do printf '{row}\\n' $seconds; done >"$log"; echo done""")
        status, output, rows = bundle.call("race/qwen2.5-1.5B")
        self.assertEqual(status, 0, output)
        return [row for row in rows if row["check"] == "race"], bundle.packed()

    def test_race(self):
        rows, _ = self.race("h200", 140, {"_4x": 130, "_2x": 70})
        self.assertEqual(len(rows), 1)
        row = rows[0]
        self.assertEqual((row["of_sequences"], row["microbatches"], row["measured"]),
                         (4, 8, "2 and 4"))
        self.assertEqual((row["ms"], row["once_a_step_ms"]), (2500, 500))  # 0.5 + 8 * 0.25
        self.assertEqual(row["tokens_per_second"], round(32 * 16 / 2.5))
        self.assertEqual(row["llmq_tokens_per_second"], 58900)

        rows, _ = self.race("h100", 79, {"_4x": 130, "_2x": 70})
        self.assertEqual((rows[0]["of_sequences"], rows[0]["microbatches"], rows[0]["measured"]),
                         (2, 16, "4 and 8"))
        self.assertEqual(rows[0]["ms"], 2500)

        rows, logs = self.race("keeps", 140, {"_4x2.plan": 90, "_4x2_keep": 120},
                               keep="norm,swiglu")
        self.assertEqual([row["name"] for row in rows],
                         ["qwen2.5-1.5B", "qwen2.5-1.5B, keeps norm,swiglu"])
        self.assertEqual([row["ms"] for row in rows], [2500, 2500])
        self.assertIn(" --keep norm,swiglu ", logs["logs/plan_qwen2.5-1.5B_4x4_keep_norm,swiglu.txt"])
        rows, _ = self.race("keeps_too_much", 140, {"_4x2.plan": 90, "_4x2_keep": 139},
                            keep="norm,swiglu")
        self.assertEqual([row["result"] for row in rows],
                         ["ok", "not possible: too large for this GPU"])

    def test_table_of_products(self):
        bundle = self.bundle()
        for _ in range(2):  # the second call's rows take the place of the first one's
            status, output, _ = bundle.call("tune/gpt2-124M", "tune/qwen2.5-1.5B")
            self.assertEqual(status, 0, output)
        lines = (bundle.folder / "products_h200.tsv").read_text().splitlines()
        self.assertEqual(lines[0], "# NVIDIA H200, driver unknown, CUDA 13.0; ceiling: a product of "
                         "8192 x 8192 x 8192, 788.1 TFLOP/s")
        self.assertEqual([line.split("\t")[0] for line in lines[2:]],
                         ["gpt2-124M"] * 2 + ["qwen2.5-1.5B"] * 2)
        self.assertEqual(lines[2].split("\t")[1:], [
            "nn 64x128x32 32,128,128 bf16 set bias - gelu", "bf16",
            "algorithm 66, tile 20, stages 0, split-K 1, reduction 0, workspace 0", "2.0", "2.5",
            "0.3", "0.0"])  # 2 * 64 * 128 * 32 operations in 2 us
        self.assertEqual(lines[3].split("\t")[2], "bf16-sum")

    def test_price(self):
        bundle = self.bundle()
        status, output, rows = bundle.call("profile/gpt2-124M", "price/gpt2-124M")
        self.assertEqual(status, 0, output)
        price = {row["name"].split(", ", 1)[1]: row for row in rows if row["check"] == "price"}
        flash = price["attention backward: flash, one order"]
        # Two layers, beside cuDNN's any order: 2 * (140 - 90) us of a step of 72 ms.
        self.assertEqual((flash["ms"], flash["order_costs_ms"], flash["order_costs_percent"]),
                         (0.28, 0.1, 0.14))
        self.assertNotIn("order_costs_ms", price["attention backward: flash, any order"])
        self.assertEqual(price["embedding backward: index_add, one order"]["order_costs_ms"], 0.05)
        self.assertEqual(price["attention backward: cuDNN, one order"]["result"],
                         "not possible: No available kernel. Aborting execution.")
        self.assertEqual(price["attention backward: ours, one order"]["order_costs_ms"], -0.18)
        self.assertEqual(price["products: sums in any order"]["order_costs_ms"], 0)
        self.assertIn(" --cuda-experiments reduction=any",
                      bundle.packed()["logs/price_gpt2-124M_any_order.txt"])

    def test_two_ranks_on_one_gpu(self):
        bundle = self.bundle()
        status, output, rows = bundle.call("ranks")
        self.assertEqual((status, rows[-1]["result"], rows[-1]["nccl"]), (0, "ok", "2.32.3"), output)
        log = bundle.packed()["logs/ranks_nccl.txt"]
        self.assertRegex(log, r"^\$ env .*NCCL_MULTI_RANK_GPU_ENABLE=1 .* --transport nccl ")
        bundle.nccl("2.28.9")
        status, output, rows = bundle.call("ranks")
        self.assertEqual(status, 0, output)
        self.assertRegex(rows[-1]["result"], "^not possible: NCCL 2.28.9, before 2.30, refuses")
        (bundle.here / "lib/libnccl.so.2").unlink()
        status, output, rows = bundle.call("ranks")
        self.assertEqual((status, rows[-1]["result"]), (0, "not possible: no NCCL is found"))
        bundle.nccl("2.30.1")
        program = (bundle.here / "piperun").read_text()
        write_program(bundle.here / "piperun", program.replace(
            "for _ in", 'case "$*" in *nccl*) steps=4 ;; esac\nfor _ in'))
        status, output, rows = bundle.call("ranks")
        self.assertEqual(status, 1, output)
        self.assertRegex(rows[-1]["result"], r"^WRONG losses \[(5.5, ){4}5.5\] without NCCL, "
                         r"\[(5.5, ){3}5.5\] with it")

    def test_an_earlier_build(self):
        bundle = self.bundle()
        (bundle.here / "old").mkdir()
        for program in ("pipec", "piperun"):
            shutil.copy(bundle.here / program, bundle.here / "old")
        old = bundle.here / "old/piperun"
        old.write_text(old.read_text().replace("0.072", "0.09").replace(
            '$(dirname "$0")', '$(dirname "$0")/..'))
        status, output, rows = bundle.call("train/gpt2-124M", "profile/gpt2-124M")
        self.assertEqual(status, 0, output)
        self.assertEqual({row["name"]: row["ms"] for row in rows if row["check"] == "train"},
                         {"gpt2-124M": 72, "gpt2-124M, old": 90})
        self.assertEqual([row["name"] for row in rows if row["name"].endswith(" step")],
                         ["gpt2-124M, the step", "gpt2-124M, old, the step"])

    def test_ncu(self):
        bundle = self.bundle()
        status, output, rows = bundle.call("ncu/64")
        self.assertEqual(status, 0, output)
        self.assertEqual([(row["name"], row["Duration, us"]) for row in rows[2:]],
                         [("KeyGradients, heads of 64", 303.2),
                          ("QueryGradients, heads of 64", 1202.1)])
        self.assertEqual(rows[2]["Registers Per Thread, register/thread"], 168)
        write_program(bundle.tools / "ncu", "echo '==ERROR== ERR_NVGPUCTRPERM - denied'; exit 1")
        status, output, rows = bundle.call("ncu/64")
        self.assertEqual((status, rows[-1]["result"]), (
            0, "not possible: this machine lets nobody read its counters"))

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
            return (case, *bundle.call(call, "--seconds", "12"), time.monotonic() - began)

        cases = [(call, fault) for call in ("first", "second") for fault in FAULTS]
        with ThreadPoolExecutor(4) as pool:
            for case, status, output, rows, took in pool.map(run, cases):
                with self.subTest(case=case):
                    self.assertEqual(status, 1, output)
                    self.assertLess(took, 12 + 4)
                    kinds = [check.kind for check in CALLS.CALLS[case[0]]]
                    self.assertEqual({row["check"] for row in rows}, set(kinds))
                    for kind in set(kinds):
                        self.assertIn(f"\n{kind}: {CALLS.QUESTIONS[kind]}\n", output)

    def test_nccl_for_a_bundle(self):
        def fat(*entries):
            body = b"".join(struct.pack("<HHIQ", kind, 1, 64, len(code)) + bytes(12)
                            + struct.pack("<I", sm) + bytes(32) + code
                            for kind, sm, code in entries)
            return struct.pack("<IHHQ", NCCL_LIBRARY.MAGIC, 1, 16, len(body)) + body

        names = b"\0.nv_fatbin\0__nv_relfatbin\0.text\0"
        parts = [b"", fat((2, 80, b"ampere.."), (2, 90, b"hopper.."), (1, 90, b"ptx....."))
                 + bytes(8) + fat((2, 90, b"hopper2.")), fat((2, 90, b"linking.")), b"code", names]
        offsets = [64 + sum(map(len, parts[:i])) for i in range(len(parts))]
        rows = [struct.pack("<IIQQQQ", 0 if not name else names.index(name), 1, 0, 0, at, len(part))
                + bytes(24) for name, at, part in
                zip((b"", b".nv_fatbin", b"__nv_relfatbin", b".text", b""), offsets, parts)]
        table = 64 + sum(map(len, parts))
        header = (b"\x7fELF" + bytes(0x24) + struct.pack("<Q", table) + bytes(10)
                  + struct.pack("<HHH", 64, 5, 4))
        library = bytearray(header + b"".join(parts + rows))
        whole = bytes(library)
        self.assertEqual(NCCL_LIBRARY.clear_others(library), 2)
        cleared = whole
        for code in (b"ampere..", b"ptx.....", b"linking."):
            self.assertIn(code, whole)
            cleared = cleared.replace(code, bytes(8))
        self.assertEqual(bytes(library), cleared)

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
