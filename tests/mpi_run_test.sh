#!/bin/bash
# piperun under mpiexec: one line of error from all ranks together, one exit status, files
# that are whole, and never a run that hangs.
set -uo pipefail
source tests/small_run.sh

# expect STATUS ERROR-PATTERN RANKS OPTION...
expect() {
  local status=$1 pattern=$2 ranks=$3
  shift 3
  timeout 60 mpiexec -n "$ranks" "$piperun" "$@" > out.txt 2> err.txt
  local got=$?
  [[ $got == "$status" ]] || fail "$*: exit $got instead of $status"
  if [[ -z $pattern ]]; then
    [[ ! -s err.txt ]] || fail "$*: errors"
  else
    [[ $(wc -l < err.txt) == 1 ]] && grep -qE "^piperun: error: $pattern$" err.txt || fail "$*"
  fi
}

expect 0 "" 4 a.plan --data text.txt --steps 3 --log log.jsonl --trace trace.json
[[ $(wc -l < log.jsonl) == 3 ]] || fail "log: $(cat log.jsonl)"
instructions=$("$pipec" show a.plan | awk "/^ evaluation/ { out = 1 } /^device/ { out = 0 } !out" | grep -cE "^  *[A-Z]")
[[ $(grep -c '"ph":"X"' trace.json) == $((3 * instructions)) ]] ||
  fail "trace: $(grep -c '"ph":"X"' trace.json) events of 3 x $instructions"

# mixed STATUS ERROR-PATTERN COMMAND-OF-RANK-3: the other three are good.
mixed() {
  local status=$1 pattern=$2
  shift 2
  timeout 60 mpiexec -n 3 "$piperun" a.plan --data text.txt --steps 3 --stall-timeout 2 : -n 1 "$@" \
    > out.txt 2> err.txt
  local got=$?
  [[ $got == $status ]] || fail "mixed $*: exit $got instead of $status"
  [[ $(grep -c "piperun: error" err.txt) == 1 ]] && grep -qE "^piperun: error: $pattern$" err.txt ||
    fail "mixed $*"
}
same="rank 3 has a different one from rank 0 \(the same on all ranks\)"
tr t T < text.txt > other.txt
cp -r "$here/tests/reference/gpt2_tiny" tiny
mkdir changed
cp tiny/model.safetensors changed/
printf x | dd of=changed/model.safetensors bs=1 seek=200000 conv=notrunc 2> dd.txt
"$pipec" compile --scheme gpipe --devices 4 --microbatches 4 --model config.json -o b.plan
mixed 2 "--data: $same" "$piperun" a.plan --data other.txt --steps 3
mixed 2 "PLAN: $same" "$piperun" b.plan --data text.txt --steps 3
mixed 2 "--steps: $same" "$piperun" a.plan --data text.txt --steps 4
mixed 2 "--seed: $same" "$piperun" a.plan --data text.txt --steps 3 --seed 2
mixed 2 "--steps: 'x' .*" "$piperun" a.plan --data text.txt --steps x
mixed 2 "--transport: not the same on all ranks .*" "$piperun" a.plan --data text.txt --transport mpi
mixed 2 ".*unknown.* .*" "$piperun" a.plan --data text.txt --unknown
# Here mpiexec ends the ranks that wait, whose status is theirs or its own. Beside the others.
(
  mkdir absent && cd absent && ln -s ../a.plan ../text.txt . || exit
  mixed "[19]" "rank 0: not all of 4 ranks have started within 10 s .*" sleep 60
  exit $failures
) & absent=$!
# However short the time-out for stalls: a machine under load may start a rank seconds later.
timeout 60 mpiexec -n 3 "$piperun" a.plan --data text.txt --steps 3 --stall-timeout 2 : \
  -n 1 bash -c "sleep 4; exec '$piperun' a.plan --data text.txt --steps 3" > out.txt 2> err.txt ||
  fail "a rank that starts late: exit $?"
rm b.plan

