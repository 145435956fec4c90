#!/bin/bash
# Limits of threads, files and memory that are lowered after the first step: the run ends well, with its
# model and its checkpoint, or, where a checkpoint cannot be written, says so and has its model.
set -uo pipefail
source tests/small_run.sh
"$pipec" compile --scheme 1f1b --devices 2 --microbatches 4 --model config.json -o b.plan || exit 1
prlimit --version > out.txt 2> err.txt || { echo "SKIPPED: no prlimit here"; exit 0; }

ranks() { pgrep -f "^$piperun $folder/b.plan.* --export $1/"; }
# lowered NAME STATUS LIMIT LAUNCHER...: LIMIT is an option of prlimit, where {} stands for what the rank
# has of it, or threads. (Root may start as many as it likes.)
lowered() {
  local name=$1 status=$2 limit=$3 rank used got
  shift 3
  mkdir "$name"
  THREADS_FULL=$folder/$name/no-threads LD_PRELOAD=$here/tests/libfaulty_disk.so \
    "$@" "$piperun" "$folder/b.plan" --data text.txt --steps 600 --export "$name/out" --save "$name/saves" \
    --log "$name/log" --trace "$name/trace" --profile "$name/profile" --net latency=100us --stall-timeout 30 \
    > "$name/out.txt" 2> err.txt < /dev/null &
  local run=$!
  until grep -qs "^step 2/" "$name/out.txt"; do
    kill -0 $run 2> kill.txt || break
    sleep 0.05
  done
  [[ $limit != threads ]] || touch "$name/no-threads"
  for rank in $(ranks "$name"); do
    [[ $limit != threads ]] || break
    used=0
    case $limit in
      --as*) used=$(sed -nE 's/^VmSize:[[:space:]]*([0-9]+) kB/\1/p' "/proc/$rank/status")000 ;;
    esac
    prlimit --pid "$rank" "${limit//\{\}/$used}" 2> kill.txt || echo "not lowered: $(cat kill.txt)"
  done
  grep -q "^step 600/" "$name/out.txt" && fail "$name: too late"
  wait $run
  got=$?
  ((got == status)) || fail "$name: exit $got: $(tail -n 1 "$name/out.txt")"
  [[ -e $name/out/model.safetensors ]] || fail "$name: no model"
  if ((status == 0)); then
    [[ ! -s err.txt && -e $name/saves/step-00000600/manifest.json && -s $name/trace && -s $name/profile ]] ||
      fail "$name: something is missing"
    (($(wc -l < "$name/log") == 600)) || fail "$name: a log of $(wc -l < "$name/log") lines"
  else
    [[ $(grep -c "^piperun" err.txt) == 1 ]] || fail "$name: not one line"
  fi
}
for launcher in "env" "mpiexec -n 2"; do
  kind=${launcher%% *}
  # shellcheck disable=SC2086
  {
    lowered threads-$kind 0 threads $launcher
    lowered files-$kind 0 --nofile=20 $launcher
    lowered no-files-$kind 1 --nofile=0 $launcher
    lowered memory-$kind 0 "--as={}" $launcher
  }
done
rm -rf "$folder"
exit $((failures > 0))
