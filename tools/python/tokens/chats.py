"""Which part of a chat the assistant says, in the text that a template makes of it.

A template that marks it ({% generation %}) is believed. Without marks, beginnings of the chat are
rendered: what the assistant says with message i is what

    messages 0 .. i                           has after
    messages 0 .. i-1 and a generation prompt

so that the end of its turn is in it, and the line break that many templates put after that is not.
Both have to be beginnings of the whole chat, which is an error where a template rewrites what it
has said before (some take out the thoughts of earlier turns).
"""

import re
from collections.abc import Callable

from . import Refusal, shown

MARKS = ("\ufdd0", "\ufdd1")  # no characters, by Unicode: no text should have them
Span = tuple[int, int]  # from this character up to that one


class Chats:
    """`render(messages, tools, add_generation_prompt)` makes the text; `specials` are the tokenizer's
    special tokens, of which one ends a turn in most templates."""

    def __init__(self, render: Callable[[list, list | None, bool], str], specials: list[str]):
        self._render = render
        any_special = "|".join(map(re.escape, specials)) or r"(?!)"
        self._end_of_turn = re.compile(rf"(?:{any_special})(\s*)\Z")

    def text(self, line: dict, place: str) -> tuple[str, list[Span]]:
        """The whole chat, and what of it counts, in order."""
        messages, tools = line["messages"], line.get("tools")
        _check(messages, tools, place)
        whole = self._rendered(messages, tools, place)
        if MARKS[0] in whole:
            text, spans = _unmarked(whole)
        else:
            text, spans = whole, [
                self._turn(whole, messages, tools, i, place)
                for i, message in enumerate(messages)
                if message["role"] == "assistant"
            ]
        if not any(begin < end for begin, end in spans):
            raise Refusal(
                f"{place}: the assistant says nothing (a message with the role assistant, "
                "by which a chat counts)"
            )
        return text, spans

    def ends_open(self, text: str, spans: list[Span]) -> bool:
        """Whether the assistant has the last word and the template no token that ends its turn."""
        begin, end = spans[-1]
        return end == len(text) and not self._end_of_turn.search(text[begin:end])

    def _turn(self, whole: str, messages: list, tools: list | None, i: int, place: str) -> Span:
        before = self._rendered(messages[:i], tools, place, prompt=True)
        after = self._rendered(messages[: i + 1], tools, place)
        if before == self._rendered(messages[:i], tools, place):
            self._check_unasked(before, after, messages[: i + 1], tools, place)
        for part, what in (
            (before, f"its first {i} messages, with a generation prompt,"),
            (after, f"its first {i + 1} messages"),
        ):
            if not whole.startswith(part):
                raise Refusal(
                    f"{place}: {what} are not rendered as in the whole chat, from "
                    f"{shown(_difference(part, whole))} on (a template that marks what counts "
                    "with {% generation %}, or a chat that ends with that turn)"
                )
        if len(after) < len(before):
            raise Refusal(
                f"{place}: message {i} is rendered as less than a generation prompt "
                "(a template that marks what counts with {% generation %})"
            )
        found = self._end_of_turn.search(whole[len(before) : len(after)])
        return len(before), len(after) - (len(found[1]) if found else 0)

    def _check_unasked(
        self, before: str, after: str, messages: list, tools: list | None, place: str
    ) -> None:
        """Whether `after` ends in a generation prompt is seen where another message follows, which
        has no such prompt before it."""
        try:
            longer = self._render([*messages, {"role": "user", "content": "a"}], tools, False)
        except Exception:  # no message may follow
            return
        rest = after[_common(after, longer) :]
        if rest and before.endswith(rest):
            raise Refusal(
                f"{place}: the chat template ends in a generation prompt, {shown(rest)}, that is not "
                "asked for (where add_generation_prompt is true alone)"
            )

    def _rendered(self, messages: list, tools: list | None, place: str, *, prompt: bool = False) -> str:
        try:
            return self._render(messages, tools, prompt)
        except Exception as error:  # whatever a template does with a message that it does not expect
            raise Refusal(
                f"{place}: the chat template refuses " f"{len(messages)} messages: {shown(str(error))}"
            ) from error


def _check(messages: list, tools: object, place: str) -> None:
    for i, message in enumerate(messages):
        good = isinstance(message, dict) and isinstance(message.get("role"), str)
        if not good or not (isinstance(message.get("content"), (str, list)) or "tool_calls" in message):
            raise Refusal(f"{place}: message {i} is {shown(message)} (an object with role and content)")
    if _has_mark([messages, tools]):
        raise Refusal(f"{place}: has one of {shown(MARKS)}, which mark what counts (other characters)")
    if tools is not None and not isinstance(tools, list):
        raise Refusal(f"{place}: tools is {shown(tools)} (a list)")


def _has_mark(value: object) -> bool:
    if isinstance(value, str):
        return any(mark in value for mark in MARKS)
    if isinstance(value, dict):
        value = [*value, *value.values()]
    return isinstance(value, list) and any(map(_has_mark, value))


def _unmarked(marked: str) -> tuple[str, list[Span]]:
    text, spans = "", []
    for part in re.split(f"({MARKS[0]}[^{MARKS[1]}]*{MARKS[1]})", marked):
        begin = len(text)
        text += part.strip("".join(MARKS))
        if part.startswith(MARKS[0]):
            spans.append((begin, len(text)))
    return text, spans


def _difference(part: str, whole: str) -> str:
    at = _common(part, whole)
    return part[at : at + 40]


def _common(one: str, other: str) -> int:
    """How many characters both begin with."""
    pairs = enumerate(zip(one, other))
    return next((i for i, (a, b) in pairs if a != b), min(len(one), len(other)))
