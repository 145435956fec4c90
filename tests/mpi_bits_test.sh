#!/bin/bash
# The promise of same_bits_test, with ranks that are processes: five losses and norms have
# the bits of one device, whatever the schedule.
set -euo pipefail
here=$PWD
cd "$(mktemp -d)"
cat > config.json <<END
{"model_type": "gpt2", "vocab_size": 128, "n_positions": 8, "n_embd": 24, "n_layer": 8, "n_head": 3}
END
seq 1 3000 | sed 's/^/the /' > text.txt
compile() {
  "$here/compiler/pipec" compile --scheme "$1" --devices "$2" --microbatches "$3" \
    --model config.json --micro-batch-size 2 --p2p "${4:-async}" -o a.plan
}
status=0
check() {
  compile "$@"
  timeout 120 mpiexec -n "$2" "$here/tests/train_main" a.plan text.txt "$here/runtime" "${5:-shm}" > mpi.txt
  same=yes
  cmp -s one.txt mpi.txt || same=NO status=1
  printf '%-12s %2s %3s %-9s %-9s %s %s\n' "$1" "$2" "$3" "${4:-async}" "${5:-shm}" "$(tail -n 1 mpi.txt | cut -d' ' -f1)" $same
}
echo "scheme        D   M p2p       transport loss of step 5   same bits"
for micros in 4 8; do
  compile gpipe 1 $micros
  "$here/tests/train_main" a.plan text.txt > one.txt
  [[ $(wc -l < one.txt) == 5 ]]
  for scheme in gpipe 1f1b interleaved; do
    for devices in 1 2 4; do check $scheme $devices $micros; done
  done
done
check 1f1b 4 8 blocking
check 1f1b 4 8 async mpi
exit $status
