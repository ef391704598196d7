"""The start of an attempt: when it may begin, and its Session, for which a Core that is down for everyone is awaited.

A create that fails for as long as the client is patient is given up only where that helps: not while the Core makes
no Session for anybody, for then the next rollout would meet the same, and all that are queued after it. It is the
request's own fault where a whole round of tries fails although the Core served others, or at least answered, before.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pytest_core_rollouts.agents_api import AgentsAPIError, APIStatusError, DeadlinePassed
from pytest_core_rollouts.agents_api.fault_policies import LocalFault, Retry
from pytest_core_rollouts.rollout.pressure import Pressure
from pytest_core_rollouts.rollout.stopping import Stop
from pytest_core_rollouts.rollout.waiting import Fault

if TYPE_CHECKING:
    from pytest_core_rollouts.agents_api import Client, Session

LOOK = 0.5
"""Seconds between two looks at whether a further attempt may start."""
ADOPTED_AFTER = 1.5
"""Seconds by which a Session must be older than our request for it. The server's times are whole seconds."""
OLDEST_ADOPTED = 30 * 86400.0
"""Seconds. A creation time further back is not believed: no Session is kept for so long."""


def adopted_age(session: Session, client: Client, *, since: float) -> float | None:
    """Return how many seconds ago a Session was created if that was before `since` (monotonic), else None.

    A create with the key of an earlier one returns the Session that exists, after a kill, a resume or a lost answer.
    Both times are the server's, from the answer that named the Session, so it does not matter that clocks differ.
    """
    created_at: object = session.get("created_at")
    if type(created_at) is not int or client.server_ahead is None:
        return None
    age = time.time() + client.server_ahead - created_at
    return age if time.monotonic() - since + ADOPTED_AFTER < age < OLDEST_ADOPTED else None


async def go_ahead(pressure: Pressure, stop: Stop, *, pause: float, halted: Callable[[], str | None]) -> None:
    """Return when an attempt that follows a spoiled one may start: after `pause` seconds, and where there is room.

    Raises Stopped, and Fault where nothing may start any more.
    """
    until = time.monotonic() + pause
    while True:
        if (reason := halted()) is not None:
            raise Fault(f"no further attempt: {reason}", LocalFault.NO_FURTHER_ATTEMPT.policy)
        left = until - time.monotonic()
        if left <= 0 and pressure.admits_attempt():
            return
        await stop.unless_stopped(asyncio.sleep(min(left, LOOK) if left > 0 else LOOK))


@dataclass(frozen=True)
class Creation:
    """Creates one attempt's Session.

    Each round of tries may take `seconds`, and ends with `grace` once a stop is asked for. A Core that makes no
    Session for anybody is awaited for `outage` seconds in all, or until `halted` gives a reason why nothing may start
    any more; whether it answers at all is asked for `unanswered`.
    """

    client: Client
    pressure: Pressure
    stop: Stop
    seconds: float
    grace: float
    outage: float
    unanswered: float
    halted: Callable[[], str | None]

    async def session(self, body: Mapping[str, Any], key: str) -> tuple[Session, float]:
        """The Session, and the seconds for which the Core kept us waiting. Raises AgentsAPIError, Fault, Stopped."""
        began = time.monotonic()
        others = False  # whether the Core served them before this round of tries
        while True:
            again, waited = time.monotonic(), self.client.waited_s
            self._allow(self.seconds)
            try:
                create = self.client.create_session(body, idempotency_key=key)
                session = await self.stop.unless_stopped(create, self.grace)
            except AgentsAPIError as error:
                if others or not (error.policy.retry is Retry.WHILE_PATIENT or isinstance(error, DeadlinePassed)):
                    raise
                if (reason := self.halted()) is not None:
                    raise Fault(
                        f"no Session was made: {error}; {reason}", LocalFault.NO_FURTHER_ATTEMPT.policy
                    ) from None
                if time.monotonic() - began > self.outage:
                    text = f"the Core made no Session for {self.outage:.0f} s: {error}"
                    raise Fault(text, LocalFault.NO_SESSION_FOR_AN_HOUR.policy) from None
                others = self.pressure.made_since(began) or await self._answers(error)
            else:
                self.pressure.made()
                return session, again - began + self.client.waited_s - waited

    async def _answers(self, error: AgentsAPIError) -> bool:
        """Whether the Core does answer, so that `error` may be this request's own."""
        if isinstance(error, APIStatusError) and error.status in (429, 503):
            return False  # it says itself that it is not
        self._allow(self.unanswered)
        try:
            await self.stop.unless_stopped(self.client.check())
        except AgentsAPIError as refusal:
            if refusal.stops_run:
                raise
            return False
        return True

    def _allow(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        self.client.deadline = until if self.stop.deadline is None else min(until, self.stop.deadline)
