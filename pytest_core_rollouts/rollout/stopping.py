"""A stop that many rollouts share. It is requested once, and each rollout follows it as it can.

To cancel a task would throw away its work. A rollout has to end its Turn, save its record and delete its Session, so
it is asked to stop first: work that may be given up (`unless_stopped`) is given up, the rest goes on to the deadline.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any, TypeVar

T = TypeVar("T")

RECANCEL_AFTER = 1.0
"""Seconds after which a task that has not ended is cancelled again."""


class Stopped(Exception):
    """The work was given up because a stop was requested."""


class Stop:
    """A request to stop. It belongs to one event loop: use it there."""

    def __init__(self) -> None:
        self.deadline: float | None = None
        """When everything must be over (monotonic clock). None until a stop is requested."""
        self._waiting: set[asyncio.Future[None]] = set()

    @property
    def requested(self) -> bool:
        """Whether a stop was requested."""
        return self.deadline is not None

    @property
    def seconds_left(self) -> float:
        """Seconds until the deadline; infinite if no stop was requested."""
        return float("inf") if self.deadline is None else max(0.0, self.deadline - time.monotonic())

    def request(self, seconds: float) -> None:
        """Request that everything is over within `seconds`. A second request changes nothing."""
        if self.deadline is not None:
            return
        self.deadline = time.monotonic() + seconds
        for future in self._waiting:
            if not future.done():
                future.set_result(None)

    async def wait_for(self, task: asyncio.Task[Any], grace: float = 0.0) -> bool:
        """Wait until `task` is done, or until `grace` seconds after a stop was requested, but not past the deadline.

        Returns whether the task is done. It is not cancelled.
        """
        if not self.requested:
            requested: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.add(requested)
            try:
                await asyncio.wait({task, requested}, return_when=asyncio.FIRST_COMPLETED)
            finally:
                self._waiting.discard(requested)
        if not task.done() and grace > 0:
            await asyncio.wait({task}, timeout=min(grace, self.seconds_left))
        return task.done()

    async def unless_stopped(self, work: Coroutine[Any, Any, T], grace: float = 0.0) -> T:
        """Return or raise what `work` does.

        Raises Stopped, with `work` cancelled, `grace` seconds after a stop was requested. If it was requested before,
        `work` is not started.
        """
        if self.requested:
            work.close()
            raise Stopped
        task = asyncio.ensure_future(work)
        try:
            if await self.wait_for(task, grace):
                return task.result()
        finally:
            await cancel_and_wait(task)
        raise Stopped


async def cancel_and_wait(task: asyncio.Task[Any]) -> None:
    """Cancel `task` and wait until it has ended. Its result or exception stays in it."""
    while not task.done():
        task.cancel()  # repeatedly: a timeout that expires at the same moment can swallow a cancellation
        await asyncio.wait({task}, timeout=RECANCEL_AFTER)
    if not task.cancelled():
        task.exception()  # marks the exception as read, so that asyncio does not log it


async def wait_uncancelled(work: asyncio.Future[None]) -> None:
    """Wait until `work` has ended, however often this task is cancelled. Raises what it raised."""
    while not work.done():
        with suppress(asyncio.CancelledError):
            await asyncio.wait({work})
    work.result()
