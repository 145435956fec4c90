"""A run ends when one of its ranks does: signs of life, and the last words of who failed.

Each rank has two threads. One of them, once in a while, writes into a store which instruction its
rank is at, and reads what the others wrote; the other one judges it, as operations of the store
may themselves hang. A rank that is silent (killed, stopped), that has failed or left too early, or a
run in which nobody moves, ends all others: with an exception where the rank is free to raise one,
otherwise, as nothing can interrupt a blocked receive, with a line on standard error and exit status 1.
"""

from __future__ import annotations

import atexit
import os
import socket
import sys
import threading
import time
from contextlib import contextmanager
from datetime import timedelta
from typing import Callable, Iterator, NamedTuple

import torch.distributed as dist

from ._errors import PipelineError

_BETWEEN = "between"  # two routines
_GRACE_SECONDS = 1.0  # for a rank to fail by itself, with a better word
_PATIENCE = 10  # times silent_seconds, between two steps
_SHOWN = 16  # ranks in an error


class Beat(NamedTuple):
    """What a rank writes."""

    count: int = 0  # another one each time
    done: int = 0  # how many routines the rank has been through
    routine: str = _BETWEEN
    index: int = -1  # of its instruction
    gone: bool = False

    def encode(self) -> str:
        return f"{self.count} {self.done} {self.routine} {self.index} {int(self.gone)}"

    @classmethod
    def decode(cls, data: bytes) -> Beat:
        count, done, routine, index, gone = data.decode().split()
        return cls(int(count), int(done), routine, int(index), gone == "1")


def checked_seconds(silent_seconds: float, stall_seconds: float) -> None:
    for name, value in (("silent_seconds", silent_seconds), ("stall_seconds", stall_seconds)):
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not value > 0:
            raise ValueError(f"{name}: {value!r} (a positive number)")


