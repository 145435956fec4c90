"""Small models in stages, and the same training step in one process."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F

import pipec.torch

VOCABULARY, WIDTH, TOKENS, SEQUENCES = 61, 32, 12, 2
SEED = 3


class TextStage(nn.Module):
    """A block of a Transformer without attention; the first one has an embedding, the last a head."""

    def __init__(self, stage: int, stages: int, dropout: float = 0.1):
        super().__init__()
        torch.manual_seed(stage)
        self.embedding = nn.Embedding(VOCABULARY, WIDTH) if stage == 0 else None
        self.norm, self.up, self.down = (nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 2 * WIDTH),
                                         nn.Linear(2 * WIDTH, WIDTH))
        self.dropout = nn.Dropout(dropout)
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False) if stage == stages - 1 else None

    def forward(self, x):
        if self.embedding is not None:
            x = self.embedding(x)
        x = x + self.dropout(self.down(F.gelu(self.up(self.norm(x)))))
        return x if self.head is None else self.head(x)


def text_loss(logits, targets):
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="sum")


def text_batch(micros: int, replica: int, step: int = 0, tokens=lambda micro: TOKENS):
    """Inputs and targets by micro-batch."""
    generator = torch.Generator().manual_seed(1000 * step + replica)
    text = [torch.randint(VOCABULARY, (SEQUENCES, tokens(m) + 1), generator=generator)
            for m in range(micros)]
    return [t[:, :-1].contiguous() for t in text], [t[:, 1:].contiguous() for t in text]


class ImageStage(nn.Module):
    """A residual block of convolutions; the first one has a stem, the last a classifier."""

    def __init__(self, stage: int, stages: int, dropout: float = 0.1):
        super().__init__()
        torch.manual_seed(100 + stage)
        self.stem = nn.Conv2d(3, 8, 3, padding=1) if stage == 0 else None
        self.one, self.norm = nn.Conv2d(8, 16, 3, padding=1), nn.GroupNorm(4, 16)
        self.two = nn.Conv2d(16, 8, 3, padding=1)
        self.dropout = nn.Dropout(dropout)
        self.head = nn.Linear(8, 10) if stage == stages - 1 else None

    def forward(self, x):
        if self.stem is not None:
            x = self.stem(x)
        x = x + self.dropout(self.two(F.relu(self.norm(self.one(x)))))
        return x if self.head is None else self.head(x.mean((2, 3)))


def image_loss(logits, targets):
    return F.cross_entropy(logits, targets, reduction="sum")


def image_batch(micros: int, replica: int, step: int = 0):
    generator = torch.Generator().manual_seed(7 + 1000 * step + replica)
    images = torch.randn(micros, SEQUENCES, 3, 6, 6, generator=generator,
                         dtype=torch.get_default_dtype())
    labels = torch.randint(10, (micros, SEQUENCES), generator=generator)
    return list(images), list(labels)


class Normed(nn.Module):
    """Statistics that each forward moves, and a dropout before them."""

    def __init__(self, stage: int, stages: int):
        super().__init__()
        torch.manual_seed(stage)
        self.conv = nn.Conv2d(3 if stage == 0 else 8, 8, 3, padding=1)
        self.norm, self.dropout = nn.BatchNorm2d(8), nn.Dropout(0.1)
        self.head = nn.Linear(8, 10) if stage == stages - 1 else None

    def forward(self, x):
        x = F.relu(self.norm(self.conv(self.dropout(x))))
        return x if self.head is None else self.head(x.mean((2, 3)))


MODELS = {"text": (TextStage, text_loss, text_batch), "image": (ImageStage, image_loss, image_batch)}


def one_process(stages: list[nn.Module], loss, batches: list, scale: float, step: int = 0):
    """Losses by (replica, micro-batch); gradients are left in the modules.

    `batches`: (inputs, targets) of each replica.
    """
    losses = {}
    for replica, (inputs, targets) in enumerate(batches):
        for micro, (x, target) in enumerate(zip(inputs, targets)):
            x = x if isinstance(x, tuple) else (x,)
            for number, stage in enumerate(stages):
                torch.manual_seed(pipec.torch.micro_seed(SEED, step, number, micro, replica))
                x = stage(*x)
                x = x if isinstance(x, tuple) else (x,)
            value = loss(x[0] if len(x) == 1 else x, target) * scale
            if value.requires_grad:
                value.backward()
            losses[replica, micro] = value.detach()
    return losses


def gradients_of(module: nn.Module) -> dict[str, torch.Tensor | None]:
    return {name: p.grad for name, p in module.named_parameters()}


def difference(got: torch.Tensor | None, expected: torch.Tensor | None) -> float:
    """Relative to the expected tensor's norm; infinite where only one of them is there."""
    if got is None or expected is None:
        return 0.0 if got is expected else float("inf")
    error, size = (got - expected).norm().item(), expected.norm().item()
    return error / size if size > 0 else error
