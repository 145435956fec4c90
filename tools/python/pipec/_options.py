"""Options of the command line, from Python's values.

Which options there are is the program's affair alone: it refuses others, and names the nearest.
"""

from __future__ import annotations

import numbers
import os
import re
from typing import Any, Collection, Iterable, Mapping

from pipec._binary import Error

# What this package says itself.
_OWN = ("output", "format", "help")


def words_of(options: Mapping[str, Any], taken: Collection[str] = ()) -> list[str]:
    """["--devices=4", ...] of {"devices": 4, ...}; None leaves an option out.

    taken: names that are not options here, beside those that never are.
    """
    words = []
    for name, value in options.items():
        option = "--" + name.replace("_", "-")
        if not re.fullmatch("[a-z][a-z0-9_]*", name):
            raise Error(f"unknown option {name!r} (a name of the command line, with _ for -)")
        if name in _OWN or name in taken:
            raise Error(f"{option}: is not an option here (results are returned)")
        if value is None:
            continue
        text = text_of(option, value)
        # An empty value is a word of its own: only then it is one.
        words += [f"{option}={text}"] if text else [option, ""]
    return words


def text_of(option: str, value: Any, separators: str = ",:") -> str:
    """What the command line calls a value. Parts of a list are joined by the first separator, those
    of a list in a list or in a dict by the next."""
    if isinstance(value, str):
        return _checked(option, value)
    if hasattr(value, "item") and getattr(value, "ndim", None) == 0:
        value = value.item()  # a number of numpy or torch
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, numbers.Integral):
        return _number(option, value, int)
    if isinstance(value, numbers.Real):
        return _number(option, value, float)
    value = getattr(value, "path", value)  # an object that knows its file
    if isinstance(value, (str, os.PathLike)):
        return _checked(option, path_of(value))
    if not separators:
        raise Error(f"{option}: {_shown(value)} is in a list of lists (numbers or texts)")
    if isinstance(value, Mapping):
        items = [f"{key}={text_of(option, each, separators[1:])}" for key, each in value.items()]
        return _checked(option, separators[0].join(items))
    if isinstance(value, (list, tuple, range)) or hasattr(value, "tolist"):
        parts: Iterable[Any] = value.tolist() if hasattr(value, "tolist") else value
        return separators[0].join(text_of(option, part, separators[1:]) for part in parts)
    raise Error(f"{option}: {_shown(value)} (a number, text, a path, or a list or dict of them)")


def path_of(path: str | os.PathLike[Any]) -> str:
    """The path as a word that is not an option, nor standard input."""
    text = os.fsdecode(path)
    return os.path.join(".", text) if text.startswith("-") else text


def _number(option: str, value: Any, kind: type) -> str:
    try:
        return repr(kind(value))
    except (ValueError, OverflowError) as error:  # more digits than Python prints
        raise Error(f"{option}: a number that is too large ({error})") from None


def _checked(option: str, text: str) -> str:
    if "\0" in text:
        raise Error(f"{option}: {_shown(text)} has a NUL (text)")
    return text


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."
