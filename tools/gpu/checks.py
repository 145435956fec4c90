"""The checks of kernels, schemes, NCCL and the fakes, and those under compute-sanitizer.

Each takes the session and what it is to check, and notes rows: of what is wrong, and of what there
is, also of a program that was cut off.
"""

import json
import re

from gpu.machine import find_tool
from gpu.session import last_line
from gpu.training import losses, random_text

CASE = re.compile(r"^(.*\S) +(ok|WRONG) +([0-9.]+|inf|nan)(.*)$", re.MULTILINE)
SPEED = re.compile(r"^(.*\S) +([0-9.]+) us +([0-9.]+) (GB/s|TFLOP/s) +([0-9.]+) %$", re.MULTILINE)
REFUSED = re.compile(r"^(.*\S) +WRONG (.*)$", re.MULTILINE)
ERRORS = re.compile(r"(ERROR|RACECHECK) SUMMARY: (.*)")


def check_cases(session, what):
    """Each kernel, or cuBLASLt's products, against plain versions in doubles."""
    pattern = {"ours": "!matmul", "products": "matmul"}[what]
    ran = session.run(f"kernels_{what}", [session.here / "gpu_kernels", "cases", pattern])
    right = 0
    for name, result, error, rest in CASE.findall(ran.text):
        right += result == "ok"
        if result != "ok":
            session.note("kernels", name, f"WRONG {error}{rest}")
    problem = ran.problem or (None if right else "WRONG no case")
    session.note("kernels", what, problem or "ok", right=right, seconds=round(ran.seconds, 1))


def check_speed(session, _):
    """Kernels and products beside the machine's own ceilings."""
    ran = session.run("speed", [session.here / "gpu_kernels", "speed"])
    rows = SPEED.findall(ran.text)
    for name, microseconds, speed, unit, share in rows:
        session.note("speed", name, "ok", us=float(microseconds), **{unit: float(speed)},
                     percent_of_ceiling=float(share))
    for name, why in REFUSED.findall(ran.text):
        session.note("speed", name, f"WRONG {why}")
    problem = ran.problem or (None if rows else "WRONG no speed")
    if problem:
        session.note("speed", f"{len(rows)} speeds", problem)


def check_schemes(session, _):
    """Every scheme, four ranks as threads on one GPU, against the CPU."""
    table = session.models["schemes"]
    listed = session.run("schemes", [session.here / "pipec", "schemes"])
    if listed.problem:
        session.note("schemes", "pipec schemes", listed.problem)
        return
    names = [line.split()[0] for line in listed.text.splitlines() if line.strip()]
    for dtype in table["dtypes"]:
        for scheme in [name for name in names if name in table.get("only", names)]:
            # PipeDream takes no norm, which loss scaling needs.
            if scheme.startswith("pipedream") and dtype == "fp16":
                continue
            name = f"{scheme} {dtype}, 4 ranks on one GPU"
            result, worst = compare_scheme(session, table["model"], scheme, dtype)
            session.note("schemes", name, result, **({} if worst is None else {"from_cpu": worst}))


def compare_scheme(session, model, scheme, dtype):
    """The result, and the largest relative difference of the losses, or None."""
    limit = 1e-5 if dtype == "fp32" else 2e-2
    norm = 0 if scheme.startswith("pipedream") else 1
    name = f"schemes_{scheme}_{dtype}"
    plan = session.work / f"{name}.plan"
    (session.work / "scheme.json").write_text(json.dumps(model))
    ran = session.run(f"{name}_plan", [
        session.here / "pipec", "compile", "--scheme", scheme, "--devices", 4, "--microbatches", 8,
        "--model", session.work / "scheme.json", "--dtype", dtype, "--backend", "cuda",
        "--clip", "exact" if norm else "off", "-o", plan])
    if ran.status != 0 or not plan.exists():
        return ran.problem or "WRONG no plan", None
    of = {}
    for backend in ("cpu", "cuda"):
        options = ["--steps", 5, "--lr", "1e-3", "--grad-clip", norm, "--backend", backend]
        if dtype == "fp16":  # no step is skipped: near the limit rounding would decide that
            options += ["--loss-scale", 8192]
        log = session.work / "scheme.log"
        log.unlink(missing_ok=True)
        ran = session.run(f"{name}_{backend}", [
            session.here / "piperun", plan, "--data", random_text(session), "--log", log, *options],
            seconds=30)
        if ran.problem:
            return ran.problem, None
        of[backend] = losses(log)
    if len(of["cpu"]) != 5 or len(of["cuda"]) != 5:
        return f"WRONG {len(of['cpu'])} losses of the CPU, {len(of['cuda'])} of the GPU", None
    worst = max(abs(a - b) / b for a, b in zip(of["cuda"], of["cpu"]))
    return ("ok" if worst <= limit else f"WRONG more than {limit}"), worst


def check_nccl(session, _):
    """A message over NCCL, as far as it goes with one GPU."""
    ran = session.run("nccl", [session.here / "gpu_nccl"])
    session.note("nccl", last_line(ran.text), ran.problem or "ok")


def check_sanitizer(session, tool):
    """Our own kernels under compute-sanitizer: cuBLASLt's are not ours to mend."""
    path = find_tool("compute-sanitizer")
    if path is None:
        session.note("sanitize", tool, "WRONG compute-sanitizer is not found")
        return
    ran = session.run(f"sanitize_{tool}", [
        path, "--tool", tool, "--error-exitcode", 9, "--target-processes", "all",
        session.here / "gpu_kernels", "cases", "!matmul"])
    right = sum(result == "ok" for _, result, _, _ in CASE.findall(ran.text))
    result = ran.problem
    summary = ERRORS.findall(ran.text)
    if "Device not supported" in ran.text:
        result = "WRONG Device not supported"
    elif result and summary:
        result = f"{result.split(':')[0]}: {summary[-1][1]}"
    elif result is None and not (summary and right):
        result = "WRONG no summary, or no case"
    session.note("sanitize", tool, result or "ok", right=right, seconds=round(ran.seconds, 1))
    for block in first_errors(ran.text):
        print(block)


def first_errors(text, most=3):
    """The first reports of compute-sanitizer, each of several lines "=========     ..."."""
    blocks, block = [], []
    for line in text.splitlines():
        if re.match(r"^========= (?! )(?!COMPUTE-SANITIZER|ERROR SUMMARY|RACECHECK SUMMARY)", line):
            block = [line]
            blocks.append(block)
        elif line.startswith("=========  ") and block:
            block.append(line)
        else:
            block = []
    return ["\n".join(block[:6]) for block in blocks[:most]]


def check_fakes(session, test):
    """Every scheme on a fake of CUDA: needs no GPU."""
    ran = session.run(test, [session.here / test])
    summary = re.findall(r"^(?:All tests passed|test cases:).*$", ran.text, re.MULTILINE)
    result = ran.problem or ("ok" if summary else "WRONG no summary")
    session.note("fakes", f"{test}: {summary[-1] if summary else 'no summary'}", result,
                 seconds=round(ran.seconds, 1))
