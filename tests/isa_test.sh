#!/bin/bash
# The kernels are compiled for several instruction sets into one program. An inline function that all
# of them share, if not inlined, is a weak symbol, and the linker keeps any one of the copies,
# possibly that for the newest processor, which the oldest one then runs. So there must be none.
set -euo pipefail
checked=0
for library in "$@"; do
  [[ $library == *.a ]] || continue
  if nm -C "$library" 2> /dev/null | grep ' W '; then
    echo "FAILED: $library" && exit 1
  fi
  checked=$((checked + 1))
done
((checked >= 3))