expect 2 "a\.plan: compiled for 4 devices, started with 3 ranks \(mpiexec -n 4\)" 3 a.plan --data text.txt
expect 2 "b\.plan: cannot be read.*" 4 b.plan --data text.txt
expect 2 "b\.txt: .*" 4 a.plan --data b.txt
expect 2 "--steps: 'few' .*" 4 a.plan --data text.txt --steps few
expect 2 "--transport: 'threads' under mpiexec -n 4 .*" 4 a.plan --data text.txt --transport threads
expect 2 "--transport: 'rdma' \(auto, threads, shm, mpi, nccl\)" 4 a.plan --data text.txt --transport rdma
expect 0 "" 4 a.plan --data text.txt --steps 3 --transport shm
expect 0 "" 4 a.plan --data text.txt --steps 3 --transport mpi
"$piperun" a.plan --data text.txt --transport shm > out.txt 2> err.txt
[[ $? == 2 ]] && grep -q "^piperun: error: --transport: 'shm' without mpiexec" err.txt || fail "shm alone"
expect 2 "nowhere/model\.safetensors: .*" 4 a.plan --data text.txt --bytes --weights nowhere
expect 2 "/proc/nowhere: cannot be made: .*" 4 a.plan --data text.txt --log /proc/nowhere/log
expect 1 "/dev/full: cannot be written: .*" 4 a.plan --data text.txt --log /dev/full
expect 1 "rank 3: step [0-9]+: loss of micro-batch [0-3] is nan \('FW s3 m[0-3]', instruction [0-9]+\)" \
  4 a.plan --data text.txt --lr 1e38 --grad-clip 0

# Starts an endless run and comes back when its first steps are logged.
start() {
  rm -f log.jsonl trace.json
  mpiexec -n 4 ${through:-} "$piperun" a.plan --data text.txt --steps 2000000000 --log log.jsonl \
    --trace trace.json "$@" > out.txt 2> err.txt &
  run=$!
  until [[ -s log.jsonl ]]; do
    kill -0 $run 2> kill.txt || { fail "the run did not start"; return; }
    sleep 0.05
  done
}
# The run's ranks, by process id: the children of mpiexec's child. (A small system has no pgrep.)
children() { grep -slE "^PPid:[[:space:]]$1\$" /proc/[0-9]*/status | cut -d/ -f3 || true; }
ranks() { for proxy in $(children "$run"); do children "$proxy"; done; }
# Ends what did not end.
finish() {
  ( for _ in $(seq 600); do kill -0 $run 2> /dev/null || exit; sleep 0.1; done; kill -9 $run ) &
  wait $run
  got=$?
}

# The ranks' own statuses: that of an mpiexec that got the signal is sometimes 0.
cat > status_of.sh <<'END'
#!/bin/sh
trap : INT TERM
"$@"
echo $? > status."$PMI_RANK"
END
chmod +x status_of.sh
for signal in INT TERM; do
  rm -f status.*
  through=./status_of.sh start
  kill -$signal $run
  finish
  [[ $(cat status.?) == $'1\n1\n1\n1' ]] || fail "SIG$signal: the ranks' statuses are" status.? $(cat status.?)
  grep -qE "^piperun: error: stopped after step $(wc -l < log.jsonl)$" err.txt || fail "SIG$signal"
  [[ $(tail -n 1 trace.json) == "]}" ]] || fail "SIG$signal: the trace is cut"
done

touch begin.txt
start
kill -KILL "$(ranks | sed -n 3p)"
finish
[[ $got != 0 ]] || fail "a killed rank: exit $got"
# Another test may just be starting.
for _ in $(seq 50); do
  find /dev/shm -name "piperun-*" -newer begin.txt > left.txt
  [[ -s left.txt ]] || break
  sleep 0.1
done
[[ ! -s left.txt ]] || fail "left over: $(cat left.txt)"

# stop_rank RANK PATTERN: a rank stops answering; another one reports it. In a folder and a shell of
# its own: most of it is waiting.
stop_rank() (
  failures=0
  mkdir "stopped$1" && cd "stopped$1" && ln -s ../a.plan ../text.txt . || exit
  start --stall-timeout 1
  local all process
  all=$(ranks)
  [[ $(wc -w <<< "$all") == 4 ]] || fail "not four ranks: $all"
  for process in $all; do
    tr '\0' '\n' < "/proc/$process/environ" | grep -qx "PMI_RANK=$1" && kill -STOP "$process"
  done
  finish
  [[ $got != 0 ]] || fail "stopped rank $1: exit $got"
  grep -qE "^piperun: error: $2$" err.txt || fail "stopped rank $1"
  for process in $all; do
    [[ ! -e /proc/$process ]] || fail "rank with process $process is left over"
  done
  exit $failures
)
stop_rank 2 "no progress for 1 s: rank 0 \(process [0-9]+ on $(uname -n)\) at '.*' of step [0-9]+; .*; rank 2 \(process [0-9]+ on $(uname -n)\) does not answer; .*" & second=$!
stop_rank 0 "rank 0 does not answer" || failures=$((failures + 1))
wait $second || failures=$((failures + 1))
wait $absent || failures=$((failures + 1))
exit $((failures > 0))
