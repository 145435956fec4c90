"""`python -m pipec ...` is `pipec ...`."""

import os
import sys

from pipec._binary import Error, find_binary

try:
    binary = find_binary()
    os.execv(binary, [binary, *sys.argv[1:]])
except (Error, OSError) as error:
    sys.exit(f"pipec: error: {error}")
