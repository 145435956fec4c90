#!/bin/bash
# A pipeline of two ranks: tokens per second of piperun, its ranks as threads and as processes, and
# of torch.distributed.pipelining (two processes over gloo) on the same steps: GPT-2 of 3 and of 124
# million parameters, dropout 0.1, forward, backward, clipping by the norm of all stages, AdamW; one
# compute thread per rank. The schedules are 1F1B and ZB-V, the layers split as pipec balances them, on
# both sides. In turn, so that all see the same machine.
#
#   tools/bench //tools:bench_pipeline   PYTHON=… a python that has torch
set -euo pipefail

pipec=bazel-bin/compiler/pipec
piperun=bazel-bin/runtime/piperun
python=$(tools/torch_python)
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

LC_ALL=C find /usr/share/common-licenses -type f -print0 | sort -z | xargs -0 cat >"$folder/text"

# Processor seconds of one run of that many steps, including the processes that it starts.
cpu_of() {
  local plan=$1 steps=$2
  shift 2
  TIMEFORMAT='%U %S'
  { time "$@" "$plan" --data "$folder/text" --bytes --steps "$steps" --log "$folder/log" \
    >/dev/null 2>&1; } 2>&1 | awk '{print $1 + $2}'
}

# Best and median seconds of a step, the first two left out, and the mean processor seconds of all
# ranks together: those of a long run minus those of a run of two steps.
ours() {
  local plan=$1 short long
  shift
  short=$(cpu_of "$plan" 2 "$@")
  long=$(cpu_of "$plan" $((steps + 2)) "$@")
  sed -E '1,2d; s/.*"step_seconds":([0-9.e-]+).*/\1/' "$folder/log" | sort -g |
    awk -v cpu="$long $short" -v steps="$steps" '
      {t[NR] = $1}
      END {split(cpu, c, " "); print t[1], t[int((NR + 1) / 2)], (c[1] - c[2]) / steps}'
}

# Keeps and prints a line: who, the schedule, and the output of ours().
show() {
  echo "$1 $2 $3" | tee -a "$folder/rounds" | awk -v tokens=$((batch * tokens * micros)) '
    {printf "  %-8s %-5s best %8.1f, median %8.1f tokens/s; %.3f processor seconds a step\n", $1,
      $2, tokens / $3, tokens / $4, $5}'
}

# name, model, micro-batch size, tokens, micro-batches, steps, rounds
compare() {
  local name=$1 model=$2 batch=$3 tokens=$4 micros=$5 steps=$6 rounds=$7 schedule
  local -A layers
  echo "$name, B=$batch, T=$tokens, $micros micro-batches, fp32, two ranks of one thread"
  sed -E 's/(pdrop": )[0-9.]+/\10.1/' "$model" >"$folder/model.json"
  for schedule in "${schedules[@]}"; do
    "$pipec" compile --scheme "$schedule" --devices 2 --microbatches "$micros" \
      --model "$folder/model.json" --layers-per-stage auto --micro-batch-size "$batch" \
      --seq-length "$tokens" -o "$folder/$schedule.plan" >/dev/null
    layers[$schedule]=$("$pipec" show "$folder/$schedule.plan" | sed -n 's/^layers //p' | tr ' ' ,)
    echo "  $schedule, layers a stage: ${layers[$schedule]}"
  done
  : >"$folder/rounds"
  for ((round = 0; round < rounds; ++round)); do
    for schedule in "${schedules[@]}"; do
      show threads "$schedule" "$(ours "$folder/$schedule.plan" "$piperun")"
      show mpiexec "$schedule" "$(ours "$folder/$schedule.plan" mpiexec -n 2 "$piperun")"
      show torch "$schedule" "$("$python" tools/bench_pipeline.py --model "$folder/model.json" \
        --batch "$batch" --tokens "$tokens" --microbatches "$micros" --steps "$steps" \
        --layers "${layers[$schedule]}" --schedule "$schedule")"
    done
  done
  awk '
    function middle(text, n, m, i, j, t) {
      n = split(text, m, " ")
      for (i = 1; i < n; ++i) for (j = i + 1; j <= n; ++j) if (m[j] + 0 < m[i] + 0) {
        t = m[i]; m[i] = m[j]; m[j] = t}
      return m[int((n + 1) / 2)]}
    function compare(ours, theirs) {
      printf "  piperun (%s) against %s: best %.2f times, median %.2f times, %.2f times less " \
        "processor time\n", ours, theirs, best[theirs] / best[ours],
        middle(medians[theirs]) / middle(medians[ours]), cpu[theirs] / cpu[ours]}
    {who = $1 " " $2
     if (!(who in best) || $3 < best[who]) best[who] = $3
     if (!(who in cpu) || $5 < cpu[who]) cpu[who] = $5
     medians[who] = medians[who] " " $4}
    END {
      for (who in best) {
        split(who, w, " ")
        if (!(w[1] in first) || best[who] < best[first[w[1]]]) first[w[1]] = who}
      split("1f1b zb-v", schedules, " ")
      for (s = 1; s <= 2; ++s) {
        compare("threads " schedules[s], "torch " schedules[s])
        compare("mpiexec " schedules[s], "torch " schedules[s])}
      print "  each with its fastest schedule (target 2):"
      compare(first["threads"], first["torch"])
      compare(first["mpiexec"], first["torch"])}' "$folder/rounds"
}

schedules=(1f1b zb-v)
compare "GPT-2 3M" tools/demo.json 2 128 8 15 6
compare "GPT-2 124M" tools/gpt2_124m.json 1 64 4 4 3
