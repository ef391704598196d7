"""What the tests of the export share: files of rows, captures, and the command."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest

from pytest_core_rollouts.cli import main
from pytest_core_rollouts.records.record import RolloutRecord


class Exporter:
    """Runs the command in this process and keeps what it printed."""

    def __init__(self, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
        self._capture = capfdbinary
        self.out = b""
        self.err = ""

    def __call__(self, *arguments: str | Path, format: str = "groups") -> list[dict[str, Any]]:
        """The lines; the command must succeed."""
        assert self.run(*arguments, format=format) == 0, self.err
        return [json.loads(line) for line in self.out.splitlines()]

    def refused(self, *arguments: str | Path, format: str = "groups") -> str:
        """The one line that says why; nothing may have been written."""
        assert self.run(*arguments, format=format) == 4
        assert self.out == b""
        assert self.err.count("\n") == 1
        return self.err.removeprefix("ERROR: ").rstrip()

    def run(self, *arguments: str | Path, format: str = "groups") -> int:
        code = main(["export", "--format", format, *map(str, arguments)])
        self.out, err = self._capture.readouterr()
        self.err = err.decode()
        return code


def write(path: Path, *rows: RolloutRecord | Iterable[RolloutRecord]) -> Path:
    """Appends."""
    with path.open("ab") as file:
        for some in rows:
            for row in [some] if isinstance(some, RolloutRecord) else some:
                file.write(row.to_line())
    return path


def exchange(session_id: str, *, reply: str = "ok", **changes: Any) -> dict[str, Any]:
    """A line of a capture, as the embedded Core writes it."""
    line: dict[str, Any] = {
        "schema": 1,
        "session_id": session_id,
        "started_at": "2026-11-29T18:22:33.123Z",
        "duration_s": 0.5,
        "protocol": "responses",
        "model": "my-policy",
        "path": "/responses",
        "status": 200,
        "error": None,
        "request": {"model": "my-policy", "input": [{"role": "user"}]},
        "response": {"output": [reply]},
        "streamed": True,
        "truncated": False,
        "prompt_token_ids": [1, 2],
        "token_ids": [3, 4],
        "logprobs": [-0.5, -1.0],
    }
    return {**line, **changes}


def capture(folder: Path, rollout_id: str, *lines: Mapping[str, Any]) -> Path:
    folder.mkdir(exist_ok=True)
    path = folder / f"{rollout_id}.jsonl"
    with path.open("a") as file:
        file.writelines(json.dumps(line) + "\n" for line in lines)
    return path
