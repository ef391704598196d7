"""One request to a model and its reply, followed while they pass through, and kept in the capture."""

from __future__ import annotations

import contextlib
import fcntl
import json
import math
import os
import re
import time
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from pytest_core_rollouts.secret_values import is_secret

from .failures import ModelFailure, cut, of_event, of_status
from .streams import EventReader, assembly_for
from .tokens import tokens_of, usage_of

CAPTURE_LIMIT = 32 * 1024 * 1024  # bytes of one request, or of one reply sent in one piece, that are kept
_ERROR_LIMIT = 64 * 1024  # bytes of an error's body that are read

_CALLS = (b"/responses", b"/messages", b"/chat/completions", b"/completions")
_OWN_CALLS = {"responses": b"/responses", "anthropic": b"/messages", "chat_completions": b"/chat/completions"}
_LAST_EVENTS = (b"response.completed", b"response.failed", b"response.incomplete", b"message_stop", b"[DONE]")
_DECISIVE = (*_LAST_EVENTS, b'"error"', b"stop_reason")
# What a reply holds as soon as the model has produced something: agent programs run tools before its end.
_REPLIED = re.compile(rb'output_item|content_block|"choices"|response\.completed|message_stop')
_REPLIED_WHOLE = (b'"output"', b'"content"', b'"choices"')
CANCELLED = "cancelled"
"""The code of a request whose reply nobody waited for. Not the code of a Turn's error."""
_DEPTH = 100  # levels of JSON that are kept: Python reads and writes nesting by recursion


def is_model_call(method: bytes, path: bytes) -> bool:
    """Return True if a request is for a reply, not for a list of models or a count of tokens."""
    return method == b"POST" and path.endswith(_CALLS)


class Exchange:
    """Follows one request and its reply. At the end, `failure` is why it failed, and `record` is for the capture.

    Request and reply are only kept, and every event is only parsed, if `keeps`; otherwise only events that show a
    failure are parsed. `path`: the target's path, decoded. `wire`: the protocol of the path. `is_own_call`: the
    harness's program makes such calls. `replied`: the model has produced something. `usage`: the tokens of the reply,
    on the Responses protocol; None: not reported.
    """

    def __init__(self, protocol: str, method: bytes, target: bytes, path: bytes, *, keeps: bool) -> None:
        path = path.rstrip(b"/").lower()
        self.failure: ModelFailure | None = None
        self.is_call = is_model_call(method, path)
        self.wire = next((name for name, call in _OWN_CALLS.items() if path.removeprefix(b"/v1") == call), None)
        self.is_own_call = self.is_call and self.wire == protocol
        self.replied = False
        self.usage: dict[str, Any] | None = None
        self.kept_bytes = 0
        self.keeps = keeps and self.is_call
        self._protocol = protocol
        self._method, self._target = method, target
        self._started_at = datetime.now(timezone.utc)
        self.started = time.monotonic()
        self._request = b""
        self._whole = False
        self._status: int | None = None
        self._events: EventReader | None = None
        self._assembly = assembly_for(self.wire or protocol)
        self._body = bytearray()
        self._cut_off = False  # a part of the request or reply was not kept
        self._last_event_came = False

    def on_request(self, body: bytes, *, whole: bool) -> None:
        if self.keeps:
            self._request = body
            self._whole = whole
            self._cut_off = not whole
            self.kept_bytes += len(body)

    def on_response(self, status: int, content_type: bytes) -> None:
        self._status = status
        if status < 300 and content_type.lower().startswith(b"text/event-stream"):
            self._events = EventReader()

    def on_chunk(self, chunk: bytes) -> None:
        if not self.is_call or self._status is None:
            return
        self.kept_bytes += len(chunk) if self.keeps else 0
        if self._events is not None:
            for data in self._events.feed(chunk):
                self._see_event(data)
            self._cut_off = self._cut_off or self._events.overflowed
            return
        room = (_ERROR_LIMIT if self._status >= 300 and not self.keeps else CAPTURE_LIMIT) - len(self._body)
        self._body += chunk[: max(room, 0)]
        self._cut_off = self._cut_off or len(chunk) > room
        if self._status < 300 and not self.replied:
            latest = self._body[-len(chunk) - max(map(len, _REPLIED_WHOLE)) :]  # a mark may be split between two chunks
            self.replied = any(mark in latest for mark in _REPLIED_WHOLE)

    def _see_event(self, data: bytes) -> None:
        self.replied = self.replied or _REPLIED.search(data) is not None
        is_decisive = any(mark in data for mark in _DECISIVE)
        if not is_decisive and not self.keeps:
            return
        self._last_event_came = self._last_event_came or any(mark in data for mark in _LAST_EVENTS)
        with contextlib.suppress(ValueError, RecursionError):  # "[DONE]"
            event = json.loads(data)
            if isinstance(event, dict):
                if is_decisive:
                    self.failure = of_event(event) or self.failure
                    self.usage = usage_of(event) or self.usage
                if self.keeps:
                    self._assembly.add(event)

    def on_end(self) -> None:
        """The whole reply has passed."""
        if self.failure is None and self.is_call and self._status is not None:
            self.failure = of_status(self._status, bytes(self._body))
            if self._events is not None and not self._last_event_came and not self._events.overflowed:
                self.failure = cut()
            reply = self._whole_reply() if self._events is None and self.failure is None else None
            if isinstance(reply, dict):
                self.failure = of_event(reply)
                self.usage = usage_of(reply)
        if self.is_call and self._status is not None and self._status < 300:
            self.replied = self.replied or self.failure is None or self.failure.sampled

    @property
    def abandoned(self) -> bool:
        """Whether the agent did not wait for the reply, or the Turn ended first."""
        return self.failure is not None and self.failure.code == CANCELLED

    @property
    def request(self) -> bytes | None:
        """The request's body, if it was kept as a whole."""
        return self._request if self._whole else None

    def record(self, *, bodies: bool) -> dict[str, Any]:
        """Return the capture's line, times in UTC and seconds. Request and reply are left out unless `bodies`."""
        whole = (_json_or_text(self._request), self.reply()) if bodies else (None, None)
        request, reply = map(_shallow, whole)
        left_out = not bodies or (request, reply) != whole
        tokens = tokens_of(reply)
        failure = None if self.failure is None or self.failure.sampled else self.failure
        return {
            "started_at": self._started_at.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "duration_s": round(time.monotonic() - self.started, 6),
            "protocol": self._protocol,
            "model": _model_in(reply) or _model_in(request),
            "method": self._method.decode("ascii", "replace"),
            "path": self._target.decode("ascii", "replace"),
            "status": self._status,
            "error": None if failure is None else f"{failure.code}: {failure.message}",
            "request": request,
            "response": reply,
            "streamed": self._events is not None,
            "truncated": self._cut_off or left_out,
            "prompt_token_ids": tokens.prompt_token_ids,
            "token_ids": tokens.token_ids,
            "logprobs": tokens.logprobs,
        }

    def reply(self) -> Any:
        """Return the reply as far as it came, put together; None: nothing was kept."""
        return self._whole_reply() if self._events is None else self._assembly.reply()

    def _whole_reply(self) -> Any:
        return _json_or_text(bytes(self._body)) if self._body else None


