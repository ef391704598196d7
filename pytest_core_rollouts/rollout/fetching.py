"""What a finished Turn left: its answer and the other files that its task asks for, within caps, and its trajectory."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

from pytest_core_rollouts.agents_api import TooLarge
from pytest_core_rollouts.grading.answers import ANSWER_LIMIT, Answer, read_answer
from pytest_core_rollouts.tasks.files import path_problem
from pytest_core_rollouts.tasks.task_settings import Outputs

if TYPE_CHECKING:
    from pytest_core_rollouts.agents_api import Artifact, Client

ANSWER_PATH = "/workspace/outputs/answer.json"
OUTPUTS = "/workspace/outputs/"
PATHS_SHOWN = 20
SHORT_ANSWER = 16 * 1024
"""Bytes of an answer that are read on the event loop; a longer one would hold up the other rollouts."""
ITEMS_LIMIT = 128 * 1024 * 1024
"""Bytes of a trajectory, as the Core sends it, that are read."""
OUTPUTS_MOST = 500
"""Files of one rollout that are fetched beside the answer; each is a request."""


async def fetch_answer(client: Client, session_id: str, turn_id: str | None) -> Answer:
    """The answer: the newest Artifact at exactly ANSWER_PATH, one of Turn `turn_id` before any other.

    An answer that is missing or too large is one with a `problem`. Raises AgentsAPIError, ShortRead among them:
    what did not arrive whole is never an answer.
    """
    seen = [artifact async for artifact in client.list_artifacts(session_id)]
    answers = [artifact for artifact in seen if artifact.get("path") == ANSWER_PATH]
    if not answers:
        return Answer(problem=f"{ANSWER_PATH} not found; Artifacts seen: {_paths(seen)}")
    newest = _newest(answers, turn_id)
    size = newest.get("size_bytes")
    if isinstance(size, int) and size > ANSWER_LIMIT:
        return Answer(problem=f"{ANSWER_PATH} has {size:,} bytes; at most {ANSWER_LIMIT:,} are read")
    try:
        data = await client.artifact_content(session_id, newest, max_bytes=ANSWER_LIMIT)
    except TooLarge as error:  # the metadata lied, or did not say
        return Answer(problem=f"{ANSWER_PATH}: {error.problem}")
    return read_answer(data) if len(data) <= SHORT_ANSWER else await asyncio.to_thread(read_answer, data)


async def fetch_outputs(
    client: Client, session_id: str, turn_id: str | None, outputs: Outputs
) -> tuple[dict[str, bytes], list[str]]:
    """The files that `outputs` names, by their paths below /workspace/outputs, and notes on what is not among them.

    Of each path the newest. What is over a cap is left out, and noted. Raises AgentsAPIError, as for the answer.
    """
    versions: dict[str, list[Artifact]] = {}
    async for artifact in client.list_artifacts(session_id):
        path = str(artifact.get("path"))
        if path != ANSWER_PATH and path.startswith(OUTPUTS):
            versions.setdefault(path.removeprefix(OUTPUTS), []).append(artifact)
    wanted = await asyncio.to_thread(_matching, list(versions), outputs)
    matched = set(wanted.values())
    notes = [f"outputs: no file is {pattern}" for pattern in outputs.files if pattern not in matched]
    found: dict[str, bytes] = {}
    left = outputs.max_total_bytes
    for path in wanted:
        if len(found) == OUTPUTS_MOST:
            notes.append(f"outputs: {len(wanted):,} files; {OUTPUTS_MOST} are fetched at most")
            break
        problem = "its name can't be kept" if path_problem(path) else None
        if problem is None:
            cap = min(outputs.max_bytes, left)
            content, problem = await _within(client, session_id, _newest(versions[path], turn_id), cap)
        if problem is None:
            found[path] = content
            left -= len(content)
        else:
            notes.append(f"outputs: {path[:200]!r} is left out: {problem}")
    return found, notes


def _matching(paths: list[str], outputs: Outputs) -> dict[str, str]:
    """The paths that a pattern matches, sorted, each with its first pattern."""
    return {path: pattern for path in sorted(paths) if (pattern := outputs.pattern_of(path)) is not None}


async def _within(client: Client, session_id: str, artifact: Artifact, cap: int) -> tuple[bytes, str | None]:
    """The content of an Artifact of at most `cap` bytes, or what is wrong with it."""
    size = artifact.get("size_bytes")
    if isinstance(size, int) and size > cap:
        return b"", f"it has {size:,} bytes; {cap:,} may still be fetched"
    try:
        return await client.artifact_content(session_id, artifact, max_bytes=cap), None
    except TooLarge as error:  # the metadata lied, or did not say
        return b"", error.problem


async def fetch_items(client: Client, session_id: str) -> tuple[list[dict[str, Any]], str | None]:
    """Every Item, oldest first, as returned; of a trajectory over ITEMS_LIMIT the beginning, and a note that says so.

    Raises AgentsAPIError.
    """
    items: list[dict[str, Any]] = []
    before = client.bytes_read
    async with aclosing(client.list_items(session_id)) as entries:
        async for item in entries:
            items.append(dict(item))
            if client.bytes_read - before > ITEMS_LIMIT:
                return items, f"the trajectory is cut after {len(items):,} Items: more than {ITEMS_LIMIT:,} bytes"
    return items, None


def _newest(versions: Sequence[Artifact], turn_id: str | None) -> Artifact:
    """The Turn's own before any other, else the newest: lists begin with it, and `max` keeps the first of equals."""
    return max(versions, key=lambda artifact: (artifact.get("turn_id") == turn_id, artifact.get("created_at") or 0))


def _paths(artifacts: Sequence[Artifact]) -> str:
    paths = sorted({str(artifact.get("path"))[:200] for artifact in artifacts})
    more = f" and {len(paths) - PATHS_SHOWN} more" if len(paths) > PATHS_SHOWN else ""
    return f"{paths[:PATHS_SHOWN]!r}{more}"
