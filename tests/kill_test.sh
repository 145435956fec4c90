#!/bin/bash
# Ranks, and what has started them, that are killed or stopped at random instants of start, steps and
# end: all ranks are gone within five seconds, or, where one is stopped, within the stall timeout and
# ten, with a non-zero exit status and a message about it, unless the run had ended well.
#
#   kill_test.sh [INSTANTS [SEED]]
set -uo pipefail
source tests/small_run.sh
instants=${1:-8}
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

stall=2
# once VICTIM SIGNAL DELAY COMMAND...: sends a signal to a rank of the run, to the launcher on its host
# (proxy) or to mpiexec, DELAY milliseconds after start.
once() {
  local what="$1, SIG$2 after $3 ms, $4" victim=$1 signal=$2 delay=$3 victims index begin got limit=5
  shift 3
  [[ $signal != STOP ]] || limit=$((stall + 10))
  "$@" "$piperun" "$folder/a.plan" --data text.txt --steps 200 --stall-timeout $stall > out.txt 2> err.txt &
  local run=$!
  sleep "$(printf '0.%03d' "$delay")"
  case $victim in
    rank) mapfile -t victims < <(programs) ;;
    proxy) mapfile -t victims < <(pgrep -P $run hydra_pmi_proxy) ;;
    mpiexec) victims=($run) ;;
  esac
  begin=$(now)
  index=$((${#victims[@]} == 0 ? 0 : RANDOM % ${#victims[@]}))
  ((${#victims[@]} == 0)) || kill -"$signal" "${victims[index]}" 2> kill.txt
  while { [[ $signal != STOP ]] && kill -0 $run 2> kill.txt; } || [[ -n $(programs) ]]; do
    (($(now) - begin < limit * 1000000000)) || { fail "$what: still there: $(programs)"; break; }
    sleep 0.02
    # A rank that is stopped is the launcher's to kill.
    [[ $victim != rank || $signal != STOP || -n $(programs | grep -vx "${victims[index]:-0}") ]] || break
  done
  if [[ $signal == STOP ]]; then
    kill -CONT "${victims[index]:-0}" 2> kill.txt
    begin=$(now)
    while kill -0 $run 2> kill.txt; do
      (($(now) - begin < 5000000000)) || { fail "$what: the launcher is still there"; break; }
      sleep 0.02
    done
  fi
  kill -9 $run $(programs) 2> kill.txt
  wait $run 2> kill.txt
  got=$?
  ((got == 0)) && ! tail -n 5 out.txt | grep -q "^kernels" && fail "$what: exit 0 without an end"
  # A process ended by a signal, or before main, cannot report it; under mpiexec, mpiexec reports it,
  # on standard output, and nobody reads what ranks print whose launcher is gone.
  ((got == 0 || got == 137 || got == 143)) || [[ $victim != rank ]] || [[ -s err.txt ]] || grep -q "BAD TERMINATION" out.txt ||
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
  once rank TERM $((RANDOM % threads % 1000)) env
  once rank KILL $((RANDOM % threads % 1000)) env
  once rank KILL $((RANDOM % processes % 1000)) mpiexec -n 4
  once rank TERM $((RANDOM % processes % 1000)) mpiexec -n 4
  once mpiexec KILL $((RANDOM % processes % 1000)) mpiexec -n 4
  once proxy KILL $((RANDOM % processes % 1000)) mpiexec -n 4
  ((i % 4 == 0)) || continue  # these wait for the stall timeout
  for victim in rank mpiexec proxy; do once $victim STOP $((RANDOM % processes % 1000)) mpiexec -n 4; done
done
echo "killed: ${endings[0]}, ended before: ${endings[1]} (runs of $threads and $processes ms)"
((endings[0] > 0)) || fail "nothing was killed"
rm -rf "$folder"
exit $((failures > 0))
