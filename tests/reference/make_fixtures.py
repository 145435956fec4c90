"""Makes tests/reference/*_tiny, *_lora* and config_keys.json with PyTorch and Hugging Face's libraries.

The tests compare the runtime with what is here, so that nobody needs PyTorch to run them:

  config.json, model.safetensors   a small model as Hugging Face saves it, with random weights
  expected.safetensors             tokens and targets [M, B, T], logits [M, B, T, V], and
                                   grad.NAME for each parameter, without the prefix that only a
                                   model with a head has: of the mean loss over all tokens
  expected.json                    that loss; losses and gradient norms of ten AdamW steps

*_lora*: an adapter of one of those models as peft saves it, and what is expected of training it
alone; expected.json names the model and the adapter's --lora.

config_keys.json: for each family all keys of its config class, with their values for that model.

Run: python3 make_fixtures.py FAMILY tests/reference/FAMILY_tiny     (pip install torch transformers)
     python3 make_fixtures.py keys tests/reference/config_keys.json
     python3 make_fixtures.py r=3,alpha=6,TARGETS MODEL_FOLDER FOLDER             (pip install peft)
"""

import json
import pathlib
import sys

import torch
from safetensors.torch import save_file
from transformers import (AutoConfig, AutoModelForCausalLM, GPT2Config, GPT2LMHeadModel, LlamaConfig,
                          LlamaForCausalLM, PretrainedConfig)

MICROBATCHES, BATCH, TOKENS, STEPS = 2, 2, 24, 10
# AdamW as in runtime/model/parameters.h.
LEARNING_RATE, BETAS, EPSILON, WEIGHT_DECAY, CLIP = 1e-3, (0.9, 0.95), 1e-8, 0.1, 1.0


def gpt2():
    config = GPT2Config(vocab_size=97, n_positions=32, n_embd=36, n_layer=4, n_head=3,
                        resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0,
                        bos_token_id=0, eos_token_id=0, attn_implementation="eager")
    return GPT2LMHeadModel(config)


