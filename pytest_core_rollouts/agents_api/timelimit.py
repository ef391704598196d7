"""A time limit for a block of asyncio code; Python 3.10 has none of its own."""

from __future__ import annotations

import asyncio
import sys
from types import TracebackType

__all__ = ["TimeLimit"]


class TimeLimit:
    """`async with TimeLimit(seconds):` ends the block by TimeoutError once the time has passed.

    A cancellation from outside always wins, so that whoever cancels the task sees it end.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._expired = False

    async def __aenter__(self) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._task = task
        if sys.version_info >= (3, 11):
            self._cancels = task.cancelling()
        self._timer = asyncio.get_running_loop().call_later(max(0.0, self._seconds), self._expire)

    def _expire(self) -> None:
        self._expired = True
        self._task.cancel()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._timer.cancel()
        if not self._expired:
            return
        if sys.version_info >= (3, 11) and self._task.uncancel() > self._cancels:
            return
        if kind is asyncio.CancelledError:
            raise TimeoutError(f"no end within {self._seconds:g} s") from error
