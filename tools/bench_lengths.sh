#!/bin/bash
# Micro-batches of unequal length.
#
# First, predicted on A100s: a step of 16 micro-batches of three shapes on four devices, beside the
# same ones padded to the longest, by schemes and by fit-memory, whose bound is printed. Then
# measured, two ranks: the paragraphs of the licenses on this machine as documents, each padded to a
# row, and packed in rows; tokens that count as targets a second, in turn.
#
#   tools/bench //tools:bench_lengths      PYTHON=… a python that has numpy
set -euo pipefail

pipec=bazel-bin/compiler/pipec
piperun=bazel-bin/runtime/piperun
python=${PYTHON:-$(tools/torch_python)}
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

makespan() { "$pipec" simulate --format json "$1" | sed -E 's/.*"makespan":([0-9.e-]+).*/\1/'; }
compile() {
  "$pipec" compile --devices 4 --model tools/gpt2_124m.json --layers-per-stage auto \
    --machine a100-40g "$@"
}

echo "GPT-2 124M on four A100s: seconds a step, of the shapes and padded"
for order in 8x256,4x512,4x1024 4x1024,4x512,8x256; do
  for scheme in 1f1b interleaved zb-h1 zb-v; do
    compile -q --scheme "$scheme" --shapes "$order" -o "$folder/shapes.plan"
    compile -q --scheme "$scheme" --microbatches 16 --seq-length 1024 -o "$folder/padded.plan"
    printf '%-12s %-22s %s  padded %s\n' "$scheme" "$order" "$(makespan "$folder/shapes.plan")" \
      "$(makespan "$folder/padded.plan")"
  done
done
compile --scheme 1f1b --shapes 8x256,4x512,4x1024 --memory-limit 40GiB -o "$folder/fit.plan" 2>&1 |
  grep makespan

length=128
"$python" tools/bench_lengths.py /usr/share/common-licenses "$folder" $length
job="--scheme 1f1b --devices 2 --microbatches 4 --micro-batch-size 2 --seq-length $length
  --model tools/demo.json"
# shellcheck disable=SC2086
"$pipec" compile -q $job -o "$folder/padded.plan"
# shellcheck disable=SC2086
"$pipec" compile -q $job --lengths "$folder/lengths.txt" -o "$folder/packed.plan"
steps=40
counted() {
  "$python" - "$folder" "$1" <<'PY'
import json, statistics, sys
folder, way = sys.argv[1:]
share = json.load(open(f"{folder}/shares.json"))[way]
rows = [json.loads(line) for line in open(f"{folder}/{way}.log")][5:]
speed = statistics.median(row["tokens_per_second"] for row in rows)
print(f"{way}: {speed:.0f} tokens a second, of which {share:.1%} count: {speed * share:.0f}")
PY
}
for _ in 1 2 3; do
  "$piperun" "$folder/padded.plan" --data "$folder/padded.tokens" --steps $steps \
    --log "$folder/padded.log" >/dev/null
  counted padded
  "$piperun" "$folder/packed.plan" --data "$folder/packed.tokens" --documents --steps $steps \
    --log "$folder/packed.log" >/dev/null
  counted packed
done
