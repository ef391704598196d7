"""A Turn's Items: the user's messages and what the agent did, in the API's shapes, published as they happen."""

from __future__ import annotations

import codecs
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from .ids import new_id

Item = dict[str, Any]
Publish = Callable[[str, Mapping[str, Any]], None]

DELTA_LIMIT = 1024 * 1024  # bytes of one command's output that are streamed

_TURN = "agent.session.turn"
_IN_PROGRESS, _COMPLETED, _FAILED, _INCOMPLETE = "in_progress", "completed", "failed", "incomplete"


@dataclass(frozen=True)
class Message:
    """One user message: its text parts in order."""

    parts: tuple[str, ...]

    @property
    def text(self) -> str:
        return "\n\n".join(self.parts)


class Trajectory:
    """Writes one Turn's Items into its Session's list. Harnesses call it, only on the event loop's thread."""

    def __init__(self, turn_id: str, items: list[Item], publish: Publish) -> None:
        self._turn_id = turn_id
        self._items = items
        self._publish = publish
        self._outputs = 0
        self._open: list[Item] = []

    def user(self, message: Message) -> None:
        """Add a user message; it is complete from the start and has no output index."""
        content = [{"type": "input_text", "text": part} for part in message.parts]
        item = {**self._message("user", content), "status": _COMPLETED}
        self._items.append(item)
        self._announce("item.added", item=item, output_index=None)

    def assistant(self, text: str, *, phase: str | None = "final_answer") -> None:
        """Add a complete message of the agent; `phase`: "commentary", "final_answer" or None (not known)."""
        item = {**self._message("assistant", []), "phase": phase}
        index = self._add(item)
        where = {"item_id": item["id"], "output_index": index, "content_index": 0}
        self._announce("content_part.added", **where, part={"type": "output_text", "text": ""})
        self._announce("output_text.delta", **where, delta=text)
        self._announce("output_text.done", **where, text=text)
        part = {"type": "output_text", "text": text}
        self._announce("content_part.done", **where, part=part)
        item["content"] = [part]
        self._close(item, index, _COMPLETED)

    def reasoning(self, text: str) -> None:
        """Add a complete summary of the agent's reasoning."""
        item = {**self._base("reasoning"), "summary": []}
        index = self._add(item)
        where = {"item_id": item["id"], "output_index": index, "summary_index": 0}
        self._announce("reasoning_summary_part.added", **where, part={"type": "summary_text", "text": ""})
        self._announce("reasoning_summary_text.delta", **where, delta=text)
        self._announce("reasoning_summary_text.done", **where, text=text)
        part = {"type": "summary_text", "text": text}
        self._announce("reasoning_summary_part.done", **where, part=part, status=None)
        item["summary"] = [part]
        self._close(item, index, _COMPLETED)

    def call(self, name: str, arguments: Any, *, call_id: str | None = None) -> Call:
        """Add a call that the agent has just made of one of its tools other than the shell."""
        call_id = call_id or new_id("call")
        item = {**self._base("function_call"), "name": name, "arguments": arguments, "call_id": call_id}
        return Call(self, item, self._add(item))

    def command(self, command: str, *, cwd: str = "/workspace") -> Command:
        """Add a command that the agent has just started."""
        item = {
            **self._base("command_execution"),
            "command": command,
            "cwd": cwd,
            "duration_ms": None,
            "exit_code": None,
            "output": None,
        }
        return Command(self, item, self._add(item))

    def interrupt(self) -> None:
        """Mark unfinished Items as incomplete, because the Turn ends."""
        for item in self._open:
            item["status"] = _INCOMPLETE
        self._open.clear()

    def _base(self, type: str) -> Item:
        return {"id": new_id("item"), "type": type, "turn_id": self._turn_id, "status": _IN_PROGRESS}

    def _message(self, role: str, content: list[dict[str, str]]) -> Item:
        return {**self._base("message"), "role": role, "content": content, "phase": None}

    def _add(self, item: Item) -> int:
        index, self._outputs = self._outputs, self._outputs + 1
        self._items.append(item)
        self._open.append(item)
        self._announce("item.added", item=item, output_index=index)
        return index

    def _close(self, item: Item, index: int, status: str) -> None:
        item["status"] = status
        self._open = [other for other in self._open if other is not item]
        self._announce("item.done", item=item, output_index=index)

    def _announce(self, event: str, **members: Any) -> None:
        self._publish(f"{_TURN}.{event}", {"turn_id": self._turn_id, **members})


class Call:
    """A tool call that has no result yet."""

    def __init__(self, trajectory: Trajectory, item: Item, index: int) -> None:
        self._trajectory = trajectory
        self._item = item
        self._index = index

    def finish(self, output: str | None, *, error: str | None = None) -> None:
        """Complete the call's Item, and add an Item for its result if it has an output or an error."""
        trajectory, call = self._trajectory, self._item
        status = _COMPLETED if error is None else _FAILED
        trajectory._close(call, self._index, status)
        if output is None and error is None:
            return
        result = {**trajectory._base("function_call_output"), "call_id": call["call_id"]}
        result |= {"status": status, "output": output, "error": error}
        trajectory._items.append(result)
        trajectory._announce("item.added", item=result, output_index=None)


class Command:
    """A running command: publishes its output, then completes its Item."""

    def __init__(self, trajectory: Trajectory, item: Item, index: int) -> None:
        self._trajectory = trajectory
        self._item = item
        self._index = index
        self._started = time.monotonic()
        self._received = 0
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def output(self, data: bytes) -> None:
        """Publish more output, up to a limit. Only `finish` sets the Item's `output`."""
        self._received += len(data)
        if self._received <= DELTA_LIMIT and (delta := self._decoder.decode(data)):
            members = {"item_id": self._item["id"], "output_index": self._index, "delta": delta}
            turn = {"turn_id": self._item["turn_id"]}
            self._trajectory._publish("agent.output.command_execution_output.delta", {**turn, **members})

    def finish(self, output: bytes, exit_code: int, *, truncated: bool = False) -> None:
        """Complete the command's Item. `truncated`: there was more output than `output`."""
        cut = f"\n[cut after {len(output)} bytes]\n" if truncated else ""
        self._item["output"] = output.decode("utf-8", "replace") + cut
        self._item["exit_code"] = exit_code
        self._item["duration_ms"] = round((time.monotonic() - self._started) * 1000)
        self._trajectory._close(self._item, self._index, _COMPLETED if exit_code == 0 else _FAILED)
