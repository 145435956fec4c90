#!/bin/bash
# Ranks that are killed at random instants of start, steps and end: all processes are gone within five
# seconds, with a non-zero exit status and a message about it, unless the run had ended well.
#
#   kill_test.sh [INSTANTS [SEED]]
set -uo pipefail
source tests/small_run.sh
instants=${1:-15}
RANDOM=${2:-$$}
echo "seed ${2:-$$}"

now() { date +%s%N; }
# The ranks of this run, by process id: all that have this folder's plan on their command line.
ranks() { grep -sl "$folder/a.plan" /proc/[0-9]*/cmdline | grep -v "/$$/" | cut -d/ -f3; }
programs() {
  for process in $(ranks); do
    [[ $(readlink "/proc/$process/exe") == "$(readlink -f "$piperun")" ]] && echo "$process"
  done
}

# once WHAT SIGNAL DELAY COMMAND...: kills one of the run's processes DELAY milliseconds after start.
once() {
  local what="$1, SIG$2 after $3 ms" signal=$2 delay=$3 victims begin got
  shift 3
  "$@" "$piperun" "$folder/a.plan" --data text.txt --steps 200 > out.txt 2> err.txt &
  local run=$!
  sleep "$(printf '0.%03d' "$delay")"
  mapfile -t victims < <(programs)
  begin=$(now)
  ((${#victims[@]} == 0)) || kill -"$signal" "${victims[RANDOM % ${#victims[@]}]}" 2> kill.txt
  while kill -0 $run 2> kill.txt || [[ -n $(programs) ]]; do
    (($(now) - begin < 5000000000)) || { fail "$what: still there: $(programs)"; break; }
    sleep 0.02
  done
  kill -9 $run $(programs) 2> kill.txt
  wait $run 2> kill.txt
  got=$?
  ((got == 0)) && ! tail -n 5 out.txt | grep -q "^kernels" && fail "$what: exit 0 without an end"
  # A process ended by a signal, or before main, cannot report it; under mpiexec, mpiexec reports it,
  # on standard output.
  ((got == 0 || got == 137 || got == 143)) || [[ -s err.txt ]] || grep -q "BAD TERMINATION" out.txt ||
    fail "$what: exit $got without a word"
  endings[$((got == 0))]=$((endings[$((got == 0))] + 1))
}
endings=(0 0)
# How long a whole run takes, in milliseconds, and half as long again.
time_of() {
  local begin
  begin=$(now)
  "$@" "$piperun" "$folder/a.plan" --data text.txt --steps 200 > out.txt 2> err.txt || fail "$*"
  echo $((($(now) - begin) * 3 / 2000000))
}
threads=$(time_of) processes=$(time_of mpiexec -n 4)
for ((i = 0; i < instants && failures < 3; ++i)); do
  once threads TERM $((RANDOM % threads % 1000))
  once threads KILL $((RANDOM % threads % 1000))
  once mpiexec KILL $((RANDOM % processes % 1000)) mpiexec -n 4
  once mpiexec TERM $((RANDOM % processes % 1000)) mpiexec -n 4
done
echo "killed: ${endings[0]}, ended before: ${endings[1]} (runs of $threads and $processes ms)"
((endings[0] > 0)) || fail "nothing was killed"
rm -rf "$folder"
exit $((failures > 0))
