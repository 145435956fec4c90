#!/bin/bash
# Tests of pipec.torch, in the Python of out/torch, which tools/torch_python makes; skipped without.
#
#   torch_test.sh PIPEC TEST.py [ARGUMENT...]       PYTHON=…: another Python that has PyTorch
set -euo pipefail

here=$(dirname "$(readlink -f "$0")")
python=${PYTHON:-$here/../../out/torch/bin/python}
"$python" -c 'import torch' 2>/dev/null || {
  echo "SKIPPED: PyTorch is not in out/torch (tools/torch_python takes it from PyPI)"
  exit 0
}
PIPEC=$(readlink -f "$1")
export PIPEC PYTHONPATH=$here/../../tools/python:$here/torch PYTHONDONTWRITEBYTECODE=1
shift
exec "$python" -W ignore "$here/torch/$1" "${@:2}"
