"""Items and usage of any agent, read from its requests to its model and from the replies, on all three protocols.

What the model said is read from replies, which an agent can't change. Results of tools are read from later requests,
because only the agent knows them. A request repeats the conversation so far, so what an earlier one had is passed over.
A request only counts if the model replied to it. All values are bounded, because an agent can send any request.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from pytest_core_rollouts.embedded.model import Exchange, sum_of, usage_of
from pytest_core_rollouts.embedded.trajectory import Message

from .native import Malformed, check_values

if TYPE_CHECKING:
    from pytest_core_rollouts.embedded.trajectory import Call, Trajectory

REQUEST_LIMIT = 16 * 1024 * 1024  # bytes of one request that is read
REQUESTS_LIMIT = 512 * 1024 * 1024  # bytes of all requests of a Turn that are read: each one costs this process time
VALUES = 50_000  # in one request
VALUES_LIMIT = 3_000_000  # in all requests of a Turn that are read
MESSAGES = 10_000  # in one request
TEXT_LIMIT = 64 * 1024 * 1024  # characters of Items that come from requests: this process keeps them

_STRING = re.compile(rb'"(?:[^"\\]+|\\.)*"?', re.DOTALL)  # also one without an end, so that it never backtracks

Value = Mapping[str, Any]


class Traffic:
    """Turns the exchanges of one Turn into Items, one after the other, and adds up their tokens."""

    def __init__(self, trajectory: Trajectory, prompt: str) -> None:
        """`prompt`: the Turn's input, which is an Item already."""
        self._trajectory = trajectory
        self._prompt = prompt.strip()
        self._seen: set[bytes] = set()  # digests of conversations, one for each message that ends one
        self._open: dict[str, Call] = {}
        self._is_first = True
        self._bytes = 0
        self._values = 0
        self._characters = 0
        self._usages: list[dict[str, Any]] = []
        self._uncounted = 0
        self._unread: dict[str, int] = {}

    def add(self, exchange: Exchange) -> None:
        """Read one exchange that has ended."""
        if not exchange.replied or exchange.wire is None:
            self._uncounted += exchange.replied or exchange.abandoned
            return
        reply = exchange.reply()
        usage = usage_of(reply) if isinstance(reply, Mapping) else None
        self._usages += [usage] if usage is not None else []
        self._uncounted += usage is None
        self._guard(self._read_request, exchange.wire, exchange.request)
        self._guard(self._read_reply, exchange.wire, reply)

    def _guard(self, read: Callable[[str, Any], None], wire: str, value: Any) -> None:
        try:
            read(wire, value)
        except Exception as problem:  # noqa: BLE001 - an agent can send anything, and must not end the Turn
            odd = f"a message that can't be read ({type(problem).__name__})"
            why = str(problem) if isinstance(problem, Malformed) else odd
            self._unread[why] = self._unread.get(why, 0) + 1

    def usage(self, *, in_flight: int) -> dict[str, Any] | None:
        """Return the tokens of all replies as the server counts them; None if it did not report those of each one.

        `in_flight`: requests that have not ended, whose tokens nobody reports.
        """
        if self._uncounted or in_flight or not self._usages:
            return None
        return sum_of(self._usages)

    def close(self) -> None:
        """Complete the calls whose result no request contained."""
        for call in self._open.values():
            call.finish(None)
        self._open.clear()

    def warnings(self) -> list[str]:
        """Return what is missing in the Items, and why."""
        return [f"Items are missing: {count} x {why}" for why, count in self._unread.items()]

    # ---- requests

    def _read_request(self, wire: str, body: bytes | None) -> None:
        request = self._parse(body)
        digest = hashlib.sha256(str(request.get("previous_response_id")).encode())
        first, self._is_first = self._is_first, False
        messages = _list(request.get("messages") if wire != "responses" else request.get("input"))
        if len(messages) > MESSAGES:
            raise Malformed(f"more than {MESSAGES:,} messages in a request")
        for message in messages:
            if not isinstance(message, Mapping):
                continue
            lasting = json.dumps(_lasting(wire, message), sort_keys=True)
            digest.update(hashlib.sha256(lasting.encode()).digest())
            if (end := digest.digest()) not in self._seen:
                self._seen.add(end)
                for call_id, text, is_error in _parts(wire, message):
                    self._take(call_id, text, is_error, first)

    def _parse(self, body: bytes | None) -> Value:
        if body is None or len(body) > REQUEST_LIMIT:
            raise Malformed("a request that is too long")
        if (self._bytes + len(body)) > REQUESTS_LIMIT or self._values > VALUES_LIMIT:
            raise Malformed("a request after too many others")
        self._bytes += len(body)
        if (values := _count_values(body)) > VALUES:
            raise Malformed("a request with too many values")
        self._values += values
        try:
            request = json.loads(body)
        except (ValueError, RecursionError):
            raise Malformed("a request that is not JSON") from None
        return request if isinstance(request, Mapping) else {}

    def _take(self, call_id: str | None, text: str, is_error: bool, first: bool) -> None:
        """Report a tool's result, or what the agent sent to the model as the user, except the Turn's own input."""
        if call_id is None and (first or not text.strip() or self._prompt in text):
            return
        self._characters += len(text)
        if self._characters > TEXT_LIMIT:
            raise Malformed("a request after too much text")
        if call_id is None:
            self._trajectory.user(Message((text,)))
        elif (call := self._open.pop(call_id, None)) is not None:
            call.finish(None if is_error else text, error=text or "failed" if is_error else None)

    # ---- replies

    def _read_reply(self, wire: str, reply: Any) -> None:
        if not isinstance(reply, Mapping):
            raise Malformed("a reply that is not a JSON object")
        if wire == "responses":
            self._read_output(reply)
        elif wire == "anthropic":
            self._read_blocks(reply)
        else:
            self._read_choice(reply)

    def _read_output(self, reply: Value) -> None:
        for item in _mappings(reply.get("output")):
            kind = str(item.get("type"))
            if kind == "message":
                self._say(_text(item.get("content")))
            elif kind == "reasoning":
                self._think(_text(item.get("summary")) or _text(item.get("content")))
            elif kind.endswith("_call"):
                arguments = next((item[name] for name in ("arguments", "input", "action") if name in item), None)
                self._begin(item.get("call_id"), item.get("name") or kind, arguments)

    def _read_blocks(self, reply: Value) -> None:
        for block in _mappings(reply.get("content")):
            kind = block.get("type")
            if kind == "text":
                self._say(_text(block.get("text")))
            elif kind == "thinking":
                self._think(_text(block.get("thinking")))
            elif kind in ("tool_use", "server_tool_use"):
                self._begin(block.get("id") if kind == "tool_use" else None, block.get("name"), block.get("input"))

    def _read_choice(self, reply: Value) -> None:
        for choice in _mappings(reply.get("choices"))[:1]:
            message = choice.get("message")
            if not isinstance(message, Mapping):
                continue
            self._think(_text(message.get("reasoning_content") or message.get("reasoning")))
            self._say(_text(message.get("content")) or _text(message.get("refusal")))
            for call in _mappings(message.get("tool_calls")):
                function = call.get("function") or call.get("custom")
                named = function if isinstance(function, Mapping) else {}
                arguments = named.get("arguments", named.get("input"))
                self._begin(call.get("id"), named.get("name"), arguments)

    def _say(self, text: str) -> None:
        if text:
            self._trajectory.assistant(text, phase=None)

    def _think(self, text: str) -> None:
        if text:
            self._trajectory.reasoning(text)

    def _begin(self, call_id: Any, name: Any, arguments: Any) -> None:
        """Report a call. A call without an id was made by the server, so no request contains its result."""
        if isinstance(call_id, str) and (earlier := self._open.pop(call_id, None)) is not None:
            earlier.finish(None)
        given = call_id if isinstance(call_id, str) and call_id else None
        call = self._trajectory.call(str(name), _arguments(arguments), call_id=given)
        if given is None:
            call.finish(None)
        else:
            self._open[given] = call


