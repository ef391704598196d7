"""Delete Sessions: the one of a rollout, and those that a run left on the Core.

A run finds its leftovers by their metadata. What can't be deleted is named, so that its owner can delete it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Container
from dataclasses import dataclass, field
from itertools import cycle
from typing import TYPE_CHECKING

from pytest_core_rollouts.agents_api import AgentsAPIError, APIStatusError, DeadlinePassed

if TYPE_CHECKING:
    from pytest_core_rollouts.agents_api import Client

FIRST_PAUSE, LONGEST_PAUSE = 0.05, 1.0
"""Seconds between two tries to delete a busy Session: the first pause, and the longest."""
MAX_CLIENTS = 4
"""Clients of a sweep that delete at the same time."""


async def delete_session(client: Client, session_id: str) -> None:
    """Delete a Session before `client.deadline`, which must be set.

    A busy Session is cancelled if it is still busy at the second try. A missing Session is not a fault.
    Raises AgentsAPIError if it can't be deleted in time: the last refusal, if there was one.
    """
    assert client.deadline is not None, "a Session can stay busy forever"
    pause, cancelled = FIRST_PAUSE, False
    busy: APIStatusError | None = None
    while True:
        try:
            await client.delete_session(session_id)
            return
        except DeadlinePassed as error:
            raise busy or error from None  # the refusal says why there was not enough time
        except APIStatusError as error:
            if error.status == 404:
                return
            if error.status != 409 or time.monotonic() + pause > client.deadline:
                raise
            if busy is not None and not cancelled:
                cancelled = await _cancel(client, session_id)
            busy = error
        await asyncio.sleep(pause)
        pause = min(pause * 1.5, LONGEST_PAUSE)


async def _cancel(client: Client, session_id: str) -> bool:
    """Cancel the Turn. Returns False if that is not possible yet, such as while its input waits for the sandbox."""
    try:
        await client.cancel(session_id)
    except AgentsAPIError:
        return False  # if something is wrong, the next try to delete fails too
    return True


@dataclass
class Sweep:
    """The Sessions of a run that were found on the Core."""

    deleted: list[str] = field(default_factory=list)
    left: dict[str, str] = field(default_factory=dict)
    """Why each Session that is still there was not deleted, by its id."""
    kept: int = 0
    """How many Sessions were created after `before`, and therefore kept."""
    problem: str | None = None
    """Why the list of Sessions could not be read to its end."""


async def sweep(
    connect: Callable[[], Client],
    run_id: str,
    *,
    since: float | None,
    seconds: float,
    before: float | None = None,
    spare: str | None = None,
    rollouts: Container[str] | None = None,
) -> Sweep:
    """Delete every Session of a run within `seconds`.

    Only Sessions created from `since` to `before` (Unix times of our clock; None: no limit) are deleted, and only those
    of `rollouts`, given by their ids, if that is set. If `spare` is given, it is the reason why they are only named.
    Never raises AgentsAPIError: the Sweep names what could not be listed or deleted.
    """
    found = Sweep()
    deadline = time.monotonic() + seconds
    session_ids: list[str] = []
    client = connect()
    client.deadline = deadline
    try:
        async for session in client.list_sessions():
            created = (session.get("created_at") or time.time()) - (client.server_ahead or 0.0)  # by our clock
            if since is not None and created < since:
                break  # the list is sorted, newest first
            metadata = session.get("metadata") or {}
            if metadata.get("run_id") != run_id:
                continue
            if rollouts is not None and metadata.get("rollout_id") not in rollouts:
                continue
            if before is not None and created > before:
                found.kept += 1
            elif spare is not None:
                found.left[session["id"]] = spare
            else:
                session_ids.append(session["id"])
    except AgentsAPIError as error:
        found.problem = str(error)
    finally:
        await client.aclose()
    await _delete_all(connect, session_ids, found, deadline)
    return found


async def _delete_all(connect: Callable[[], Client], session_ids: list[str], found: Sweep, deadline: float) -> None:
    """Delete all at the same time: a Session that stays busy must not keep others from being deleted."""
    clients = [connect() for _ in range(min(MAX_CLIENTS, len(session_ids)))]
    for client in clients:
        client.deadline = deadline

    async def delete(client: Client, session_id: str) -> None:
        try:
            await delete_session(client, session_id)
            found.deleted.append(session_id)
        except AgentsAPIError as error:
            found.left[session_id] = str(error)

    try:
        await asyncio.gather(*(delete(*pair) for pair in zip(cycle(clients), session_ids, strict=False)))
    finally:
        for client in clients:
            await client.aclose()
