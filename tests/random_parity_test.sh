#!/bin/bash
# A few random configurations of all families compared with Hugging Face transformers in the first step:
# loss and gradient norm in fp64, and eight times the error of fp32. tests/reference/random_parity
# made them, and tries a thousand.
set -uo pipefail
pipec=$PWD/compiler/pipec piperun=$PWD/runtime/piperun
folder=$(mktemp -d)
failures=0
for place in tests/reference/random/*; do
  read -ra options < "$place/options"
  "$pipec" compile "${options[@]}" --model "$place/config.json" -o "$folder/plan" &&
    "$piperun" "$folder/plan" --data "$place/data.bin" --weights "$place" --steps 1 \
      --log "$folder/log" > "$folder/out.txt" || failures=$((failures + 1))
  sed -E 's/.*"loss":([^,]*),"grad_norm":([^,]*),.*/\1\n\2/' "$folder/log" |
    paste -d ' ' - "$place/expected" |
    awk -v place="$place" '
      {error = $1 - $2; if (error < 0) error = -error}
      {printf "%s: %s instead of %s: %.3g of what is allowed\n", place, $1, $2, error / $3}
      !(error <= $3) {bad = 1}
      END {exit bad || NR != 2}' || failures=$((failures + 1))
done
((failures == 0)) || echo "FAILED: $failures"
exit $((failures > 0))
