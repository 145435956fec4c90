"""The types of the program's options for editors and type checkers, from its own table."""

import keyword

# Command of the program -> what its options are called here. The package says the rest itself.
CLASSES = {
    "compile": "CompileOptions",
    "import": "ImportOptions",
    "tune": "TuneOptions",
    "simulate": "SimulateOptions",
    "show": "ShowOptions",
    "verify": "VerifyOptions",
}
OWN = ("--output", "--format")
# Those of an option's value in help; anything else is text, or a list or dict of it.
TYPES = {None: "bool", "N": "SupportsIndex", "FILE": "File"}
HEAD = '''"""The options of the program, as `pipec options` has them. Made with the wheel."""

from os import PathLike
from typing import Literal, Mapping, Protocol, Sequence, SupportsIndex, TypedDict, Union

from typing_extensions import Required

class HasPath(Protocol):
    """Knows its file, such as a profile."""

    @property
    def path(self) -> str | PathLike[str]: ...

File = Union[str, PathLike[str], HasPath]
_Item = Union[float, File]
Text = Union[_Item, Sequence[_Item], Mapping[str, Union[_Item, Sequence[_Item]]]]
'''


def _type_of(row: dict) -> str:
    choices = row.get("choices")
    if choices:
        numbers = [choice for choice in choices if choice.isdigit()]
        kind = f"Literal[{', '.join([*map(repr, choices), *numbers])}]"
    else:
        kind = TYPES.get(row.get("value"), "Text")
    return f"Required[{kind}]" if row.get("required") else kind


def _help_of(row: dict) -> str:
    text = row["help"]
    for key, words in (("default", "default: "), ("needs", "needs "), ("excludes", "without ")):
        if key in row:
            value = row[key] if isinstance(row[key], str) else ", ".join(row[key])
            text += f" ({words}{value})"
    return text.replace("\\", "\\\\").replace('"""', "'''")


def option_types(table: dict) -> str:
    """The text of a .pyi.

    table: what `pipec options` prints: command -> rows of "name", "value", "choices" and more.
    """
    out = HEAD
    for command, name in CLASSES.items():
        out += f'\nclass {name}(TypedDict, total=False):\n    """Of `pipec {command}`."""\n'
        for row in table[command]:
            if not row["name"].startswith("--") or row["name"] in OWN:
                continue
            option = row["name"][2:].replace("-", "_")
            if keyword.iskeyword(option):
                raise ValueError(f"{row['name']}: is a word of Python")
            out += f'\n    {option}: {_type_of(row)}\n    """{_help_of(row)}."""\n'
    return out
