#!/bin/bash
# The end of a run, with real processes: disks that take eleven seconds or are full, readers that
# leave, ranks that are paused, folders that hosts do not share. Nothing that was trained is lost,
# and what was lost is said.
set -uo pipefail
source tests/small_run.sh
disk=$here/tests/libfaulty_disk.so
"$pipec" compile --scheme 1f1b --devices 2 --microbatches 4 --model config.json -o b.plan || exit 1

# run NAME STATUS COMMAND...: in the folder NAME, in the background; exits with 0 if the command has
# this status. Its output is in NAME/out.txt and NAME/err.txt.
run() {
  local name=$1 status=$2 got
  shift 2
  mkdir -p "$name"
  (cd "$name" && exec "$@" > out.txt 2> err.txt)
  got=$?
  # Where a rank is killed, mpiexec chooses the status.
  [[ $status == error ]] && ((got != 0)) && return
  [[ $status == "$got" ]] || echo "exit $got instead of $status" >> "$name/wrong.txt"
}
names=()
start() {
  names+=("$1")
  run "$@" &
}
train=("$piperun" "$folder/a.plan" --data "$folder/text.txt")
# shows FILE PATTERN: waits until a run has printed it.
shows() {
  local i
  for ((i = 0; i < 500; ++i)); do grep -q "$2" "$1" 2> grep.txt && return; sleep 0.05; done
  fail "$1 never shows $2"
}
mpi=(mpiexec -n 4)

# Nobody reads that a disk is slow, as on a paused terminal: a second Ctrl-C ends the run all the same.
unread() {
  mkdir unread && cd unread && mkfifo full || return
  sleep 100 < full &
  local reader=$! run got i header
  # A pipe that the line before the first step fills.
  header=$("${train[@]}" --steps 1 | sed 1q | wc -c)
  exec 3> full
  head -c $((65536 - header)) /dev/zero >&3
  FSYNC_SECONDS=90 FSYNC_SLOW=.saving-00000001/rank-1 LD_PRELOAD=$disk \
    "${train[@]}" --steps 4 --save saves --save-every 1 --stall-timeout 1 > full 2> err.txt &
  run=$!
  # By then it has said that the disk is slow.
  sleep 4
  kill -INT $run && sleep 0.2 && kill -INT $run
  for ((i = 0; i < 200; ++i)); do kill -0 $run || break; sleep 0.2; done
  kill -KILL $run
  wait $run
  got=$?
  kill $reader
  ((got == 1)) && grep -qx "piperun: error: stopped in the middle of a step" err.txt ||
    echo "exit $got, $(cat err.txt)"
} 2> unread.log
unread > unread.txt &

# An fsync of eleven seconds, in each phase of the end, with more patience and with less.
start export-shm 0 env FSYNC_SECONDS=11 FSYNC_SLOW=model.safetensors LD_PRELOAD="$disk" \
  "${mpi[@]}" "${train[@]}" --steps 4 --export out
start export-mpi 0 env FSYNC_SECONDS=11 FSYNC_SLOW=model.safetensors LD_PRELOAD="$disk" \
  "${mpi[@]}" "${train[@]}" --steps 4 --export out --transport mpi --stall-timeout 4
start part-shm 0 env FSYNC_SECONDS=11 FSYNC_SLOW=.saving-00000002/rank-2 LD_PRELOAD="$disk" \
  "${mpi[@]}" "${train[@]}" --steps 4 --save saves --save-every 2 --stall-timeout 4
start manifest-shm 0 env FSYNC_SECONDS=11 FSYNC_SLOW=.saving-00000004/manifest LD_PRELOAD="$disk" \
  "${mpi[@]}" "${train[@]}" --steps 4 --save saves --stall-timeout 4
start manifest-mpi 0 env FSYNC_SECONDS=11 FSYNC_SLOW=.saving-00000004/manifest LD_PRELOAD="$disk" \
  "${mpi[@]}" "${train[@]}" --steps 4 --save saves --transport mpi --stall-timeout 4 --export out
start threads 0 env FSYNC_SECONDS=11 FSYNC_SLOW=.saving-00000002/rank-1 LD_PRELOAD="$disk" \
  "${train[@]}" --steps 4 --save saves --save-every 2 --stall-timeout 4
# Rank 2 is paused while rank 0 exports, and for some seconds after that.
start paused 0 env FSYNC_SECONDS=3 FSYNC_SLOW=model.safetensors LD_PRELOAD="$disk" \
  "${mpi[@]}" "${train[@]}" --steps 4 --export out --trace trace.json
# And another one for good: that run has failed, and has its model all the same.
start gone error env FSYNC_SECONDS=6 FSYNC_SLOW=model.safetensors LD_PRELOAD="$disk" \
  "${mpi[@]}" "${train[@]}" --steps 4 --export out --stall-timeout 3
