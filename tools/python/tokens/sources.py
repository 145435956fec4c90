"""Documents of files: a text, or JSON with a document a line. Their content tells them apart; a name
that says JSON (.jsonl, .json, .ndjson) is believed, so that a damaged first line is no text."""

import codecs
import contextlib
import glob
import io
import json
import os
import sys
from collections.abc import Iterator
from itertools import chain
from typing import BinaryIO, NamedTuple

from . import Refusal, shown

BLOCK = 1 << 18  # bytes of a text that are read at a time
DEEPEST = 100  # brackets in brackets of a JSON line; Python's own limit is about 1000
# What a line has, by kind; and what it may have besides.
KEYS = {"text": ("text",), "prompt": ("prompt", "completion"), "messages": ("messages",)}
BESIDES = {"messages": ("tools",)}
NAMES = "text; or prompt and completion; or messages"


class Document(NamedTuple):
    place: str  # file, or file:line
    kind: str  # of KEYS
    # text: a string, or a long one as an iterator of its parts; prompt: a pair; messages: the line
    value: object


def find(patterns: list[str]) -> list[str]:
    """The files that these name, those of a shell's pattern sorted."""
    files = []
    for pattern in patterns:
        found = [pattern]
        if pattern != "-" and not os.path.lexists(pattern):
            found = sorted(glob.glob(pattern))
            if not found:
                raise Refusal(f"{pattern}: no such file (a file, or a pattern such as 'texts/*.txt')")
        for name in found:
            if os.path.isdir(name):
                raise Refusal(f"{name}: is a folder (a pattern names files, such as '{name}/*.txt')")
        files += found
    return files


class Sources:
    """All documents of the files, in order, which have to be of one kind."""

    def __init__(self, files: list[str]):
        self._files = files
        self._first = None  # a document of the kind that all have
        self.unused: dict[str, None] = {}  # keys of JSON lines that nothing uses

    def __iter__(self) -> Iterator[Document]:
        for name in self._files:
            with _open(name) as file:
                for document in self._documents(file, name):
                    yield self._of_one_kind(document)

    def _of_one_kind(self, document: Document) -> Document:
        first = self._first = self._first or document
        if document.kind != first.kind:
            raise Refusal(
                f"{document.place}: has {' and '.join(KEYS[document.kind])}, where "
                f"{first.place} has {' and '.join(KEYS[first.kind])} (one kind in a token file)"
            )
        return document

    def _documents(self, file: BinaryIO, name: str) -> Iterator[Document]:
        place = "standard input" if name == "-" else name
        head, skipped = _first_line(file, place)
        if not (name == "-" or name.endswith((".jsonl", ".json", ".ndjson")) or _is_object(head)):
            yield _text(file, head, skipped, place)
            return
        number = 0
        for line in _lines(file, head):
            number += 1
            if line.strip():
                yield self._parse(line, f"{place}:{number}")

    def _parse(self, line: bytes, place: str) -> Document:
        value = _loaded(line, place)
        if not isinstance(value, dict):
            raise Refusal(f"{place}: is {shown(value)} (an object, in one line)")
        kinds = [kind for kind, keys in KEYS.items() if all(key in value for key in keys)]
        if len(kinds) != 1:
            raise Refusal(f"{place}: has the keys {shown(', '.join(value))} ({NAMES})")
        kind = kinds[0]
        known = KEYS[kind] + BESIDES.get(kind, ())
        self.unused.update((key, None) for key in value if key not in known)
        for key in KEYS[kind]:
            _check(value[key], key, kind, place)
        return Document(
            place,
            kind,
            {
                "text": lambda: value["text"],
                "messages": lambda: value,
                "prompt": lambda: (value["prompt"], value["completion"]),
            }[kind](),
        )


