#!/bin/bash
# Runs that are killed while they save after every step, and continue under another schedule: they end
# with the bits of an uninterrupted run. And runs that are killed while they export.
#
#   save_kill_test.sh [ROUNDS [SEED]]
set -uo pipefail
source tests/small_run.sh
rounds=${1:-6}
RANDOM=${2:-1}
steps=250
"$pipec" compile --scheme zb-v --devices 2 --microbatches 4 --model config.json -o b.plan || exit 1
"$piperun" a.plan --data text.txt --steps $steps --log whole.jsonl > out.txt || exit 1
# numbers LOG: loss and norm of the last step.
numbers() { tail -n 1 "$1" | sed -E 's/.*("step":[0-9]+,"loss":[^,]*,"grad_norm":[^,]*),.*/\1/'; }
# The ranks may outlive the launcher: MPICH's proxies have their own process groups, and end their
# ranks when mpiexec is gone.
kill_ranks() {
  local process
  for process in $(find /proc -maxdepth 2 -name cwd -lname "$PWD" | cut -d/ -f3); do
    [[ /proc/$process/exe -ef $piperun ]] && kill -KILL "$process"
  done
}
killed=0 late=0
for ((round = 0; round < rounds; ++round)); do
  rm -rf saves
  command=("$piperun" a.plan)
  ((round % 2 == 0)) || command=(mpiexec -n 4 "$piperun" a.plan)
  setsid "${command[@]}" --data text.txt --steps $steps --save saves --save-every 1 > out.txt 2> err.txt &
  group=$!
  await $group compgen -G "saves/step-*"
  sleep "$(printf '0.%03d' $((RANDOM % 900)))"
  pkill -KILL -g "$group" 2> kill.txt && killed=$((killed + 1))
  { kill_ranks; wait "$group"; } 2> kill.txt
  sleep 0.1
  ls -A saves | grep -q "saving" && late=$((late + 1))
  ls -A saves > kept.txt
  last=$(grep -v '^\.' kept.txt | tail -n 1)
  if [[ $last == step-$(printf %08d $steps) ]]; then
    "$piperun" a.plan --data text.txt --steps $steps --save saves --resume > out.txt 2> err.txt &&
      fail "round $round: nothing was left to do"
    continue
  fi
  "$piperun" b.plan --data text.txt --steps $steps --save saves --resume --log on.jsonl > out.txt 2> err.txt ||
    fail "round $round: after $last"
  # One that was whole, and had yet to get its name, has it now.
  unnamed=$(sed -n 's/^\.saving-/|step-/p' kept.txt | tr -d '\n')
  grep -qE "continues from saves/($last$unnamed)$" out.txt ||
    fail "round $round: not from $last: $(head -n 1 out.txt)"
  [[ $(numbers on.jsonl) == "$(numbers whole.jsonl)" ]] ||
    fail "round $round: from $last: $(numbers on.jsonl) instead of $(numbers whole.jsonl)"
  grep -q "saved in saves/step-$(printf %08d $steps)" out.txt || fail "round $round: not saved"
done
# Stopped by a user, the last step is saved by all ranks. (Slow, or it may be over before.)
for command in "$piperun" "mpiexec -n 4 $piperun"; do
  rm -rf saves
  # shellcheck disable=SC2086
  setsid $command a.plan --data text.txt --steps $steps --save saves --net latency=1ms > out.txt 2> err.txt &
  group=$!
  await $group grep -q "^step 5/" out.txt
  pkill -INT -g "$group"
  wait "$group"
  stopped=$(sed -n 's/^piperun: error: stopped after step \([0-9]*\)$/\1/p' err.txt)
  [[ $stopped ]] || fail "$command: not stopped"
  grep -q "^saved in saves/step-$(printf %08d "$stopped")$" out.txt || fail "$command: not saved"
  "$piperun" b.plan --data text.txt --steps $steps --save saves --resume --log on.jsonl > out.txt 2> err.txt &&
    [[ $(numbers on.jsonl) == "$(numbers whole.jsonl)" ]] || fail "$command: after step $stopped"
done
echo "$rounds runs, $killed killed, $late of them within a checkpoint"
((killed > 0)) || fail "none was killed"
# Killed while it exports: the model is there and whole, or is not there, and the next run removes what
# is left.
"$piperun" a.plan --data text.txt --steps 2 --export whole > out.txt 2> err.txt || fail "export"
absent=0 there=0
for ((round = 0; round < rounds; ++round)); do
  rm -rf model
  command=("$piperun" a.plan)
  ((round % 2 == 0)) || command=(mpiexec -n 4 "$piperun" a.plan)
  FSYNC_SLOW=model.unfinished FSYNC_SECONDS=1 LD_PRELOAD=$here/tests/libfaulty_disk.so setsid \
    "${command[@]}" --data text.txt --steps 2 --export model > out.txt 2> err.txt &
  group=$!
  await $group grep -q "^step 2/" out.txt
  sleep "$((RANDOM % 3)).$(printf '%03d' $((RANDOM % 1000)))"
  pkill -KILL -g "$group" 2> kill.txt
  { kill_ranks; wait "$group"; } 2> kill.txt
  if [[ -e model ]]; then
    there=$((there + 1))
    diff -r model whole > diff.txt || fail "round $round: $(cat diff.txt)"
    continue
  fi
  absent=$((absent + 1))
  for ((i = 0; i < 50; ++i)); do  # until the killed ranks are gone
    "$piperun" a.plan --data text.txt --steps 2 --export model > out.txt 2> err.txt && break
    sleep 0.1
  done
  diff -r model whole > diff.txt || fail "round $round: after a killed run: $(cat diff.txt)"
  [[ ! -e model.unfinished ]] || fail "round $round: something is left"
done
echo "$rounds exports killed, $there of them after their end, $absent before"
((absent > 0)) || fail "no export was killed"
exit $((failures > 0))
