"""Shapes of messages: one pass of the model along each pipe, once per shape of inputs.

So receives are posted ahead into buffers of the right size, and micro-batches may differ in their
lengths. At the start of a step the ranks with the first stage tell the others, for each micro-batch,
a number that says its inputs' structure, shapes and types; where one is new, the forwards of that
micro-batch run once, one stage after the other.
"""

from __future__ import annotations

import torch
import torch.distributed as dist

from ._bundle import signature
from ._place import Stage
from ._stage import arguments_of, mapped, moved


def learn_shapes(pipeline, inputs) -> None:
    """Fills in the signatures of this step, and the specs of stages where one is new.

    What modules return in an evaluation is another matter than in training.
    """
    values = pipeline._values
    pipe_of = pipeline._layout.pipes[values.routine]
    values.signatures = [2 * number + (values.routine == "evaluation")
                         for number in exchange_signatures(pipeline, inputs, pipe_of)]
    for micro, (number, pipe) in enumerate(zip(values.signatures, pipe_of)):
        if (number, pipe) not in pipeline._known:
            run_along(pipeline, inputs, micro, number, pipe)
            pipeline._known.add((number, pipe))


def exchange_signatures(pipeline, inputs, pipe_of) -> list[int]:
    plan, group, place = pipeline.plan, pipeline._groups.control, pipeline.place
    mine = [signature(batch) if batch is not None else 0
            for batch in inputs or [None] * len(pipe_of)]
    numbers = list(mine)
    if group is None:
        return numbers
    ranks = pipeline._layout.replica_ranks
    sending = []
    holders = [devices[0] for devices in plan.pipes]
    if place.device in holders:
        message = torch.tensor(mine, dtype=torch.int64)
        sending = [dist.isend(message, ranks[other], group=group)
                   for other in range(plan.devices) if other != place.device]
    for pipe, holder in enumerate(holders):
        if holder != place.device:
            message = torch.empty(len(pipe_of), dtype=torch.int64)
            dist.recv(message, ranks[holder], group=group)
            for micro, number in enumerate(message.tolist()):
                if pipe_of[micro] == pipe:
                    numbers[micro] = number
    for work in sending:
        work.wait()
    return numbers


def run_along(pipeline, inputs, micro: int, number: int, pipe: int) -> None:
    """The forwards of one micro-batch, for what they return."""
    plan, place, group = pipeline.plan, pipeline.place, pipeline._groups.control
    devices = plan.pipes[pipe]
    ranks = pipeline._layout.replica_ranks
    x = None
    if devices[0] == place.device:
        x = arguments_of(moved(inputs[micro], pipeline.device))
    for stage, device in enumerate(devices):
        if device != place.device:
            x = None
            continue
        if stage > 0 and devices[stage - 1] != device:
            message = [None]
            dist.recv_object_list(message, ranks[devices[stage - 1]], group=group)
            x = tuple(None if t is None else
                      t[0].to(pipeline.device).requires_grad_(t[1]) for t in message[0])
        y = pipeline._runners[Stage(stage, pipe)].probe(x, micro, number)
        if stage + 1 < plan.stages:
            if devices[stage + 1] == device:
                x = mapped(lambda t: t.detach().requires_grad_(t.requires_grad), y)
            else:
                message = [[None if t is None else (t.detach().cpu(), t.requires_grad) for t in y]]
                dist.send_object_list(message, ranks[devices[stage + 1]], group=group)
