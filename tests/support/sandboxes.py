"""What the tests of sandboxes share."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pytest_core_rollouts.embedded.sandbox import Completed, Isolation, Sandbox


@contextmanager
def new_sandbox(isolation: Isolation) -> Iterator[Sandbox]:
    sandbox = Sandbox(isolation, isolation.sessions / uuid.uuid4().hex)
    try:
        yield sandbox
    finally:
        sandbox.destroy()


def run(sandbox: Sandbox, script: str, *args: str, **options: Any) -> Completed:
    """Run a bash script in the sandbox, in its own event loop."""
    options.setdefault("env", {})
    options.setdefault("timeout", 60.0)
    return asyncio.run(sandbox.run(["bash", "-c", script, "script", *args], **options))


def text(completed: Completed) -> str:
    return completed.output.decode()


def folders(isolation: Isolation) -> list[Path]:
    """The Sessions' folders that are there."""
    return list(isolation.sessions.iterdir())


def processes_with(token: str) -> list[int]:
    """Pids of processes, on the whole machine, with the token on their command line."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            line = (process / "cmdline").read_bytes()
        except (FileNotFoundError, ProcessLookupError):
            continue
        if token.encode() in line:
            found.append(int(process.name))
    return found


def wait_until_gone(token: str, seconds: float) -> list[int]:
    """The processes with the token that are still there after so long."""
    deadline = time.monotonic() + seconds
    while (left := processes_with(token)) and time.monotonic() < deadline:
        time.sleep(0.01)
    return left
