"""A text too long for one call of the tokenizer, in pieces that together have the tokens of the whole.

A tokenizer that splits a text into words (byte-level BPE) sees no further than the next ones, so
that a cut between two of them changes nothing. Whether a place is such a cut is tried: the text on
both sides of it has to have the same tokens in one call as in two. Where no place will do (a
tokenizer that begins every text with a blank) the whole text is one piece.
"""

import re
from collections.abc import Callable, Iterable, Iterator

PIECE = 1 << 18  # characters, at least, of which the last
CLOSE = 4096  # are where a cut is looked for,
SIDE = 1024  # and so many on each side of it tokenised
TRIES = 32
_CUT = re.compile(r"\n(?=\S)|\S(?= \S)")


def pieces(parts: Iterable[str], encode_all: Callable[[list[str]], list[list[int]]]) -> Iterator[str]:
    rest = ""
    for part in parts:
        rest += part
        if len(rest) >= PIECE and (cut := _find_cut(rest, encode_all)):
            yield rest[:cut]
            rest = rest[cut:]
    if rest:
        yield rest


def _find_cut(text: str, encode_all: Callable[[list[str]], list[list[int]]]) -> int:
    """0: none."""
    last = [found.end() for found in _CUT.finditer(text, len(text) - CLOSE, len(text) - SIDE)][-TRIES:]
    for cut in reversed(last):
        left, right = text[cut - SIDE : cut], text[cut : cut + SIDE]
        one, other, both = encode_all([left, right, left + right])
        if one + other == both:
            return cut
    return 0
