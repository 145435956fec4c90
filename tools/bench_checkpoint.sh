#!/bin/bash
# Whether checkpoints pay: GPT-2 of 30 million parameters, two ranks, a memory limit that plain
# 1F1B exceeds. The options within the limit, in turn, compared with plain 1F1B without a limit:
#
#   fit-memory   recompute what the limit requires, where it costs least
#   mario        recompute all that can be hidden
#   half         plain 1F1B, micro-batches of half the size and twice as many
#
# The limit is what mario's fullest rank needs, plus half a percent. Half the size costs no arithmetic
# and even shortens the bubbles; its cost is that kernels are slower on few tokens: a weight gradient is
# read and written once for each micro-batch. So which one wins depends on the tokens per micro-batch.
#
#   tools/bench //tools:bench_checkpoint
set -euo pipefail

pipec=bazel-bin/compiler/pipec
piperun=bazel-bin/runtime/piperun
rounds=3
steps=5
devices=2
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

LC_ALL=C find /usr/share/common-licenses -type f -print0 | sort -z | xargs -0 cat >"$folder/text"
cat >"$folder/model.json" <<END
{"model_type": "gpt2", "vocab_size": 8192, "n_positions": 256, "n_embd": 512, "n_layer": 8,
 "n_head": 8, "embd_pdrop": 0.1, "resid_pdrop": 0.1, "attn_pdrop": 0.1}
END

# name, micro-batch size, micro-batches, more options
plan() {
  "$pipec" compile --scheme 1f1b --devices "$devices" --microbatches "$3" \
    --model "$folder/model.json" --micro-batch-size "$2" --seq-length "$tokens" "${@:4}" \
    -o "$folder/$1" 2>"$folder/errors" || { cat "$folder/errors" >&2 && return 1; }
}
# The fullest rank's bytes.
peak() {
  "$pipec" simulate "$folder/$1" --format json | grep -oE '"peak_bytes": *[0-9]+' |
    grep -oE '[0-9]+' | sort -n | tail -n 1
}

compare() {
  local batch=$1 tokens=$2 micros=$3 limit
  plan plain "$batch" "$micros"
  plan mario "$batch" "$micros" --passes mario
  limit=$(($(peak mario) * 1005 / 1000))
  plan fit-memory "$batch" "$micros" --memory-limit "${limit}B"
  plan half $((batch / 2)) $((micros * 2))
  echo "B=$batch, T=$tokens, $micros micro-batches ($((batch * tokens)) tokens each)," \
    "limit $limit bytes of $(peak plain)"
  for ((round = 0; round < rounds; ++round)); do
    for name in plain fit-memory mario half; do
      "$piperun" "$folder/$name" --data "$folder/text" --bytes --steps $((steps + 1)) --log "$folder/log" >/dev/null
      sed -E '1d; s/.*"step_seconds":([0-9.e-]+).*/\1/' "$folder/log" | sort -g |
        awk -v name="$name" -v peak="$(peak "$name")" '
          {t[NR] = $1} END {print name, t[1], t[int((NR + 1) / 2)], peak}'
    done
  done | awk -v tokens=$((batch * tokens * micros)) -v limit="$limit" '
    NR <= 4 {order[NR] = $1}
    {peak[$1] = $4
     if (!($1 in best) || $2 < best[$1]) best[$1] = $2
     if (!($1 in median) || $3 < median[$1]) median[$1] = $3}
    END {
      for (k = 1; k <= 4; ++k) {
        n = order[k]
        printf "  %-10s best %.4f s, best median %.4f s: %8.0f tokens/s, %.3f of plain; peak %d bytes%s\n",
          n, best[n], median[n], tokens / best[n], best["plain"] / best[n], peak[n],
          (peak[n] > limit ? ", over the limit" : "")}
      printf "  fit-memory against half: best %.3f times, median %.3f times\n",
        best["half"] / best["fit-memory"], median["half"] / median["fit-memory"]}'
}

# micro-batch size, tokens, micro-batches
compare 2 16 4
compare 2 64 4
compare 2 128 4
