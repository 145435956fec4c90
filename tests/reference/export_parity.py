"""An exported model in transformers: see export_parity."""

import json
import pathlib
import shutil
import subprocess
import sys
import tempfile

import tokenizers
import torch
import transformers

STEPS, MICROS, TOKENS, TOLERANCE = 3, 8, 32, 1e-5
SIZES = {"vocab_size": 131, "bos_token_id": 0, "eos_token_id": 0}
MODELS = {
    "GPT-2": dict(SIZES, model_type="gpt2", n_positions=TOKENS, n_embd=48, n_layer=4, n_head=4,
                  embd_pdrop=0.0, attn_pdrop=0.0, resid_pdrop=0.0),
    "LLaMA": dict(SIZES, model_type="llama", max_position_embeddings=TOKENS, hidden_size=48,
                  num_hidden_layers=4, num_attention_heads=4, num_key_value_heads=2,
                  intermediate_size=60, attention_bias=True, mlp_bias=True,
                  rope_scaling={"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0,
                                "high_freq_factor": 4.0, "original_max_position_embeddings": 16}),
}
DESCENDANT = dict(SIZES, max_position_embeddings=TOKENS, hidden_size=48, num_hidden_layers=4,
                  num_attention_heads=4, num_key_value_heads=2, intermediate_size=60)
MODELS |= {
    "GPT-2 with the exact GELU": dict(MODELS["GPT-2"], activation_function="gelu"),
    "Mistral": dict(DESCENDANT, model_type="mistral", sliding_window=5),
    "Qwen2": dict(DESCENDANT, model_type="qwen2", rope_theta=1e5,
                  rope_scaling={"rope_type": "linear", "factor": 2.0}),
    "Qwen3": dict(DESCENDANT, model_type="qwen3", head_dim=16,
                  rope_scaling={"rope_type": "yarn", "factor": 4.0,
                                "original_max_position_embeddings": 8}),
}
# scheme, devices, tp, dp
OTHERS = [("gpipe", 1, 1, 1), ("1f1b", 4, 1, 1), ("zb-v", 2, 2, 1), ("1f1b", 1, 2, 2),
          ("chimera", 2, 2, 2)]


