"""Capture: what was asked of a model and what it replied, a line an exchange, a file a rollout."""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

SCHEMA = 1
MASK = "[masked]"
MIN_SECRET = 8  # characters; a shorter one would eat ordinary words

_FILE_NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,127}")


@dataclass(frozen=True)
class Capture:
    """One Turn's lines. `labels` stand at the beginning of each; `secrets` stand nowhere."""

    folder: Path
    labels: Mapping[str, Any]
    secrets: Collection[str] = field(default=(), repr=False)

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
        for secret in sorted(self.secrets, key=len, reverse=True):
            if len(secret) >= MIN_SECRET:
                once = json.dumps(secret)[1:-1]
                for form in (json.dumps(once)[1:-1], once):  # as in JSON that a text holds, and as in a text
                    line = line.replace(form, MASK)
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
