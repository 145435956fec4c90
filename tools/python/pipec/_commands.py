"""The commands of the program that make plans, and its lists."""

from __future__ import annotations

import copy
import functools
import json
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Mapping

from pipec import _lists
from pipec._binary import Error, log, run, run_quietly
from pipec._options import path_of, text_of, words_of
from pipec._plan import Plan

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from pipec._typed import CompileOptions, ImportOptions, TuneOptions


def compile(**options: Unpack[CompileOptions]) -> Plan:
    """Compiles a schedule, proves it safe and returns it.

    compile(scheme="zb-v", devices=4, microbatches=16, memory_limit=2.5, costs="run.profile")

    Options are those of `pipec compile` with _ for -. A list is joined by commas (passes=["mario"],
    memory_limit=["40GiB", "24GiB"]), a dict stands for costs (costs=dict(f=[1, 2], b=2), in which a
    list has a value per stage), a path may be a Path, a flag is True. `help("compile")` has them
    all. Raises Error with the program's own line if something is wrong with one.

    The plan has lists for an evaluation, unless evaluation=False is given.
    """
    return Plan(run(["compile", *words_of({"evaluation": True, **options}), "-o", "-"]))


def load(path: str | os.PathLike[str], *, verify: bool = True) -> Plan:
    """The plan in a file, proved safe.

    verify: False leaves out its checksum and the proof (a second for ten million instructions).
    """
    try:
        data = Path(path).read_bytes()
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise Error(f"{os.fspath(path)}: cannot be read: {reason} (a plan)") from None
    if verify:
        run(["verify", "--quiet", "-"], data, name=os.fspath(path))
    return Plan(data)


def import_(
    source: Any = None, format: str | None = None, **options: Unpack[ImportOptions]
) -> Plan:
    """The plan that states the given lists, lowered and proved safe.

    source: a file's path; or lists themselves, as a str of several lines, in the form that
    `Plan.show()` has or as PyTorch's CSV; or a schedule object of torch.distributed.pipelining.
    format: "text" or "torch-csv". By default a file is CSV if its name ends with .csv, and lines
    are CSV unless they begin with "program".
    Options are those of `compile` that say how lists are lowered: `help("import")` has them. The
    plan has lists for an evaluation, as with `compile`. With layout="Et*2|t*2L" there is no source.
    """
    words = ["import", *words_of({"evaluation": True, **options}), "-o", "-"]
    if source is None:
        return Plan(run(words))
    if not isinstance(source, (str, os.PathLike)):
        from pipec.torch._schedules import schedule_csv  # only where it is needed: torch

        source, format = schedule_csv(source), "torch-csv"
    data = None
    if isinstance(source, str) and "\n" in source:
        if format is None:
            format = "text" if source.lstrip("\ufeff").startswith("program") else "torch-csv"
        data = source.encode("utf-8", "surrogatepass")
    if format is not None:
        words.append("--format=" + text_of("--format", format))
    return Plan(run([*words, path_of(source) if data is None else "-"], data, name="lists"))


@dataclass(frozen=True)
class Tuned:
    """What `tune` found."""

    plan: Plan  # the best
    # Best first: "scheme", "pp", "tp", "dp", "micro_batch_size", "passes", "step_seconds",
    # "tokens_per_second", "peak_bytes", "fits", "command" (which compiles it) and more.
    candidates: list[dict[str, Any]] = field(repr=False)
    best: dict[str, Any]  # the candidate that `plan` is of
    report: dict[str, Any] = field(repr=False)  # all that `pipec tune --format json` says
    _options: Mapping[str, Any] = field(repr=False)

    @functools.cached_property
    def text(self) -> str:
        """The report for people. It takes another search."""
        return run(["tune", *words_of(self._options), "--quiet"]).decode("utf-8", "replace")

    def __str__(self) -> str:
        return self.text


def tune(**options: Unpack[TuneOptions]) -> Tuned:
    """Finds the fastest plan for a model on a machine.

    tune(model="config.json", machine="h100-sxm", devices=16, global_batch_size=256,
         dtype="bf16", backend="cuda")

    Options are those of `pipec tune` with _ for -: `help("tune")`.
    """
    # The plan is printed, so that the report is on standard error, at the end.
    words = words_of(options)
    plan, lines = run_quietly(["tune", *words, "--format=json", "-o", "-"])
    begin = next(i for i, line in enumerate(lines) if line.startswith("{"))
    rest = "\n".join(lines[begin:])
    report, end = json.JSONDecoder().raw_decode(rest)
    log(lines[:begin] + rest[end:].splitlines()[1:])
    return Tuned(Plan(plan), report["candidates"], report["best"], report, dict(options))


def help(command: str | None = None) -> str:
    """The page of a command and its options; of all commands without a name."""
    return run(["help", *([] if command is None else [command])]).decode()


def schemes() -> list[dict[str, Any]]:
    """The schemes: "name", "meaning", "stages_per_device", "needs", "option"."""
    return _rows("schemes")


def passes() -> list[dict[str, Any]]:
    """The passes: "name", "meaning"."""
    return _rows("passes")


def ops() -> list[dict[str, Any]]:
    """The instructions: "name", "number" in `Instructions.op`, "meaning", "lane", "fields"."""
    return _rows("ops")


def values() -> list[dict[str, Any]]:
    """The kinds of values: "name", "number" in `Instructions.value`, "meaning"."""
    return _rows("values")


def machines() -> list[dict[str, Any]]:
    """The machines that the option `machine` knows."""
    return _rows("machines")


def _rows(command: str) -> list[dict[str, Any]]:
    return copy.deepcopy(list(_lists.table(command)))
