#!/bin/bash
# A machine with too little memory, with too little space for a file, or with a disk that reports it
# only when the file is closed. Always one line of error and an exit status, never an abort or a wait.
set -uo pipefail
here=$PWD
pipec=$here/compiler/pipec piperun=$here/runtime/piperun
cd "$(mktemp -d)"
cat > config.json <<END
{"model_type": "gpt2", "vocab_size": 2000, "n_positions": 64, "n_embd": 256, "n_layer": 4, "n_head": 4}
END
yes "some text" | head -c 5000 > text.txt
"$pipec" compile --scheme 1f1b --devices 2 --microbatches 4 --model config.json -o a.plan || exit 1

failures=0
fail() { echo "FAILED: $*"; cat err.txt; failures=$((failures + 1)); }
# said NAME STATUS: a failed program has printed one line.
said() {
  (($2 == 1 || $2 == 2)) || fail "$1: exit $2"
  [[ $(wc -l < err.txt) == 1 ]] && grep -q "^$1: error: " err.txt || fail "$1: not one line"
}

# sweep NAME PROGRAM OPTION...: with more and more memory, until there is enough; the loader needs
# the first part of it.
sweep() {
  local name=$1 size=2000 got=1 tried=0
  shift
  until (ulimit -v $size; exec "$1" --help) > out.txt 2> err.txt; do size=$((size + 2000)); done
  while ((got != 0 && tried < 400)); do
    (ulimit -v $size; exec timeout 20 "$@") > out.txt 2> err.txt
    got=$?
    ((got == 0)) || said "$name" $got
    size=$((size + size / 16)) tried=$((tried + 1))
    ((failures < 3)) || return
  done
  ((got == 0 && tried > 5)) || fail "$name: $tried sizes, the last one exits $got"
}
sweep piperun "$piperun" a.plan --data text.txt --bytes --steps 2 --log log.jsonl --trace trace.json
sweep piperun "$piperun" a.plan --data text.txt --bytes --steps 2 --threads 3
sweep pipec "$pipec" compile --scheme interleaved --devices 8 --microbatches 512 --passes mario -o big.plan
sweep pipec "$pipec" show big.plan --format html

# Each rank has less than the machine, all together have more.
total=$(sed -n 's/^MemTotal: *\([0-9]*\) kB/\1/p' /proc/meminfo)
layers=$((total * 1024 / 6 / (12 * 4096 * 4096 * 16)))
cat > large.json <<END
{"model_type": "gpt2", "vocab_size": 128, "n_positions": 64, "n_embd": 4096, "n_layer": $((16 * layers + 16)), "n_head": 16}
END
"$pipec" compile --scheme gpipe --devices 16 --microbatches 1 --model large.json -o large.plan || exit 1
# needed THREADS: the bytes that these ranks take, as reported.
needed() {
  timeout 20 "$piperun" large.plan --data text.txt --steps 1 --threads "$1" > out.txt 2> err.txt
  said piperun $? >&2
  sed -nE "s/.*the plan takes ([0-9]+) bytes on the 16 ranks of rank 0's host, of which [0-9]+ are free.*/\1/p" err.txt
}
one=$(needed 1) two=$(needed 2) three=$(needed 3)
[[ $one ]] || fail "sixteen ranks"
# Each further thread of a rank has its own workspace, which is smaller than a rank's arena.
((two > one && two - one == three - two && two - one < one / 16)) ||
  fail "working space of threads: $one $two $three bytes"

# What a run takes is what was counted, besides the program and its libraries, and little less: here
# the tensor that is loaded is a large part.
cat > wide.json <<END
{"model_type": "gpt2", "vocab_size": 30000, "n_positions": 16, "n_embd": 256, "n_layer": 1, "n_head": 2}
END
"$pipec" compile --scheme gpipe --devices 1 --microbatches 1 --model wide.json -o wide.plan || exit 1
# counted COMMAND...: the bytes that it says it wants, with a limit that allows the program alone.
counted() {
  (ulimit -v 100000; exec timeout 20 "$@") > out.txt 2> err.txt
  said piperun $? >&2
  sed -nE "s/.*the plan takes ([0-9]+) bytes in rank 0's process, whose address space is limited to 102400000 bytes, of which [0-9]+ are left .*/\1/p" err.txt
}
# used COMMAND...: the most bytes of memory that it had at once.
used() {
  local most=0 now
  "$@" > out.txt 2> err.txt &
  while kill -0 $! 2> kill.txt; do
    now=$(sed -nE 's/^VmHWM:[[:space:]]*([0-9]+) kB/\1/p' /proc/$!/status 2> kill.txt)
    ((${now:-0} <= most)) || most=$now
    sleep 0.01
  done
  wait $! || fail "$*: exit $?" >&2
  echo $((most * 1024))
}
for more in "--save saves" "--save saves --resume" "--threads 2"; do
  command=("$piperun" wide.plan --data text.txt --bytes --steps 2 $more)
  [[ $more != *resume* ]] || command[6]=4
  wanted=$(counted "${command[@]}")
  [[ $wanted ]] || fail "no count: ${command[*]}"
  peak=$(used "${command[@]}")
  ((peak < ${wanted:-0} + (16 << 20) && peak > ${wanted:-0} * 9 / 10)) ||
    fail "${command[*]}: took $peak bytes, counted $wanted"
done

# Files.
(ulimit -f 4; "$piperun" a.plan --data text.txt --bytes --steps 50 --log log.jsonl) > out.txt 2> err.txt
said piperun $?
grep -q "log.jsonl: cannot be written: File too large" err.txt || fail "a file that is too large"
(ulimit -f 4; "$pipec" compile --scheme gpipe --devices 8 --microbatches 500 -o x.plan) 2> err.txt
said pipec $?
[[ ! -e x.plan ]] || fail "half a plan"
for file in log.jsonl trace.json; do
  LD_PRELOAD=$here/tests/libfaulty_disk.so CLOSE_FULL=$file "$piperun" a.plan --data text.txt --bytes \
    --steps 2 --log log.jsonl --trace trace.json > out.txt 2> err.txt
  said piperun $?
  grep -q "$file: cannot be written: No space left on device" err.txt || fail "closing $file"
done
exit $((failures > 0))
