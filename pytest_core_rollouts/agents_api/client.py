"""The Agents API, a method a route."""

from __future__ import annotations

import json
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from contextlib import aclosing
from types import TracebackType
from typing import Any, TypeVar, cast
from urllib.parse import quote

from .address import normalize_base_url
from .errors import AgentsAPIError, APIStatusError, InvalidResponse, ShortRead, StreamLost, TooLarge
from .responses import Call, Reply, checked_id, invalid, json_object, no_core, page
from .retry import RetryPolicy, retrying
from .sse import EventTooLarge, Parser, ServerSentEvent
from .types import Artifact, Event, Item, Session, Turn

__all__ = ["Client"]

T = TypeVar("T")

SESSIONS = "/agents/sessions"
MAX_JSON_BYTES = 64 * 1024 * 1024  # of one answer: a page of a hundred Items can be large
PAGE_LIMIT = 100  # entries that one page may hold
MOST_PAGES = 2_000  # of one list: a server that makes up entries for ever ends here
MOST_RESTARTS = 5  # of one list whose entries are being deleted


class Client:
    """One rollout slot's access to a Core.

    Make one per slot, not one for all: it holds one connection, and one more while events are streamed, and it
    carries the state of one rollout at a time:

    `deadline`     on the policy's monotonic clock; no try goes past it (None: no deadline)
    `waited_s`     seconds lost to faults that were retried: throttling, a server that was down
    `waited_for`   the last of those faults
    `request_ids`  the last X-Request-Id of each kind of call (create, session, sessions, turns, items, artifacts,
                   content, events, cancel, delete)
    `trouble`      the fault that a call is waiting out right now, for whoever shows the state
    `bytes_read`   of all answers so far
    `server_ahead` seconds by which the server's clock is ahead of ours, as its last answer said; else 0

    The owner resets them between rollouts. `retry` may be replaced at any time. A JSON answer over `max_json_bytes`
    is not read. `proven` tells whether this server has answered others as a Core does: until it has, what is no answer
    of a Core's means that there is none, which stops a run.

    Raises ValueError for a base URL or key that cannot work; every method raises AgentsAPIError. A cancelled call
    ends at once.
    """

    def __init__(
        self,
        base_url: str,
        api_key: str,
        *,
        retry: RetryPolicy | None = None,
        max_json_bytes: int = MAX_JSON_BYTES,
        proven: Callable[[], bool] = lambda: False,
    ) -> None:
        from .transport import Transport  # httpx costs 90 ms, and most pytest runs never make a call

        self.base_url = normalize_base_url(base_url)
        self.retry = retry or RetryPolicy()
        self.deadline: float | None = None
        self.waited_s = 0.0
        self.waited_for: AgentsAPIError | None = None
        self.request_ids: dict[str, str] = {}
        self.trouble: AgentsAPIError | None = None
        self.server_ahead = 0.0
        self.bytes_read = 0
        self._transport = Transport(self.base_url, _checked_key(api_key), lambda: self.retry, max_json_bytes, proven)

    def __repr__(self) -> str:
        return f"Client({self.base_url!r})"

    async def __aenter__(self) -> Client:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        await self._transport.aclose()

    # Sessions

    async def create_session(self, body: Mapping[str, Any], *, idempotency_key: str) -> Session:
        """Creates a Session. The same key and body give the same Session again, so every try sends the same bytes."""
        content = json.dumps(body, allow_nan=False, separators=(",", ":")).encode()
        call = Call("create", "POST", SESSIONS, body=content, idempotency_key=idempotency_key)
        return cast(Session, await self._call(call, _resource))

    async def get_session(self, session_id: str) -> Session:
        return cast(Session, await self._call(Call("session", "GET", _path(session_id)), _resource))

    async def list_sessions(self, *, limit: int = PAGE_LIMIT) -> AsyncIterator[Session]:
        """All Sessions of the Project, newest first. `limit` is the size of a page."""
        async for session in self._list("sessions", SESSIONS, order="desc", limit=limit):
            yield cast(Session, session)

    async def check(self) -> None:
        """One small call, to learn before any other whether there is a Core and whether it takes the key."""
        await self._call(Call("sessions", "GET", f"{SESSIONS}?limit=1"), _page_of_resources)

    async def delete_session(self, session_id: str) -> None:
        """Deletes a Session with its Artifacts. A busy one is refused: APIStatusError 409."""
        await self._call(Call("delete", "DELETE", _path(session_id)), _deletion)

    async def cancel(self, session_id: str) -> None:
        """Asks for the end of the running Turn. It has ended when it reads so: completion may win the race."""
        content = b'{"events":[{"type":"agent.session.input.cancel"}]}'
        await self._call(Call("cancel", "POST", _path(session_id, "events"), body=content), _acceptance)

    # What a Session holds

    async def latest_turn(self, session_id: str) -> Turn | None:
        """The newest Turn; None while the Session has none."""
        call = Call("turns", "GET", f"{_path(session_id, 'turns')}?order=desc&limit=1")
        data, _, _ = await self._call(call, _page_of_resources)
        return cast(Turn, data[0]) if data else None

    async def list_turns(self, session_id: str, *, order: str = "asc", limit: int = PAGE_LIMIT) -> AsyncIterator[Turn]:
        async for turn in self._list("turns", _path(session_id, "turns"), order=order, limit=limit):
            yield cast(Turn, turn)

    async def list_items(
        self, session_id: str, *, order: str = "asc", limit: int = PAGE_LIMIT
    ) -> AsyncGenerator[Item, None]:
        """The trajectory, oldest first; Items that are in progress or incomplete too."""
        async for item in self._list("items", _path(session_id, "items"), order=order, limit=limit):
            yield cast(Item, item)

    async def list_artifacts(
        self, session_id: str, *, order: str = "desc", limit: int = PAGE_LIMIT
    ) -> AsyncIterator[Artifact]:
        """Files that completed Turns left, newest first."""
        async for artifact in self._list("artifacts", _path(session_id, "artifacts"), order=order, limit=limit):
            yield cast(Artifact, artifact)

    async def artifact_content(self, session_id: str, artifact: Artifact, *, max_bytes: int) -> bytes:
        """The bytes of an Artifact, exactly as many as its `size_bytes`.

        Raises TooLarge over `max_bytes`: without a request where `size_bytes` says so already. Raises ShortRead where
        the length still differs after retries; a download that goes on beyond `size_bytes` is given up there.
        """
        path = f"{_path(session_id, 'artifacts', artifact['id'])}/content"
        told = artifact.get("size_bytes")
        size = told if isinstance(told, int) else None
        if size is not None and size > max_bytes:
            raise TooLarge(f"the Artifact has {size} bytes, at most {max_bytes} are read", method="GET", path=path)
        cap = max_bytes if size is None else max(0, size)
        call = Call("content", "GET", path, accept="application/octet-stream", max_bytes=cap)

        async def attempt() -> bytes:
            try:
                reply = await self._send(call)
            except TooLarge as fault:
                if size is None:
                    raise
                raise _other_length(call, size, "more", fault.request_id) from None
            if size is not None and len(reply.body) != size:
                raise _other_length(call, size, str(len(reply.body)), reply.request_id)
            return reply.body

        return await retrying(self.retry, self, attempt)

    async def events(self, session_id: str, opened: Callable[[], None] = lambda: None) -> AsyncGenerator[Event, None]:
        """Live events, from now on, until the server ends the stream; close it with `contextlib.aclosing`.

        `opened` is called once the stream is there: what happens from then on is on it. It is tried once, for it only
        wakes its reader up, while the Turn list tells the truth. Raises StreamLost when the stream breaks off, makes no
        sense, or has no whole line for the policy's `stream_silence`.
        """
        call = Call("events", "GET", _path(session_id, "events"), accept="text/event-stream")
        parser = Parser()
        async with self._transport.stream(call, self.deadline) as (request_id, chunks), aclosing(chunks):
            if request_id is not None:
                self.request_ids[call.name] = request_id
            opened()
            lines, alive = 0, self.retry.clock()
            async for chunk in chunks:
                try:
                    events = parser.feed(chunk)
                except EventTooLarge as error:
                    raise StreamLost(str(error), method=call.method, path=call.path) from None
                for event in events:
                    yield _event(call, event)
                now = self.retry.clock()
                if parser.lines > lines:
                    lines, alive = parser.lines, now
                elif now - alive > self.retry.stream_silence:
                    problem = f"no whole line came over the event stream for {now - alive:.0f} s"
                    raise StreamLost(problem, method=call.method, path=call.path)

    # How a call is made

    async def _call(self, call: Call, read: Callable[[Call, Reply], T]) -> T:
        """Sends `call` until it succeeds, as the policy allows, and reads its answer with `read`."""

        async def attempt() -> T:
            reply = await self._send(call)
            return read(call, reply)

        try:
            value = await retrying(self.retry, self, attempt)
        except InvalidResponse as fault:
            if call.is_collection and not self._transport.is_proven:
                raise no_core(call, self.base_url, fault.problem, fault.request_id) from None
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

    async def _list(self, name: str, path: str, *, order: str, limit: int) -> AsyncIterator[dict[str, Any]]:
        """Every entry once, over all pages, however entries come and go meanwhile."""
        read = page if name == "items" else _page_of_resources
        query = f"?order={order}&limit={max(1, min(limit, PAGE_LIMIT))}"
        seen: set[str] = set()
        cursors: set[str] = set()
        after = ""
        restarts = 0
        for _ in range(MOST_PAGES):
            call = Call(name, "GET", path + query + after)
            try:
                data, has_more, last_id = await self._call(call, read)
            except APIStatusError as fault:
                # The entry that we had come to was deleted (Sessions are, by other runs too): begin again.
                if not after or fault.status not in (400, 404) or restarts == MOST_RESTARTS:
                    raise
                after, restarts = "", restarts + 1
                cursors.clear()
                continue
            for entry in data:
                entry_id = entry.get("id")
                if entry_id is None:  # an old message: it has none, so it cannot be told from its repeat
                    yield entry
                elif entry_id not in seen:
                    seen.add(entry_id)
                    yield entry
            if not has_more:
                return
            if last_id is None or last_id in cursors:
                raise _stuck(call, f"the list says that there is more after {last_id!r}, but does not go on")
            cursors.add(last_id)
            after = f"&after={quote(last_id, safe='')}"
        raise _stuck(call, f"the list has no end within {MOST_PAGES} pages")


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


