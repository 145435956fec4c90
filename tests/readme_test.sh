#!/bin/bash
# The examples in READMEs print what stands there (readme_test.py).
exec python3 tests/readme_test.py "$@"
