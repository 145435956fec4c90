"""From the records of tools/gpu/profile.cc to one step, summed per kernel and per group.

A step is the time from the end of one AdamW to the end of the next. The groups are those of the
predictions (kernels/README.md). Our kernels are told apart by their files, which nvcc writes into
the names of what is in an unnamed namespace; what is not ours is cuBLASLt's.
"""

import re
from collections import defaultdict
from dataclasses import dataclass

PRODUCTS, FORWARD, BACKWARD = "products", "attention forward", "attention backward"
ELEMENTS, CROSS_ENTROPY = "norms, elementwise, bias", "cross-entropy"
OPTIMIZER = "AdamW, norm, fill"
GAPS = "gaps between launches"
GROUPS = (PRODUCTS, FORWARD, BACKWARD, ELEMENTS, CROSS_ENTROPY, OPTIMIZER, GAPS)

# Of a file kernels/cuda/NAME_cuda.cu.
GROUP_OF_FILE = {
    "adamw": OPTIMIZER, "attention_backward": BACKWARD, "attention_backward_warpgroups": BACKWARD,
    "attention_forward": FORWARD, "attention_forward_warpgroups": FORWARD, "bias": ELEMENTS,
    "clip": OPTIMIZER, "cross_entropy": CROSS_ENTROPY, "draw": ELEMENTS, "dropout": ELEMENTS,
    "elementwise": OPTIMIZER, "embedding": ELEMENTS, "gelu": ELEMENTS,
    "head_norm": ELEMENTS, "norm": ELEMENTS, "norm_backward": ELEMENTS,
    "plain_matmul": PRODUCTS, "residual": ELEMENTS,
    "rope": ELEMENTS, "round": OPTIMIZER, "scale": ELEMENTS, "sum_parts": ELEMENTS,
    "sum_squares": OPTIMIZER, "swiglu": ELEMENTS,
}
FILE = re.compile(r"_GLOBAL__N__[0-9a-f]+_\d+_(\w+?)_cuda_cu_[0-9a-f]{8}(?:_\d+)?")
OF_CUBLAS = re.compile(r"nvjet|gemm|gemv|cutlass|xmma|splitK|cublas|dot_kernel|reduce_1Block", re.I)


def file_of(kernel):
    """The file of one of our kernels, or None."""
    found = FILE.search(kernel)
    return found[1] if found else None


def group_of(kernel):
    """The group of a kernel, a copy or a fill, by its mangled name; None: unknown."""
    if kernel == "copy":
        return ELEMENTS  # of the residual stream's gradient; the rest are small
    if kernel == "fill":
        return OPTIMIZER
    if "2pp7kernels" in kernel:
        return GROUP_OF_FILE.get(file_of(kernel))
    return PRODUCTS if OF_CUBLAS.search(kernel) else None


def short_name(kernel):
    """FILE FUNCTION of one of our kernels: the identifier after the unnamed namespace."""
    found = FILE.search(kernel)
    if not found:
        return kernel
    # The hash ends with the namespace, whose length is given; what follows is LENGTH IDENTIFIER.
    length = re.search(r"(\d+)$", kernel[:found.start()])
    rest = kernel[found.start() + int(length[1]):] if length else kernel[found.end():]
    size = re.match(r"\d+", rest)
    return f"{found[1]} {rest[size.end():size.end() + int(size[0])]}" if size else kernel


@dataclass
class Step:
    runs: list  # (begin, end, kernel), by their begin, in nanoseconds
    begin: int
    end: int

    @property
    def seconds(self):
        return (self.end - self.begin) * 1e-9


def parse(text):
    """All runs by their begin, and how many records were lost. A last line may be cut off."""
    names, runs, lost = {}, [], 0
    for line in text.splitlines():
        fields = line.split("\t")
        if fields[0] == "name" and len(fields) == 3:
            names[fields[1]] = fields[2]
        elif fields[0] == "run" and len(fields) == 4:
            runs.append((int(fields[2]), int(fields[3]), fields[1]))
        elif fields[0] == "lost":
            lost += int(fields[1])
    return sorted((begin, end, names.get(number, number)) for begin, end, number in runs), lost


def read_profile(text, steps):
    """The median of the steps but the first two, or None and why there is none."""
    runs, lost = parse(text)
    if not runs:
        return None, "no records of CUPTI"
    if lost:
        return None, f"{lost} records lost"
    # A step ends at the last of several launches of AdamW in a row. Copies run beside them.
    kernels = [i for i, (_, _, kernel) in enumerate(runs) if kernel not in ("copy", "fill")]
    updates = [file_of(runs[i][2]) == "adamw" for i in kernels]
    ends = [i for i, now, then in zip(kernels, updates, updates[1:] + [False]) if now and not then]
    if not ends or len(ends) % steps:
        return None, f"AdamW runs {len(ends)} times in {steps} steps"
    times = len(ends) // steps
    ends = ends[times - 1::times]
    found = [Step(runs[before + 1:last + 1], runs[before][1], runs[last][1])
             for before, last in zip(ends[1:], ends[2:])]
    if not found:
        return None, f"{steps} steps are too few"
    return sorted(found, key=lambda step: step.seconds)[(len(found) - 1) // 2], None


def summarize(step):
    """Of each group its ms and launches; a table of the kernels; the names of unknown kernels."""
    groups = {group: {"ms": 0.0, "launches": 0} for group in GROUPS}
    kernels = defaultdict(lambda: [0.0, 0])
    unknown = set()
    busy_until, gaps = step.begin, 0
    for begin, end, kernel in step.runs:
        group = group_of(kernel)
        if group is None:
            unknown.add(short_name(kernel))
        for row in ([groups[group]] if group else []):
            row["ms"] += (end - begin) * 1e-6
            row["launches"] += 1
        kernels[group or "unknown", short_name(kernel)][0] += (end - begin) * 1e-3
        kernels[group or "unknown", short_name(kernel)][1] += 1
        gaps += max(0, begin - busy_until)
        busy_until = max(busy_until, end)
    groups[GAPS]["ms"] = gaps * 1e-6
    groups[GAPS]["launches"] = len(step.runs)
    for row in groups.values():
        row["ms"] = round(row["ms"], 4)
    lines = [f"{'us':>10} {'launches':>8}  group, kernel"]
    for (group, name), (microseconds, count) in sorted(kernels.items(), key=lambda x: -x[1][0]):
        lines.append(f"{microseconds:10.1f} {count:8}  {group}: {name}")
    return groups, "\n".join(lines) + "\n", sorted(unknown)
