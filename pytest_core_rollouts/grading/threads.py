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
from typing import TypeVar

from pytest_core_rollouts.grading.failures import GraderFailed, place_of

T = TypeVar("T")

GRADE_SECONDS = 60.0
GRADERS = 4
"""Graders that run at the same time."""


class Graders:
    """At most `most` graders at a time, each in a thread and within `seconds`.

    Threads are reused, because starting one takes longer than most grading. A thread can't be ended from outside: if a
    grader overruns, its thread runs on, and the next grader gets a new one. Threads are daemons,
    so that none keeps the process from ending. Belongs to one event loop.
    """

    def __init__(self, *, seconds: float = GRADE_SECONDS, most: int = GRADERS) -> None:
        self.seconds = seconds
        self._places = asyncio.Semaphore(most)
        self._idle: list[_Thread] = []

    async def call(self, grade: Callable[[], T]) -> T:
        """What `grade()` returns. Raises GraderFailed."""
        async with self._places:
            loop = asyncio.get_running_loop()
            done: asyncio.Future[T] = loop.create_future()
            thread = self._idle.pop() if self._idle else _Thread()
            limit = _Limit(self.seconds)
            thread.run(lambda: _run(grade, limit, loop, done))
            try:
                while not done.done() and limit.left > 0:
                    await asyncio.wait({done}, timeout=max(limit.left, 0.05))
                if done.done():
                    self._idle.append(thread)
                    return done.result()
            finally:
                done.cancel()
            raise GraderFailed(f"the grader took more than {self.seconds:g} s")


class _Limit:
    """Seconds that a grader has, apart from those in which it waits for something with its own limit."""

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


class _Thread:
    """A thread that runs what it is given, one after the other, until nobody can give it anything any more."""

    def __init__(self) -> None:
        self._jobs: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        threading.Thread(target=_work, args=(self._jobs,), name="grader", daemon=True).start()

    def run(self, job: Callable[[], None]) -> None:
        self._jobs.put(job)

    def __del__(self) -> None:
        self._jobs.put(None)


def _work(jobs: queue.SimpleQueue[Callable[[], None] | None]) -> None:
    while (job := jobs.get()) is not None:
        job()
        del job  # what it holds (a task, an answer) is not to wait for the next one


def _run(grade: Callable[[], T], limit: _Limit, loop: asyncio.AbstractEventLoop, done: asyncio.Future[T]) -> None:
    _current.limit = limit
    try:
        value = grade()
    except BaseException as error:  # noqa: BLE001 - sys.exit() or pytest.fail() in a grader is its failure, like any other
        failure = error if isinstance(error, GraderFailed) else _raised(error)
        _tell(loop, done, lambda: done.set_exception(failure))
    else:
        _tell(loop, done, lambda: done.set_result(value))


def _raised(error: BaseException) -> GraderFailed:
    failure = GraderFailed.by(type(error).__name__, str(error), place_of(error))
    failure.__cause__ = error
    return failure


def _tell(loop: asyncio.AbstractEventLoop, done: asyncio.Future[T], settle: Callable[[], None]) -> None:
    with suppress(RuntimeError):  # the loop is closed: nobody waits any more
        loop.call_soon_threadsafe(lambda: None if done.done() else settle())
