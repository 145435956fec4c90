#!/bin/bash
# A training step of GPT-2 124M, and of a LLaMA of its size, by piperun (one rank, one thread, fp32,
# B=4, T=64) and the same step in PyTorch, in turn, so that both see the same machine. Then what the runtime
# itself takes: the time that is neither kernels nor waiting, per instruction and as a share of
# a step; of tools/demo's run it should be less than 1 %.
#
#   tools/bench //tools:bench_step       PYTHON=… a python that has torch
set -euo pipefail

pipec=bazel-bin/compiler/pipec
piperun=bazel-bin/runtime/piperun
python=$(tools/torch_python)
steps=5
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

best_and_median() {
  sed -E 's/.*"step_seconds":([0-9.e-]+).*/\1/' "$folder/log" | sort -g |
    awk '{t[NR] = $1} END {printf "piperun:             best %.3f s, median %.3f s\n", t[1], t[int((NR + 1) / 2)]}'
}

LC_ALL=C find /usr/share/common-licenses -type f -print0 | sort -z | xargs -0 cat >"$folder/text"
echo "LLaMA of GPT-2 124M's size (4 heads of keys and values of 12), B=4, T=64: seconds a step"
"$pipec" compile --scheme gpipe --devices 1 --microbatches 1 --model tools/llama_112m.json \
  --micro-batch-size 4 --seq-length 64 -o "$folder/plan"
for _ in 1 2 3; do
  "$piperun" "$folder/plan" --data "$folder/text" --bytes --steps "$steps" --log "$folder/log" >/dev/null
  best_and_median
  "$python" tools/bench_torch.py --model llama --steps "$steps"
done
echo

for dropout in 0.1 0; do
  echo "GPT-2 124M, B=4, T=64, fp32, one thread, dropout $dropout: seconds a step"
  sed -E "s/(pdrop\": )0.1/\1$dropout/" tools/gpt2_124m.json >"$folder/model.json"
  "$pipec" compile --scheme gpipe --devices 1 --microbatches 1 --model "$folder/model.json" \
    --micro-batch-size 4 --seq-length 64 -o "$folder/plan"
  for _ in 1 2 3; do
    "$piperun" "$folder/plan" --data "$folder/text" --bytes --steps "$steps" --log "$folder/log" >/dev/null
    best_and_median
    "$python" tools/bench_torch.py --dropout "$dropout" --steps "$steps"
  done
done

echo
echo "The same step on one thread and on two, in turn, dropout 0: best seconds"
for _ in 1 2 3; do
  for threads in 1 2; do
    "$piperun" "$folder/plan" --data "$folder/text" --bytes --steps "$steps" --threads "$threads" \
      --log "$folder/log" >/dev/null
    sed -E 's/.*"step_seconds":([0-9.e-]+).*/\1/' "$folder/log" >>"$folder/threads.$threads"
    sed -E 's/.*("loss":[^,]*,"grad_norm":[^,]*),.*/\1/' "$folder/log" >"$folder/bits.$threads"
  done
  cmp "$folder/bits.1" "$folder/bits.2"
done
for threads in 1 2; do sort -g "$folder/threads.$threads" | head -n 1; done | xargs |
  awk '{printf "one thread %.3f s, two %.3f s: %.2f of it, same bits\n", $1, $2, $2 / $1}'

echo
echo "The same step with --dtype bf16 and fp32, in turn, dropout 0: best seconds, and the arena"
"$pipec" compile --scheme gpipe --devices 1 --microbatches 1 --model "$folder/model.json" \
  --micro-batch-size 4 --seq-length 64 --dtype bf16 -o "$folder/plan.bf16"
cp "$folder/plan" "$folder/plan.fp32"
for _ in 1 2 3; do
  for dtype in fp32 bf16; do
    "$piperun" "$folder/plan.$dtype" --data "$folder/text" --bytes --steps "$steps" --log "$folder/log" \
      >/dev/null
    sed -E 's/.*"step_seconds":([0-9.e-]+).*/\1/' "$folder/log" >>"$folder/seconds.$dtype"
    sed -nE '$s/.*"peak_bytes":\[([0-9]+).*/\1/p' "$folder/log" >"$folder/bytes.$dtype"
  done
done
for dtype in fp32 bf16; do
  echo "$(sort -g "$folder/seconds.$dtype" | head -n 1) $(cat "$folder/bytes.$dtype")"
done | xargs | awk '{printf "fp32 %.3f s, %.0f MB; bf16 %.3f s, %.0f MB: %.2f of the time\n", $1, $2 / 1e6, $3, $4 / 1e6, $3 / $1}'

# What piperun reports about its own time, with four ranks: steps, threads and processes in turn.
itself() {
  for _ in 1 2 3; do
    "$piperun" "$folder/plan" --data "$folder/text" --bytes --steps "$1" | sed -n 's/^kernels/threads: &/p'
    mpiexec -n 4 "$piperun" "$folder/plan" --data "$folder/text" --bytes --steps "$1" |
      sed -n 's/^kernels/mpiexec: &/p'
  done
}

echo
echo "The runtime itself: four ranks, 1F1B, GPT-2 3M, B=2, T=128, 8 micro-batches"
"$pipec" compile --scheme 1f1b --devices 4 --microbatches 8 --model tools/demo.json \
  --micro-batch-size 2 --seq-length 128 -o "$folder/plan"
itself 10

echo
echo "Four ranks, 1F1B, 32 micro-batches of a very small model"
cat >"$folder/model.json" <<END
{"model_type": "gpt2", "vocab_size": 256, "n_positions": 16, "n_embd": 16, "n_layer": 4, "n_head": 2}
END
"$pipec" compile --scheme 1f1b --devices 4 --microbatches 32 --model "$folder/model.json" -o "$folder/plan"
itself 200
