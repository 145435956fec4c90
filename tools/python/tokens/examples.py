"""Documents become tokens, and which of them count as targets."""

import re
from collections.abc import Iterable, Iterator

import numpy as np

from . import Refusal
from .chats import Chats
from .pieces import pieces
from .sources import Document

BATCH_CHARACTERS, BATCH_DOCUMENTS = 1 << 18, 1024
Part = tuple[np.ndarray, np.ndarray]  # tokens, and which of them count
_SURROGATE = re.compile("[\ud800-\udfff]")  # halves of characters, which only JSON's \u can write


class Examples:
    """`end` is the token after each document. `chats` is only needed where documents are chats."""

    def __init__(self, tokenizer, end: int, chats: Chats | None = None):
        self._tokenizer, self._end, self._chats = tokenizer, end, chats

    def of(self, documents: Iterable[Document]) -> Iterator[Iterable[Part]]:
        """Each document's parts, to be taken before the next one."""
        for batch in _batches(documents):
            match batch[0].kind:
                case "text" if not isinstance(batch[0].value, str):
                    yield self._long(batch[0])
                case "text":
                    yield from self._texts(batch)
                case "prompt":
                    yield from self._prompts(batch)
                case "messages":
                    yield from ([self._chat(document)] for document in batch)

    def _texts(self, batch: list[Document]) -> Iterator[list[Part]]:
        for ids in self._tokenizer.encode_all([_checked(each.value, each.place) for each in batch]):
            ids = self._begun(ids) + [self._end]
            yield [_part(ids, len(ids))]

    def _long(self, document: Document) -> Iterator[Part]:
        begun = False
        for text in pieces(document.value, self._tokenizer.encode_all):
            ids = self._tokenizer.encode_all([text])[0]
            ids = ids if begun else self._begun(ids)
            begun = True
            yield _part(ids, len(ids))
        yield _part([self._end], 1)

    def _prompts(self, batch: list[Document]) -> Iterator[list[Part]]:
        texts = [_checked(text, each.place) for each in batch for text in each.value]
        ids = self._tokenizer.encode_all(texts)
        for prompt, completion in zip(ids[::2], ids[1::2]):
            prompt, completion = self._begun(prompt), completion + [self._end]
            yield [_part(prompt + completion, len(completion))]

    def _chat(self, document: Document) -> Part:
        text, spans = self._chats.text(document.value, document.place)
        ids, starts = self._tokenizer.encode_with_starts(_checked(text, document.place))
        counts = np.zeros(len(ids), bool)
        for begin, end in spans:
            counts |= (starts >= begin) & (starts < end)
        if not counts.any():
            raise Refusal(
                f"{document.place}: no token of what the assistant says begins there " "(longer texts)"
            )
        if ids[-1] == self._end:
            return np.array(ids), counts
        return np.array(ids + [self._end]), np.append(counts, self._chats.ends_open(text, spans))

    def _begun(self, ids: list[int]) -> list[int]:
        """With what the tokenizer begins a text with, once."""
        prefix = self._tokenizer.prefix
        return ids if ids[: len(prefix)] == prefix else prefix + ids


def row(parts: Iterable[Part], length: int, end: int) -> tuple[Part, int]:
    """A document as a row of `length` tokens; and how many it has. The first one does not count, as
    the row before would have to predict it, nor do the ends that fill the row."""
    ids, counts = np.full(length, end), np.zeros(length, bool)
    tokens = 0
    for more, which in parts:
        room = max(length - tokens, 0)
        taken = slice(tokens, tokens + min(len(more), room))
        ids[taken], counts[taken] = more[:room], which[:room]
        tokens += len(more)
    counts[0] = False
    return (ids, counts), tokens


def _part(ids: list[int], counting: int) -> Part:
    """Of which the last `counting` count."""
    return np.array(ids, np.int64), np.arange(len(ids)) >= len(ids) - counting


def _checked(text: str, place: str) -> str:
    if found := _SURROGATE.search(text):
        raise Refusal(f"{place}: has {ascii(found[0])}, half of a character (both, or none)")
    return text


def _batches(documents: Iterable[Document]) -> Iterator[list[Document]]:
    """Lists that are tokenised at once; a long text is alone, and read before the next document."""
    batch, characters = [], 0
    for document in documents:
        is_long = document.kind == "text" and not isinstance(document.value, str)
        size = 0 if is_long else _size(document)
        if batch and (is_long or characters + size > BATCH_CHARACTERS or len(batch) == BATCH_DOCUMENTS):
            yield batch
            batch, characters = [], 0
        if is_long:
            yield [document]
            continue
        batch.append(document)
        characters += size
    if batch:
        yield batch


def _size(document: Document) -> int:
    match document.kind:
        case "text":
            return len(document.value)
        case "prompt":
            return sum(map(len, document.value))
        case _:
            return BATCH_CHARACTERS  # one by one
