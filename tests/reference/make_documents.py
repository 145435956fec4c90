"""Makes tests/reference/documents: training on packed documents, computed document by document.

For each family a small model with random weights, as Hugging Face saves it, and

  expected.safetensors   text: TOKENS x ROWS + 1 tokens; starts: where its documents begin; and
                         grad.NAME for each parameter, without the prefix that only a model with a
                         head has, of the mean loss over the targets: each token's next one, if it
                         is of the same document
  expected.json          that loss, the number of targets and the norm of the gradient

What a row of TOKENS tokens has of a document goes through transformers alone, in fp64, so that it
sees nothing of another document or row.

Run: python3 make_documents.py tests/reference/documents           (pip install torch transformers)
"""

import json
import pathlib
import sys
import types

import torch
from safetensors.torch import save_file
from transformers import AutoConfig, AutoModelForCausalLM

TOKENS, ROWS, VOCABULARY = 24, 4, 61
# Some of one token, one over three rows, one that ends and one that begins with a row.
LENGTHS = [5, 1, 1, 12, 50, 3, 1, 1, 21, 2]
FAMILIES = {
    "gpt2": dict(n_positions=32, n_embd=12, n_layer=4, n_head=2, n_inner=20, resid_pdrop=0.0,
                 embd_pdrop=0.0, attn_pdrop=0.0),
    "llama": {},
    "qwen3": {},
    "mistral": dict(sliding_window=7),
}
DESCENDANT = dict(max_position_embeddings=32, hidden_size=12, intermediate_size=20,
                  num_hidden_layers=4, num_attention_heads=4, num_key_value_heads=2, head_dim=6)


def make_model(family, more):
    sizes = more if family == "gpt2" else DESCENDANT | more
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(
        family, vocab_size=VOCABULARY, bos_token_id=0, eos_token_id=0, attn_implementation="sdpa",
        **sizes)).float()
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            norm = ".ln_" in name or "norm" in name
            mean = 1.0 if norm and name.endswith("weight") else 0.0
            parameter.copy_(mean + 0.3 * torch.randn(parameter.shape, generator=generator))
    return model.eval()


def exact_norm(norm, x):
    """transformers' own is computed in fp32 whatever the type of the model is."""
    return norm.weight * x * torch.rsqrt((x ** 2).mean(-1, keepdim=True) + norm.variance_epsilon)


def exact(model):
    model = model.double()
    for module in model.modules():
        if type(module).__name__.endswith("RMSNorm"):
            module.forward = types.MethodType(exact_norm, module)
    return model


def pieces(starts, tokens):
    """What rows have of documents: first token, and one past the last."""
    bounds = sorted(set(starts) | set(range(0, tokens, TOKENS)) | {tokens})
    return list(zip(bounds, bounds[1:]))


def backward(model, text, starts):
    """The mean loss over the targets, whose gradients the parameters get, and how many they are."""
    inputs = len(text) - 1
    targets = sum(1 for i in range(inputs) if i + 1 not in starts)
    total = 0.0
    for first, end in pieces(starts, inputs):
        counted = end - first if end not in starts else end - first - 1
        if counted == 0:
            continue
        logits = model(text[None, first:end]).logits[0, :counted]
        loss = torch.nn.functional.cross_entropy(
            logits, text[first + 1:first + 1 + counted], reduction="sum") / targets
        loss.backward()
        total += loss.item()
    return total, targets


def main(root):
    torch.set_num_threads(1)
    starts = [sum(LENGTHS[:i]) for i in range(len(LENGTHS))]
    assert sum(LENGTHS) == TOKENS * ROWS + 1
    text = torch.randint(VOCABULARY, (sum(LENGTHS),), generator=torch.Generator().manual_seed(2))
    for family, more in FAMILIES.items():
        directory = pathlib.Path(root) / family
        model = make_model(family, more)
        model.save_pretrained(directory)
        (directory / "generation_config.json").unlink(missing_ok=True)
        loss, targets = backward(exact(model), text, set(starts))
        gradients = {name.removeprefix(model.base_model_prefix + "."): parameter.grad
                     for name, parameter in model.named_parameters()}
        norm = sum(float((gradient ** 2).sum()) for gradient in gradients.values()) ** 0.5
        save_file({"text": text.int(), "starts": torch.tensor(starts).int(),
                   **{"grad." + name: gradient.float() for name, gradient in gradients.items()}},
                  directory / "expected.safetensors")
        (directory / "expected.json").write_text(json.dumps(
            {"torch": torch.__version__, "loss": loss, "targets": targets, "grad_norm": norm},
            indent=1) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
