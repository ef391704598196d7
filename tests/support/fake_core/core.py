"""The routes of the fake Core, what it refuses, and the thread that it runs in."""

from __future__ import annotations

import asyncio
import base64
import binascii
import json
import socket
import ssl
import threading
import time
from collections import Counter
from collections.abc import Callable
from email.utils import formatdate
from types import TracebackType
from typing import Any

from . import official
from .http import MOST_HEAD, Fault, HttpServer, Request, Response
from .sessions import Conflict, FakeSession, Script

ROUTES = {
    ("POST", ""): "create",
    ("GET", ""): "sessions",
    ("GET", "*"): "session",
    ("DELETE", "*"): "delete",
    ("GET", "*/turns"): "turns",
    ("GET", "*/items"): "items",
    ("GET", "*/artifacts"): "artifacts",
    ("GET", "*/artifacts/*/content"): "content",
    ("GET", "*/events"): "events",
    ("POST", "*/events"): "cancel",
}
MEMBERS = {
    "environment": "type network files packages env setup_commands skills plugins environment_template_id "
    "capability_directories",
    "agent": "model instructions multi_agent reasoning service_tier text tools x_agents_core",
    "x_agents_core": "model_provider",
    "": "environment agent agent_id input metadata vault_ids stream x_agents_core",
}
CURSOR_ERRORS = {"items": "Invalid session item ID in `after`", "artifacts": "after is not a valid artifact ID"}


class Refusal(Exception):
    def __init__(self, status: int, code: str | None, message: str, param: str | None = None) -> None:
        self.status, self.code, self.message, self.param = status, code, message, param


