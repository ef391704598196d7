"""When to look at the Turn list: as soon as the event stream tells of an end, else by a clock that slows down."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from contextlib import aclosing, suppress
from itertools import chain, repeat
from types import TracebackType
from typing import TYPE_CHECKING

from pytest_core_rollouts.agents_api import AgentsAPIError
from pytest_core_rollouts.rollout.stopping import end

if TYPE_CHECKING:
    from pytest_core_rollouts.agents_api import Client, Event

PAUSE_FIRST, PAUSE_MOST = 0.2, 22.5
"""Seconds between two looks without a stream: the first, and the most after backing off."""
PAUSE_SILENT = 20.0
"""Seconds between two looks beside a stream that has told of nothing: it may have opened too late."""
PAUSE_TRUSTED = 300.0
"""Seconds between two looks beside a stream that has told of something, in case it ever is wrong."""

ENDS = frozenset(
    {
        "agent.session.turn.completed",
        "agent.session.turn.failed",
        "agent.session.turn.cancelled",
        "agent.session.requires_action",
        "agent.session.failed",
        "agent.session.idle",
        "error",
    }
)
"""Events after which the Turn may have ended, or may never end."""


class Pulse:
    """`async with Pulse(client, session_id, first=0.5) as pulse: await pulse.wait(seconds)` before a look at a Session.

    The first look, `first` seconds from now, finds what happened before the stream was open; if it opens only after
    that, there is another.

    The stream is no source of truth: nothing is replayed, events come twice or out of order, a proxy may hold them
    back. It only says when to look, and where it says nothing, or what it said turned out to be no end, the clock does.
    """

    def __init__(self, client: Client, session_id: str, *, first: float) -> None:
        self.turn_seen: float | None = None
        """When (monotonic) the stream first told of a Turn."""
        self._client = client
        self._session_id = session_id
        self.is_open = False
        """Whether the stream is there, so that what happens from now on is on it."""
        self._told = False
        """Whether something called for a look since the last one."""
        self._ever_told = False
        self._trusted = False
        """Whether the stream has told of something, and of no end that could not be seen."""
        self._due = False
        """Whether the stream opened after the first look, so that it takes another."""
        self._looked = False
        self._pauses: Iterator[float] = chain([first], repeat(PAUSE_SILENT))
        self._alarm: asyncio.Future[None] | None = None

    async def __aenter__(self) -> Pulse:
        self._reader = asyncio.ensure_future(self._read())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await end(self._reader)

    async def wait(self, most: float) -> bool:
        """Return when it is time for another look, after `most` seconds at the latest.

        Says whether an event called for it.
        """
        until = time.monotonic() + most
        while not (self._told or self._due):
            trusted = self._trusted
            pause = PAUSE_TRUSTED if trusted else next(self._pauses)
            await self._sleep(min(until - time.monotonic(), pause))
            if self._trusted == trusted or time.monotonic() >= until:
                break  # else it just became trusted, so there is nothing to look for
        self._due, self._looked = False, True
        if not self._told:
            return False
        # what the event told of may not be visible yet, so the next look comes soon
        self._told, self._trusted, self._pauses = False, False, _backing_off()
        return True

    def trust(self) -> None:
        """A look found the Turn going on while the stream was open: its end will be told, if it has not been."""
        self._trusted = self._trusted or not self._ever_told

    async def _sleep(self, seconds: float) -> None:
        loop = asyncio.get_running_loop()
        self._alarm = loop.create_future()
        timer = loop.call_later(seconds, self._ring)
        try:
            await self._alarm
        finally:
            timer.cancel()
            self._alarm = None

    def _ring(self) -> None:
        if self._alarm is not None and not self._alarm.done():
            self._alarm.set_result(None)

    def _tell(self) -> None:
        self._told = self._ever_told = True
        self._ring()

    async def _read(self) -> None:
        with suppress(AgentsAPIError):  # not served, lost or silent: the clock goes on
            async with aclosing(self._client.events(self._session_id, self._opened)) as events:
                async for event in events:
                    self._heed(event)
        self._tell()  # what it would have said may be missing

    def _opened(self) -> None:
        self.is_open = True
        self._due = self._looked
        if self._due:
            self._ring()

    def _heed(self, event: Event) -> None:
        self._trusted = True
        turn = event.get("turn")
        if turn and turn.get("subagent_id"):
            return
        if self.turn_seen is None and event["type"].startswith("agent.session.turn."):
            self.turn_seen = time.monotonic()
        if event["type"] in ENDS:
            self._tell()


def _backing_off() -> Iterator[float]:
    pause = PAUSE_FIRST
    while True:
        yield pause
        pause = min(pause * 2, PAUSE_MOST)
