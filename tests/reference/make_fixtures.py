"""Makes tests/reference/gpt2_tiny with PyTorch and Hugging Face transformers.

The tests compare the runtime with what is here, so that nobody needs PyTorch to run them:

  config.json, model.safetensors   a small GPT-2 as Hugging Face saves it, with random weights
  expected.safetensors             tokens and targets [M, B, T], logits [M, B, T, V], and
                                   grad.NAME for each parameter: of the mean loss over all tokens
  expected.json                    that loss; losses and gradient norms of ten AdamW steps

Run: python3 make_fixtures.py [DIRECTORY]     (pip install torch transformers)
"""

import json
import pathlib
import sys

import torch
from safetensors.torch import save_file
from transformers import GPT2Config, GPT2LMHeadModel

MICROBATCHES, BATCH, TOKENS, STEPS = 2, 2, 24, 10
# AdamW as in runtime/parameters.h.
LEARNING_RATE, BETAS, EPSILON, WEIGHT_DECAY, CLIP = 1e-3, (0.9, 0.95), 1e-8, 0.1, 1.0


def make_model():
    """Odd sizes on purpose; biases and norms are random so that each of them matters."""
    config = GPT2Config(vocab_size=97, n_positions=32, n_embd=36, n_layer=4, n_head=3,
                        resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0,
                        bos_token_id=0, eos_token_id=0, attn_implementation="eager")
    model = GPT2LMHeadModel(config).float()
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            mean = 1.0 if ".ln_" in name and name.endswith("weight") else 0.0
            parameter.copy_(mean + 0.1 * torch.randn(parameter.shape, generator=generator))
    return model


def mean_loss(model, tokens, targets):
    logits = model(tokens).logits
    return logits, torch.nn.functional.cross_entropy(logits.flatten(0, -2), targets.flatten())


def backward(model, tokens, targets):
    """Gradients and loss of one step, micro-batch by micro-batch."""
    model.zero_grad()
    logits, total = [], 0.0
    for m in range(MICROBATCHES):
        out, loss = mean_loss(model, tokens[m], targets[m])
        (loss / MICROBATCHES).backward()
        logits.append(out.detach())
        total += loss.item() / MICROBATCHES
    return torch.stack(logits), total


def main(directory):
    torch.set_num_threads(1)
    model = make_model()
    model.save_pretrained(directory)
    (directory / "generation_config.json").unlink(missing_ok=True)
    generator = torch.Generator().manual_seed(2)
    text = torch.randint(97, (MICROBATCHES, BATCH, TOKENS + 1), generator=generator)
    tokens, targets = text[..., :-1].contiguous(), text[..., 1:].contiguous()

    logits, loss = backward(model, tokens, targets)
    expected = {"tokens": tokens.int(), "targets": targets.int(), "logits": logits}
    for name, parameter in model.named_parameters():
        expected["grad." + name.removeprefix("transformer.")] = parameter.grad.clone()
    save_file(expected, directory / "expected.safetensors")

    matrices = [p for p in model.parameters() if p.dim() > 1]
    vectors = [p for p in model.parameters() if p.dim() == 1]
    optimizer = torch.optim.AdamW([{"params": matrices, "weight_decay": WEIGHT_DECAY},
                                   {"params": vectors, "weight_decay": 0.0}],
                                  lr=LEARNING_RATE, betas=BETAS, eps=EPSILON)
    losses, norms = [], []
    for _ in range(STEPS):
        losses.append(backward(model, tokens, targets)[1])
        norms.append(torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP).item())
        optimizer.step()
    with open(directory / "expected.json", "w") as file:
        json.dump({"torch": torch.__version__, "loss": loss, "learning_rate": LEARNING_RATE,
                   "weight_decay": WEIGHT_DECAY, "clip": CLIP, "losses": losses,
                   "grad_norms": norms}, file, indent=1)
        file.write("\n")


if __name__ == "__main__":
    here = pathlib.Path(__file__).parent / "gpt2_tiny"
    main(pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else here)
