#!/bin/bash
# Training on completions alone, beside PyTorch: in the Python of out/torch, which tools/torch_python
# makes; skipped without.
#
#   finetune_test.sh PIPEC PIPERUN [ARGUMENT...]       PYTHON=…: another Python that has PyTorch
set -euo pipefail

here=$(dirname "$(readlink -f "$0")")
python=${PYTHON:-$here/../../out/torch/bin/python}
"$python" -c 'import jinja2, tokenizers, torch, transformers' 2>/dev/null || {
  echo "SKIPPED: PyTorch and transformers are not in out/torch (tools/torch_python takes them from PyPI)"
  exit 0
}
export PYTHONPATH=$here PYTHONDONTWRITEBYTECODE=1
exec "$python" -W ignore "$here/finetune_test.py" "$1" "$2" "$here/../../tools/tokens" "${@:3}"
