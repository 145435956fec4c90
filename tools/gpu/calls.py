"""The calls of gpu_check, and their checks in the order of what is worth most.

A check's budget is its share of the call's time, in seconds of a call of nine minutes. The checks
before it leave it what they do not use; none can take it away.
"""

import traceback
from dataclasses import dataclass
from typing import Callable

from gpu import checks, machine, predict, training

CALL_SECONDS = 540


@dataclass(frozen=True)
class Check:
    kind: str
    what: str
    budget: float
    run: Callable  # of the call and `what`

    @property
    def name(self):
        return f"{self.kind}/{self.what}" if self.what else self.kind


def _device(budget):
    return Check("device", "", budget, machine.check_device)


def _kernels(what, budget):
    return Check("kernels", what, budget, checks.check_cases)


def _of_model(kind, run):
    return lambda model, budget: Check(kind, model, budget, run)


_train = _of_model("train", training.check_train)
_profile = _of_model("profile", training.check_profile)
_tune = _of_model("tune", training.check_tune)
_torch = _of_model("torch", training.check_torch)
_sanitize = _of_model("sanitize", checks.check_sanitizer)
_fakes = _of_model("fakes", checks.check_fakes)

CALLS = {
    "first": [
        _device(20), _kernels("ours", 120), _kernels("products", 70), _train("gpt2-124M", 70),
        _train("llama-1B", 110), _profile("gpt2-124M", 60), _profile("llama-1B", 90),
    ],
    "more": [
        _device(15), _train("gpt2-1.5B", 90), _train("gpt2-774M", 50), _train("llama-3B", 50),
        Check("speed", "", 90, checks.check_speed), Check("schemes", "", 100, checks.check_schemes),
        Check("experiments", "gpt2-124M", 70, training.check_experiments), _tune("gpt2-124M", 35),
        Check("nccl", "", 15, checks.check_nccl), _train("gpt2-350M", 25),
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


def find_checks(names):
    """Those of calls, kinds (train) and single names (train/gpt2-124M). ValueError: unknown."""
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
    whole, used = sum(check.budget for check in found), 0
    for check in found:
        used += check.budget
        call.deadline = call.start + call.seconds * used / whole
        if call.left() <= 0:
            call.note(check.kind, check.what, "not started: no time left")
            continue
        try:
            check.run(call, check.what)
        except machine.NoGpu as error:
            call.note(check.kind, check.what, str(error))
            return
        except Exception as error:  # an output that nobody foresaw must not end the call
            log = call.logs / f"{check.name.replace('/', '_')}_error.txt"
            log.write_text(traceback.format_exc())
            call.note(check.kind, check.what, f"WRONG {type(error).__name__}: {error}")
