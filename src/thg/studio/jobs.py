"""One run at a time: a bounded queue of jobs, and the one thread that executes them.

A job is cancelled when its client disconnects, in the queue or in the middle of a run.
"""

from __future__ import annotations

import asyncio
import logging
import math
import threading
import time
from collections import deque
from collections.abc import AsyncIterator, Callable
from typing import Any

from thg.errors import THGError

Event = tuple[str, dict[str, Any]]
Emit = Callable[[str, dict[str, Any]], None]
Work = Callable[[Emit, threading.Event], None]

FINAL = {"done", "failed"}  # the last event of a job is one of these
BEHIND = 20  # unsent events above which a slow client gets no previews, which are most of the data

log = logging.getLogger("thg.studio")


class QueueFull(THGError):
    """The queue is full; `retry_after` is an estimate in seconds."""

    def __init__(self, retry_after: int) -> None:
        super().__init__(f"the queue is full; try again in {retry_after} seconds")
        self.retry_after = retry_after


class Cancelled(Exception):
    """Raised inside a run whose client has disconnected."""


class Job:
    """A run, and the queue of its events from the worker's thread to the client."""

    def __init__(self, work: Work) -> None:
        self.work = work
        self.cancelled = threading.Event()
        self._loop = asyncio.get_running_loop()
        self._events: asyncio.Queue[Event] = asyncio.Queue()

    def emit(self, name: str, data: dict[str, Any]) -> None:
        """From any thread."""
        if data.get("previews") and self._events.qsize() >= BEHIND:
            data = {**data, "previews": None}
        try:
            self._loop.call_soon_threadsafe(self._events.put_nowait, (name, data))
        except RuntimeError:  # the event loop of the server is closed
            self.cancelled.set()

    async def events(self, patience: float) -> AsyncIterator[Event | None]:
        """The events up to the final one; None after each `patience` seconds without one."""
        while True:
            try:
                event = await asyncio.wait_for(self._events.get(), patience)
            except TimeoutError:
                yield None
                continue
            yield event
            if event[0] in FINAL:
                return


class Worker:
    """The thread that executes the jobs in order of arrival."""

    def __init__(self, waiting: int) -> None:
        self.limit = waiting
        self._waiting: deque[Job] = deque()
        self._change = threading.Condition()
        self._running: Job | None = None
        self._seconds = 5.0  # that the last job took: the estimate for Retry-After
        self._stopping = False
        self._thread = threading.Thread(target=self._work, name="thg-studio-worker", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """Cancels everything, and ends the stream of each client at once."""
        with self._change:
            self._stopping = True
            jobs = [*self._waiting, *([self._running] if self._running else [])]
            self._change.notify_all()
        for job in jobs:
            job.emit("failed", {"message": "the studio was closed"})
            self.cancel(job)

    def stop(self, timeout: float = 0.5) -> bool:
        """Closes, and waits a moment for the current call of the network. Has it ended?"""
        self.close()
        self._thread.join(timeout)
        return not self._thread.is_alive()

    @property
    def load(self) -> tuple[bool, int]:
        """Is a job running, and how many wait?"""
        with self._change:
            return self._running is not None, len(self._waiting)

    def submit(self, work: Work) -> Job:
        """Queues a job, or raises `QueueFull`."""
        with self._change:
            if self._stopping or len(self._waiting) >= self.limit:
                raise QueueFull(retry_after=max(1, math.ceil(self._seconds)))
            job = Job(work)
            self._waiting.append(job)
            self._tell_positions()
            self._change.notify_all()
        return job

    def cancel(self, job: Job) -> None:
        """Does nothing if the job is finished."""
        job.cancelled.set()
        with self._change:
            if job in self._waiting:
                self._waiting.remove(job)
                self._tell_positions()

    def _tell_positions(self) -> None:
        for position, job in enumerate(self._waiting):
            job.emit("queued", {"ahead": position + (self._running is not None)})

    def _work(self) -> None:
        while True:
            with self._change:
                self._change.wait_for(lambda: self._waiting or self._stopping)
                if self._stopping:
                    return
                job = self._running = self._waiting.popleft()
                self._tell_positions()
            started = time.monotonic()
            try:
                self._run(job)
            finally:
                with self._change:
                    self._running = None
                    self._seconds = time.monotonic() - started

    @staticmethod
    def _run(job: Job) -> None:
        if job.cancelled.is_set():
            return
        try:
            job.work(job.emit, job.cancelled)
        except Cancelled:
            job.emit("failed", {"message": "cancelled"})
        except THGError as error:
            job.emit("failed", {"message": str(error)})
        except Exception as error:  # a model may raise anything: the page shows it and the server continues
            log.exception("a run failed")
            job.emit("failed", {"message": f"{type(error).__name__}: {' '.join(str(error).split())[:500]}"})
