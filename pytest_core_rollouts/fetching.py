"""What a finished Turn left: its answer, within a cap, and its trajectory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from pytest_core_rollouts.agents_api import TooLarge
from pytest_core_rollouts.grading import ANSWER_LIMIT, Answer, read_answer

if TYPE_CHECKING:
    from pytest_core_rollouts.agents_api import Artifact, Client

ANSWER_PATH = "/workspace/outputs/answer.json"
PATHS_SHOWN = 20


async def fetch_answer(client: Client, session_id: str, turn_id: str | None) -> Answer:
    """The answer: the newest Artifact at exactly ANSWER_PATH, one of Turn `turn_id` before any other.

    An answer that is missing or too large is one with a `problem`. Raises AgentsAPIError, ShortRead among them:
    what did not arrive whole is never an answer.
    """
    seen = [artifact async for artifact in client.list_artifacts(session_id)]
    answers = [artifact for artifact in seen if artifact.get("path") == ANSWER_PATH]
    if not answers:
        return Answer(problem=f"{ANSWER_PATH} not found; Artifacts seen: {_paths(seen)}")
    # the list begins with the newest, and `max` keeps the first of equals
    newest = max(answers, key=lambda artifact: (artifact.get("turn_id") == turn_id, artifact.get("created_at") or 0))
    size = newest.get("size_bytes")
    if isinstance(size, int) and size > ANSWER_LIMIT:
        return Answer(problem=f"{ANSWER_PATH} has {size:,} bytes; at most {ANSWER_LIMIT:,} are read")
    try:
        data = await client.artifact_content(session_id, newest, max_bytes=ANSWER_LIMIT)
    except TooLarge as error:  # the metadata lied, or did not say
        return Answer(problem=f"{ANSWER_PATH}: {error.problem}")
    return read_answer(data)


async def fetch_items(client: Client, session_id: str) -> list[dict[str, Any]]:
    """Every Item, oldest first, as returned. Raises AgentsAPIError."""
    return [dict(item) async for item in client.list_items(session_id)]


def _paths(artifacts: Sequence[Artifact]) -> str:
    paths = sorted({str(artifact.get("path"))[:200] for artifact in artifacts})
    more = f" and {len(paths) - PATHS_SHOWN} more" if len(paths) > PATHS_SHOWN else ""
    return f"{paths[:PATHS_SHOWN]!r}{more}"
