"""Stages with something odd about each, and what compares a split backward of one with a whole."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "tools/python"))

import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.utils import parametrizations, weight_norm
from torch.utils.checkpoint import checkpoint

from pipec.torch._split import Splitter

WIDTH, TOKENS, SEQUENCES = 12, 5, 3


class Block(nn.Module):
    """A residual block whose inner width is twice its own."""

    def __init__(self, bias=True, dropout=0.0):
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 2 * WIDTH, bias), nn.Linear(2 * WIDTH, WIDTH, bias)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x):
        return x + self.dropout(self.down(F.gelu(self.up(self.norm(x)))))


class Checkpointed(nn.Module):
    def __init__(self, reentrant):
        super().__init__()
        self.first, self.block, self.last = Block(), Block(dropout=0.25), nn.Linear(WIDTH, WIDTH)
        self.reentrant = reentrant

    def forward(self, x):
        x = checkpoint(self.block, self.first(x), use_reentrant=self.reentrant)
        return self.last(x)


class Twice(nn.Module):
    """One layer, three times, once of them in a checkpoint."""

    def __init__(self, reentrant=None):
        super().__init__()
        self.layer, self.norm = nn.Linear(WIDTH, WIDTH), nn.LayerNorm(WIDTH)
        self.reentrant = reentrant

    def forward(self, x):
        x = torch.tanh(self.layer(self.norm(x)))
        if self.reentrant is None:
            x = torch.tanh(self.layer(x))
        else:
            x = checkpoint(lambda x: torch.tanh(self.layer(x)), x, use_reentrant=self.reentrant)
        return self.layer(x)


class Shared(nn.Module):
    """Two layers, one weight."""

    def __init__(self):
        super().__init__()
        self.a, self.b, self.c = (nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.b.weight = self.c.weight = self.a.weight
        self.c.bias = self.a.bias

    def forward(self, x):
        return self.c(torch.tanh(self.b(torch.tanh(self.a(x)))))


class Tied(nn.Module):
    """An embedding, and a head with its weight."""

    def __init__(self):
        super().__init__()
        self.embedding, self.block = nn.Embedding(WIDTH, WIDTH), Block()
        self.head = nn.Linear(WIDTH, WIDTH, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, x):
        return self.head(self.block(self.embedding(x)))


class Frozen(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.block, self.last = Block(), Block(), nn.Linear(WIDTH, WIDTH)
        self.first.requires_grad_(False)
        self.block.up.weight.requires_grad_(False)
        self.block.down.bias.requires_grad_(False)

    def forward(self, x):
        return self.last(self.block(self.first(x)))


class Lora(nn.Module):
    """A low-rank change of a frozen weight, computed: w + b a."""

    def __init__(self):
        super().__init__()
        self.base = nn.Linear(WIDTH, WIDTH)
        self.base.requires_grad_(False)
        self.a, self.b = nn.Parameter(torch.randn(2, WIDTH)), nn.Parameter(torch.randn(WIDTH, 2))
        self.last = nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        return self.last(F.linear(x, self.base.weight + self.b @ self.a, self.base.bias))


class WeightNorm(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.first, self.last = function(nn.Linear(WIDTH, WIDTH)), nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        return self.last(torch.tanh(self.first(x)))


class Lstm(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm, self.last = nn.LSTM(WIDTH, WIDTH, batch_first=True), nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        return self.last(self.lstm(x)[0])


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.attention = nn.Linear(WIDTH, WIDTH), nn.MultiheadAttention(
            WIDTH, 2, dropout=0.25, batch_first=True)
        self.last = nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        x = self.first(x)
        return self.last(self.attention(x, x, x, need_weights=False)[0])


class Batched(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.norm, self.b = (nn.Linear(WIDTH, WIDTH), nn.BatchNorm1d(WIDTH),
                                     nn.Linear(WIDTH, WIDTH))

    def forward(self, x):
        return self.b(self.norm(self.a(x).flatten(0, 1)).relu().view_as(x))


class InPlace(nn.Module):
    """Operations in place on what a layer returned."""

    def __init__(self):
        super().__init__()
        self.a, self.b, self.act = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH), nn.ReLU(True)

    def forward(self, x):
        y = self.b(self.act(self.a(x)))
        y += x
        return y.mul_(2)


class Strided(nn.Module):
    """Inputs of one, two and four dimensions, transposed ones, outputs of one number."""

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(TOKENS, TOKENS), nn.Linear(TOKENS, TOKENS, bias=False)
        self.c, self.one = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 1)

    def forward(self, x):
        y = self.b(self.a(x.transpose(1, 2))).transpose(1, 2)
        y = y + self.c(y[0, 0]) + self.c(y[:, 0]).unsqueeze(1) + self.c(y.unsqueeze(0))[0]
        y = y + self.c(y[0].t().contiguous().t()) + self.c(y.reshape(-1, WIDTH).expand(2, -1, -1))[
            0].view_as(y)
        return y + self.one(y)


class Aliased(nn.Module):
    """A parameter whose gradient would be a view of the one that a layer queues."""

    def __init__(self):
        super().__init__()
        self.layer, self.place = nn.Linear(WIDTH, WIDTH), nn.Parameter(torch.randn(TOKENS, WIDTH))
        self.last = nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        y = self.layer(x[:1])
        return self.last(torch.tanh(y + self.place.unsqueeze(0)))


class Plus(nn.Module):
    """A parameter whose gradient is the very one that a layer queues."""

    def __init__(self):
        super().__init__()
        self.layer, self.place = nn.Linear(WIDTH, WIDTH), nn.Parameter(
            torch.randn(SEQUENCES, TOKENS, WIDTH))

    def forward(self, x):
        return self.layer(x) + self.place


class Double(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return 2 * x

    @staticmethod
    def backward(ctx, grad):
        return 2 * grad


class Custom(nn.Module):
    """A function of one's own, and a gradient taken inside the forward."""

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        with torch.enable_grad():
            inner = x.detach().requires_grad_()
            slope, = torch.autograd.grad(torch.tanh(self.a(inner)).sum(), inner)
        return self.b(Double.apply(self.a(x) + slope))


