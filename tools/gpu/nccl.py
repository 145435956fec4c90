"""NCCL as far as it goes with one GPU: a rank that sends to itself, and two ranks on one GPU."""

import json
import re
from pathlib import Path

from gpu.call import last_line
from gpu.machine import find_libraries
from gpu.training import losses, random_text

LOOP_SECONDS = 8
LOOP = re.compile(r"^(.*\S) +([0-9.]+) us +([0-9.]+) GB/s$", re.MULTILINE)
RANKS_SECONDS = 40
# The first that lets two ranks share a GPU, if it is told to.
SHARING_VERSION = (2, 30)
SHARING = {"NCCL_MULTI_RANK_GPU_ENABLE": "1", "NCCL_MAX_CTAS": "2", "NCCL_DEBUG": "WARN"}
VERSION = re.compile(rb"NCCL version (\d+)\.(\d+)\.(\d+)")


def check_nccl(call, _):
    """Messages to oneself, each awaited by the host before the next."""
    ran = call.run("nccl", [call.here / "gpu_nccl", LOOP_SECONDS])
    for name, microseconds, speed in LOOP.findall(ran.text):
        call.note("nccl", name, "ok", us=float(microseconds), **{"GB/s": float(speed)})
    call.note("nccl", last_line(ran.text), ran.problem or "ok")


def nccl_version(call):
    """(major, minor, patch) of the NCCL that our programs find, by its own words, or None."""
    path = find_libraries(call).get("libnccl.so.2", "")
    found = VERSION.search(Path(path).read_bytes()) if Path(path).is_file() else None
    return tuple(map(int, found.groups())) if found else None


def check_ranks(call, _):
    """Two ranks as threads of one process, on one GPU, over NCCL: the losses of no NCCL."""
    what = "two ranks on one GPU"
    version = nccl_version(call)
    if version is None:
        call.note("ranks", what, "not possible: no NCCL is found")
        return
    if version[:2] < SHARING_VERSION:
        call.note("ranks", what, f"not possible: NCCL {'.'.join(map(str, version))}, before 2.30, "
                  "refuses two ranks on one GPU (gpu_check --bundle --nccl carries another)")
        return
    problem, of = train_both(call)
    if problem is None and (of["threads"] != of["nccl"] or not of["nccl"]):
        problem = f"WRONG losses {of['threads']} without NCCL, {of['nccl']} with it"
    call.note("ranks", what, problem or "ok", nccl=".".join(map(str, version)))


def train_both(call):
    """What is wrong, and the losses by transport."""
    plan, config, of = call.work / "ranks.plan", call.work / "ranks.json", {}
    config.write_text(json.dumps(call.models["schemes"]["model"]))
    ran = call.run("ranks_plan", [
        call.here / "pipec", "compile", "--scheme", "1f1b", "--devices", 2, "--microbatches", 4,
        "--model", config, "--dtype", "bf16", "--backend", "cuda", "-o", plan])
    for transport, env in (("threads", {}), ("nccl", SHARING)):
        if ran.problem:
            break
        log = call.logs / f"ranks_{transport}_steps.jsonl"
        log.unlink(missing_ok=True)
        ran = call.run(f"ranks_{transport}", [
            call.here / "piperun", plan, "--data", random_text(call), "--bytes", "--backend",
            "cuda", "--transport", transport, "--steps", 5, "--log", log],
            seconds=RANKS_SECONDS, env=env)
        of[transport] = losses(log)
    return ran.problem, of
