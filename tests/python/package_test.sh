#!/bin/bash
# The Python package as its users get it: a wheel, installed without a network in every way that pip
# has, and tried (pipec_test.py). Debian's Python, with numpy alone.
#
#   package_test.sh PIPEC MAKE_WHEEL      PIPEC: the static program
set -euo pipefail

pipec=$PWD/$1 make_wheel=$PWD/$2 here=$PWD/tests/python
python=/usr/bin/python3
[[ -x $python ]] && "$python" -c 'import numpy, ensurepip' || {
  echo "SKIPPED: Debian's python3-numpy and python3-venv are not there (tools/setup --with test)"
  exit 0
}
export PYTHONDONTWRITEBYTECODE=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1
unset PIPEC PYTHONPATH
cd "${TEST_TMPDIR:-$(mktemp -d)}"
export HOME=$PWD

wheel=$("$python" "$make_wheel" "$pipec" "$PWD/dist")
"$python" "$make_wheel" "$pipec" again >/dev/null
cmp "$wheel" again/*.whl

pip=(venv/bin/python -m pip install -q --no-deps --no-index)
"$python" -m venv --system-site-packages venv

# Where pip can put it. The package finds its own program; PATH has none.
"${pip[@]}" --target 'a target' "$wheel"
PYTHONUSERBASE=$PWD/user "${pip[@]}" --user "$wheel"
"${pip[@]}" --prefix prefix "$wheel"
"${pip[@]}" "$wheel"
try() {
  local found
  found=$(env PATH=/nonexistent "$@" -c 'import pipec
print(pipec.find_binary() if pipec.compile(scheme="1f1b", devices=2, microbatches=2).lists() else "")')
  [[ $found == "$PWD/$where" ]] || { echo "$*: uses $found (not $where)" && exit 1; }
}
where=venv/bin/pipec try venv/bin/python
where='a target/bin/pipec' try PYTHONPATH='a target' "$python"
where=user/bin/pipec try PYTHONUSERBASE="$PWD/user" "$python"
where=prefix/bin/pipec try PYTHONPATH="$(echo prefix/lib/python*/site-packages)" "$python"

PATH=$PWD/venv/bin:$PATH WHEEL=$wheel exec venv/bin/python "$here/pipec_test.py"
