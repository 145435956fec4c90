#!/bin/bash
# A model that goes through the programs comes out with all that it came with: config.json's keys, the
# tokenizer and the settings of generation, in fp32 and bf16, trained at once and after --resume.
set -uo pipefail
source tests/small_run.sh

# $1.json: keys that no program of ours reads; the types of the weights are the exporter's to say.
"$piperun" a.plan --data text.txt --steps 1 --export model > out.txt 2> err.txt || fail "a model to begin with"
sed -i 's/^{/{"bos_token_id": 1,\n "eos_token_id": [2, 3], "pad_token_id": null, "name": "ø \\" {",\n "task": {"dtype": "x"},/' \
  model/config.json
echo '{"temperature": 0.6, "eos_token_id": [2, 3]}' > model/generation_config.json
printf 'a\0b\xff' > model/tokenizer.model
: > model/merges.txt
echo '{{ messages }}' > model/chat_template.jinja
echo 'not the model'"'"'s' > model/notes.txt
head -c 3000000 /dev/urandom > model/tokenizer.json
small="generation_config.json tokenizer.model merges.txt chat_template.jinja tokenizer.json"

# complete FOLDER TYPE: has all that model has, and config.json with TYPE.
complete() {
  local file
  for file in $small; do cmp "model/$file" "$1/$file" > err.txt 2>&1 || fail "$1: $file"; done
  [[ $(ls "$1" | sort) == $( (echo config.json; echo model.safetensors; printf '%s\n' $small) | sort) ]] ||
    fail "$1: $(ls "$1")"
  diff <(sed "s/\"torch_dtype\":\"float32\"/\"torch_dtype\":\"$2\"/" model/config.json) "$1/config.json" > err.txt ||
    fail "$1: config.json"
}

# run NAME OPTIONS...: one that must succeed.
run() { "$piperun" a.plan --data text.txt "${@:2}" > out.txt 2> err.txt || fail "$1"; }

run "fp32" --steps 2 --weights model --export fp32
complete fp32 float32
run "bf16" --steps 2 --weights model --export bf16 --export-dtype bf16
complete bf16 bfloat16
[[ $(od -An -tx1 -j8 -N400 fp32/model.safetensors | wc -c) -gt 0 ]]
grep -q '"dtype":"BF16"' bf16/model.safetensors && ! grep -q '"F32"' bf16/model.safetensors || fail "the types of bf16"
(($(stat -c %s bf16/model.safetensors) * 2 < $(stat -c %s fp32/model.safetensors) + 4000)) || fail "the size of bf16"
# What was exported as bf16 trains on, and is the same again: those numbers are bf16's.
run "on from bf16" --steps 1 --lr 0 --weight-decay 0 --weights bf16 --export again --export-dtype bf16
cmp again/model.safetensors bf16/model.safetensors || fail "bf16 of bf16"
# A file names its folder, too.
run "a file" --steps 2 --weights model/model.safetensors --export file
complete file float32

# Saved, and resumed twice: the second one has it from the first one's checkpoint.
run "saved" --steps 1 --weights model --save saves
for file in $small config.json; do
  cmp "model/$file" "saves/step-00000001/source-$file" || fail "saved: $file"
done
mv model model.gone
for step in 2 3; do run "resumed to $step" --steps $step --save saves --resume; done
mv model.gone model
run "resumed and exported" --steps 4 --save saves --resume --export resumed --export-dtype bf16
complete resumed bfloat16
[[ $(ls saves | grep -c step) == 2 ]] || fail "saves: $(ls saves)"
# A single byte of the tokenizer is a byte of the checkpoint.
printf x | dd of=saves/step-00000004/source-tokenizer.json bs=1 seek=77777 conv=notrunc 2> err.txt
run "damaged" --steps 5 --save saves --resume
grep -q "^not used: saves/step-00000004/source-tokenizer.json: damaged" out.txt || fail "$(cat out.txt)"
# A checkpoint of an older piperun goes on, and what it lacks is said.
for manifest in saves/step-*/manifest.json; do
  python3 - "$manifest" <<'END' || fail "no python3"
import json, sys
path = sys.argv[1]
text = open(path).read()
print(sorted(json.loads(text[:-18])["source"][0]), file=open("keys.txt", "w"))
END
done
[[ $(cat keys.txt) == "['bytes', 'name', 'sum']" ]] || fail "the manifest: $(cat keys.txt)"

# Without --weights the configuration is the plan's.
run "new" --steps 1 --export new
[[ $(ls new | xargs) == "config.json model.safetensors" ]] || fail "new: $(ls new)"
# What cannot be kept is said before the first step, once.
rm model/tokenizer.model && mkfifo model/tokenizer.model
run "a pipe" --steps 1 --weights model --export pipe
[[ $(grep -c "^not kept with the model: model/tokenizer.model: is not a regular file" out.txt) == 1 ]] || fail "$(cat out.txt)"
sed -n 2p out.txt | grep -q "^step" && fail "said too late"
[[ ! -e pipe/tokenizer.model ]] || fail "a pipe was exported"
# Nothing is read that is not kept.
run "no export" --steps 1 --weights model
grep -q "not kept" out.txt && fail "said without need"

# Processes: one of them says it.
if type mpiexec > /dev/null 2>&1; then
  mpiexec -n 4 "$piperun" a.plan --data text.txt --steps 2 --weights model --export ranks > out.txt 2> err.txt || fail "ranks"
  [[ $(grep -c "^not kept" out.txt) == 1 ]] || fail "$(cat out.txt)"
  cmp ranks/model.safetensors fp32/model.safetensors || fail "ranks: the numbers"
  cmp ranks/config.json fp32/config.json || fail "ranks: config.json"
  sed 's/"transformer.ln_f.bias"/"transformer.ln_f.scal"/' model/model.safetensors > left.safetensors
  cp model/config.json .
  mpiexec -n 4 "$piperun" a.plan --data text.txt --steps 1 --weights left.safetensors > out.txt 2> err.txt
  [[ $? == 2 && $(grep -c "^piperun: error" err.txt) == 1 ]] || fail "left over"
fi
exit $((failures > 0))
