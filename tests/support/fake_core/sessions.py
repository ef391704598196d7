"""What a Session of the fake Core does over time, as its script says."""

from __future__ import annotations

import asyncio
import itertools
import json
import time
from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from .official import turns_of_subagents

ANSWER = "/workspace/outputs/answer.json"
CLOSE = object()
USUAL = {
    "input_tokens": 900,
    "input_tokens_details": {"cached_tokens": 0},
    "output_tokens": 100,
    "output_tokens_details": {"reasoning_tokens": 40},
    "total_tokens": 1000,
}


@dataclass(frozen=True)
class Script:
    """The life of one Session. Times are in seconds.

    Its sandbox takes `prepare_seconds` (None: for ever); then, with `session_failure`, the Session fails without a
    Turn; else a Turn runs for `turn_seconds` (`never_ends`: until cancelled), or waits for a function result
    (`requires_action`), and ends with `turn_status`, `error` and `usage`, leaving `items` and, when it completed,
    `answer` and `artifacts`. The Session is busy for another `settle_seconds`. A cancel takes `cancel_seconds`, is
    ignored (`ignore_cancel`) or loses the race (`completes_on_cancel`). The event stream is `live`, `silent` (open,
    but nothing comes), `dropped` (breaks after its first event) or `scrambled` (every event twice, the newest first).
    With no `usage`, codex reports the usual one, and other harnesses none.
    `session_status` replaces the Session's own status while the Turn runs. The Turn's usage is null the first
    `usage_late` times that the completed Turn is read, and `subagents` have their own Turns, listed as the newest.
    """

    prepare_seconds: float | None = 0.0
    session_failure: str | None = None
    turn_seconds: float = 0.0
    never_ends: bool = False
    requires_action: bool = False
    turn_status: str = "completed"
    error: Mapping[str, str] | None = None
    usage: Mapping[str, Any] | None = None
    items: Sequence[Mapping[str, Any]] = ()
    answer: bytes | None = None
    artifacts: Mapping[str, bytes] = field(default_factory=dict)
    settle_seconds: float = 0.0
    cancel_seconds: float = 0.0
    ignore_cancel: bool = False
    completes_on_cancel: bool = False
    stream: str = "live"
    session_status: str | None = None
    usage_late: int = 0
    subagents: int = 0


class Conflict(Exception):
    """409 conflict_error"""


