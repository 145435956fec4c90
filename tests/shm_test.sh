#!/bin/bash
# A /dev/shm of every size from too small to enough: a run of four ranks is refused before its first
# step, with one line, or ends well, with its model. And one that somebody fills after the first step.
#
#   shm_test.sh [STEP [RANKS]]     kilobytes from one size to the next
set -uo pipefail
source tests/small_run.sh
step=${1:-100} ranks=${2:-2}
"$pipec" compile --scheme 1f1b --devices "$ranks" --microbatches 4 --model config.json -o b.plan || exit 1
if ! unshare -m true 2> err.txt; then
  echo "SKIPPED: no mount namespaces here"
  exit 0
fi
# with SIZE COMMAND...: in a namespace whose /dev/shm has this size.
with() {
  local size=$1
  shift
  unshare -m bash -c 'mount -t tmpfs -o size='"$size"'k none /dev/shm && exec "$@"' - "$@"
}
train=(timeout 60 mpiexec -n "$ranks" "$piperun" b.plan --data text.txt --steps 3 --stall-timeout 20)
refused=0 well=0
for ((size = step; well < 5 && failures < 3; size += step)); do
  rm -rf out
  with "$size" "${train[@]}" --export out > out.txt 2> err.txt < /dev/null
  got=$?
  if ((got == 0)); then
    well=$((well + 1))
    [[ -e out/model.safetensors ]] || fail "$size kB: exit 0 without a model"
    continue
  fi
  refused=$((refused + 1))
  ((got != 124)) || fail "$size kB: hangs"
  grep -q "^step" out.txt && fail "$size kB: exit $got after a step: $(tail -n 2 out.txt)"
  [[ ! -e out && ! -e out.unfinished ]] || fail "$size kB: something is left"
  ((well == 0)) || fail "$size kB: refused, but less was enough"
done
echo "$refused sizes refused, enough with $((size - 5 * step)) kB"
((refused > 0)) || fail "the least was enough"

cat > fill.sh << 'END'
rm -f out.txt
"$@" > out.txt 2> err.txt < /dev/null &
until grep -qs "^step 1/" out.txt; do sleep 0.05; done
dd if=/dev/zero of=/dev/shm/other bs=64k 2> dd.txt
wait $!
END
rm -rf out
with 64000 bash fill.sh timeout 60 mpiexec -n "$ranks" "$piperun" b.plan --data text.txt --steps 1500 \
  --log-every 500 --stall-timeout 20 --export out --save saves --save-every 500 || fail "filled after a step: exit $?"
[[ -e out/model.safetensors && -e saves/step-00001500/manifest.json ]] || fail "filled after a step: nothing is there"
rm -rf "$folder"
exit $((failures > 0))