class Unused(nn.Module):
    """A layer whose output is not used, and one that is not called."""

    def __init__(self):
        super().__init__()
        self.a, self.b, self.c = (nn.Linear(WIDTH, WIDTH) for _ in range(3))

    def forward(self, x):
        self.b(x)
        return self.a(x)


class Several(nn.Module):
    """Several outputs, one of them an input, one without a gradient."""

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        return self.a(x), self.b(x).sum(), x.argmax(-1), x


def transformers_block():
    from transformers.pytorch_utils import Conv1D
    return nn.Sequential(nn.LayerNorm(WIDTH), Conv1D(2 * WIDTH, WIDTH), nn.GELU(),
                         Conv1D(WIDTH, 2 * WIDTH))


def encoder_layer():
    return nn.TransformerEncoderLayer(WIDTH, 2, 2 * WIDTH, dropout=0.25, batch_first=True)


def tokens(micro):
    generator = torch.Generator().manual_seed(micro)
    return torch.randint(WIDTH, (SEQUENCES, TOKENS), generator=generator)


def hidden(micro):
    generator = torch.Generator().manual_seed(micro)
    return torch.randn(SEQUENCES, TOKENS, WIDTH, generator=generator, dtype=torch.double)


def pictures(*shape):
    def make(micro):
        generator = torch.Generator().manual_seed(micro)
        return torch.randn(*shape, generator=generator, dtype=torch.double)
    return make


