"""Many rollouts at once: a thread with an asyncio loop, N rollouts in flight, each with its own connection to the Core.

The pool knows neither pytest nor rows. Jobs are submitted at any time from any thread. `on_result` receives each
result, and `on_end` the reason why no further result will come. A fault of one job never touches another; a fault that
every job would meet (`halt`) keeps further ones from starting.
"""

from __future__ import annotations

import asyncio
import collections
import contextlib
import resource
import threading
import time
from collections.abc import Awaitable, Callable, Iterable
from typing import Generic, Protocol, TypeVar

from pytest_core_rollouts.rollout.stopping import Stop

CANCEL_SECONDS = 6.0
"""Seconds that a rollout in flight has after a stop to end its Turn, save its record and delete its Session."""
CLOSE_SECONDS = 1.0
"""Seconds after that for rollouts that did not end in time, and for connections to close."""


DESCRIPTORS_EACH = 4
"""Descriptors that a rollout in flight has at most: its connections, and a file while it is written."""
DESCRIPTORS_BESIDE = 128
"""Descriptors that the rest of the process needs: pytest, xdist, graders, plugins."""


def affordable(concurrency: int) -> int:
    """Return how many of these rollouts this process has descriptors for, at least 1.

    Raises the process's soft limit if that helps, as servers do; many systems start with a low one.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = DESCRIPTORS_BESIDE + DESCRIPTORS_EACH * concurrency
    if soft == resource.RLIM_INFINITY or soft >= needed:
        return concurrency
    limit = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
    with contextlib.suppress(OSError, ValueError):  # some systems have their own lower bound
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
        soft = limit
    return max(1, min(concurrency, (soft - DESCRIPTORS_BESIDE) // DESCRIPTORS_EACH))


class Closeable(Protocol):
    """A client, as far as the pool uses it."""

    async def aclose(self) -> None: ...


JobT = TypeVar("JobT")
ClientT = TypeVar("ClientT", bound=Closeable)
ResultT = TypeVar("ResultT")


class PoolStopped(Exception):
    """The pool accepts no more jobs. `str()` says why."""


class Pool(Generic[JobT, ClientT, ResultT]):
    """Runs `run(client, job, stop)` for every job submitted, `concurrency` of them at a time.

    * `connect` makes a client. A client serves one job at a time.
    * `run` returns the job's result and handles everything that can go wrong with one job. What it or `connect`
      raises is a fault of all jobs, and halts the pool. Once `stop` was requested, `run` must return by its deadline.
    * `on_result(job, result)` is called in the pool's thread, `on_end(reason)` in any thread and possibly repeatedly.
    * `spent` is asked before each start: a reason halts the pool.
    * `admits` is asked with the number in flight: while it returns False, nothing starts before a job has ended.
    """

    def __init__(
        self,
        connect: Callable[[], ClientT],
        run: Callable[[ClientT, JobT, Stop], Awaitable[ResultT]],
        *,
        concurrency: int,
        on_result: Callable[[JobT, ResultT], None],
        on_end: Callable[[str], None] = lambda reason: None,
        spent: Callable[[], str | None] = lambda: None,
        admits: Callable[[int], bool] = lambda in_flight: True,
    ) -> None:
        if concurrency < 1:
            raise ValueError(f"concurrency: expected a positive integer, got {concurrency}")
        self.concurrency = concurrency
        self.fatal: str | None = None
        self.started = 0
        self.in_flight = 0
        self._connect = connect
        self._run = run
        self._on_result = on_result
        self._on_end = on_end
        self._spent = spent
        self._admits = admits
        self._queue: collections.deque[JobT] = collections.deque()
        self._lock = threading.Lock()
        self._stopping: str | None = None
        self._finished = False
        """Whether the thread has ended, or nobody waits for it any more."""
        self._thread: threading.Thread | None = None
        self._ready = threading.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        # the rest belongs to the thread
        self._stop = Stop()
        self._ending = asyncio.Event()
        self._running: set[asyncio.Task[None]] = set()
        self._started: dict[int, tuple[JobT, float]] = {}
        self._idle: list[ClientT] = []
        self._released: list[ClientT] = []
        """Clients of jobs that run on without a place."""

    # ---- from any thread

    def submit(self, jobs: Iterable[JobT]) -> None:
        """Queue jobs. They start as places become free. Raises PoolStopped if the pool was stopped."""
        with self._lock:
            if self._stopping is not None:
                raise PoolStopped(self._reason)
            self._queue.extend(jobs)
            if self._thread is None:
                self._thread = threading.Thread(target=self._main, name="rollouts", daemon=True)
                self._thread.start()
        self._call_soon(self._fill)

    @property
    def pending(self) -> int:
        """Number of jobs that were submitted and have not started."""
        return len(self._queue)

    @property
    def oldest(self) -> tuple[JobT, float] | None:
        """The job that has been in flight for the longest time, and when it started, in seconds since 1970."""
        with self._lock:
            return next(iter(self._started.values()), None)

    def call_soon(self, callback: Callable[[], None]) -> None:
        """Run `callback` in the pool's thread. Does nothing before the first job and after the end."""
        if self._thread is not None:
            self._call_soon(callback)

    def release(self, client: ClientT) -> None:
        """Free the place of the job that `client` serves: it only waits. To be called in the pool's thread.

        No more jobs than there are places run on without one.
        """
        if len(self._released) < self.concurrency:
            self._released.append(client)
            self._fill()

    def halt(self, reason: str) -> None:
        """Start nothing more. What is in flight continues to its end. The first reason counts."""
        with self._lock:
            self.fatal = self.fatal or reason
            over = self.in_flight == 0
        if over:
            self._on_end(self._reason)

    def stop(self, reason: str) -> None:
        """Start nothing more, give what is in flight CANCEL_SECONDS to end orderly, and return when it has ended.

        A second call returns at once.
        """
        with self._lock:
            if self._stopping is not None:
                return
            self._stopping = reason
            self._queue.clear()
        if self._thread is None:
            self._on_end(self._reason)
            return
        self._call_soon(self._begin_to_end)
        self._thread.join(CANCEL_SECONDS + 4 * CLOSE_SECONDS)
        self._finish()

    # ---- within

    @property
    def _reason(self) -> str:
        return self.fatal or self._stopping or "the pool was stopped"

    def _call_soon(self, callback: Callable[[], None]) -> None:
        self._ready.wait()
        with contextlib.suppress(RuntimeError):  # the loop is closed: everything is over already
            if self._loop is not None:
                self._loop.call_soon_threadsafe(callback)

    def _main(self) -> None:
        try:
            # Our own kind of loop, whatever policy the program has set (uvloop, Ray)
            loop = asyncio.SelectorEventLoop()
            try:
                loop.run_until_complete(self._serve(loop))
            finally:
                _close(loop)
        except Exception as error:  # noqa: BLE001 - the reason why nothing runs, whatever it is
            self.halt(f"the pool broke: {type(error).__name__}: {error}")
        finally:
            self._ready.set()
            self._finish()

    def _finish(self) -> None:
        with self._lock:
            first, self._finished = not self._finished, True
        if first:
            self._on_end(self._reason)

    async def _serve(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._ready.set()
        await self._ending.wait()
        await _wait_all(self._running, CANCEL_SECONDS + CLOSE_SECONDS)
        for task in self._running:
            task.cancel()
        await _wait_all(self._running, CLOSE_SECONDS)
        await _wait_all({asyncio.ensure_future(client.aclose()) for client in self._idle}, CLOSE_SECONDS)

    def _begin_to_end(self) -> None:
        self._stop.request(CANCEL_SECONDS)
        self._ending.set()

    def _fill(self) -> None:
        """Start jobs in the free places."""
        while self._queue and self._has_place and self._stopping is None and self.fatal is None:
            if (reason := self._spent()) is not None:
                self.halt(reason)
                return
            try:
                job = self._queue.popleft()
            except IndexError:  # `stop` emptied the queue in between
                return
            with self._lock:
                self.started += 1
                self.in_flight += 1
                self._started[self.started] = job, time.time()
            task = asyncio.ensure_future(self._run_one(job, self.started))
            self._running.add(task)
            task.add_done_callback(self._on_task_done)

    @property
    def _has_place(self) -> bool:
        in_flight = len(self._running) - len(self._released)
        return in_flight < self.concurrency and (in_flight == 0 or self._admits(in_flight))

    def _on_task_done(self, task: asyncio.Task[None]) -> None:
        self._running.discard(task)
        self._fill()

    async def _run_one(self, job: JobT, number: int) -> None:
        client: ClientT | None = None
        try:
            client = self._idle.pop() if self._idle else self._connect()
            result = await self._run(client, job, self._stop)
            self._on_result(job, result)
        except Exception as error:  # noqa: BLE001 - whatever it is, it halts the pool and is its reason
            self.halt(str(error) or repr(error))
        finally:
            if client is not None:
                self._idle.append(client)
                if client in self._released:
                    self._released.remove(client)
            with self._lock:
                self.in_flight -= 1
                del self._started[number]
                over = self.fatal is not None and self.in_flight == 0
            if over:
                self._on_end(self._reason)


async def _wait_all(tasks: set[asyncio.Task[None]], seconds: float) -> None:
    """Wait until all of `tasks` have ended, at most `seconds`."""
    if tasks:
        await asyncio.wait(tasks, timeout=seconds)


def _close(loop: asyncio.AbstractEventLoop) -> None:
    """Close the loop as asyncio.run does: no task, generator or thread of it is left."""
    try:
        tasks = asyncio.all_tasks(loop)
        for task in tasks:
            task.cancel()
        if tasks:
            loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.run_until_complete(loop.shutdown_default_executor())
    finally:
        loop.close()
