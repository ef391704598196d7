"""A model server on loopback whose replies are scripted: the three protocols, as real agents use them.

Stateless: the script is asked with the number of tool results that a request carries, which is the step the agent is
at. So one server serves any number of rollouts at once.
"""

from __future__ import annotations

import contextlib
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

HANG_S = 60.0


@dataclass(frozen=True)
class Ask:
    """One request for a reply. `step`: tool results so far; `text`: all texts of the user and the system."""

    method: str
    path: str
    headers: Mapping[str, str]
    body: Any
    step: int = 0
    text: str = ""

    @property
    def is_chat(self) -> bool:
        return self.path.partition("?")[0].endswith("/chat/completions")

    @property
    def is_messages(self) -> bool:
        return self.path.partition("?")[0].endswith("/messages")


@dataclass(frozen=True)
class Shell:
    """The model runs a command."""

    command: str
    thought: str = ""
    """Said as a reasoning before it."""
    remark: str = ""
    """Said as a message before it."""


@dataclass(frozen=True)
class Tool:
    """The model calls another tool of the agent's."""

    name: str
    input: Mapping[str, Any]


@dataclass(frozen=True)
class Say:
    """The model's last word. `stop`: why it stops, in the wire's own term, when not because it is done."""

    text: str
    stop: str | None = None


@dataclass(frozen=True)
class Fail:
    """An HTTP error."""

    status: int
    error: Mapping[str, Any] = field(default_factory=lambda: {"type": "scripted", "message": "as the script wants it"})
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class FailInStream:
    """A stream that begins well and then reports an error."""

    code: str
    message: str = "as the script wants it"


@dataclass(frozen=True)
class Hang:
    """No answer; with `after_headers` the stream begins and then nothing comes."""

    after_headers: bool = False


@dataclass(frozen=True)
class Cut:
    """The stream begins and the connection is closed."""


@dataclass(frozen=True)
class Calls:
    """The model calls several tools at once."""

    tools: Sequence[Tool]


Reply = Calls | Shell | Tool | Say | Fail | FailInStream | Hang | Cut
Script = Callable[[Ask], Reply]

USAGE = {
    "input_tokens": 100,
    "input_tokens_details": {"cached_tokens": 40},
    "output_tokens": 20,
    "output_tokens_details": {"reasoning_tokens": 5},
    "total_tokens": 120,
}


