"""A Core for machines without an agent program: the Agents API on loopback, with the simplest possible agent.

Its agent queries the model once, over HTTP at the Session's `model_provider`, and the reply becomes
`/workspace/outputs/answer.json`. There is no sandbox, because replies of the model are never run. For everything else
use a remote Core, or the embedded one with a real agent.
"""

from __future__ import annotations

import json
import secrets
import threading
import time
import urllib.error
import urllib.request
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

KEEPALIVE_S = 15.0
MODEL_TIMEOUT_S = 60.0

Wire = dict[str, Any]


@dataclass
class Session:
    """One Session with its Turn, its Items and its answer. `done` is set when the Turn has ended."""

    id: str
    body: Wire
    created_at: int = field(default_factory=lambda: int(time.time()))
    turn: Wire = field(default_factory=dict)
    items: list[Wire] = field(default_factory=list)
    answer: bytes | None = None
    done: threading.Event = field(default_factory=threading.Event)

    def work(self) -> None:
        """Run the Turn."""
        self.turn |= {"id": f"turn_{self.id}", "object": "agent.session.turn", "status": "in_progress", "usage": None}
        self._add_item("user", self.body["input"])
        try:
            response = self._ask_model()
            text = "".join(part["text"] for item in response["output"] for part in item["content"])
        except (OSError, ValueError, KeyError, TypeError) as error:
            code = "authentication_error" if getattr(error, "code", None) == 401 else "connection_failed"
            self.turn |= {"status": "failed", "error": {"code": code, "message": f"{type(error).__name__}: {error}"}}
        else:
            self._add_item("assistant", text)
            self.answer = text.encode()
            self.turn |= {"status": "completed", "usage": response.get("usage")}
        self.done.set()

    def _ask_model(self) -> Wire:
        provider = self.body["x_agents_core"]["model_provider"]
        body = {"model": self.body["agent"]["model"], "input": [{"role": "user", "content": self.body["input"]}]}
        request = urllib.request.Request(
            f"{provider['base_url']}/responses",
            json.dumps(body).encode(),
            {"Content-Type": "application/json", "Authorization": f"Bearer {provider['api_key']}"},
        )
        with _opener.open(request, timeout=MODEL_TIMEOUT_S) as reply:
            response: Wire = json.load(reply)
        return response

    def _add_item(self, role: str, text: str) -> None:
        kind = "input_text" if role == "user" else "output_text"
        item = {"id": f"item_{self.id}_{len(self.items)}", "type": "message", "role": role, "status": "completed"}
        self.items.append({**item, "turn_id": self.turn["id"], "content": [{"type": kind, "text": text}]})

    def resource(self) -> Wire:
        resource = {"id": self.id, "object": "agent.session", "created_at": self.created_at, "error": None}
        status = "idle" if self.done.is_set() else "in_progress"
        return {**resource, "status": status, "metadata": self.body.get("metadata") or {}, "required_actions": []}

    def artifacts(self) -> list[Wire]:
        if self.answer is None:
            return []
        where = {"path": "/workspace/outputs/answer.json", "size_bytes": len(self.answer), "turn_id": self.turn["id"]}
        return [{"id": f"file_{self.id}", "object": "agent.session.artifact", **where}]


_opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # the model is on loopback, so no proxy is used


class ToyCore:
    """Serves inside a `with` block, at `base_url`, with the key `api_key`."""

    def __init__(self) -> None:
        self.api_key = secrets.token_urlsafe(24)
        self.sessions: dict[str, Session] = {}
        self.by_key: dict[str, Session] = {}
        self.lock = threading.Lock()
        self._server = _Server(("127.0.0.1", 0), _Handler)
        self._server.core = self
        self.base_url = f"http://127.0.0.1:{self._server.server_address[1]}/v1"

    def __enter__(self) -> ToyCore:
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    def create(self, body: Wire, key: str) -> Session:
        """Create a Session, or return the one that was created with the same idempotency key."""
        with self.lock:
            known = self.by_key.get(key)
            if known is not None:
                return known
            session = self.by_key[key] = Session(f"sess_{secrets.token_hex(8)}", body)
            self.sessions[session.id] = session
        threading.Thread(target=session.work, daemon=True).start()
        return session


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 512
    core: ToyCore


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: _Server

    def do_GET(self) -> None:
        self._route()

    def do_POST(self) -> None:
        self._route()

    def do_DELETE(self) -> None:
        self._route()

    def _route(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        core = self.server.core
        if self.headers.get("Authorization") != f"Bearer {core.api_key}":
            self._error(401, "A valid Agents API bearer key is required.")
            return
        parts = self.path.partition("?")[0].removeprefix("/v1/agents/sessions").strip("/").split("/")
        session = core.sessions.get(parts[0])
        match (self.command, parts[0], parts[1:]):
            case ("POST", "", []):
                self._json(201, core.create(json.loads(body), self.headers.get("Idempotency-Key", "")).resource())
            case ("GET", "", []):
                self._list([one.resource() for one in core.sessions.values()])
            case _ if session is None:
                self._error(404, "Resource not found.")
            case (method, _, rest):
                self._session_route(session, method, rest)

    def _session_route(self, session: Session, method: str, rest: list[str]) -> None:
        match (method, rest):
            case ("GET", []):
                self._json(200, session.resource())
            case ("GET", ["turns"]):
                self._list([dict(session.turn)] if session.turn else [])
            case ("GET", ["items"]):
                self._list(session.items)
            case ("GET", ["artifacts"]):
                self._list(session.artifacts())
            case ("GET", ["artifacts", _, "content"]) if session.answer is not None:
                self._send(200, session.answer, "application/octet-stream")
            case ("GET", ["events"]):
                self._events(session)
            case ("POST", ["events"]):  # a cancel: ignored, because the model's reply will end the Turn soon
                self._send(202, b"")
            case ("DELETE", []) if session.done.is_set():
                self.server.core.sessions.pop(session.id, None)
                self._json(200, {"id": session.id, "object": "agent.session.deleted", "deleted": True})
            case ("DELETE", []):
                self._error(409, "The Session is not idle.", "conflict_error")
            case _:
                self._error(404, f"Unknown operation {method} {self.path}.")

    def _events(self, session: Session) -> None:
        """Send an event when the Turn ends, unless it has ended already."""
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Connection", "close")
        self.end_headers()
        self.close_connection = True
        try:
            self.wfile.write(b": connected\n\n")
            if session.done.is_set():
                return
            while not session.done.wait(KEEPALIVE_S):
                self.wfile.write(b": keepalive\n\n")
            kind = f"agent.session.turn.{session.turn['status']}"
            event = {"type": kind, "session_id": session.id, "turn": session.turn}
            self.wfile.write(f"event: {kind}\ndata: {json.dumps(event)}\n\n".encode())
        except OSError:  # the client disconnected
            return

    def _list(self, data: list[Wire]) -> None:
        ends = {"first_id": data[0]["id"], "last_id": data[-1]["id"]} if data else {"first_id": None, "last_id": None}
        self._json(200, {"object": "list", "data": data, "has_more": False, **ends})

    def _error(self, status: int, message: str, code: str | None = None) -> None:
        kind = "invalid_request_error" if status < 500 else "server_error"
        self._json(status, {"error": {"type": kind, "message": message, "code": code, "param": None}})

    def _json(self, status: int, value: Any) -> None:
        self._send(status, json.dumps(value).encode(), "application/json")

    def _send(self, status: int, body: bytes, kind: str = "application/json") -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Print nothing, because the training loop prints its progress."""
