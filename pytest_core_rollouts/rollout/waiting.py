"""Waiting for the end of a Session's Turn, and telling what kind of end it is.

The Turn list is the truth: a Session reads `idle` while its sandbox is being made, and `failed` or `requires_action`
while its Turn stands. The limit is the agent's: time lost on Core itself is given back, up to as much again.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Mapping
from types import NoneType
from typing import TYPE_CHECKING, Any, Literal

from pytest_core_rollouts.agents_api import AgentsAPIError, APIStatusError, FaultPolicy
from pytest_core_rollouts.agents_api.fault_policies import SessionFault, turn_fault_policy
from pytest_core_rollouts.rollout.pulse import Pulse
from pytest_core_rollouts.rollout.stopping import Stopped

if TYPE_CHECKING:
    from pytest_core_rollouts.agents_api import Client, Session, Turn

CANCEL_PAUSE_FIRST, CANCEL_PAUSE_MOST = 0.05, 1.0
"""Seconds between two looks at a Turn that was cancelled: the first, and the most after backing off."""
SESSION_EVERY = 2
"""Of so many looks at the Turn one takes in the Session: it can fail, or want something, while its Turn stands."""

RUNNING = frozenset({"queued", "in_progress", "waiting"})
ENDED = frozenset({"completed", "failed", "cancelled"})
SESSION_STATES = frozenset({"idle", "in_progress", "requires_action", "failed"})


class Fault(Exception):
    """The attempt ended without an answer; `policy` says what follows."""

    def __init__(self, message: str, policy: FaultPolicy) -> None:
        super().__init__(message)
        self.policy = policy


class TurnWatch:
    """The one Turn of a rollout's Session, followed from the Session's creation on.

    `start` (monotonic) and `limit` (seconds) are the rollout's. `created_at` is set for an adopted Session: its Turn
    must have completed within the limit by the server's times, because it may have ended long before we see it.
    `turn` is the Turn as last seen, `began` when it was first seen; `notes` are for the record.
    """

    def __init__(
        self,
        client: Client,
        session_id: str,
        *,
        start: float,
        limit: float,
        first_look: float,
        cancel_grace: float,
        created_at: int | None = None,
    ) -> None:
        self.client = client
        self.session_id = session_id
        self.turn: Turn | None = None
        self.began: float | None = None
        self.notes: list[str] = []
        self._start = start
        self._limit = limit
        self._first_look = first_look
        self._cancel_grace = cancel_grace
        self._created_at = created_at
        self._session_status = "idle"

    @property
    def turn_status(self) -> str | None:
        """Of the Turn as last seen; None before there is one."""
        return None if self.turn is None else str(self.turn.get("status"))

    @property
    def server_seconds(self) -> float | None:
        """Seconds from an adopted Session's creation to its Turn's end, by the server. None if not known or adopted."""
        completed_at: object = None if self.turn is None else self.turn.get("completed_at")
        if self._created_at is None or type(completed_at) is not int or self.turn_status not in ENDED:
            return None
        return float(max(0, completed_at - self._created_at))

    @property
    def left(self) -> float:
        """Seconds left of the limit."""
        return self._limit + min(self.client.waited_s, self._limit) - (time.monotonic() - self._start)

    async def until_end(self) -> Literal["completed", "timeout"]:
        """Wait for the Turn's end, or for the limit: then the Turn is cancelled, and its final state decides.

        Raises Fault, and AgentsAPIError where Core can't be asked.
        """
        async with Pulse(self.client, self.session_id, first=self._first_look) as pulse:
            looks = 0
            while True:
                told = await pulse.wait(max(0.0, self.left))
                self.began = self.began or pulse.turn_seen
                looks, last = looks + 1, self.left <= 0
                whole = told or last or looks % SESSION_EVERY == 0
                was_open = pulse.is_open
                early = looks == 1 and was_open and not told  # what becomes of the Session will be told
                if await self._look(whole=whole, early=early):
                    return self._in_time()
                if was_open and self.turn_status in RUNNING:
                    pulse.trust()
                if last:
                    break
        return await self._time_is_up()

    async def interrupt(self, seconds: float) -> Literal["completed", "timeout"]:
        """Cancel the Turn within `seconds`, because the run stops. A Turn that has completed by then counts.

        Raises Stopped where it has not, Fault where it has failed.
        """
        await self._cancel(seconds)
        if self.turn_status == "failed":
            raise self._turn_failure()
        if self.turn_status != "completed":
            raise Stopped
        return self._in_time()

    # ---- one look

    async def _look(self, *, whole: bool, early: bool = False) -> bool:
        """Whether the Turn completed; False while it goes on. Raises for every other end.

        The Session is looked at too in a `whole` look, where the Turn waits, and where there is none yet, unless it is
        `early`.
        """
        await self._read_turn()
        if self._completed():
            return True
        if not whole and (self.turn_status not in (None, "waiting") or (early and self.turn is None)):
            return False
        session = await self.client.get_session(self.session_id)
        self._session_status = str(session.get("status"))
        if self._session_status == "failed":
            await self._session_failed(session)
            return self._completed()
        if self._session_status == "requires_action":
            await self._cannot_act(session)
        if self._session_status not in SESSION_STATES:
            self._note(f"the Session's status reads {self._session_status!r}, which this version does not know")
        return False

    async def _read_turn(self) -> None:
        self.turn = await self.client.latest_turn(self.session_id)
        if self.turn is not None and not isinstance(self.turn.get("usage"), (dict, NoneType)):
            self._note("the Turn's usage is no object: it is not known")
            self.turn["usage"] = None
        if self.turn is not None and self.began is None:
            self.began = time.monotonic()

    def _completed(self) -> bool:
        status = self.turn_status
        if status == "failed":
            raise self._turn_failure()
        if status == "cancelled":
            raise Fault("the Turn was cancelled by someone else", SessionFault.CANCELLED_BY_SOMEONE_ELSE.policy)
        if status is not None and status not in RUNNING | ENDED:
            self._note(f"the Turn's status reads {status!r}, which this version does not know")
        return status == "completed"

    async def _session_failed(self, session: Session) -> None:
        """A failed Session is the end, unless its Turn ended just before it."""
        await self._read_turn()
        if self.turn_status in ENDED:
            return
        how, policy = "without a Turn", SessionFault.FAILED_WITHOUT_TURN.policy
        if self.turn is not None:
            how, policy = f"while its Turn read {self.turn_status}", SessionFault.FAILED_DURING_TURN.policy
        raise Fault(f"the Session failed {how}: {session.get('error') or 'no reason given'}", policy)

    async def _cannot_act(self, session: Session) -> None:
        listed: list[Any] = session.get("required_actions") or []
        actions = [action for action in listed if isinstance(action, Mapping)]
        await self._cancel(self._cancel_grace)
        wanted = ", ".join(_action(action) for action in actions) or "an unnamed action"
        text = f"the Session waits for what a rollout can't give: {wanted}"
        if actions and all(action.get("type") == "environment_connection" for action in actions):
            raise Fault(text, SessionFault.WAITS_FOR_ENVIRONMENT.policy)
        raise Fault(text, SessionFault.WAITS_FOR_FUNCTION_RESULT.policy)

    def _turn_failure(self) -> Fault:
        said: Any = self.turn and self.turn.get("error")
        error = said if isinstance(said, Mapping) else {}
        code = error.get("code") or "no code"
        return Fault(f"the Turn failed: {code}: {error.get('message') or 'no message'}", turn_fault_policy(code))

    # ---- the limit

    def _in_time(self) -> Literal["completed", "timeout"]:
        """How a completed Turn counts. That of an adopted Session may have completed after its limit."""
        seconds, limit = self.server_seconds, self._limit + min(self.client.waited_s, self._limit)
        # Both times are cut to whole seconds, so a Turn that took 10.0 s may read 10 and never more.
        return "timeout" if seconds is not None and seconds > math.ceil(limit) else "completed"

    async def _time_is_up(self) -> Literal["completed", "timeout"]:
        limit = f"the limit of {self._limit:g} s"
        if self.turn is None and self._session_status in SESSION_STATES:
            raise Fault(
                f"no Turn began within {limit}: the sandbox was not ready; --rollout-timeout gives it longer",
                SessionFault.NO_TURN_IN_TIME.policy,
            )
        if self.turn_status is not None and self.turn_status not in RUNNING:
            raise Fault(
                f"the Turn's status still read {self.turn_status!r} at {limit}", SessionFault.UNKNOWN_STATUS.policy
            )
        await self._cancel(self._cancel_grace)
        if self.turn_status == "completed":
            return self._in_time()
        if self.turn_status == "failed":
            raise self._turn_failure()
        if self._session_status not in SESSION_STATES:
            raise Fault(
                f"the Session's status still read {self._session_status!r} at {limit}",
                SessionFault.UNKNOWN_STATUS.policy,
            )
        return "timeout"

    # ---- cancelling

    async def _cancel(self, seconds: float) -> None:
        """Ask for the Turn's end and wait for it; `turn` tells how it ended, or that it did not within `seconds`."""
        until = time.monotonic() + seconds
        self.client.deadline = until if self.client.deadline is None else min(until, self.client.deadline)
        try:
            await self._ask_to_end()
            if not await self._ended_before(until):
                self._note(f"the Turn had not ended {seconds:.2g} s after it was cancelled")
        except AgentsAPIError as error:
            self._note(f"the Turn could not be cancelled: {error}")

    async def _ask_to_end(self) -> None:
        try:
            await self.client.cancel(self.session_id)
        except APIStatusError as error:
            if error.status != 409:  # it has ended, or its input waits for the sandbox: the Turn list tells
                raise

    async def _ended_before(self, until: float) -> bool:
        pause = CANCEL_PAUSE_FIRST
        while True:
            await self._read_turn()
            if self.turn is None or self.turn_status in ENDED:
                return True
            if time.monotonic() + pause > until:
                return False
            await asyncio.sleep(pause)
            pause = min(pause * 1.5, CANCEL_PAUSE_MOST)

    def _note(self, text: str) -> None:
        if text not in self.notes:
            self.notes.append(text)


def _action(action: Mapping[str, Any]) -> str:
    """An action in a few words, such as `function_call ask`."""
    return " ".join(str(action[key])[:100] for key in ("type", "name", "server_label") if action.get(key)) or "unknown"
