"""Artifacts: copies of a completed Turn's outputs, kept on disk until their Session is deleted."""

from __future__ import annotations

import shutil
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .ids import new_uuid
from .sandbox import Sandbox


@dataclass(frozen=True)
class Artifact:
    """One published file. `path` is where it lay in the sandbox, `file` its immutable copy here."""

    id: str
    path: str
    size: int
    file: Path
    session_id: str
    environment_id: str
    turn_id: str
    created_at: int

    def wire(self) -> dict[str, Any]:
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


def capture(sandbox: Sandbox, into: Path, *, session_id: str, environment_id: str, turn_id: str) -> list[Artifact]:
    """Copy the outputs into a new folder `into`, all or none. Blocks.

    Raises OutputsRejected where the API's rules say so, OSError where they can't be copied.
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