class FakeCore:
    """See the package. `record=False` keeps no requests, only their `counts`: for long runs.

    `clock_ahead`: seconds by which its clock is ahead of ours.
    `official`: it is OpenAI's own service, which takes no extension, needs a model, and makes a new Session for each
    create, whatever its Idempotency-Key. `unlisted`: how many lists leave out a new Session; a test may change it.
    """

    api_key = "test-key-4f1c9b72"

    def __init__(
        self,
        *,
        script: Callable[[dict[str, Any]], Script] = lambda body: Script(),
        fault: Callable[[Request], Fault | None] = lambda request: None,
        keepalive_seconds: float = 15.0,
        record: bool = True,
        tls: ssl.SSLContext | None = None,
        clock_ahead: float = 0.0,
        official: bool = False,
        unlisted: int = 0,
    ) -> None:
        self.script = script
        self.fault = fault
        self.keepalive_seconds = keepalive_seconds
        self.requests: list[Request] = []
        self.counts: Counter[str] = Counter()
        self.sessions: dict[str, FakeSession] = {}
        self.problems: list[str] = []  # what went wrong in a hook or in this server itself: tests expect none
        self._keys: dict[str, tuple[str, FakeSession]] = {}
        self._record = record
        self._tls = tls
        self.clock_ahead = clock_ahead  # seconds by which its clock is ahead; it may jump at any time
        self.official = official
        self.unlisted = unlisted
        self._serial = 0
        self._socket = socket.create_server(("127.0.0.1", 0), backlog=4096)
        self.port: int = self._socket.getsockname()[1]
        self.base_url = f"{'https' if tls else 'http'}://127.0.0.1:{self.port}/v1"

    # Its thread

    def __enter__(self) -> FakeCore:
        started = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._main(started)), name="fake-core", daemon=True)
        self._thread.start()
        started.wait()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._loop.call_soon_threadsafe(self._stopping.set)
        self._thread.join(10)
        assert kind is not None or not self.problems, self.problems

    async def _main(self, started: threading.Event) -> None:
        self._loop = asyncio.get_running_loop()
        self._stopping = asyncio.Event()
        self._http = HttpServer(self._handle, self._admit)
        await self._listen(self._socket)
        started.set()
        await self._stopping.wait()
        self._server.close()  # asyncio.run cancels what still is connected

    async def _listen(self, where: socket.socket) -> None:
        self._server = await asyncio.start_server(self._http.serve, sock=where, limit=MOST_HEAD, ssl=self._tls)

    def go_down(self) -> None:
        """Breaks every connection and refuses new ones; Sessions live on."""

        def stop() -> None:
            self._server.close()
            self._http.drop_all()

        self.call(stop)

    def come_back(self) -> None:
        """Listens again, on the same port."""
        where = socket.create_server(("127.0.0.1", self.port), backlog=4096)
        asyncio.run_coroutine_threadsafe(self._listen(where), self._loop).result(10)

    def call(self, function: Callable[[], Any]) -> Any:
        """Runs `function` in the server's thread, between two requests, and returns its value."""

        async def run() -> Any:
            return function()

        return asyncio.run_coroutine_threadsafe(run(), self._loop).result(10)

    @property
    def by_key(self) -> dict[str, FakeSession]:
        """Sessions by the Idempotency-Key that made them."""
        return {key: session for key, (_, session) in self._keys.items()}

    # A request

    def _admit(self, request: Request) -> Fault | None:
        request.at = time.monotonic()
        request.route = self._route(request)
        self.counts[request.route] += 1
        request.nth = self.counts[request.route]
        if self._record:
            self.requests.append(request)
        try:
            return self.fault(request)
        except Exception as error:  # noqa: BLE001 - it must not vanish in this thread
            self.problems.append(f"fault hook: {error!r}")
            return None

    @staticmethod
    def _route(request: Request) -> str:
        if request.segments[:3] != ["v1", "agents", "sessions"]:
            return ""
        rest = request.segments[3:]
        pattern = "/".join("*" if index in (0, 2) else part for index, part in enumerate(rest))
        return ROUTES.get((request.method, pattern), "")

    def _handle(self, request: Request) -> Response:
        self._serial += 1
        try:
            response = self._answer(request)
        except Refusal as refusal:
            response = _error(refusal)
        except Conflict as conflict:
            response = _error(Refusal(409, "conflict_error", str(conflict)))
        except Exception as error:  # noqa: BLE001 - it must not vanish in this thread
            self.problems.append(f"{request.method} {request.target}: {error!r}")
            response = _error(Refusal(500, "internal_error", repr(error)))
        response.headers.setdefault("X-Request-Id", f"req_{self._serial:032x}")
        response.headers.setdefault("Date", formatdate(time.time() + self.clock_ahead, usegmt=True))
        return response

    def _answer(self, request: Request) -> Response:
        self._check_headers(request)
        match request.route:
            case "create":
                return self._create(request)
            case "sessions":
                live = [session for session in self.sessions.values() if not session.deleted]
                return _list(request, [session.resource() for session in live if session.is_listed()])
            case "delete":
                session = self._session(request, deleted_too=True)
                session.delete()
                return _json(200, {"id": session.id, "object": "agent.session.deleted", "deleted": True})
            case "":
                raise Refusal(404, "unsupported_operation", f"Unknown operation {request.method} {request.path}.")
        session = self._session(request)
        match request.route:
            case "session":
                return _json(200, session.resource())
            case "turns":
                return _list(request, session.listed_turns())
            case "items":
                return _list(request, session.items)
            case "artifacts":
                return _list(request, session.artifacts)
            case "content":
                content = session.contents.get(request.segments[5])
                if content is None:
                    raise Refusal(404, "not_found_error", "Resource not found.")
                return Response(200, content, {"Content-Type": "application/octet-stream"})
            case "events":
                return Response(200, headers={"Content-Type": "text/event-stream"}, stream=session.events())
            case _:
                return self._post_events(request, session)

    def _check_headers(self, request: Request) -> None:
        beta = [value for name, value in request.headers if name == "openai-beta"]
        if beta != ["agents=v1"]:
            raise Refusal(400, "invalid_beta", "Set the 'OpenAI-Beta' header to 'agents=v1'.")
        if [value for name, value in request.headers if name == "authorization"] != [f"Bearer {self.api_key}"]:
            raise Refusal(401, None, "A valid Agents API bearer key is required.")
        if request.method == "POST" and request.header("content-type") != "application/json":
            raise _bad("expected request with Content-Type: application/json")
        if request.method != "POST" and request.body:
            raise _bad("this request takes no body")

    def _session(self, request: Request, *, deleted_too: bool = False) -> FakeSession:
        session = self.sessions.get(request.session_id or "")
        if session is None or (session.deleted and not deleted_too):
            raise Refusal(404, "not_found_error", "Resource not found.")
        return session

    def _create(self, request: Request) -> Response:
        body = _parse(request, 16 * 1024 * 1024)
        _check_create(body, official_service=self.official)
        key = request.header("idempotency-key")
        if key is not None and not 1 <= len(key.encode()) <= 128:
            raise _bad("Idempotency-Key must have 1 to 128 bytes")
        same = json.dumps(body, sort_keys=True)
        known = self._keys.get(key) if key is not None and not self.official else None
        if known is not None:
            if known[0] != same or known[1].deleted:
                raise Refusal(409, "idempotency_conflict", "This idempotency key was used with different input.")
            return _json(201, known[1].resource())
        number = len(self.sessions) + 1
        session = FakeSession(f"sess_{number:08d}", key, body, self.script(body), self.keepalive_seconds)
        session.created_at = int(time.time() + self.clock_ahead)
        session.unlisted, session.official = self.unlisted, self.official
        self.sessions[session.id] = session
        if key is not None:
            self._keys[key] = (same, session)
        return _json(201, session.resource())

    def _post_events(self, request: Request, session: FakeSession) -> Response:
        body = _parse(request, 1024 * 1024)
        if body != {"events": [{"type": "agent.session.input.cancel"}]}:
            raise _bad("this server takes a cancel and nothing else")
        session.cancel()
        return Response(202)


