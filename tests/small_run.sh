# Sourced by tests of whole runs: the programs, and a folder of the test's own with a small model, a
# text, the same as a file of tokens, and a plan for four devices.
here=$PWD
pipec=$here/compiler/pipec piperun=$here/runtime/piperun
folder=$(mktemp -d)
cd "$folder" || exit 1
cat > config.json <<END
{"model_type": "gpt2", "vocab_size": 128, "n_positions": 16, "n_embd": 16, "n_layer": 4, "n_head": 2}
END
yes "some text" | head -c 5000 > text.txt
# llm.c's: 256 numbers of 4 bytes, of which three count, and 2 bytes a token.
{
  printf '\x88\xd8\x34\x01\x01\0\0\0\x88\x13\0\0'
  head -c 1012 /dev/zero
  tr '\n' ' ' < text.txt | sed 's/./&\x00/g'
} > tokens.bin
"$pipec" compile --scheme 1f1b --devices 4 --microbatches 4 --model config.json -o a.plan || exit 1

failures=0
fail() { echo "FAILED: $*"; cat err.txt; failures=$((failures + 1)); }

# await PROCESS COMMAND…: until the command succeeds, however slow the machine is, or the process ends.
await() {
  until "${@:2}" > await.txt 2>&1 || ! kill -0 "$1" 2>> await.txt; do sleep 0.02; done
}
