"""Sessions that a run left on the server: found by their metadata, cancelled, deleted, and named where that fails."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import cycle
from typing import TYPE_CHECKING

from pytest_core_rollouts.agents_api import AgentsAPIError
from pytest_core_rollouts.rollout.deletion import delete_session

if TYPE_CHECKING:
    from pytest_core_rollouts.agents_api import Client

CLIENTS = 4
"""Clients that delete at the same time."""


@dataclass
class Sweep:
    """What a sweep found: ids deleted; ids left, each with the reason; why the list itself could not be read."""

    deleted: list[str] = field(default_factory=list)
    left: dict[str, str] = field(default_factory=dict)
    kept: int = 0
    """Sessions of the run that were made too late to be meant."""
    problem: str | None = None


async def sweep(
    connect: Callable[[], Client],
    run_id: str,
    *,
    since: float | None,
    seconds: float,
    before: float | None = None,
    spare: str | None = None,
) -> Sweep:
    """Delete every Session of a run within `seconds`; with `spare`, a reason, only name them.

    Sessions are listed newest first, back to `since` (Unix time by our clock; None: all of them); those that were
    created after `before` are left alone. Raises nothing: what can't be listed or deleted is named in the Sweep.
    """
    found = Sweep()
    deadline = time.monotonic() + seconds
    mine: list[str] = []
    client = connect()
    client.deadline = deadline
    try:
        async for session in client.list_sessions():
            created = (session.get("created_at") or time.time()) - (client.server_ahead or 0.0)  # by our clock
            if since is not None and created < since:
                break
            if (session.get("metadata") or {}).get("run_id") != run_id:
                continue
            if before is not None and created > before:
                found.kept += 1
            elif spare is not None:
                found.left[session["id"]] = spare
            else:
                mine.append(session["id"])
    except AgentsAPIError as error:
        found.problem = str(error)
    finally:
        await client.aclose()
    await _delete_all(connect, mine, found, deadline)
    return found


async def _delete_all(connect: Callable[[], Client], session_ids: list[str], found: Sweep, deadline: float) -> None:
    """All at the same time: one that stays busy to the end must not keep others from being deleted."""
    clients = [connect() for _ in range(min(CLIENTS, len(session_ids)))]
    for client in clients:
        client.deadline = deadline
    try:
        await asyncio.gather(
            *(_delete(client, one, found) for client, one in zip(cycle(clients), session_ids, strict=False))
        )
    finally:
        for client in clients:
            await client.aclose()


async def _delete(client: Client, session_id: str, found: Sweep) -> None:
    try:
        await delete_session(client, session_id)
        found.deleted.append(session_id)
    except AgentsAPIError as error:
        found.left[session_id] = str(error)
