#!/bin/bash
# The promise of same_bits_test, with ranks that are processes: five losses and norms have
# the bits of one device, whatever the schedule. And a sample of training_grid_test: plans with
# copies, or with older weights, have the bits that they have with ranks that are threads.
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

# sample RANKS OPTIONS...: processes against threads.
sample() {
  local ranks=$1
  shift
  "$here/compiler/pipec" compile "$@" --model config.json --micro-batch-size 2 -o a.plan
  "$here/tests/train_main" a.plan text.txt > threads.txt
  [[ $(wc -l < threads.txt) == 5 ]]
  timeout 120 mpiexec -n "$ranks" "$here/tests/train_main" a.plan text.txt "$here/runtime" shm > mpi.txt
  same=yes
  cmp -s threads.txt mpi.txt || same=NO status=1
  printf '%-60s %s %s\n' "$*" "$(tail -n 1 mpi.txt | cut -d' ' -f1)" $same
}
echo "options                                                      loss of step 5   same bits"
sample 4 --scheme chimera --devices 4 --microbatches 8
sample 2 --scheme dualpipe --devices 2 --microbatches 8
sample 4 --scheme 1f1b --devices 2 --microbatches 4 --dp 2 --zero 1
sample 4 --scheme fold-aiao --devices 2 --microbatches 4 --dp 2
cat > config.json <<END
{"model_type": "llama", "vocab_size": 129, "max_position_embeddings": 8, "hidden_size": 24,
 "num_hidden_layers": 4, "num_attention_heads": 6, "num_key_value_heads": 2, "intermediate_size": 36}
END
sample 2 --scheme gpipe --devices 1 --microbatches 4 --tp 2
three_ways=(--scheme zb-v --devices 2 --microbatches 4 --tp 2 --sequence-parallel --dp 2 --zero 1)
sample 8 "${three_ways[@]}"
cp threads.txt one_order.txt
sample 8 "${three_ways[@]}" --rank-order tp,dp,pp
cmp one_order.txt threads.txt || status=1
cat > config.json <<END
{"model_type": "gpt2", "vocab_size": 128, "n_positions": 8, "n_embd": 24, "n_layer": 8, "n_head": 3}
END
sed -i 's/}/, "tie_word_embeddings": false}/' config.json
sample 2 --scheme pipedream --devices 2 --microbatches 4
exit $status