class ScriptedModel:
    """Serves from `with` to its end. `requests` holds all that came, `peak` how many replies were pending at once."""

    def __init__(self, script: Script, *, delay: float = 0.0) -> None:
        self.script = script
        self.delay = delay  # seconds before each reply
        self.requests: list[Ask] = []
        self.peak = 0
        self._open = 0
        self._lock = threading.Lock()
        self.stopping = threading.Event()
        self._server = _Server(("127.0.0.1", 0), _Handler)
        self._server.model = self
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> ScriptedModel:
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stopping.set()
        self._server.shutdown()
        self._server.server_close()

    @property
    def asks(self) -> list[Ask]:
        """The requests that wanted a reply with tools at hand."""
        return [ask for ask in self.requests if isinstance(ask.body, dict) and ask.body.get("tools")]

    @contextlib.contextmanager
    def answering(self, ask: Ask) -> Iterator[None]:
        with self._lock:
            self.requests.append(ask)
            self._open += 1
            self.peak = max(self.peak, self._open)
        try:
            yield
        finally:
            with self._lock:
                self._open -= 1


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 256
    model: ScriptedModel

    def handle_error(self, request: Any, client_address: Any) -> None:
        """An agent that was killed leaves its connections; that is expected."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Server

    def log_message(self, *_: Any) -> None:
        """Tests read `requests`."""

    def do_HEAD(self) -> None:
        self._answer(None)

    def do_GET(self) -> None:
        self._answer(None)

    def do_POST(self) -> None:
        body = self._read_body()
        try:
            self._answer(json.loads(body))
        except ValueError:
            self._answer(None)

    def _read_body(self) -> bytes:
        if self.headers.get("Transfer-Encoding", "").lower() != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length") or 0))
        body = b""
        while size := int(self.rfile.readline().split(b";")[0], 16):
            body += self.rfile.read(size)
            self.rfile.readline()
        self.rfile.readline()
        return body

    def _answer(self, body: Any) -> None:
        model = self.server.model
        ask = _ask(self.command, self.path, dict(self.headers.items()), body)
        with model.answering(ask):
            model.stopping.wait(model.delay)
            if not isinstance(body, dict):
                self._send(200 if self.command == "HEAD" else 404, b"{}")
            elif ask.is_messages and not body.get("tools"):
                self._stream(_messages(ask, Say("a title")))  # Claude Code asks so for a name of the conversation
            else:
                self._reply(ask, model.script(ask))

    def _reply(self, ask: Ask, reply: Reply) -> None:
        if isinstance(reply, Fail):
            wrapped = {"type": "error", "error": reply.error} if ask.is_messages else {"error": reply.error}
            self._send(reply.status, json.dumps(wrapped).encode(), reply.headers)
        elif isinstance(reply, Hang):
            if reply.after_headers:
                self._begin()
                self.wfile.write(b": wait\n\n")
            self.server.model.stopping.wait(HANG_S)
            self.close_connection = True
        elif isinstance(reply, Cut):
            self._begin()
            first = (_messages if ask.is_messages else _responses)(ask, Say("never whole"))[:1]
            self.wfile.write(_frames(first))
            self.wfile.flush()
            self.connection.shutdown(socket.SHUT_RDWR)
            self.close_connection = True
        else:
            self._send_reply(ask, reply)

    def _send_reply(self, ask: Ask, reply: Calls | Shell | Tool | Say | FailInStream) -> None:
        if ask.is_chat:
            chunks = _chat(ask, reply)
            if not ask.body.get("stream"):
                self._send(200, json.dumps(whole_chat(chunks)).encode())
            else:
                frames = "".join(f"data: {json.dumps(chunk)}\n\n" for chunk in chunks) + "data: [DONE]\n\n"
                self._send(200, frames.encode(), {"Content-Type": "text/event-stream"})
            return
        events = (_messages if ask.is_messages else _responses)(ask, reply)
        if not ask.body.get("stream"):
            self._send(200, json.dumps((whole_message if ask.is_messages else whole_response)(events)).encode())
        else:
            self._stream(events)

    def _begin(self) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()

    def _stream(self, events: Sequence[Mapping[str, Any]]) -> None:
        data = _frames(events)
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def _send(self, status: int, data: bytes, headers: Mapping[str, str] = {}) -> None:
        self.send_response(status)
        for name, value in {"Content-Type": "application/json", "Content-Length": str(len(data)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)


def _ask(method: str, path: str, headers: Mapping[str, str], body: Any) -> Ask:
    if not isinstance(body, dict):
        return Ask(method, path, headers, body)
    if "messages" in body and path.endswith("/chat/completions"):
        step = sum(message["role"] == "tool" for message in body["messages"])
        texts = [message["content"] for message in body["messages"] if message["role"] in ("system", "user")]
        return Ask(method, path, headers, body, step, "\n".join(map(_chat_text, texts)))
    if "messages" in body:
        blocks = [
            block
            for message in body["messages"]
            for block in (
                message["content"]
                if isinstance(message["content"], list)
                else [{"type": "text", "text": message["content"]}]
            )
        ]
        step = sum(block.get("type") == "tool_result" for block in blocks)
        system = body.get("system") or []
        texts = [*([system] if isinstance(system, str) else [block["text"] for block in system])]
        texts += [block["text"] for block in blocks if block.get("type") == "text"]
        return Ask(method, path, headers, body, step, "\n".join(texts))
    given = body.get("input", [])
    given = [{"type": "message", "content": [{"text": given}]}] if isinstance(given, str) else given
    step = sum(str(item.get("type", "")).endswith("_call_output") for item in given)
    texts = [str(body.get("instructions", ""))]
    messages = [item["content"] for item in given if item.get("type", "message") == "message"]
    texts += [part if isinstance(part, str) else part.get("text", "") for parts in messages for part in _parts(parts)]
    return Ask(method, path, headers, body, step, "\n".join(texts))


def _parts(content: Any) -> list[Any]:
    return [content] if isinstance(content, str) else content


def _chat_text(content: Any) -> str:
    return "\n".join(part if isinstance(part, str) else part.get("text", "") for part in _parts(content or []))


def _frames(events: Sequence[Mapping[str, Any]]) -> bytes:
    return b"".join(f"event: {event['type']}\ndata: {json.dumps(event)}\n\n".encode() for event in events)


def _calls(reply: Calls | Shell | Tool, ask: Ask, shell: tuple[str, str]) -> list[tuple[str, dict[str, Any]]]:
    """Names and arguments of a reply's calls. `shell`: the name of the agent's shell, and of its parameter."""
    if isinstance(reply, Calls):
        return [(tool.name, dict(tool.input)) for tool in reply.tools]
    if isinstance(reply, Tool):
        return [(reply.name, dict(reply.input))]
    named = [tool.get("function", tool) for tool in ask.body.get("tools") or []]
    parameters = [tool.get("parameters") or tool.get("input_schema") or {} for tool in named[:1]]
    if parameters and list(parameters[0].get("properties", {})) == ["command"]:  # an agent with only a shell
        return [(named[0]["name"], {"command": reply.command})]
    return [(shell[0], {shell[1]: reply.command})]


def _responses(ask: Ask, reply: Calls | Shell | Tool | Say | FailInStream) -> list[dict[str, Any]]:
    """The Responses wire's events for one reply."""
    unique = f"{ask.step}_{time.monotonic_ns()}"
    response: dict[str, Any] = {"id": f"resp_{unique}", "object": "response", "model": ask.body.get("model")}
    events: list[dict[str, Any]] = [{"type": "response.created", "response": response}]

    def item(**members: Any) -> None:
        events.append({"type": "response.output_item.done", "item": members})

    def message(text: str) -> None:
        content = [{"type": "output_text", "text": text}]
        item(type="message", role="assistant", id=f"msg_{unique}_{len(events)}", content=content)

    if isinstance(reply, FailInStream):
        error = {"code": reply.code, "message": reply.message}
        failed = {**response, "status": "failed", "error": error}
        return [*events, {"type": "response.failed", "response": failed}]
    if isinstance(reply, Say):
        message(reply.text)
        if reply.stop is not None:
            incomplete = {**response, "status": "incomplete", "incomplete_details": {"reason": reply.stop}}
            return [*events, {"type": "response.incomplete", "response": incomplete}]
    else:
        if isinstance(reply, Shell) and reply.thought:
            thought = {"type": "summary_text", "text": reply.thought}
            item(type="reasoning", id=f"rs_{unique}", summary=[thought], encrypted_content=None)
        if isinstance(reply, Shell) and reply.remark:
            message(reply.remark)
        for number, (name, arguments) in enumerate(_calls(reply, ask, ("exec_command", "cmd"))):
            call = {"id": f"fc_{unique}_{number}", "call_id": f"call_{unique}_{number}", "name": name}
            item(type="function_call", **call, arguments=json.dumps(arguments), status="completed")
    return [*events, {"type": "response.completed", "response": {**response, "usage": USAGE}}]


