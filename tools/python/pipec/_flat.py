"""FlatBuffers, read where they lie: https://flatbuffers.dev/internals.

A *table* begins with the distance back to its *vtable*, which has the position of each field within
the table, or 0 where the field has its default. What a field refers to lies ahead of it.
"""

from __future__ import annotations

import struct
from typing import Any

import numpy as np
import numpy.typing as npt


class Damaged(ValueError):
    """A position outside of the buffer."""


class Table:
    """A table. Fields are named by their numbers in the schema, from 0."""

    def __init__(self, data: bytes, at: int) -> None:
        self._data = data
        self._at = at
        self._vtable = at - self._read("i", at)
        self._end = self._read("H", self._vtable)

    @classmethod
    def root(cls, data: bytes) -> Table:
        """The buffer's own table."""
        return cls(data, _read(data, "I", 0))

    def _read(self, code: str, at: int) -> int:
        return _read(self._data, code, at)

    def _field(self, field: int) -> int | None:
        """The position of a field's bytes; None: it is not there."""
        entry = 4 + 2 * field
        offset = self._read("H", self._vtable + entry) if entry + 2 <= self._end else 0
        return self._at + offset if offset else None

    def _ahead(self, field: int) -> int | None:
        """The position that a field refers to."""
        at = self._field(field)
        return None if at is None else at + self._read("I", at)

    def number(self, field: int, code: str, default: int = 0) -> int:
        """code: of `struct`, as in "i" for an int."""
        at = self._field(field)
        return default if at is None else self._read(code, at)

    def table(self, field: int) -> Table | None:
        at = self._ahead(field)
        return None if at is None else Table(self._data, at)

    def tables(self, field: int) -> list[Table]:
        """A vector of tables."""
        places = self.column(field, "<u4")
        if places is None:
            return []
        first = (self._ahead(field) or 0) + 4
        return [Table(self._data, first + 4 * i + int(place)) for i, place in enumerate(places)]

    def text(self, field: int) -> str | None:
        """None: it is not there."""
        column = self.column(field, "u1")
        return None if column is None else column.tobytes().decode("utf-8", "replace")

    def column(self, field: int, dtype: npt.DTypeLike) -> npt.NDArray[Any] | None:
        """A vector of numbers, of shape [length]: a view of the buffer that cannot be written to;
        None: it is not there."""
        at = self._ahead(field)
        if at is None:
            return None
        length = self._read("I", at)
        if at + 4 + length * np.dtype(dtype).itemsize > len(self._data):
            raise Damaged(f"a vector of {length} at byte {at}")
        return np.frombuffer(self._data, dtype, length, at + 4) if length else np.empty(0, dtype)


def _read(data: bytes, code: str, at: int) -> int:
    if not 0 <= at <= len(data) - struct.calcsize(code):
        raise Damaged(f"byte {at} of {len(data)}")
    value: int = struct.unpack_from("<" + code, data, at)[0]
    return value
