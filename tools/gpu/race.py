"""The race: trainings that accumulate many micro-batches a step, as those of LLM.Q and llm.c do,
beside the figures that LLM.Q published for the same models (tools/gpu/models.json).

A step of 524,288 tokens takes up to 17 s. Where a model's "measured" has one number of
micro-batches, such steps are measured. Where it has two, steps of both sizes are, and the step is
read off the line through them: what grows with the micro-batches, and what a step does once
(AdamW, the norm). The row says which.
"""

from gpu.training import batch_of, figures, fits, train


def measured_at(race, batch, sizes):
    """The numbers of micro-batches to measure, for as many sequences at each size of them."""
    return [count * sizes[0] // batch for count in race["measured"]]


def extrapolate(points, microbatches):
    """Seconds of a step of so many, and of what a step does once; points: (micro-batches, s)."""
    if len(points) == 1:
        return points[0][1] * microbatches / points[0][0], None
    (few, short), (many, long) = points
    each = (long - short) / (many - few)
    return short + (microbatches - few) * each, short - few * each


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
    model = call.models["models"][name]
    table = model["race"]
    sizes = model["batch"] if isinstance(model["batch"], list) else [model["batch"]]
    microbatches = table["sequences"] // batch
    points, found, problem = [], {}, None
    for count in measured_at(table, batch, sizes):
        label = f"race_{what}_{count}"
        problem, found = train(call, label, name, steps=1 + table["steps"], warm_up=1, batch=batch,
                               microbatches=count, keep=keep)
        if "ms" not in found:
            break
        points.append((count, found["ms"] / 1e3))
    if len(points) < len(table["measured"]):
        call.note("race", what, problem or "WRONG no steps", **found)
        return
    seconds, once = extrapolate(points, microbatches)
    found.update(figures(call, name, seconds, table["sequences"]))
    if once is not None:
        found["once_a_step_ms"] = round(1e3 * once, 2)
    call.note("race", what, problem or "ok", microbatches=microbatches, of_sequences=batch,
              measured=" and ".join(str(count) for count, _ in points), **found,
              **table.get("llmq_h100", {}))
