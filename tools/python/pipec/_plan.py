"""A plan: what the compiler writes, as an object."""

from __future__ import annotations

import json
import os
import struct
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Callable, Literal, Sequence, TypeVar

from pipec._binary import Error, run
from pipec._flat import Damaged, Table
from pipec._lists import Instructions
from pipec._options import text_of, words_of

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from pipec._typed import ShowOptions, SimulateOptions, VerifyOptions

# The formats that this reader understands (schema/base/version.h).
_FORMATS = range(3, 7)
# After the FlatBuffer: its length and its checksum.
_SEAL = struct.Struct("<QQ")
# The enums of schema/program.fbs.
_P2P = ("async", "blocking")
_DTYPES = ("fp32", "bf16", "fp16")
_BACKENDS = ("cpu", "cuda")
_RANK_ORDERS = ("tp,pp,dp", "tp,dp,pp")

T = TypeVar("T")
# Of the step's list, which is field 1 of table Device, also its parts.
_STEP = ("prologue", "step", "epilogue")


@dataclass(frozen=True, repr=False)
class Plan:
    """A program for each of D devices, which together run one step of S stages and M micro-batches.

    It cannot be changed, equals a plan of the same bytes, and can be hashed and pickled. `compile`,
    `load`, `import_` and `tune` make plans that are proved safe; `Plan(data)` only reads what one
    of them made, such as bytes that another process sent.
    """

    bytes: bytes  # of the file
    scheme: str = field(init=False, compare=False)
    passes: str = field(init=False, compare=False)  # "mario", as given
    p2p: Literal["async", "blocking"] = field(init=False, compare=False)
    devices: int = field(init=False, compare=False)  # D
    stages: int = field(init=False, compare=False)  # S
    microbatches: int = field(init=False, compare=False)  # M, of one replica
    replicas: int = field(init=False, compare=False)  # data-parallel copies of all that
    zero: int = field(init=False, compare=False)  # 1: copies share the optimizer's state
    clip: bool = field(init=False, compare=False)  # False: there is no gradient norm
    costs: str = field(init=False, compare=False)  # "f=1,b=2"; "": none were given
    # One entry a pipe, which is one copy of the model: for each of S stages its device.
    pipes: tuple[tuple[int, ...], ...] = field(init=False, compare=False)
    pipe_of: tuple[int, ...] = field(init=False, compare=False)  # for each of M: its pipe
    tied: tuple[int, ...] = field(init=False, compare=False)  # stages that share a parameter
    # Which ranks are neighbours, from the inside out: peers, then devices, or replicas.
    rank_order: Literal["tp,pp,dp", "tp,dp,pp"] = field(init=False, compare=False)
    overlaps: bool = field(init=False, compare=False)  # steps overlap
    # "4@0,8@100": from how many steps on a step has how many micro-batches; "": all are alike.
    batch_ramp: str = field(init=False, compare=False)
    # What there is beside "step": "evaluation", and "step-4" for steps of 4 micro-batches.
    routines: tuple[str, ...] = field(init=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "bytes", bytes(memoryview(self.bytes)))
        for name, value in _damage(_head, self.bytes).items():
            object.__setattr__(self, name, value)

    def __reduce__(self) -> tuple[Any, ...]:
        return Plan, (self.bytes,)

    def __repr__(self) -> str:
        replicas = f", {self.replicas} replicas" if self.replicas > 1 else ""
        return (
            f"<pipec.Plan {self.scheme}: {self.devices} devices, {self.stages} stages, "
            f"{self.microbatches} micro-batches{replicas}, {self.p2p}>"
        )

    @property
    def job(self) -> dict[str, Any] | None:
        """The model that the plan trains, and where it is cut: "model" (Hugging Face's config.json
        as a dict), "micro_batch_size" in sequences, "sequence_length" in tokens,
        "layers_per_stage", "tp", "sequence_parallel", "recompute", "dtype", "backend", "keep",
        "documents", "document_length", "lora", as --lora has it, or None, and "shapes", as --shapes
        has them, or None. None: a schedule without a model."""
        return _damage(_job, self.bytes)

    def routine_of(self, step: int) -> str:
        """What a step of a training runs, which counts from 0: "step", or "step-4" where batch_ramp
        has 4 micro-batches there and M is more."""
        if step < 0:
            raise Error(f"step: {step} (0 for the first one)")
        sizes = [size for size, begin in _ramp(self.batch_ramp) if begin <= step]
        return f"step-{sizes[-1]}" if sizes and sizes[-1] != self.microbatches else "step"

    def microbatches_of(self, routine: str) -> int:
        """How many micro-batches of one replica a routine has: "step" has M."""
        return len(self.pipes_of(routine))

    def pipes_of(self, routine: str) -> tuple[int, ...]:
        """For each of a routine's micro-batches its pipe: pipe_of is that of "step"."""
        pipes = {"step": self.pipe_of, **_damage(_pipes_of_routines, self.bytes)}
        if routine not in pipes:
            raise Error(f"routine: {routine!r} ({', '.join(pipes)})")
        return pipes[routine]

    def lists(self, routine: str = "step") -> list[Instructions]:
        """For each device its instructions, as columns.

        routine: "step" is one optimizer step. Where steps overlap, K of them are "prologue", K - 1
        times "step", "epilogue", and in a step micro-batches from M on are those of the next one.
        "evaluation" has only the forwards of one batch; it is empty in a plan without. Others are
        those of `routines`.
        """
        known = [*_STEP, *dict.fromkeys(["evaluation", *self.routines])]
        if routine not in known:
            raise Error(f"routine: {routine!r} ({', '.join(known)})")
        lists = _damage(lambda data: _lists(data, routine), self.bytes)
        if routine == "prologue":
            return [step.prologue(self.microbatches) for step in lists]
        if routine == "epilogue":
            return [step.epilogue(self.microbatches, self.overlaps) for step in lists]
        return lists

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the plan's file, whole or not at all."""
        path = Path(path)
        part = path.with_name(f".{path.name}.{os.getpid()}")
        try:
            part.write_bytes(self.bytes)
            part.replace(path)
        finally:
            part.unlink(missing_ok=True)

    def verify(self, **options: Unpack[VerifyOptions]) -> dict[str, Any]:
        """Proves the plan again, with transport="nccl" for NCCL's streams, too. What was proved, of
        NCCL its communicators, flows and collectives; an Error says what is not safe."""
        proved = self._json("verify", words_of(options))
        del proved["plan"]  # a file's name
        return proved

    def simulate(self, **options: Unpack[SimulateOptions]) -> dict[str, Any]:
        """Predicts one step: "makespan", "period" (from step to step) and each device's "busy" in
        "unit", "bubble" as a share, "peak_activations" in micro-batches of a whole device,
        "peak_bytes". With why=True also each device's "idle" by cause, and the "critical_path".

        The costs are the plan's own, unless costs, machine or device_flops is given.
        """
        return self._json("simulate", words_of(options))

    def why(self, trace: str | os.PathLike[str] | None = None, **options: Unpack[SimulateOptions]
            ) -> dict[str, Any]:
        """What `simulate` says, with the causes of idle time.

        trace: of a run of the plan, from `piperun --trace` or `pipec.torch.Pipeline.trace`. Then
        there is "measured", too: "makespan", "kinds" of instructions and "devices", each with what
        was predicted.
        """
        return self.simulate(**{"why": True, **options}, trace=trace)

    def show(self, format: str = "text", **options: Unpack[ShowOptions]) -> str:
        """The plan as text, which `import_` reads, or as "grid", "stages", "memory", "svg", "html",
        "json", "chrome-trace" or "torch-csv"."""
        return self._run("show", words_of(options), format)

    def _repr_svg_(self) -> str:
        return self.show("svg")

    def _json(self, command: str, words: list[str]) -> dict[str, Any]:
        result: dict[str, Any] = json.loads(self._run(command, words, "json"))
        return result

    def _run(self, command: str, words: list[str], format: str) -> str:
        words = [command, *words, "--format=" + text_of("--format", format), "-"]
        return run(words, self.bytes, name="plan").decode("utf-8", "replace")


