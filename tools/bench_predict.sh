#!/bin/bash
# What pipec predicts from one profile, against what piperun then takes: forty other ways to train a
# GPT-2 of eight layers on two ranks, each on a core. Nothing of them was used for the prediction.
#
#   scatter   of a run's steps: from the second-fastest to the second-slowest, of the median
#   pairs     two plans whose measured times differ by more than twice their scatter: are they
#             predicted in that order?
set -euo pipefail

pipec=$PWD/bazel-bin/compiler/pipec
piperun=$PWD/bazel-bin/runtime/piperun
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"

echo '{"model_type":"gpt2","n_layer":8,"n_embd":192,"n_head":6,"vocab_size":512,"n_positions":128}' > config.json
seq 1 300000 > text.txt
steps=12

# compile NAME SCHEME MICRO-BATCHES SIZE [OPTION]...
compile() {
  local devices=2
  [[ " ${*:5} " == *" --tp 2 "* ]] && devices=1
  "$pipec" compile --scheme "$2" --devices $devices --microbatches "$3" --micro-batch-size "$4" \
    --model config.json -o "$1" "${@:5}" 2> errors.txt
}
# The second-fastest, median and second-slowest step without the first two, and the peak in bytes.
run() {
  "$piperun" "$1" --data text.txt --bytes --steps $steps --log log.jsonl "${@:2}" > out.txt
  sed -n '3,$s/.*"step_seconds":\([0-9.e-]*\).*/\1/p' log.jsonl | sort -g |
    awk '{t[NR] = $1} END {printf "%s %s %s ", t[2], t[int((NR + 1) / 2)], t[NR - 1]}'
  sed -n '$s/.*"peak_bytes":\[\([0-9,]*\)\].*/\1/p' log.jsonl | tr ',' '\n' | sort -g | tail -n 1
}

compile profiled.plan 1f1b 8 4
run profiled.plan --profile profile.json > profiled.txt
plans=()
for scheme in 1f1b gpipe interleaved chimera zb-h1 zb-v hanayo dualpipe-v; do
  for sizes in "4 4" "8 2" "8 4" "12 4"; do plans+=("$scheme $sizes"); done
done
plans+=("1f1b 8 4 --passes mario" "1f1b 8 2 --passes mario" "interleaved 8 4 --passes mario"
  "1f1b 8 4 --passes apply-checkpoint" "1f1b 8 4 --layers-per-stage 5,3" "1f1b 8 4 --p2p blocking"
  "gpipe 4 4 --tp 2" "gpipe 2 8 --tp 2" "1f1b 8 4 --seq-length 64")
for plan in "${plans[@]}"; do
  read -ra words <<< "$plan"
  compile x.plan "${words[@]}" || continue  # a size that the scheme refuses
  predicted=$("$pipec" simulate x.plan --costs profile.json --format json |
    sed 's/.*"makespan":\([0-9.e-]*\).*/\1/')
  bytes=$("$pipec" simulate x.plan --format json | grep -o '"peak_bytes":[0-9]*' | grep -o '[0-9]*$' |
    sort -g | tail -n 1)
  echo "$predicted $bytes $(run x.plan) $plan"
done | tee rows.txt | awk '
  {scatter = ($5 - $3) / $4; error = $1 / $4 - 1; name = $7
   for (i = 8; i <= NF; ++i) name = name " " $i
   printf "%-36s predicted %.3f s, measured %.3f s (scatter %4.1f %%): %+6.1f %%%s\n", name, $1, $4,
     scatter * 100, error * 100, $2 == $6 ? "" : ", bytes " $2 " and " $6
   errors += error < 0 ? -error : error; scatters += scatter; bytes += $2 != $6
   predicted[NR] = $1; measured[NR] = $4; width[NR] = $5 - $3}
  END {
    for (i = 1; i <= NR; ++i) for (j = 1; j < i; ++j) {
      d = measured[i] - measured[j]; w = width[i] > width[j] ? width[i] : width[j]
      if ((d < 0 ? -d : d) <= 2 * w) continue
      ++pairs; right += d * (predicted[i] - predicted[j]) > 0}
    printf "%d plans: error %.1f %% on average, scatter %.1f %%; %d of %d pairs in order; %d peaks differ\n",
      NR, 100 * errors / NR, 100 * scatters / NR, right, pairs, bytes}'
