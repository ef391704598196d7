"""Runs a real agent program in a sandbox and reads its events, for the harnesses codex and claude_sdk.

The agent can write to its program's output, so no event decides about the Turn, and malformed ones are skipped with a
warning. How the program ended is read from the sandbox's exit status, which the agent can't change.
"""

from __future__ import annotations

import asyncio
import json
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

from pytest_core_rollouts.embedded.installed import NotInstalled, Program
from pytest_core_rollouts.embedded.model import FORWARDER, inside_argv, inside_binds
from pytest_core_rollouts.embedded.sandbox import MountRefused
from pytest_core_rollouts.embedded.sandbox.files import is_host_fault

from .base import Ended, Job, TurnFailed, failure_of_exit, failure_of_killed_sandbox

if TYPE_CHECKING:
    from pytest_core_rollouts.embedded.sandbox import Sandbox

FOLDER = "/opt/agent"
"""The folder of programs in the sandbox."""
LINE_LIMIT = 32 * 1024 * 1024  # bytes of one event
EVENTS_LIMIT = 128 * 1024 * 1024  # bytes of all events of a Turn: they become Items, which this process keeps
LINES = 20_000  # of a Turn, events or not: each one costs this process time
NESTED = 50  # levels of one event
VALUES = 100_000  # in one event

_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,99}")

Event = Mapping[str, Any]


class Malformed(ValueError):
    """An event is invalid, so the agent wrote it and not its program; str: which member, and what was expected."""


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
    """Run a program with the prompt on its stdin until it ends; `on_event` gets each event that it prints.

    Raises TurnFailed if the program is not installed, its sandbox was killed, or it prints more than is kept.
    """
    assert job.proxy is not None, "Sessions without a model provider are refused"
    try:
        shown = list((await asyncio.to_thread(program)).binds(FOLDER))
    except NotInstalled as problem:
        raise TurnFailed("sandbox_error", f"On the embedded Core's machine {problem}.") from None
    binds = [(await asyncio.to_thread(sandbox.reachable, path), target) for path, target in shown]
    forwarder = await asyncio.to_thread(sandbox.reachable, FORWARDER)
    lines = EventLines(on_event)
    try:
        done = await sandbox.run(
            inside_argv([shown[0][1], *arguments]),
            env={**job.env, **env},
            stdin=prompt.encode(),
            on_output=lines.feed,
            output_limit=0,
            binds=[*binds, *inside_binds(job.proxy.socket_path, forwarder)],
        )
    except MountRefused as refusal:
        raise TurnFailed("sandbox_error", str(refusal)) from None
    job.warnings.extend(lines.warnings())
    if done.killed:
        raise failure_of_killed_sandbox(done)
    return Ended(done.returncode, lines.last_output.strip(), done.machine_oom)


async def write_settings(job: Job, sandbox: Sandbox, files: Iterable[tuple[str, bytes]]) -> None:
    """Write the program's settings into the home, which the agent may have changed in an earlier Turn.

    Raises TurnFailed if the agent made that impossible, OSError for a fault of the machine.
    """
    try:
        await asyncio.to_thread(sandbox.write_home, files)
    except OSError as error:
        if not job.memory or is_host_fault(error):
            raise
        message = f"The agent changed its home so that its program's settings can't be written: {error}."
        raise TurnFailed("outputs_rejected", message) from None


class EventLines:
    """Splits a program's output into lines and passes on each one that is a JSON object with a `type`.

    `last_output`: the end of the program's stderr or, if that is empty, the last line that is not an event.
    """

    def __init__(self, on_event: Callable[[Event], None]) -> None:
        self.last_output = ""
        self._on_event = on_event
        self._pending = bytearray()
        self._bytes = 0
        self._lines = 0
        self._malformed = 0
        self._first_malformed = ""

    def feed(self, chunk: bytes) -> None:
        self._bytes += len(chunk)
        _refuse_excess(self._bytes, EVENTS_LIMIT, "bytes of events")
        *lines, rest = chunk.split(b"\n")
        for line in lines:
            self._lines += 1
            _refuse_excess(self._lines, LINES, "lines")
            self._take(bytes(self._pending) + line)
            self._pending.clear()
        self._pending += rest
        _refuse_excess(len(self._pending), LINE_LIMIT, "bytes in one event")

    def warnings(self) -> list[str]:
        """Return a warning if events were skipped."""
        if not self._malformed:
            return []
        count = "1 event" if self._malformed == 1 else f"{self._malformed} events"
        return [f"{count} of the agent program skipped as malformed; the first: {self._first_malformed}"]

    def _take(self, line: bytes) -> None:
        try:
            event = json.loads(line, parse_constant=_refuse)
        except (ValueError, RecursionError):
            event = None
        if not isinstance(event, dict) or "type" not in event:
            self.last_output = line.decode("utf-8", "replace").strip()[-500:] or self.last_output
            return
        try:
            self._handle(event)
        except Exception as problem:  # noqa: BLE001 - an agent can write anything there, and must not end the Turn
            self._malformed += 1
            if not self._first_malformed:
                why = str(problem) if isinstance(problem, Malformed) else type(problem).__name__
                self._first_malformed = f"{line[:200].decode('utf-8', 'replace')} ({why})"

    def _handle(self, event: dict[str, Any]) -> None:
        if not isinstance(event["type"], str):
            raise Malformed("type: expected a string")
        check_values(event)
        if event["type"] != "exit":
            self._on_event(event)
        elif event.keys() == {"type", "stderr"} and isinstance(event["stderr"], str):
            self.last_output = event["stderr"].strip()[-500:] or self.last_output
        else:
            raise Malformed("exit: expected only stderr, a string")


def failed(job: Job, reported: str, ended: Ended) -> TurnFailed:
    """Return why a program failed. `reported`: the error in its events."""
    assert job.proxy is not None
    return failure_of_exit(job.proxy, reported, ended)


def text_of(value: Any) -> str:
    """Return a value of an event as a text: a string as it is, None as "", all else as JSON."""
    return value if isinstance(value, str) else "" if value is None else json.dumps(value)


def id_of(value: Any, what: str) -> str:
    """Return an id in an event. Raises Malformed."""
    if not isinstance(value, str) or not _ID.fullmatch(value):
        raise Malformed(f"{what}: expected an id")
    return value


def check_values(event: Any) -> None:
    """Raise Malformed for a value that is large or deeply nested, or that JSON can't hold, such as 1e999."""
    level, count = [event], 0
    for _ in range(NESTED + 1):
        count += len(level)
        if count > VALUES:
            raise Malformed(f"more than {VALUES} values")
        if any(isinstance(value, float) and not math.isfinite(value) for value in level):
            raise Malformed("a number beyond a float")
        level = [member for value in level if isinstance(value, (dict, list)) for member in _members(value)]
        if not level:
            return
    raise Malformed(f"nested deeper than {NESTED} levels")


def _members(value: dict[str, Any] | list[Any]) -> Iterable[Any]:
    return value.values() if isinstance(value, dict) else value


def _refuse_excess(count: int, bound: int, what: str) -> None:
    if count > bound:
        raise TurnFailed("sandbox_limit_exceeded", f"The agent program printed more than {bound} {what}.")


def _refuse(constant: str) -> NoReturn:
    raise ValueError(constant)
