"""A bundle of tools/gpu_check whose programs are stand-ins, for gpu_check_test.py and
gpu_measures_test.py, whose arguments these are:

  TOOLS PIPEC PIPERUN FAKE_PLUGIN LISTING...
"""

import json
import shlex
import shutil
import subprocess
import sys
import tarfile
import tempfile
import unittest
from pathlib import Path

TOOLS, PIPEC, PIPERUN, PLUGIN = (Path(path).absolute() for path in sys.argv[1:5])
LISTINGS = [Path(path) for path in sys.argv[5:]]
sys.dont_write_bytecode = True
sys.path.insert(0, str(TOOLS))

TINY = {"layers": 2, "heads": 2, "width": 16, "inner": 32, "kv_heads": 2, "tokens": 16,
        "vocabulary": 128}
TABLE = json.loads((TOOLS / "gpu/models.json").read_text())
REAL = TABLE["models"]
STEPS = 6  # of which four are warm-up


def tiny(model):
    """The real table's row with a model that takes no time."""
    return {**model, **TINY, "keep": "", "batch": [4, 2] if isinstance(model["batch"], list) else 2}


MODELS = {
    "steps": STEPS, "profiled_steps": STEPS, "torch_vocabulary": 128, "choices": ["poll=50"],
    "race": {"sequences": 32, "measured_sequences": 16, "steps": 1},
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


class BundleTest(unittest.TestCase):
    def setUp(self):
        self.root = Path(tempfile.mkdtemp(prefix="gpu_check_test."))
        self.addCleanup(shutil.rmtree, self.root, ignore_errors=True)

    def bundle(self, name="one"):
        return Bundle(self.root / name)