# The whole job is stopped for longer than the patience, while rank 0 exports: nobody is to blame.
start suspended 0 env FSYNC_SECONDS=3 FSYNC_SLOW=model.safetensors LD_PRELOAD="$disk" \
  "${mpi[@]}" "${train[@]}" --steps 4 --export out --stall-timeout 3
# all NAME: the processes of the ranks of this run. third NAME: one of them.
all() {
  for process in $(pgrep -f "^$piperun $folder/a.plan"); do
    [[ $(readlink "/proc/$process/cwd") == "$folder/$1" ]] && echo "$process"
  done
}
third() { all "$1" | sed -n 3p; }
(
  shows paused/out.txt "^step 4/4"
  shows gone/out.txt "^step 4/4"
  sleep 1
  shows suspended/out.txt "^step 4/4"
  mapfile -t ranks < <(third paused; all suspended)
  kill -STOP "${ranks[@]}" "$(third gone)" && sleep 8 && kill -CONT "${ranks[@]}"
) 2> paused.txt &
wait
for name in "${names[@]}"; do
  cp "$name/err.txt" err.txt
  [[ ! -e $name/wrong.txt ]] || fail "$name: $(cat "$name/wrong.txt"): $(tail -n 2 "$name/out.txt")"
done
for name in export-shm export-mpi manifest-mpi paused suspended gone; do
  [[ $(ls "$name/out") == "config.json"$'\n'"model.safetensors" ]] || fail "$name: no model"
  cmp -s "$name/out/model.safetensors" export-shm/out/model.safetensors || fail "$name: another model"
done
[[ -s unread.txt ]] && fail "unread: $(cat unread.txt)"
[[ -s paused.txt ]] && fail "paused: $(cat paused.txt)"
for name in part-shm manifest-shm manifest-mpi threads; do
  [[ -e $name/saves/step-00000004/manifest.json ]] || fail "$name: not saved"
done
# What takes long is said, once, with its file.
says() {
  (($(grep -c "has waited 4 s for $2" "$1/out.txt") == 1)) || fail "$1: $(grep waited "$1/out.txt")"
}
grep -q "^piperun: error: rank [0-3]: no answer from rank [0-3] for 5 s$" gone/err.txt || fail "gone: unsaid"
says export-mpi "fsync of out/"
says part-shm "fsync of saves/.saving-00000002/rank-2"
says manifest-shm "fsync of saves/.saving-00000004"
says threads "fsync of saves/.saving-00000002/rank-1"

# A disk that is full, at one rank, while step 2 is saved: said, given up, and the next is whole.
start full-then-not 0 env WRITE_FULL=.saving-00000002/rank-1 LD_PRELOAD="$disk" \
  "${mpi[@]}" "${train[@]}" --steps 4 --save saves --save-every 2
start full-at-last 1 env WRITE_FULL=.saving-00000004/rank-1 LD_PRELOAD="$disk" \
  "${mpi[@]}" "${train[@]}" --steps 4 --save saves --save-every 2 --export out
wait
for name in full-then-not full-at-last; do
  cp "$name/err.txt" err.txt
  [[ ! -e $name/wrong.txt ]] || fail "$name: $(cat "$name/wrong.txt")"
  grep -q "^--save: step [24] is not saved: .*/rank-1: cannot be written: No space left on device$" \
    "$name/out.txt" || fail "$name: not said"
done
[[ $(ls -A full-then-not/saves) == ".lock"$'\n'"step-00000004" ]] || fail "full-then-not: $(ls -A full-then-not/saves)"
[[ $(ls -A full-at-last/saves) == ".lock"$'\n'"step-00000002" ]] || fail "full-at-last: $(ls -A full-at-last/saves)"
[[ -e full-at-last/out/model.safetensors ]] || fail "full-at-last: no model"
grep -q "^piperun: error: --save: step 4 is not saved: .*No space left on device$" full-at-last/err.txt ||
  fail "full-at-last: $(cat full-at-last/err.txt)"

# The name of an export that appears during the training.
rm -f out.txt
"${train[@]}" --export late --steps 1000 > out.txt 2> err.txt &
shows out.txt "^step 2/"
mkdir late && touch late/mine
wait $!
(($? == 1)) || fail "an export whose name appears"
[[ $(ls late) == mine && -e late-2/model.safetensors && ! -e late.unfinished ]] || fail "late: $(ls)"
grep -q "^piperun: error: late: has appeared during the training (the model is in late-2)$" err.txt || fail "late"
rm out.txt
# Two runs with one export; and what a killed run has left is replaced, but nothing else.
"${train[@]}" --export one --steps 2000000 > out.txt 2> err.txt &
shows out.txt "^step 1/"
"${train[@]}" --steps 4 --export one > other.txt 2> err.txt && fail "two runs export into one folder"
grep -q "one: another run is writing it (another folder)$" err.txt || fail "two exports"
kill -KILL $! && wait $! 2> kill.txt
[[ -e one.unfinished ]] || fail "nothing was left"
"${train[@]}" --steps 4 --export one > out.txt 2> err.txt && [[ -e one/config.json && ! -e one.unfinished ]] ||
  fail "after a killed run"
