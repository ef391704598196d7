"""Many rollouts at once: a thread with an asyncio loop, N slots, each with its own connection to Core.

The engine knows no pytest. Rollouts are submitted at any time from any thread; a finished one is handed out in
completion order (`next_done`) or by its id (`wait`). A fault of one rollout never touches another; a fault that every
rollout would share (`fatal`) keeps further ones from starting.
"""

from __future__ import annotations

import asyncio
import collections
import contextlib
import threading
import time
from collections.abc import Awaitable, Callable, Iterable
from typing import Generic, Protocol, TypeVar

CANCEL_SECONDS = 6.0
"""What a cancelled rollout has, in all, to cancel its Turn, write its record and delete its Session."""


class Job(Protocol):
    """What the engine needs to know of a rollout."""

    @property
    def rollout_id(self) -> str: ...


class Closeable(Protocol):
    """What the engine needs to know of a slot's client."""

    deadline: float | None

    async def aclose(self) -> None: ...


JobT = TypeVar("JobT", bound=Job)
ClientT = TypeVar("ClientT", bound=Closeable)
ResultT = TypeVar("ResultT")


class EngineStopped(Exception):
    """The rollout asked for will not finish: the engine was stopped. `str()` says why."""


class Engine(Generic[JobT, ClientT, ResultT]):
    """Runs `run(client, job)` for every job submitted, `concurrency` of them at a time.

    `connect` makes a slot's client. `run` returns the job's result and takes care of all that can go wrong with one
    job; what it raises is a fault of everything: it becomes `fatal` and stops further starts.
    """

    def __init__(
        self,
        connect: Callable[[], ClientT],
        run: Callable[[ClientT, JobT], Awaitable[ResultT]],
        *,
        concurrency: int,
    ) -> None:
        if concurrency < 1:
            raise ValueError("concurrency is at least 1")
        self.concurrency = concurrency
        self.fatal: str | None = None
        self.started = 0
        self.in_flight = 0
        self._connect = connect
        self._run = run
        self._queue: collections.deque[JobT] = collections.deque()
        self._done: collections.deque[str] = collections.deque()
        self._results: dict[str, ResultT] = {}
        self._changed = threading.Condition()
        self._stopping: str | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._slots: list[asyncio.Task[None]] = []
        self._clients: list[ClientT] = []
        self._idle: collections.deque[asyncio.Future[None]] = collections.deque()
        self._thread: threading.Thread | None = None

    # ---- from any thread

    def submit(self, jobs: Iterable[JobT]) -> None:
        """Queue jobs; they start as slots become free."""
        if self._stopping is not None:
            raise EngineStopped(self._stopping)
        self._queue.extend(jobs)
        if self._thread is None:
            ready = threading.Event()
            self._thread = threading.Thread(target=self._main, args=(ready,), name="rollouts", daemon=True)
            self._thread.start()
            ready.wait()
        self._call_soon(self._wake)

    def next_done(self, timeout: float | None = None) -> ResultT | None:
        """The next result in completion order; None when `timeout` seconds passed without one.

        EngineStopped: no further result will come.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._done or self._over, timeout)
            if self._done:
                return self._results.pop(self._done.popleft())
            if self._over:
                raise EngineStopped(self._reason)
            return None

    def wait(self, rollout_id: str, timeout: float | None = None) -> ResultT | None:
        """The result of one rollout; None when `timeout` seconds passed. EngineStopped: it will not come."""
        with self._changed:
            self._changed.wait_for(lambda: rollout_id in self._results or self._over, timeout)
            if rollout_id in self._results:
                self._done.remove(rollout_id)
                return self._results.pop(rollout_id)
            if self._over:
                raise EngineStopped(self._reason)
            return None

    @property
    def pending(self) -> int:
        """Rollouts submitted and not started yet."""
        return len(self._queue)

    def halt(self, reason: str) -> None:
        """Start nothing more; what is in flight goes on to its end. The first reason stands."""
        self.fatal = self.fatal or reason
        with self._changed:
            self._changed.notify_all()

    def stop(self, reason: str) -> None:
        """Start nothing more; cancel what is in flight and give it CANCEL_SECONDS to clean up; return when done.

        What finished or was cancelled can still be fetched. Calling it again returns at once.
        """
        if self._stopping is not None:
            return
        self._stopping = reason
        self._queue.clear()
        if self._thread is None:
            return
        self._call_soon(self._cancel_all)
        self._thread.join(CANCEL_SECONDS + 2)
        with self._changed:
            self._changed.notify_all()

    # ---- within

    @property
    def _over(self) -> bool:
        """Whether no further result will come."""
        alive = self._thread is not None and self._thread.is_alive()
        if self._stopping is not None:
            return not alive
        return self.fatal is not None and self.in_flight == 0

    @property
    def _reason(self) -> str:
        return self.fatal or self._stopping or "the engine was stopped"

    def _call_soon(self, callback: Callable[[], None]) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed: everything is over already
            assert self._loop is not None
            self._loop.call_soon_threadsafe(callback)

    def _main(self, ready: threading.Event) -> None:
        try:
            asyncio.run(self._serve(ready))
        finally:
            ready.set()
            with self._changed:
                self._changed.notify_all()

    async def _serve(self, ready: threading.Event) -> None:
        self._loop = asyncio.get_running_loop()
        ready.set()
        while self._stopping is None:
            free = self.concurrency - len(self._slots)
            for _ in range(min(free, len(self._queue))):  # a slot is made when there is work for it
                self._slots.append(asyncio.create_task(self._slot()))
            await self._woken()
        await asyncio.gather(*self._slots, return_exceptions=True)

    def _wake(self) -> None:
        while self._idle:
            future = self._idle.popleft()
            if not future.done():
                future.set_result(None)

    async def _woken(self) -> None:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._idle.append(future)
        await future

    def _cancel_all(self) -> None:
        deadline = time.monotonic() + CANCEL_SECONDS
        for client in self._clients:
            client.deadline = deadline
        for slot in self._slots:
            slot.cancel()
        self._wake()

    async def _slot(self) -> None:
        client = self._connect()
        self._clients.append(client)
        try:
            while self._stopping is None and self.fatal is None:
                if not self._queue:
                    await self._woken()
                    continue
                await self._one(client, self._queue.popleft())
        finally:
            await client.aclose()

    async def _one(self, client: ClientT, job: JobT) -> None:
        self.started += 1
        self.in_flight += 1
        result: ResultT | None = None
        try:
            result = await self._run(client, job)
        except Exception as error:  # noqa: BLE001 - whatever it is, it stops the run and is its reason
            self.halt(str(error) or repr(error))
        finally:
            with self._changed:
                self.in_flight -= 1
                if result is not None:
                    self._results[job.rollout_id] = result
                    self._done.append(job.rollout_id)
                self._changed.notify_all()
