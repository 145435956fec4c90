"""One training step of GPT-2 124M, or of a LLaMA of that size, in PyTorch: the yardstick of
tools/bench and tools/gpu_check.

Fused AdamW (decay for matrices only), clipping by the global norm, tied head, attention by
scaled_dot_product_attention: the same step as piperun's. On a CPU: eager, one thread, fp32; on a
GPU: bf16 by autocast, eager or compiled, of any size. Prints one line.
"""

import argparse
import contextlib
import statistics
import time

import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

LAYERS, HEADS, WIDTH, VOCABULARY, POSITIONS = 12, 12, 768, 50257, 1024
KV_HEADS, INNER = 4, 2048  # of the LLaMA, as in tools/llama_112m.json
BACKENDS = {"flash": SDPBackend.FLASH_ATTENTION, "cudnn": SDPBackend.CUDNN_ATTENTION}


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


class LlamaBlock(nn.Module):
    """Queries, keys and values are one product, gate and up are another: the fastest way."""

    def __init__(self):
        super().__init__()
        head = WIDTH // HEADS
        self.sizes = [WIDTH, KV_HEADS * head, KV_HEADS * head]
        self.norm_1, self.norm_2 = nn.RMSNorm(WIDTH, 1e-6), nn.RMSNorm(WIDTH, 1e-6)
        self.qkv = nn.Linear(WIDTH, sum(self.sizes), bias=False)
        self.out = nn.Linear(WIDTH, WIDTH, bias=False)
        self.gate_up = nn.Linear(WIDTH, 2 * INNER, bias=False)
        self.down = nn.Linear(INNER, WIDTH, bias=False)

    @staticmethod
    def turn(x, cosine, sine):
        low, high = x.chunk(2, dim=-1)
        return torch.cat((low * cosine - high * sine, high * cosine + low * sine), dim=-1)

    def forward(self, x, cosine, sine):
        batch, tokens, _ = x.shape
        q, k, v = (part.view(batch, tokens, -1, WIDTH // HEADS).transpose(1, 2)
                   for part in self.qkv(self.norm_1(x)).split(self.sizes, dim=2))
        y = F.scaled_dot_product_attention(self.turn(q, cosine, sine), self.turn(k, cosine, sine),
                                           v, is_causal=True, enable_gqa=True)
        x = x + self.out(y.transpose(1, 2).reshape(batch, tokens, WIDTH))
        gate, up = self.gate_up(self.norm_2(x)).chunk(2, dim=-1)
        return x + self.down(F.silu(gate) * up)


class Llama(nn.Module):
    def __init__(self, tokens):
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, WIDTH)
        self.blocks = nn.ModuleList(LlamaBlock() for _ in range(LAYERS))
        self.norm = nn.RMSNorm(WIDTH, 1e-6)
        pairs = WIDTH // HEADS // 2
        angles = torch.outer(torch.arange(tokens), 10000.0 ** (-torch.arange(pairs) / pairs))
        self.cosine, self.sine = angles.cos(), angles.sin()
        for parameter in self.parameters():
            if parameter.dim() > 1:
                nn.init.normal_(parameter, std=0.02)

    def forward(self, tokens, targets):
        x = self.embed(tokens)
        for block in self.blocks:
            x = block(x, self.cosine, self.sine)
        logits = F.linear(self.norm(x), self.embed.weight)
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", choices=["gpt2", "llama"], default="gpt2")
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--dropout", type=float, default=0.1)
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--layers", type=int, default=LAYERS)
    parser.add_argument("--heads", type=int, default=HEADS)
    parser.add_argument("--width", type=int, default=WIDTH)
    parser.add_argument("--kv-heads", type=int, default=KV_HEADS)
    parser.add_argument("--inner", type=int, default=INNER)
    parser.add_argument("--vocabulary", type=int, default=VOCABULARY)
    parser.add_argument("--attention", choices=["any", *BACKENDS], default="any",
                        help="which backend of PyTorch's attention; any: its own choice")
    args = parser.parse_args()
    globals().update(LAYERS=args.layers, HEADS=args.heads, WIDTH=args.width,
                     KV_HEADS=args.kv_heads, INNER=args.inner, VOCABULARY=args.vocabulary)
    gpu = args.device == "cuda"
    torch.set_num_threads(1)
    torch.manual_seed(1)
    model = Gpt2(args.dropout) if args.model == "gpt2" else Llama(args.tokens)
    if gpu and args.model == "llama":
        model.cosine, model.sine = model.cosine.cuda(), model.sine.cuda()
    model.to(args.device)
    run = torch.compile(model) if args.compile else model
    matrices = [p for p in model.parameters() if p.dim() > 1]
    vectors = [p for p in model.parameters() if p.dim() == 1]
    optimizer = torch.optim.AdamW([{"params": matrices, "weight_decay": 0.1},
                                   {"params": vectors, "weight_decay": 0.0}],
                                  lr=3e-4, betas=(0.9, 0.95), fused=True)
    text = torch.randint(VOCABULARY, (args.batch, args.tokens + 1), device=args.device)
    seconds, cpu = [], []
    warm_up = 4 if gpu else 2
    # PyTorch fails where the one backend cannot compute this attention.
    backend = (contextlib.nullcontext() if args.attention == "any"
               else sdpa_kernel(BACKENDS[args.attention]))
    with backend:
        for step in range(args.steps + warm_up):
            start, cpu_start = time.perf_counter(), time.process_time()
            optimizer.zero_grad()
            with torch.autocast(args.device, torch.bfloat16, enabled=gpu):
                loss = run(text[:, :-1], text[:, 1:])
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            if gpu:
                torch.cuda.synchronize()
            if step >= warm_up:
                seconds.append(time.perf_counter() - start)
                cpu.append(time.process_time() - cpu_start)
    print(f"torch {torch.__version__}: best {min(seconds):.6f} s, "
          f"median {statistics.median(seconds):.6f} s a step, CPU time {min(cpu):.3f} s, "
          f"vocabulary {VOCABULARY}, attention {args.attention}",
          flush=True)


if __name__ == "__main__":
    main()
