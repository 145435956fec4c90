"""Schedules of torch.distributed.pipelining as the CSV that `pipec import` reads."""

from __future__ import annotations

from typing import Any

#: Which messages a CSV has: none, so that pipec places them, or those that PyTorch would send.
MESSAGES = ("compute", "full")


def _numbered(actions: list[Any]) -> list[Any]:
    """The row of a rank with forwards that count from 0.

    PyTorch 2.15's Schedule1F1B runs F0 B0 F1 B1 ... on its last rank, but states F1 B0 F2 B1 ...
    """
    forwards = [action for action in actions if action.computation_type == "F"]
    stages = {action.stage_index for action in forwards}
    numbers = [action.microbatch_index for action in forwards]
    if len(stages) != 1 or numbers != list(range(1, len(numbers) + 1)):
        return actions
    return [action._replace(microbatch_index=action.microbatch_index - 1)
            if action.computation_type == "F" else action for action in actions]


def schedule_csv(schedule: Any, messages: str = "compute") -> str:
    """The order of actions that a schedule of torch.distributed.pipelining has, as CSV.

    Args:
        schedule: An object of one of its schedule classes, with the stages of any one rank: each
            knows the order of all ranks, and it is the same one.
        messages: "compute" for the compute actions alone, which `pipec import` takes with all of
            its options; "full" for PyTorch's own messages as well, whose order is then kept. Only
            schedules with several stages on a rank have them.

    Returns:
        A row per rank, ascending, with a cell per action, as in "0F1" or "2SEND_B0"; idle steps
        are left out. The stages in a row are those of the rank. A stage's weights, shapes and
        loss are not in it.

    Raises:
        TypeError: `schedule` is no schedule.
        ValueError: it states no order, or has no messages, or `messages` is neither of the two.
    """
    name = type(schedule).__name__
    if messages not in MESSAGES:
        raise ValueError(f"messages: {messages!r} ({', '.join(MESSAGES)})")
    if not hasattr(schedule, "pipeline_order"):
        raise TypeError(f"{name}: is no schedule of torch.distributed.pipelining (Schedule1F1B, "
                        "ScheduleInterleaved1F1B, ...)")
    # What was loaded with its messages is only there.
    lowered = getattr(schedule, "pipeline_order_with_comms", None)
    order = lowered if messages == "full" else schedule.pipeline_order or lowered
    if not order and messages == "full" and schedule.pipeline_order:
        raise ValueError(f"{name}: lists no messages (messages='compute')")
    if not order:
        raise ValueError(f"{name}: states no order of actions (a subclass that does, or one into "
                         "which a CSV has been loaded)")
    if sorted(order) != list(range(len(order))):
        raise ValueError(f"{name}: has ranks {sorted(order)} (0 to {len(order) - 1})")
    rows = [[action for action in order[rank]
             if action is not None and (messages == "full" or action.is_compute_op)]
            for rank in range(len(order))]
    return "".join(",".join(map(str, _numbered(row))) + "\n" for row in rows)
