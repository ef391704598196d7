"""A coroutine run to its end from code that is not asynchronous, whatever else the thread is at."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

T = TypeVar("T")


def run_aside(work: Coroutine[Any, Any, T]) -> T:
    """What `work` returns or raises.

    It runs in a thread of its own: the caller's may have an event loop already, as Playwright's fixtures leave one in
    pytest's main thread, and `asyncio.run` refuses to start another there.
    """
    with ThreadPoolExecutor(1, "aside") as thread:
        return thread.submit(asyncio.run, work).result()