@dataclass
class FakeSession:
    """One Session, as the server knows it. Tests read `deleted`, `turn`, `cancels`, `body`, `key`, `history`.

    `history` lists (monotonic time, what happened): created, turn, cancel, the Turn's last status, failed, deleted.
    """

    id: str
    key: str | None
    body: dict[str, Any]
    script: Script
    keepalive_seconds: float
    deleted: bool = False
    pending: bool = False
    status: str = "idle"
    error: str | None = None
    required_actions: list[dict[str, Any]] = field(default_factory=list)
    turn: dict[str, Any] | None = None
    items: list[dict[str, Any]] = field(default_factory=list)
    artifacts: list[dict[str, Any]] = field(default_factory=list)
    contents: dict[str, bytes] = field(default_factory=dict)
    cancels: int = 0
    unlisted: int = 0
    official: bool = False
    reads: int = 0
    history: list[tuple[float, str]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.created_at = int(time.time())
        self.readers: set[asyncio.Queue[Any]] = set()
        self.numbers = itertools.count(1)
        self.agent = _agent(self.id, self.body.get("agent") or {})
        self.environment = _environment(self.id, self.body["environment"])
        self._note("created")
        if self.body.get("input") is not None:
            self.pending = True
            if self.script.prepare_seconds is not None:
                self.loop.call_later(self.script.prepare_seconds, self._prepared)

    @property
    def metadata(self) -> dict[str, str]:
        return self.body.get("metadata") or {}

    @property
    def busy(self) -> bool:
        return self.pending or self.status in ("in_progress", "requires_action")

    # What requests ask for

    def cancel(self) -> None:
        self.cancels += 1
        self._note("cancel")
        if self.pending:
            raise Conflict("Earlier input to this Session is still pending.")
        if self.turn is None or self.turn["completed_at"] is not None or self.script.ignore_cancel:
            return
        status = "completed" if self.script.completes_on_cancel else "cancelled"
        self.loop.call_later(self.script.cancel_seconds, self._end, status)

    def delete(self) -> None:
        if self.deleted:
            return
        if self.busy:
            raise Conflict("The Session is not idle.")
        self.deleted = True
        self._note("deleted")
        self._publish(CLOSE)

    def is_listed(self) -> bool:
        """Whether the list of Sessions that is made now shows it."""
        self.unlisted -= 1
        return self.unlisted < 0

    def listed_turns(self) -> list[dict[str, Any]]:
        """The Turns, oldest first."""
        if self.turn is None:
            return []
        turn = dict(self.turn)
        if turn["completed_at"] is not None:
            self.reads += 1
            if self.reads <= self.script.usage_late:
                turn["usage"] = None
        return [turn, *turns_of_subagents(turn, self.script.subagents)]

    async def events(self) -> AsyncGenerator[bytes, None]:
        queue: asyncio.Queue[Any] = asyncio.Queue()
        self.readers.add(queue)
        try:
            yield b": connected\n\n"
            while True:
                try:
                    event = await asyncio.wait_for(queue.get(), self.keepalive_seconds)
                except asyncio.TimeoutError:
                    if self.script.stream != "silent":
                        yield b": keepalive\n\n"
                    continue
                batch = [event]
                if self.script.stream == "scrambled":
                    await asyncio.sleep(0.01)
                    newer = [queue.get_nowait() for _ in range(queue.qsize())]
                    batch = [*reversed(newer), event] * 2
                for each in batch:
                    if each is not CLOSE and self.script.stream != "silent":
                        yield _framed(each)
                if CLOSE in batch:
                    return
                if self.script.stream == "dropped":
                    raise ConnectionResetError("the script drops the stream")
        finally:
            self.readers.discard(queue)

    def resource(self) -> dict[str, Any]:
        status = self.status
        if self.script.session_status is not None and status == "in_progress":
            status = self.script.session_status
        return {
            "id": self.id,
            "object": "agent.session",
            "agent": self.agent,
            "created_at": self.created_at,
            "last_active_at": self.created_at,
            "environment": self.environment,
            "error": self.error,
            "metadata": self.metadata,
            "required_actions": self.required_actions,
            "status": status,
            "usage": self.turn["usage"] if self.turn else None,
            "vault_ids": [],
        }

    # What happens by itself

    def _prepared(self) -> None:
        self.pending = False
        if self.script.session_failure is not None:
            self.status, self.error = "failed", self.script.session_failure
            self._note("failed")
            self._publish({"type": "agent.session.failed", "session": self.resource()})
            return
        self._start()
        if self.script.requires_action:
            self._require_action()
        elif not self.script.never_ends:
            self.loop.call_later(self.script.turn_seconds, self._end, self.script.turn_status)

    def _start(self) -> None:
        now = int(time.time())
        self.turn = {
            "id": f"turn_{self.id}",
            "object": "agent.session.turn",
            "agent_id": f"agent_{self.id}",
            "session_id": self.id,
            "subagent_id": None,
            "status": "in_progress",
            "created_at": now,
            "started_at": now,
            "completed_at": None,
            "error": None,
            "usage": None,
        }
        self.status = "in_progress"
        self._note("turn")
        text = self.body["input"]
        self.add_item({"type": "message", "role": "user", "content": [{"type": "input_text", "text": text}]})
        self._publish_turn("created")
        self._publish_item("added", self.items[-1], None)
        self._publish({"type": "agent.session.in_progress", "session": self.resource()})
        self._publish_turn("in_progress")

    def _require_action(self) -> None:
        assert self.turn is not None
        call = {
            "type": "function_call",
            "name": "ask",
            "call_id": "call_1",
            "arguments": {},
            "turn_id": self.turn["id"],
        }
        self.turn["status"], self.status, self.required_actions = "waiting", "requires_action", [call]
        self._publish({"type": "agent.session.requires_action", "session": self.resource()})

    def _end(self, status: str) -> None:
        turn = self.turn
        if turn is None or turn["completed_at"] is not None:
            return
        for index, item in enumerate(self.script.items):
            self._publish_item("done", self.add_item(item), index)
        if status == "completed":
            self._capture()
        turn.update(status=status, completed_at=int(time.time()), usage=self._usage())
        if status == "failed":
            turn["error"] = dict(self.script.error or {"code": "internal_error", "message": "It broke."})
        self.required_actions = []
        self._note(status)
        self._publish_turn(status, usage=None if self.script.usage_late else turn["usage"])
        self.loop.call_later(self.script.settle_seconds, self._settle, status)

    def _usage(self) -> Mapping[str, Any] | None:
        extension = (self.body.get("agent") or {}).get("x_agents_core") or {}
        is_codex = self.official or extension.get("harness") == "codex"
        return USUAL if self.script.usage is None and is_codex else self.script.usage

    def _settle(self, status: str) -> None:
        self.status = "failed" if status == "failed" else "idle"
        self.error = "The execution could not complete." if status == "failed" else None
        self._publish({"type": f"agent.session.{self.status}", "session": self.resource()})

    def add_item(self, item: Mapping[str, Any]) -> dict[str, Any]:
        assert self.turn is not None
        whole = {
            "id": f"item_{self.id}_{next(self.numbers)}",
            "turn_id": self.turn["id"],
            "status": "completed",
            **item,
        }
        self.items.append(whole)
        return whole

    def _capture(self) -> None:
        assert self.turn is not None
        answer = {} if self.script.answer is None else {ANSWER: self.script.answer}
        for path, content in {**self.script.artifacts, **answer}.items():
            self.add_artifact(path, content)

    def add_artifact(self, path: str, content: bytes) -> None:
        assert self.turn is not None
        artifact_id = f"artifact_{self.id}_{next(self.numbers)}"
        self.contents[artifact_id] = content
        self.artifacts.append(
            {
                "id": artifact_id,
                "object": "agent.session.artifact",
                "created_at": int(time.time()),
                "environment_id": f"env_{self.id}",
                "path": path,
                "session_id": self.id,
                "size_bytes": len(content),
                "turn_id": self.turn["id"],
            }
        )

    def _publish_turn(self, what: str, **more: Any) -> None:
        assert self.turn is not None
        shown = {**self.turn, "usage": None} if self.script.usage_late else dict(self.turn)
        turn = {"turn": shown, "turn_id": self.turn["id"], **more}
        self._publish({"type": f"agent.session.turn.{what}", **turn})

    def _publish_item(self, what: str, item: dict[str, Any], index: int | None) -> None:
        kind = f"agent.session.turn.item.{what}"
        self._publish({"type": kind, "item": item, "output_index": index, "turn_id": item["turn_id"]})

    def _publish(self, event: Any) -> None:
        if isinstance(event, dict):
            named = {} if "session" in event else {"session_id": self.id}
            event = {"event_id": f"event_{next(self.numbers)}", **named, **event}
        for queue in self.readers:
            queue.put_nowait(event)

    def _note(self, what: str) -> None:
        self.history.append((time.monotonic(), what))


def _framed(event: dict[str, Any]) -> bytes:
    return f"event: {event['type']}\ndata: {json.dumps(event)}\n\n".encode()


def _agent(session_id: str, asked: dict[str, Any]) -> dict[str, Any]:
    return {
        "id": f"agent_{session_id}",
        "instructions": asked.get("instructions"),
        "model": asked.get("model", "the-deployment's-model"),
        "multi_agent": {"enabled": False, "max_concurrent_subagents": None},
        "name": None,
        "reasoning": {"effort": None, "summary": None},
        "service_tier": "auto",
        "text": {"format": {"type": "text"}, "verbosity": "medium"},
        "tools": asked.get("tools", []),
    }


def _environment(session_id: str, asked: dict[str, Any]) -> dict[str, Any]:
    network, packages = asked.get("network") or {}, asked.get("packages") or {}
    return {
        "id": f"env_{session_id}",
        "type": "openai_hosted",
        "capability_directories": [],
        "files": [],
        "network": {"access": "enabled", "allowed_domains": [], **network},
        "packages": {"npm": [], "python": [], "system": [], **packages},
        "plugins": [],
        "skills": [],
    }
