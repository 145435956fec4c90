#!/bin/bash
# A pipeline of two ranks: tokens a second of piperun, its ranks as threads and as processes, and
# of torch.distributed.pipelining (1F1B, two processes over gloo) on the same steps: GPT-2 of 3 and
# of 124 million parameters, dropout 0.1, forward, backward, clipping by the norm of both stages,
# AdamW; one compute thread a rank. pipec splits the layers (auto); PyTorch, which leaves that to its
# user, runs with the same split (torch) and in halves. In turn, so that all see the same machine.
#
#   tools/bench //tools:bench_pipeline   PYTHON=… a python that has torch
set -euo pipefail

pipec=bazel-bin/compiler/pipec
piperun=bazel-bin/runtime/piperun
python=$(tools/torch_python)
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

LC_ALL=C find /usr/share/common-licenses -type f -print0 | sort -z | xargs -0 cat >"$folder/text"

# Processor seconds of one run of so many steps, processes that it starts included.
cpu_of() {
  local steps=$1
  shift
  TIMEFORMAT='%U %S'
  { time "$@" "$folder/plan" --data "$folder/text" --steps "$steps" --log "$folder/log" \
    >/dev/null 2>&1; } 2>&1 | awk '{print $1 + $2}'
}

# Best and median seconds of a step, the first two left out, and the mean processor seconds of all
# ranks together: those of a long run less those of a run of two steps.
ours() {
  local short long
  short=$(cpu_of 2 "$@")
  long=$(cpu_of $((steps + 2)) "$@")
  sed -E '1,2d; s/.*"step_seconds":([0-9.e-]+).*/\1/' "$folder/log" | sort -g |
    awk -v cpu="$long $short" -v steps="$steps" '
      {t[NR] = $1}
      END {split(cpu, c, " "); print t[1], t[int((NR + 1) / 2)], (c[1] - c[2]) / steps}'
}

# Keeps and prints a line: who, and what ours() says.
show() {
  echo "$1 $2" | tee -a "$folder/rounds" | awk -v tokens=$((batch * tokens * micros)) '
    {printf "  %-8s best %8.1f, median %8.1f tokens/s; %.3f processor seconds a step\n", $1,
      tokens / $2, tokens / $3, $4}'
}

# name, model, micro-batch size, tokens, micro-batches, steps, rounds
compare() {
  local name=$1 model=$2 batch=$3 tokens=$4 micros=$5 steps=$6 rounds=$7
  echo "$name, B=$batch, T=$tokens, $micros micro-batches, fp32, two ranks of one thread"
  sed -E 's/(pdrop": )[0-9.]+/\10.1/' "$model" >"$folder/model.json"
  "$pipec" compile --scheme 1f1b --devices 2 --microbatches "$micros" --model "$folder/model.json" \
    --layers-per-stage auto --micro-batch-size "$batch" --seq-length "$tokens" -o "$folder/plan"
  local layers
  layers=$("$pipec" show "$folder/plan" | sed -nE 's/^layers +//p' | tr ' ' ,)
  echo "  layers a stage: $layers"
  : >"$folder/rounds"
  for ((round = 0; round < rounds; ++round)); do
    show threads "$(ours "$piperun")"
    show mpiexec "$(ours mpiexec -n 2 "$piperun")"
    show torch "$("$python" tools/bench_pipeline.py --model "$folder/model.json" --batch "$batch" \
      --tokens "$tokens" --microbatches "$micros" --steps "$steps")"
  done
  awk '
    function middle(text, n, m, i, j, t) {
      n = split(text, m, " ")
      for (i = 1; i < n; ++i) for (j = i + 1; j <= n; ++j) if (m[j] + 0 < m[i] + 0) {
        t = m[i]; m[i] = m[j]; m[j] = t}
      return m[int((n + 1) / 2)]}
    {if (!($1 in best) || $2 < best[$1]) best[$1] = $2
     if (!($1 in cpu) || $4 < cpu[$1]) cpu[$1] = $4
     medians[$1] = medians[$1] " " $3}
    END {
      for (k = 1; k <= 2; ++k) {
        name = k == 1 ? "threads" : "mpiexec"
        printf "  piperun (%s) beside torch: best %.2f times, median %.2f times (target 2), " \
          "%.2f times less processor time\n", name, best["torch"] / best[name],
          middle(medians["torch"]) / middle(medians[name]), cpu["torch"] / cpu[name]}}' \
    "$folder/rounds"
}

compare "GPT-2 3M" tools/demo.json 2 128 8 10 5
compare "GPT-2 124M" tools/gpt2_124m.json 1 64 4 4 3