# name: (makes the stage, makes the input of a micro-batch)
MODULES = {
    "block": (Block, hidden),
    "block without bias": (lambda: Block(bias=False), hidden),
    "dropout": (lambda: nn.Sequential(Block(dropout=0.25), Block(dropout=0.25)), hidden),
    "checkpoint": (lambda: Checkpointed(False), hidden),
    "reentrant checkpoint": (lambda: Checkpointed(True), hidden),
    "a layer three times": (Twice, hidden),
    "a layer three times, once in a checkpoint": (lambda: Twice(False), hidden),
    "a layer three times, once in a reentrant checkpoint": (lambda: Twice(True), hidden),
    "a weight of three layers": (Shared, hidden),
    "first stage": (lambda: nn.Sequential(nn.Embedding(WIDTH, WIDTH), Block()), tokens),
    "tied inside": (Tied, tokens),
    "frozen": (Frozen, hidden),
    "LoRA": (Lora, hidden),
    "weight_norm": (lambda: WeightNorm(parametrizations.weight_norm), hidden),
    "spectral_norm": (lambda: WeightNorm(parametrizations.spectral_norm), hidden),
    "weight_norm by hook": (lambda: WeightNorm(weight_norm), hidden),
    "LSTM": (Lstm, hidden),
    "MultiheadAttention": (Attention, hidden),
    "TransformerEncoderLayer": (encoder_layer, hidden),
    "BatchNorm": (Batched, hidden),
    "in place": (InPlace, hidden),
    "strides": (Strided, hidden),
    "alias of a gradient": (Aliased, hidden),
    "gradient of two": (Plus, hidden),
    "custom function": (Custom, hidden),
    "unused": (Unused, hidden),
    "several outputs": (Several, hidden),
    "identity": (nn.Identity, hidden),
    "transformers Conv1D": (transformers_block, hidden),
}
CONVOLUTIONS = {
    "Conv2d": (lambda: nn.Sequential(nn.Conv2d(2, 4, 3, padding=1), nn.ReLU(True),
                                     nn.Conv2d(4, 4, 3, stride=2, groups=2, bias=False),
                                     nn.BatchNorm2d(4), nn.Conv2d(4, 2, 2, dilation=2)),
               pictures(3, 2, 9, 9)),
    "Conv2d without a batch": (lambda: nn.Conv2d(2, 4, 3), pictures(2, 9, 9)),
    "Conv1d": (lambda: nn.Conv1d(4, 6, 3, stride=2), pictures(3, 4, 9)),
    "Conv3d": (lambda: nn.Conv3d(2, 4, 2), pictures(2, 2, 4, 4, 4)),
    "Conv2d, padding by name": (lambda: nn.Sequential(
        nn.Conv2d(2, 2, 3, padding="same"), nn.Conv2d(2, 2, 3, padding=1, padding_mode="reflect"),
        nn.ConvTranspose2d(2, 2, 3)), pictures(3, 2, 9, 9)),
}


def leaves(inputs):
    return [x.detach().clone().requires_grad_(x.is_floating_point()) for x in inputs]


def roots(output):
    """The outputs that have a gradient, and gradients for them."""
    outputs = output if isinstance(output, tuple) else (output,)
    outputs = [y for y in outputs if y.requires_grad]
    return outputs, [torch.cos(torch.arange(y.numel(), dtype=y.dtype)).view(y.shape)
                     for y in outputs]


def whole(module, inputs, needs=True, call=None):
    """Trains the module itself on these micro-batches. Returns outputs, gradients of the inputs
    and of the parameters, and buffers."""
    results = []
    for micro, x in enumerate(inputs):
        x, = leaves([x]) if needs else [x]
        torch.manual_seed(micro)
        output = (module if call is None else call)(x)
        outputs, gradients = roots(output)
        if outputs:
            torch.autograd.backward(outputs, gradients)
        results += [y.detach() for y in outputs] + [x.grad]
    return results + [p.grad for p in module.parameters()] + list(module.buffers())


def halves(module, inputs, needs=True, order=None, splitter=None):
    """The same with split backwards: all forwards, then the halves in this order."""
    splitter = Splitter(module) if splitter is None else splitter
    kept, results = [], []
    for micro, x in enumerate(inputs):
        x, = leaves([x]) if needs else [x]
        torch.manual_seed(micro)
        kept.append((x, roots(splitter.forward(micro, x))))
    order = order or [("I", m) for m in range(len(inputs))] + [("W", m) for m in range(len(inputs))]
    for half, micro in order:
        if half == "I":
            x, (outputs, gradients) = kept[micro]
            outside = [x] if x.requires_grad else []
            found = splitter.input_half(micro, outputs, gradients, outside)
            results += [y.detach() for y in outputs] + (list(found) or [None])
            kept[micro] = None
        else:
            splitter.weight_half(micro)
    assert not splitter.pending(), splitter.pending()
    return results + [p.grad for p in module.parameters()] + list(module.buffers())


def twins(make):
    """The same stage twice. (The older weight_norm cannot be copied.)"""
    made = []
    for _ in range(2):
        torch.manual_seed(1)
        made.append(make().double())
    return made


def distance(one, other):
    """The largest relative difference of two lists of tensors; infinite where one has none."""
    if len(one) != len(other):
        return float("inf")
    worst = 0.0
    for a, b in zip(one, other):
        if a is None or b is None:
            if a is not b:
                return float("inf")
            continue
        worst = max(worst, float((a - b).abs().max() / b.abs().max().clamp(min=1e-30)))
    return worst


__all__ = ["CONVOLUTIONS", "MODULES", "Splitter", "distance", "halves", "hidden", "twins", "whole"]
