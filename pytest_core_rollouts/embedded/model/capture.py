"""Capture: what was asked of a model and what it replied, a line an exchange, a file a rollout."""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SCHEMA = 1
MASK = "***"

_FILE_NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,127}")


@dataclass(frozen=True)
class Capture:
    """One Turn's lines. `labels` stand at the beginning of each; `secret` stands nowhere."""

    folder: Path
    labels: Mapping[str, Any]
    secret: str

    @property
    def path(self) -> Path:
        """DIR/ROLLOUT_ID.jsonl; a Session without a fitting rollout_id has its own id for a name."""
        name = self.labels["rollout_id"]
        if name is None or not _FILE_NAME.fullmatch(name):
            name = self.labels["session_id"]
        return self.folder / f"{name}.jsonl"

    def append(self, exchange: Mapping[str, Any]) -> None:
        """Add a line, in one write. Blocks. Raises OSError."""
        line = json.dumps(_plain({"schema": SCHEMA, **self.labels, **exchange}), allow_nan=False, separators=(",", ":"))
        for secret in {self.secret, json.dumps(self.secret)[1:-1]}:
            line = line.replace(secret, MASK)
        data = line.encode("ascii") + b"\n"
        file = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        try:
            if os.write(file, data) != len(data):
                raise OSError(f"{self.path}: only a part of a line could be written")
        finally:
            os.close(file)


def _plain(value: Any) -> Any:
    """JSON as it came, without the NaN and Infinity that Python's reader lets in."""
    if isinstance(value, dict):
        return {name: _plain(member) for name, member in value.items()}
    if isinstance(value, list):
        return [_plain(member) for member in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
