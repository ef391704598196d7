"""Streamed replies: server-sent events read from chunks, and the whole reply put together from events."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any, Protocol

EVENT_LIMIT = 16 * 1024 * 1024  # bytes of one event

_END_OF_EVENT = re.compile(rb"\r\n\r\n|\n\n|\r\r")


class EventReader:
    """Yields the data of each event in the chunks that it is fed. After an event over the limit: `overflowed`."""

    def __init__(self) -> None:
        self._pending = bytearray()
        self.overflowed = False

    def feed(self, chunk: bytes) -> Iterator[bytes]:
        if self.overflowed:
            return
        start = max(0, len(self._pending) - 3)  # an end may be split between two chunks
        self._pending += chunk
        while (end := _END_OF_EVENT.search(self._pending, start)) is not None:
            event = bytes(self._pending[: end.start()])
            del self._pending[: end.end()]
            start = 0
            if data := _data_of(event):
                yield data
        if len(self._pending) > EVENT_LIMIT:
            self._pending.clear()
            self.overflowed = True


def _data_of(event: bytes) -> bytes:
    lines = (line for line in event.splitlines() if line.startswith(b"data:"))
    return b"\n".join(line[5:].removeprefix(b" ") for line in lines)


Event = Mapping[str, Any]


class Assembly(Protocol):
    """Puts a reply together from a stream's events."""

    def add(self, event: Event) -> None: ...

    def reply(self) -> dict[str, Any] | None:
        """Return the reply as far as it came, as the server would have sent it in one piece; None: nothing came."""


def assembly_for(protocol: str) -> Assembly:
    """Return an empty Assembly for a model protocol."""
    if protocol == "responses":
        return _Responses()
    return _Messages() if protocol == "anthropic" else _ChatCompletions()


class _Responses:
    """The last `response` of any event; if it has no Items, with those of earlier events."""

    def __init__(self) -> None:
        self._response: dict[str, Any] | None = None
        self._output: list[Any] = []
        self._logprobs: list[Any] = []

    def add(self, event: Event) -> None:
        if isinstance(response := event.get("response"), dict):
            self._response = response
        elif event.get("type") == "response.output_item.done":
            self._output.append(event.get("item"))
        elif event.get("type") == "response.output_text.delta" and isinstance(event.get("logprobs"), list):
            self._logprobs += event["logprobs"]

    def reply(self) -> dict[str, Any] | None:
        if self._response is None:
            return None
        reply = {**self._response, "output": self._response.get("output") or self._output}
        if self._logprobs and not _has_logprobs(reply["output"]):
            reply["logprobs"] = self._logprobs  # this server only sends them in the deltas
        return reply


class _Messages:
    """A message, put together block by block."""

    def __init__(self) -> None:
        self._message: dict[str, Any] | None = None
        self._blocks: dict[int, dict[str, Any]] = {}
        self._inputs: dict[int, str] = {}

    def add(self, event: Event) -> None:
        kind = event.get("type")
        if kind == "message_start" and isinstance(message := event.get("message"), dict):
            self._message = {**message}
        elif kind == "content_block_start" and isinstance(block := event.get("content_block"), dict):
            self._blocks[_index(event)] = {**block}
        elif kind == "content_block_delta" and isinstance(delta := event.get("delta"), dict):
            self._extend(_index(event), delta)
        elif kind == "message_delta" and self._message is not None:
            self._message.update(_object(event.get("delta")))
            self._message["usage"] = {**_object(self._message.get("usage")), **_object(event.get("usage"))}

    def _extend(self, index: int, delta: dict[str, Any]) -> None:
        block = self._blocks.setdefault(index, {})
        if delta.get("type") == "input_json_delta":
            self._inputs[index] = self._inputs.get(index, "") + str(delta.get("partial_json", ""))
            return
        for name, value in delta.items():
            if name == "type":
                continue
            before = block.get(name)
            together = isinstance(value, (str, list)) and isinstance(before, type(value))
            block[name] = before + value if together else value

    def reply(self) -> dict[str, Any] | None:
        if self._message is None:
            return None
        for index, text in self._inputs.items():
            self._blocks.setdefault(index, {})["input"] = _json_or_text(text) if text else {}
        return {**self._message, "content": [self._blocks[index] for index in sorted(self._blocks)]}


class _ChatCompletions:
    """Choices with their deltas joined; all other members have the value of the last chunk."""

    def __init__(self) -> None:
        self._reply: dict[str, Any] | None = None
        self._choices: dict[int, dict[str, Any]] = {}

    def add(self, event: Event) -> None:
        if "choices" not in event:
            return
        others = {name: value for name, value in event.items() if name != "choices" and value is not None}
        self._reply = {**(self._reply or {}), **others, "object": "chat.completion"}
        for choice in _objects(event["choices"]):
            index = _index(choice)
            whole = self._choices.setdefault(index, {"index": index, "message": {}})
            _join(whole["message"], _object(choice.get("delta")))
            _join(whole, {name: value for name, value in choice.items() if name not in ("index", "delta")})

    def reply(self) -> dict[str, Any] | None:
        if self._reply is None:
            return None
        return {**self._reply, "choices": [self._choices[index] for index in sorted(self._choices)]}


_JOINED = ("content", "reasoning_content", "reasoning", "refusal", "arguments")


def _join(whole: dict[str, Any], part: Mapping[str, Any]) -> None:
    """Add a delta: texts and lists are appended, tool calls are matched by index, all else is replaced."""
    for name, value in part.items():
        before = whole.get(name)
        if name == "tool_calls" and isinstance(value, list):
            calls: list[dict[str, Any]] = whole.setdefault(name, [])
            for call in _objects(value):
                known = next((earlier for earlier in calls if earlier.get("index") == call.get("index")), None)
                if known is None:
                    calls.append(known := {})
                _join(known, call)
        elif isinstance(value, dict) and isinstance(before, dict):
            _join(before, value)
        elif isinstance(value, dict):
            whole[name] = {}
            _join(whole[name], value)
        elif _grows(name, before, value):
            whole[name] = before + value
        elif value is not None:
            whole[name] = value


def _grows(name: str, before: Any, value: Any) -> bool:
    if isinstance(value, list):
        return isinstance(before, list)
    return isinstance(value, str) and isinstance(before, str) and name in _JOINED


def _has_logprobs(output: Any) -> bool:
    return any(part.get("logprobs") for item in _objects(output) for part in _objects(item.get("content")))


def _index(event: Event) -> int:
    index = event.get("index", 0)
    return index if isinstance(index, int) else 0


def _objects(value: Any) -> list[dict[str, Any]]:
    return [member for member in value if isinstance(member, dict)] if isinstance(value, list) else []


def _object(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _json_or_text(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text