def _root(data: bytes) -> Table:
    """The plan's table. Its checksum is for `pipec verify`."""
    if len(data) < 8 or data[4:8] != b"PIPE":
        raise Error("plan: not a plan (what pipec wrote)")
    length = _SEAL.unpack_from(data, len(data) - _SEAL.size)[0] if len(data) > _SEAL.size else 0
    if length != len(data) - _SEAL.size:
        raise Error(
            f"plan: truncated or damaged: {len(data)} bytes without their length at the end"
        )
    root = Table.root(data)
    if root.number(0, "I") not in _FORMATS:
        raise Error(
            f"plan: has format {root.number(0, 'I')} ({_FORMATS[0]} to {_FORMATS[-1]}: a newer "
            "package reads newer ones)"
        )
    return root


def _head(data: bytes) -> dict[str, Any]:
    """The members of Plan that the plan's table has."""
    root = _root(data)
    return {
        "scheme": root.text(1) or "",
        "passes": root.text(2) or "",
        "p2p": _name(_P2P, root.number(3, "B")),
        "devices": root.number(4, "i"),
        "stages": root.number(5, "i"),
        "microbatches": root.number(6, "i"),
        "pipes": tuple(_wholes(pipe, 0) for pipe in root.tables(7)),
        "pipe_of": _wholes(root, 8),
        "replicas": root.number(11, "i", 1),
        "zero": root.number(12, "i"),
        "clip": bool(root.number(13, "B", 1)),
        "costs": root.text(14) or "",
        "tied": _wholes(root, 15),
        "rank_order": _name(_RANK_ORDERS, root.number(16, "B")),
        "overlaps": _overlaps(root),
        "batch_ramp": _checked_ramp(root.text(19) or ""),
        "routines": tuple(_pipes_of_routines(data)),
    }


