"""The routes of the Agents API, as a Starlette application."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, TypeVar

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import FileResponse, Response, StreamingResponse
from starlette.routing import Route

from .artifacts import Artifact
from .bodies import CREATE_LIMIT, read_body, read_key
from .checked import Checked
from .creation import digest, read_creation, read_metadata
from .errors import APIError, invalid, method_not_allowed, no_such_operation, not_found
from .events import EventStream
from .gate import Gate, to_json
from .harnesses import HARNESSES
from .inputs import read_batch
from .pages import page, read_query
from .sessions import Session
from .store import Store
from .turns import Turn

_IN_MEMORY = 64 * 1024  # bytes up to which an Artifact's content is answered in one piece


def make_app(store: Store, api_key: str, default_harness: str | None = None) -> Gate:
    """The Agents API over `store` for whoever holds `api_key`. `default_harness` serves creations that name none."""
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
    app = Starlette(
        routes=routes, exception_handlers={APIError: _answer_error, HTTPException: _answer_http, Exception: _answer_500}
    )
    app.router.redirect_slashes = False
    return Gate(app, api_key)


class AgentsAPI:
    """One method a route."""

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
        query = read_query(request.query_params, clamps=True, filters=("agent_id",))
        agent_id = request.query_params.get("agent_id")
        sessions = [session for session in self._store.all() if agent_id is None or session.agent_id == agent_id]
        return _json(page(sessions, query, id=_id, wire=Session.wire, no_cursor=not_found()))

    async def get_session(self, request: Request) -> Response:
        return _json(self._session(request).wire())

    async def update_session(self, request: Request) -> Response:
        body = await read_body(request)
        changes = Checked(body, "", ("metadata",))
        if "metadata" not in changes:
            raise invalid("At least one update field is required")
        metadata = read_metadata(changes)
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
        _refuse_head(request, "GET,POST")
        return _sse(self._session(request).bus.subscribe(), 200)

    # Turns and Items

    async def list_turns(self, request: Request) -> Response:
        query = read_query(request.query_params, clamps=False)
        return _json(page(self._session(request).turns, query, id=_id, wire=Turn.wire, no_cursor=not_found()))

    async def get_turn(self, request: Request) -> Response:
        return _json(_find(self._session(request).turns, request.path_params["turn_id"]).wire())

    async def list_items(self, request: Request) -> Response:
        query = read_query(request.query_params, clamps=True)
        no_cursor = invalid("Invalid session item ID in `after`")
        items = self._session(request).items
        return _json(page(items, query, id=lambda item: str(item["id"]), wire=lambda item: item, no_cursor=no_cursor))

    # Artifacts

    async def list_artifacts(self, request: Request) -> Response:
        query = read_query(request.query_params, clamps=False, filters=("environment_id",))
        session = self._session(request)
        environment_id = request.query_params.get("environment_id") or session.environment_id
        artifacts = session.artifacts if environment_id == session.environment_id else []
        no_cursor = invalid("after is not a valid artifact ID")
        return _json(page(artifacts, query, id=_id, wire=Artifact.wire, no_cursor=no_cursor))

    async def get_artifact(self, request: Request) -> Response:
        return _json(self._artifact(request).wire())

    async def delete_artifact(self, request: Request) -> Response:
        artifact = self._artifact(request)
        self._session(request).artifacts.remove(artifact)
        artifact.file.unlink(missing_ok=True)
        return _json({"id": artifact.id, "object": "agent.session.artifact.deleted", "deleted": True})

    async def get_content(self, request: Request) -> Response:
        _refuse_head(request, "GET")
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
    """One path with an endpoint a method. (A Route a method would answer 405 with the first one's Allow alone.)"""

    async def dispatch(request: Request) -> Response:
        return await endpoints["GET" if request.method == "HEAD" else request.method](request)

    return Route(path, dispatch, methods=list(endpoints))


def _id(resource: Session | Turn | Artifact) -> str:
    return resource.id


Found = TypeVar("Found", Turn, Artifact)


def _find(resources: list[Found], id: str) -> Found:
    for resource in resources:
        if resource.id == id:
            return resource
    raise not_found()


def _ends_creation(type: str) -> bool:
    """A creation's stream ends when its Turn, or the wait for it, has ended."""
    return type in ("agent.session.idle", "agent.session.failed")


def _json(value: Mapping[str, Any], status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    headers = {"Cache-Control": "no-store", **(headers or {})}
    return Response(to_json(value), status, headers, media_type="application/json")


def _sse(stream: EventStream, status: int) -> Response:
    headers = {"Cache-Control": "no-cache"}
    return StreamingResponse(stream.frames(), status, headers, media_type="text/event-stream")


def _refuse_head(request: Request, allow: str) -> None:
    if request.method == "HEAD":
        raise method_not_allowed(allow)


async def _answer_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, APIError)
    return _json(error.body(), error.status, error.headers)


async def _answer_http(request: Request, error: Exception) -> Response:
    """What the router says: no such path, no such method."""
    assert isinstance(error, HTTPException)
    if error.status_code == 405:
        allow = (error.headers or {}).get("Allow", "")
        return await _answer_error(request, method_not_allowed(allow))
    return await _answer_error(request, no_such_operation())


async def _answer_500(request: Request, error: Exception) -> Response:
    message = "The embedded Core failed; its standard error says how."
    return _json(APIError(500, message, type="server_error", code="internal_error").body(), 500)
