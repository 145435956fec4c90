#!/bin/bash
# Tests of fine-tuning beside PyTorch, transformers and peft: in the Python of out/torch, which
# tools/torch_python makes; skipped without.
#
#   finetune_test.sh TEST.py PIPEC PIPERUN [ARGUMENT...]       PYTHON=…: another Python that has these
set -euo pipefail

here=$(dirname "$(readlink -f "$0")")
python=${PYTHON:-$here/../../out/torch/bin/python}
"$python" -c 'import jinja2, peft, tokenizers, torch, transformers' 2>/dev/null || {
  echo "SKIPPED: PyTorch, transformers and peft are not in out/torch (tools/torch_python takes them from PyPI)"
  exit 0
}
export PYTHONPATH=$here PYTHONDONTWRITEBYTECODE=1
exec "$python" -W ignore "$here/$1" "$2" "$3" "$here/../../tools" "${@:4}"
