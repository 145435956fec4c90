#!/bin/bash
# tools/tokens: with a stand-in tokenizer in Debian's Python, and with real ones in the Python of
# out/tokens, which tools/tokens makes; or of out/torch.   PYTHON=…: another one that has tokenizers
set -euo pipefail

here=$(dirname "$(readlink -f "$0")")
root=$here/../..
export TOKENS=$root/tools/tokens PYTHONPATH=$root/tools/python:$here PYTHONDONTWRITEBYTECODE=1 PYTHONUTF8=1
debian=/usr/bin/python3
if [[ -x $debian ]] && "$debian" -c 'import numpy'; then
  "$debian" "$here/tokens_test.py"
  "$debian" "$here/tokens_command_test.py"
else
  echo "SKIPPED: Debian's python3-numpy is not there (tools/setup --with test)"
fi
for python in ${PYTHON:-$root/out/tokens/bin/python $root/out/torch/bin/python}; do
  if "$python" -c 'import jinja2, numpy, tokenizers' 2>/dev/null; then
    unset PYTHON
    exec "$python" "$here/tokens_real_test.py"
  fi
done
echo "SKIPPED: tokenizers is not in out/tokens (tools/tokens takes it from PyPI)"
