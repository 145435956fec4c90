#!/bin/bash
# piperun --backend cuda from the command line, with its libraries over fakes (fake_plugin.cc) next
# to it: ranks that are threads or processes train as on a CPU, and all of them with the same bits;
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

# losses [LAUNCHER...]: those of a run, one line per step.
losses() {
  rm -f log
  [[ $* == *--steps* ]] || set -- "$@" --steps 3
  timeout 120 "$@" --data text.txt --log log > out.txt 2> err.txt || fail "$*"
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
# Threads over NCCL, each with a GPU of its own, or, where NCCL is told to, with the same.
FAKE_GPUS=2 losses "$gpu_run" a.plan --backend cuda --transport nccl > nccl.txt
cmp threads.txt nccl.txt || fail "nccl: $(paste threads.txt nccl.txt)"
NCCL_MULTI_RANK_GPU_ENABLE=1 losses "$gpu_run" a.plan --backend cuda --transport nccl > nccl.txt
cmp threads.txt nccl.txt || fail "nccl on one GPU: $(paste threads.txt nccl.txt)"
awk '/starting kernels/ { seen = 1; for (i = 2; i <= NF; ++i) if ($i == "%" && $(i - 1) > 100) exit 1 }
  END { exit !seen }' out.txt || fail "parts of time: $(cat out.txt)"

# A model saved, resumed and exported on a GPU is the one that a CPU reads.
validate=(--val-data text.txt --val-batches 2)
val_loss() { sed -nE '$s/.*"val_loss":([^,}]*).*/\1/p' log; }
losses "$gpu_run" a.plan --backend cuda --steps 4 --export whole > whole.txt
losses "$gpu_run" a.plan --backend cuda --steps 2 --save saved > first.txt
losses "$gpu_run" a.plan --backend cuda --steps 4 --save saved --resume --export model \
  "${validate[@]}" > rest.txt
val_loss > gpu.txt
cat first.txt rest.txt | cmp whole.txt - || fail "resumed: $(cat first.txt rest.txt)"
cmp whole/model.safetensors model/model.safetensors || fail "another model"
losses "$piperun" a.plan --weights model --bytes --steps 1 --lr 0 "${validate[@]}" > /dev/null
val_loss | paste gpu.txt - | awk '{ d = ($1 - $2) / $1; exit !(d < 1e-5 && d > -1e-5) }' ||
  fail "exported: $(val_loss) and $(cat gpu.txt)"

"$gpu_run" a.plan --backend cuda --tune-gemms gemms > out.txt 2> err.txt || fail "--tune-gemms"
losses "$gpu_run" a.plan --backend cuda --gemms gemms > tuned.txt
paste cpu.txt tuned.txt | awk '{ d = ($1 - $3) / $1; if (d > 1e-5 || d < -1e-5) far = 1 }
  END { exit far }' || fail "tuned: $(paste cpu.txt tuned.txt)"

"$pipec" compile --scheme 1f1b --devices 2 --microbatches 4 --model config.json --dtype bf16 \
  -o bf16.plan || fail "no plan of bf16"
losses "$gpu_run" bf16.plan --backend cuda > nearest.txt
losses "$gpu_run" bf16.plan --backend cuda --weight-rounding stochastic > stochastic.txt
cmp -s nearest.txt stochastic.txt && fail "--weight-rounding changes nothing"

# A GELU apart from its products has other bits, as on the fake.
losses "$gpu_run" bf16.plan --backend cuda --cuda-experiments gelu=separate,poll=50 > separate.txt
cmp -s nearest.txt separate.txt && fail "--cuda-experiments gelu=separate changes nothing"
losses "$gpu_run" bf16.plan --backend cuda --cuda-experiments poll=1,gelu=fused > fused.txt
cmp nearest.txt fused.txt || fail "--cuda-experiments gelu=fused changes something"
FAKE_REFUSES=1 losses "$gpu_run" a.plan --backend cuda > refused.txt
(($(grep -c "^cuBLASLt refuses '.*' (.*): computed by piperun's own kernel$" out.txt) > 4)) ||
  fail "no note of what is refused: $(cat out.txt)"
paste cpu.txt refused.txt | awk '{ d = ($1 - $3) / $1; if (d > 1e-5 || d < -1e-5) far = 1 }
  END { exit far }' || fail "refused: $(paste cpu.txt refused.txt)"

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
refused "--transport: ranks 0 and 1 have one GPU, .*" "$gpu_run" a.plan --transport nccl
CUDA_DEVICE_MAX_CONNECTIONS=12 refused "a.plan: .* device 0 needs 16 hardware queues of 12: .*" \
  mpiexec -n 2 "$gpu_run" a.plan --transport nccl
sed 's/"n_embd": 16/"n_embd": 768/; s/"n_head": 2/"n_head": 1/' config.json > wide.json
"$pipec" compile --scheme 1f1b --devices 2 --microbatches 4 --model wide.json -o wide.plan ||
  fail "no wide plan"
refused "wide.plan: heads of 768 numbers with --backend cuda .at most 256." "$gpu_run" wide.plan
for option in --log --trace; do
  refused "$option: gemms is an input of this run .*" "$gpu_run" a.plan --gemms gemms $option gemms
done
refused "--tune-gemms: text.txt is an input of this run .*" "$gpu_run" a.plan --tune-gemms text.txt
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
