#!/bin/bash
# Schedules of pipec, both those that PyTorch has and those that it lacks, executed by PyTorch's
# own pipeline runtime (run.py), with its messages and with the plan's; and PyTorch's own schedules,
# taken by pipec (schedules.py). To be run by hand: it takes PyTorch from PyPI (tools/torch_python),
# and some minutes.
#
#   tests/torch_runtime/run.sh        PYTHON=… a python that has torch, PIPEC=… another pipec
set -euo pipefail
cd "$(dirname "$(readlink -f "$0")")/../.."

pipec=${PIPEC:-bazel-bin/compiler/pipec}
python=$(tools/torch_python)
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

[[ -x $pipec ]] || bazel build //compiler:pipec
show() { # NAME: both forms of the plan
  for messages in compute full; do
    "$pipec" show -q --format torch-csv --messages $messages "$folder/plan" \
      >"$folder/$1-$messages.csv"
  done
}
for scheme in gpipe 1f1b interleaved zb-v dualpipe-v \
  zb-h1 zb-h2 v-half v-min hanayo fold-aiao fold-fifo \
  "hanayo --stages-per-device 4" "interleaved --stages-per-device 4" \
  "interleaved --passes split-backward" "1f1b --p2p blocking"; do
  # shellcheck disable=SC2086  # a scheme and its options
  "$pipec" compile --scheme $scheme --devices 4 --microbatches 8 -o "$folder/plan"
  show "${scheme// /_}"
done

# The last stage takes micro-batch 2 first: by the plan's numbers, PyTorch would take the losses of
# others for its gradients, without a word.
cat >"$folder/order.txt" <<END
program swapped stages 2 microbatches 3
device 0 holds s0
$(printf '  %s s0 m%d\n' FW 0 FW 2 FW 1 BW 2 BW 0 BW 1)
device 1 holds s1
$(printf '  %s s1 m%d\n' FW 2 FW 0 FW 1 BW 2 BW 0 BW 1)
END
"$pipec" import "$folder/order.txt" -o "$folder/plan"
show swapped
"$python" tests/torch_runtime/schedules.py "$pipec"
cd "$folder"
"$python" "$OLDPWD/tests/torch_runtime/run.py" ./*.csv
