#!/bin/bash
# A model that goes through the programs comes out with all that it came with: config.json's keys, the
# tokenizer and the settings of generation, in fp32 and bf16, trained at once and after --resume.
set -uo pipefail
source tests/small_run.sh

# Keys that no program of ours reads, and one that is the exporter's to say.
"$piperun" a.plan --data tokens.bin --steps 1 --export model > out.txt 2> err.txt || fail "a model to begin with"
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
run() { "$piperun" a.plan --data tokens.bin "${@:2}" > out.txt 2> err.txt || fail "$1"; }

run "fp32" --steps 2 --weights model --export fp32
complete fp32 float32
run "bf16" --steps 2 --weights model --export bf16 --export-dtype bf16
complete bf16 bfloat16
grep -q '"dtype":"BF16"' bf16/model.safetensors && ! grep -q '"F32"' bf16/model.safetensors || fail "the types of bf16"
data() { echo $(($(stat -c %s "$1") - 8 - $(od -An -tu8 -N8 "$1"))); }
(($(data bf16/model.safetensors) * 2 == $(data fp32/model.safetensors))) || fail "the size of bf16"
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

# A tensor that the model does not have: one error, or one note before the first step.
sed 's/^{/{"tie_word_embeddings": false, /' config.json > untied.json
"$pipec" compile --scheme 1f1b --devices 4 --microbatches 4 --model untied.json -o untied.plan -q || fail "untied.plan"
"$piperun" untied.plan --data tokens.bin --steps 1 --export untied > out.txt 2> err.txt || fail "untied"
mkdir left && cp untied/model.safetensors left
what="left/model.safetensors: tensor lm_head.weight differs from transformer.wte.weight, to which the model ties it"
# left_over LAUNCHER...: refused, and accepted.
left_over() {
  "$@" "$piperun" a.plan --data tokens.bin --steps 1 --weights left > out.txt 2> err.txt
  [[ $? == 2 && $(grep "^piperun: error" err.txt) == "piperun: error: $what (--unused-weights ignore, if that is meant)" ]] ||
    fail "$*: left over"
  "$@" "$piperun" a.plan --data tokens.bin --steps 1 --weights left --unused-weights ignore > out.txt 2> err.txt &&
    [[ $(grep -n "differs" out.txt) == "1:$what" ]] || fail "$*: ignored: $(cat out.txt)"
}
left_over env

# Processes: one of them says it.
if type mpiexec > /dev/null 2>&1; then
  left_over mpiexec -n 4
  mpiexec -n 4 "$piperun" a.plan --data tokens.bin --steps 2 --weights model --export ranks > out.txt 2> err.txt || fail "ranks"
  [[ $(grep -c "^not kept" out.txt) == 1 ]] || fail "$(cat out.txt)"
  for file in model.safetensors config.json tokenizer.json; do
    cmp ranks/$file fp32/$file || fail "ranks: $file"
  done
fi
exit $((failures > 0))
