"""The race: trainings that accumulate many micro-batches a step, as those of LLM.Q and llm.c do,
beside the figures that LLM.Q published for the same models (tools/gpu/models.json).

A step of 524,288 tokens takes 3 to 17 s, and a call has no time for several of them. So steps of a
quarter as many micro-batches are measured, and nothing is extrapolated: what a step does once
(AdamW, the norm) counts four times, some 0.4 % of the whole. The row has both numbers.
"""

from gpu.training import batch_of, fits, train


def check_race(call, name):
    """With nothing kept that is recomputed, and with what the model's "keep" names, if it fits."""
    model = call.models["models"][name]
    batch = batch_of(call, name)
    for keep in dict.fromkeys(["", model.get("keep", "")]):
        what = f"{name}{', keeps ' + keep if keep else ''}"
        if keep and not fits(call, name, batch, keep):
            call.note("race", what, "not possible: too large for this GPU")
        else:
            race(call, name, what, batch, keep)


def race(call, name, what, batch, keep):
    table = call.models["race"]
    count = table["measured_sequences"] // batch
    problem, found = train(call, f"race_{what}", name, steps=1 + table["steps"], warm_up=1,
                           batch=batch, microbatches=count, keep=keep)
    theirs = call.models["models"][name].get("llmq_h100", {})
    call.note("race", what, problem or "ok", of_sequences=batch, microbatches=count,
              of_microbatches=table["sequences"] // batch, **found,
              **{f"llmq_h100_{key}": value for key, value in theirs.items()})