def _json_or_text(data: bytes) -> Any:
    try:
        return json.loads(data)
    except (ValueError, RecursionError):
        return data.decode("utf-8", "replace")


def _shallow(value: Any) -> Any:
    """Return JSON as it is; None if it is nested too deep to be written."""
    level = [value]
    for _ in range(_DEPTH):
        level = [member for parent in level if isinstance(parent, (dict, list)) for member in _members(parent)]
        if not level:
            return value
    return None


def _members(value: dict[str, Any] | list[Any]) -> Iterable[Any]:
    return value.values() if isinstance(value, dict) else value


def _model_in(value: Any) -> str | None:
    model = value.get("model") if isinstance(value, dict) else None
    return model if isinstance(model, str) else None


# ---- the capture


SCHEMA = 1
MASK = "[masked]"

_FILE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
_LINE_START = b'{"schema"'


@dataclass(frozen=True)
class Capture:
    """The capture's lines of one Turn. Each begins with `labels`; `secrets` are masked."""

    folder: Path
    labels: Mapping[str, Any]
    secrets: Collection[str] = field(default=(), repr=False)

    @property
    def path(self) -> Path:
        """DIR/ROLLOUT_ID.jsonl, or DIR/SESSION_ID.jsonl if the rollout id is missing or unsuitable as a file's name."""
        name = self.labels["rollout_id"]
        if name is None or not _FILE_NAME.fullmatch(name):
            name = self.labels["session_id"]
        return self.folder / f"{name}.jsonl"

    def append(self, exchange: Mapping[str, Any]) -> None:
        """Add a line, in one write. It replaces half a line that a killed writer left. Blocks. Raises OSError."""
        line = json.dumps(_plain({"schema": SCHEMA, **self.labels, **exchange}), allow_nan=False, separators=(",", ":"))
        for secret in sorted(self.secrets, key=len, reverse=True):
            if is_secret(secret):
                once = json.dumps(secret)[1:-1]
                for form in (json.dumps(once)[1:-1], once):  # in JSON within a string, and in a string
                    line = line.replace(form, MASK)
        data = line.encode("ascii") + b"\n"
        file = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(file, fcntl.LOCK_EX)  # released by close
            end = _end_of_lines(file, self.path)
            os.ftruncate(file, end)
            if os.write(file, data) != len(data):
                os.ftruncate(file, end)
                raise OSError(f"{self.path}: only a part of a line could be written")
        finally:
            os.close(file)


def _end_of_lines(file: int, path: Path) -> int:
    """Return where the last complete line ends. Raises OSError if what follows is not the beginning of a line."""
    start, tail = os.fstat(file).st_size, b""
    while start and b"\n" not in tail:
        block = min(start, 1 << 16)
        start -= block
        tail = os.pread(file, block, start) + tail
    half = tail[tail.rfind(b"\n") + 1 :].rstrip(b"\0")  # after a power cut the file may end with zeros
    if not (half.startswith(_LINE_START) or _LINE_START.startswith(half)):
        raise OSError(f"{path}: the last line is not part of a capture; move the file away")
    return start + tail.rfind(b"\n") + 1


def _plain(value: Any) -> Any:
    """Return JSON with null for NaN and Infinity, which Python's reader accepts."""
    if isinstance(value, dict):
        return {name: _plain(member) for name, member in value.items()}
    if isinstance(value, list):
        return [_plain(member) for member in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