def _arguments(value: Any) -> Any:
    """Return a call's arguments as JSON; as text if they are not JSON that an Item can hold."""
    given = value
    try:
        if isinstance(value, str):
            given = json.loads(value)
        check_values(given)
    except (ValueError, RecursionError):
        return value if isinstance(value, str) else str(value)
    return given


def _parts(wire: str, message: Value) -> Iterator[tuple[str | None, str, bool]]:
    """Yield what a message of a request contains: (id of a call, result, is it an error) or (None, user's text, _)."""
    role, content = message.get("role"), message.get("content")
    if wire == "responses":
        if str(message.get("type")).endswith("_call_output"):
            yield str(message.get("call_id")), _text(message.get("output")), False
        elif role == "user":
            yield None, _text(content), False
    elif wire == "anthropic":
        for block in _list(content, "text") if role == "user" else ():
            if isinstance(block, Mapping) and block.get("type") == "tool_result":
                yield str(block.get("tool_use_id")), _text(block.get("content")), block.get("is_error") is True
            elif isinstance(block, Mapping) and block.get("type") == "text":
                yield None, _text(block.get("text")), False
    elif role == "tool":
        yield str(message.get("tool_call_id")), _text(content), False
    elif role == "user":
        yield None, _text(content), False


def _count_values(body: bytes) -> int:
    """Return about how many values JSON has: what it costs to read is known before it is read."""
    at_most = body.count(b",") + body.count(b"{") + body.count(b"[")  # most of them may be in strings
    if at_most <= VALUES // 2:
        return min(at_most, VALUES // 100)
    quotes = body.count(b'"') - body.count(b'\\"')
    if quotes > 4 * VALUES:  # two for each name and each text
        return quotes // 4
    rest = _STRING.sub(b"", body)
    return rest.count(b",") + rest.count(b"{") + rest.count(b"[")


def _lasting(wire: str, message: Value) -> Any:
    """Return a message without what may differ when it is sent again."""
    content = message.get("content")
    if wire == "responses":
        return {name: member for name, member in message.items() if name not in ("id", "status")}
    if wire == "anthropic":
        blocks = [
            {name: member for name, member in block.items() if name not in ("cache_control", "role")}
            for block in _list(content, "text")
            if isinstance(block, Mapping)
        ]
        return {"role": message.get("role"), "content": blocks}
    return message


def _text(content: Any) -> str:
    """Return a text, or the texts in a list of parts."""
    if isinstance(content, str):
        return content
    return "\n".join(part["text"] for part in _mappings(content) if isinstance(part.get("text"), str))


def _list(value: Any, name: str = "content") -> list[Any]:
    """Return a list; a string stands for one message, or one part, of the user."""
    if isinstance(value, str):
        return [{"role": "user", "type": "text", name: value}]
    return value if isinstance(value, list) else []


def _mappings(value: Any) -> list[Value]:
    return [member for member in _list(value) if isinstance(member, Mapping)] if not isinstance(value, str) else []
