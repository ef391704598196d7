"""Trajectories as conversations.

A conversation has the form of chat templates: what the user and the agent said and did. It is not the prompt that the
harness sent: its system prompt, tool schemas and truncation are in no Item. The tokens as they were sampled are only in
captures, which the inference server's replies fill.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any, Final

Message = dict[str, Any]
Item = Mapping[str, Any]

SHELL: Final = "shell"
"""The tool name of a command execution; its arguments are {"command": ...}."""

_COMMON: Final = frozenset(("id", "type", "turn_id", "status", "call_id"))


def conversation(items: Iterable[Any]) -> list[Message]:
    """Return the messages, each with `role`, `content`, `reasoning_content`, `tool_calls` and `tool_call_id`.

    A missing value is "" or [], so that every member always has the same type. Reasoning, the text after it and the
    calls after that are one assistant message. A call of an unknown kind has its kind as the tool name.
    """
    writer = _Writer()
    for number, item in enumerate(items):
        if isinstance(item, Mapping):
            writer.add(item, f"call_{number}")
    return writer.messages


class _Writer:
    def __init__(self) -> None:
        self.messages: list[Message] = []
        self._open: Message | None = None  # the assistant message that the next Item may continue

    def add(self, item: Item, spare_id: str) -> None:
        kind = item.get("type")
        call_id = str(item.get("call_id") or item.get("id") or spare_id)
        if kind == "message" and item.get("role") == "assistant":
            self._part("content", _text(item.get("content")))
        elif kind == "message":
            role = {"developer": "system"}.get(str(item.get("role")), str(item.get("role")))
            self._append(role, _text(item.get("content")))
        elif kind == "reasoning":
            self._part("reasoning_content", _text(item.get("summary"), "\n\n"))
        elif kind == "function_call_output":
            self._append("tool", _outcome(item), call_id)
        else:
            self._call(item, call_id)

    def _part(self, member: str, text: str) -> None:
        """Add reasoning or text to the open message. Begin a new one if the open one has text or calls already."""
        message = self._open
        if message is None or message["content"] or message["tool_calls"]:
            message = self._begin()
        message[member] = "\n\n".join(filter(None, (message[member], text)))

    def _call(self, item: Item, call_id: str) -> None:
        name, arguments = _called(item)
        function = {"name": name, "arguments": _json(arguments)}
        message = self._open or self._begin()
        message["tool_calls"].append({"id": call_id, "type": "function", "function": function})
        if item.get("type") != "function_call":  # the output of a function call is a separate Item
            self._append("tool", _outcome(item), call_id)

    def _begin(self) -> Message:
        self._open = self._append("assistant", "")
        return self._open

    def _append(self, role: str, content: str, call_id: str = "") -> Message:
        self._open = None
        message: Message = {"role": role, "content": content, "reasoning_content": ""}
        self.messages.append({**message, "tool_calls": [], "tool_call_id": call_id})
        return self.messages[-1]


def _called(item: Item) -> tuple[str, Any]:
    """Return the tool's name and its arguments."""
    kind = str(item.get("type"))
    if kind == "command_execution":
        return SHELL, {"command": item.get("command")}
    if kind in ("function_call", "mcp_call"):
        return str(item.get("name")), item.get("arguments")
    return kind, {name: value for name, value in item.items() if name not in _COMMON}


def _outcome(item: Item) -> str:
    """Return a tool's output, followed by its error and its exit code if it failed."""
    lines = [_text(item.get("output"))]
    if (error := item.get("error")) is not None:
        lines.append(f"[error: {_text(error)}]")
    if item.get("type") == "command_execution" and item.get("exit_code") not in (0, None):
        lines.append(f"[exit code {item['exit_code']}]")
    return "\n".join(filter(None, lines))


def _text(value: Any, joined_by: str = "") -> str:
    """Return a string, the joined texts of a list of parts (`[type]` for parts without text), or JSON."""
    if value is None:
        return ""
    if isinstance(value, str):
        return value
    if isinstance(value, list) and all(isinstance(part, Mapping) for part in value):
        return joined_by.join(
            part["text"] if isinstance(part.get("text"), str) else f"[{part.get('type')}]" for part in value
        )
    return _json(value)


def _json(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)
