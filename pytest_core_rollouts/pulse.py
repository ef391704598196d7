"""When to look at the Turn list: as soon as the event stream tells of an end, else by a clock that slows down."""

from __future__ import annotations

import asyncio
import time
from contextlib import aclosing, suppress
from types import TracebackType
from typing import TYPE_CHECKING

from pytest_core_rollouts.agents_api import AgentsAPIError
from pytest_core_rollouts.stopping import end

if TYPE_CHECKING:
    from pytest_core_rollouts.agents_api import Client, Event

PAUSE_FIRST, PAUSE_MOST = 0.2, 22.5
"""Seconds between two looks where the stream says nothing: the first, and the most after backing off."""
PAUSE_TRUSTED = 300.0
"""Seconds between two looks while the stream is alive: it alone could be wrong for ever."""

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
    """`async with Pulse(client, session_id) as pulse: await pulse.wait(seconds)` between two looks at a Session.

    The stream is no source of truth: nothing is replayed, events come twice or out of order, a proxy may hold them
    back. It is trusted only from its first event on, when it is certain to be open, and no longer than it lives.
    """

    def __init__(self, client: Client, session_id: str) -> None:
        self.turn_seen: float | None = None
        """When (monotonic) the stream first told of a Turn."""
        self._client = client
        self._session_id = session_id
        self._trusted = False
        self._told = False
        self._pause = PAUSE_FIRST
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
        if not self._told:
            await self._sleep(min(most, PAUSE_TRUSTED if self._trusted else self._pause))
        if self._told:
            # what the event told of may not be visible yet, so the next look comes soon
            self._told, self._trusted, self._pause = False, False, PAUSE_FIRST
            return True
        self._pause = min(self._pause * 2, PAUSE_MOST)
        return False

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
        self._told = True
        self._ring()

    async def _read(self) -> None:
        with suppress(AgentsAPIError):  # not served, lost or silent: the clock goes on
            async with aclosing(self._client.events(self._session_id)) as events:
                async for event in events:
                    self._heed(event)
        if self._trusted:
            self._tell()  # what it would have said next may be missing

    def _heed(self, event: Event) -> None:
        self._trusted = True
        turn = event.get("turn")
        if turn and turn.get("subagent_id"):
            return
        if self.turn_seen is None and event["type"].startswith("agent.session.turn."):
            self.turn_seen = time.monotonic()
        if event["type"] in ENDS:
            self._tell()
