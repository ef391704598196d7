"""Fetch what a Turn left: its answer, the other files that its task asks for, and its trajectory."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

from pytest_core_rollouts.agents_api import TooLarge
from pytest_core_rollouts.agents_api.errors import short_line
from pytest_core_rollouts.grading.answers import ANSWER_LIMIT, NO_FILES, Answer, read_answer
from pytest_core_rollouts.tasks.files import path_problem
from pytest_core_rollouts.tasks.task_settings import Outputs

if TYPE_CHECKING:
    from pytest_core_rollouts.agents_api import Artifact, Client

OUTPUTS = "/workspace/outputs/"
ANSWER_PATH = f"{OUTPUTS}answer.json"
MAX_PATHS_SHOWN = 20
MAX_INLINE_ANSWER = 16 * 1024
"""Bytes of an answer that are parsed on the event loop. A longer one is parsed in a thread."""
MAX_ITEMS_BYTES = 128 * 1024 * 1024
"""Bytes of a trajectory, as the Core sends it, that are read."""
MAX_OUTPUTS = 500
"""Files of one rollout that are fetched in addition to the answer. Each needs a request."""


async def fetch_answer(client: Client, session_id: str, turn_id: str | None) -> Answer:
    """Return the answer: the newest Artifact at exactly ANSWER_PATH, preferably one of the Turn `turn_id`.

    If it is missing or too large, the Answer has a `problem`. Raises AgentsAPIError if it can't be fetched whole.
    """
    artifacts = [artifact async for artifact in client.list_artifacts(session_id)]
    answers = [artifact for artifact in artifacts if artifact.get("path") == ANSWER_PATH]
    if not answers:
        return Answer(problem=_no_answer(artifacts))
    newest = _newest(answers, turn_id)
    size = newest.get("size_bytes")
    if isinstance(size, int) and size > ANSWER_LIMIT:
        return Answer(problem=f"{ANSWER_PATH} has {size:,} bytes; at most {ANSWER_LIMIT:,} are read")
    try:
        data = await client.artifact_content(session_id, newest, max_bytes=ANSWER_LIMIT)
    except TooLarge as error:  # `size_bytes` was missing or wrong
        return Answer(problem=f"{ANSWER_PATH}: {error.problem}")
    return read_answer(data) if len(data) <= MAX_INLINE_ANSWER else await asyncio.to_thread(read_answer, data)


async def fetch_outputs(
    client: Client, session_id: str, turn_id: str | None, outputs: Outputs
) -> tuple[dict[str, bytes], list[str]]:
    """Return the files that match `outputs`, by their paths below /workspace/outputs, and notes.

    Of several files with one path, the newest is fetched. Files over a cap are left out and noted.
    Raises AgentsAPIError if a file can't be fetched whole.
    """
    versions: dict[str, list[Artifact]] = {}
    async for artifact in client.list_artifacts(session_id):
        path = str(artifact.get("path"))
        if path != ANSWER_PATH and path.startswith(OUTPUTS):
            versions.setdefault(path.removeprefix(OUTPUTS), []).append(artifact)
    matches = await asyncio.to_thread(_matches, list(versions), outputs)
    matched = set(matches.values())
    notes = [f"outputs: no file matches {pattern}" for pattern in outputs.files if pattern not in matched]
    files: dict[str, bytes] = {}
    bytes_left = outputs.max_total_bytes
    for path in matches:
        if len(files) == MAX_OUTPUTS:
            notes.append(f"outputs: {len(matches):,} files match; only {MAX_OUTPUTS} are fetched")
            break
        problem = "its name can't be kept" if path_problem(path) else None
        if problem is None:
            cap = min(outputs.max_bytes, bytes_left)
            content, problem = await _fetch_capped(client, session_id, _newest(versions[path], turn_id), cap)
        if problem is None:
            files[path] = content
            bytes_left -= len(content)
        else:
            notes.append(f"outputs: {path[:200]!r} is left out: {problem}")
    return files, notes


def _matches(paths: list[str], outputs: Outputs) -> dict[str, str]:
    """Return the sorted paths that match a pattern, each with its first pattern."""
    return {path: pattern for path in sorted(paths) if (pattern := outputs.pattern_of(path)) is not None}


async def _fetch_capped(client: Client, session_id: str, artifact: Artifact, cap: int) -> tuple[bytes, str | None]:
    """Return the content of an Artifact of at most `cap` bytes, or why it is missing."""
    size = artifact.get("size_bytes")
    if isinstance(size, int) and size > cap:
        return b"", f"it has {size:,} bytes; {cap:,} may still be fetched"
    try:
        return await client.artifact_content(session_id, artifact, max_bytes=cap), None
    except TooLarge as error:  # `size_bytes` was missing or wrong
        return b"", error.problem


async def fetch_items(client: Client, session_id: str) -> tuple[list[dict[str, Any]], str | None]:
    """Return the Items, oldest first, and None; of a trajectory over MAX_ITEMS_BYTES only its start, and a note.

    Raises AgentsAPIError.
    """
    items: list[dict[str, Any]] = []
    before = client.bytes_read
    async with aclosing(client.list_items(session_id)) as entries:
        async for item in entries:
            items.append(dict(item))
            if client.bytes_read - before > MAX_ITEMS_BYTES:
                return items, f"the trajectory is cut after {len(items):,} Items: more than {MAX_ITEMS_BYTES:,} bytes"
    return items, None


def _newest(versions: Sequence[Artifact], turn_id: str | None) -> Artifact:
    """Return the newest Artifact, preferably one of the Turn. Lists start with the newest, which wins a tie."""

    def rank(artifact: Artifact) -> tuple[bool, int]:
        created_at: object = artifact.get("created_at")
        return artifact.get("turn_id") == turn_id, created_at if isinstance(created_at, int) else 0

    return max(versions, key=rank)


def _no_answer(artifacts: Sequence[Artifact]) -> str:
    """Return why there is no answer, with the paths of other files, which may hint at the mistake."""
    if not artifacts:
        return NO_FILES
    paths = sorted({short_line(str(artifact.get("path")), 200) for artifact in artifacts})
    more = f" and {len(paths) - MAX_PATHS_SHOWN} more" if len(paths) > MAX_PATHS_SHOWN else ""
    return f"no answer.json; files found: {', '.join(paths[:MAX_PATHS_SHOWN])}{more}"