def train(folder, cut, steps, *options):
    """Losses of all steps; ranks are threads."""
    scheme, devices, tp, dp = cut
    subprocess.run(["bazel-bin/compiler/pipec", "compile", "--scheme", scheme, "--devices",
                    str(devices), "--tp", str(tp), "--dp", str(dp), "--microbatches",
                    str(MICROS // dp), "--model", folder / "config.json", "--seq-length",
                    str(TOKENS), "-o", folder / "plan"], check=True)
    subprocess.run(["bazel-bin/runtime/piperun", folder / "plan", "--data", folder / "data.txt", "--bytes",
                    "--steps", str(steps), "--log", folder / "log", *options], check=True,
                   stdout=subprocess.DEVNULL)
    return [json.loads(line)["loss"] for line in (folder / "log").read_text().splitlines()]


def check(name, config, folder):
    data = bytes(32 + i * i % 97 for i in range(TOKENS * MICROS * (STEPS + 2)))
    (folder / "data.txt").write_bytes(data)
    (folder / "config.json").write_text(json.dumps(config))
    train(folder, ("1f1b", 2, 2, 1), STEPS, "--lr", "1e-3", "--export", folder / "model")
    model, problems = transformers.AutoModelForCausalLM.from_pretrained(
        folder / "model", output_loading_info=True)
    wrong = [f"{what}: {names}" for what, names in problems.items() if names]
    model.eval()
    # The sequences of the next step.
    loss = 0.0
    for sequence in range(STEPS * MICROS, (STEPS + 1) * MICROS):
        text = torch.tensor([list(data[sequence * TOKENS:(sequence + 1) * TOKENS + 1])])
        with torch.no_grad():
            logits = model(text[:, :-1]).logits
        loss += torch.nn.functional.cross_entropy(logits[0], text[0, 1:]).item() / MICROS
    worst = 0.0
    for cut in OTHERS:
        # With a learning rate of 0 every step has the exported weights.
        ours = train(folder, cut, STEPS + 1, "--weights", folder / "model", "--lr", "0",
                     "--weight-decay", "0")[-1]
        worst = max(worst, abs(ours - loss) / loss)
    print(f"{name}: transformers {loss:.8f}, piperun cut in {len(OTHERS)} ways within {worst:.1e}"
          + "".join(wrong))
    return bool(wrong) or worst > TOLERANCE


def check_source(folder):
    """A model that transformers has saved with a tokenizer: what of it an export, also after --resume, has."""
    config = transformers.LlamaConfig(
        vocab_size=131, max_position_embeddings=TOKENS, hidden_size=48, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, intermediate_size=60, attention_dropout=0.0,
        bos_token_id=5, eos_token_id=[6, 7], pad_token_id=8, tie_word_embeddings=True)
    model = transformers.LlamaForCausalLM(config)
    model.generation_config.update(do_sample=True, temperature=0.6, top_p=0.9, max_new_tokens=7)
    model.save_pretrained(folder / "source")
    letters = {chr(i): i - 32 for i in range(32, 127)} | {f"<{i}>": i for i in range(95, 131)}
    transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizers.Tokenizer(tokenizers.models.BPE(letters, [])),
        bos_token="<95>", eos_token="<96>", chat_template="{{ messages[0].content }}"
    ).save_pretrained(folder / "source")
    (folder / "data.txt").write_bytes(bytes(32 + i * i % 95 for i in range(TOKENS * MICROS * 3)))
    shutil.copy(folder / "source/config.json", folder / "config.json")
    cut, wrong = ("1f1b", 2, 1, 1), []
    still = ["--lr", "0", "--weight-decay", "0"]
    losses = train(folder, cut, 1, "--weights", folder / "source", *still, "--export", folder / "fp32",
                   "--save", folder / "saves")
    train(folder, cut, 2, *still, "--export", folder / "bf16", "--export-dtype", "bf16",
          "--save", folder / "saves", "--resume")
    text = torch.tensor(list((folder / "data.txt").read_bytes()))
    for dtype in ("fp32", "bf16"):
        loaded, problems = transformers.AutoModelForCausalLM.from_pretrained(
            folder / dtype, output_loading_info=True)
        wrong += [f"{dtype}: {what}: {names}" for what, names in problems.items() if names]
        for ours, theirs in zip(loaded.parameters(), model.parameters(), strict=True):
            wanted = torch.float32 if dtype == "fp32" else torch.bfloat16
            if ours.dtype != wanted or not torch.equal(ours, theirs.to(wanted)):
                wrong.append(f"{dtype}: weights")
                break
        # Not the path that it was loaded from, nor the types.
        one, other = (c.to_dict() for c in (loaded.config, model.config))
        wrong += [f"{dtype}: {key}: {one.get(key)}" for key in one | other
                  if key not in ("dtype", "_name_or_path") and one.get(key) != other.get(key)]
        if loaded.generation_config.to_dict() != model.generation_config.to_dict():
            wrong.append(f"{dtype}: {loaded.generation_config}")
        tokenizer, theirs = (transformers.AutoTokenizer.from_pretrained(folder / name)
                             for name in (dtype, "source"))
        if tokenizer("hello").input_ids != theirs("hello").input_ids or (
                tokenizer.chat_template != theirs.chat_template) or (
                tokenizer.bos_token_id, tokenizer.eos_token_id) != (95, 96):
            wrong.append(f"{dtype}: {tokenizer}")
        if dtype == "fp32":
            batch = text[:TOKENS * MICROS].view(MICROS, TOKENS)
            targets = text[1:TOKENS * MICROS + 1].view(MICROS, TOKENS)
            with torch.no_grad():
                logits = loaded(batch).logits
            loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten()).item()
            if abs(loss - losses[0]) > TOLERANCE * loss:
                wrong.append(f"loss {loss} and {losses[0]}")
    print("what came with the weights: " + ("; ".join(wrong) or "all there, in fp32 and in bf16"))
    return bool(wrong)


def main():
    transformers.utils.logging.disable_progress_bar()
    with tempfile.TemporaryDirectory() as folder:
        failed = check_source(pathlib.Path(folder))
    for name, config in MODELS.items():
        for tied in (True, False):
            with tempfile.TemporaryDirectory() as folder:
                failed |= check(f"{name}, {'tied' if tied else 'untied'}",
                                dict(config, tie_word_embeddings=tied), pathlib.Path(folder))
    return failed


if __name__ == "__main__":
    sys.exit(main())
