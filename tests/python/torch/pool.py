"""Processes over gloo that run functions, one after the other, until they are closed.

A test of many plans then starts a process per rank once, not once per plan.
"""

from __future__ import annotations

import datetime
import multiprocessing
import os
import socket
import time
import traceback
from multiprocessing.connection import wait

TIMEOUT_SECONDS = 60


def _work(rank: int, world: int, port: int, pipe) -> None:
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"] = "127.0.0.1", str(port)
    if world > 1:
        dist.init_process_group("gloo", rank=rank, world_size=world,
                                timeout=datetime.timedelta(seconds=120))
    while (task := pipe.recv()) is not None:
        function, arguments = task
        try:
            pipe.send((True, function(rank, *arguments)))
        except BaseException as error:
            pipe.send((False, f"{type(error).__name__}: {error}\n{traceback.format_exc()}"))


class Failed(AssertionError):
    """One of the processes raised; the text names it."""


class Pool:
    """`world` processes with a group of torch.distributed."""

    def __init__(self, world: int, method: str = "forkserver"):
        """`method`: of multiprocessing. "spawn" takes longer, and runs what is to run at the exit."""
        context = multiprocessing.get_context(method)
        if method == "forkserver":
            context.set_forkserver_preload(["pipec.torch"])  # so that PyTorch is imported once
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        pairs = [context.Pipe() for _ in range(world)]
        self.processes = [context.Process(target=_work, args=(rank, world, port, child), daemon=True)
                          for rank, (_, child) in enumerate(pairs)]
        self.pipes = [parent for parent, _ in pairs]
        for process in self.processes:
            process.start()
        for _, child in pairs:
            child.close()

    def start(self, function, *arguments) -> None:
        for pipe in self.pipes:
            pipe.send((function, arguments))

    def result(self, rank: int, seconds: float = TIMEOUT_SECONDS) -> tuple[bool, object]:
        """(whether it returned, what it returned or its error)."""
        try:
            if not self.pipes[rank].poll(seconds):
                return False, f"rank {rank}: no answer within {seconds} s"
            return self.pipes[rank].recv()
        except EOFError:
            self.processes[rank].join(10)
            return False, f"rank {rank}: ended with status {self.processes[rank].exitcode}"

    def run(self, function, *arguments) -> list:
        """function(rank, *arguments) on all; what they return, by rank."""
        self.start(function, *arguments)
        end = time.monotonic() + TIMEOUT_SECONDS
        waiting = dict(zip(self.pipes, range(len(self.pipes))))
        results: list = [(False, "no answer")] * len(self.pipes)
        while waiting and time.monotonic() < end:
            for pipe in wait(list(waiting), 1.0):
                rank = waiting.pop(pipe)
                results[rank] = self.result(rank)
                if not results[rank][0]:
                    end = min(end, time.monotonic() + 5)  # the others may wait for this one
        if not all(good for good, _ in results):
            self.kill()  # nobody knows what the others are at
            raise Failed("\n".join(f"rank {rank}: {text}" for rank, (good, text)
                                   in enumerate(results) if not good))
        return [result for _, result in results]

    def kill(self) -> None:
        for process in self.processes:
            process.kill()
            process.join(10)

    def close(self) -> None:
        for pipe, process in zip(self.pipes, self.processes):
            try:
                pipe.send(None)
            except OSError:
                pass
        for process in self.processes:
            process.join(10)
            if process.is_alive():
                process.kill()


_pools: dict[int, Pool] = {}


def pool_of(world: int) -> Pool:
    """A shared one; one that has failed is replaced."""
    pool = _pools.get(world)
    if pool is None or not all(process.is_alive() for process in pool.processes):
        pool = _pools[world] = Pool(world)
    return pool


def close_all() -> None:
    for pool in _pools.values():
        pool.close()
    _pools.clear()
