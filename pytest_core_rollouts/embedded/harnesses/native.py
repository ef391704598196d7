"""What harnesses that run a real agent program share: its start in the sandbox, its events line by line, its end."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pytest_core_rollouts.embedded.installed import NotInstalled, Program
from pytest_core_rollouts.embedded.model import FORWARDER, inside_argv, inside_binds

from .base import Job, TurnFailed

if TYPE_CHECKING:
    from pytest_core_rollouts.embedded.sandbox import Sandbox

FOLDER = "/opt/agent"
"""Where a program is shown in the sandbox."""
LINE_LIMIT = 32 * 1024 * 1024  # bytes of one event
EVENTS_LIMIT = 128 * 1024 * 1024  # bytes of all events of a Turn: they become Items, which this process keeps
EVENTS = 20_000  # of a Turn

Event = Mapping[str, Any]


class Ended:
    """How a program ended: exit status, and what it said on stderr last."""

    def __init__(self, status: int, stderr: str) -> None:
        self.status = status
        self.stderr = stderr.strip()


async def run_program(
    program: Callable[[], Program],
    arguments: Sequence[str],
    job: Job,
    sandbox: Sandbox,
    *,
    env: Mapping[str, str],
    prompt: str,
    on_event: Callable[[Event], None],
) -> Ended:
    """Run a program with the prompt on its stdin until it ends; `on_event` hears each line of JSON it prints.

    Raises TurnFailed when it is not installed, its sandbox was killed, or it prints beyond all measure.
    """
    assert job.proxy is not None, "a creation without a model provider is refused"
    try:
        shown = list((await asyncio.to_thread(program)).binds(FOLDER))
    except NotInstalled as problem:
        raise TurnFailed("sandbox_error", f"On the embedded Core's machine {problem}.") from None
    binds = [(await asyncio.to_thread(sandbox.reachable, path), target) for path, target in shown]
    forwarder = await asyncio.to_thread(sandbox.reachable, FORWARDER)
    lines = EventLines(on_event)
    done = await sandbox.run(
        inside_argv([shown[0][1], *arguments]),
        env={**job.env, **env},
        stdin=prompt.encode(),
        on_output=lines.feed,
        output_limit=0,
        binds=[*binds, *inside_binds(job.proxy.socket_path, forwarder)],
    )
    if done.killed:
        raise TurnFailed("sandbox_error", f"The sandbox was killed: {done.killed}.")
    return lines.ended or Ended(done.returncode, lines.last_words)


class EventLines:
    """Takes a program's output in any pieces; hands over each line that is a JSON object with a `type`.

    `ended` is what the forwarder said last; `last_words` the last line that was no event.
    """

    def __init__(self, on_event: Callable[[Event], None]) -> None:
        self.ended: Ended | None = None
        self.last_words = ""
        self._on_event = on_event
        self._pending = bytearray()
        self._bytes = 0
        self._events = 0

    def feed(self, chunk: bytes) -> None:
        self._bytes += len(chunk)
        if self._bytes > EVENTS_LIMIT or self._events > EVENTS or len(self._pending) > LINE_LIMIT:
            raise TurnFailed("sandbox_error", "The agent program printed more events than can be kept.")
        *lines, rest = chunk.split(b"\n")
        for line in lines:
            self._take(bytes(self._pending) + line)
            self._pending.clear()
        self._pending += rest

    def _take(self, line: bytes) -> None:
        try:
            event = json.loads(line)
        except (ValueError, RecursionError):
            event = None
        if not isinstance(event, dict) or not isinstance(event.get("type"), str):
            self.last_words = line.decode("utf-8", "replace").strip()[-500:] or self.last_words
        elif event["type"] == "exit":
            self.ended = Ended(int(event.get("status", 1)), str(event.get("stderr", "")))
        else:
            self._events += 1
            self._on_event(event)


def failed(job: Job, said: str, ended: Ended) -> TurnFailed:
    """Why a program did not do its work: what the proxy saw of its model goes before what the program says."""
    assert job.proxy is not None
    if (failure := job.proxy.failure) is not None:
        return TurnFailed(failure.code, failure.message)
    words = said or ended.stderr[-500:] or "it said nothing"
    return TurnFailed("internal_error", f"The agent program ended with status {ended.status}: {words}")


def text_of(value: Any) -> str:
    """A text out of a program's event, whatever stands there."""
    return value if isinstance(value, str) else "" if value is None else json.dumps(value)
