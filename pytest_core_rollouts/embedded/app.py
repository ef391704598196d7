"""The Agents API as a Starlette application: authentication, routes, pages of lists."""

from __future__ import annotations

import hmac
import json
import re
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from starlette.applications import Starlette
from starlette.datastructures import QueryParams
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import FileResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from .bodies import CREATE_LIMIT, clip, read_body, read_key
from .errors import APIError, invalid, method_not_allowed, no_such_operation, not_found, unsupported
from .events import EventStream
from .harnesses import HARNESSES
from .ids import new_id
from .requests import digest, read_batch, read_creation, read_update
from .sessions import Session
from .store import Store
from .turns import Artifact, Turn

BETA = b"agents=v1"
DEFAULT_LIMIT, MAX_LIMIT = 20, 100  # resources on a page

_IN_MEMORY = 64 * 1024  # bytes; a smaller Artifact is read at once, a larger one is streamed

T = TypeVar("T")


def make_app(store: Store, api_key: str, default_harness: str | None = None) -> AuthMiddleware:
    """Return the Agents API over `store`, for clients with `api_key`.

    `default_harness` runs the Sessions whose creation names no harness.
    """
    api = AgentsAPI(store, default_harness)
    sessions = "/v1/agents/sessions"
    session = f"{sessions}/{{session_id}}"
    routes = [
        _route(sessions, GET=api.list_sessions, POST=api.create_session),
        _route(session, GET=api.get_session, POST=api.update_session, DELETE=api.delete_session),
        _route(f"{session}/events", GET=api.stream_events, POST=api.post_events),
        _route(f"{session}/turns", GET=api.list_turns),
        _route(f"{session}/turns/{{turn_id}}", GET=api.get_turn),
        _route(f"{session}/items", GET=api.list_items),
        _route(f"{session}/artifacts", GET=api.list_artifacts),
        _route(f"{session}/artifacts/{{artifact_id}}", GET=api.get_artifact, DELETE=api.delete_artifact),
        _route(f"{session}/artifacts/{{artifact_id}}/content", GET=api.get_content),
    ]
    handlers: Any = {APIError: _on_api_error, HTTPException: _on_http_exception, Exception: _on_exception}
    app = Starlette(routes=routes, exception_handlers=handlers)
    app.router.redirect_slashes = False
    return AuthMiddleware(app, api_key)


class AuthMiddleware:
    """Checks the path, then `OpenAI-Beta`, then the bearer key; adds the headers that every response has."""

    def __init__(self, app: ASGIApp, api_key: str) -> None:
        self._app = app
        self._key = api_key.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            raise RuntimeError(f"the embedded Core only serves HTTP, not {scope['type']}")
        started = time.monotonic()

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", ()), *_common_headers(started)]
            await send(message)

        try:
            self._check(scope)
        except APIError as error:
            await _error_response(error)(scope, receive, send_with_headers)
            return
        await self._app(scope, receive, send_with_headers)

    def _check(self, scope: Scope) -> None:
        if not scope["path"].startswith("/v1/"):
            raise no_such_operation()
        headers: list[tuple[bytes, bytes]] = scope["headers"]
        if [value for name, value in headers if name == b"openai-beta"] != [BETA]:
            message = "OpenAI-Beta: expected one such header with 'agents=v1'"
            raise APIError(400, message, type="invalid_beta", code="invalid_beta")
        if not self.has_key(headers):
            message = "Authorization: expected 'Bearer' and this Core's API key"
            raise APIError(401, message, headers={"WWW-Authenticate": "Bearer"})

    def has_key(self, headers: Iterable[tuple[bytes, bytes]]) -> bool:
        """Return whether a request's headers (names in lower case) have the key, exactly once."""
        credentials = [value for name, value in headers if name == b"authorization"]
        if len(credentials) != 1:
            return False
        scheme, _, key = credentials[0].partition(b" ")
        return scheme.lower() == b"bearer" and hmac.compare_digest(key.strip(), self._key)


def _common_headers(started: float) -> list[tuple[bytes, bytes]]:
    return [
        (b"x-request-id", new_id("req").encode()),
        (b"openai-version", b"2020-10-01"),
        (b"openai-processing-ms", str(round((time.monotonic() - started) * 1000)).encode()),
        (b"x-content-type-options", b"nosniff"),
    ]


