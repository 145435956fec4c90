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

# Nobody reads what the run prints: it trains on, and ends soon when it is asked to.
mkfifo steps
sleep 100 < steps &
reader=$!
rm -f log.jsonl
"$piperun" a.plan --data text.txt --steps 2000000000 --log log.jsonl > steps 2> err.txt &
run=$!
# More than the pipe and the queue can hold.
until [[ -s log.jsonl ]] && (($(wc -l < log.jsonl) > 10000)); do
  kill -0 $run 2> kill.txt || { fail "the run does not go on"; break; }
  sleep 0.3
done
kill -INT $run
ends 10 "stopped after step [0-9]+"
kill $reader
# Somebody reads again: what is missing is said, and counted.
mkfifo slow
(sleep 3; cat > seen.txt) < slow &
reader=$!
"$piperun" a.plan --data text.txt --steps 12000 --log log.jsonl > slow 2> err.txt || fail "a slow reader"
wait $reader
missing=$(sed -nE 's/^\(([0-9]+) lines are missing here: nobody read them\)$/\1/p' seen.txt | awk '{ n += $1 } END { print n + 0 }')
steps=$(grep -c "^step " seen.txt)
((steps + missing >= 12000 && steps + missing < 12010)) || fail "$steps lines, $missing missing"
tail -n 1 seen.txt | grep -q "hidden behind compute" || fail "the last line is missing"

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
  "$piperun" large.plan --data text.txt --bytes --steps 1 --log new.jsonl > out.txt 2> err.txt &
  run=$!
  until grep -q "Threads:.*[3-9]" /proc/$run/status; do sleep 0.01; done
  kill -$signal $run
  ends 2 "stopped before the first step"
done
exit $((failures > 0))
