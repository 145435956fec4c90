#!/bin/bash
# Whether pipec tune picks the fastest plan: three models under a memory limit, two ranks on a core
# each. The costs are four profiles each of 1F1B with micro-batches of four sizes; then 24 candidates
# that fit and may take at most a tenth longer than the pick are run beside it, the faster half of
# them again, and so on for three rounds. The four fastest are run anew, as chance helped to choose
# them: the median ratio of their steps to the pick's counts, and the scatter is what the pick takes
# beside itself.
#
#   tools/bench //tools:bench_tune
set -euo pipefail
exec python3 tools/bench_tune.py bazel-bin/compiler/pipec bazel-bin/runtime/piperun
