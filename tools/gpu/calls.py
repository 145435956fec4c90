"""The calls of gpu_check, and their checks in the order of what is worth most.

A check's budget is its share of the call's time, in seconds of a call that lasts what CALL_SECONDS
says. The checks before it leave it what they do not use; none can take it away. `first` and
`second` are the two that a machine lent for a quarter of an hour has time for.
"""

import traceback
from dataclasses import dataclass
from typing import Callable

from gpu import checks, machine, nccl, predict, price, products, race, training

MOST_SECONDS = 540
CALL_SECONDS = {"first": 420, "second": 220}  # others: MOST_SECONDS

# The question that the rows of a kind of check answer.
QUESTIONS = {
    "device": "What is this machine, and which libraries does it have?",
    "kernels": "Is every kernel, and every product of cuBLASLt's, right?",
    "train": "How fast is a step of one micro-batch?",
    "profile": "Where does the time of a step go?",
    "race": "How fast are steps of many micro-batches, as LLM.Q trains?",
    "speed": "How near is each kernel to the memory's or the tensor cores' ceiling?",
    "tune": "Which algorithm of cuBLASLt's is the fastest for each product, and what does it gain?",
    "price": "What does it cost that all sums have one order?",
    "ncu": "What bounds the two passes of attention's backward?",
    "nccl": "How long is a message of NCCL's that the host awaits?",
    "ranks": "Do two ranks on one GPU train over NCCL with the losses of no NCCL?",
    "schemes": "Does every scheme train on GPUs as on the CPU?",
    "experiments": "What is each choice about products and launches worth?",
    "torch": "How fast is PyTorch on this machine?",
    "predict": "How far off are times and memory that pipec predicts?",
    "sanitize": "Does compute-sanitizer find anything in our kernels?",
    "fakes": "Does every scheme run over the fakes of CUDA and NCCL?",
}


@dataclass(frozen=True)
class Check:
    kind: str
    what: str
    budget: float
    run: Callable  # of the call and `what`

    @property
    def name(self):
        return f"{self.kind}/{self.what}" if self.what else self.kind


def _check(kind, run):
    return lambda what, budget: Check(kind, what, budget, run)


def _device(budget):
    return Check("device", "", budget, machine.check_device)


_kernels = _check("kernels", checks.check_cases)
_train = _check("train", training.check_train)
_profile = _check("profile", training.check_profile)
_race = _check("race", race.check_race)
_tune = _check("tune", products.check_tune)
_price = _check("price", price.check_price)
_ncu = _check("ncu", checks.check_ncu)
_torch = _check("torch", training.check_torch)
_sanitize = _check("sanitize", checks.check_sanitizer)
_fakes = _check("fakes", checks.check_fakes)

CALLS = {
    "first": [
        _device(10), _kernels("ours", 70), _train("gpt2-124M", 15), _train("gpt2-1.5B", 35),
        _train("llama-1B", 25), _profile("gpt2-124M", 15), _profile("llama-1B", 30),
        _profile("qwen2.5-1.5B", 30), Check("speed", "", 55, checks.check_speed),
        _tune("gpt2-124M", 30), _tune("qwen2.5-1.5B", 70), _price("gpt2-124M", 35),
    ],
    "second": [
        _device(10), _race("qwen2.5-0.5B", 25), _race("qwen2.5-1.5B", 40), _race("qwen2.5-3B", 55),
        _ncu("64", 15), _ncu("128", 15), Check("nccl", "", 10, nccl.check_nccl),
        Check("ranks", "", 50, nccl.check_ranks),
    ],
    "more": [
        _device(15), _race("gpt2-124M", 25), _race("gpt2-1.5B", 45), _race("llama-1B", 40),
        _train("gpt2-774M", 35), _train("llama-3B", 50), _train("gpt2-350M", 25),
        _kernels("products", 60), _price("qwen2.5-1.5B", 60),
        Check("schemes", "", 100, checks.check_schemes),
        Check("experiments", "gpt2-124M", 85, price.check_experiments),
    ],
    "tables": [
        _device(15), _tune("gpt2-1.5B", 75), _tune("llama-1B", 60), _tune("qwen2.5-0.5B", 45),
        _tune("qwen2.5-3B", 125), _tune("llama-3B", 120), _tune("gpt2-350M", 40),
        _tune("gpt2-774M", 60),
    ],
    "torch": [
        _device(15), _torch("gpt2-124M/compile/flash", 60), _torch("gpt2-124M/compile/cudnn", 45),
        _torch("gpt2-1.5B/compile/flash", 80), _torch("gpt2-1.5B/compile/cudnn", 65),
        _torch("llama-1B/compile/flash", 75), _torch("llama-1B/compile/cudnn", 50),
        _torch("llama-3B/compile/flash", 60), _torch("llama-3B/compile/cudnn", 40),
        _torch("gpt2-124M/eager/flash", 25), _torch("llama-1B/eager/flash", 25),
    ],
    "predict": [_device(15), Check("predict", "gpt2-124M", 525, predict.check_predict)],
    "sanitize": [
        _device(15), _sanitize("memcheck", 60), _sanitize("synccheck", 60),
        _sanitize("racecheck", 405),
    ],
    "fakes": [_fakes("cuda_run_test", 330), _fakes("nccl_run_test", 210)],
}


def call_seconds(names):
    """How long a call of these lasts at most."""
    return max(CALL_SECONDS.get(name, MOST_SECONDS) for name in names)


def find_checks(names):
    """Those of calls, kinds (train) and single names (train/gpt2-124M). ValueError: unknown."""
    if not names:
        raise ValueError(f"no check is named ({' '.join(CALLS)}, ...)")
    every = [check for of_call in CALLS.values() for check in of_call]
    found = []
    for name in names:
        of_name = CALLS.get(name) or [c for c in every if name in (c.kind, c.name)]
        if not of_name:
            kinds = dict.fromkeys(list(CALLS) + [check.kind for check in every])
            raise ValueError(f"'{name}' is no check ({' '.join(kinds)}, or as train/gpt2-124M)")
        found += [check for check in of_name if check.name not in {c.name for c in found}]
    if found[0].kind not in ("device", "fakes"):
        found.insert(0, _device(15))
    return found


def run_checks(call, found):
    """Runs all, each until the end of its share."""
    whole, used, asked = sum(check.budget for check in found), 0, set()
    for check in found:
        used += check.budget
        call.deadline = call.start + call.seconds * used / whole
        if call.left() <= 0:
            call.note(check.kind, check.what, "not started: no time left")
            continue
        if check.kind not in asked:
            asked.add(check.kind)
            call.ask(check.kind, QUESTIONS[check.kind])
        try:
            check.run(call, check.what)
        except machine.NoGpu as error:
            call.note(check.kind, check.what, str(error))
            return
        except Exception as error:  # an output that nobody foresaw must not end the call
            log = call.logs / f"{check.name.replace('/', '_')}_error.txt"
            log.write_text(traceback.format_exc())
            call.note(check.kind, check.what, f"WRONG {type(error).__name__}: {error}")
