#!/bin/bash
# The kernels are compiled for several instruction sets into one program. An inline function that all
# of them share, if not inlined, is a weak symbol, and the linker keeps any one of the copies,
# possibly that for the newest processor, which the oldest one then runs. So a weak symbol has the
# namespace of its instruction set in its name: then each set has its own.
#
#   isa_test.sh symbols_ISA.txt...     what nm prints of each set's library
set -euo pipefail
for symbols in "$@"; do
  isa=${symbols##*symbols_} isa=${isa%.txt}
  own=2pp7kernels${#isa}$isa  # pp::kernels::ISA, mangled
  grep -q " [TW] .*$own" "$symbols" || { echo "FAILED: $symbols: no kernels"; exit 1; }
  if grep -E ' [WVu] ' "$symbols" | grep -v "$own"; then
    echo "FAILED: $symbols" && exit 1
  fi
done
(($# >= 3))
