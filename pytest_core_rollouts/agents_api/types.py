"""The API's objects, as far as they are read here. Values are the parsed JSON, exactly as it was returned.

The client checks that ids are strings and lists are lists. Any other field may be missing or null, and there may be
more fields. Times are Unix seconds.
"""

from __future__ import annotations

from typing import Any, TypedDict

__all__ = ["Artifact", "Event", "Item", "Session", "Turn", "TurnError", "Usage"]


class _Identified(TypedDict):
    id: str


class Usage(TypedDict, total=False):
    """Tokens of a Session or a Turn. If the whole object is null, usage is unknown, not zero."""

    input_tokens: int
    input_tokens_details: dict[str, Any]
    output_tokens: int
    output_tokens_details: dict[str, Any]
    total_tokens: int


class TurnError(TypedDict, total=False):
    code: str
    message: str


class Session(_Identified, total=False):
    """`status`: idle, in_progress, requires_action or failed. It is idle while its sandbox is created."""

    object: str
    status: str
    error: str | None
    required_actions: list[dict[str, Any]]
    usage: Usage | None
    metadata: dict[str, str]
    agent: dict[str, Any]
    environment: dict[str, Any]
    created_at: int
    last_active_at: int


class Turn(_Identified, total=False):
    """`status`: queued, in_progress or waiting; then completed, failed or cancelled."""

    object: str
    session_id: str
    agent_id: str
    subagent_id: str | None
    status: str
    error: TurnError | None
    usage: Usage | None
    created_at: int
    started_at: int | None
    completed_at: int | None


class Artifact(_Identified, total=False):
    """A file that a completed Turn left under /workspace/outputs."""

    object: str
    path: str
    size_bytes: int
    session_id: str
    turn_id: str
    environment_id: str
    created_at: int


class Item(TypedDict, total=False):
    """One step of the trajectory. Each `type` has further fields. `id` is null for old messages."""

    id: str | None
    type: str
    turn_id: str | None
    status: str | None
    role: str
    content: list[dict[str, Any]]


class _Typed(TypedDict):
    type: str


class Event(_Typed, total=False):
    """One event of the live stream, such as `agent.session.turn.completed`. Type `error`: the stream broke."""

    event_id: str
    session_id: str
    turn_id: str | None
    turn: Turn
    session: Session
    item: Item
    usage: Usage | None
    error: dict[str, Any]
