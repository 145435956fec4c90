"""The race: trainings that accumulate many micro-batches a step, as those of LLM.Q and llm.c do,
beside the figures that LLM.Q published for the same models (tools/gpu/models.json).

A step of 524,288 tokens takes 3 to 17 s, and a call has no time for several of them. So steps of a
quarter as many micro-batches are measured, and nothing is extrapolated: what a step does once
(AdamW, the norm) counts four times, some 0.4 % of the whole. The row has both numbers.
"""

from gpu.plans import batch_of, keeping
from gpu.training import in_time, train


def check_race(call, name):
    table, batch = call.models["race"], batch_of(call, name)
    theirs = call.models["models"][name].get("llmq_h100", {})
    count = table["measured_sequences"] // batch
    for what, keep in in_time(call, "race", keeping(call, "race", name)):
        problem, found = train(call, f"race_{what}", name, steps=1 + table["steps"], warm_up=1,
                               batch=batch, microbatches=count, keep=keep)
        call.note("race", what, problem or "ok", of_sequences=batch, microbatches=count,
                  of_microbatches=table["sequences"] // batch, **found,
                  **{f"llmq_h100_{key}": value for key, value in theirs.items()})
