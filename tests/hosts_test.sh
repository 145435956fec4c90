#!/bin/bash
# Ranks on two hosts: two network namespaces of this machine, joined by a cable, and MPICH between
# them over TCP. Short runs end with their exit status, a slowed network leaves the same bits, and a
# cut cable is an error that names both ranks. If a process is not allowed to make namespaces (no
# root, a strict container, no `ip`) nothing is tested, and the test says so.
set -uo pipefail
here=$PWD
pipec=$here/compiler/pipec piperun=$here/runtime/piperun
runs=${1:-100}
folder=$(mktemp -d)
cd "$folder"

# A cable between two namespaces with unique names.
zero=piperun-$$-0 one=piperun-$$-1
remove() {
  for name in "$zero" "$one"; do
    ip netns pids "$name" 2> /dev/null | xargs -r kill -9
    ip netns del "$name" 2> /dev/null
  done
  rm -rf "$folder"
}
trap remove EXIT
lay() {
  ip netns add "$zero" && ip netns add "$one" &&
    ip link add v0 netns "$zero" type veth peer name v1 netns "$one" &&
    ip -n "$zero" link set v0 name eth0 && ip -n "$one" link set v1 name eth0 &&
    ip -n "$zero" addr add 10.9.0.1/24 dev eth0 && ip -n "$one" addr add 10.9.0.2/24 dev eth0 &&
    for name in "$zero" "$one"; do
      ip -n "$name" link set lo up && ip -n "$name" link set eth0 up || return 1
    done
}
# UCX takes a device only when both of its ends are up.
up() { [[ $(ip -n "$1" -o link show eth0) == *"state UP"* ]]; }
if ! lay > lay.txt 2>&1; then
  echo "SKIPPED: no network namespaces here: $(tail -n 1 lay.txt)"
  exit 0
fi
for _ in $(seq 100); do
  up "$zero" && up "$one" && break
  sleep 0.1
done

# What mpiexec calls instead of ssh: [options] HOST command...
cat > launch << END
#!/bin/bash
while [[ \$1 == -* ]]; do shift; done
name=$zero
[[ \$1 == 10.9.0.2 ]] && name=$one
shift
# UCX looks for its devices in /sys/class/net, which must be the namespace's own.
exec ip netns exec \$name unshare -m bash -c \
  "[[ -e /sys/class/net/eth0 ]] || mount -t sysfs sysfs /sys
   [[ ! -e '$folder/own' ]] || mount --bind '$folder/disk-1' '$folder/own'; \$*"
END
chmod +x launch
# Two ranks, one on each host. If there is a folder named own, it is another one on each of them.
hosts() {
  UCX_TLS=tcp,self UCX_NET_DEVICES=eth0 ip netns exec "$zero" \
    bash -c '[[ ! -e own ]] || mount --bind disk-0 own; exec "$@"' - \
    timeout "${limit:-8}" mpiexec -launcher ssh -launcher-exec "$folder/launch" -iface eth0 \
    -hosts 10.9.0.1:1,10.9.0.2:1 -n 2 "$piperun" "$@" < /dev/null > out.txt 2> err.txt
}

cat > config.json << END
{"model_type": "gpt2", "vocab_size": 128, "n_positions": 16, "n_embd": 16, "n_layer": 4, "n_head": 2}
END
yes "some text" | head -c 5000 > text.txt
"$pipec" compile --scheme 1f1b --devices 2 --microbatches 4 --model config.json -o a.plan || exit 1
# The bits of the losses and norms.
bits() { sed -E 's/.*"loss":([^,]*),"grad_norm":([^,]*),.*/\1 \2/' "$1"; }

failures=0
fail() { echo "FAILED: $*"; cat out.txt err.txt; failures=$((failures + 1)); }

"$piperun" a.plan --data text.txt --steps 3 --log one.jsonl > out.txt || fail "threads"
for ((run = 1; run <= runs; ++run)); do
  rm -f two.jsonl
  hosts a.plan --data text.txt --steps 3 --log two.jsonl || fail "run $run: exit $?"
  [[ $(bits two.jsonl) == $(bits one.jsonl) ]] || fail "run $run: other losses: $(cat two.jsonl)"
  ((failures == 0)) || break
done
hosts a.plan --data text.txt --steps 3 --log two.jsonl --net latency=2ms,bandwidth=5MB/s ||
  fail "slow: exit $?"
[[ $(bits two.jsonl) == $(bits one.jsonl) ]] || fail "slow: other losses: $(cat two.jsonl)"

# Each host has a folder of its own under the name for checkpoints; and for an export, which rank 0
# writes, the run says on which host it will be.
mkdir own disk-0 disk-1
hosts a.plan --data text.txt --steps 3 --save own/saves && fail "saves that are not shared"
grep -qx "piperun: error: --save: rank 1 has a different one from rank 0 (one that all hosts share)" err.txt ||
  fail "saves that are not shared"
[[ $(grep -c "piperun: error" err.txt) == 1 ]] || fail "saves that are not shared: more than one line"
grep -q "^step" out.txt && fail "it has trained before it was refused"
[[ -z $(find disk-0 disk-1 -name "*step-*" -o -name "*saving*") ]] || fail "left: $(find disk-0 disk-1)"
rm -rf disk-?/*
hosts a.plan --data text.txt --steps 3 --export own/model || fail "an export on one host: exit $?"
grep -qx "own/model will be on rank 0's host alone" out.txt || fail "an export on one host: not said"
[[ -e disk-0/model/config.json && -z $(ls -A disk-1) ]] || fail "the export: $(find disk-0 disk-1)"
rmdir own

# A cable that is cut while both train.
limit=90 hosts a.plan --data text.txt --steps 2000000000 --log cut.jsonl --stall-timeout 2 &
run=$!
for _ in $(seq 200); do
  [[ -s cut.jsonl ]] && break
  sleep 0.1
done
ip -n "$one" link set eth0 down
for _ in $(seq 300); do
  grep -q "piperun: error" err.txt && break
  sleep 0.1
done
# mpiexec itself waits for the other host's part of it.
for name in "$zero" "$one"; do ip netns pids "$name" | xargs -r kill -9; done
wait $run
[[ $(grep -c "piperun: error" err.txt) == 1 ]] || fail "cut: not one error"
grep -qE "piperun: error: .*rank 0.*rank 1" err.txt || fail "cut: not both ranks"
exit $((failures > 0))
