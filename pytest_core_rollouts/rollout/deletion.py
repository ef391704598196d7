"""The end of a Session: deleted, with its Turn ended first where that is what keeps it busy."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

from pytest_core_rollouts.agents_api import AgentsAPIError, APIStatusError, DeadlinePassed

if TYPE_CHECKING:
    from pytest_core_rollouts.agents_api import Client

PAUSE_FIRST, PAUSE_MOST = 0.05, 1.0
"""Seconds between two tries to delete a busy Session: the first, and the most after backing off."""


async def delete_session(client: Client, session_id: str) -> None:
    """Delete a Session before `client.deadline`, which must be set. One that is gone already is no fault.

    A busy Session gets a moment to settle, then is cancelled. Raises AgentsAPIError, the last refusal, where it can't
    be deleted in time.
    """
    assert client.deadline is not None, "a Session can stay busy for ever"
    pause, cancelled = PAUSE_FIRST, False
    busy: APIStatusError | None = None
    while True:
        try:
            await client.delete_session(session_id)
            return
        except DeadlinePassed as error:
            raise busy or error from None  # why it could not be deleted says more than that the time is over
        except APIStatusError as error:
            if error.status == 404:
                return
            if error.status != 409 or time.monotonic() + pause > client.deadline:
                raise
            if busy is not None and not cancelled:
                cancelled = await _try_cancel(client, session_id)
            busy = error
        await asyncio.sleep(pause)
        pause = min(pause * 1.5, PAUSE_MOST)


async def _try_cancel(client: Client, session_id: str) -> bool:
    """Ask for the Turn's end; False where that can't be asked yet: its input still waits for the sandbox."""
    try:
        await client.cancel(session_id)
    except AgentsAPIError:
        return False  # the next try to delete says what is wrong
    return True
