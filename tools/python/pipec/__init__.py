"""Pipeline-parallel schedules: compiled, proved safe, predicted, and read as columns of numbers.

    import pipec

    plan = pipec.compile(scheme="zb-v", devices=4, microbatches=16, costs=dict(f=1, b=2))
    print(plan.simulate()["makespan"], plan.show("grid"))
    for device, program in enumerate(plan.lists()):
        print(device, len(program), program.text(0))
    plan.save("zb-v.plan")

The work is done by the program `pipec`, which comes with the package. Options are those of its
command line, with _ for -; `pipec.help("compile")` shows them, and what is wrong with one is an
`Error` with the program's own line. `pipec.torch`, which needs PyTorch, is imported on demand.
"""

from pipec import _binary
from pipec._binary import Error, find_binary
from pipec._commands import (
    Tuned,
    compile,
    help,
    import_,
    load,
    machines,
    ops,
    passes,
    schemes,
    tune,
    values,
)
from pipec._lists import Instruction, Instructions
from pipec._plan import Plan

__version__ = _binary.VERSION

__all__ = [
    "__version__",
    "Error",
    "Instruction",
    "Instructions",
    "Plan",
    "Tuned",
    "compile",
    "find_binary",
    "help",
    "import_",
    "load",
    "machines",
    "ops",
    "passes",
    "schemes",
    "tune",
    "values",
]
