"""What it costs that all sums have one order, with no atomic one: each choice beside the faster
one that it excludes, as milliseconds and percent of a step.

Attention and embeddings are timed in PyTorch, which has both; the products are our own, with the
orders that --cuda-experiments allows. What else may be tried on a GPU is here, too.
"""

import re
import sys

from gpu.plans import batch_of
from gpu.training import train

# Each beside the default: a name, piperun's options, changes of the environment.
EXPERIMENTS = [("default", [], {})] + [
    (setting, ["--cuda-experiments", setting], {})
    for setting in ("reduction=none", "reduction=compute", "reduction=any", "alignment=16",
                    "alignment=64", "gelu=fused", "gelu=separate", "poll=5", "poll=50",
                    "weights=beside", "weights=after", "spare=0", "spare=8")
] + [("EAGER loading", [], {"CUDA_MODULE_LOADING": "EAGER"})]

TIMED = re.compile(r"^(.+) \| (.+) \| (?:([0-9.]+) us|refused: (.*))$", re.MULTILINE)
ATTENTION = "attention backward"


def check_experiments(call, name):
    """Each change alone beside the default."""
    default = None
    for label, options, env in EXPERIMENTS:
        problem, found = train(call, f"experiment_{label}", name, options, env)
        default = default or found.get("ms")
        if default and "ms" in found:
            found["of_default"] = round(found["ms"] / default, 3)
        call.note("experiments", f"{name}, {label}", problem or "ok", **found)


def check_price(call, name):
    step = price_of_products(call, name)
    price_in_torch(call, name, step)


def price_of_products(call, name):
    """Any order of a product's sums beside one order. Returns a step's milliseconds."""
    problem, ours = train(call, f"price_{name}_one_order", name)
    call.note("price", f"{name}, products: sums in one order", problem or "ok", **ours)
    problem, any_order = train(call, f"price_{name}_any_order", name,
                               ["--cuda-experiments", "reduction=any"])
    if "ms" in ours and "ms" in any_order:
        any_order.update(over(ours["ms"], any_order["ms"], ours["ms"]))
    call.note("price", f"{name}, products: sums in any order", problem or "ok", **any_order)
    return ours.get("ms")


def over(dear, cheap, step):
    """What the dear choice costs beside the cheap one."""
    cost = {"order_costs_ms": round(dear - cheap, 3)}
    return {**cost, "order_costs_percent": round(100 * (dear - cheap) / step, 2)} if step else cost


def price_in_torch(call, name, step):
    """Lines of price_torch.py, a launch each; of attention there is one per layer."""
    model = call.models["models"][name]
    ran = call.run(f"price_{name}_torch", [
        sys.executable, call.here / "price_torch.py", "--batch", batch_of(call, name), "--tokens",
        model["tokens"], "--heads", model["heads"], "--kv-heads", model["kv_heads"], "--width",
        model["width"], "--vocabulary", model["vocabulary"]], ours=False)
    rows = [(what, choice, float(us) * (model["layers"] if what == ATTENTION else 1) / 1e3
             if us else None, why) for what, choice, us, why in TIMED.findall(ran.text)]
    profiled = call.known("profile", f"{name}, {ATTENTION}")
    if profiled:
        rows.append((ATTENTION, "ours, one order", profiled["ms"], ""))
    for what, choice, ms, why in rows:
        cheap = min((other for of, by, other, _ in rows
                     if of == what and other and "any order" in by), default=None)
        if ms is None:
            call.note("price", f"{name}, {what}: {choice}", f"not possible: {why}")
            continue
        cost = over(ms, cheap, step) if cheap and "one order" in choice else {}
        call.note("price", f"{name}, {what}: {choice}", "ok", ms=round(ms, 3), **cost)
    if ran.problem or not rows:
        call.note("price", f"{name}, in PyTorch", ran.problem or "WRONG no time")
