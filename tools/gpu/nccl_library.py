"""NCCL's library without what no Hopper GPU runs, so that it fits a bundle: kernels of other GPUs
and those for linking become zeros, which pack to nothing, at the places where they were.

A "fat binary" is a header (magic, version, bytes of the header, bytes of what follows) and entries
of their own headers (kind, version, bytes of the header, bytes of the code; at 28 the processor).
"""

import struct
import subprocess
from pathlib import Path

MAGIC = 0xBA55ED50
MACHINE_CODE, HOPPER = 2, 90


def sections(library):
    """(name, offset, bytes) of an ELF file of 64 bits."""
    table, = struct.unpack_from("<Q", library, 0x28)
    size, count, names = struct.unpack_from("<HHH", library, 0x3A)
    rows = [struct.unpack_from("<IIQQQQ", library, table + i * size) for i in range(count)]
    start = rows[names][4]
    for name, _, _, _, offset, length in rows:
        yield (library[start + name:library.index(0, start + name)].decode(), offset, length)


def clear(library, offset, length, keeps):
    """Returns how many entries `keeps` (of kind and processor) kept."""
    at, kept = offset, 0
    while at + 16 <= offset + length:
        magic, _, header, size = struct.unpack_from("<IHHQ", library, at)
        if magic != MAGIC:
            at += 8
            continue
        entry, end = at + header, at + header + size
        while entry < end:
            kind, _, header, size = struct.unpack_from("<HHIQ", library, entry)
            if keeps(kind, struct.unpack_from("<I", library, entry + 28)[0]):
                kept += 1
            else:
                library[entry + header:entry + header + size] = bytes(size)
            entry += header + size
        at = end
    return kept


def clear_others(library):
    """Leaves Hopper's kernels in the bytes of a library. Returns how many there are."""
    kept = 0
    for name, offset, length in sections(library):
        if name == ".nv_fatbin":
            kept += clear(library, offset, length,
                          lambda kind, sm: (kind, sm) == (MACHINE_CODE, HOPPER))
        elif name == "__nv_relfatbin":
            clear(library, offset, length, lambda kind, sm: False)
    return kept


def cut_down(path, to):
    library = bytearray(Path(path).read_bytes())
    if not clear_others(library):
        raise SystemExit(f"gpu_check: error: {path}: has no kernels for an H100 or H200")
    Path(to).write_bytes(library)
    subprocess.run(["strip", "--strip-unneeded", str(to)], check=True)
