#!/bin/bash
# What a launcher does not tell the ranks: that one of them was killed, and that each has process ids
# of its own. And a program beside them that is no rank. The ranks notice by themselves. And what the
# environment of a launcher's shell says to a process alone.
set -uo pipefail
source tests/small_run.sh

# What mpiexec starts: a rank, whose end it sees only when all have ended.
cat > unseen.sh <<'END'
#!/bin/bash
trap : INT TERM
"$@" > "out.$PMI_RANK" 2> "err.$PMI_RANK"
echo $? > "status.$PMI_RANK"
until [[ $(ls status.? | wc -l) == 4 ]]; do sleep 0.1; done 2> wait.txt
END
chmod +x unseen.sh
# unnoticed RANK SPEAKER: a rank is killed; the others end with status 1, and SPEAKER's line.
unnoticed() {
  mkdir "killed-$1" && cd "killed-$1" || return
  local process begin=$SECONDS
  timeout 100 mpiexec -n 4 ../unseen.sh "$piperun" ../a.plan --data ../text.txt \
    --steps 2000000000 --log log.jsonl > out.txt 2>&1 &
  until [[ -s log.jsonl ]] || ((SECONDS > begin + 60)); do sleep 0.05; done
  for process in $(ls /proc | grep -E "^[0-9]+$"); do
    [[ $(readlink "/proc/$process/cwd") == "$PWD" ]] &&
      [[ $(readlink "/proc/$process/exe") == "$(readlink -f "$piperun")" ]] &&
      tr '\0' '\n' < "/proc/$process/environ" | grep -qx "PMI_RANK=$1" && kill -KILL "$process"
  done 2> proc.txt
  begin=$SECONDS
  wait $!
  [[ $(cat status.? | sort) == $'1\n1\n1\n137' && $(cat "status.$1") == 137 ]] ||
    echo "killed rank $1: statuses" $(cat status.?)
  grep -v "Killed" err.? > errors.txt
  # Whichever noticed first.
  [[ $(cat errors.txt) == "err.$2:piperun: error: rank "[0-3]": rank $1's process has ended" ]] ||
    echo "killed rank $1: $(cat errors.txt)"
  ((SECONDS < begin + 30)) || echo "killed rank $1: it took $((SECONDS - begin)) s"
}
# Meanwhile the others follow: these ranks mostly wait.
unnoticed 2 0 > killed-2.txt &
kills=$!
unnoticed 0 1 > killed-0.txt &
kills="$kills $!"

# A program that is no rank, first or last, and ends well or badly; the rank waits for it.
beside() {
  local begin=$SECONDS got
  timeout 60 mpiexec "$@" > out.txt 2> err.txt
  got=$?
  ((got == 1 || got == 9)) || fail "beside, $*: exit $got"
  [[ $(grep -c "piperun: error" err.txt) == 1 ]] && grep -qE \
    "^piperun: error: rank [01]: a process that mpiexec started beside it has ended without joining the 2 ranks" \
    err.txt || fail "beside, $*"
  ((SECONDS < begin + 30)) || fail "beside, $*: it took $((SECONDS - begin)) s"
}
# A rank whose launcher has ended before it could look: PMI never answers, and its parent is init (the
# script, in its own space of process ids).
cat > orphan.py <<'END'
import os, socket, sys
silent, mine = socket.socketpair()
os.set_inheritable(mine.fileno(), True)
os.environ.update(PMI_FD=str(mine.fileno()), PMI_RANK="0", PMI_SIZE="4", MPI_LOCALNRANKS="4")
if os.fork() == 0:
    if os.fork() == 0:
        os.execv(sys.argv[1], sys.argv[1:])
    os._exit(0)
os.wait()
try:
    mine.close()
    silent.settimeout(20)
    while silent.recv(4096):
        pass
except TimeoutError:
    sys.exit("it still waits")
END
if unshare --pid --fork true 2> unshare.txt; then
  unshare --pid --fork python3 orphan.py "$piperun" a.plan --data text.txt > out.txt 2> err.txt || fail "orphan"
  grep -qx "piperun: error: the launcher on this host has ended" err.txt || fail "orphan: another word"
fi
beside -n 1 "$piperun" a.plan --data text.txt : -n 1 sleep 1
beside -n 1 false : -n 1 bash -c "\"$piperun\" a.plan --data text.txt; exit \$?"

