"""The checks of kernels, schemes and the fakes, and those under ncu and compute-sanitizer.

Each takes the call and what it is to check, and notes rows: of what is wrong, and of what there
is, also of a program that was cut off.
"""

import json
import re

from gpu.call import last_line
from gpu.machine import find_tool
from gpu.training import losses, random_text

CASE = re.compile(r"^(.*\S) +(ok|WRONG) +([0-9.]+|inf|nan)(.*)$", re.MULTILINE)
SPEED = re.compile(r"^(.*\S) +([0-9.]+) us +([0-9.]+) (GB/s|TFLOP/s) +([0-9.]+) %$", re.MULTILINE)
REFUSED = re.compile(r"^(.*\S) +WRONG (.*)$", re.MULTILINE)
# Of a kernel under ncu, the rows of its sections.
NCU_KERNEL = re.compile(r"^  (\w+).*, Context \d+", re.MULTILINE)
NCU_METRIC = re.compile(r"^ +(Duration|(?:L2 Cache|DRAM|Compute \(SM\)) Throughput|L2 Hit Rate"
                        r"|Registers Per Thread|Achieved Occupancy) +(\S+) +([0-9.,]+)$",
                        re.MULTILINE)
NCU_SECTIONS = ("SpeedOfLight", "LaunchStats", "Occupancy", "MemoryWorkloadAnalysis",
                "WarpStateStats", "InstructionStats")
ERRORS = re.compile(r"(ERROR|RACECHECK) SUMMARY: (.*)")


def check_cases(call, what):
    """Each kernel, or cuBLASLt's products, against plain versions in doubles."""
    pattern = {"ours": "!matmul", "products": "matmul"}[what]
    ran = call.run(f"kernels_{what}", [call.here / "gpu_kernels", "cases", pattern])
    right = 0
    for name, result, error, rest in CASE.findall(ran.text):
        right += result == "ok"
        if result != "ok":
            call.note("kernels", name, f"WRONG {error}{rest}")
    problem = ran.problem or (None if right else "WRONG no case")
    call.note("kernels", what, problem or "ok", right=right, seconds=round(ran.seconds, 1))


def check_speed(call, _):
    """Kernels and products beside the machine's own ceilings."""
    ran = call.run("speed", [call.here / "gpu_kernels", "speed"])
    rows = SPEED.findall(ran.text)
    for name, microseconds, speed, unit, share in rows:
        call.note("speed", name, "ok", us=float(microseconds), **{unit: float(speed)},
                     percent_of_ceiling=float(share))
    for name, why in REFUSED.findall(ran.text):
        call.note("speed", name, f"WRONG {why}")
    problem = ran.problem or (None if rows else "WRONG no speed")
    if problem:
        call.note("speed", f"{len(rows)} speeds", problem)


def check_schemes(call, _):
    """Every scheme, four ranks as threads on one GPU, against the CPU."""
    table = call.models["schemes"]
    listed = call.run("schemes", [call.here / "pipec", "schemes", "--format", "json"])
    if listed.problem:
        call.note("schemes", "pipec schemes", listed.problem)
        return
    names = [scheme["name"] for scheme in json.loads(listed.text)]
    for dtype in table["dtypes"]:
        for scheme in [name for name in names if name in table.get("only", names)]:
            # PipeDream takes no norm, which loss scaling needs.
            if scheme.startswith("pipedream") and dtype == "fp16":
                continue
            name = f"{scheme} {dtype}, 4 ranks on one GPU"
            result, worst = compare_scheme(call, table["model"], scheme, dtype)
            call.note("schemes", name, result, **({} if worst is None else {"from_cpu": worst}))


