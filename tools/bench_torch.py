"""One training step of GPT-2 124M in PyTorch: the yardstick of tools/bench.

Eager, one thread, fp32, fused AdamW (decay for matrices only), clipping by the global norm, tied
head, attention by scaled_dot_product_attention: the same step as piperun's. Prints one line.
"""

import argparse
import statistics
import time

import torch
from torch import nn
from torch.nn import functional as F

LAYERS, HEADS, WIDTH, VOCABULARY, POSITIONS = 12, 12, 768, 50257, 1024


class Block(nn.Module):
    def __init__(self, dropout, width, heads):
        super().__init__()
        self.dropout, self.heads = dropout, heads
        self.ln_1, self.ln_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.c_attn, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.c_fc, self.c_proj = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        batch, tokens, width = x.shape
        q, k, v = (part.view(batch, tokens, self.heads, -1).transpose(1, 2)
                   for part in self.c_attn(self.ln_1(x)).split(width, dim=2))
        y = F.scaled_dot_product_attention(q, k, v, dropout_p=self.dropout, is_causal=True)
        y = self.proj(y.transpose(1, 2).reshape(batch, tokens, width))
        x = x + F.dropout(y, self.dropout)
        y = self.c_proj(F.gelu(self.c_fc(self.ln_2(x)), approximate="tanh"))
        return x + F.dropout(y, self.dropout)


class Gpt2(nn.Module):
    def __init__(self, dropout):
        super().__init__()
        self.dropout = dropout
        self.wte, self.wpe = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(POSITIONS, WIDTH)
        self.blocks = nn.ModuleList(Block(dropout, WIDTH, HEADS) for _ in range(LAYERS))
        self.ln_f = nn.LayerNorm(WIDTH)
        for parameter in self.parameters():
            if parameter.dim() > 1:
                nn.init.normal_(parameter, std=0.02)

    def forward(self, tokens, targets):
        x = F.dropout(self.wte(tokens) + self.wpe.weight[:tokens.shape[1]], self.dropout)
        for block in self.blocks:
            x = block(x)
        logits = F.linear(self.ln_f(x), self.wte.weight)
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--dropout", type=float, default=0.1)
    parser.add_argument("--steps", type=int, default=5)
    args = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(1)
    model = Gpt2(args.dropout)
    matrices = [p for p in model.parameters() if p.dim() > 1]
    vectors = [p for p in model.parameters() if p.dim() == 1]
    optimizer = torch.optim.AdamW([{"params": matrices, "weight_decay": 0.1},
                                   {"params": vectors, "weight_decay": 0.0}],
                                  lr=3e-4, betas=(0.9, 0.95), fused=True)
    text = torch.randint(VOCABULARY, (args.batch, args.tokens + 1))
    seconds, cpu = [], []
    for step in range(args.steps + 2):
        start, cpu_start = time.perf_counter(), time.process_time()
        optimizer.zero_grad()
        model(text[:, :-1], text[:, 1:]).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if step >= 2:
            seconds.append(time.perf_counter() - start)
            cpu.append(time.process_time() - cpu_start)
    print(f"torch {torch.__version__}: best {min(seconds):.3f} s, "
          f"median {statistics.median(seconds):.3f} s a step, CPU time {min(cpu):.3f} s",
          flush=True)


if __name__ == "__main__":
    main()