class Watch:
    def __init__(self, rank: int, world: int, text: Callable[[str, int, int], str],
                 silent_seconds: float, stall_seconds: float):
        """A collective call.

        text            of a rank's instruction: text(routine, index, rank)
        silent_seconds  without a sign of life of a rank
        stall_seconds   without any rank moving on
        """
        self.index = -1
        """Of the instruction that this rank is at; written before each."""
        self._rank, self._world, self._text = rank, world, text
        self._silent, self._stall = silent_seconds, stall_seconds
        self._interval = min(1.0, silent_seconds / 8)
        self._at = (0, _BETWEEN)  # how many routines are done, and the one that this rank is in
        self._beats = [Beat() for _ in range(world)]  # as last read
        self._changed = [time.monotonic()] * world
        self._excused = 0.0  # when this process itself was stopped, which says nothing of others
        self._word = ""  # for the store, if it has none
        self._failure: str | None = None  # of the run: no other routine begins
        self._closing, self._lost = False, False  # this rank's farewell; the store
        self._wake, self._closed = threading.Event(), threading.Event()
        self._talker: threading.Thread | None = None
        if world == 1:
            return
        store = self._connect()
        self._keys = [f"beat{rank}" for rank in range(world)]
        if rank == 0:
            store.set("word", "")
        store.set(self._keys[rank], Beat().encode())
        store.wait([*self._keys, "word"], timedelta(seconds=300))
        self._talker = threading.Thread(target=self._talk, args=(store,), daemon=True)
        self._judge = threading.Thread(target=self._watch, daemon=True)
        self._talker.start()
        self._judge.start()
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

    @contextmanager
    def during(self, routine: str) -> Iterator[None]:
        """What all ranks do together. An exception within becomes a PipelineError, on all of them."""
        if self._failure is not None or self._closing:
            raise PipelineError(self._failure or "the pipeline is closed")
        done, self.index = self._at[0], -1
        self._at = done, routine
        try:
            yield
            done += 1
        except Exception as error:
            raise self._failed(error) from error
        except BaseException as error:  # such as the user's interruption
            self._say(f"{self._where(self._rank, self._mine())}: {type(error).__name__}")
            raise
        finally:
            self._at = done, _BETWEEN

    def _failed(self, error: Exception) -> PipelineError:
        """Tells the others; what to raise. The first failure of a run is named on all ranks."""
        own = f"{self._where(self._rank, self._mine())}: {type(error).__name__}: {error}"
        if self._talker is None:
            return PipelineError(own)
        lost_a_peer = "onnection" in str(error) or "peer" in str(error)
        if lost_a_peer:
            self._await_failure(self._interval + _GRACE_SECONDS)
        if self._failure is None:
            self._await_beats()
            own += f" ({self._positions(others=True)})"
            self._say(own)
            self._await_failure(_GRACE_SECONDS)
        if self._failure is None:  # nobody answers
            self._failure = own
        here = self._where(self._rank, self._mine())
        return PipelineError(self._failure if self._failure.startswith(here) else
                             f"{self._failure} (here: {here})")

    def _await_failure(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        while self._failure is None and not self._lost and time.monotonic() < end:
            time.sleep(0.02)

    def _await_beats(self) -> None:
        """Until it is known where the others are now: the next beat may be of before, but read late."""
        before, end = self._beats, time.monotonic() + 2.5 * self._interval
        while time.monotonic() < end and not self._lost and any(
                new.count < old.count + 2 and not new.gone for old, new in zip(before, self._beats)):
            time.sleep(0.02)

    def _say(self, word: str) -> None:
        self._word = word
        self._wake.set()

    def close(self) -> None:
        """Says farewell. Rank 0, which keeps the store, waits for the others to, unless silent."""
        atexit.unregister(self.close)
        self._closing = True
        if self._talker is None:
            return
        self._wake.set()
        self._talker.join(None if self._rank == 0 else self._interval)
        self._closed.set()
        self._judge.join(self._interval)

    # The thread that talks to the store.

    def _mine(self, count: int = 0) -> Beat:
        at, index = self._at, self.index
        return Beat(count, *at, index if at is self._at else -1, self._closing)

    def _talk(self, store: dist.TCPStore) -> None:
        count, left = 0, float("inf")
        try:
            while time.monotonic() < left:
                count, mine = count + 1, self._mine(count)
                if self._word:
                    store.compare_set("word", "", self._word)
                store.set(self._keys[self._rank], mine.encode())
                if mine.gone and self._rank > 0:
                    return  # the keeper no longer waits
                *beats, word = store.multi_get([*self._keys, "word"])
                self._note([Beat.decode(beat) for beat in beats], word.decode())
                if not mine.gone:
                    self._wake.wait(self._interval)
                    self._wake.clear()
                elif self._others_live():
                    # They need the store, if only to read why the run has failed.
                    limit = self._interval + _GRACE_SECONDS if word else self._stall
                    left = min(left, time.monotonic() + limit)
                    time.sleep(0.02)
                else:
                    return
        except Exception:  # who keeps the store has ended
            self._lost = True

    def _note(self, beats: list[Beat], word: str) -> None:
        now = time.monotonic()
        for rank, (old, new) in enumerate(zip(self._beats, beats)):
            if old != new:
                self._changed[rank] = now
        self._beats = beats
        if word and not self._closing:
            self._failure = word
        done, routine = self._at
        keeper = beats[0]
        if self._rank > 0 and keeper.gone and keeper.done <= done and routine == _BETWEEN:
            # There is nothing more to do together, so that the keeper need not wait.
            self._failure = self._failure or self._where(0, keeper)
            self._closing = True

    def _is_silent(self, rank: int) -> bool:
        # Between two steps the user's code may keep Python's lock for a while, as when it reads data.
        patience = _PATIENCE if self._beats[rank].routine == _BETWEEN else 1
        since = time.monotonic() - max(self._changed[rank], self._excused)
        return since > patience * self._silent

    def _others_live(self) -> bool:
        return any(not beat.gone and rank != self._rank and not self._is_silent(rank)
                   for rank, beat in enumerate(self._beats))

    # The thread that judges.

    def _watch(self) -> None:
        last = moved = time.monotonic()
        places = None
        while not self._closed.wait(self._interval / 4):
            now = time.monotonic()
            if now - last > self._silent / 2:
                self._excused = moved = now
            last = now
            new = [beat._replace(count=0) for beat in self._beats]
            if new != places or self._at[1] == _BETWEEN:
                places, moved = new, now
            word = self._failure or self._verdict(now - moved)
            if word:
                return self._end(word)

    def _verdict(self, seconds: float) -> str | None:
        """Why the run is over, if it is. `seconds`: since any rank moved."""
        (done, routine), beats = self._at, self._beats
        why = None
        if self._closing:
            pass
        elif self._lost and not beats[0].gone:
            why = "rank 0, which keeps the store of the run, has ended"
        elif not self._lost and self._is_silent(self._rank):
            why = f"rank 0, which keeps the store of the run, has been silent for {self._silent:g} s"
        elif seconds > self._stall:
            why = f"no rank has moved for {self._stall:g} s"
        for rank, beat in enumerate(beats):
            if why is not None or self._lost:
                break
            if beat.gone:
                if routine != _BETWEEN and beat.done <= done:
                    why = f"rank {rank} has ended before this {routine}"
            elif self._is_silent(rank):
                why = f"rank {rank} has been silent for {self._silent:g} s"
            elif beat.done == done and len({_BETWEEN, routine, beat.routine}) == 3:
                why = "the ranks are in different routines"
        return why and f"{why} ({self._positions()})"

    def _end(self, word: str) -> None:
        """Ends this rank: by an exception if it comes to raise one, else by force."""
        self._failure = word
        self._say(word)
        end, at = time.monotonic() + _GRACE_SECONDS, self._at
        while time.monotonic() < end:
            if at[1] == _BETWEEN or self._at is not at:
                return
            time.sleep(0.02)
        print(f"pipec: error: rank {self._rank} ends: {self._failure}", file=sys.stderr, flush=True)
        self._closing = True
        self._wake.set()
        self._talker.join(self._interval + 2 * _GRACE_SECONDS if self._rank == 0 else self._interval)
        os._exit(1)

    # Words.

    def _positions(self, others: bool = False) -> str:
        """Where each rank is, as far as known."""
        beats = list(enumerate(self._beats))
        beats[self._rank] = self._rank, self._mine()
        if others:
            del beats[self._rank]
        return "; ".join([*(self._where(rank, beat) for rank, beat in beats[:_SHOWN]),
                          *["..."][:len(beats) > _SHOWN]])

    def _where(self, rank: int, beat: Beat) -> str:
        if beat.gone:
            return f"rank {rank} has ended"
        if beat.routine == _BETWEEN:
            return f"rank {rank}, between two steps"
        if beat.index < 0:
            return f"rank {rank}, at the beginning of its {beat.routine}"
        return f"rank {rank}, instruction {beat.index} '{self._text(beat.routine, beat.index, rank)}'"
