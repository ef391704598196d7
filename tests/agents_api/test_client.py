"""The routes, on a Core that behaves."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from functools import partial
from typing import Any

import pytest

from pytest_core_rollouts.agents_api import (
    APIStatusError,
    Client,
    ConnectionFailed,
    InvalidResponse,
    Session,
    ShortRead,
    StreamLost,
    TooLarge,
)
from tests.support.api import BODY, collect, finished_session, quick, run
from tests.support.fake_core import FakeCore, Fault, Request, Script
from tests.support.tables import rows


def test_importing_the_package_does_not_import_httpx() -> None:
    code = "import sys, pytest_core_rollouts.agents_api; assert not {'httpx', 'http.client'} & {*sys.modules}"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_one_session_from_create_to_delete() -> None:
    script = Script(
        answer=b'{"total": 3}',
        usage={"input_tokens": 5, "output_tokens": 2, "total_tokens": 7},
        items=[{"type": "command_execution", "command": "ls", "output": "\x1b[31m\ud835\x00"}],
    )

    async def use(client: Client) -> None:
        session = await finished_session(client)
        assert session["status"] in ("in_progress", "idle")
        turn = await client.latest_turn(session["id"])
        assert turn is not None
        assert turn["usage"] == script.usage
        items = await collect(client.list_items(session["id"]))
        assert [item["type"] for item in items] == ["message", "command_execution"]
        assert items[1]["output"] == "\x1b[31m\ud835\x00"  # type: ignore[typeddict-item]
        [artifact] = await collect(client.list_artifacts(session["id"]))
        assert artifact["path"] == "/workspace/outputs/answer.json"
        assert await client.artifact_content(session["id"], artifact, max_bytes=100) == b'{"total": 3}'
        assert [entry["id"] for entry in await collect(client.list_sessions())] == [session["id"]]
        await client.cancel(session["id"])
        await client.delete_session(session["id"])
        await client.delete_session(session["id"])
        assert await collect(client.list_sessions()) == []
        called = {"create", "session", "sessions", "turns", "items", "artifacts", "content", "cancel", "delete"}
        assert client.request_ids.keys() == called
        assert all(request_id.startswith("req_") for request_id in client.request_ids.values())
        assert client.waited_s == 0.0

    with FakeCore(script=lambda body: script) as core:
        run(core, use)
        assert [session.deleted for session in core.sessions.values()] == [True]
        assert core.sessions["sess_00000001"].body == BODY
        for request in core.requests:
            names = [name for name, _ in request.headers]
            assert len(names) == len(set(names))
            assert request.header("accept-encoding") == "identity"
            assert request.target.startswith("/v1/agents/sessions")


def test_client_uses_two_connections() -> None:
    async def use(client: Client) -> None:
        session = await client.create_session(BODY, idempotency_key="key-1")
        async with aclosing(client.events(session["id"])) as events:
            first = asyncio.ensure_future(events.__anext__())
            await asyncio.sleep(0.05)
            for _ in range(5):
                await client.latest_turn(session["id"])
            await client.cancel(session["id"])
            await first

    with FakeCore(script=lambda body: Script(never_ends=True)) as core:
        run(core, use)
        assert len({request.connection for request in core.requests}) == 2


def test_session_without_a_turn_can_not_be_cancelled_or_deleted() -> None:
    async def use(client: Client) -> None:
        session = await client.create_session(BODY, idempotency_key="key-1")
        assert session["status"] == "idle"
        assert await client.latest_turn(session["id"]) is None
        with pytest.raises(APIStatusError, match="409 conflict_error"):
            await client.cancel(session["id"])
        with pytest.raises(APIStatusError, match="409 conflict_error"):
            await client.delete_session(session["id"])

    with FakeCore(script=lambda body: Script(prepare_seconds=None)) as core:
        run(core, use)
        assert core.counts["cancel"] == core.counts["delete"] == 1  # the caller decides what a conflict means


def test_same_key_and_body_return_the_same_session() -> None:
    async def use(client: Client) -> None:
        first = await client.create_session(BODY, idempotency_key="key-1")
        again = await client.create_session(BODY, idempotency_key="key-1")
        other = await client.create_session(BODY, idempotency_key="key-2")
        assert first["id"] == again["id"] != other["id"]
        with pytest.raises(APIStatusError) as caught:
            await client.create_session({**BODY, "input": "else"}, idempotency_key="key-1")
        assert (caught.value.status, caught.value.code) == (409, "idempotency_conflict")

    with FakeCore() as core:
        run(core, use)
        assert len(core.sessions) == 2


def test_items_of_all_pages_are_listed_while_one_is_added() -> None:
    items = [{"type": "reasoning", "summary": []}] * 250

    def late(request: Request) -> None:
        if request.route == "items" and request.nth == 2:
            core.sessions[request.segments[3]].add_item({"type": "reasoning", "summary": ["late"]})

    async def use(client: Client) -> None:
        session = await finished_session(client)
        listed = await collect(client.list_items(session["id"]))
        truth = core.sessions[session["id"]].items
        assert len(truth) == 252  # the user's message, 250, and the late one
        assert listed == truth

    with FakeCore(script=lambda body: Script(items=items), fault=late) as core:
        run(core, use)
        assert core.counts["items"] == 3
        assert all(int(dict(request.query).get("limit", 0)) <= 100 for request in core.requests if request.query)


def test_artifacts_of_all_pages_are_listed_newest_first() -> None:
    artifacts = {f"/workspace/outputs/{number}.txt": b"" for number in range(25)}

    async def use(client: Client) -> None:
        session = await finished_session(client)
        listed = await collect(client.list_artifacts(session["id"], limit=20))
        assert [artifact["path"] for artifact in listed] == list(artifacts)[::-1]
        assert await client.artifact_content(session["id"], listed[0], max_bytes=0) == b""
        assert len(await collect(client.list_artifacts(session["id"], limit=1000))) == 25

    with FakeCore(script=lambda body: Script(artifacts=artifacts)) as core:
        run(core, use)


def test_sessions_are_listed_once_while_some_are_deleted() -> None:
    def meanwhile(request: Request) -> None:
        if request.route == "sessions" and request.nth == 2:
            core.sessions["sess_00000031"].deleted = True  # the cursor: last of the first page

    async def use(client: Client) -> None:
        for number in range(40):
            await client.create_session({"environment": {"type": "openai_hosted"}}, idempotency_key=f"key-{number}")
        listed = [session["id"] for session in await collect(client.list_sessions(limit=10))]
        assert len(listed) == len(set(listed))
        assert set(listed) == core.sessions.keys()

    with FakeCore(fault=meanwhile) as core:
        run(core, use)


LISTS: dict[str, Callable[[Client], AsyncIterator[Any]]] = {
    "sessions": lambda client: client.list_sessions(),
    "items": lambda client: client.list_items("s"),
    "artifacts": lambda client: client.list_artifacts("s"),
}


@rows("name", LISTS)
def test_list_that_repeats_its_page_is_invalid(name: str) -> None:
    page = b'{"data": [{"id": "a"}], "has_more": true, "last_id": "a"}'

    async def use(client: Client) -> None:
        with pytest.raises(InvalidResponse, match="does not go on"):
            await collect(LISTS[name](client))

    with FakeCore(fault=lambda request: Fault(status=200, body=page)) as core:
        run(core, use)
        assert core.counts[name] == 2


def test_empty_page_with_more_to_come_is_invalid() -> None:
    body = b'{"data": [], "has_more": true, "last_id": null}'

    async def use(client: Client) -> None:
        with pytest.raises(InvalidResponse, match="does not go on"):
            await collect(client.list_items("s"))

    with FakeCore(fault=lambda request: Fault(status=200, body=body)) as core:
        run(core, use)


def test_old_messages_without_an_id_are_kept() -> None:
    body = (
        b'{"data": [{"id": null, "type": "message"}, {"type": "message"}, {"id": "a"}, {"id": "a"}], "has_more": false}'
    )

    async def use(client: Client) -> None:
        assert [item.get("id") for item in await collect(client.list_items("s"))] == [None, None, "a"]

    with FakeCore(fault=lambda request: Fault(status=200, body=body)) as core:
        run(core, use)


BAD_BODIES = {
    "empty": b"",
    "no JSON": b"upstream says hello",
    "cut JSON": b'{"id": "sess_1", "sta',
    "a list": b"[]",
    "null": b"null",
    "NaN": b'{"id": "x", "data": [{"id": "y", "n": NaN}], "has_more": false}',
    "no UTF-8": b'{"id": "\xff"}',
    "deep": b"[" * 100_000,
    "long number": b'{"id": "x", "n": ' + b"9" * 5000 + b"}",
    "no id, no data": b"{}",
    "wrong id, wrong data": b'{"id": 7, "data": {}, "has_more": false}',
    "null id, null entry": b'{"id": null, "data": [null], "has_more": false}',
    "dots for an id": b'{"id": "..", "data": [{"id": ".."}], "has_more": false}',
    "has_more missing": b'{"id": "", "data": []}',
    "surrogate for an id": b'{"id": "\\ud800", "data": [{"id": "\\ud800"}], "has_more": false}',
    "endless id": b'{"id": "%s", "data": [], "has_more": true, "last_id": "%s"}' % (b"x" * 2000, b"x" * 2000),
    "last_id a number": b'{"id": [], "data": [], "has_more": false, "last_id": 3}',
}


@rows("status", [b"", b', "status": null', b', "status": 3'])
def test_a_session_or_turn_without_a_status_is_invalid(status: bytes) -> None:
    """Otherwise its rollout would wait for the whole limit."""
    body = b'{"id": "x"%s, "data": [{"id": "y"%s}], "has_more": false}' % (status, status)

    async def use(client: Client) -> None:
        await client.create_session(BODY, idempotency_key="key-1")
        for read in (client.get_session, client.latest_turn):
            with pytest.raises(InvalidResponse, match='"status" is missing or is not a string'):
                await read("s")

    with FakeCore(fault=lambda request: None if request.route == "create" else Fault(status=200, body=body)) as core:
        run(core, use, retry=quick(wrong_body_tries=2))


READS: dict[str, Callable[[Client], Awaitable[Any]]] = {
    "session": lambda client: client.get_session("s"),
    "latest turn": lambda client: client.latest_turn("s"),
    "artifacts": lambda client: collect(client.list_artifacts("s")),
    "sessions": lambda client: collect(client.list_sessions()),
}


@rows("name", READS)
def test_success_with_a_wrong_body_is_invalid(name: str) -> None:
    results: dict[str, str] = {}

    async def use(client: Client) -> None:
        await client.create_session(BODY, idempotency_key="key-1")  # it is a Core
        for kind, body in BAD_BODIES.items():
            wrong = Fault(status=200, body=body)
            core.fault = partial(answer_with, wrong)
            results[kind] = await result_of(READS[name](client))

    with FakeCore() as core:
        run(core, use, retry=quick(wrong_body_tries=3))
    assert results == dict.fromkeys(BAD_BODIES, "invalid after 3 tries")


def answer_with(fault: Fault, request: Request) -> Fault:
    return fault


async def result_of(read: Awaitable[Any]) -> str:
    """`invalid after N tries`, or what came in place of that."""
    try:
        value = await read
    except InvalidResponse as error:
        return f"invalid after {error.tries} tries" if "GET /agents/sessions" in str(error) else str(error)
    except Exception as error:  # noqa: BLE001 - the assertion shows it, with the kind of body
        return repr(error)
    return f"accepted: {value!r}"


@rows("body", [b"{}", b'{"deleted": false}', b"<html>", b""])
def test_unconfirmed_deletion_is_invalid(body: bytes) -> None:
    async def use(client: Client) -> None:
        with pytest.raises(InvalidResponse, match="DELETE /agents/sessions/s"):
            await client.delete_session("s")

    with FakeCore(fault=lambda request: Fault(status=200, body=body)) as core:
        run(core, use)


@rows("session_id", ["a/../b", "a?b", "a#b", "ü", "%2e%2e", "a b"])
def test_ids_are_opaque(session_id: str) -> None:
    async def use(client: Client) -> None:
        with pytest.raises(APIStatusError, match="404 not_found_error"):
            await client.latest_turn(session_id)

    with FakeCore() as core:
        run(core, use)
        assert [request.segments for request in core.requests] == [["v1", "agents", "sessions", session_id, "turns"]]


async def artifact_of(client: Client, session: Session, max_bytes: int) -> bytes:
    [artifact] = await collect(client.list_artifacts(session["id"]))
    return await client.artifact_content(session["id"], artifact, max_bytes=max_bytes)


@rows("framing", ["length", "chunked", "close"])
@rows("failures", [2, 99])
def test_short_download_is_repeated_and_never_returned(framing: str, failures: int) -> None:
    answer = b'{"x": 1}                                '

    def short(request: Request) -> Fault | None:
        return Fault(cut=20, framing=framing) if request.route == "content" and request.nth <= failures else None

    async def use(client: Client) -> bytes:
        return await artifact_of(client, await finished_session(client), 1000)

    with FakeCore(script=lambda body: Script(answer=answer), fault=short) as core:
        if failures == 2:
            assert run(core, use) == answer
            assert core.counts["content"] == 3
        elif framing == "close":
            with pytest.raises(ShortRead, match="has 40 bytes, but the download had 20"):
                run(core, use)
            assert core.counts["content"] == 4
        else:
            with pytest.raises(ConnectionFailed, match=r"/content: no complete answer"):
                run(core, use, retry=quick(patience=0.1))


def test_artifact_over_the_limit_is_not_downloaded() -> None:
    async def use(client: Client) -> bytes:
        return await artifact_of(client, await finished_session(client), 10)

    with FakeCore(script=lambda body: Script(answer=b"x" * 11)) as core:
        with pytest.raises(TooLarge, match="has 11 bytes; at most 10"):
            run(core, use)
        assert core.counts["content"] == 0


@rows("fault", [Fault(endless=True), Fault(200, b"x" * 11), Fault(200, b"x" * 10_000_000)])
def test_download_that_is_longer_than_stated_is_repeated(fault: Fault) -> None:
    async def use(client: Client) -> bytes:
        return await artifact_of(client, await finished_session(client), 100_000)

    with FakeCore(script=lambda body: Script(answer=b"x" * 10)) as core:
        core.fault = lambda request: fault if request.route == "content" and request.nth <= failures else None
        failures = 2
        assert run(core, use) == b"x" * 10
        failures = 99
        with pytest.raises(ShortRead, match="has 10 bytes, but the download had more"):
            run(core, use)


def test_download_of_unknown_size_is_read_up_to_the_limit() -> None:
    async def use(client: Client) -> bytes:
        [artifact] = await collect(client.list_artifacts((await finished_session(client))["id"]))
        del artifact["size_bytes"]
        return await client.artifact_content(artifact["session_id"], artifact, max_bytes=100_000)

    with FakeCore(script=lambda body: Script(answer=b"x" * 10)) as core:
        assert run(core, use) == b"x" * 10
        core.fault = lambda request: Fault(endless=True) if request.route == "content" else None
        with pytest.raises(TooLarge, match="more than 100000 bytes"):
            run(core, use)
        assert core.counts["content"] == 2


async def types_of_events(client: Client) -> list[str]:
    session = await client.create_session(BODY, idempotency_key="key-1")
    types = []
    async with aclosing(client.events(session["id"])) as events:
        async for event in events:
            types.append(event["type"].removeprefix("agent.session."))
            if types[-1] == "idle":
                break
    return types


LIFE = ["turn.created", "turn.item.added", "in_progress", "turn.in_progress", "turn.completed", "idle"]


def test_events_of_a_turn_are_streamed() -> None:
    with FakeCore(script=lambda body: Script(prepare_seconds=0.1, turn_seconds=0.1)) as core:
        assert run(core, types_of_events) == LIFE


def test_repeated_and_unordered_events_are_passed_on() -> None:
    async def use(client: Client) -> list[str]:
        session = await client.create_session(BODY, idempotency_key="key-1")
        reading = asyncio.ensure_future(collect(client.events(session["id"])))
        await asyncio.sleep(0.3)
        await client.delete_session(session["id"])
        return [event["type"].removeprefix("agent.session.") for event in await asyncio.wait_for(reading, 5)]

    with FakeCore(script=lambda body: Script(prepare_seconds=0.1, stream="scrambled")) as core:
        assert run(core, use) == LIFE[::-1] * 2


def test_keepalives_keep_a_stream_alive() -> None:
    with FakeCore(script=lambda body: Script(prepare_seconds=1.0), keepalive_seconds=0.1) as core:
        assert run(core, types_of_events, retry=quick(stream_silence=0.4)) == LIFE


def test_stream_ends_with_its_session() -> None:
    async def use(client: Client) -> None:
        session = await finished_session(client)
        events = client.events(session["id"])
        rest = asyncio.ensure_future(collect(events))
        await asyncio.sleep(0.1)
        await client.delete_session(session["id"])
        await asyncio.wait_for(rest, 5)

    with FakeCore() as core:
        run(core, use)


@rows(("stream", "reason"), [("silent", "was silent for 0.3 s"), ("dropped", "the event stream broke off")])
def test_silent_or_dropped_stream_is_lost(stream: str, reason: str) -> None:
    script = Script(prepare_seconds=0.1, never_ends=True, stream=stream)
    with FakeCore(script=lambda body: script) as core, pytest.raises(StreamLost, match=reason):
        run(core, types_of_events, retry=quick(stream_silence=0.3))


@rows(
    ("body", "reason"),
    [
        (b"data: {not json\n\n", "not a JSON object"),
        (b"data: [1]\n\n", "not a JSON object"),
        (b'data: {"type": 3}\n\n', "not a JSON object"),
        (b"data: " + b"x" * 17_000_000, "more than 16777216 characters"),
    ],
)
def test_malformed_stream_is_lost(body: bytes, reason: str) -> None:
    answer = Fault(status=200, body=body, headers={"Content-Type": "text/event-stream"})

    async def use(client: Client) -> None:
        with pytest.raises(StreamLost, match=reason):
            await collect(client.events("s"))

    with FakeCore(fault=lambda request: answer) as core:
        run(core, use)


def test_stream_without_complete_lines_is_lost() -> None:
    answer = Fault(status=200, body=b":" + b"k" * 1000, headers={"Content-Type": "text/event-stream"}, drip=0.01)

    async def use(client: Client) -> None:
        with pytest.raises(StreamLost, match="no complete line"):
            await collect(client.events("s"))

    with FakeCore(fault=lambda request: answer) as core:
        run(core, use, retry=quick(stream_silence=0.3))


def test_opened_is_called_before_the_first_event() -> None:
    opened: list[str] = []

    async def use(client: Client) -> None:
        session = await client.create_session(BODY, idempotency_key="key-1")
        async with aclosing(
            client.events(session["id"], lambda: opened.append(client.request_ids["events"]))
        ) as events:
            assert opened == []
            async for event in events:
                assert event["type"].startswith("agent.session.")
                break
        assert opened == [client.request_ids["events"]]

    with FakeCore(script=lambda body: Script(prepare_seconds=0.2, never_ends=True)) as core:
        run(core, use)


def test_refused_stream_is_tried_once() -> None:
    def opened() -> None:
        raise AssertionError("it never is")

    async def use(client: Client) -> None:
        with pytest.raises(APIStatusError, match="503 stream_unavailable"):
            await collect(client.events("s", opened))
        with pytest.raises(InvalidResponse, match="expected an event stream, got application/json"):
            await collect(client.events("s"))

    error = b'{"error": {"type": "server_error", "code": "stream_unavailable", "message": "no", "param": null}}'
    with FakeCore(fault=lambda request: Fault(503 if request.nth == 1 else 200, error)) as core:
        run(core, use)
        assert core.counts["events"] == 2


@rows("key", ["", " \n", "two words", "new\nline", "ключ"])
def test_invalid_key_is_refused(key: str) -> None:
    with pytest.raises(ValueError, match="OPENAI_API_KEY") as caught:
        Client("http://127.0.0.1:9/v1", key)
    assert not key.strip() or key not in str(caught.value)


def test_body_that_can_not_be_json_is_not_sent() -> None:
    async def use(client: Client) -> None:
        with pytest.raises(ValueError, match="JSON"):
            await client.create_session({"n": float("nan")}, idempotency_key="key-1")

    with FakeCore() as core:
        run(core, use)
        assert core.requests == []
