"""Runs graders in threads, off the event loop: user code that may raise, hang or call exit.

A thread can't be ended from outside, and one that holds the GIL holds up every other. That is the limit of what this
can do for graders that need the process they live in; a `grader.py` runs in a process that can be killed (see
`tasks.grader_pool`).
"""

from __future__ import annotations

import asyncio
import queue
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, Generic, TypeVar

from pytest_core_rollouts.grading.failures import GraderFailed, place_of

T = TypeVar("T")

GRADE_SECONDS = 60.0
GRADERS = 4
"""Graders that run at the same time."""
PATIENCE = 1.0
"""Seconds that a grader waits for a thread before another one starts."""


class Graders:
    """At most `most` graders at a time, each in a thread and within `seconds`.

    The threads take graders from one queue, and another one starts when a grader has waited for PATIENCE seconds: most
    graders take less time than it takes to wake a thread, or to start a process. A thread can't be ended from outside:
    if a grader overruns, its thread runs on and another takes its place. Threads are daemons, so that none keeps the
    process from ending. Belongs to one event loop.
    """

    def __init__(self, *, seconds: float = GRADE_SECONDS, most: int = GRADERS) -> None:
        self.seconds = seconds
        self._most = most
        self._threads = 0
        """Those that a grader may still get."""
        self._jobs: queue.SimpleQueue[_Job[Any] | None] = queue.SimpleQueue()

    async def call(self, grade: Callable[[], T]) -> T:
        """What `grade()` returns. Raises GraderFailed."""
        job = _Job(grade, self.seconds)
        self._jobs.put(job)
        if not self._threads:
            self._start_thread()
        self._look_later(job)
        try:
            return await job.done
        finally:
            job.timer.cancel()
            self._give_up(job)  # if this was cancelled

    def _look_later(self, job: _Job[Any]) -> None:
        """Start a thread if the job still waits for one later, and give it up if it has overrun."""
        delay = PATIENCE if job.limit is None else max(job.limit.left, 0.05)
        job.timer = job.loop.call_later(delay, self._look_at, job)

    def _look_at(self, job: _Job[Any]) -> None:
        if job.limit is None and self._threads < self._most:
            self._start_thread()
        if job.limit is not None and job.limit.left <= 0 and self._give_up(job):
            job.done.set_exception(GraderFailed(f"the grader took more than {self.seconds:g} s"))
        else:
            self._look_later(job)

    def _give_up(self, job: _Job[Any]) -> bool:
        """Give up the thread that runs the grader. Returns False if it is not running."""
        if job.limit is None or not job.end():
            return False
        self._threads -= 1
        if not self._jobs.empty():
            self._start_thread()
        return True

    def _start_thread(self) -> None:
        self._threads += 1
        threading.Thread(target=_work, args=(self._jobs,), name="grader", daemon=True).start()

    def __del__(self) -> None:
        for _ in range(self._threads):
            self._jobs.put(None)


class _Job(Generic[T]):
    """A grader to be run. `done` gets what it returns, or GraderFailed."""

    def __init__(self, grade: Callable[[], T], seconds: float) -> None:
        self._grade = grade
        self._seconds = seconds
        self.loop = asyncio.get_running_loop()
        self._ended = threading.Lock()
        self.done: asyncio.Future[T] = self.loop.create_future()
        self.limit: _Limit | None = None
        """None until a thread has taken it."""
        self.timer: asyncio.TimerHandle

    def end(self) -> bool:
        """Return True for the first call: either the grader ended, or it overran and its thread is given up."""
        return self._ended.acquire(blocking=False)

    def run(self) -> bool:
        """Run the grader in this thread. Returns False if the thread was given up meanwhile."""
        if self.done.cancelled():
            return True
        _current.limit = self.limit = _Limit(self._seconds)
        try:
            value = self._grade()
        except BaseException as error:  # noqa: BLE001 - sys.exit() or pytest.fail() in a grader is its failure, like any other
            failure = error if isinstance(error, GraderFailed) else _raised(error)
            settle = partial(self.done.set_exception, failure)
        else:
            settle = partial(self.done.set_result, value)
        kept = self.end()
        with suppress(RuntimeError):  # the loop is closed: nobody waits any more
            self.loop.call_soon_threadsafe(lambda: None if self.done.done() else settle())
        return kept


def _work(jobs: queue.SimpleQueue[_Job[Any] | None]) -> None:
    while (job := jobs.get()) is not None and job.run():
        del job  # what it holds (a task, an answer) is not to wait for the next one


class _Limit:
    """Seconds that a grader has, without those in which it waits for something with its own limit."""

    def __init__(self, seconds: float) -> None:
        self._left = seconds
        self._since: float | None = time.monotonic()

    @property
    def left(self) -> float:
        since = self._since
        return self._left if since is None else self._left - (time.monotonic() - since)

    def pause(self) -> None:
        self._left, self._since = self.left, None

    def go_on(self) -> None:
        self._since = time.monotonic()


_current = threading.local()


@contextmanager
def without_limit() -> Iterator[None]:
    """Stop the clock of the grader that this thread runs, if it runs one: what follows has its own limit."""
    limit: _Limit | None = getattr(_current, "limit", None)
    if limit is None:
        yield
        return
    limit.pause()
    try:
        yield
    finally:
        limit.go_on()


def _raised(error: BaseException) -> GraderFailed:
    failure = GraderFailed.by(type(error).__name__, str(error), place_of(error))
    failure.__cause__ = error
    return failure
