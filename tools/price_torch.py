"""Attention's and the embedding's backward in PyTorch, with sums in any order and in one: for
tools/gpu_check price. A line each: WHAT | CHOICE | MICROSECONDS us, or refused: why.

Random operands, rotated past the L2 cache; many launches between two events; the median counts.
"""

import argparse
import statistics

import torch
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

BACKENDS = {"flash": SDPBackend.FLASH_ATTENTION, "cuDNN": SDPBackend.CUDNN_ATTENTION}
ROTATED_BYTES, ROUNDS, ROUND_SECONDS = 256 << 20, 7, 0.02


def seconds(launches, run):
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    for i in range(launches):
        run(i)
    end.record()
    torch.cuda.synchronize()
    return begin.elapsed_time(end) * 1e-3 / launches


def median(run):
    seconds(3, run)
    launches = min(200, max(4, int(ROUND_SECONDS / seconds(4, run))))
    return statistics.median(seconds(launches, run) for _ in range(ROUNDS))


def time_both(what, choice, make):
    """`make` returns what is to be timed; it is called in either mode, which the forward sees."""
    for order, deterministic in (("any order", False), ("one order", True)):
        torch.use_deterministic_algorithms(deterministic)
        try:
            took = f"{1e6 * median(make()):.1f} us"
        except (RuntimeError, NotImplementedError) as error:  # PyTorch's reason, one line
            took = f"refused: {' '.join(str(error).split())[:120] or type(error).__name__}"
        print(f"{what} | {choice}, {order} | {took}", flush=True)


def sets(bytes_of_one):
    return max(2, -(-ROTATED_BYTES // bytes_of_one))


def attention(args, backend):
    """Of the causal half; keys and values are repeated for the queries that share them."""
    head = args.width // args.heads
    shape = (args.batch, args.heads, args.tokens, head)
    kv_shape = (args.batch, args.kv_heads, args.tokens, head)
    made = []
    for _ in range(sets(8 * args.batch * args.tokens * args.width * 2)):
        q, k, v = (torch.randn(s, device="cuda", dtype=torch.bfloat16, requires_grad=True)
                   for s in (shape, kv_shape, kv_shape))
        with sdpa_kernel(BACKENDS[backend]):
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True,
                                               enable_gqa=args.heads != args.kv_heads)
        made.append((y, (q, k, v), torch.randn_like(y)))

    def run(i):
        y, inputs, gradient = made[i % len(made)]
        torch.autograd.grad(y, inputs, gradient, retain_graph=True)
    return run


def index_add(args):
    """The embedding's gradient by one operation, whose any order is by atomic sums."""
    rows = args.batch * args.tokens
    made = [(torch.randint(args.vocabulary, (rows,), device="cuda"),
             torch.randn(rows, args.width, device="cuda"))
            for _ in range(sets(rows * args.width * 4))]
    table = torch.zeros(args.vocabulary, args.width, device="cuda")
    return lambda i: table.index_add_(0, *made[i % len(made)])


def embedding(args):
    """The embedding's own backward, which sorts; it writes all of the gradient."""
    rows = args.batch * args.tokens
    table = torch.randn(args.vocabulary, args.width, device="cuda", requires_grad=True)
    made = []
    for _ in range(sets(rows * args.width * 4)):
        y = F.embedding(torch.randint(args.vocabulary, (rows,), device="cuda"), table)
        made.append((y, torch.randn_like(y)))

    def run(i):
        y, gradient = made[i % len(made)]
        torch.autograd.grad(y, table, gradient, retain_graph=True)
    return run


def main():
    parser = argparse.ArgumentParser()
    for option in ("batch", "tokens", "heads", "kv-heads", "width", "vocabulary"):
        parser.add_argument(f"--{option}", type=int, required=True)
    args = parser.parse_args()
    torch.manual_seed(1)
    torch.utils.deterministic.fill_uninitialized_memory = False  # which takes time of its own
    for backend in BACKENDS:
        time_both("attention backward", backend, lambda: attention(args, backend))
    time_both("embedding backward", "index_add", lambda: index_add(args))
    time_both("embedding backward", "embedding", lambda: embedding(args))


if __name__ == "__main__":
    main()
