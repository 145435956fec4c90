"""The paragraphs of a folder's texts as token files for tools/bench_lengths.sh: a byte is a token.

    bench_lengths.py FOLDER OUT LENGTH    OUT/packed.tokens, OUT/padded.tokens, OUT/lengths.txt,
                                          and in OUT/shares.json which part of either counts

Packed: paragraph after paragraph. Padded: each one a row of LENGTH tokens, a longer one several;
what fills a row is no target.
"""

import json
import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent / "python"))
from tokens.token_file import Writer


def paragraphs(folder: str) -> list[np.ndarray]:
    texts = [path.read_bytes() for path in sorted(Path(folder).iterdir())
             if path.is_file() and not path.is_symlink()]
    cut = [part.strip() for text in texts for part in text.split(b"\n\n")]
    return [np.frombuffer(part, np.uint8) for part in cut if len(part) > 1]


def main() -> None:
    folder, out, length = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])
    pieces = [part[at : at + length] for part in paragraphs(folder)
              for at in range(0, len(part), length)]
    pieces = [piece for piece in pieces if len(piece) > 1]
    np.random.default_rng(1).shuffle(pieces)
    packed = Writer(str(out / "packed.tokens"), 2)
    padded = Writer(str(out / "padded.tokens"), 2, row=length, has_targets=True)
    for piece in pieces:
        packed.begin_document()
        packed.append(piece)
        padded.begin_document()
        row, counts = np.zeros(length, np.uint8), np.zeros(length, bool)
        row[: len(piece)] = piece
        counts[1 : len(piece)] = True
        padded.append(row, counts)
    packed.finish()
    padded.finish()
    numbers, times = np.unique([len(piece) for piece in pieces], return_counts=True)
    (out / "lengths.txt").write_text("".join(f"{n} {m}\n" for n, m in zip(numbers, times)))
    tokens = sum(len(piece) for piece in pieces)
    counted = tokens - len(pieces)  # a document's first token is no target
    shares = {"packed": counted / tokens, "padded": counted / (len(pieces) * length)}
    (out / "shares.json").write_text(json.dumps(shares))
    print(f"{len(pieces)} documents of {tokens / len(pieces):.0f} tokens on average, up to {length}: "
          f"{tokens / len(pieces) / length:.1%} of padded rows")


if __name__ == "__main__":
    main()
