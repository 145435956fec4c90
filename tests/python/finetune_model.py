"""Prompts with completions, and a small Qwen2 with a tokenizer for them."""

import json
from pathlib import Path

import tokenizers
import torch
import transformers


def prompts(first, count):
    """Sums and reversed words: of different lengths, some longer than a row."""
    for i in range(first, first + count):
        if i % 3:
            word = "".join(chr(97 + (i * i * k + 7 * k + i) % 26) for k in range(1, 2 + i % 9))
            yield {"prompt": f"Reverse {word}:", "completion": f" {word[::-1]}." * (1 + i % 4)}
        else:
            yield {"prompt": f"{i} + {i * 7 % 60} =", "completion": f" {i + i * 7 % 60}"}


def write_prompts(path, first, count):
    Path(path).write_text("".join(json.dumps(each) + "\n" for each in prompts(first, count)))


def write_model(folder):
    """A tokenizer trained on the prompts, and a Qwen2 with random weights of which each matters."""
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE())
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=["<|end|>"],
        show_progress=False,
        initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(),
    )
    tokenizer.train_from_iterator(
        (each["prompt"] + each["completion"] for each in prompts(0, 230)), trainer
    )
    config = transformers.Qwen2Config(
        vocab_size=tokenizer.get_vocab_size(),
        max_position_embeddings=256,
        hidden_size=36,
        intermediate_size=50,
        num_hidden_layers=4,
        num_attention_heads=6,
        num_key_value_heads=2,
        tie_word_embeddings=True,
        bos_token_id=0,
        eos_token_id=0,
        attn_implementation="eager",
    )
    torch.manual_seed(1)
    model = transformers.Qwen2ForCausalLM(config)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            mean = 1.0 if "norm" in name else 0.0
            parameter.copy_(mean + 0.1 * torch.randn_like(parameter))
    model.save_pretrained(folder)
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(
        json.dumps({"eos_token": "<|end|>", "tokenizer_class": "PreTrainedTokenizerFast"})
    )
    return model