def _deletion(call: Call, reply: Reply) -> None:
    if json_object(call, reply).get("deleted") is not True:
        invalid(call, reply, "`deleted` is not true")


def _acceptance(call: Call, reply: Reply) -> None:
    if reply.is_html:
        invalid(call, reply, "the body is an HTML page")


def _event(call: Call, event: ServerSentEvent) -> Event:
    try:
        value = json.loads(event.data)
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict) or not isinstance(value.setdefault("type", event.event), str):
        raise StreamLost("the event stream holds an event that is no JSON object", method=call.method, path=call.path)
    return cast(Event, value)


def _other_length(call: Call, size: int, had: str, request_id: str | None) -> ShortRead:
    problem = f"the Artifact has {size} bytes, the download had {had}"
    return ShortRead(problem, method=call.method, path=call.path, request_id=request_id)


def _stuck(call: Call, problem: str) -> InvalidResponse:
    return InvalidResponse(problem, method=call.method, path=call.path)


def _checked_key(api_key: str) -> str:
    key = api_key.strip()
    if not key:
        raise ValueError("the API key is empty: set OPENAI_API_KEY")
    if not (key.isascii() and key.isprintable() and " " not in key):
        raise ValueError(
            "the API key holds a space, a control character or a letter outside ASCII: check OPENAI_API_KEY"
        )
    return key
