"""Tokens become text again: a file's documents, or the numbers that `piperun --sample` prints."""

import re
from collections.abc import Iterable, Iterator

import numpy as np

from . import Refusal, shown
from .token_file import Reader


def documents(path: str, tokenizer) -> Iterator[str]:
    """Of each document a line about it, and its text."""
    reader = Reader(path)
    if not reader.documents:
        raise Refusal(f"{path}: has no documents (one that tools/tokens has written has)")
    for number in range(reader.documents):
        ids, counts = reader.document(number)
        about = f"document {number}: {len(ids)} tokens, {int(counts.sum())} count"
        yield f"{about}\n{_text(_unfilled(ids, counts), tokenizer, path)}"


def numbers(lines: Iterable[str], tokenizer) -> Iterator[str]:
    """The text of each line of numbers; of what piperun prints, of those with samples."""
    lines = [(i + 1, line.strip()) for i, line in enumerate(lines)]
    samples = [(i, line.removeprefix("sample:")) for i, line in lines if line.startswith("sample:")]
    for i, line in samples or lines:
        words = re.split(r"[\s,|]+", line.strip(" \t,|[]"))
        if words == [""]:
            continue
        place = f"standard input:{i}"
        if wrong := [word for word in words if not re.fullmatch(r"\d{1,9}", word)]:
            raise Refusal(
                f"{place}: {shown(wrong[0])} (numbers of tokens, separated by blanks or commas)"
            )
        yield _text(np.array(words, np.int64), tokenizer, place)


def _unfilled(ids: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """Without the ends that fill a row, which do not count: one is left."""
    last = np.flatnonzero((ids != ids[-1]) | counts)[-1:]
    at = int(last[0]) if len(last) else -1
    return ids[: at + 1] if at >= 0 and ids[at] == ids[-1] else ids[: at + 2]


def _text(ids: np.ndarray, tokenizer, place: str) -> str:
    if ids.max() >= tokenizer.size:
        raise Refusal(f"{place}: token {ids.max()} (less than the tokenizer's {tokenizer.size})")
    return tokenizer.decode(ids.tolist())
