"""What a token file has, in a few lines."""

from collections import Counter

from . import one_line
from .token_file import Writer

BAR = 40  # characters of the longest


class Lengths:
    """How many documents have how many tokens, before rows are filled or cut."""

    def __init__(self):
        self.cut = 0  # longer than a row
        self.idle = 0  # of which no token counts
        self._counts: Counter[int] = Counter()

    def add(self, tokens: int) -> None:
        self._counts[tokens] += 1

    def rows(self) -> str:
        """Each length and how many documents have it, for pipec --lengths."""
        return "".join(f"{tokens} {count}\n" for tokens, count in sorted(self._counts.items()))

    def lines(self) -> list[str]:
        """By powers of two."""
        buckets: Counter[int] = Counter()  # of 2^k to 2^(k+1) - 1 tokens, by k
        for tokens, count in self._counts.items():
            buckets[tokens.bit_length() - 1] += count
        most = max(buckets.values(), default=0)
        lines = []
        for k in range(min(buckets, default=0), max(buckets, default=-1) + 1):
            count = buckets[k]
            bar = "#" * -(-count * BAR // most)
            lines.append(f"  {1 << k:>8} to {(2 << k) - 1:>8} tokens {count:>9}  {bar}".rstrip())
        return lines


def summary(path: str, writer: Writer, lengths: Lengths) -> str:
    share = 100 * writer.counting / writer.tokens
    lines = [
        f"{one_line(path)}: {writer.documents} documents, {writer.tokens} tokens of "
        f"{8 * writer.token_bytes} bits, {writer.counting} count as targets ({share:.1f} %)"
    ]
    lines += lengths.lines()
    if writer.row:
        lines.append(f"{writer.documents} rows of {writer.row} tokens, {lengths.cut} cut")
    if lengths.idle:
        lines.append(f"{lengths.idle} documents without a token that counts")
    return "\n".join(lines)
