"""Builds everything that gpu_check needs and packs it: out/gpu_check.tar.gz."""

import os
import re
import shutil
import subprocess
from pathlib import Path

from gpu.nccl_library import cut_down

MOST_BYTES = 50 << 20
BINARIES = ["compiler/pipec", "runtime/piperun", "runtime/libpiperun_cuda.so",
            "runtime/libpiperun_nccl.so", "tests/gpu_kernels", "tests/gpu_nccl",
            "tests/cuda_run_test", "tests/nccl_run_test", "tools/libgpu_profile.so"]
# Where the machine has no NCCL, or no CUPTI, there are none.
OPTIONAL = ["runtime/libpiperun_nccl.so", "tools/libgpu_profile.so"]
FILES = ["tools/gpu_check", "tools/bench_torch.py", "tools/price_torch.py"]
# Of an earlier bundle: what is timed beside the new build's.
OLD = ["pipec", "piperun", "libpiperun_cuda.so"]


def _run(*command):
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout


def _restore_path():
    """Takes away what pyenv puts in front of the PATH for the program that it starts.

    Bazel's actions see the PATH (.bazelrc): with another one everything would be built again.
    """
    root, folders = os.environ.get("PYENV_ROOT"), os.environ["PATH"].split(":")
    while root and folders[0].startswith(root) and not folders[0].endswith("/shims"):
        del folders[0]
    os.environ["PATH"] = ":".join(folders)


def _label(binary):
    return "//" + ":".join(binary.rsplit("/", 1))


def _exists(binary):
    return subprocess.run(["bazel", "query", _label(binary)], stdout=subprocess.DEVNULL,
                          stderr=subprocess.DEVNULL).returncode == 0


def bundle(root, nccl=None, old=None):
    """`root`: of the repository, the current folder. Returns the exit status.

    `nccl`: a libnccl.so.2 to take along. `old`: an unpacked earlier bundle.
    """
    _restore_path()
    subprocess.run(["tools/setup"], check=True)
    binaries = [b for b in BINARIES if b not in OPTIONAL or _exists(b)]
    subprocess.run(["bazel", "build", "--config=cuda", *map(_label, binaries)], check=True)
    to = Path(root) / "out/gpu_check"
    shutil.rmtree(to, ignore_errors=True)
    (to / "lib").mkdir(parents=True)
    for binary in binaries:
        built = Path("bazel-bin") / binary
        _run("install", "-m", "755", "-s", str(built), str(to))
        for library in re.findall(r"=> (\S*/lib(?:fmt|stdc|gcc_s|xxhash)\S*)",
                                  _run("ldd", str(built))):
            _run("install", "-m", "755", library, str(to / "lib"))
    for file in FILES:
        shutil.copy(Path(root) / file, to)
    if nccl:
        cut_down(nccl, to / "lib/libnccl.so.2")
    if old:
        (to / "old").mkdir()
        for program in OLD:
            shutil.copy(old / program, to / "old")
        for library in (old / "lib").iterdir():
            if not (to / "lib" / library.name).exists():
                shutil.copy(library, to / "lib")
    (to / "gpu").mkdir()
    for file in [*Path(root, "tools/gpu").glob("*.py"), *Path(root, "tools/gpu").glob("*.json")]:
        shutil.copy(file, to / "gpu")
    packed = to.with_suffix(".tar.gz")
    _run("tar", "-C", str(to.parent), "-czf", str(packed), to.name)
    size = packed.stat().st_size
    print(f"{packed}: {size / 2**20:.1f} MiB")
    if size > MOST_BYTES:
        raise SystemExit(f"gpu_check: error: {packed}: {size} bytes (at most {MOST_BYTES})")
    return 0
