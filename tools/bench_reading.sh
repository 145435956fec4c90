#!/bin/bash
# How long large files take to be read, and how much memory: twice the file should take twice the
# time. The trace is read by `pipec simulate` from a file, and through a pipe; the header of a file
# of weights by a run, which then lacks the model's tensors.
#
#   tools/bench //tools:bench_reading
set -euo pipefail

pipec=$PWD/bazel-bin/compiler/pipec
piperun=$PWD/bazel-bin/runtime/piperun
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"

# row WHAT FILE COMMAND...: its exit status does not matter.
row() {
  local what=$1 file=$2
  shift 2
  /usr/bin/time -q -o time -f '%e %M' "$@" >out.txt 2>err.txt || true
  awk -v what="$what" -v bytes="$(stat -c %s "$file")" \
    '{printf "%-26s %6.1f MB %7.2f s %7.0f MiB at most\n", what, bytes / 1e6, $1, $2 / 1024}' time
}

"$pipec" compile --scheme 1f1b --devices 4 --microbatches 200 --costs f=1ms,b=2ms -q -o trace.plan
"$pipec" simulate trace.plan --format chrome-trace -q >step.json
for steps in 280 560; do
  awk -v steps="$steps" '
    /^{"ph":"X"/ {sub(/,$/, ""); rows[n++] = $0; next}
    !/^]/ {print}
    END {
      for (step = 1; step <= steps; ++step)
        for (i = 0; i < n; ++i) {
          row = rows[i]
          sub(/"step":1/, "\"step\":" step, row)
          print row (step < steps || i + 1 < n ? "," : "")
        }
      print "]}"
    }' step.json >trace.json
  row "trace" trace.json "$pipec" simulate trace.plan --trace trace.json -q
  row "trace, through a pipe" trace.json \
    bash -c 'cat trace.json | exec "$1" simulate trace.plan --trace - -q' bash "$pipec"
done

cat >config.json <<END
{"model_type": "gpt2", "vocab_size": 256, "n_positions": 16, "n_embd": 8, "n_layer": 2, "n_head": 2}
END
seq 1 5000 >text.txt
"$pipec" compile --scheme 1f1b --devices 1 --microbatches 1 --model config.json -q -o run.plan
for tensors in 800000 1600000; do
  awk -v count="$tensors" 'BEGIN {
    printf "{"
    for (i = 0; i < count; ++i)
      printf "%s\"t%07d\":{\"dtype\":\"F32\",\"shape\":[0,4],\"data_offsets\":[0,0]}", (i > 0 ? "," : ""), i
    printf "}"
  }' >header
  bytes=$(stat -c %s header)
  for shift in 0 8 16 24 32 40 48 56; do printf "\\x$(printf %02x $((bytes >> shift & 255)))"; done |
    cat - header >model.safetensors
  row "header of safetensors" model.safetensors \
    "$piperun" run.plan --data text.txt --steps 1 --weights model.safetensors
  grep -q "is missing" err.txt
done
