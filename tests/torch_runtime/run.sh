#!/bin/bash
# Schedules of pipec, both those that PyTorch has and those that it lacks, executed by PyTorch's
# own pipeline runtime (run.py). To be run by hand: it takes PyTorch from PyPI (tools/torch_python), and
# some minutes.
#
#   tests/torch_runtime/run.sh        PYTHON=… a python that has torch, PIPEC=… another pipec
set -euo pipefail
cd "$(dirname "$(readlink -f "$0")")/../.."

pipec=${PIPEC:-bazel-bin/compiler/pipec}
python=$(tools/torch_python)
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

[[ -x $pipec ]] || bazel build //compiler:pipec
for scheme in gpipe 1f1b interleaved zb-v dualpipe-v \
  zb-h1 zb-h2 v-half v-min hanayo fold-aiao fold-fifo \
  "hanayo --stages-per-device 4" "interleaved --passes split-backward"; do
  # shellcheck disable=SC2086  # a scheme and its options
  "$pipec" compile --scheme $scheme --devices 4 --microbatches 8 -o "$folder/plan"
  "$pipec" show --format torch-csv "$folder/plan" >"$folder/${scheme// /_}.csv"
done
cd "$folder"
"$python" "$OLDPWD/tests/torch_runtime/run.py" ./*.csv
