#!/bin/bash
# Time and memory of what grows with the input, each for two sizes, so that growth shows: twice the
# size should take little more than twice as long.
#
#   import   lists of as many stages on two devices, each stage on another one than the stage before
#   why      simulate --why of as many micro-batches on two devices, backwards last in, first out
#   tune     a LLaMA of 80 layers and as many sequences on 96 devices
#   trace    as many steps in simulate --trace, from a file and through a pipe
#   header   of a safetensors file of as many tensors, which a run then finds to lack the model's
#
#   tools/bench //tools:bench_large
set -euo pipefail

pipec=$PWD/bazel-bin/compiler/pipec piperun=$PWD/bazel-bin/runtime/piperun
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"

# lists STAGES MICRO-BATCHES: torch-csv of two devices.
lists() {
  awk -v stages="$1" -v micros="$2" 'BEGIN {
    for (d = 0; d < 2; ++d) {
      for (m = 0; m < micros; ++m) for (s = d; s < stages; s += 2) printf "%dF%d,", s, m
      for (m = micros - 1; m >= 0; --m) for (s = stages - 2 + d; s >= 0; s -= 2) printf "%dB%d,", s, m
      printf "\n"
    }}'
}

# measure NAME SIZE COMMAND...: a row. What fails, fails as it should.
measure() {
  python3 - "$@" <<'END'
import resource, subprocess, sys, time
name, size, *command = sys.argv[1:]
start = time.monotonic()
subprocess.run(command, stdout=subprocess.DEVNULL, stderr=open("err.txt", "w"))
seconds = time.monotonic() - start
peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024
print(f"{name:<10} {size:>10} {seconds:8.2f} s {peak:8.0f} MiB", flush=True)
END
}

printf '%-10s %10s %10s %12s\n' what size time 'peak memory'
for stages in 100000 200000; do
  lists $stages 1 >stages.csv
  measure import $stages "$pipec" import -q stages.csv -o stages.plan
done
for micros in 50000 100000; do
  lists 2 $micros >micros.csv
  "$pipec" import -q micros.csv -o micros.plan
  measure why $micros "$pipec" simulate -q --why micros.plan
done
echo '{"model_type":"llama","num_hidden_layers":80,"hidden_size":4096,"intermediate_size":11008,
"num_attention_heads":32,"num_key_value_heads":32,"vocab_size":32000,
"max_position_embeddings":4096,"tie_word_embeddings":false}' >config.json
for batch in 9216 18432; do
  measure tune $batch "$pipec" tune -q --model config.json --machine h100-sxm --devices 96 \
    --global-batch-size $batch
done

"$pipec" compile --scheme 1f1b --devices 4 --microbatches 200 --costs f=1ms,b=2ms -q -o trace.plan
"$pipec" simulate trace.plan --format chrome-trace -q >step.json
for steps in 280 560; do
  awk -v steps="$steps" '
    /^{"ph":"X"/ {sub(/,$/, ""); rows[n++] = $0; next}
    !/^]/ {print}
    END {
      for (step = 1; step <= steps; ++step)
        for (i = 0; i < n; ++i) {
          row = rows[i]
          sub(/"step":1/, "\"step\":" step, row)
          print row (step < steps || i + 1 < n ? "," : "")
        }
      print "]}"
    }' step.json >trace.json
  measure trace "$steps" "$pipec" simulate trace.plan --trace trace.json -q
  measure 'trace, -' "$steps" bash -c 'cat trace.json | exec "$1" simulate trace.plan --trace - -q' bash "$pipec"
done

cat >config.json <<END
{"model_type": "gpt2", "vocab_size": 256, "n_positions": 16, "n_embd": 8, "n_layer": 2, "n_head": 2}
END
seq 1 5000 >text.txt
"$pipec" compile --scheme 1f1b --devices 1 --microbatches 1 --model config.json -q -o run.plan
for tensors in 800000 1600000; do
  awk -v count="$tensors" 'BEGIN {
    printf "{"
    for (i = 0; i < count; ++i)
      printf "%s\"t%07d\":{\"dtype\":\"F32\",\"shape\":[0,4],\"data_offsets\":[0,0]}", (i > 0 ? "," : ""), i
    printf "}"
  }' >header
  bytes=$(stat -c %s header)
  for shift in 0 8 16 24 32 40 48 56; do printf "\\x$(printf %02x $((bytes >> shift & 255)))"; done |
    cat - header >model.safetensors
  measure header "$tensors" "$piperun" run.plan --data text.txt --bytes --steps 1 --weights model.safetensors
  grep -q "is missing" err.txt
done