class AgentsAPI:
    """The endpoints: one method for each method of a route."""

    def __init__(self, store: Store, default_harness: str | None) -> None:
        self._store = store
        self._default_harness = default_harness

    # Sessions

    async def create_session(self, request: Request) -> Response:
        body = await read_body(request, CREATE_LIMIT)
        key = read_key(request)
        creation = read_creation(body, HARNESSES, self._default_harness)
        if not creation.stream:
            return _json(self._store.create(creation, key).wire(), 201)
        streams: list[EventStream] = []
        self._store.create(creation, key, lambda session: streams.append(session.bus.subscribe(_ends_creation)))
        return _sse(streams[0], 201) if streams else Response(": connected\n\n", 201, media_type="text/event-stream")

    async def list_sessions(self, request: Request) -> Response:
        query = read_query(request.query_params, clamp=True)
        return _json(page(self._store.all(), query, id=_id, wire=Session.wire, no_cursor=not_found()))

    async def get_session(self, request: Request) -> Response:
        return _json(self._session(request).wire())

    async def update_session(self, request: Request) -> Response:
        metadata = read_update(await read_body(request))
        session = self._session(request)
        session.metadata = metadata
        return _json(session.wire())

    async def delete_session(self, request: Request) -> Response:
        session_id = request.path_params["session_id"]
        self._store.delete(session_id)
        return _json({"id": session_id, "object": "agent.session.deleted", "deleted": True})

    # Input and events

    async def post_events(self, request: Request) -> Response:
        body = await read_body(request)
        key = read_key(request)
        batch = read_batch(body)
        session = self._session(request)
        with session.admission(key, digest(body)) as is_new:
            if is_new and batch.messages:
                await session.admit(batch.messages)
            elif is_new and batch.cancel:
                session.cancel()
        return Response(status_code=202)

    async def stream_events(self, request: Request) -> Response:
        return _sse(self._session(request).bus.subscribe(), 200)

    # Turns and Items

    async def list_turns(self, request: Request) -> Response:
        query = read_query(request.query_params, clamp=False)
        return _json(page(self._session(request).turns, query, id=_id, wire=Turn.wire, no_cursor=not_found()))

    async def get_turn(self, request: Request) -> Response:
        return _json(_find(self._session(request).turns, request.path_params["turn_id"]).wire())

    async def list_items(self, request: Request) -> Response:
        query = read_query(request.query_params, clamp=True)
        no_cursor = invalid("after: not the id of an Item of this Session")
        items = self._session(request).items
        return _json(page(items, query, id=lambda item: str(item["id"]), wire=lambda item: item, no_cursor=no_cursor))

    # Artifacts

    async def list_artifacts(self, request: Request) -> Response:
        query = read_query(request.query_params, clamp=False)
        no_cursor = invalid("after: not the id of an Artifact of this Session")
        artifacts = self._session(request).artifacts
        return _json(page(artifacts, query, id=_id, wire=Artifact.wire, no_cursor=no_cursor))

    async def get_artifact(self, request: Request) -> Response:
        return _json(self._artifact(request).wire())

    async def delete_artifact(self, request: Request) -> Response:
        artifact = self._artifact(request)
        self._session(request).artifacts.remove(artifact)
        artifact.file.unlink(missing_ok=True)
        return _json({"id": artifact.id, "object": "agent.session.artifact.deleted", "deleted": True})

    async def get_content(self, request: Request) -> Response:
        artifact = self._artifact(request)
        if artifact.size <= _IN_MEMORY:
            return Response(artifact.file.read_bytes(), media_type="application/octet-stream")
        return FileResponse(artifact.file, media_type="application/octet-stream")

    def _session(self, request: Request) -> Session:
        return self._store.get(request.path_params["session_id"])

    def _artifact(self, request: Request) -> Artifact:
        return _find(self._session(request).artifacts, request.path_params["artifact_id"])


Endpoint = Callable[[Request], Awaitable[Response]]


