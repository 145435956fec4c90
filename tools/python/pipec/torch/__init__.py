"""Plans of pipec, executed on anyone's `torch.nn.Module`.

    plan = pipec.compile(scheme="zb-v", devices=2, microbatches=8)
    me = pipec.torch.place(plan)                       # this rank's stages
    parts = {key: build(key.stage) for key in me.stages}
    pipe = pipec.torch.Pipeline(plan, parts, loss=loss_sum, optimizer=optimizer)
    losses = pipe.step(inputs, targets, scale=1 / tokens)

`place` says what a rank holds, `Pipeline` runs steps, `profile` measures what stages cost, `cut`
makes stages of a model. Only PyTorch's public interface is used.
"""

from ._compare import Comparison, compare
from ._costs import Costs
from ._cut import cut, ties
from ._errors import PipelineError
from ._pipeline import Pipeline
from ._place import Place, Stage, place
from ._profile import profile
from ._random import micro_seed

__all__ = ["Comparison", "Costs", "Pipeline", "PipelineError", "Place", "Stage", "compare", "cut",
           "micro_seed", "place", "profile", "ties"]

