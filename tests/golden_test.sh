#!/bin/bash
# Runs every golden case: a shell script, a line of dashes, and exactly what it prints.
# The script runs in an empty folder with pipec and piperun on its path; the exit status
# of either is printed where it is not 0.
#
#   golden_test.sh PIPEC PIPERUN CASE...        compare
#   golden_test.sh PIPEC PIPERUN --rewrite DIR  write what is printed now into DIR
set -euo pipefail
export PIPEC=$(readlink -f "$1") PIPERUN=$(readlink -f "$2") LC_ALL=C
shift 2
pipec() { "$PIPEC" "$@" || echo "exit $?"; }
piperun() { "$PIPERUN" "$@" || echo "exit $?"; }
export -f pipec piperun

# The output of the script before the dashes, without the progress lines of pipec, which depend on
# the machine.
run() {
  local folder
  folder=$(mktemp -d)
  sed '/^-----*$/,$d' "$1" >"$folder.sh"
  # ThreadSanitizer maps a temporary file, which `ulimit -f` would cut, unless there is no place.
  { (cd "$folder" && TMPDIR=/none bash "$folder.sh" 2>&1) || echo "the script failed"; } |
    sed -E '/^pipec: .* \([0-9]+ s\)$/d'
  rm -rf "$folder" "$folder.sh"
}
whole() {
  sed '/^-----*$/,$d' "$1"
  echo "----------"
  run "$1"
}

if [[ $1 == --rewrite ]]; then
  for case in "$2"/*.txt; do
    whole "$case" >"$case.new"
    mv "$case.new" "$case"
  done
  exit
fi
status=0
for case; do
  diff -u "$case" <(whole "$case") || status=1
done
exit $status