def _route(path: str, **endpoints: Endpoint) -> Route:
    """Return a route with an endpoint for each method. (With a route for each, `Allow` would name only the first.)"""

    async def dispatch(request: Request) -> Response:
        return await endpoints[request.method](request)

    route = Route(path, dispatch, methods=list(endpoints))
    route.methods = set(endpoints)  # without HEAD, which Starlette adds: a HEAD of a stream would not end
    return route


def _id(resource: Session | Turn | Artifact) -> str:
    return resource.id


Found = TypeVar("Found", Turn, Artifact)


def _find(resources: list[Found], id: str) -> Found:
    for resource in resources:
        if resource.id == id:
            return resource
    raise not_found()


def _ends_creation(type: str) -> bool:
    """Return whether an event ends a creation's stream: its Turn, or the preparation, has ended."""
    return type in ("agent.session.idle", "agent.session.failed")


# Lists


@dataclass(frozen=True)
class PageQuery:
    """Which page of a list a request asks for."""

    limit: int = DEFAULT_LIMIT
    descending: bool = True
    after: str | None = None


def read_query(query: QueryParams, *, clamp: bool) -> PageQuery:
    """Return the page that a query asks for; unknown parameters are ignored. Raises APIError (400).

    `clamp`: whether a limit out of range becomes the nearest valid one, or is an error.
    """
    for key in ("limit", "order", "after"):
        if len(query.getlist(key)) > 1:
            raise invalid(f"{key}: expected once")
    for key in ("agent_id", "environment_id"):
        if key in query:
            raise unsupported(f"{key}: the embedded Core does not filter lists", key)
    order = query.get("order", "desc")
    if order not in ("asc", "desc"):
        raise invalid(f"order: expected 'asc' or 'desc', got '{clip(order)}'")
    limit = _read_limit(query.get("limit", str(DEFAULT_LIMIT)), clamp)
    return PageQuery(limit, order == "desc", query["after"].strip() if "after" in query else None)


def _read_limit(text: str, clamp: bool) -> int:
    if not re.fullmatch(r"\+?[0-9]{1,18}", text):
        raise invalid(f"limit: expected an integer from 1 to {MAX_LIMIT}, got '{clip(text)}'")
    limit = int(text)
    if not clamp and not 1 <= limit <= MAX_LIMIT:
        raise invalid(f"limit: expected an integer from 1 to {MAX_LIMIT}, got {limit}")
    return min(max(limit, 1), MAX_LIMIT)


def page(
    values: Sequence[T], query: PageQuery, *, id: Callable[[T], str], wire: Callable[[T], Any], no_cursor: APIError
) -> dict[str, Any]:
    """Return one page of `values` (oldest first). Raises `no_cursor` if no value has the id `after`."""
    start = 0
    if query.after is not None:
        start = next((index for index, value in enumerate(values) if id(value) == query.after), -1)
        if start < 0:
            raise no_cursor
        start = len(values) - start if query.descending else start + 1
    ordered = values[::-1] if query.descending else values
    shown = ordered[start : start + query.limit]
    return {
        "object": "list",
        "data": [wire(value) for value in shown],
        "has_more": start + len(shown) < len(values),
        "first_id": id(shown[0]) if shown else None,
        "last_id": id(shown[-1]) if shown else None,
    }


# Responses


def _json(value: Mapping[str, Any], status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    body = json.dumps(value, separators=(",", ":"), allow_nan=False).encode()
    return Response(body, status, {"Cache-Control": "no-store", **(headers or {})}, media_type="application/json")


def _sse(stream: EventStream, status: int) -> Response:
    headers = {"Cache-Control": "no-cache"}
    return StreamingResponse(stream.frames(), status, headers, media_type="text/event-stream")


def _error_response(error: APIError) -> Response:
    return _json(error.body(), error.status, error.headers)


async def _on_api_error(request: Request, error: APIError) -> Response:
    return _error_response(error)


async def _on_http_exception(request: Request, error: HTTPException) -> Response:
    """Answer what the router raises: no such path, no such method."""
    if error.status_code == 405:
        return _error_response(method_not_allowed((error.headers or {}).get("Allow", "")))
    return _error_response(no_such_operation())


async def _on_exception(request: Request, error: Exception) -> Response:
    message = "The embedded Core failed; its standard error has the traceback."
    return _error_response(APIError(500, message, type="server_error", code="internal_error"))