def _loaded(line: bytes, place: str) -> object:
    try:
        value = json.loads(line)
        if _is_deep(value):
            raise RecursionError
        return value
    except UnicodeDecodeError as error:
        raise Refusal(f"{place}: is no UTF-8 ({error.reason} in column {error.start + 1})") from error
    except ValueError as error:
        raise Refusal(f"{place}: is no JSON: {error} (an object, in one line)") from error
    except RecursionError as error:
        raise Refusal(f"{place}: more than {DEEPEST} brackets stand in each other (fewer)") from error


def _check(value: object, key: str, kind: str, place: str) -> None:
    wanted = list if kind == "messages" else str
    if not isinstance(value, wanted):
        raise Refusal(f"{place}: {key} is {shown(value)} ({'a list' if wanted is list else 'a text'})")
    if not value and key != "prompt":
        raise Refusal(f"{place}: {key} is empty (a document has something to learn)")


class _Raw(io.FileIO):
    """Says which file it is that cannot be read, whoever reads."""

    def __init__(self, name: str):
        self._place = "standard input" if name == "-" else name
        with self._said():
            super().__init__(sys.stdin.fileno() if name == "-" else name, closefd=name != "-")

    def readinto(self, buffer) -> int | None:
        with self._said():
            return super().readinto(buffer)

    @contextlib.contextmanager
    def _said(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise Refusal(f"{self._place}: {error.strerror} (a file that can be read)") from error


def _open(name: str) -> BinaryIO:
    return io.BufferedReader(_Raw(name))


def _first_line(file: BinaryIO, place: str) -> tuple[bytes, int]:
    """Up to the end of the first line that is not blank, or BLOCK bytes; without a byte order mark,
    and how many bytes that has."""
    start = file.readline(BLOCK)
    head = start.removeprefix(codecs.BOM_UTF8)
    skipped = len(start) - len(head)
    while head.isspace():
        more = file.readline(BLOCK)
        if not more:
            break
        head += more
    if not head.strip():
        raise Refusal(f"{place}: is empty (a document, or one a line)")
    return head, skipped


def _is_object(head: bytes) -> bool:
    """Whether a file that begins so has JSON. Of a line longer than BLOCK the beginning decides."""
    if not head.endswith(b"\n") and len(head) >= BLOCK:
        return head.lstrip()[:2] == b'{"'
    try:
        return isinstance(json.loads(head), dict)
    except RecursionError:
        return head.lstrip()[:1] == b"{"
    except ValueError:
        return False


def _is_deep(value: object) -> bool:
    level, depth = [value], 0
    while level and depth <= DEEPEST:
        level = [each for each in level if isinstance(each, (dict, list))]
        level = list(chain.from_iterable(x.values() if isinstance(x, dict) else x for x in level))
        depth += 1
    return depth > DEEPEST


def _lines(file: BinaryIO, head: bytes) -> Iterator[bytes]:
    """Also those that `head` is made of."""
    *whole, last = io.BytesIO(head).readlines()
    yield from whole
    yield last if last.endswith(b"\n") else last + file.readline()
    yield from file


def _text(file: BinaryIO, head: bytes, skipped: int, place: str) -> Document:
    parts = _decoded(file, head, skipped, place)
    first = next(parts)
    second = next(parts, None)
    return Document(place, "text", first if second is None else chain((first, second), parts))


def _decoded(file: BinaryIO, head: bytes, at: int, place: str) -> Iterator[str]:
    """A file's text, in parts of about BLOCK bytes. `head`, which is read already, begins at `at`."""
    decoder = codecs.getincrementaldecoder("utf-8")()
    block = head + file.read(BLOCK)
    while True:
        more = file.read(BLOCK)
        try:
            text = decoder.decode(block, final=not more)
        except UnicodeDecodeError as error:
            byte = at + len(block) - len(error.object) + error.start
            raise Refusal(
                f"{place}: is no text: byte {byte} is no UTF-8 (texts, or JSON lines)"
            ) from error
        if "\0" in text:
            raise Refusal(f"{place}: is no text: it has a byte 0 (texts, or JSON lines)")
        yield text
        if not more:
            return
        at, block = at + len(block), more
