#!/bin/bash
# What piperun trains with --lora, in peft and transformers: the exported adapter and the merged
# model have the loss there that piperun has. Skipped without a Python that has them.
#
#   lora_test.sh PIPEC PIPERUN       PYTHON=…: that Python, else out/torch's
set -euo pipefail

here=$(dirname "$(readlink -f "$0")")
python=${PYTHON:-$here/../../out/torch/bin/python}
"$python" -c 'import peft, transformers' 2>/dev/null || {
  echo "SKIPPED: no Python with peft and transformers (PYTHON=…, after pip install peft)"
  exit 0
}
pipec=$1 piperun=$2
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
printf '%s' {a..z}{A..Z}{0..9}{a..f} | tr -d '[:upper:]' | tr 'a-z' ' -9' > "$work/text"

check() {  # FAMILY LORA
  local base=$here/../reference/$1 run=$work/$1-$2
  mkdir "$run"
  "$pipec" compile --scheme zb-v --devices 2 --microbatches 2 --micro-batch-size 2 \
    --seq-length 24 --model "$base" --lora "$2" -o "$run/plan" > "$run/lines"
  local train=("$piperun" "$run/plan" --data "$work/text" --bytes --weights "$base" --lr 1e-2)
  "${train[@]}" --steps 8 --export "$run/adapter" > "$run/lines"
  "${train[@]}" --steps 8 --export-merged "$run/merged" > "$run/lines"
  "${train[@]}" --steps 1 --adapter "$run/adapter" --log "$run/log" > "$run/lines"
  "$python" -W ignore "$here/lora_loss.py" "$base" "$run" "$work/text"
}

check qwen2_tiny r=3,alpha=6
check qwen2_tiny r=4,alpha=4,all-linear
check gpt2_tiny r=4,alpha=8
check gpt2_tiny r=2,alpha=8,all-linear
check mistral_tiny r=4,alpha=8,o_proj,down_proj
