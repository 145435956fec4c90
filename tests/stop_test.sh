#!/bin/bash
# Runs whose ranks are threads, stopped by signals at various times: what they print, how soon they
# end, and that their files are whole.
set -uo pipefail
source tests/small_run.sh
# A model whose weights take seconds to make.
cat > large.json <<END
{"model_type": "gpt2", "vocab_size": 50000, "n_positions": 64, "n_embd": 1024, "n_layer": 8, "n_head": 16}
END
"$pipec" compile --scheme 1f1b --devices 2 --microbatches 2 --model large.json -o large.plan || exit 1

start() {
  rm -f log.jsonl trace.json
  "$piperun" a.plan --data text.txt --steps 2000000000 --log log.jsonl --trace trace.json \
    > out.txt 2> err.txt &
  run=$!
  until [[ -s log.jsonl ]]; do
    kill -0 $run 2> kill.txt || { fail "the run did not start"; return; }
    sleep 0.05
  done
}
# ends SECONDS ERROR-PATTERN: within that many seconds, with status 1 and this one line.
ends() {
  local begin=$SECONDS
  ( for _ in $(seq 300); do kill -0 $run 2> /dev/null || exit; sleep 0.1; done; kill -9 $run ) &
  wait $run
  local got=$?
  ((got == 1)) || fail "$2: exit $got"
  ((SECONDS - begin <= $1)) || fail "$2: after $((SECONDS - begin)) s"
  [[ $(wc -l < err.txt) == 1 ]] && grep -qE "^piperun: error: $2$" err.txt || fail "$2"
}

for signal in INT TERM HUP; do
  start
  kill -$signal $run
  ends 5 "stopped after step [0-9]+"
  grep -q "after step $(wc -l < log.jsonl)$" err.txt || fail "SIG$signal: $(wc -l < log.jsonl) steps"
  [[ $(tail -n 1 trace.json) == "]}" ]] || fail "SIG$signal: the trace is cut"
done

# Nobody reads what the run prints, so no step ends: a second Ctrl-C immediately ends the run.
mkfifo steps
sleep 100 < steps &
reader=$!
rm -f log.jsonl
"$piperun" a.plan --data text.txt --steps 2000000000 --log log.jsonl > steps 2> err.txt &
run=$!
# A thread waits in write(1, ..), as it did the time before.
blocked() { cat /proc/$run/task/*/syscall 2> /dev/null | grep -q '^1 0x1 '; }
lines=-1
until blocked && [[ $lines -gt 0 && $(wc -l < log.jsonl) == "$lines" ]]; do
  lines=$(cat log.jsonl 2> /dev/null | wc -l)
  sleep 0.3
done
kill -INT $run
sleep 0.2
kill -INT $run
ends 15 "stopped in the middle of a step"
kill $reader

# A run that cannot print its last words, as nobody reads them either, ends at the third signal; and
# when Ctrl-C is held: many signals in quick succession are fewer requests, but not one alone.
mkfifo errors
sleep 100 < errors &
reader=$!
exec 3> errors
head -c 65536 /dev/zero >&3
starts_to_run() {
  "$piperun" a.plan --data text.txt --steps 2000000000 --log "$1" > out.txt 2> errors &
  run=$!
  until [[ -s $1 ]]; do sleep 0.05; done
}
is_killed_by() {
  kill -9 $run 2> kill.txt && fail "alive after $1"
  wait $run
  got=$?
  ((got == 130)) || fail "$1: exit $got"
}
starts_to_run third.jsonl
for _ in 1 2 3; do
  kill -0 $run || fail "ended before the third signal"
  kill -INT $run
  sleep 2
done
is_killed_by "the third signal"
starts_to_run held.jsonl
for _ in {1..40}; do
  kill -INT $run 2> kill.txt
  sleep 0.05
done
is_killed_by "a held Ctrl-C"
exec 3>&-
kill $reader

# Before the first step there is nothing to finish.
for signal in INT TERM HUP; do
  "$piperun" large.plan --data text.txt --steps 1 --log new.jsonl > out.txt 2> err.txt &
  run=$!
  until grep -q "Threads:.*[3-9]" /proc/$run/status; do sleep 0.01; done
  kill -$signal $run
  ends 2 "stopped before the first step"
done
exit $((failures > 0))
