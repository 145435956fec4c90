#!/bin/bash
# The kernels for a GPU, as nvcc compiles them: none uses local memory, sums floats by atomic
# operations or computes in doubles, except where tests/cuda/exceptions.txt says why; and each uses
# as many registers, and moves 16 bytes in as many places, as tests/cuda/registers.txt says, which
# tools/golden rewrites. Each check finds what is planted for it. Without nvcc nothing is tested, and
# the test says so.
#
#   proofs_test.sh LISTING... --planted LISTING...
set -euo pipefail
proofs=tools/cuda_proofs table=tests/cuda/registers.txt exceptions=tests/cuda/exceptions.txt
kernels=() planted=()
while [[ $1 != --planted ]]; do kernels+=("$1") && shift; done
shift
planted=("$@")
if [[ ${kernels[0]} == */no_nvcc ]]; then
  echo "SKIPPED registers and instructions of the kernels for a GPU: there is no nvcc"
  exit
fi

status=0
fail() { echo "FAILED: $1" && status=1; }

"$proofs" check "$exceptions" "${kernels[@]}" || fail "kernels do what they must not"

is=$("$proofs" table "${kernels[@]}")
if [[ $(head -n 1 <<< "$is") != "$(head -n 1 "$table")" ]]; then
  echo "SKIPPED the table of registers, which is of another release: $(head -n 1 <<< "$is")"
else
  diff -u "$table" - <<< "$is" || fail "other registers: read the difference, then run tools/golden"
fi

found=$("$proofs" check /dev/null "${planted[@]}") && fail "nothing planted is found"
for kernel in "atomic planted_cuda Atomic" "double planted_cuda Double" "local planted_cuda Spills"; do
  grep -q "^$kernel: " <<< "$found" || fail "not found: $kernel"
done
(($(wc -l <<< "$found") == 3)) || fail "more is found than is planted: $found"
"$proofs" check <(echo "double planted_cuda Nothing: no reason") /dev/null > /dev/null &&
  fail "an exception without use is not found"
exit $status
