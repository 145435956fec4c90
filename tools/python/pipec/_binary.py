"""The program `pipec`: where it is, and how it is run."""

from __future__ import annotations

import functools
import logging
import os
import re
import shutil
import signal
import subprocess
import sysconfig
from pathlib import Path
from typing import Sequence

try:
    from pipec._version import VERSION as VERSION  # made with the wheel
except ImportError:
    VERSION = ""  # a source tree

_log = logging.getLogger("pipec")
# How the program names its standard input and output, and the line of a long command.
_STANDARD = re.compile(r"/dev/std(in|out)\b")
_PROGRESS = re.compile(r"pipec: .* \(\d+ s\)")


class Error(ValueError):
    """What is wrong, in the line that the program prints after "pipec: error: ":
    `<option or file>: <what is wrong, with the value> (<what would be right>)`.

    status: the program's exit status: 2 for a wrong option or input, 1 for a failure, -N if signal
    N ended it.
    """

    status: int

    def __init__(self, message: str, status: int = 2) -> None:
        super().__init__(message)
        self.status = status


Error.__module__ = "pipec"


def find_binary() -> str:
    """The path of the program: $PIPEC, or what was installed with this package, or what PATH has.

    Raises Error if there is none, or none of this package's version.
    """
    return _find(os.environ.get("PIPEC"))


@functools.lru_cache(maxsize=None)
def _find(override: str | None) -> str:
    if override is not None:
        _check_version(override, of="PIPEC")
        return override
    wrong = None
    for candidate in _candidates():
        try:
            _check_version(candidate, of=candidate)
            return candidate
        except Error as error:
            wrong = wrong or error
    raise wrong or Error(
        "pipec: the program is not installed with this package, nor in PATH (install the wheel "
        "again, or let the environment's PIPEC name it)",
        status=1,
    )


def _candidates() -> list[str]:
    """Existing programs, those that belong to this package first."""
    package = Path(__file__).resolve().parent
    folders = [package.parent / "bin"]  # pip install --target
    folders.append(Path(sysconfig.get_path("scripts")))
    folders.append(Path(sysconfig.get_path("scripts", f"{os.name}_user")))  # --user
    if len(package.parents) > 3:
        folders.append(package.parents[3] / "bin")  # --prefix: PREFIX/lib/pythonX.Y/site-packages
    found = [shutil.which("pipec", path=str(folder)) for folder in folders]
    return [path for path in [*found, shutil.which("pipec")] if path is not None]


def _check_version(binary: str, of: str) -> None:
    printed = _run(binary, ["--version"])
    first = printed.stdout.decode("utf-8", "replace").partition(",")[0]
    if printed.returncode != 0 or not first.startswith("pipec "):
        raise Error(f"{of}: {binary!r} is not pipec (its path)", status=1)
    if VERSION and first != f"pipec {VERSION}":
        raise Error(f"{of}: {binary} is {first} (pipec {VERSION}, as the package)", status=1)


def _run(
    binary: str, words: Sequence[str], data: bytes | None = None
) -> subprocess.CompletedProcess[bytes]:
    # Without data its standard input is at its end.
    try:
        return subprocess.run([binary, *words], input=data or b"", capture_output=True, check=False)
    except (OSError, ValueError) as error:  # ValueError: a NUL or a lone surrogate in a word
        reason = getattr(error, "strerror", None) or str(error)
        raise Error(f"pipec: {binary!r} cannot be run: {reason}", status=1) from None


def run(words: Sequence[str], data: bytes | None = None, name: str = "standard input") -> bytes:
    """Runs `pipec WORDS...` and returns what it prints. Its other lines are logged (`log`).

    data: its standard input, which messages call `name`.
    """
    printed, lines = run_quietly(words, data, name)
    log(lines)
    return printed


def run_quietly(
    words: Sequence[str], data: bytes | None = None, name: str = "standard input"
) -> tuple[bytes, list[str]]:
    """The same, and the lines of standard error rather than a log of them."""
    result = _run(find_binary(), words, data)
    # Without regard to terminals, and in any bytes that a path may have.
    text = result.stderr.decode("utf-8", "surrogateescape")
    text = _STANDARD.sub(lambda match: name if match[1] == "in" else "plan", text)
    lines = text.splitlines()
    if result.returncode == 0:
        return result.stdout, lines
    prefix = "pipec: error: "
    if lines and lines[-1].startswith(prefix):
        log(lines[:-1])
        raise Error(lines[-1][len(prefix) :], status=result.returncode)
    log(lines)
    raise Error(f"pipec {words[0]}: {_ending(result.returncode)}", status=result.returncode)


def _ending(status: int) -> str:
    if status >= 0:
        return f"ended with status {status}"
    try:
        return f"was ended by {signal.Signals(-status).name}"
    except ValueError:
        return f"was ended by signal {-status}"


def log(lines: Sequence[str]) -> None:
    """Logs what the program says beside its result by the logger "pipec": notes as warnings, which
    Python shows unless told otherwise; summaries and progress as info."""
    for line in lines:
        if line.startswith("pipec: ") and not _PROGRESS.fullmatch(line):
            _log.warning("%s", line[len("pipec: ") :])
        else:
            _log.info("%s", line)
