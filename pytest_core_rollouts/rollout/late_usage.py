"""Usage that a server reports only some time after its Turn has ended.

A Session is deleted soon after its Turn, and its usage with it. So a Turn without usage is read again for a few
seconds, where usage can be expected.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from pytest_core_rollouts.rollout.dialects import Dialect
from pytest_core_rollouts.rollout.turn_watch import ENDED

if TYPE_CHECKING:
    from pytest_core_rollouts.agents_api import Client
    from pytest_core_rollouts.agents_api.types import Usage

FIRST_PAUSE, LONGEST_PAUSE = 0.2, 1.0
"""Seconds between two reads of the Turn: the first pause, and the longest after doubling."""


class LateUsage:
    """Which harnesses report usage, as far as this process has seen."""

    def __init__(self) -> None:
        self._reporting: set[str] = set()
        self._silent: set[str] = set()

    def is_expected(self, dialect: Dialect, harness: str, turn: Mapping[str, Any] | None) -> bool:
        """Return whether the Turn has ended without usage and may still get it."""
        if turn is None or turn.get("status") not in ENDED:
            return False
        if turn.get("usage") is not None:
            self._reporting.add(harness)
            return False
        if dialect.always_reports_usage:
            return True
        if turn["status"] != "completed":
            return False
        return harness in self._reporting or (dialect.may_report_usage(harness) and harness not in self._silent)

    async def read(self, client: Client, session_id: str, harness: str, seconds: float) -> Usage | None:
        """Return the usage of the Session's Turn as soon as the server has it, None if it has not within `seconds`.

        A harness that has never reported any is not waited for again. Raises AgentsAPIError.
        """
        deadline, pause = time.monotonic() + seconds, FIRST_PAUSE
        while time.monotonic() + pause < deadline:
            await asyncio.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE)
            turn = await client.latest_turn(session_id)
            usage = None if turn is None else turn.get("usage")
            if isinstance(usage, dict):
                self._reporting.add(harness)
                return usage
        self._silent.add(harness)
        return None
