"""One Session for each attempt, on a server that makes a new Session for every create.

Such a server ignores the Idempotency-Key, so a create can't just be sent again: one that ended without an answer may
have made a Session, which runs and costs money. The list of Sessions says whether it has. It may show a new Session
late, so it is read twice. A Session of the same rollout and attempt is adopted, and the oldest of several is kept.

The same is done before the first create of a rollout that another process may have begun: a worker that died, or the
run that is resumed.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from pytest_core_rollouts.agents_api import AgentsAPIError
from pytest_core_rollouts.agents_api.retry import retrying
from pytest_core_rollouts.rollout.session_deletion import delete_session

if TYPE_CHECKING:
    from pytest_core_rollouts.agents_api import Client, Session

CLOCK_SLACK = 3600.0
"""Seconds by which the clock of the machine that began the run may differ from ours."""


class LaterAttempt(Exception):
    """Another process has begun a later attempt at this rollout."""


class SingleSession:
    """Creates the Session of one attempt, and finds and deletes any other one of it. Times are in seconds.

    `metadata`        of the Session; `rollout_id` and `attempt` in it name the attempt
    `since`           when the run began (Unix time of our clock); None: the whole list is read
    `second_look`     the pause before the list is read again
    `delete_seconds`  how long one deletion may take
    `maybe_begun`     whether another process may have begun the rollout
    """

    def __init__(
        self,
        client: Client,
        metadata: Mapping[str, str],
        *,
        since: float | None,
        second_look: float,
        delete_seconds: float,
        maybe_begun: bool,
    ) -> None:
        self.doubtful = maybe_begun
        """Whether the attempt may have a Session that we don't know of."""
        self.left: dict[str, str] = {}
        """Why each other Session of the attempt could not be deleted, by its id."""
        self._client = client
        self._rollout_id, self._attempt = metadata["rollout_id"], int(metadata["attempt"])
        self._since = None if since is None else since - CLOCK_SLACK
        self._second_look = second_look
        self._delete_seconds = delete_seconds

    async def create(self, body: Mapping[str, Any], key: str) -> Session:
        """Return the attempt's Session, as patiently as the client makes other calls.

        Raises AgentsAPIError, and LaterAttempt.
        """
        return await retrying(self._client.retry, self._client, lambda: self._adopt_or_create(body, key))

    async def delete_others(self, kept: str | None) -> None:
        """Delete every Session of the attempt but `kept`, before the client's deadline. Raises AgentsAPIError."""
        await self._delete([session for session in await self._list() if session["id"] != kept])

    async def _adopt_or_create(self, body: Mapping[str, Any], key: str) -> Session:
        """Make one try. `doubtful` is set while the request is sent, so that a try that is cancelled counts too."""
        was_doubtful = self.doubtful
        if was_doubtful and (session := await self._look_twice()) is not None:
            return session
        self.doubtful = True
        try:
            created = await self._client.create_session(body, idempotency_key=key, once=True)
        except AgentsAPIError as error:
            self.doubtful = was_doubtful or error.may_have_acted
            raise
        self.doubtful = was_doubtful
        if was_doubtful:  # the earlier create may have had its effect in the meantime
            with suppress(AgentsAPIError):  # still doubtful, so the list is read again when the Session is deleted
                return await self._keep_oldest(await self._list(), created)
        return created

    async def _look_twice(self) -> Session | None:
        """Return the attempt's Session if the list has one. The time that this takes is not the agent's."""
        began = time.monotonic()
        try:
            sessions = await self._list()
            if not sessions:
                await asyncio.sleep(self._second_look)
                sessions = await self._list()
        finally:
            self._client.waited_s += time.monotonic() - began
        return await self._keep_oldest(sessions) if sessions else None

    async def _list(self) -> list[Session]:
        """Return the Sessions of the attempt, newest first. Raises LaterAttempt.

        The list is not filtered by the server: a filter shows new Sessions later than the whole list does.
        """
        found: list[Session] = []
        async for session in self._client.list_sessions():
            created_at: object = session.get("created_at")
            created = created_at if type(created_at) is int else time.time()
            if self._since is not None and created - (self._client.server_ahead or 0.0) < self._since:
                break
            metadata: Any = session.get("metadata") or {}
            if metadata.get("rollout_id") != self._rollout_id:
                continue
            attempt = str(metadata.get("attempt"))
            if attempt.isdecimal() and int(attempt) > self._attempt:
                raise LaterAttempt(f"attempt {attempt} was begun by another process")
            if attempt == str(self._attempt):
                found.append(session)
        return found

    async def _keep_oldest(self, listed: Sequence[Session], created: Session | None = None) -> Session:
        """Delete all but the oldest. `created`: the Session just made, which the list may not show yet."""
        sessions = list(listed)
        if created is not None and all(session["id"] != created["id"] for session in sessions):
            sessions.insert(0, created)
        oldest: Session = min(reversed(sessions), key=_age_key)
        await self._delete([session for session in sessions if session["id"] != oldest["id"]])
        return oldest

    async def _delete(self, sessions: Sequence[Session]) -> None:
        usual = self._client.deadline
        for session in sessions:
            limit = time.monotonic() + self._delete_seconds
            self._client.deadline = limit if usual is None else min(usual, limit)
            try:
                await delete_session(self._client, session["id"])
                self.left.pop(session["id"], None)
            except AgentsAPIError as error:
                self.left[session["id"]] = str(error)
            finally:
                self._client.deadline = usual


def _age_key(session: Session) -> int:
    """Return what is smaller for an older Session; the list's order decides between those of one second."""
    created_at: object = session.get("created_at")
    return created_at if type(created_at) is int else 0
