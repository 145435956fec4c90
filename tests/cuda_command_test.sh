#!/bin/bash
# piperun --backend cuda from the command line, with its libraries over fakes (fake_plugin.cc) beside
# it: ranks that are threads or processes train as on a CPU, and all of them with the same bits;
# cuBLASLt's algorithms are timed and kept; what is refused is named in one line.
set -uo pipefail
source tests/small_run.sh
mkdir programs
cp -L "$piperun" "$here/runtime/libpiperun_mpi.so" programs/
cp -L "$here/tests/libfake_plugin.so" programs/libpiperun_cuda.so
cp -L "$here/tests/libfake_plugin.so" programs/libpiperun_nccl.so
gpu_run=$PWD/programs/piperun
"$pipec" compile --scheme 1f1b --devices 2 --microbatches 4 --model config.json -o a.plan ||
  fail "no plan"

# losses [LAUNCHER...]: those of a run, a line a step.
losses() {
  rm -f log
  timeout 120 "$@" --data text.txt --steps 3 --log log > out.txt 2> err.txt || fail "$*"
  sed -E 's/.*"loss":([^,]*),"grad_norm":([^,]*),.*/\1 \2/' log
}

losses "$piperun" a.plan > cpu.txt
losses "$gpu_run" a.plan --backend cuda > threads.txt
[[ $(wc -l < threads.txt) == 3 ]] || fail "no losses"
paste cpu.txt threads.txt | awk '
  { for (i = 1; i <= 2; ++i) { d = ($i - $(i + 2)) / $i; if (d > 1e-5 || d < -1e-5) far = 1 } }
  END { exit far }' || fail "not those of a CPU: $(paste cpu.txt threads.txt)"
for transport in shm mpi; do
  FAKE_GPUS=2 losses mpiexec -n 2 "$gpu_run" a.plan --backend cuda --transport $transport > processes.txt
  cmp threads.txt processes.txt || fail "$transport: $(paste threads.txt processes.txt)"
done
grep -q "starting kernels" out.txt || fail "no time of starting kernels"

"$gpu_run" a.plan --backend cuda --tune-gemms gemms > out.txt 2> err.txt || fail "--tune-gemms"
losses "$gpu_run" a.plan --backend cuda --gemms gemms > tuned.txt
paste cpu.txt tuned.txt | awk '{ d = ($1 - $3) / $1; if (d > 1e-5 || d < -1e-5) far = 1 }
  END { exit far }' || fail "tuned: $(paste cpu.txt tuned.txt)"

"$pipec" compile --scheme 1f1b --devices 2 --microbatches 4 --model config.json --dtype bf16 \
  -o bf16.plan || fail "no plan of bf16"
losses "$gpu_run" bf16.plan --backend cuda > nearest.txt
losses "$gpu_run" bf16.plan --backend cuda --weight-rounding stochastic > stochastic.txt
cmp -s nearest.txt stochastic.txt && fail "--weight-rounding changes nothing"

# refused PATTERN COMMAND...
refused() {
  local pattern=$1
  shift
  timeout 60 "$@" --data text.txt --backend cuda > out.txt 2> err.txt
  local got=$?
  [[ $got == 2 ]] || fail "$*: exit $got"
  [[ $(wc -l < err.txt) == 1 ]] && grep -qE "^piperun: error: $pattern$" err.txt || fail "$*"
}
refused "--transport: ranks 0 and 1 have one GPU, .*" mpiexec -n 2 "$gpu_run" a.plan --transport nccl
refused "--transport: 'nccl' without mpiexec .*" "$gpu_run" a.plan --transport nccl
refused "--weight-rounding: stochastic \(a.plan has activations of fp32: .*" \
  "$gpu_run" a.plan --weight-rounding stochastic
rm programs/libpiperun_nccl.so
refused "--transport nccl: not in this build .*" mpiexec -n 2 "$gpu_run" a.plan --transport nccl
# Threads need neither NCCL nor MPI.
rm programs/libpiperun_mpi.so
losses "$gpu_run" a.plan --backend cuda > alone.txt
cmp threads.txt alone.txt || fail "alone: $(paste threads.txt alone.txt)"
rm programs/libpiperun_cuda.so
refused "--backend cuda: not in this build .*" "$gpu_run" a.plan

exit $((failures > 0))
