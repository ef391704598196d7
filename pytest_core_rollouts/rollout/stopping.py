"""A stop that many rollouts share: asked for once, heeded by each where it can be.

Cancelling a task would throw away whatever it is at. A rollout has to end its Turn, keep its record and delete its
Session, so it is asked first: work that may be given up (`unless_stopped`) is, the rest goes on to the deadline.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")

RELUCTANT = 1.0
"""Seconds after which a task that did not heed its cancellation is cancelled once more."""


class Stopped(Exception):
    """The work was given up because a stop was asked for."""


class Stop:
    """Belongs to one event loop: use it there."""

    def __init__(self) -> None:
        self.deadline: float | None = None
        """On the monotonic clock; None until a stop is asked for."""
        self._alarms: set[asyncio.Future[None]] = set()

    @property
    def asked(self) -> bool:
        return self.deadline is not None

    @property
    def left(self) -> float:
        """Seconds to the deadline."""
        return float("inf") if self.deadline is None else max(0.0, self.deadline - time.monotonic())

    def ask(self, seconds: float) -> None:
        """Ask everybody to be done within `seconds`. Asking again changes nothing."""
        if self.deadline is not None:
            return
        self.deadline = time.monotonic() + seconds
        for alarm in self._alarms:
            if not alarm.done():
                alarm.set_result(None)

    async def before(self, task: asyncio.Task[Any], grace: float = 0.0) -> bool:
        """Wait until `task` is done, or for `grace` more seconds (to the deadline at most) once a stop is asked for.

        Returns whether it is done.
        """
        if not self.asked:
            alarm: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._alarms.add(alarm)
            try:
                await asyncio.wait({task, alarm}, return_when=asyncio.FIRST_COMPLETED)
            finally:
                self._alarms.discard(alarm)
        if not task.done() and grace > 0:
            await asyncio.wait({task}, timeout=min(grace, self.left))
        return task.done()

    async def unless_stopped(self, work: Coroutine[Any, Any, T], grace: float = 0.0) -> T:
        """What `work` returns or raises. Raises Stopped, with `work` cancelled, `grace` seconds after a stop.

        After a stop nothing new begins: then `work` is not even started.
        """
        if self.asked:
            work.close()
            raise Stopped
        task = asyncio.ensure_future(work)
        try:
            if await self.before(task, grace):
                return task.result()
        finally:
            await end(task)
        raise Stopped


async def end(task: asyncio.Task[Any]) -> None:
    """Cancel `task` and wait until it has ended; its result or exception stays in it."""
    while not task.done():
        task.cancel()  # again and again: a time limit that passes at the same moment can swallow it
        await asyncio.wait({task}, timeout=RELUCTANT)
    if not task.cancelled():
        task.exception()  # whoever needs it takes it from the task; asyncio need not complain that nobody did
