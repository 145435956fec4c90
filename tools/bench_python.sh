#!/bin/bash
# pipec.torch beside torch.distributed.pipelining, in one run: steps without a limit, steps where
# memory has one, and the time per instruction where stages do nothing.
#
#   tools/bench //tools:bench_python   PYTHON=… a python that has torch
set -euo pipefail

PIPEC=$PWD/bazel-bin/compiler/pipec PYTHONPATH=tools/python:tools \
  "$(tools/torch_python)" tools/bench_python.py "$@" 2> >(grep -v 'CPUAllocator' >&2)
