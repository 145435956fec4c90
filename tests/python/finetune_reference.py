"""What piperun has to compute from a file of tokens of which some count: a plain loop in PyTorch, over
a model of transformers, that shares no code with it or with tools/tokens.

A step's loss is the mean over the targets of the step that count. AdamW as in
runtime/model/parameters.h.
"""

import math
import struct

import numpy as np
import torch

LEARNING_RATE, BETAS, EPSILON, WEIGHT_DECAY, CLIP = 1e-3, (0.9, 0.95), 1e-8, 0.1, 1.0
IGNORED = -100
ROUNDS = 32  # of permutation.h


class Sequences:
    """A file of tokens (runtime/files/token_file.h), cut into sequences."""

    def __init__(self, path, length):
        data = path.read_bytes()
        width, tokens = struct.unpack_from("<I", data, 12)[0], struct.unpack_from("<Q", data, 16)[0]
        documents, flags = struct.unpack_from("<Q", data, 24)[0], struct.unpack_from("<I", data, 44)[0]
        self.tokens = np.frombuffer(data, f"<u{width}", tokens, 64).astype(np.int64)
        counts = np.ones(tokens, bool)
        if flags & 1:
            at = 64 + -(-tokens * width // 8) * 8 + 8 * documents
            counts = np.unpackbits(
                np.frombuffer(data, np.uint8, -(-tokens // 64) * 8, at), bitorder="little"
            )[:tokens].astype(bool)
        self.targets = np.where(counts, self.tokens, IGNORED)
        self.length = length
        self.count = (tokens - 2) // length + 1

    def __getitem__(self, n):
        """Inputs and targets. The end of the file lacks some, which do not count."""
        first = n * self.length
        inputs, targets = np.zeros(self.length, np.int64), np.full(self.length, IGNORED)
        for out, source, at in ((inputs, self.tokens, first), (targets, self.targets, first + 1)):
            some = source[at : first + self.length + (at - first)]
            out[: len(some)] = some
        return inputs, targets

    def batch(self, numbers):
        pairs = [self[n] for n in numbers]
        return [torch.from_numpy(np.stack(side)) for side in zip(*pairs)]


def mix(z):
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 % 2**64
    z = (z ^ z >> 27) * 0x94D049BB133111EB % 2**64
    return z ^ z >> 31


def permutation(seed, number, size):
    """The order of pass `number`, from 0, that --shuffle takes: runtime/files/permutation.h."""
    golden = 0x9E3779B97F4A7C15
    state = mix((mix((seed + golden) % 2**64) + golden * (number + 1)) % 2**64)
    keys = [mix((state + golden * (i + 1)) % 2**64) for i in range(ROUNDS)]
    bits = (size - 1).bit_length()
    low_bits = bits // 2

    def once(i):
        low, high = i % 2**low_bits, i >> low_bits
        for one, other in zip(keys[::2], keys[1::2]):
            high ^= mix(low ^ one) % 2 ** (bits - low_bits)
            low ^= mix(high ^ other) % 2**low_bits
        return high << low_bits | low

    order = []
    for i in range(size):
        i = once(i)
        while i >= size:
            i = once(i)
        order.append(i)
    return order


def steps(sequences, per_step, passes, seed=None):
    """The sequences of each step; the last one of a pass has what is left of it."""
    for number in range(passes):
        order = range(sequences.count) if seed is None else permutation(seed, number, sequences.count)
        yield from (list(order[at : at + per_step]) for at in range(0, sequences.count, per_step))


def mean_loss(model, batches, count):
    """The sum over the targets that count, over `count`; batch by batch."""
    return sum(
        torch.nn.functional.cross_entropy(
            model(inputs).logits.flatten(0, 1), targets.flatten(), ignore_index=IGNORED, reduction="sum"
        )
        / count
        for inputs, targets in batches
    )


def counting(batches):
    return sum(int((targets != IGNORED).sum()) for _, targets in batches)


def train(model, sequences, order, validation=None, every=0, val_batches=()):
    """Losses, gradient norms and validation losses (by step, from 1). A step without targets has None
    and makes no update, not even one that the optimizer counts."""
    matrices = [p for p in model.parameters() if p.dim() > 1]
    vectors = [p for p in model.parameters() if p.dim() == 1]
    optimizer = torch.optim.AdamW(
        [{"params": matrices, "weight_decay": WEIGHT_DECAY}, {"params": vectors, "weight_decay": 0.0}],
        lr=LEARNING_RATE,
        betas=BETAS,
        eps=EPSILON,
    )
    losses, norms, validations = [], [], {}
    order = list(order)
    for k, numbers in enumerate(order, 1):
        batch = sequences.batch(numbers)
        optimizer.zero_grad()
        if not (count := counting([batch])):
            losses.append(None)
            norms.append(None)
            continue
        loss = mean_loss(model, [batch], count)
        loss.backward()
        losses.append(loss.item())
        norms.append(torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP).item())
        optimizer.step()
        if every and (k % every == 0 or k == len(order)):
            with torch.no_grad():
                batches = [validation.batch(part) for part in val_batches]
                validations[k] = mean_loss(model, batches, counting(batches)).item()
    return losses, norms, validations


def worst(ours, theirs):
    """The largest relative difference."""
    return max((abs(a - b) / abs(b) for a, b in zip(ours, theirs, strict=True)), default=math.inf)
