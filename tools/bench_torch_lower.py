"""Interleaved 1F1B, generated and lowered by PyTorch: the yardstick of tools/bench_lower.sh.

What every rank of a run does before its first step: the order of all ranks, then the messages
(ScheduleInterleaved1F1B, which calls _prepare_schedule_with_comms). The stages have no model.
Prints the seconds, without PyTorch's own start.
"""

import argparse
import time
from types import SimpleNamespace

from torch.distributed.pipelining import ScheduleInterleaved1F1B


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--devices", type=int, required=True)
    parser.add_argument("--microbatches", type=int, required=True)
    parser.add_argument("--stages-per-device", type=int, required=True)
    args = parser.parse_args()
    stages = [SimpleNamespace(group_rank=0, group_size=args.devices, submod=None,
                              num_stages=args.devices * args.stages_per_device)
              for _ in range(args.stages_per_device)]
    start = time.perf_counter()
    schedule = ScheduleInterleaved1F1B(stages, args.microbatches)
    seconds = time.perf_counter() - start
    assert len(schedule.pipeline_order_with_comms) == args.devices
    print(f"{seconds:.4f}")


if __name__ == "__main__":
    main()
