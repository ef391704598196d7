"""Decide when to poll a Session, by its event stream.

A `PollSchedule` is in one of three states:

    state      meaning                                    polls after
    UNPROVEN   the stream has delivered nothing yet       `first_poll` s, then every 20 s
    STREAMING  the stream works                           300 s, in case it is wrong after all
    BACKOFF    the stream announced an end, or closed     0.2 s, 0.4 s, ... up to every 22.5 s

It starts in UNPROVEN and changes

    to STREAMING  when an event arrives
                  or, from UNPROVEN, when a poll finds the Turn running while the stream is open
    to BACKOFF    when an end event arrives or the stream closes; the next poll follows at once

BACKOFF exists because an event can arrive before the Turn list shows the change.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from contextlib import aclosing, suppress
from enum import Enum, auto
from itertools import chain, repeat
from types import TracebackType
from typing import TYPE_CHECKING

from pytest_core_rollouts.agents_api import AgentsAPIError
from pytest_core_rollouts.rollout.stopping import cancel_and_wait

if TYPE_CHECKING:
    from pytest_core_rollouts.agents_api import Client, Event

UNPROVEN_PAUSE = 20.0
"""Seconds between polls while the stream has delivered nothing. It may have opened too late."""
STREAMING_PAUSE = 300.0
"""Seconds between polls while the stream works."""
BACKOFF_FIRST, BACKOFF_MAX = 0.2, 22.5
"""Seconds between polls after an announced end: the first pause, and the longest after doubling."""

END_EVENTS = frozenset(
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


class _State(Enum):
    UNPROVEN = auto()
    STREAMING = auto()
    BACKOFF = auto()


class PollSchedule:
    """Decides when to poll a Session. See the module docstring for the states.

    Use it as a context manager. It reads the event stream in a background task:

        async with PollSchedule(client, session_id, first_poll=0.5) as schedule:
            await schedule.wait(seconds)
            ...  # poll
    """

    def __init__(self, client: Client, session_id: str, *, first_poll: float) -> None:
        self.stream_opened = False
        """Whether the stream has been opened. Stays True after the stream closes."""
        self.turn_seen_at: float | None = None
        """When the stream first mentioned a Turn (monotonic clock)."""
        self._client = client
        self._session_id = session_id
        self._state = _State.UNPROVEN
        self._pauses: Iterator[float] = chain([first_poll], repeat(UNPROVEN_PAUSE))
        self._polled = False
        self._poll_requested = False
        self._end_announced = False
        self._wake_up: asyncio.Future[None] | None = None

    async def __aenter__(self) -> PollSchedule:
        self._reader = asyncio.ensure_future(self._read_stream())
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await cancel_and_wait(self._reader)

    async def wait(self, timeout: float) -> bool:
        """Wait until it is time for the next poll, for at most `timeout` seconds.

        Returns True if the stream announced an end or closed, False if the pause is over.
        """
        deadline = time.monotonic() + timeout
        while not self._poll_requested:
            state = self._state
            pause = STREAMING_PAUSE if state is _State.STREAMING else next(self._pauses)
            await self._sleep(min(pause, deadline - time.monotonic()))
            if self._state is state or time.monotonic() >= deadline:
                break
            # An event arrived during the pause, so the stream works: skip this poll.
        self._polled = True
        self._poll_requested = False
        if not self._end_announced:
            return False
        self._end_announced = False
        self._state, self._pauses = _State.BACKOFF, _backoff()
        return True

    def confirm_running(self) -> None:
        """Report that a poll found the Turn running while the stream was open.

        The stream will then announce the Turn's end, unless it has already announced one or closed.
        """
        if self._state is _State.UNPROVEN and not self._end_announced:
            self._state = _State.STREAMING

    async def _sleep(self, seconds: float) -> None:
        self._wake_up = asyncio.get_running_loop().create_future()
        try:
            await asyncio.wait({self._wake_up}, timeout=max(0.0, seconds))
        finally:
            self._wake_up = None

    def _request_poll(self) -> None:
        self._poll_requested = True
        if self._wake_up is not None and not self._wake_up.done():
            self._wake_up.set_result(None)

    # ---- the stream

    async def _read_stream(self) -> None:
        with suppress(AgentsAPIError):  # no stream, or it broke or went silent: polling continues without it
            async with aclosing(self._client.events(self._session_id, self._on_open)) as events:
                async for event in events:
                    self._on_event(event)
        self._on_end()  # the stream may have missed the real end

    def _on_open(self) -> None:
        self.stream_opened = True
        if self._polled:  # something may have happened between that poll and now
            self._request_poll()

    def _on_event(self, event: Event) -> None:
        self._state = _State.STREAMING
        turn = event.get("turn")
        if turn and turn.get("subagent_id"):
            return
        if self.turn_seen_at is None and event["type"].startswith("agent.session.turn."):
            self.turn_seen_at = time.monotonic()
        if event["type"] in END_EVENTS:
            self._on_end()

    def _on_end(self) -> None:
        self._end_announced = True
        self._request_poll()


def _backoff() -> Iterator[float]:
    pause = BACKOFF_FIRST
    while True:
        yield pause
        pause = min(pause * 2, BACKOFF_MAX)
