#!/bin/bash
# Each system call of an export fails once, with one error after the other, and then the disk fails for
# good from some call on. A run is refused before its first step, or the trained model is there and
# whole, under its name or under one that the error says; or, on a disk that is broken for good, what is
# there is said.
#
#   export_fault_test.sh [STEP]     only each STEP-th call of each error, from another one on (1: all)
set -uo pipefail
source tests/small_run.sh
step=${1:-1}
disk=$here/tests/libfaulty_disk.so
"$piperun" a.plan --data tokens.bin --steps 2 --export source > out.txt 2> err.txt || fail "source"
: > source/merges.txt
head -c 3000 /dev/urandom > source/tokenizer.json
"$piperun" a.plan --data tokens.bin --steps 2 --weights source --export whole > out.txt 2> err.txt || fail "whole"

# faulty AT ERRNO: trains and exports to place/model. False: the fault never came.
faulty() {
  rm -rf place fired.txt
  mkdir place
  FAULT_PATH=$folder/place FAULT_AT=$1 FAULT_ERRNO=$2 FAULT_FIRED=$folder/fired.txt \
    LD_PRELOAD=$disk timeout 30 "$piperun" a.plan --data tokens.bin --steps 2 --weights source \
    --export "$folder/place/model" > out.txt 2> err.txt
  got=$?
  [[ -e fired.txt ]]
}
# What remains after a run that has failed is a model, which the error names.
said() {
  local model
  [[ $(wc -l < err.txt) == 1 ]] || return 1
  for model in place/*; do
    diff -r "$model" whole > diff.txt && grep -q "$model" err.txt && return
  done
  return 1
}
declare -A errors=([EIO]=5 [ENOSPC]=28 [EINVAL]=22 [EINTR]=4 [EMFILE]=24)
refused=0 whole=0 elsewhere=0 first=0
for name in EIO ENOSPC EINVAL EINTR EMFILE; do
  for ((at = 1 + first++ % step; failures < 5; at += step)); do
    faulty $at "${errors[$name]}" || break
    if ((got == 0)); then
      whole=$((whole + 1))
      diff -r place/model whole > diff.txt && [[ $(ls place) == model ]] || fail "$name at call $at: not whole: $(ls place)"
    elif ! grep -q "^step 1/" out.txt; then
      refused=$((refused + 1))
      [[ $(wc -l < err.txt) == 1 ]] || fail "$name at call $at: refused, but not in one line"
    else
      elsewhere=$((elsewhere + 1))
      said || fail "$name at call $at: exit $got, and $(ls place/*)"
    fi
  done
  ((at > step)) || fail "no $name at all"
done
((got == 0)) && diff -r place/model whole > diff.txt || fail "without a fault"
echo "$((refused + whole + elsewhere)) calls failed: $refused runs refused, $whole models whole, $elsewhere elsewhere"
((refused > 0 && whole > 0)) || fail "nothing was tried"

# A disk that fails for good.
lost=0 broken=0
for ((at = 1; failures < 5; at += step)); do
  FAULT_ALWAYS=1 faulty $at 5 || break
  ((got != 0)) || { diff -r place/model whole > diff.txt || fail "from call $at on: exit 0"; continue; }
  grep -q "^step 2/" out.txt || continue
  broken=$((broken + 1))
  said || grep -qE "place/model.unfinished(/| |,)" err.txt || fail "from call $at on: $(ls place/*)"
  [[ -n $(ls place) ]] || fail "from call $at on: nothing is left"
done
((broken > 0)) || fail "no disk was broken after the last step"
echo "$broken disks broken after the last step"
exit $((failures > 0))
