"""Wait until a Session's Turn ends, and report how it ended.

The Turn list is the source of truth. The Session's status is not: it reads `idle` while the sandbox is being
created, and can read `failed` or `requires_action` while the Turn still runs. The event stream is not either: it
replays nothing, can repeat or reorder events, and a proxy can buffer it. So `TurnWatch` polls the Turn list, and
`PollSchedule` uses the event stream only to decide when.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Mapping
from dataclasses import dataclass
from types import NoneType
from typing import TYPE_CHECKING, Any, Literal

from pytest_core_rollouts.agents_api import AgentsAPIError, APIStatusError, DeadlinePassed, FaultPolicy
from pytest_core_rollouts.agents_api.errors import short_line
from pytest_core_rollouts.agents_api.fault_policies import SessionFault, turn_fault_policy
from pytest_core_rollouts.rollout.stopping import Stopped

if TYPE_CHECKING:
    from pytest_core_rollouts.agents_api import Client, Session, Turn

from pytest_core_rollouts.rollout.poll_schedule import PollSchedule

CREATED_AT_ERROR = 1.0
"""Seconds by which an adopted Session may be younger than it seems: its creation is given in whole seconds."""
CANCEL_PAUSE_FIRST, CANCEL_PAUSE_MAX = 0.05, 1.0
"""Seconds between polls of a cancelled Turn: the first pause, and the longest."""
SESSION_POLL_INTERVAL = 2
"""Read the Session on every second poll. It can fail, or require an action, while its Turn looks fine."""
MAX_TURN_WARNINGS = 5
"""Warnings of a Turn that a record keeps."""
MAX_STATUS = 100
"""Characters of a status that are read."""
MAX_ERROR_TEXT = 2000
"""Characters of a Turn's or Session's error that a row keeps. A Core elsewhere may send any length."""

RUNNING = frozenset({"queued", "in_progress", "waiting"})
ENDED = frozenset({"completed", "failed", "cancelled"})
SESSION_STATUSES = frozenset({"idle", "in_progress", "requires_action", "failed"})


class AttemptFailed(Exception):
    """The attempt ended without an answer. `policy` says whether to retry and what to record."""

    def __init__(self, message: str, policy: FaultPolicy) -> None:
        super().__init__(message)
        self.policy = policy


@dataclass(frozen=True)
class _Poll:
    """Why and when one poll happens."""

    number: int
    end_announced: bool
    stream_open: bool
    time_is_up: bool


class TurnWatch:
    """Follows the single Turn of a rollout's Session, starting when the Session is created.

    `started_at` (monotonic) and `limit` (seconds) are the rollout's. Time lost to Core's own faults extends the limit,
    to at most twice its length. `created_at` (the server's Unix time) is set for an adopted Session: its Turn must
    have completed within the limit by the server's times, because it may have ended long before it is seen here.
    """

    def __init__(
        self,
        client: Client,
        session_id: str,
        *,
        started_at: float,
        limit: float,
        first_poll: float,
        cancel_timeout: float,
        created_at: int | None = None,
    ) -> None:
        self.client = client
        self.session_id = session_id
        self.turn: Turn | None = None
        """The Turn as last read."""
        self.turn_seen_at: float | None = None
        """When the Turn was first seen (monotonic clock)."""
        self.notes: list[str] = []
        """Remarks for the record."""
        self._started_at = started_at
        self._limit = limit
        self._first_poll = first_poll
        self._cancel_timeout = cancel_timeout
        self._created_at = created_at
        self._session_status = "idle"

    @property
    def turn_status(self) -> str | None:
        """Status of the Turn as last read. None if there is no Turn yet."""
        return None if self.turn is None else str(self.turn.get("status"))[:MAX_STATUS]

    @property
    def server_seconds(self) -> float | None:
        """Seconds from an adopted Session's creation to its Turn's end, by the server. None if not known or adopted."""
        completed_at: object = None if self.turn is None else self.turn.get("completed_at")
        if self._created_at is None or type(completed_at) is not int or self.turn_status not in ENDED:
            return None
        return float(max(0, completed_at - self._created_at))

    @property
    def seconds_left(self) -> float:
        """Seconds until the Turn is over its limit for certain."""
        error = 0.0 if self._created_at is None else CREATED_AT_ERROR
        return self._extended_limit + error - (time.monotonic() - self._started_at)

    @property
    def _extended_limit(self) -> float:
        return self._limit + min(self.client.waited_s, self._limit)

    async def wait_for_end(self) -> Literal["completed", "timeout"]:
        """Wait until the Turn ends. At the limit, cancel it and return what it ended as.

        Raises AttemptFailed if the Turn or Session failed, and AgentsAPIError if Core can't be reached.
        """
        async with PollSchedule(self.client, self.session_id, first_poll=self._first_poll) as schedule:
            number = 0
            while True:
                end_announced = await schedule.wait(max(0.0, self.seconds_left))
                number += 1
                self.turn_seen_at = self.turn_seen_at or schedule.turn_seen_at
                poll = _Poll(number, end_announced, schedule.stream_opened, time_is_up=self.seconds_left <= 0)
                if await self._poll(poll):
                    return self._completed_in_time()
                if poll.stream_open and self.turn_status in RUNNING:
                    schedule.confirm_running()
                if poll.time_is_up:
                    break
        return await self._end_at_limit()

    async def interrupt(self, seconds: float) -> Literal["completed", "timeout"]:
        """Cancel the Turn because the run is stopping. A Turn that completes within `seconds` still counts.

        Raises Stopped if it did not complete, and AttemptFailed if it failed.
        """
        await self._cancel(seconds)
        if self.turn_status == "failed":
            raise self._turn_failure()
        if self.turn_status != "completed":
            raise Stopped
        return self._completed_in_time()

    # ---- polling

    async def _poll(self, poll: _Poll) -> bool:
        """Return True if the Turn completed, False if it still runs. Raises AttemptFailed otherwise."""
        await self._read_turn()
        if self._turn_completed():
            return True
        if not self._needs_session(poll):
            return False
        session = await self.client.get_session(self.session_id)
        self._session_status = str(session.get("status"))[:MAX_STATUS]
        if self._session_status == "failed":
            await self._check_failed_session(session)
            return self._turn_completed()
        if self._session_status == "requires_action":
            await self._reject_required_action(session)
        if self._session_status not in SESSION_STATUSES:
            self._note(f"unknown Session status {self._session_status!r}")
        return False

    def _needs_session(self, poll: _Poll) -> bool:
        """Return whether this poll reads the Session as well as the Turn."""
        if poll.end_announced or poll.time_is_up or poll.number % SESSION_POLL_INTERVAL == 0:
            return True
        if self.turn is None:
            # On the first poll, the sandbox is usually still being created. An open stream reports the outcome.
            return not (poll.number == 1 and poll.stream_open)
        return self.turn_status == "waiting"

    async def _read_turn(self) -> None:
        self.turn = await self.client.latest_turn(self.session_id)
        if self.turn is None:
            return
        if not isinstance(self.turn.get("usage"), (dict, NoneType)):
            self._note("the Turn's usage is not an object, so it counts as unknown")
            self.turn["usage"] = None
        if self.turn_seen_at is None:
            self.turn_seen_at = time.monotonic()

    def _turn_completed(self) -> bool:
        status = self.turn_status
        if status == "failed":
            raise self._turn_failure()
        if status == "cancelled":
            message = "the Turn was cancelled by someone else"
            raise AttemptFailed(message, SessionFault.CANCELLED_BY_SOMEONE_ELSE.policy)
        if status is not None and status not in RUNNING | ENDED:
            self._note(f"unknown Turn status {status!r}")
        return status == "completed"

    async def _check_failed_session(self, session: Session) -> None:
        """Raise AttemptFailed, unless the Turn ended just before its Session failed."""
        await self._read_turn()
        if self.turn_status in ENDED:
            return
        reason = _clipped(session.get("error") or "no reason given")
        if self.turn is None:
            message = f"the Session failed without a Turn: {reason}"
            raise AttemptFailed(message, SessionFault.FAILED_WITHOUT_TURN.policy)
        message = f"the Session failed while its Turn was {self.turn_status}: {reason}"
        raise AttemptFailed(message, SessionFault.FAILED_DURING_TURN.policy)

    async def _reject_required_action(self, session: Session) -> None:
        """Cancel the Turn and raise AttemptFailed: a rollout has nobody to act."""
        required: list[Any] = session.get("required_actions") or []
        actions = [action for action in required if isinstance(action, Mapping)]
        await self._cancel(self._cancel_timeout)
        described = ", ".join(_describe_action(action) for action in actions) or "an unnamed action"
        message = f"the Session requires an action that a rollout can't perform: {described}"
        if actions and all(action.get("type") == "environment_connection" for action in actions):
            raise AttemptFailed(message, SessionFault.WAITS_FOR_ENVIRONMENT.policy)
        raise AttemptFailed(message, SessionFault.WAITS_FOR_FUNCTION_RESULT.policy)

    def _turn_failure(self) -> AttemptFailed:
        reported: Any = self.turn and self.turn.get("error")
        error = reported if isinstance(reported, Mapping) else {}
        code = error.get("code") or "no code"
        message = f"the Turn failed: {_clipped(code)}: {_clipped(error.get('message') or 'no message')}"
        return AttemptFailed(message, turn_fault_policy(code))

    # ---- the limit

    def _completed_in_time(self) -> Literal["completed", "timeout"]:
        """Return how a completed Turn counts. That of an adopted Session may have completed after its limit."""
        seconds = self.server_seconds
        # Both times are cut to whole seconds, so a Turn that took 10.0 s may read 10 and never more.
        return "timeout" if seconds is not None and seconds > math.ceil(self._extended_limit) else "completed"

    async def _end_at_limit(self) -> Literal["completed", "timeout"]:
        """Cancel the Turn. An unknown status never becomes a timeout, because a timeout has reward 0."""
        if self.turn is None and self._session_status in SESSION_STATUSES:
            message = f"no Turn started within {self._limit:g} s: the sandbox was not ready"
            raise AttemptFailed(f"{message}; raise --rollout-timeout", SessionFault.NO_TURN_IN_TIME.policy)
        if self.turn_status is not None and self.turn_status not in RUNNING:
            raise self._unknown_status("Turn", self.turn_status)
        await self._cancel(self._cancel_timeout)
        if self.turn_status == "completed":
            return self._completed_in_time()
        if self.turn_status == "failed":
            raise self._turn_failure()
        if self._session_status not in SESSION_STATUSES:
            raise self._unknown_status("Session", self._session_status)
        return "timeout"

    def _unknown_status(self, resource: str, status: str) -> AttemptFailed:
        message = f"the {resource} still had the unknown status {status!r} at the limit of {self._limit:g} s"
        return AttemptFailed(message, SessionFault.UNKNOWN_STATUS.policy)

    # ---- cancelling

    async def _cancel(self, seconds: float) -> None:
        """Cancel the Turn and wait up to `seconds` for it to end. Faults are noted, not raised."""
        deadline = time.monotonic() + seconds
        if self.client.deadline is None or deadline < self.client.deadline:
            self.client.deadline = deadline
        try:
            await self._send_cancel()
        except AgentsAPIError as error:
            self._note(f"the Turn could not be cancelled: {error}")
            return
        try:
            ended = await self._wait_cancelled(deadline)
        except DeadlinePassed:
            ended = False
        except AgentsAPIError as error:
            self._note(f"the Turn was cancelled, but its status can't be read: {error}")
            return
        if not ended:
            self._note(f"the Turn had not ended {seconds:.2g} s after it was cancelled")

    async def _send_cancel(self) -> None:
        try:
            await self.client.cancel(self.session_id)
        except APIStatusError as error:
            # 409: the Turn has ended, or its input still waits for the sandbox. The Turn list says which.
            if error.status != 409:
                raise

    async def _wait_cancelled(self, deadline: float) -> bool:
        """Poll until the Turn has ended (True) or `deadline` would pass (False)."""
        pause = CANCEL_PAUSE_FIRST
        while True:
            await self._read_turn()
            if self.turn is None or self.turn_status in ENDED:
                return True
            if time.monotonic() + pause > deadline:
                return False
            await asyncio.sleep(pause)
            pause = min(pause * 1.5, CANCEL_PAUSE_MAX)

    def _note(self, text: str) -> None:
        if text not in self.notes:
            self.notes.append(text)


def _describe_action(action: Mapping[str, Any]) -> str:
    """Return a short description, such as `function_call ask`."""
    parts = [str(action[key])[:100] for key in ("type", "name", "server_label") if action.get(key)]
    return " ".join(parts) or "unknown"


def _clipped(value: object) -> str:
    text = str(value)
    return text if len(text) <= MAX_ERROR_TEXT else f"{text[: MAX_ERROR_TEXT - 1]}…"


def turn_warnings(turn: Mapping[str, Any] | None) -> list[str]:
    """Return the Turn's warnings, an extension of the embedded Core that has no influence on the result."""
    warnings = turn.get("warnings") if turn is not None else None
    texts = [text for text in warnings if isinstance(text, str)] if isinstance(warnings, list) else []
    return [short_line(text, 500) for text in texts[:MAX_TURN_WARNINGS]]
