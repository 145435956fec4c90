#!/bin/bash
# Interleaved 1F1B of 32 devices, 256 micro-batches and two stages per device: compiled, verified
# and written by pipec (the whole process), and generated and lowered by PyTorch (without its
# start), in turn.
#
#   tools/bench //tools:bench_lower      PYTHON=… a python that has torch
set -euo pipefail

pipec=bazel-bin/compiler/pipec
python=$(tools/torch_python)
size=(--devices 32 --microbatches 256 --stages-per-device 2)
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

for round in 1 2 3 4 5; do
  start=$EPOCHREALTIME
  "$pipec" compile --scheme interleaved "${size[@]}" -o "$folder/plan"
  end=$EPOCHREALTIME
  echo "$(((${end/./} - ${start/./}))) $("$python" tools/bench_torch_lower.py "${size[@]}")"
done | awk '
  {ours = $1 / 1e6; printf "pipec %.3f s, PyTorch %.3f s: %.1f times\n", ours, $2, $2 / ours
   if (NR == 1 || ours < best) best = ours
   if (NR == 1 || $2 < other) other = $2}
  END {printf "best of %d: pipec %.3f s, PyTorch %.3f s: %.1f times\n", NR, best, other, other / best}'