def _bad(message: str, param: str | None = None) -> Refusal:
    return Refusal(400, "invalid_request_error", message, param)


def _json(status: int, value: Any) -> Response:
    return Response(status, json.dumps(value).encode())


def _error(refusal: Refusal) -> Response:
    kind = {409: "conflict_error", 404: "not_found_error"}.get(refusal.status, "invalid_request_error")
    kind = "server_error" if refusal.status >= 500 else kind
    error = {"type": kind, "message": refusal.message, "code": refusal.code, "param": refusal.param}
    return _json(refusal.status, {"error": error})


def _parse(request: Request, limit: int) -> dict[str, Any]:
    if len(request.body) > limit:
        raise Refusal(413, "request_too_large", "The request body is too large.")

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        if len(dict(pairs)) < len(pairs):
            raise _bad("Invalid body: duplicate JSON key")
        return dict(pairs)

    try:
        value = json.loads(request.body.decode("utf-8"), object_pairs_hook=unique)
        json.dumps(value, allow_nan=False, ensure_ascii=False).encode()  # no NaN, no lone surrogate
    except ValueError as error:
        raise _bad(f"Invalid body: failed to parse JSON value ({error})") from None
    if not isinstance(value, dict):
        raise _bad("Invalid type: expected an object")
    return value


def _check_create(body: dict[str, Any], *, official_service: bool) -> None:
    environment = body.get("environment")
    if not isinstance(environment, dict) or environment.get("type") != "openai_hosted":
        raise _bad("environment.type must be openai_hosted", "environment")
    if official_service and (problem := official.problem(body)) is not None:
        raise _bad(*problem)
    for where, allowed in ({} if official_service else MEMBERS).items():
        members = body if where == "" else body.get(where) or {}
        for unknown in members.keys() - set(allowed.split()):
            raise _bad(f"Unknown parameter: '{where}.{unknown}'.", unknown)
    access = (environment.get("network") or {}).get("access", "enabled")
    if access not in ("enabled", "disabled", "restricted"):
        raise _bad("network.access must be enabled, disabled or restricted")
    metadata = body.get("metadata") or {}
    if len(metadata) > 16 or any(len(k) > 64 or not isinstance(v, str) or len(v) > 512 for k, v in metadata.items()):
        raise _bad("metadata: at most 16 pairs of at most 64 and 512 characters", "metadata")
    given = body.get("input")
    if given is not None and not (isinstance(given, str) and len(given.encode()) <= 512 * 1024):
        raise _bad("input must be a string of at most 512 KiB", "input")
    _check_files(environment.get("files") or [])


def _check_files(files: list[dict[str, Any]]) -> None:
    sizes = []
    for file in files:
        parts = str(file.get("path")).split("/")
        bad = any(part in ("", ".", "..") or "\\" in part or "\0" in part for part in parts[1:])
        if file.keys() != {"type", "path", "data"} or file["type"] != "inline" or parts[:2] != ["", "workspace"] or bad:
            raise _bad(f"invalid inline file {file.get('path')!r}", "environment.files")
        try:
            sizes.append(len(base64.b64decode(file["data"], validate=True)))
        except binascii.Error:
            raise _bad("invalid Base64", "environment.files") from None
    if len(sizes) > 50 or sum(sizes) > 10 * 1024 * 1024 or max(sizes, default=0) > 5 * 1024 * 1024:
        raise _bad("at most 50 files of 5 MiB each and 10 MiB in total", "environment.files")


def _list(request: Request, entries: list[dict[str, Any]]) -> Response:
    query = dict(request.query)
    if len(query) < len(request.query):
        raise _bad("Failed to deserialize query string: duplicate field")
    limit, order, after = query.get("limit", "20"), query.get("order", "desc"), query.get("after")
    if not limit.isdecimal() or not 1 <= int(limit) <= 100:
        raise _bad("limit must be between 1 and 100")
    if order not in ("asc", "desc"):
        raise _bad("Failed to deserialize query string: order")
    ordered = entries if order == "asc" else entries[::-1]  # entries are in the order in which they came to be
    start = 0
    if after is not None:
        ids = [entry["id"] for entry in ordered]
        if after not in ids:
            message = CURSOR_ERRORS.get(request.route)
            raise _bad(message) if message else Refusal(404, "not_found_error", "Resource not found.")
        start = ids.index(after) + 1
    data = ordered[start : start + int(limit)]
    first, last = (data[0]["id"], data[-1]["id"]) if data else (None, None)
    more = start + len(data) < len(ordered)
    return _json(200, {"object": "list", "data": data, "has_more": more, "first_id": first, "last_id": last})
