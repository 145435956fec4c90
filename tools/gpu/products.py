"""Products: the fastest of cuBLASLt's algorithms for each of a model's, as a table to keep.

products_h200.tsv (or of the GPU that it is), in the folder where gpu_check was started: one line a
product of each model; kernels/README.md says what to do with it.
"""

import re

from gpu.plans import compile_plan
from gpu.training import train

TUNED = re.compile(r"^(?P<shape>(?:nn|nt|tn) (?P<m>\d+)x(?P<n>\d+)x(?P<k>\d+) \S+ (?P<numbers>\S+)"
                   r"(?: \S+){4}) +(?P<us>[0-9.]+) us, (?P<best>\d+) of (?P<of>\d+); "
                   r"the first (?P<first>[0-9.]+) us;.* (?P<algorithm>algorithm .*)$", re.MULTILINE)
CEILING = re.compile(r"^ceiling: a product .* ([0-9.]+) TFLOP/s", re.MULTILINE)
COLUMNS = ("model", "product", "numbers", "algorithm", "us", "first choice, us", "TFLOP/s",
           "% of the ceiling")


def product_lines(name, text, ceiling):
    """The table's lines; `ceiling`: TFLOP/s, or None."""
    lines = []
    for found in TUNED.finditer(text):
        work = 2 * int(found["m"]) * int(found["n"]) * int(found["k"])
        speed = work / float(found["us"]) / 1e6
        share = f"{100 * speed / ceiling:.1f}" if ceiling else "-"
        lines.append("\t".join((name, found["shape"], found["numbers"], found["algorithm"],
                                found["us"], found["first"], f"{speed:.1f}", share)))
    return lines


def table_path(call):
    gpu = re.search(r"[AH]\d00", call.gpu.get("name", ""))
    return call.folder / f"products_{gpu[0].lower() if gpu else 'gpu'}.tsv"


def write_table(call, name, lines, ceiling):
    """Puts a model's lines in the place of those of an earlier call."""
    path = table_path(call)
    old = path.read_text().splitlines() if path.exists() else []
    kept = [line for line in old if "\t" in line and line.split("\t")[0] not in ("model", name)]
    machine = call.gpu.get("name", "unknown"), call.gpu.get("driver", "unknown")
    head = (f"# {machine[0]}, driver {machine[1]}, CUDA {call.gpu.get('runtime_cuda', 'unknown')}; "
            f"ceiling: a product of 8192 x 8192 x 8192, {ceiling or 'unknown'} TFLOP/s")
    path.write_text("\n".join([head, "\t".join(COLUMNS), *kept, *lines]) + "\n")


def tune(call, name, gemms):
    """Times the algorithms and writes the table. Returns what is wrong."""
    plan, problem = compile_plan(call, name)
    if problem:
        call.note("tune", f"{name}, products", problem)
        return problem
    ran = call.run(f"tune_{name}_ceiling", [call.here / "gpu_kernels", "ceilings"])
    found = CEILING.search(ran.text)
    ceiling = float(found[1]) if found else None
    ran = call.run(f"tune_{name}", [
        call.here / "piperun", plan, "--backend", "cuda", "--tune-gemms", gemms])
    lines = product_lines(name, ran.text, ceiling)
    if lines:
        write_table(call, name, lines, ceiling)
    call.note("tune", f"{name}, {len(lines)} products",
              ran.problem or ("ok" if lines else "WRONG no product"),
              ceiling=ceiling or "unknown", seconds=round(ran.seconds, 1))
    return ran.problem


def check_tune(call, name):
    """The table of products, and a step with the fastest algorithms and with the first choices."""
    gemms = call.logs / f"gemms_{name}.txt"
    if tune(call, name, gemms) is None:
        problem, after = train(call, f"tune_{name}_after", name, ["--gemms", gemms])
        call.note("tune", f"{name}, the fastest", problem or "ok", **after)
    problem, before = train(call, f"tune_{name}_before", name)
    call.note("tune", f"{name}, first choices", problem or "ok", **before)
