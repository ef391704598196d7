"""One request to a model and its reply, as seen while they pass through."""

from __future__ import annotations

import contextlib
import json
import time
from datetime import datetime, timezone
from typing import Any

from .assembly import assembly_for
from .failures import ModelFailure, cut, of_event, of_status
from .sse import EventReader
from .tokens import tokens_of

CAPTURE_LIMIT = 32 * 1024 * 1024  # bytes of one request, or of one reply sent in one piece, that are kept
_ERROR_LIMIT = 64 * 1024  # bytes of an error's body that are read

_CALLS = (b"/responses", b"/messages", b"/chat/completions", b"/completions")
_LAST_EVENTS = (b"response.completed", b"response.failed", b"response.incomplete", b"message_stop", b"[DONE]")
_PARTS = (b"response.output_item.done", b"content_block_stop", b'"tool_calls"')
"""In events that give an agent program something to act on before the reply is complete: it runs tools early."""
_TELLING = (*_LAST_EVENTS, b'"error"', b"stop_reason")


def is_model_call(method: bytes, target: bytes) -> bool:
    """Whether a request asks for a reply, rather than for a list of models or a count of tokens."""
    return method == b"POST" and target.partition(b"?")[0].endswith(_CALLS)


class Exchange:
    """Follows what passes and says in the end what came of it: `failure`, and `record` for the capture.

    `replied`: whether the agent program got a reply, or as much of one as it can act on.

    Only when `captures` is it all taken apart; otherwise just what tells of a failure.
    """

    def __init__(self, protocol: str, method: bytes, target: bytes, *, captures: bool) -> None:
        self.failure: ModelFailure | None = None
        self.replied = False
        self.is_call = is_model_call(method, target)
        self._captures = captures and self.is_call
        self._protocol = protocol
        self._method, self._target = method, target
        self._started_at = datetime.now(timezone.utc)
        self._started = time.monotonic()
        self._request = b""
        self._status: int | None = None
        self._events: EventReader | None = None
        self._assembly = assembly_for(protocol)
        self._body = bytearray()
        self._cut_off = False  # not all of request and reply was kept
        self._last_event_came = False

    def asked(self, body: bytes, *, whole: bool) -> None:
        if self._captures:
            self._request = body
            self._cut_off = not whole

    def answered(self, status: int, content_type: bytes) -> None:
        self._status = status
        if status < 300 and content_type.lower().startswith(b"text/event-stream"):
            self._events = EventReader()

    def received(self, chunk: bytes) -> None:
        if not self.is_call or self._status is None:
            return
        if self._events is not None:
            for data in self._events.feed(chunk):
                self._see_event(data)
            self._cut_off = self._cut_off or self._events.overflowed
            return
        room = (_ERROR_LIMIT if self._status >= 300 and not self._captures else CAPTURE_LIMIT) - len(self._body)
        self._body += chunk[: max(room, 0)]
        self._cut_off = self._cut_off or len(chunk) > room

    def _see_event(self, data: bytes) -> None:
        telling = any(mark in data for mark in _TELLING)
        self.replied = self.replied or any(mark in data for mark in _PARTS)
        if not telling and not self._captures:
            return
        self._last_event_came = self._last_event_came or any(mark in data for mark in _LAST_EVENTS)
        with contextlib.suppress(ValueError):  # "[DONE]"
            event = json.loads(data)
            if isinstance(event, dict):
                if telling:
                    self.failure = of_event(event) or self.failure
                if self._captures:
                    self._assembly.add(event)

    def ended(self) -> None:
        """The whole reply has passed."""
        if self.failure is None and self.is_call and self._status is not None:
            self.failure = of_status(self._status, bytes(self._body))
            if self._events is not None and not self._last_event_came and not self._events.overflowed:
                self.failure = cut()
            reply = self._whole_reply() if self._events is None and self.failure is None else None
            if isinstance(reply, dict):
                self.failure = of_event(reply)
        if self.is_call and self._status is not None and self._status < 300:
            self.replied = self.replied or self.failure is None or self.failure.sampled

    def record(self) -> dict[str, Any]:
        """The exchange for the capture, times in UTC and seconds."""
        request = _json_or_text(self._request)
        reply: Any = self._whole_reply() if self._events is None else self._assembly.reply()
        tokens = tokens_of(reply)
        failure = None if self.failure is None or self.failure.sampled else self.failure
        return {
            "started_at": self._started_at.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "duration_s": round(time.monotonic() - self._started, 6),
            "protocol": self._protocol,
            "model": _model_in(reply) or _model_in(request),
            "method": self._method.decode("ascii", "replace"),
            "path": self._target.decode("ascii", "replace"),
            "status": self._status,
            "error": None if failure is None else f"{failure.code}: {failure.message}",
            "request": request,
            "response": reply,
            "streamed": self._events is not None,
            "truncated": self._cut_off,
            "prompt_token_ids": tokens.prompt_token_ids,
            "token_ids": tokens.token_ids,
            "logprobs": tokens.logprobs,
        }

    def _whole_reply(self) -> Any:
        return _json_or_text(bytes(self._body)) if self._body else None


def _json_or_text(data: bytes) -> Any:
    try:
        return json.loads(data)
    except (ValueError, RecursionError):
        return data.decode("utf-8", "replace")


def _model_in(value: Any) -> str | None:
    model = value.get("model") if isinstance(value, dict) else None
    return model if isinstance(model, str) else None
