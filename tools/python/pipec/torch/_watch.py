"""A run ends when one of its ranks does: signs of life, and the last words of who failed.

Each rank has a thread that writes into a store, once in a while, which instruction its rank is at,
and reads what the others wrote. A rank that is silent (killed, stopped), that has failed, or a run in
which nobody moves, ends all others: with an exception where the rank is free to raise one, otherwise,
as nothing can interrupt a blocked receive, with a line on standard error and exit status 1.
"""

from __future__ import annotations

import atexit
import os
import socket
import sys
import threading
import time
from datetime import timedelta

import torch.distributed as dist

from ._errors import PipelineError

_BETWEEN = "between"  # two steps
_GRACE_SECONDS = 1.0  # for a rank to fail by itself, with a better word


class Watch:
    def __init__(self, place, plan, layout, silent_seconds: float, stall_seconds: float):
        """`silent_seconds`: without a sign of life; `stall_seconds`: without any rank moving on."""
        for name, value in (("silent_seconds", silent_seconds), ("stall_seconds", stall_seconds)):
            if not value > 0:
                raise ValueError(f"{name}: {value} (a positive number)")
        self.index = -1
        """Of the instruction that this rank is at; written before each."""
        self._rank, self._world = place.rank, plan.devices * plan.replicas
        self._devices, self._layout = plan.devices, layout
        self._silent, self._stall = silent_seconds, stall_seconds
        self._routine, self._entered = _BETWEEN, 0
        self._failure: str | None = None
        self._store = None
        self._end = threading.Event()
        if self._world == 1:
            return
        self._store = self._connect()
        self._keys = [f"beat{rank}" for rank in range(self._world)]
        self._store.set(self._keys[self._rank], self._beat(0))
        self._store.wait(self._keys, timedelta(seconds=300))
        self._store.set_timeout(timedelta(seconds=silent_seconds / 2))
        self._thread = threading.Thread(target=self._run, daemon=True, name="pipec watch")
        self._thread.start()
        atexit.register(self.close)

    def _connect(self) -> dist.TCPStore:
        """A store of our own, which rank 0 keeps."""
        address = [None]
        store = None
        if self._rank == 0:
            host = os.environ.get("MASTER_ADDR") or socket.gethostname()
            store = dist.TCPStore(host, 0, self._world, True, wait_for_workers=False)
            address = [(host, store.port)]
        dist.broadcast_object_list(address, 0)
        if store is None:
            store = dist.TCPStore(*address[0], self._world, False, wait_for_workers=False)
        return store

    # The rank's own thread of work.

    def enter(self, routine: str) -> None:
        if self._failure is not None:
            raise PipelineError(self._failure)
        self.index = -1
        self._entered += 1
        self._routine = routine

    def leave(self) -> None:
        self._routine = _BETWEEN

    def failed(self, index: int, text: str, error: Exception) -> PipelineError:
        """Tells the others; what to raise. The first failure of a run is named in all of them."""
        where = f"rank {self._rank}, " + (f"instruction {index} '{text}'" if index >= 0 else text)
        own = f"{where}: {type(error).__name__}: {error}"
        if self._store is None:
            return PipelineError(own)
        lost_a_peer = "onnection" in str(error) or "peer" in str(error)
        try:
            end = time.monotonic() + (_GRACE_SECONDS if lost_a_peer else 0)
            while (first := self._failure) is None and time.monotonic() < end:
                time.sleep(0.05)
            if first is None:
                positions = self._positions(self._store.multi_get(self._keys))
                first = self._store.compare_set("failed", "", f"{own} ({positions})").decode()
            return PipelineError(first if first.startswith(own) else f"{own} (first: {first})")
        except Exception:  # the store is gone: with rank 0, or with the run
            return PipelineError(own)

    def close(self) -> None:
        """Says farewell. Rank 0, which keeps the store, waits a little for the others to."""
        if self._store is None or self._end.is_set():
            return
        self._end.set()
        self._thread.join(self._silent)
        try:
            self._store.set(self._keys[self._rank], "gone")
            end = time.monotonic() + self._silent
            while self._rank == 0 and time.monotonic() < end:
                beats = self._store.multi_get(self._keys)
                if all(beat == b"gone" for beat in beats):
                    break
                time.sleep(0.05)
        except Exception:  # nobody is left to tell
            pass

    # The watching thread.

    def _beat(self, count: int) -> str:
        return f"{count} {self._entered} {self._routine} {self.index}"

    def _run(self) -> None:
        count, beats = 0, [b""] * self._world
        changed = [time.monotonic()] * self._world
        moved, where = time.monotonic(), None
        while not self._end.wait(min(1.0, self._silent / 8)):
            count += 1
            before = time.monotonic()
            try:
                self._store.set(self._keys[self._rank], self._beat(count))
                new = self._store.multi_get(self._keys)
                failed = self._store.check(["failed"]) and self._store.get("failed").decode()
            except Exception:
                # Not before it was silent for as long as any other rank may be.
                if time.monotonic() - changed[0] < self._silent:
                    continue
                return self._fail("rank 0, which keeps the store of the run, is gone or silent: "
                                  + self._positions(beats))
            now = time.monotonic()
            if now - before > self._silent / 2:  # it was this rank that slept
                changed, moved = [now] * self._world, now
            changed = [now if a != b else t for a, b, t in zip(beats, new, changed)]
            beats = new
            if failed:
                return self._fail(failed)
            for rank, beat in enumerate(beats):
                if beat != b"gone" and now - changed[rank] > self._silent:
                    return self._fail(f"rank {rank} has been silent for {self._silent:g} s: "
                                      + self._positions(beats))
            places = [beat.split(b" ", 1)[-1] for beat in beats]
            if places != where or self._routine == _BETWEEN:
                moved, where = now, places
            if now - moved > self._stall:
                return self._fail(f"no rank has moved for {self._stall:g} s: "
                                  + self._positions(beats))

    def _positions(self, beats: list[bytes]) -> str:
        """Where each rank is, as far as known."""
        texts = []
        for rank, beat in enumerate(beats[:16]):
            _, _, routine, index = (beat.decode().split() + [""] * 4)[:4]
            if not index or routine == _BETWEEN:
                texts.append(f"rank {rank} " + ("has ended" if beat == b"gone" else
                                                "between two steps"))
            elif int(index) < 0:
                texts.append(f"rank {rank} before its first instruction")
            else:
                text = self._layout.text(routine, int(index), rank % self._devices)
                texts.append(f"rank {rank} at {index} '{text}'")
        return "; ".join(texts) + ("; ..." if len(beats) > 16 else "")

    def _fail(self, text: str) -> None:
        """Ends this rank: by an exception if it comes to raise one, else by force."""
        self._failure = text
        end = time.monotonic() + _GRACE_SECONDS
        entered = self._entered
        while time.monotonic() < end:
            time.sleep(0.05)
            if self._routine == _BETWEEN or self._entered != entered:
                return
        print(f"pipec: error: rank {self._rank} ends: {text}", file=sys.stderr, flush=True)
        os._exit(1)
