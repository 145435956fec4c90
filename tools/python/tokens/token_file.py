"""Token files, byte by byte as runtime/files/token_file.h has them: written as documents arrive, in
memory that does not grow with them, and read without loading them."""

import contextlib
import os
import shutil
import stat
import struct
import sys
import tempfile
from pathlib import Path
from typing import BinaryIO

import numpy as np

from . import Refusal

MAGIC, VERSION, TARGET_BITS = b"PPTOKENS", 1, 1
HEADER = struct.Struct("<8sIIQQQIIQQ")
BLOCK = 4096  # tokens from one count to the next
CHUNK = 1 << 20  # bytes copied at a time


def _aligned(size: int) -> int:
    return -(-size // 8) * 8


class _Output:
    """A file that gets its name when it is complete, or what cannot be renamed: `-`, a pipe, a device."""

    def __init__(self, path: str):
        self.path = path
        self._at = self._stream = self.folder = None
        try:
            if path == "-":
                self._stream = sys.stdout.buffer
            elif _is_there_to_stay(path):
                self._stream = open(path, "wb")
            else:
                self._path = Path(os.path.realpath(path))
                self._at = self._path.with_name(f"{self._path.name}.unfinished-{os.getpid()}")
                self.folder = self._path.parent
            self.file = open(self._at, "wb+") if self._at else tempfile.TemporaryFile()
        except OSError as error:
            raise Refusal(f"{path}: {error.strerror} (a file that can be written)") from error

    def finish(self) -> None:
        self.file.flush()
        if self._at:
            os.fsync(self.file.fileno())
            self.file.close()
            os.replace(self._at, self._path)
            self._at = None
            return
        self.file.seek(0)
        shutil.copyfileobj(self.file, self._stream, CHUNK)
        self._stream.flush()
        self.abandon()

    def abandon(self) -> None:
        if self._at:
            self._at.unlink(missing_ok=True)
        _close(self.file)
        if self._stream and self.path != "-":
            _close(self._stream)


def _close(file: BinaryIO) -> None:
    """Of what is not wanted any more: what is left to be written need not find room."""
    with contextlib.suppress(OSError):
        file.close()


def _is_there_to_stay(path: str) -> bool:
    """A pipe, a device; or a folder, which cannot be opened."""
    try:
        return not stat.S_ISREG(os.stat(path).st_mode)
    except FileNotFoundError:
        return False


class Writer:
    """A token file. `row`: every document is a row of so many tokens (0: they are of any length)."""

    def __init__(self, path: str, token_bytes: int, row: int = 0, has_targets: bool = False):
        self.token_bytes, self.row, self.has_targets = token_bytes, row, has_targets
        self.tokens = self.documents = self.counting = 0
        self._largest = 0
        self._output = _Output(path)
        self._output.file.write(bytes(HEADER.size))
        self._starts, self._bits, self._counts = (
            tempfile.TemporaryFile(dir=self._output.folder) for _ in range(3)
        )
        self._pending = np.zeros(0, bool)  # fewer than BLOCK tokens: which of them count

    def begin_document(self) -> None:
        self._starts.write(struct.pack("<Q", self.tokens))
        self.documents += 1

    def append(self, tokens: np.ndarray, counts: np.ndarray | None = None) -> None:
        """More tokens of the document, and which of them count as targets (None: all)."""
        if not len(tokens):
            return
        self._output.file.write(tokens.astype(f"<u{self.token_bytes}").tobytes())
        self._largest = max(self._largest, int(tokens.max()))
        self.tokens += len(tokens)
        if not self.has_targets:
            self.counting += len(tokens)
            return
        counts = np.ones(len(tokens), bool) if counts is None else np.asarray(counts, bool)
        pending = np.concatenate([self._pending, counts])
        whole = len(pending) // BLOCK * BLOCK
        self._write_counts(pending[:whole])
        self._pending = pending[whole:]

    def finish(self) -> None:
        """The other sections, the header, and the name."""
        self._write_counts(self._pending)
        self._pad()
        for section in (self._starts, self._bits, self._counts):
            section.seek(0)
            shutil.copyfileobj(section, self._output.file, CHUNK)
            section.close()
        self._output.file.seek(0)
        flags = TARGET_BITS if self.has_targets else 0
        self._output.file.write(
            HEADER.pack(
                MAGIC,
                VERSION,
                self.token_bytes,
                self.tokens,
                self.documents,
                self.row,
                self._largest,
                flags,
                self.counting,
                0,
            )
        )
        self._output.finish()

    def abandon(self) -> None:
        """Leaves nothing behind."""
        self._output.abandon()
        for section in (self._starts, self._bits, self._counts):
            _close(section)

    def _write_counts(self, counts: np.ndarray) -> None:
        for block in (counts[at : at + BLOCK] for at in range(0, len(counts), BLOCK)):
            self._counts.write(struct.pack("<Q", self.counting))
            words = np.packbits(block, bitorder="little").tobytes()
            self._bits.write(words.ljust(_aligned(len(words)), b"\0"))
            self.counting += int(block.sum())

    def _pad(self) -> None:
        size = self.tokens * self.token_bytes
        self._output.file.write(bytes(_aligned(size) - size))


class Reader:
    """A token file, mapped into memory. Refusal: it is none, or damaged in what its size shows."""

    def __init__(self, path: str):
        self.path = path
        try:
            with open(path, "rb") as file:
                header = file.read(HEADER.size)
                size = os.fstat(file.fileno()).st_size
        except OSError as error:
            raise Refusal(f"{path}: {error.strerror} (a file that can be read)") from error
        if header[:8] != MAGIC or len(header) < HEADER.size:
            raise Refusal(f"{path}: is no token file (one that tools/tokens has written)")
        (
            _,
            version,
            self.token_bytes,
            self.tokens_count,
            self.documents,
            _,
            _,
            flags,
            self.counting,
            _,
        ) = HEADER.unpack(header)
        if version != VERSION or self.token_bytes not in (2, 4) or flags & ~TARGET_BITS:
            raise Refusal(
                f"{path}: version {version}, {self.token_bytes} bytes a token, flags {flags} "
                f"(version {VERSION}, 2 or 4, 0 or {TARGET_BITS})"
            )
        self.has_targets = bool(flags & TARGET_BITS)
        words, blocks = -(-self.tokens_count // 64), -(-self.tokens_count // BLOCK)
        starts = HEADER.size + _aligned(self.tokens_count * self.token_bytes)
        bits = starts + 8 * self.documents
        whole = bits + (8 * (words + blocks) if self.has_targets else 0)
        if size != whole:
            raise Refusal(f"{path}: {size} bytes ({whole}, by its header)")
        self.tokens = self._section(f"<u{self.token_bytes}", HEADER.size, self.tokens_count)
        self.starts = self._section("<u8", starts, self.documents)
        self.bits = self._section("u1", bits, 8 * words if self.has_targets else 0)

    def document(self, number: int) -> tuple[np.ndarray, np.ndarray]:
        """Its tokens, and which of them count."""
        first = int(self.starts[number])
        end = int(self.starts[number + 1]) if number + 1 < self.documents else self.tokens_count
        if not first < end <= self.tokens_count:
            raise Refusal(
                f"{self.path}: document {number} begins at token {first} "
                f"(before the next one's, {end})"
            )
        return np.asarray(self.tokens[first:end]), self.targets(first, end)

    def targets(self, first: int, end: int) -> np.ndarray:
        """Which of those tokens count."""
        if not self.has_targets:
            return np.ones(end - first, bool)
        from_byte = first // 8
        bits = np.unpackbits(self.bits[from_byte : -(-end // 8)], bitorder="little")
        return bits[first - 8 * from_byte : end - 8 * from_byte].astype(bool)

    def _section(self, dtype: str, offset: int, count: int) -> np.ndarray:
        if not count:
            return np.zeros(0, dtype)
        return np.memmap(self.path, dtype, "r", offset, (count,))
