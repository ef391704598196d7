"""One Turn: its state and times. What happens in it is written by its Trajectory."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from .harnesses import Usage
from .ids import new_uuid
from .model.tokens import sum_of
from .trajectory import Item, Publish, Trajectory


class Turn:
    """queued -> in_progress -> completed | failed | cancelled; a queued Turn can be cancelled directly."""

    def __init__(self, session_id: str, agent_id: str, items: list[Item], publish: Publish) -> None:
        self.id = new_uuid()
        self.status = "queued"
        self.usage: Usage | None = None
        self.cancelling = False  # somebody asked for it
        self.settling = False  # the agent is done and its outputs are being captured: completion wins
        self.trajectory = Trajectory(self.id, items, publish)
        self.warnings: list[str] = []  # an extension of the wire: absent if empty
        self._session_id = session_id
        self._agent_id = agent_id
        self._created_at = int(time.time())
        self._started_at: int | None = None
        self._completed_at: int | None = None
        self._error: dict[str, str] | None = None

    @property
    def ended(self) -> bool:
        return self._completed_at is not None

    def start(self) -> None:
        self.status = "in_progress"
        self._started_at = int(time.time())

    def end(self, status: str, error: dict[str, str] | None = None) -> None:
        self.trajectory.interrupt()
        self.status = status
        self._error = error
        self._completed_at = int(time.time())

    def wire(self) -> dict[str, Any]:
        """The API's Turn; times are Unix seconds."""
        return {
            "id": self.id,
            "object": "agent.session.turn",
            "session_id": self._session_id,
            "agent_id": self._agent_id,
            "subagent_id": None,
            "status": self.status,
            "error": self._error,
            "usage": self.usage,
            "created_at": self._created_at,
            "started_at": self._started_at,
            "completed_at": self._completed_at,
            **({"warnings": self.warnings} if self.warnings else {}),
        }


def total_usage(turns: Sequence[Turn]) -> Usage | None:
    """The Turns' usage in sum; None (unknown, not zero) while one runs or where one is not known."""
    if not turns or any(not turn.ended or turn.usage is None for turn in turns):
        return None
    return sum_of([turn.usage for turn in turns if turn.usage is not None])
