"""The Agents API, one method per route."""

from __future__ import annotations

import json
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from contextlib import aclosing
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar, cast
from urllib.parse import quote

from .address import require_secure_url
from .errors import AgentsAPIError, APIStatusError, InvalidResponse, ShortRead, StreamLost, TooLarge
from .responses import Call, Reply, checked_id, invalid, json_object, not_a_core, page
from .retry import RetryPolicy, retrying
from .sse import EventTooLarge, Parser, ServerSentEvent
from .types import Artifact, Event, Item, Session, Turn

if TYPE_CHECKING:
    import httpx

__all__ = ["Client"]

T = TypeVar("T")
ReadPage = Callable[[Call, Reply], tuple[list[dict[str, Any]], bool, str | None]]
"""Returns the entries of a page, whether there are more, and the id of the last one."""

SESSIONS = "/agents/sessions"
MAX_JSON_BYTES = 64 * 1024 * 1024
"""Bytes of one answer: a page of a hundred Items can be large."""
PAGE_LIMIT = 100
"""Entries that the API allows on one page."""
MAX_PAGES = 2_000
"""Pages of one list: a server that invents entries forever is given up here."""
MAX_RESTARTS = 5
"""How often a list is read again from its start because the entry it had come to was deleted."""


class Client:
    """Access to a Core for one rollout at a time.

    Make one per rollout slot, not one for all. It uses one connection, and a second one while events are streamed.
    It carries the state of the current rollout, which the owner resets before the next:

    `deadline`     on the policy's monotonic clock; no try goes past it (None: no deadline)
    `waited_s`     seconds lost to faults that were retried, such as throttling or a server that was down
    `waited_for`   the last of those faults
    `request_ids`  the last X-Request-Id of each kind of call (create, session, sessions, turns, items, artifacts,
                   content, events, cancel, delete)
    `trouble`      the fault that a call is waiting for to pass, for progress displays
    `bytes_read`   total size of all answers
    `server_ahead` seconds by which the server's clock is ahead of ours, by the Date of its last answer; None if unknown

    `retry` may be replaced at any time. A JSON answer over `max_json_bytes` is not read.
    `proven()` says whether this server has answered another client as a Core does.
    Until a server is proven, an answer that no Core would give means that it is not a Core, which stops a run.
    `permissions` are what the server calls the rights that a key needs; messages name them.
    `transport` sends the requests, by default over HTTP/1.1 and through the proxy that the environment names.
    The client closes it.

    Raises ValueError for a base URL or key that can't work, and for http to another machine: the key would be readable.
    Every method raises AgentsAPIError. A call that is cancelled ends at once.
    """

    def __init__(
        self,
        base_url: str,
        api_key: str,
        *,
        retry: RetryPolicy | None = None,
        max_json_bytes: int = MAX_JSON_BYTES,
        proven: Callable[[], bool] = lambda: False,
        permissions: Sequence[str] = (),
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        from .transport import Transport  # imports httpx, which most pytest runs don't need

        self.base_url = require_secure_url(base_url)
        self.retry = retry or RetryPolicy()
        self.deadline: float | None = None
        self.waited_s = 0.0
        self.waited_for: AgentsAPIError | None = None
        self.request_ids: dict[str, str] = {}
        self.trouble: AgentsAPIError | None = None
        self.server_ahead: float | None = None
        self.bytes_read = 0
        key = _checked_key(api_key)
        self._transport = Transport(
            self.base_url, key, lambda: self.retry, max_json_bytes, proven, transport, permissions=permissions
        )

    def __repr__(self) -> str:
        return f"Client({self.base_url!r})"

    async def __aenter__(self) -> Client:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Close the connections."""
        await self._transport.aclose()

    # Sessions

    async def create_session(self, body: Mapping[str, Any], *, idempotency_key: str, once: bool = False) -> Session:
        """Create a Session. The same key and body return the same Session, so every try sends the same bytes.

        `once`: make only one try, because this server ignores the key and makes a Session for every create.
        """
        content = json.dumps(body, allow_nan=False, separators=(",", ":")).encode()
        call = Call("create", "POST", SESSIONS, body=content, idempotency_key=idempotency_key)
        if not once:
            return cast(Session, await self._call(call, _resource))
        session = cast(Session, _resource(call, await self._send(call)))
        self._transport.has_answered = True
        return session

    async def get_session(self, session_id: str) -> Session:
        """Return the Session as it is now."""
        return cast(Session, await self._call(Call("session", "GET", _path(session_id)), _session))

    async def list_sessions(self, *, limit: int = PAGE_LIMIT) -> AsyncIterator[Session]:
        """Yield all Sessions of the Project, newest first. `limit` is the size of a page."""
        async for session in self._list("sessions", SESSIONS, order="desc", limit=limit):
            yield cast(Session, session)

    async def check(self) -> None:
        """Make one small call, to learn before all others whether there is a Core and whether it accepts the key."""
        await self._call(Call("sessions", "GET", f"{SESSIONS}?limit=1"), _page_of_resources)

    async def delete_session(self, session_id: str) -> None:
        """Delete a Session with its Artifacts. A busy one is refused: APIStatusError 409."""
        await self._call(Call("delete", "DELETE", _path(session_id)), _deletion)

    async def cancel(self, session_id: str) -> None:
        """Ask the Core to end the running Turn. Read the Turn to learn how it ended: it may complete first."""
        content = b'{"events":[{"type":"agent.session.input.cancel"}]}'
        await self._call(Call("cancel", "POST", _path(session_id, "events"), body=content), _acceptance)

    # What a Session contains

    async def latest_turn(self, session_id: str) -> Turn | None:
        """Return the newest Turn of the Session's own agent, not of a subagent; None while there is none."""
        call = Call("turns", "GET", f"{_path(session_id, 'turns')}?order=desc&limit=1")
        data, _, _ = await self._call(call, _page_of_turns)
        if data and data[0].get("subagent_id") is not None:
            path = _path(session_id, "turns")
            async for turn in self._list("turns", path, order="desc", limit=PAGE_LIMIT, read=_page_of_turns):
                if turn.get("subagent_id") is None:
                    return cast(Turn, turn)
            return None
        return cast(Turn, data[0]) if data else None

    async def list_items(
        self, session_id: str, *, order: str = "asc", limit: int = PAGE_LIMIT
    ) -> AsyncGenerator[Item, None]:
        """Yield the trajectory, by default oldest first, with Items that are in progress or incomplete."""
        async for item in self._list("items", _path(session_id, "items"), order=order, limit=limit):
            yield cast(Item, item)

    async def list_artifacts(
        self, session_id: str, *, order: str = "desc", limit: int = PAGE_LIMIT
    ) -> AsyncIterator[Artifact]:
        """Yield the files that completed Turns left, by default newest first."""
        async for artifact in self._list("artifacts", _path(session_id, "artifacts"), order=order, limit=limit):
            yield cast(Artifact, artifact)

    async def artifact_content(self, session_id: str, artifact: Artifact, *, max_bytes: int) -> bytes:
        """Return the bytes of an Artifact, exactly as many as its `size_bytes`.

        Raises TooLarge over `max_bytes`, without a request if `size_bytes` already says so.
        Raises ShortRead if the length still differs after retries; nothing beyond `size_bytes` is read.
        """
        path = f"{_path(session_id, 'artifacts', artifact['id'])}/content"
        stated = artifact.get("size_bytes")
        size = stated if isinstance(stated, int) else None
        limit = max_bytes if size is None else max(0, size)
        call = Call("content", "GET", path, accept="application/octet-stream", max_bytes=limit)
        if limit > max_bytes:
            raise call.fault(TooLarge, f"the Artifact has {size} bytes; at most {max_bytes} are read")

        async def attempt() -> bytes:
            try:
                reply = await self._send(call)
            except TooLarge as fault:
                if size is None:
                    raise
                problem = f"the Artifact has {size} bytes, but the download had more"
                raise call.fault(ShortRead, problem, fault.request_id) from None
            if size is not None and len(reply.body) != size:
                problem = f"the Artifact has {size} bytes, but the download had {len(reply.body)}"
                raise call.fault(ShortRead, problem, reply.request_id)
            return reply.body

        return await retrying(self.retry, self, attempt)

    async def events(self, session_id: str, opened: Callable[[], None] = lambda: None) -> AsyncGenerator[Event, None]:
        """Yield live events, from now on, until the server ends the stream; close it with `contextlib.aclosing`.

        `opened` is called when the stream is open: everything that happens later is on it.
        It is tried once, because the stream only shows when to read the Turn list, which has the facts.
        Raises StreamLost if the stream breaks off, is malformed, or has no complete line for the policy's
        `stream_silence`.
        """
        call = Call("events", "GET", _path(session_id, "events"), accept="text/event-stream")
        parser = Parser()
        async with self._transport.stream(call, self.deadline) as (request_id, chunks), aclosing(chunks):
            if request_id is not None:
                self.request_ids[call.name] = request_id
            opened()
            lines, last_line_at = 0, self.retry.clock()
            async for chunk in chunks:
                try:
                    events = parser.feed(chunk)
                except EventTooLarge as error:
                    raise call.fault(StreamLost, str(error)) from None
                for event in events:
                    yield _event(call, event)
                now = self.retry.clock()
                if parser.lines > lines:
                    lines, last_line_at = parser.lines, now
                elif now - last_line_at > self.retry.stream_silence:
                    problem = f"no complete line on the event stream for {now - last_line_at:.0f} s"
                    raise call.fault(StreamLost, problem)

    # How a call is made

    async def _call(self, call: Call, read: Callable[[Call, Reply], T]) -> T:
        """Send `call` until it succeeds, as the policy allows, and read its answer with `read`."""

        async def attempt() -> T:
            reply = await self._send(call)
            return read(call, reply)

        try:
            value = await retrying(self.retry, self, attempt)
        except InvalidResponse as fault:
            if call.is_collection and not self._transport.is_proven:
                raise not_a_core(call, self.base_url, fault.problem, fault.request_id) from None
            raise
        self._transport.has_answered = True
        return value

    async def _send(self, call: Call) -> Reply:
        try:
            reply = await self._transport.send(call, self.deadline)
        except AgentsAPIError as fault:
            if fault.request_id:
                self.request_ids[call.name] = fault.request_id
            raise
        if reply.request_id:
            self.request_ids[call.name] = reply.request_id
        self.server_ahead = reply.server_ahead(time.time())
        self.bytes_read += len(reply.body)
        return reply

    async def _list(
        self, name: str, path: str, *, order: str, limit: int, read: ReadPage | None = None
    ) -> AsyncIterator[dict[str, Any]]:
        """Yield every entry once, over all pages, even if entries come and go meanwhile."""
        read = read or (page if name == "items" else _page_of_resources)
        query = f"?order={order}&limit={max(1, min(limit, PAGE_LIMIT))}"
        seen: set[str] = set()
        cursors: set[str] = set()
        after = ""
        restarts = 0
        for _ in range(MAX_PAGES):
            call = Call(name, "GET", path + query + after)
            try:
                data, has_more, last_id = await self._call(call, read)
            except APIStatusError as fault:
                # The entry that we had come to was deleted (other runs delete Sessions too): start again.
                if not after or fault.status not in (400, 404) or restarts == MAX_RESTARTS:
                    raise
                after, restarts = "", restarts + 1
                cursors.clear()
                continue
            for entry in data:
                entry_id = entry.get("id")
                if entry_id is None:  # an old message, which can't be recognized if it is listed again
                    yield entry
                elif entry_id not in seen:
                    seen.add(entry_id)
                    yield entry
            if not has_more:
                return
            if last_id is None or last_id in cursors:
                problem = f"the list has more entries after {last_id!r}, but does not go on"
                raise call.fault(InvalidResponse, problem)
            cursors.add(last_id)
            after = f"&after={quote(last_id, safe='')}"
        raise call.fault(InvalidResponse, f"the list has no end within {MAX_PAGES} pages")


def _path(*parts: str) -> str:
    return "/".join((SESSIONS, *(quote(part, safe="") for part in parts)))


def _resource(call: Call, reply: Reply) -> dict[str, Any]:
    value = json_object(call, reply)
    checked_id(call, reply, value)
    return value


def _page_of_resources(call: Call, reply: Reply) -> tuple[list[dict[str, Any]], bool, str | None]:
    found = page(call, reply)
    for entry in found[0]:
        checked_id(call, reply, entry)
    return found


def _page_of_turns(call: Call, reply: Reply) -> tuple[list[dict[str, Any]], bool, str | None]:
    """Without a status a rollout would wait for its whole limit."""
    found = _page_of_resources(call, reply)
    for turn in found[0]:
        _require_status(call, reply, turn)
    return found


def _session(call: Call, reply: Reply) -> dict[str, Any]:
    session = _resource(call, reply)
    _require_status(call, reply, session)
    return session


def _require_status(call: Call, reply: Reply, resource: dict[str, Any]) -> None:
    if not isinstance(resource.get("status"), str):
        invalid(call, reply, '"status" is missing or is not a string')


def _deletion(call: Call, reply: Reply) -> None:
    if json_object(call, reply).get("deleted") is not True:
        invalid(call, reply, '"deleted" is not true')


def _acceptance(call: Call, reply: Reply) -> None:
    if reply.is_html:
        invalid(call, reply, "the body is an HTML page")


def _event(call: Call, event: ServerSentEvent) -> Event:
    try:
        value = json.loads(event.data)
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict) or not isinstance(value.setdefault("type", event.event), str):
        raise call.fault(StreamLost, "an event of the stream is not a JSON object")
    return cast(Event, value)


def _checked_key(api_key: str) -> str:
    key = api_key.strip()
    if not key:
        raise ValueError("the API key is empty; set OPENAI_API_KEY")
    if not (key.isascii() and key.isprintable() and " " not in key):
        raise ValueError(
            "the API key contains a space, a control character or a character outside ASCII; check OPENAI_API_KEY"
        )
    return key