# What `srun --pty bash` leaves in a shell's environment, as Slurm's MpiDefault says, and what mpiexec
# tells a process that it starts alone: ranks are threads.
in_shell() {
  env "${@:2}" timeout 60 "$piperun" a.plan --data text.txt --steps 1 $1 > out.txt 2> err.txt
  got=$?
}
for transport in "" "--transport threads"; do
  for shell in "PMI_RANK=0 PMI_SIZE=1" "PMI_RANK=0 PMI_SIZE=1 SLURM_STEP_NUM_TASKS=1" \
    "OMPI_COMM_WORLD_RANK=0 OMPI_COMM_WORLD_SIZE=1 PMIX_RANK=0" "PMIX_RANK=0 SLURM_STEP_NUM_TASKS=1" \
    "SLURM_STEP_NUM_TASKS=1"; do
    in_shell "$transport" $shell
    [[ $got == 0 && $(head -n 1 out.txt) == *"; 4 ranks, "* ]] || fail "in a shell, $transport $shell: exit $got"
  done
  mpiexec -n 1 "$piperun" a.plan --data text.txt --steps 1 $transport > out.txt 2> err.txt ||
    fail "one process of mpiexec, $transport: exit $?"
done
# Only who asks for threads has them where there may be others: a shell of several tasks.
for shell in "PMI_RANK=0 PMI_SIZE=4" "SLURM_STEP_NUM_TASKS=4" "PMIX_RANK=0" "RANK=0 WORLD_SIZE=4" \
  "PMI_RANK=0 PMI_SIZE=1 RANK=0 WORLD_SIZE=4"; do
  in_shell "--transport threads" $shell
  [[ $got == 0 ]] || fail "threads in a shell, $shell: exit $got"
  in_shell "" $shell
  [[ $got == 2 && $(cat err.txt) == "piperun: error: --transport: "*"--transport threads "* ]] ||
    fail "in a shell, $shell: exit $got"
done
in_shell "--transport mpi" PMI_RANK=0 PMI_SIZE=1
[[ $got == 2 && $(cat err.txt) == "piperun: error: a.plan: compiled for 4 devices, started with 1 ranks "* ]] ||
  fail "mpi in a shell: exit $got"

# More threads than the cores that the ranks may use: said once, and the run goes on.
core=$(taskset -pc $$ | sed -E 's/.*: ([0-9]+).*/\1/')
# note COMMAND...: what is printed before the first step.
note() { taskset -c "$core" "$@" a.plan --data text.txt --steps 1 2> err.txt | grep -E "^(--threads|step)"; }
two="--threads 2: 8 compute threads of 4 ranks here may use 1 of the machine's cores"
for start in "" "mpiexec -n 4"; do
  [[ $(note $start "$piperun" --threads 2 | cut -c 1-80 | head -n 2) == "$two"*$'\nstep 1/1'* ]] ||
    fail "no note: $start"
  [[ $(note $start "$piperun" | cut -c 1-8) == "step 1/1" ]] || fail "a note without a reason: $start"
done

# Ranks with process ids of their own, as in containers: each is 1. What they send is too large for
# one piece. Without random addresses, each has something of its own where the other's is. (MPICH's
# shared memory does not start there.)
cat > wide.json <<END
{"model_type": "gpt2", "vocab_size": 128, "n_positions": 256, "n_embd": 160, "n_layer": 2, "n_head": 2}
END
"$pipec" compile --scheme 1f1b --devices 2 --microbatches 4 --model wide.json -o wide.plan || fail "wide"
bits() { sed -E 's/.*"loss":([^,]*),"grad_norm":([^,]*),.*/\1 \2/' "$1"; }
if unshare --pid --fork true 2> unshare.txt; then
  "$piperun" wide.plan --data text.txt --steps 2 --log one.jsonl > out.txt 2> err.txt || fail "threads"
  UCX_TLS=tcp,self timeout 60 mpiexec -n 2 unshare --pid --fork setarch -R "$piperun" wide.plan \
    --data text.txt --steps 2 --log two.jsonl > out.txt 2> err.txt || fail "process ids of their own: exit $?"
  [[ $(bits two.jsonl) == $(bits one.jsonl) ]] || fail "process ids of their own: $(cat two.jsonl)"
else
  echo "SKIPPED: no namespaces of process ids here: $(cat unshare.txt)"
fi

wait $kills
[[ ! -s killed-0.txt && ! -s killed-2.txt ]] || fail "$(cat killed-?.txt)"
exit $((failures > 0))