def whole_response(events: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The reply of a stream in one piece."""
    output = [event["item"] for event in events if event["type"] == "response.output_item.done"]
    rest = {"status": "completed", "parallel_tool_calls": True, "tool_choice": "auto", "tools": [], "created_at": 1}
    return {**rest, **events[-1]["response"], "output": output}


def _messages(ask: Ask, reply: Calls | Shell | Tool | Say | FailInStream) -> list[dict[str, Any]]:
    """The Messages wire's events for one reply."""
    unique = f"{ask.step}_{time.monotonic_ns()}"
    usage = {"input_tokens": 100, "cache_creation_input_tokens": 0, "cache_read_input_tokens": 0, "output_tokens": 1}
    message = {"id": f"msg_{unique}", "type": "message", "role": "assistant", "model": ask.body["model"], "content": []}
    start = {**message, "stop_reason": None, "stop_sequence": None, "usage": usage}
    events: list[dict[str, Any]] = [{"type": "message_start", "message": start}]
    blocks = 0

    def block(empty: Mapping[str, Any], delta: Mapping[str, Any]) -> None:
        nonlocal blocks
        events.append({"type": "content_block_start", "index": blocks, "content_block": empty})
        events.append({"type": "content_block_delta", "index": blocks, "delta": delta})
        events.append({"type": "content_block_stop", "index": blocks})
        blocks += 1

    def text(content: str) -> None:
        block({"type": "text", "text": ""}, {"type": "text_delta", "text": content})

    if isinstance(reply, FailInStream):
        return [*events, {"type": "error", "error": {"type": reply.code, "message": reply.message}}]
    stop = "tool_use"
    if isinstance(reply, Say):
        text(reply.text)
        stop = reply.stop or "end_turn"
    else:
        if isinstance(reply, Shell) and reply.thought:
            block(
                {"type": "thinking", "thinking": "", "signature": ""},
                {"type": "thinking_delta", "thinking": reply.thought},
            )
        if isinstance(reply, Shell) and reply.remark:
            text(reply.remark)
        for number, (name, input) in enumerate(_calls(reply, ask, ("Bash", "command"))):
            empty = {"type": "tool_use", "id": f"toolu_{unique}_{number}", "name": name, "input": {}}
            block(empty, {"type": "input_json_delta", "partial_json": json.dumps(input)})
    delta = {"stop_reason": stop, "stop_sequence": None}
    events.append({"type": "message_delta", "delta": delta, "usage": {"output_tokens": 20}})
    return [*events, {"type": "message_stop"}]


def whole_message(events: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The reply of a stream in one piece."""
    content: list[dict[str, Any]] = []
    for event in events:
        if event["type"] == "content_block_start":
            content.append({**event["content_block"]})
        elif event["type"] == "content_block_delta":
            delta = event["delta"]
            if delta["type"] == "input_json_delta":
                content[-1]["input"] = json.loads(delta["partial_json"])
            else:
                content[-1] |= {name: text for name, text in delta.items() if name != "type"}
    last = events[-2]
    message: dict[str, Any] = events[0]["message"]
    return {**message, "content": content, **last["delta"], "usage": {**message["usage"], **last["usage"]}}


CHAT_USAGE = {
    "prompt_tokens": 100,
    "completion_tokens": 20,
    "total_tokens": 120,
    "prompt_tokens_details": {"cached_tokens": 40},
    "completion_tokens_details": {"reasoning_tokens": 5},
}


def _chat(ask: Ask, reply: Calls | Shell | Tool | Say | FailInStream) -> list[dict[str, Any]]:
    """The Chat Completions wire's chunks for one reply; the last one has the usage, if the request wants it."""
    unique = f"{ask.step}_{time.monotonic_ns()}"
    base = {"id": f"chatcmpl-{unique}", "created": 1, "model": ask.body["model"], "object": "chat.completion.chunk"}
    if isinstance(reply, FailInStream):
        return [{"error": {"code": reply.code, "message": reply.message}}]
    deltas: list[dict[str, Any]] = [{"role": "assistant", "content": None}]
    stop = "tool_calls"
    if isinstance(reply, Say):
        deltas += [{"content": part} for part in (reply.text[:3], reply.text[3:])]
        stop = reply.stop or "stop"
    else:
        if isinstance(reply, Shell) and reply.thought:
            deltas.append({"reasoning_content": reply.thought})
        if isinstance(reply, Shell) and reply.remark:
            deltas.append({"content": reply.remark})
        for number, (name, arguments) in enumerate(_calls(reply, ask, ("bash", "command"))):
            begun = {"index": number, "id": f"call_{unique}_{number}", "type": "function"}
            deltas.append({"tool_calls": [{**begun, "function": {"name": name, "arguments": ""}}]})
            deltas.append({"tool_calls": [{"index": number, "function": {"arguments": json.dumps(arguments)}}]})
    chunks = [{**base, "choices": [{"index": 0, "delta": delta, "finish_reason": None}]} for delta in deltas]
    chunks.append({**base, "choices": [{"index": 0, "delta": {}, "finish_reason": stop}]})
    if not ask.body.get("stream") or (ask.body.get("stream_options") or {}).get("include_usage"):
        chunks.append({**base, "choices": [], "usage": CHAT_USAGE})
    return chunks


def whole_chat(chunks: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The reply of a stream in one piece."""
    message: dict[str, Any] = {"role": "assistant", "content": None}
    for chunk in chunks:
        for choice in chunk.get("choices", []):
            for name, value in choice["delta"].items():
                if name != "tool_calls":
                    message[name] = value if name == "role" or value is None else (message.get(name) or "") + value
                elif "id" in value[0]:
                    message.setdefault(name, []).append({**value[0]})
                else:
                    message[name][-1]["function"]["arguments"] += value[0]["function"]["arguments"]
    stops = [choice["finish_reason"] for chunk in chunks for choice in chunk.get("choices", [])]
    choice = {"index": 0, "message": message, "finish_reason": stops[-1]}
    return {**chunks[0], "object": "chat.completion", "choices": [choice], "usage": chunks[-1].get("usage")}
