"""How far predictions are from what was measured: lines under a table, and one over all tables."""

import itertools

CLOSE = 0.05  # pairs that differ by less were not judged


def percent(ours, theirs):
    return f"{(ours / theirs - 1) * 100:+.1f} %"


def mean(values):
    values = list(values)
    return sum(values) / len(values)


class Judge:
    """Of one table: times, whose order within a group counts, too, and bytes."""

    def __init__(self):
        self.times, self.pairs, self.memory, self.placed = [], [], [], {}

    def time(self, ours, theirs, group=None):
        """Also a throughput. Without a group its order beside others says nothing."""
        self.times.append((ours, theirs))
        if group is not None:
            self.place(ours, theirs, group)

    def place(self, ours, theirs, group):
        """What only counts by its order."""
        placed = self.placed.setdefault(group, [])
        self.pairs += [(ours, theirs, *other) for other in placed]
        placed.append((ours, theirs))

    def bytes(self, ours, theirs):
        self.memory.append((ours, theirs))

    def right(self):
        """Of the pairs that differ by more than CLOSE, those in the right order; and all."""
        apart = [pair for pair in self.pairs
                 if max(pair[1], pair[3]) / min(pair[1], pair[3]) > 1 + CLOSE]
        return sum((a - b) * (x - y) > 0 for a, x, b, y in apart), len(apart)

    def lines(self):
        if self.times:
            right, pairs = self.right()
            order = (f"{right} of {pairs} pairs that differ by more than 5 % are in the right order; "
                     if pairs else "")
            yield f"Times: {order}the mean error is {error(self.times):.1f} %."
        if self.memory:
            most = max(abs(ours / theirs - 1) for ours, theirs in self.memory) * 100
            yield (f"Memory: the mean error is {error(self.memory):.1f} %, the largest "
                   f"{most:.1f} %, of {len(self.memory)} figures.")


def error(figures):
    return mean(abs(figure[0] / figure[1] - 1) for figure in figures) * 100


def over_all(judges):
    right, pairs = map(sum, zip(*(judge.right() for judge in judges)))
    times = list(itertools.chain.from_iterable(judge.times for judge in judges))
    memory = list(itertools.chain.from_iterable(judge.memory for judge in judges))
    return (f"Over all tables: {right} of {pairs} pairs in the right order "
            f"({right / pairs * 100:.1f} %), the mean error of {len(times)} times {error(times):.1f} %, "
            f"of {len(memory)} figures of memory {error(memory):.1f} %.")
