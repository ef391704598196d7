"""Sessions that a run left on the server: found by their metadata, cancelled, deleted, and named where that fails."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pytest_core_rollouts.agents_api import AgentsAPIError, APIStatusError

if TYPE_CHECKING:
    from pytest_core_rollouts.agents_api import Client, Session

BUSY_PAUSE = 0.3
"""Seconds between two tries to delete a Session that is still busy."""


@dataclass
class Sweep:
    """What a sweep found: ids deleted; ids left, each with the reason; why the list itself could not be read."""

    deleted: list[str] = field(default_factory=list)
    left: dict[str, str] = field(default_factory=dict)
    problem: str | None = None


async def sweep(connect: Callable[[], Client], run_id: str, *, since: float | None, seconds: float) -> Sweep:
    """Delete every Session of a run within `seconds`.

    Sessions are listed newest first, back to `since` (Unix time; None: all of them).
    """
    found = Sweep()
    client = connect()
    client.deadline = time.monotonic() + seconds
    try:
        for session in await _sessions_of(client, run_id, since):
            await _remove(client, session["id"], found)
    except AgentsAPIError as error:
        found.problem = str(error)
    finally:
        await client.aclose()
    return found


async def _sessions_of(client: Client, run_id: str, since: float | None) -> list[Session]:
    mine = []
    async for session in client.list_sessions():
        if since is not None and session.get("created_at", since) < since:
            break
        if (session.get("metadata") or {}).get("run_id") == run_id:
            mine.append(session)
    return mine


async def _remove(client: Client, session_id: str, found: Sweep) -> None:
    cancelled = False
    while True:
        try:
            await client.delete_session(session_id)
            found.deleted.append(session_id)
            return
        except APIStatusError as error:
            if error.status == 404:
                return
            if error.status != 409 or client.deadline is None or time.monotonic() + BUSY_PAUSE > client.deadline:
                found.left[session_id] = str(error)
                return
        except AgentsAPIError as error:
            found.left[session_id] = str(error)
            return
        if not cancelled:
            cancelled = await _cancelled(client, session_id)
        await asyncio.sleep(BUSY_PAUSE)


async def _cancelled(client: Client, session_id: str) -> bool:
    """Ask for the Turn's end; False where the Session can't be cancelled yet (it waits for its sandbox)."""
    try:
        await client.cancel(session_id)
    except AgentsAPIError:
        return False  # the next deletion says what is wrong
    return True
