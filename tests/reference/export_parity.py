"""An exported model in transformers: see export_parity."""

import json
import pathlib
import subprocess
import sys
import tempfile

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


def main():
    transformers.utils.logging.disable_progress_bar()
    failed = False
    for name, config in MODELS.items():
        for tied in (True, False):
            with tempfile.TemporaryDirectory() as folder:
                failed |= check(f"{name}, {'tied' if tied else 'untied'}",
                                dict(config, tie_word_embeddings=tied), pathlib.Path(folder))
    return failed


if __name__ == "__main__":
    sys.exit(main())
