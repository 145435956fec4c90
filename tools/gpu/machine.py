"""The machine: is there a GPU, which one, and which libraries and tools were found where."""

import glob
import importlib.util
import re
import shutil
from pathlib import Path

# Dense bf16 TFLOP/s, by a part of the device's name.
PEAKS = {"A100": 312e12, "H100": 989e12, "H200": 989e12}

TOOL_FOLDERS = ("/usr/local/cuda/bin", "/usr/local/cuda/compute-sanitizer", "/opt/nvidia/*",
                "/opt/nvidia/*/*")


class NoGpu(Exception):
    pass


def by_name(table, device):
    """The entry of `table` whose key is a part of the device's name, or None."""
    return next((value for key, value in table.items() if key in device), None)


def find_tool(name):
    """The path of a program of CUDA's, which is often not on the PATH; None: not found."""
    found = [shutil.which(name)]
    found += [path for folder in TOOL_FOLDERS for path in sorted(glob.glob(f"{folder}/{name}"))]
    return next((path for path in found if path), None)


def library_path(here, inherited):
    """Where our programs look for libraries: ours, the toolkit's, those of Python's packages."""
    packages = importlib.util.find_spec("nvidia")
    folders = [f"{here}/lib", "/usr/local/cuda/lib64"]
    for root in packages.submodule_search_locations if packages else ():
        folders += sorted(glob.glob(f"{root}/*/lib"))
    return ":".join(folders + ([inherited] if inherited else []))


def signs_of_a_gpu(call):
    """What speaks for a GPU in this machine, whatever CUDA says."""
    signs = sorted(glob.glob("/dev/nvidia[0-9]*"))
    for vendor in glob.glob("/sys/bus/pci/devices/*/vendor"):
        folder = Path(vendor).parent
        try:
            if (Path(vendor).read_text().strip() == "0x10de"
                    and (folder / "class").read_text().startswith("0x03")):
                signs.append(folder.name)
        except OSError:
            pass
    smi = call.run("nvidia-smi", ["nvidia-smi", "-L"], seconds=10, ours=False)
    return signs + re.findall(r"^GPU \d+: .*", smi.text, re.MULTILINE)


def check_device(call, _):
    """NoGpu: there is none in this machine."""
    ran = call.run("device", [call.here / "gpu_kernels", "device"])
    if ran.problem:
        signs = signs_of_a_gpu(call)
        if not signs and ran.problem.startswith("WRONG"):
            raise NoGpu("no GPU in this machine (./gpu_check fakes needs none)")
        call.note("device", ", ".join(signs), ran.problem)
        note_libraries(call)
        return
    call.gpu = dict(re.findall(r"^(\w+): (.*)$", ran.text, re.MULTILINE))
    smi = call.run("nvidia-smi", ["nvidia-smi"], seconds=10, ours=False)
    call.gpu["driver"] = (re.findall(r"Driver Version: (\S+)", smi.text) or ["unknown"])[0]
    name = call.gpu.get("name", "unknown")
    peak = by_name(PEAKS, name) or "unknown"  # then there is no MFU
    call.note("device", name, "ok", **{k: v for k, v in call.gpu.items() if k != "name"},
                 bf16_peak=peak)
    note_libraries(call)


def find_libraries(call):
    """The paths of CUDA's libraries that our programs find, or "not found"."""
    found = {}
    for name in ("gpu_kernels", "libpiperun_nccl.so", "libgpu_profile.so"):
        ran = call.run(f"ldd_{name}", ["ldd", call.here / name], seconds=10)
        for line in re.findall(r"^\s*(lib(?:cublasLt|nccl|cupti)\.so\S* => .*)$", ran.text,
                               re.MULTILINE):
            library, path = line.split(" => ")
            found[library] = path.split(" (")[0]
    return found


def note_libraries(call):
    """What is missing is an error of the check that needs it; here it is only said."""
    found = find_libraries(call)
    for tool in ("compute-sanitizer", "ncu"):
        found[tool] = find_tool(tool) or "not found"
    call.note("device", "found", "ok", **dict(sorted(found.items())))
