"""A device's list of instructions, as columns of numbers."""

from __future__ import annotations

import json
import operator
from functools import lru_cache
from typing import Any, Iterator, NamedTuple, Sequence

import numpy as np
import numpy.typing as npt

from pipec._binary import Error, run
from pipec._flat import Table


class Instruction(NamedTuple):
    """One instruction. A number that its op does not have is -1."""

    op: str  # "FW", "SEND_act" ...: `pipec.ops()`
    stage: int
    micro: int  # micro-batch
    peer: int  # of a message: the other device
    value: str | None  # of a WAIT: for what, "act", "wgrad" ...: `pipec.values()`
    sent: bool  # of a WAIT: for the end of the value's send
    bucket: int  # of a reduction: which part of the stage's gradients
    pipe: int  # of STEP and reductions, where there are several pipes
    version: int  # which weights: updates older than the newest
    overlap: bool  # with its neighbour, which has it set too: the two run as one


# For each field of Instruction: its number in table Instructions of schema/program.fbs, the type,
# and the value of a column that is not there.
_COLUMNS: dict[str, tuple[int, npt.DTypeLike, int]] = {
    "op": (0, "u1", 0),
    "stage": (1, "<i4", -1),
    "micro": (2, "<i4", -1),
    "peer": (3, "<i4", -1),
    "value": (4, "u1", 0),
    "sent": (5, "?", False),
    "bucket": (6, "<i2", -1),
    "pipe": (7, "<i2", -1),
    "version": (10, "<i2", -1),
    "overlap": (11, "?", False),
}


class Instructions:
    """A list of n instructions. Its columns have the shape [n] and cannot be written to; entry i of
    each belongs to instruction i. What a field means stands at `Instruction`; where an op does not
    have it, it is -1, 0 for value, or False. An index or a loop gives `Instruction`s, which name
    ops and values; the columns have their numbers, as in `pipec.ops()` and `pipec.values()`.
    """

    op: npt.NDArray[np.uint8]
    stage: npt.NDArray[np.int32]
    micro: npt.NDArray[np.int32]
    peer: npt.NDArray[np.int32]
    value: npt.NDArray[np.uint8]
    sent: npt.NDArray[np.bool_]
    bucket: npt.NDArray[np.int16]
    pipe: npt.NDArray[np.int16]
    version: npt.NDArray[np.int16]
    overlap: npt.NDArray[np.bool_]

    def __init__(self, table: Table | None) -> None:
        """table: None is an empty list."""
        length = None
        for name, (field, dtype, default) in _COLUMNS.items():
            column = None if table is None else table.column(field, dtype)
            if length is None:
                length = 0 if column is None else len(column)
            if column is None:
                column = np.broadcast_to(np.array(default, dtype), length)
            if len(column) != length:
                raise Error(f"plan: a column of {len(column)} instructions (of {length})")
            column.flags.writeable = False
            setattr(self, name, column)

    def prologue(self, microbatches: int) -> Instructions:
        """What a step's list has of the next step: its micro-batches from M on."""
        return self._where(self.micro >= microbatches, microbatches)

    def epilogue(self, microbatches: int, overlaps: bool) -> Instructions:
        """The rest, where steps overlap."""
        return self._where((self.micro < microbatches) & overlaps, 0)

    def _where(self, is_part: npt.NDArray[np.bool_], before: int) -> Instructions:
        part = Instructions(None)
        for name in _COLUMNS:
            column = getattr(self, name)[is_part]
            if name == "micro":
                column = column - np.int32(before)
            column.flags.writeable = False
            setattr(part, name, column)
        return part

    def __len__(self) -> int:
        return len(self.op)

    def __repr__(self) -> str:
        return f"<{len(self)} instructions>"

    def __getitem__(self, i: int) -> Instruction:
        i = operator.index(i)  # no slice
        fields = {name: getattr(self, name)[i].item() for name in _COLUMNS}
        fields["op"] = _names("ops")[fields["op"]]
        fields["value"] = _names("values")[fields["value"]]
        return Instruction(**fields)

    def __iter__(self) -> Iterator[Instruction]:
        return self.rows()

    def rows(self) -> Iterator[Instruction]:
        """All instructions in their order. For programs of millions the columns are better."""
        columns = {name: getattr(self, name).tolist() for name in _COLUMNS}
        columns["op"] = map(_names("ops").__getitem__, columns["op"])
        columns["value"] = map(_names("values").__getitem__, columns["value"])
        return map(Instruction._make, zip(*columns.values()))

    def text(self, i: int) -> str:
        """An instruction as `pipec show` prints it: "SEND_act s0 m0 to d1"."""
        row = self[i]
        words = [row.op]
        for field in _fields(int(self.op[i])):
            value = getattr(row, field["name"])
            if value is True or isinstance(value, str):
                words.append(field["text"] + (value if isinstance(value, str) else ""))
            elif value is not None and value is not False and value != -1:
                words.append(f"{field['text']}{value}")
        return " ".join(words)


@lru_cache(maxsize=None)
def table(command: str) -> Sequence[dict[str, Any]]:
    """The rows of a list that the program prints, such as "ops"."""
    return tuple(json.loads(run([command, "--format=json"])))


@lru_cache(maxsize=None)
def _names(command: str) -> list[Any]:
    """Number in a plan -> name; of values, 0 is none."""
    names: list[Any] = [f"number {number}" for number in range(256)]
    if command == "values":
        names[0] = None
    for row in table(command):
        names[row["number"]] = row["name"]
    return names


@lru_cache(maxsize=None)
def _fields(op: int) -> Sequence[dict[str, str]]:
    """The fields that an op may have, in the order of its text."""
    return next((row["fields"] for row in table("ops") if row["number"] == op), ())
