"""A pytest that is running: watched, signalled and killed from outside, as a user, a CI or the kernel would."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.integration.conftest import Project

PATIENCE = 300.0
"""Seconds after which a test counts as hanging; on an idle machine each wait takes about one."""


def until(condition: Callable[[], object], what: str, seconds: float = PATIENCE) -> None:
    """Wait until `condition` holds."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"not within {seconds:g} s: {what}"
        time.sleep(0.02)


def alive(pid: int) -> bool:
    """Whether the process still runs; one that is dead and waits for its parent does not."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state not in "ZX"


def children(pid: int) -> list[int]:
    try:
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except (FileNotFoundError, ProcessLookupError):
        return []


def descendants(pid: int) -> list[int]:
    found = children(pid)
    return found + [below for child in found for below in descendants(child)]


@dataclass
class Ended:
    """How it ended."""

    code: int
    text: str


class Running:
    """`pytest ARGS` in its own process group, in the project's folder; `with` ends it for certain."""

    def __init__(self, project: Project, *args: str, env: Mapping[str, str] = {}, prefix: tuple[str, ...] = ()) -> None:
        self.project = project
        self._output = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the process
        self.process = subprocess.Popen(
            [*prefix, sys.executable, "-m", "pytest", *args],
            cwd=project.path,
            env={**os.environ, **env},
            stdin=subprocess.DEVNULL,
            stdout=self._output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        self.pid = self.process.pid

    def __enter__(self) -> Running:
        return self

    def __exit__(self, *exception: object) -> None:
        if exception[0] is not None:
            print(self.text)  # what a test that failed while it ran has to go by
        if self.process.poll() is None:
            for pid in [*descendants(self.pid), self.pid]:
                _kill(pid, signal.SIGKILL)
            self.process.wait()
        self._output.close()

    @property
    def text(self) -> str:
        """What it has written so far."""
        size = os.fstat(self._output.fileno()).st_size
        return os.pread(self._output.fileno(), size, 0).decode("utf-8", "replace")

    @property
    def workers(self) -> list[int]:
        """Its workers' pids."""
        return [pid for pid in children(self.pid) if b"exec(eval(" in _command(pid)]

    def signal(self, number: signal.Signals, *, group: bool = False) -> None:
        if group:
            os.killpg(self.pid, number)
        else:
            os.kill(self.pid, number)

    def end(self, seconds: float = PATIENCE) -> Ended:
        code = self.process.wait(seconds)
        return Ended(code, self.text)


def _command(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return b""


def kill(pid: int) -> None:
    """SIGKILL, as the kernel does when memory is short."""
    _kill(pid, signal.SIGKILL)


def _kill(pid: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


def rows(project: Project) -> list[dict[str, Any]]:
    """The rows of all runs, however large; none is there twice."""
    found = [json.loads(line) for path in project.results for line in path.read_bytes().split(b"\n") if line]
    twice = [key for key, count in Counter(row["rollout_id"] for row in found).items() if count > 1]
    assert not twice, twice
    return found


def statuses(project: Project) -> Counter[str]:
    """How many rows have which status."""
    return Counter(row["status"] for row in rows(project))