def compare_scheme(call, model, scheme, dtype):
    """The result, and the largest relative difference of the losses, or None."""
    # In fp32: cuBLASLt takes its sums in another order than the CPU, which five steps of AdamW make
    # some 3e-5 of (the fakes, whose products are the CPU's, stay within 1e-5).
    limit = 3e-5 if dtype == "fp32" else 2e-2
    norm = 0 if scheme.startswith("pipedream") else 1
    name = f"schemes_{scheme}_{dtype}"
    plan = call.work / f"{name}.plan"
    (call.work / "scheme.json").write_text(json.dumps(model))
    ran = call.run(f"{name}_plan", [
        call.here / "pipec", "compile", "--scheme", scheme, "--devices", 4, "--microbatches", 8,
        "--model", call.work / "scheme.json", "--dtype", dtype, "--backend", "cuda",
        "--grad-norm", "exact" if norm else "off", "-o", plan])
    if ran.status != 0 or not plan.exists():
        return ran.problem or "WRONG no plan", None
    of = {}
    for backend in ("cpu", "cuda"):
        options = ["--steps", 5, "--lr", "1e-3", "--grad-clip", norm, "--backend", backend]
        if dtype == "fp16":  # no step is skipped: near the limit rounding would decide that
            options += ["--loss-scale", 8192]
        log = call.work / "scheme.log"
        log.unlink(missing_ok=True)
        ran = call.run(f"{name}_{backend}", [
            call.here / "piperun", plan, "--data", random_text(call), "--bytes", "--log", log, *options],
            seconds=30)
        if ran.problem:
            return ran.problem, None
        of[backend] = losses(log)
    if len(of["cpu"]) != 5 or len(of["cuda"]) != 5:
        return f"WRONG {len(of['cpu'])} losses of the CPU, {len(of['cuda'])} of the GPU", None
    worst = max(abs(a - b) / b for a, b in zip(of["cuda"], of["cpu"]))
    return ("ok" if worst <= limit else f"WRONG more than {limit}"), worst


def check_ncu(call, head):
    """The two passes of attention's backward under ncu, at GPT-2's or LLaMA's size."""
    path = find_tool("ncu")
    if path is None:
        call.note("ncu", head, "not possible: ncu is not found")
        return
    ran = call.run(f"ncu_{head}", [
        path, "--kernel-name-base", "mangled", "--kernel-name",
        f"regex:attention_backward.*Li{head}E", "--launch-count", 2, "--kill", "yes",
        "--print-kernel-base", "function",
        *(word for section in NCU_SECTIONS for word in ("--section", section)),
        call.here / "gpu_kernels", "speed"])
    starts = [found.start() for found in NCU_KERNEL.finditer(ran.text)] + [len(ran.text)]
    for begin, end in zip(starts, starts[1:]):
        block = ran.text[begin:end]
        metrics = {f"{name}, {unit}": float(value.replace(",", ""))
                   for name, unit, value in NCU_METRIC.findall(block)}
        call.note("ncu", f"{NCU_KERNEL.match(block)[1]}, heads of {head}", "ok", **metrics)
    if "ERR_NVGPUCTRPERM" in ran.text:
        call.note("ncu", head, "not possible: this machine lets nobody read its counters")
    elif len(starts) == 1:  # --kill ends the program by a signal, which is no error of its own
        call.note("ncu", head, ran.problem or f"WRONG no kernel: {last_line(ran.text)}")


def check_sanitizer(call, tool):
    """Our own kernels under compute-sanitizer: cuBLASLt's are not ours to mend."""
    path = find_tool("compute-sanitizer")
    if path is None:
        call.note("sanitize", tool, "WRONG compute-sanitizer is not found")
        return
    ran = call.run(f"sanitize_{tool}", [
        path, "--tool", tool, "--error-exitcode", 9, "--target-processes", "all",
        call.here / "gpu_kernels", "cases", "!matmul"])
    right = sum(result == "ok" for _, result, _, _ in CASE.findall(ran.text))
    result = ran.problem
    summary = ERRORS.findall(ran.text)
    if "Device not supported" in ran.text:
        result = "WRONG Device not supported"
    elif result and summary:
        result = f"{result.split(':')[0]}: {summary[-1][1]}"
    elif result is None and not (summary and right):
        result = "WRONG no summary, or no case"
    call.note("sanitize", tool, result or "ok", right=right, seconds=round(ran.seconds, 1))
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


def check_fakes(call, test):
    """Every scheme on a fake of CUDA: needs no GPU."""
    ran = call.run(test, [call.here / test])
    summary = re.findall(r"^(?:All tests passed|test cases:).*$", ran.text, re.MULTILINE)
    result = ran.problem or ("ok" if summary else "WRONG no summary")
    call.note("fakes", f"{test}: {summary[-1] if summary else 'no summary'}", result,
                 seconds=round(ran.seconds, 1))
