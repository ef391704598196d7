"""Many rollouts at once: a thread with an asyncio loop, N of them in flight, each with its own connection to Core.

The pool knows no pytest. Rollouts are submitted at any time from any thread; a finished one is handed out in
completion order (`next_done`) or by its id (`wait`). A fault of one rollout never touches another; what every rollout
would meet too (`halt`) keeps further ones from starting.
"""

from __future__ import annotations

import asyncio
import collections
import contextlib
import threading
from collections.abc import Awaitable, Callable, Iterable
from typing import Generic, Protocol, TypeVar

from pytest_core_rollouts.rollout.stopping import Stop

CANCEL_SECONDS = 6.0
"""What a rollout in flight has, in all, to end its Turn, keep its record and delete its Session after a stop."""
CLOSE_SECONDS = 1.0
"""What is left after that, for rollouts that did not heed it and for connections to close."""


class Job(Protocol):
    """What the pool needs to know of a rollout."""

    @property
    def rollout_id(self) -> str: ...


class Closeable(Protocol):
    """What the pool needs to know of a client."""

    async def aclose(self) -> None: ...


JobT = TypeVar("JobT", bound=Job)
ClientT = TypeVar("ClientT", bound=Closeable)
ResultT = TypeVar("ResultT")


class PoolStopped(Exception):
    """The rollout asked for will not finish: the pool was stopped. `str()` says why."""


