#!/bin/bash
# Readers that do not read: standard output, standard error, log, trace and profile, each blocked for
# some seconds and for ever, closed, and on a full disk, with threads and with processes. The training
# goes on to its end, the model is there, the run ends in time, and what nobody read is said.
set -uo pipefail
source tests/small_run.sh
"$pipec" compile --scheme 1f1b --devices 2 --microbatches 4 --model config.json -o b.plan || exit 1
timeout=10
train=("$piperun" "$folder/b.plan" --data "$folder/text.txt" --steps 1500 --export out --stall-timeout $timeout)

# full_pipe NAME: a named pipe that is full, and a process that holds its reading end.
full_pipe() {
  mkfifo "$1"
  sleep 1000 < "$1" &
  holder=$!
  exec 3> "$1"
  timeout 1 head -c 65536 /dev/zero >&3
  exec 3>&-
}
# check NAME STATUS PATTERN LAUNCHER...: in the folder NAME, which says where what goes: one of the
# programs' outputs is "blocked", "late", "closed" or "full". The exit status is STATUS, and standard
# error one line of this pattern (empty: none).
check() {
  local name=$1 what=${1%%-*} how status=$2 pattern=$3 got begin=$SECONDS out=out.txt err=err.txt options=() holder=
  how=${name#*-} how=${how%-*}
  shift 3
  mkdir "$name" && cd "$name" || return
  local target=pipe
  case $how in
    blocked) full_pipe pipe ;;
    late) full_pipe pipe; { sleep 4; exec timeout 60 cat pipe > late.txt; } & ;;
    closed) target=- ;;
    full) target=/dev/full ;;
  esac
  case $what in
    stdout) out=$target ;;
    stderr) err=$target ;;
    *) options=("--$what" "$target") ;;
  esac
  if [[ $how == terminal ]]; then
    timeout -s KILL 100 python3 -c 'import os, pty, subprocess, sys
ours, its = pty.openpty()
sys.exit(subprocess.call(sys.argv[1:], stdout=its))' "$@" "${train[@]}" 2> err.txt < /dev/null
  elif [[ $how == closed ]]; then
    case $what in
      stdout) "$@" "${train[@]}" 2> err.txt >&- ;;
      stderr) "$@" "${train[@]}" > out.txt 2>&- ;;
    esac
  else
    timeout -s KILL 100 "$@" "${train[@]}" "${options[@]}" > "$out" 2> "$err" < /dev/null
  fi
  got=$?
  [[ -z $holder ]] || kill "$holder"
  ((got == status)) || echo "exit $got instead of $status"
  [[ -e out/model.safetensors ]] || echo "no model"
  # A run of some seconds, some more beside others, and the patience.
  ((SECONDS - begin < 90)) || echo "after $((SECONDS - begin)) s"
  [[ $what == stderr ]] && return
  if [[ -z $pattern ]]; then
    [[ ! -s err.txt ]] || echo "$(< err.txt)"
  else
    [[ $(grep -c "^piperun" err.txt) == 1 ]] && grep -qE "^piperun: error: $pattern" err.txt || echo "instead of '$pattern': $(< err.txt)"
  fi
}
names=()
start() {
  names+=("$1")
  check "$@" > "$1.txt" 2> "$1.log" &
  while (($(jobs -rp | wc -l) >= 6)); do sleep 0.1; done
}
for launcher in "" "mpiexec -n 2"; do
  kind=threads
  [[ -z $launcher ]] || kind=mpi
  # mpiexec reads what its ranks print, and waits for ever for whoever reads it.
  if [[ -z $launcher ]]; then
    start stdout-blocked-$kind 1 "standard output: nobody reads it: its last lines are not written"
    start stdout-terminal-$kind 1 "standard output: nobody reads it: its last lines are not written"
    start stdout-late-$kind 0 ""
    start stdout-closed-$kind 1 "standard output: cannot be written"
    start stdout-full-$kind 1 "standard output: cannot be written"
    start stderr-blocked-$kind 0 ""
    start stderr-closed-$kind 0 ""
    start stderr-full-$kind 0 ""
  fi
  # shellcheck disable=SC2086
  for file in log trace profile; do
    start $file-blocked-$kind 1 "pipe: nobody reads it" $launcher
    start $file-late-$kind 0 "" $launcher
    start $file-full-$kind 1 "/dev/full: cannot be written: No space left on device" $launcher
  done
done
wait $(jobs -rp)
for name in "${names[@]}"; do
  cp "$name.log" err.txt
  [[ ! -s $name.txt ]] || fail "$name: $(cat "$name.txt")"
done
rm -rf "$folder"
exit $((failures > 0))
