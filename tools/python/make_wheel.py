#!/usr/bin/env python3
"""Packs the Python package and the program into a wheel, the same bytes each time.

    make_wheel.py PIPEC FOLDER

PIPEC is the static program; FOLDER gets the wheel, whose path is printed. tools/wheel builds both.
"""

import base64
import hashlib
import json
import subprocess
import sys
import zipfile
from pathlib import Path

from option_types import option_types

HERE = Path(__file__).resolve().parent
# A program that needs no library runs on any Linux, of whatever age.
TAG = "py3-none-manylinux_2_5_x86_64.manylinux1_x86_64"
METADATA = """\
Metadata-Version: 2.1
Name: pipec
Version: {version}
Summary: Compiles, proves and predicts pipeline-parallel schedules; runs them inside PyTorch.
Requires-Python: >=3.9
Requires-Dist: numpy>=1.21
Provides-Extra: torch
Requires-Dist: torch>=2.15; extra == "torch"
Classifier: Operating System :: POSIX :: Linux
Classifier: Typing :: Typed
Description-Content-Type: text/markdown

{readme}"""
WHEEL = """\
Wheel-Version: 1.0
Generator: tools/wheel
Root-Is-Purelib: false
"""


def contents(program: Path) -> tuple[str, dict[str, bytes]]:
    """The version, and the files by their names in the wheel, without RECORD."""

    def printed(command: str) -> str:
        return subprocess.run([program, command], check=True, capture_output=True, text=True).stdout

    version = printed("--version").split()[1].rstrip(",")
    files = {
        str(path.relative_to(HERE)): path.read_bytes()
        for path in (HERE / "pipec").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    files["pipec/_version.py"] = f"VERSION = {version!r}\n".encode()
    files["pipec/_typed.pyi"] = option_types(json.loads(printed("options"))).encode()
    files[f"pipec-{version}.data/scripts/pipec"] = program.read_bytes()
    readme = (HERE / "README.md").read_text("utf-8")
    info = f"pipec-{version}.dist-info"
    files[f"{info}/METADATA"] = METADATA.format(version=version, readme=readme).encode()
    tags = "".join(f"Tag: py3-none-{platform}\n" for platform in TAG.split("-")[2].split("."))
    files[f"{info}/WHEEL"] = (WHEEL + tags).encode()
    return version, files


def record(name: str, data: bytes) -> str:
    """A file's line in RECORD."""
    digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
    return f"{name},sha256={digest},{len(data)}\n"


def make_wheel(program: Path, folder: Path) -> Path:
    version, files = contents(program)
    name = f"pipec-{version}.dist-info/RECORD"
    lines = [record(*item) for item in sorted(files.items())]
    files[name] = ("".join(lines) + f"{name},,\n").encode()
    folder.mkdir(parents=True, exist_ok=True)
    wheel = folder / f"pipec-{version}-{TAG}.whl"
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        # RECORD comes last.
        for member in sorted(files, key=lambda each: (each == name, each)):
            entry = zipfile.ZipInfo(member, (1980, 1, 1, 0, 0, 0))
            entry.external_attr = (0o100755 if "/scripts/" in member else 0o100644) << 16
            entry.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(entry, files[member])
    return wheel


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    print(make_wheel(Path(sys.argv[1]).resolve(), Path(sys.argv[2])))
