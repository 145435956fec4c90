"""What Megatron-LM keeps and holds, in bytes: its layouts, where a plan counts layers and parameters.

Korthikanti et al., "Reducing Activation Recomputation in Large Transformer Models" (2022), table 2,
for Transformer Engine with FlashAttention and the grouped heads and gated MLPs that came later.
"""


def layer(model, tp=1, sequence_parallel=False, gated=True, dropout=False, scores=False):
    """What a layer keeps of a micro-batch (model's tokens, of micro_batch_size sequences)."""
    hidden = model["hidden"]
    groups = model.get("groups", model["heads"]) / model["heads"]
    ffn = model.get("ffn", 4 * hidden) / hidden
    whole = 2 * 4 + (2 if dropout else 0)  # both norms' input and output; two masks
    cut = 2 * (1 + 2 * groups) + 2 + 2 * ffn * (3 if gated else 2)  # q, k, v; output; MLP
    cut += 5 * model["heads"] * model["tokens"] / hidden if scores else 0  # softmax, its dropout
    size = model["tokens"] * model.get("micro_batch_size", 1) * hidden
    return size * (cut / tp + whole / (tp if sequence_parallel else 1))


def padded(vocabulary, tp):
    return -(-vocabulary // (128 * tp)) * 128 * tp


def logits(model, tp=1, each=6):
    """The loss's fp32 softmax and its gradient in two bytes."""
    return each * model["tokens"] * model.get("micro_batch_size", 1) * padded(model["vocabulary"], tp) / tp


def parameters(model, layers, ends, tp=1, gated=True, biases=False):
    """Of a device that holds so many layers and, of embedding and head, so many."""
    hidden = model["hidden"]
    groups = model.get("groups", model["heads"]) / model["heads"]
    ffn = model.get("ffn", 4 * hidden) / hidden
    products = hidden * hidden * (2 + 2 * groups + ffn * (3 if gated else 2))
    others = hidden * (4 + (1 + 2 * groups + ffn) / tp + 2 if biases else 2)  # norms, biases
    return layers * (products / tp + others) + ends * padded(model["vocabulary"], tp) * hidden / tp


def state(sharing=1):
    """Bytes of a parameter: bf16, an fp32 gradient, and the optimizer's 12 over those that share."""
    return 2 + 4 + 12 / sharing
