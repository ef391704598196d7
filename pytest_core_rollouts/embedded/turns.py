"""A Turn: its state and times, and the Artifacts that it leaves. Its Items are in `trajectory`."""

from __future__ import annotations

import shutil
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .harnesses import Usage
from .ids import new_uuid
from .model.tokens import sum_of
from .sandbox import Sandbox
from .trajectory import Item, Publish, Trajectory


class Turn:
    """queued -> in_progress -> completed | failed | cancelled; a queued Turn can be cancelled directly."""

    def __init__(self, session_id: str, agent_id: str, items: list[Item], publish: Publish) -> None:
        self.id = new_uuid()
        self.status = "queued"
        self.usage: Usage | None = None
        self.cancelling = False  # a client asked for it
        self.settling = False  # the agent is done and its outputs are being captured; cancelling has no effect
        self.trajectory = Trajectory(self.id, items, publish)
        self.warnings: list[str] = []  # an extension of the API, absent if empty
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
        """Return the API's Turn; times are Unix seconds."""
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
    """Return the sum of the Turns' usage; None (unknown, not zero) if a Turn runs or its usage is unknown."""
    if not turns or any(not turn.ended or turn.usage is None for turn in turns):
        return None
    return sum_of([turn.usage for turn in turns if turn.usage is not None])


@dataclass(frozen=True)
class Artifact:
    """A copy of one output file of a completed Turn, kept until it or its Session is deleted.

    `path` is where it was in the sandbox, `file` the copy on this machine.
    """

    id: str
    path: str
    size: int
    file: Path
    session_id: str
    environment_id: str
    turn_id: str
    created_at: int

    def wire(self) -> dict[str, Any]:
        """Return the API's Artifact."""
        return {
            "id": self.id,
            "object": "agent.session.artifact",
            "path": self.path,
            "size_bytes": self.size,
            "session_id": self.session_id,
            "environment_id": self.environment_id,
            "turn_id": self.turn_id,
            "created_at": self.created_at,
        }


def capture_artifacts(
    sandbox: Sandbox, into: Path, *, session_id: str, environment_id: str, turn_id: str
) -> list[Artifact]:
    """Copy a sandbox's outputs into a new folder `into`, all or none. Blocks.

    Raises OutputsRejected if the outputs break the API's rules, OSError if they can't be copied.
    """
    into.mkdir(mode=0o700, parents=True)
    try:
        files = sandbox.collect_outputs(into)
    except BaseException:
        shutil.rmtree(into, ignore_errors=True)
        raise
    created_at = int(time.time())
    return [
        Artifact(
            id=new_uuid(),
            path=captured.path,
            size=captured.size,
            file=captured.file,
            session_id=session_id,
            environment_id=environment_id,
            turn_id=turn_id,
            created_at=created_at,
        )
        for captured in files
    ]