class Pool(Generic[JobT, ClientT, ResultT]):
    """Runs `run(client, job, stop)` for every job submitted, `concurrency` of them at a time.

    `connect` makes a client; one serves one job at a time. `run` returns the job's result and takes care of all that
    can go wrong with one job; what it (or `connect`) raises is a fault of everything, and halts the pool. Once
    `stop` is asked for, `run` is to return by its deadline. Results wait to be fetched, unless `keep_results` is false.
    `spent` is asked before each start: a reason halts the pool. So is `admits`, with the number in flight: while it
    says no, nothing starts before something has ended.
    """

    def __init__(
        self,
        connect: Callable[[], ClientT],
        run: Callable[[ClientT, JobT, Stop], Awaitable[ResultT]],
        *,
        concurrency: int,
        keep_results: bool = True,
        spent: Callable[[], str | None] = lambda: None,
        admits: Callable[[int], bool] = lambda in_flight: True,
    ) -> None:
        if concurrency < 1:
            raise ValueError("concurrency is at least 1")
        self.concurrency = concurrency
        self.fatal: str | None = None
        self.started = 0
        self.in_flight = 0
        self._connect = connect
        self._run = run
        self._keep_results = keep_results
        self._spent = spent
        self._admits = admits
        self._queue: collections.deque[JobT] = collections.deque()
        self._results: collections.OrderedDict[str, ResultT] = collections.OrderedDict()
        self._changed = threading.Condition()
        self._stopping: str | None = None
        self._finished = False
        """Whether the thread has ended, or was given up."""
        self._thread: threading.Thread | None = None
        self._ready = threading.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        # the rest belongs to the thread
        self._stop = Stop()
        self._ending = asyncio.Event()
        self._running: set[asyncio.Task[None]] = set()
        self._idle: list[ClientT] = []

    # ---- from any thread

    def submit(self, jobs: Iterable[JobT]) -> None:
        """Queue jobs; they start as places become free. PoolStopped: the pool takes none any more."""
        with self._changed:
            if self._stopping is not None:
                raise PoolStopped(self._reason)
            self._queue.extend(jobs)
            if self._thread is None:
                self._thread = threading.Thread(target=self._main, name="rollouts", daemon=True)
                self._thread.start()
        self._call_soon(self._fill)

    def next_done(self, timeout: float | None = None) -> ResultT | None:
        """The next result in completion order; None when `timeout` seconds passed without one.

        PoolStopped: no further result will come.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._results or self._over, timeout)
            if self._results:
                return self._results.popitem(last=False)[1]
            if self._over:
                raise PoolStopped(self._reason)
            return None

    def wait(self, rollout_id: str, timeout: float | None = None) -> ResultT | None:
        """The result of one rollout; None when `timeout` seconds passed. PoolStopped: it will not come."""
        with self._changed:
            self._changed.wait_for(lambda: rollout_id in self._results or self._over, timeout)
            if rollout_id in self._results:
                return self._results.pop(rollout_id)
            if self._over:
                raise PoolStopped(self._reason)
            return None

    @property
    def pending(self) -> int:
        """Rollouts submitted and not started yet."""
        return len(self._queue)

    def call_soon(self, callback: Callable[[], None]) -> None:
        """Run `callback` in the pool's thread; not at all before anything was submitted, or when all is over."""
        if self._thread is not None:
            self._call_soon(callback)

    def halt(self, reason: str) -> None:
        """Start nothing more; what is in flight goes on to its end. The first reason stands."""
        with self._changed:
            self.fatal = self.fatal or reason
            self._changed.notify_all()

    def stop(self, reason: str) -> None:
        """Start nothing more, give what is in flight CANCEL_SECONDS to end in order, and return when all is over.

        What finished or was cancelled can still be fetched. Calling it again returns at once.
        """
        with self._changed:
            if self._stopping is not None:
                return
            self._stopping = reason
            self._queue.clear()
        if self._thread is None:
            return
        self._call_soon(self._begin_to_end)
        self._thread.join(CANCEL_SECONDS + 4 * CLOSE_SECONDS)
        self._finish()

    # ---- within

    @property
    def _over(self) -> bool:
        """Whether no further result will come."""
        if self._finished or (self._stopping is not None and self._thread is None):
            return True
        return self._stopping is None and self.fatal is not None and self.in_flight == 0

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
            asyncio.run(self._serve())
        except Exception as error:  # noqa: BLE001 - no loop could be made or kept: the reason why nothing runs
            self.halt(f"the pool broke: {type(error).__name__}: {error}")
        finally:
            self._ready.set()
            self._finish()

    def _finish(self) -> None:
        with self._changed:
            self._finished = True
            self._changed.notify_all()

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._ready.set()
        await self._ending.wait()
        await _settled(self._running, CANCEL_SECONDS + CLOSE_SECONDS)
        for task in self._running:
            task.cancel()
        await _settled(self._running, CLOSE_SECONDS)
        await _settled({asyncio.ensure_future(client.aclose()) for client in self._idle}, CLOSE_SECONDS)

    def _begin_to_end(self) -> None:
        self._stop.ask(CANCEL_SECONDS)
        self._ending.set()

    def _fill(self) -> None:
        """Start jobs in the places that are free."""
        while self._queue and self._has_place and self._stopping is None and self.fatal is None:
            if (reason := self._spent()) is not None:
                self.halt(reason)
                return
            try:
                job = self._queue.popleft()
            except IndexError:  # `stop` was quicker
                return
            self.started += 1
            self.in_flight += 1
            task = asyncio.ensure_future(self._one(job))
            self._running.add(task)
            task.add_done_callback(self._ended)

    @property
    def _has_place(self) -> bool:
        in_flight = len(self._running)
        return in_flight < self.concurrency and (in_flight == 0 or self._admits(in_flight))

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._running.discard(task)
        self._fill()

    async def _one(self, job: JobT) -> None:
        client: ClientT | None = None
        results: dict[str, ResultT] = {}
        try:
            client = self._idle.pop() if self._idle else self._connect()
            results[job.rollout_id] = await self._run(client, job, self._stop)
        except Exception as error:  # noqa: BLE001 - whatever it is, it halts the pool and is its reason
            self.halt(str(error) or repr(error))
        finally:
            if client is not None:
                self._idle.append(client)
            with self._changed:
                self.in_flight -= 1
                if self._keep_results:
                    self._results.update(results)
                self._changed.notify_all()


async def _settled(tasks: set[asyncio.Task[None]], seconds: float) -> None:
    """Wait until all of `tasks` have ended, for so many seconds at most."""
    if tasks:
        await asyncio.wait(tasks, timeout=seconds)