def llama():
    """Grouped queries, heads wider together than the stream, biases, and angles of LLaMA 3, with
    pairs on each side of its two bounds and between them."""
    config = LlamaConfig(vocab_size=97, max_position_embeddings=32, hidden_size=36,
                         intermediate_size=50, num_hidden_layers=4, num_attention_heads=9,
                         num_key_value_heads=3, head_dim=10, attention_bias=True, mlp_bias=True,
                         bos_token_id=0, eos_token_id=0, rms_norm_eps=1e-5,
                         attn_implementation="eager",
                         rope_parameters={"rope_type": "llama3", "rope_theta": 300.0, "factor": 8.0,
                                          "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                                          "original_max_position_embeddings": 64})
    return LlamaForCausalLM(config)


def gpt2_exact():
    config = gpt2().config
    config.activation_function = "gelu"
    return GPT2LMHeadModel(config)


def descendant(family, **more):
    """What the families have in common that descend from LLaMA."""
    sizes = dict(vocab_size=97, max_position_embeddings=32, hidden_size=36, intermediate_size=50,
                 num_hidden_layers=4, num_attention_heads=6, num_key_value_heads=2,
                 rms_norm_eps=1e-5, bos_token_id=0, eos_token_id=0, attn_implementation="eager")
    return AutoModelForCausalLM.from_config(AutoConfig.for_model(family, **(sizes | more)))


def qwen2():
    return descendant("qwen2", tie_word_embeddings=True, rope_parameters={
        "rope_type": "linear", "rope_theta": 300.0, "factor": 3.0})


def qwen3():
    return descendant("qwen3", head_dim=20, rope_parameters={
        "rope_type": "yarn", "rope_theta": 300.0, "factor": 4.0, "beta_fast": 3.0,
        "beta_slow": 0.5, "original_max_position_embeddings": 16})


def mistral():
    return descendant("mistral", head_dim=10, sliding_window=7)


FAMILIES = {"gpt2": gpt2, "gpt2_exact": gpt2_exact, "llama": llama, "qwen2": qwen2, "qwen3": qwen3,
            "mistral": mistral}


def make_model(family):
    """Odd sizes on purpose; biases and norms are random so that each of them matters."""
    model = FAMILIES[family]().float()
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            norm = ".ln_" in name or "norm" in name
            mean = 1.0 if norm and name.endswith("weight") else 0.0
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


def write_keys(path):
    """Adds those of this version of transformers to the file: of the config class, and of all
    models' class. Made with 4.57 and with 5.24."""
    keys = json.loads(path.read_text()) if path.exists() else {}
    for family in ("gpt2", "llama", "mistral", "qwen2", "qwen3"):
        config = AutoConfig.for_model(family, num_hidden_layers=4)
        new = PretrainedConfig().to_dict() | config.to_dict()
        keys[family] = dict(sorted((new | keys.get(family, {})).items()))
    path.write_text(json.dumps(keys, indent=1) + "\n")


def make_adapter(lora, base, directory):
    """With a B that is not zero, so that A has a gradient at once."""
    import peft
    rank, alpha, *targets = lora.split(",")
    config = peft.LoraConfig(r=int(rank[2:]), lora_alpha=int(alpha[6:]), task_type="CAUSAL_LM",
                             target_modules=targets if targets != ["all-linear"] else "all-linear",
                             fan_in_fan_out="gpt2" in str(base))
    model = AutoModelForCausalLM.from_pretrained(base, attn_implementation="eager").float()
    model = peft.get_peft_model(model, config).eval()
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.copy_(0.1 * torch.randn(parameter.shape, generator=generator))
    model.save_pretrained(directory)
    (directory / "README.md").unlink(missing_ok=True)
    return model, {"peft": peft.__version__, "model": str(base), "lora": lora}


def short_name(model, name):
    prefix = getattr(model, "base_model_prefix", "") + "."
    if name.startswith("base_model.model."):
        name = name.removeprefix("base_model.model.").replace(".default.", ".")
        prefix = model.base_model.model.base_model_prefix + "."
    return name.removeprefix(prefix)


def main(family, *paths):
    directory = pathlib.Path(paths[-1])
    if family == "keys":
        return write_keys(directory)
    torch.set_num_threads(1)
    if "=" in family:
        model, about = make_adapter(family, pathlib.Path(paths[0]), directory)
    else:
        model, about = make_model(family), {}
        model.save_pretrained(directory)
        (directory / "generation_config.json").unlink(missing_ok=True)
    generator = torch.Generator().manual_seed(2)
    text = torch.randint(97, (MICROBATCHES, BATCH, TOKENS + 1), generator=generator)
    tokens, targets = text[..., :-1].contiguous(), text[..., 1:].contiguous()

    logits, loss = backward(model, tokens, targets)
    expected = {"tokens": tokens.int(), "targets": targets.int(), "logits": logits}
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            expected["grad." + short_name(model, name)] = parameter.grad.clone()
    save_file(expected, directory / "expected.safetensors")

    trained = [p for p in model.parameters() if p.requires_grad]
    matrices = [p for p in trained if p.dim() > 1]
    vectors = [p for p in trained if p.dim() == 1]
    optimizer = torch.optim.AdamW([{"params": matrices, "weight_decay": WEIGHT_DECAY},
                                   {"params": vectors, "weight_decay": 0.0}],
                                  lr=LEARNING_RATE, betas=BETAS, eps=EPSILON)
    losses, norms = [], []
    for _ in range(STEPS):
        losses.append(backward(model, tokens, targets)[1])
        norms.append(torch.nn.utils.clip_grad_norm_(trained, CLIP).item())
        optimizer.step()
    with open(directory / "expected.json", "w") as file:
        json.dump({"torch": torch.__version__, **about, "loss": loss, "learning_rate": LEARNING_RATE,
                   "weight_decay": WEIGHT_DECAY, "clip": CLIP, "losses": losses,
                   "grad_norms": norms}, file, indent=1)
        file.write("\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