mkdir two.unfinished && touch two.unfinished/mine
"${train[@]}" --steps 4 --export two > out.txt 2> err.txt && fail "into a user's folder"
[[ -e two.unfinished/mine ]] || fail "a user's file is gone"

# A file system without locks is not another run.
NO_FLOCK=1 LD_PRELOAD=$disk "${train[@]}" --steps 2 --save unlocked --export free --log free.jsonl \
  > out.txt 2> err.txt || fail "a disk without locks"

# Reports that nobody takes any more.
"${train[@]}" --steps 40 --save saves 2> err.txt | head -n 1 > out.txt
((PIPESTATUS[0] == 1)) || fail "a reader that leaves"
[[ -e saves/step-00000040/manifest.json ]] || fail "a reader that leaves: $(ls saves)"
grep -q "^piperun: error: standard output: cannot be written" err.txt || fail "a reader that leaves: unsaid"
rm -rf saves
mkfifo steps.jsonl
head -n 1 steps.jsonl > line.txt &
exec 9> steps.jsonl  # waits for the reader
"${train[@]}" --steps 40 --save saves --log steps.jsonl --export logged > out.txt 2> err.txt 9>&-
(($? == 1)) || fail "a log's reader that leaves"
exec 9>&-
[[ $(wc -l < err.txt) == 1 ]] && grep -q "steps.jsonl: cannot be written: Broken pipe" err.txt || fail "broken pipe"
[[ -e saves/step-00000040/manifest.json && -e logged/config.json ]] || fail "lost with its log"
grep -q "^step 40/40" out.txt || fail "it did not train on"
"${train[@]}" --steps 4 --log /dev/full > out.txt 2> err.txt && fail "a full log"
grep -q "/dev/full: cannot be written: No space left on device" err.txt || fail "a full log: unsaid"

# A log goes on where the checkpoint was.
rm -rf saves
"${train[@]}" --steps 6 --log whole.jsonl > out.txt 2> err.txt || fail "whole"
"${train[@]}" --steps 4 --save saves --log log.jsonl > out.txt 2> err.txt || fail "first half"
tail -n 1 log.jsonl | sed 's/"step":4/"step":5/' >> log.jsonl  # of a run that was killed later,
printf '{"step":6,"lo' >> log.jsonl                          # in the middle of a line
"${train[@]}" --steps 6 --save saves --resume --log log.jsonl > out.txt 2> err.txt || fail "second half"
numbers() { sed -E 's/("loss":[^,]*,"grad_norm":[^,]*),.*/\1/' "$1"; }
[[ $(numbers log.jsonl) == "$(numbers whole.jsonl)" ]] || fail "a log that goes on: $(numbers log.jsonl)"
# Outputs onto what the run reads.
for file in saves/step-00000006/rank-1 saves/step-00000006/manifest.json; do
  before=$(md5sum $file)
  for option in --log --trace; do
    "${train[@]}" --steps 8 --save saves --resume $option $file > out.txt 2> err.txt && fail "$option $file"
    grep -q "^piperun: error: $option: $file is an input of this run (another file)$" err.txt || fail "$option"
  done
  [[ $(md5sum $file) == "$before" ]] || fail "$file is destroyed"
done

# Parts of a checkpoint that a process may not open are no damage.
(ulimit -n 20; "${train[@]}" --steps 8 --save saves --resume) > out.txt 2> err.txt && fail "20 files"
grep -q "^piperun: error: --resume: saves/step-00000006: has 4 parts, and this process may open 20 files (ulimit -n 68)$" \
  err.txt || fail "20 files"
[[ -e saves/step-00000006/rank-3 ]] || fail "a checkpoint is gone"

# A folder of its own for each host, under one name.
rm -rf saves
mkdir -p saves
if unshare -m true 2> err.txt; then
  mpiexec -n 1 "$piperun" b.plan --data text.txt --steps 4 --save saves : -n 1 unshare -m bash -c \
    "mount -t tmpfs none '$folder/saves' && exec '$piperun' b.plan --data text.txt --steps 4 --save saves" \
    > out.txt 2> err.txt && fail "two folders"
  grep -q "^piperun: error: --save: rank 1 has a different one from rank 0 (one that all hosts share)$" err.txt ||
    fail "two folders"
  grep -q "^step" out.txt && fail "two folders: it trained"
  mkdir place
  mpiexec -n 1 "$piperun" b.plan --data text.txt --steps 4 --export place/model : -n 1 unshare -m bash -c \
    "mount -t tmpfs none '$folder/place' && exec '$piperun' b.plan --data text.txt --steps 4 --export place/model" \
    > out.txt 2> err.txt || fail "an export on one host"
  grep -q "^place/model will be on rank 0's host alone$" out.txt && [[ -e place/model/config.json ]] ||
    fail "an export on one host: unsaid"
else
  echo "SKIPPED: no mount namespaces here"
fi
exit $((failures > 0))