def _overlaps(root: Table) -> bool:
    """Formats 3 and 4 say it by lists of a prologue and an epilogue."""
    if root.number(0, "I") >= 5:
        return bool(root.number(17, "B"))
    return any(len(Instructions(device.table(part))) for device in root.tables(10)
               for part in (0, 2))


def _ramp(text: str) -> list[tuple[int, int]]:
    """Of each stretch of a training the micro-batches of a step, and its first step, ascending."""
    words = [word.split("@") for word in text.split(",") if word]
    return [(int(size), int(begin)) for size, begin in words]


def _checked_ramp(text: str) -> str:
    try:
        _ramp(text)
    except ValueError:
        raise Damaged(f"batch_ramp {text!r}") from None
    return text


def _pipes_of_routines(data: bytes) -> dict[str, tuple[int, ...]]:
    """By name of those beside the step: for each micro-batch its pipe. Up to format 5 there was one,
    in a field of its own."""
    root = _root(data)
    if root.number(0, "I") < 6:
        has_one = any(len(Instructions(device.table(5))) for device in root.tables(10))
        return {"evaluation": _wholes(root, 8)} if has_one else {}
    return {routine.text(0) or "": _wholes(routine, 2) for routine in root.tables(18)}


def _lists(data: bytes, routine: str) -> list[Instructions]:
    devices, names = _root(data).tables(10), list(_pipes_of_routines(data))
    if routine in _STEP:
        return [Instructions(device.table(1)) for device in devices]
    if routine not in names:
        return [Instructions(None) for _ in devices]
    if _root(data).number(0, "I") < 6:
        return [Instructions(device.table(5)) for device in devices]
    number = names.index(routine)
    lists = [device.tables(6) for device in devices]
    if any(number >= len(tables) for tables in lists):
        raise Damaged(f"a device without a list of {routine}")
    return [Instructions(tables[number]) for tables in lists]


def _job(data: bytes) -> dict[str, Any] | None:
    job = _root(data).table(9)
    if job is None:
        return None
    return {
        "model": json.loads(job.text(0) or "{}"),
        "micro_batch_size": job.number(1, "i", 1),
        "sequence_length": job.number(2, "i"),
        "layers_per_stage": list(_wholes(job, 3)),
        "tp": job.number(4, "i", 1),
        "sequence_parallel": bool(job.number(5, "B")),
        "recompute": job.text(6) or "stage",
        "dtype": _name(_DTYPES, job.number(7, "B")),
        "backend": _name(_BACKENDS, job.number(8, "B")),
        "keep": job.text(9) or "none",
        "lora": job.text(10),
        "documents": bool(job.number(11, "B")),
        "document_length": job.number(12, "i"),
        "shapes": job.text(13),
    }


def _wholes(table: Table, field: int) -> tuple[int, ...]:
    column = table.column(field, "<i4")
    return () if column is None else tuple(column.tolist())


def _name(names: Sequence[str], number: int) -> str:
    if number >= len(names):
        raise Damaged(f"{number} is none of {', '.join(names)}")
    return names[number]


def _damage(read: Callable[[bytes], T], data: bytes) -> T:
    """What `read` makes of a plan's bytes; what is outside of them is an Error."""
    try:
        return read(data)
    except (Damaged, json.JSONDecodeError) as error:
        raise Error(f"plan: damaged: {error} (compile it again)") from None
