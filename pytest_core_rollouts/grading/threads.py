"""Runs graders: user code that may raise, hang or call exit, beside an event loop that none of it may disturb."""

from __future__ import annotations

import asyncio
import queue
import threading
import traceback
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")

GRADE_SECONDS = 60.0
_OURS = str(Path(__file__).parent)
GRADERS = 4
"""Graders that run at the same time."""


class GraderFailed(Exception):
    """A grader raised or took too long; `str()` says which."""


class Graders:
    """At most `most` graders at a time, each in a thread and within `seconds`.

    Threads are used again, for starting one takes longer than most grading. One can't be ended from outside: where a
    grader overruns, its thread is left alone, and its place goes to the next grader with another. Threads are daemons,
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
            thread.run(lambda: _run(grade, loop, done))
            try:
                await asyncio.wait({done}, timeout=self.seconds)
                if done.done():
                    self._idle.append(thread)
                    return done.result()
            finally:
                done.cancel()
            raise GraderFailed(f"the grader took more than {self.seconds:g} s")


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


def _run(grade: Callable[[], T], loop: asyncio.AbstractEventLoop, done: asyncio.Future[T]) -> None:
    try:
        value = grade()
    except BaseException as error:  # noqa: BLE001 - sys.exit() or pytest.fail() in a grader is its failure, like any other
        failure = GraderFailed(f"the grader raised {type(error).__name__}: {error}{_place(error)}")
        failure.__cause__ = error
        _tell(loop, done, lambda: done.set_exception(failure))
    else:
        _tell(loop, done, lambda: done.set_result(value))


def _place(error: BaseException) -> str:
    """Where in somebody's own code it was raised."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__)[1:] if _is_theirs(frame.filename)]
    return f" ({Path(frames[-1].filename).name}:{frames[-1].lineno})" if frames else ""


def _is_theirs(file: str) -> bool:
    return not file.startswith(_OURS) and "_pytest" not in Path(file).parts  # pytest.fail() is called from theirs


def _tell(loop: asyncio.AbstractEventLoop, done: asyncio.Future[T], settle: Callable[[], None]) -> None:
    with suppress(RuntimeError):  # the loop is closed: nobody waits any more
        loop.call_soon_threadsafe(lambda: None if done.done() else settle())
