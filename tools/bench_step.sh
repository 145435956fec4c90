#!/bin/bash
# A training step of GPT-2 124M, ours and PyTorch's in turn, so that both see the same machine.
#
#   tools/bench //tools:bench_step            PYTHON=… a python that has torch
set -euo pipefail

own=$(dirname "$0")/bench_step_own
python=${PYTHON:-out/torch/bin/python}

if ! "$python" -c 'import torch' 2>/dev/null; then
  echo "no PyTorch to compare with (python3 -m venv out/torch && out/torch/bin/pip install torch numpy)"
  python=
fi
for dropout in 0.1 0; do
  echo "GPT-2 124M, B=4, T=64, fp32, one thread, dropout $dropout"
  for round in 1 2 3; do
    "$own" --dropout "$dropout" --steps 5
    [[ -z $python ]] || "$python" tools/bench_torch.py --dropout "$dropout" --steps 5
  done
done
