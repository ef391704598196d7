"""Capture: what was asked of a model and what it replied, a line an exchange, a file a rollout."""

from __future__ import annotations

import fcntl
import json
import math
import os
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pytest_core_rollouts.secret_values import is_secret

SCHEMA = 1
MASK = "[masked]"

_FILE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
_LINE_START = b'{"schema"'


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
        """Add a line, in one write, in place of half a line that a dead writer left. Blocks. Raises OSError."""
        line = json.dumps(_plain({"schema": SCHEMA, **self.labels, **exchange}), allow_nan=False, separators=(",", ":"))
        for secret in sorted(self.secrets, key=len, reverse=True):
            if is_secret(secret):
                once = json.dumps(secret)[1:-1]
                for form in (json.dumps(once)[1:-1], once):  # as in JSON that a text holds, and as in a text
                    line = line.replace(form, MASK)
        data = line.encode("ascii") + b"\n"
        file = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(file, fcntl.LOCK_EX)  # released by close
            end = _whole(file, self.path)
            os.ftruncate(file, end)
            if os.write(file, data) != len(data):
                os.ftruncate(file, end)
                raise OSError(f"{self.path}: only a part of a line could be written")
        finally:
            os.close(file)


def _whole(file: int, path: Path) -> int:
    """Where the file's last whole line ends. Raises OSError where what follows it is nothing of ours."""
    start, tail = os.fstat(file).st_size, b""
    while start and b"\n" not in tail:
        block = min(start, 1 << 16)
        start -= block
        tail = os.pread(file, block, start) + tail
    half = tail[tail.rfind(b"\n") + 1 :].rstrip(b"\0")  # a power cut can leave more than was written
    if not (half.startswith(_LINE_START) or _LINE_START.startswith(half)):
        raise OSError(f"{path}: its last line is no exchange with a model, and is left alone")
    return start + tail.rfind(b"\n") + 1


def _plain(value: Any) -> Any:
    """JSON as it came, without the NaN and Infinity that Python's reader lets in."""
    if isinstance(value, dict):
        return {name: _plain(member) for name, member in value.items()}
    if isinstance(value, list):
        return [_plain(member) for member in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
