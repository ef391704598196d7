"""Every way in which a server, or what stands before it, can misbehave."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import time
from typing import Any

import pytest

from pytest_core_rollouts.agents_api import (
    AgentsAPIError,
    APIStatusError,
    Client,
    ConnectionFailed,
    DeadlinePassed,
    InvalidResponse,
    NotACore,
    RetryPolicy,
    Session,
    TooLarge,
)
from tests.support.api import Use, collect, create, failure, quick, run, run_at
from tests.support.fake_core import FakeCore, Fault, Request
from tests.support.tables import rows
from tests.support.waiting import no_hang

HTML = Fault(502, b"<html><h1>502 Bad Gateway</h1></html>", {"Content-Type": "text/html"})


async def listing(client: Client) -> list[Session]:
    return await collect(client.list_sessions())


# Faults that pass

PASSING = {
    "502 HTML": HTML,
    "503": Fault(503, b'{"error": {"type": "server_error", "code": "execution_unavailable", "message": "wait"}}'),
    "500, empty": Fault(500),
    "408": Fault(408),
    "429": Fault(429, headers={"Retry-After": "0"}),
    "reset": Fault(reset=True),
    "reset, processed": Fault(reset=True, processed=True),
    "502, processed": Fault(502, processed=True),
    "200 HTML": Fault(200, b"<!doctype html><title>Wait</title>", {"Content-Type": "text/html"}),
    "200 empty": Fault(200),
    "cut, Content-Length": Fault(cut=5),
    "cut, chunked": Fault(cut=5, framing="chunked"),
    "cut, until close": Fault(cut=5, framing="close"),
    "reset in the body": Fault(cut=5, reset_after_cut=True),
    "compressed": Fault(200, b"\x1f\x8b", {"Content-Encoding": "gzip"}),
    "malformed header": Fault(200, headers={"X-Odd": "1\r\nbad header line"}),
}


@pytest.mark.parametrize("fault", [pytest.param(fault, id=name) for name, fault in PASSING.items()])
def test_create_survives_with_the_same_key_and_one_session(fault: Fault) -> None:
    with FakeCore(fault=lambda request: fault if request.nth <= 2 else None) as core:
        session = run(core, create)
        assert [*core.sessions] == [session["id"]]
        assert len(core.requests) == 3
        assert {request.header("idempotency-key") for request in core.requests} == {"key-1"}
        assert len({request.body for request in core.requests}) == 1


@pytest.mark.parametrize("fault", [pytest.param(fault, id=name) for name, fault in PASSING.items()])
def test_reads_and_deletion_survive(fault: Fault) -> None:
    async def use(client: Client) -> None:
        session = await client.create_session({"environment": {"type": "openai_hosted"}}, idempotency_key="key-1")
        assert await client.latest_turn(session["id"]) is None
        assert len(await listing(client)) == 1
        await client.delete_session(session["id"])
        assert client.waited_s > 0

    with FakeCore(fault=lambda request: fault if request.nth == 1 else None) as core:
        run(core, use)
        assert core.sessions["sess_00000001"].deleted


def test_call_survives_several_kinds_of_faults() -> None:
    faults = [None, Fault(502), Fault(reset=True), Fault(503), None, Fault(502), Fault(429), None]

    async def use(client: Client) -> None:
        for _ in range(3):
            await client.get_session((await create(client))["id"])

    with FakeCore(fault=lambda request: faults[request.nth - 1] if request.route == "session" else None) as core:
        run(core, use)
        assert core.counts["session"] == len(faults)


def test_retry_after_is_followed() -> None:
    slept: list[float] = []

    async def sleep(seconds: float) -> None:
        slept.append(seconds)

    async def use(client: Client) -> None:
        await create(client)
        assert client.trouble is None

    headers = [{"Retry-After": "7"}, {"Retry-After": "Wed, 21 Oct 2065 07:28:00 GMT"}, {}]
    with FakeCore(
        fault=lambda request: Fault(429, headers=headers[request.nth - 1]) if request.nth < 4 else None
    ) as core:
        run(core, use, retry=RetryPolicy(sleep=sleep))
    assert len(slept) == 3
    assert 7 <= slept[0] < 10
    assert 60 <= slept[1] <= 75
    assert slept[2] <= 2


# Faults that stay


def test_core_that_is_down_is_named(closed_port: int) -> None:
    began = time.monotonic()
    with pytest.raises(ConnectionFailed) as caught:
        run_at(f"http://127.0.0.1:{closed_port}", "key", create, retry=quick(patience=0.3))
    assert time.monotonic() - began > 0.1
    message = str(caught.value)
    assert f"POST /agents/sessions: cannot connect to http://127.0.0.1:{closed_port}/v1 (" in message
    assert "check that the Core is running there" in message
    assert "gave up after" in message
    assert not caught.value.stops_run


def test_ended_process_of_the_core_stops_the_run(closed_port: int) -> None:
    final = quick(refused_is_final=True, patience=3600.0)
    with no_hang(), pytest.raises(ConnectionFailed, match="its process has ended") as caught:
        run_at(f"http://127.0.0.1:{closed_port}", "key", create, retry=final)
    assert caught.value.stops_run


def test_call_survives_a_restart_of_the_core() -> None:
    async def use(client: Client) -> None:
        await create(client)
        core.go_down()
        listed = asyncio.ensure_future(listing(client))
        await asyncio.sleep(0.2)
        assert isinstance(client.trouble, ConnectionFailed)
        core.come_back()
        assert len(await listed) == 1
        assert client.waited_s > 0.1
        assert client.trouble is None

    with FakeCore() as core:
        run(core, use)


def test_silent_server_ends_a_try_after_the_read_timeout() -> None:
    with FakeCore(fault=lambda request: Fault(hang=True)) as core:
        error = failure(core, create, ConnectionFailed, read_timeout=0.2)
        assert "no complete answer" in str(error)
        assert "ReadTimeout" in str(error)
        assert core.counts["create"] > 1


@pytest.mark.parametrize("drip", [pytest.param(0.05, id="in the head"), pytest.param(0.002, id="in the body")])
def test_slow_answer_ends_a_try_after_its_timeout(drip: float) -> None:
    fault = Fault(200, b" " * 1_000_000, drip=drip)
    with FakeCore(fault=lambda request: fault) as core:
        error = failure(core, create, ConnectionFailed, try_timeout=0.6)
        assert "within 0.6 s" in str(error)


def test_server_that_accepts_and_never_answers_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        url = f"http://127.0.0.1:{server.getsockname()[1]}"
        with pytest.raises(ConnectionFailed, match="ReadTimeout"):
            run_at(url, "key", create, retry=quick(patience=0.1, read_timeout=0.2))


def test_server_that_does_not_accept_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0), backlog=0) as server, contextlib.ExitStack() as waiting:
        for _ in range(4):  # they fill the server's queue
            filler = waiting.enter_context(socket.socket())
            filler.setblocking(False)
            filler.connect_ex(server.getsockname())
        url = f"http://127.0.0.1:{server.getsockname()[1]}"
        with pytest.raises(ConnectionFailed, match=r"cannot connect to .* \(ConnectTimeout"):
            run_at(url, "key", create, retry=quick(patience=0.1, connect_timeout=0.2))


def test_deadline_ends_a_try() -> None:
    async def use(client: Client) -> None:
        client.deadline = time.monotonic() + 0.3
        await create(client)

    with FakeCore(fault=lambda request: Fault(hang=True)) as core:
        with no_hang():
            error = failure(core, use, DeadlinePassed)
        assert "no complete answer" in str(error)
        assert core.counts["create"] == 1


def test_deadline_in_the_past_sends_nothing() -> None:
    async def use(client: Client) -> None:
        client.deadline = time.monotonic() - 1
        await create(client)

    with FakeCore() as core:
        assert "deadline has passed" in str(failure(core, use, DeadlinePassed))
        assert core.requests == []


def test_cancellation_ends_a_call_at_once_and_leaves_the_client_usable() -> None:
    async def use(client: Client) -> None:
        for _ in range(5):
            hanging = asyncio.ensure_future(create(client))
            await asyncio.sleep(0.05)
            hanging.cancel()
            with pytest.raises(asyncio.CancelledError):
                await hanging
        assert await listing(client) == []

    with FakeCore(fault=lambda request: Fault(hang=True) if request.route == "create" else None) as core:
        run(core, use)


@rows("fault", [Fault(endless=True), Fault(200, b"[" + b" " * 3_000_000 + b"]")])
def test_body_over_the_limit_is_not_read(fault: Fault) -> None:
    async def use(client: Client) -> None:
        async with Client(client.base_url, FakeCore.api_key, max_json_bytes=1_000_000) as small:
            await create(small)

    with FakeCore(fault=lambda request: fault) as core:
        assert "1000000" in str(failure(core, use, TooLarge))
        assert core.counts["create"] == 1


def test_endless_error_body_is_read_up_to_a_limit() -> None:
    with FakeCore(fault=lambda request: Fault(endless=True)) as core, pytest.raises(APIStatusError, match="401"):
        run_at(core.base_url, core.api_key + "x", create)


def test_malformed_status_line_is_named() -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 two hundred\r\n\r\n")
        writer.close()

    async def main() -> None:
        server = await asyncio.start_server(answer, "127.0.0.1", 0)
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        async with server, Client(url, "key", retry=quick(patience=0.1)) as client:
            await client.check()

    with pytest.raises(ConnectionFailed, match=r"no complete answer from .*\(RemoteProtocolError: illegal status line"):
        asyncio.run(main())


HALF_READ = {
    "endless": Fault(endless=True),
    "endless error": Fault(400, b"x" * 65536, endless=True),
    "cut": Fault(cut=5),
    "malformed header": Fault(200, headers={"X-Odd": "1\r\nbad header line"}),
    "answer after the timeout": Fault(delay=1.0),
}


@pytest.mark.parametrize("fault", [pytest.param(fault, id=name) for name, fault in HALF_READ.items()])
def test_connection_is_not_reused_after_half_an_answer(fault: Fault) -> None:
    async def use(client: Client) -> None:
        await create(client)
        await create(client)
        client.retry = quick(patience=0.0, read_timeout=0.3)
        with pytest.raises(AgentsAPIError):
            await listing(client)
        client.retry = quick()
        assert len(await listing(client)) == 1

    with FakeCore(fault=lambda request: fault if (request.route, request.nth) == ("sessions", 1) else None) as core:
        run(core, use)
        first, again, broken, after = [request.connection for request in core.requests]
        assert first == again == broken != after


@rows("status", [301, 302, 303, 307, 308])
@rows("use", [create, listing])
def test_redirect_is_never_followed(status: int, use: Use) -> None:
    with FakeCore() as other:
        location = f"http://user:pw@127.0.0.1:{other.port}/v1/agents/sessions"
        fault = Fault(status, headers={"Location": location})
        with FakeCore(fault=lambda request: fault) as core:
            error = failure(core, use, NotACore)
            assert core.counts.total() == 1
        assert f"redirects to http://127.0.0.1:{other.port};" in str(error)
        assert other.requests == []
        assert error.stops_run


@rows(("location", "where"), [("http://[bad", "an invalid URL"), ("/x", "another path"), ("", "another path")])
def test_redirect_without_a_host_is_named(location: str, where: str) -> None:
    fault = Fault(302, headers={"Location": location})
    with FakeCore(fault=lambda request: fault) as core:
        assert f"redirects to {where};" in str(failure(core, create, NotACore))


def test_redirect_of_a_proven_core_fails_only_its_call() -> None:
    async def use(client: Client) -> None:
        await create(client)
        await client.latest_turn("s")

    fault = Fault(302, headers={"Location": "/login"})
    with FakeCore(fault=lambda request: fault if request.route == "turns" else None) as core:
        error = failure(core, use, APIStatusError)
        assert "redirects to another path" in str(error)
        assert not error.stops_run


NO_CORES = {
    "404 HTML": Fault(404, b"<html>not here", {"Content-Type": "text/html"}),
    "404, someone else's JSON": Fault(404, b'{"detail": "Not Found"}'),
    "404, empty": Fault(404),
    "405, text": Fault(405, b"Method Not Allowed", {"Content-Type": "text/plain"}),
    "200 HTML": Fault(200, b"<html>hello", {"Content-Type": "text/html"}),
    "200, someone else's JSON": Fault(200, b'{"ok": true}'),
}


@pytest.mark.parametrize("use", [create, listing])
@pytest.mark.parametrize("fault", [pytest.param(fault, id=name) for name, fault in NO_CORES.items()])
def test_other_server_is_not_a_core(use: Use, fault: Fault) -> None:
    with FakeCore(fault=lambda request: fault) as core:
        error = failure(core, use, NotACore, patience=10.0)
        assert error.stops_run
        assert f"no Agents API at {core.base_url}" in str(error)
        assert "ends in /v1" in str(error)
        assert core.counts.total() == (1 if fault.status != 200 else 4)


@rows(("fault", "kind"), [(NO_CORES["404 HTML"], APIStatusError), (NO_CORES["200 HTML"], InvalidResponse)])
def test_proven_core_stays_one(fault: Fault, kind: type[AgentsAPIError]) -> None:
    async def use(client: Client) -> None:
        await create(client)
        await listing(client)

    with FakeCore(fault=lambda request: fault if request.route == "sessions" else None) as core:
        assert not failure(core, use, kind).stops_run


def test_wrong_key_is_named_and_stops_the_run() -> None:
    async def use(client: Client) -> None:
        await create(client)

    with FakeCore() as core, pytest.raises(APIStatusError) as caught:
        run_at(core.base_url, "another-key-123", use)
    message = str(caught.value)
    assert message.startswith(
        "POST /agents/sessions: HTTP 401: A valid Agents API bearer key is required. [request id req_"
    )
    assert "check OPENAI_API_KEY" in message
    assert caught.value.stops_run


def api_error(status: int, **error: Any) -> Fault:
    return Fault(status, json.dumps({"error": error}).encode(), {"X-Request-Id": "req_77"})


ADVICE = [
    (api_error(403, message="no", code=None), "OPENAI_API_KEY has this permission"),
    (api_error(404, message="no", code="unsupported_operation"), "ends in /v1"),
    (api_error(400, message="network access must be enabled", code="invalid_request_error"), "--rollout-network"),
    (api_error(400, message="not here", code="x", param="environment.network.access"), "--rollout-network"),
    (api_error(400, message="no", code="model_provider_required"), "--model-base-url"),
    (api_error(413, message="no", code="request_too_large"), "too large"),
]


@rows(("fault", "advice"), ADVICE)
def test_refusal_says_what_to_do(fault: Fault, advice: str) -> None:
    with FakeCore(fault=lambda request: fault) as core:
        error = failure(core, create, APIStatusError)
        assert advice in str(error)
        assert "[request id req_77]" in str(error)
        assert core.counts.total() == 1


def test_error_of_a_gateway_is_named() -> None:
    with FakeCore(fault=lambda request: HTML) as core:
        error = failure(core, create, APIStatusError)
        assert "HTTP 502: (an HTML page, not the API's error body)" in str(error)
        assert "a proxy in front of the Core can't reach it" in str(error)


def test_error_body_with_wrong_types_is_readable() -> None:
    nested = json.loads("[" * 500 + "]" * 500)
    with FakeCore(fault=lambda request: api_error(400, message="no", code=nested, param=7)) as core:
        error = failure(core, create, APIStatusError)
        assert "HTTP 400 (param 7): no" in str(error)


def test_text_from_a_server_is_escaped_and_shortened() -> None:
    nasty = "\x1b[2J\x07evil\r\nsecond line\u202e\ud835\x00 " + "x" * 10_000
    fault = api_error(400, message=nasty, code="a\nb", param="\x1b]0;title\x07")
    with FakeCore(fault=lambda request: fault) as core:
        error = failure(core, create, APIStatusError)
        text = str(error)
        assert text.isprintable()
        assert len(text) < 1000
        assert "\\x1b[2J\\x07evil  second line\\u202e\\ud835\\x00" in text
        text.encode()


def test_key_is_removed_if_a_server_repeats_it() -> None:
    def echo(request: Request) -> Fault:
        key = (request.header("authorization") or "").removeprefix("Bearer ")
        return Fault(
            400,
            f'{{"error": {{"message": "bad {key}", "code": "{key}", "param": "{key}"}}}}'.encode(),
            {"X-Request-Id": key},
        )

    with FakeCore(fault=echo) as core:
        error = failure(core, create, APIStatusError)
        assert "bad ***" in str(error)
        assert core.api_key not in f"{vars(error)}"


def test_repr_of_a_client_has_no_key() -> None:
    client = Client("http://127.0.0.1:9/v1", "a-secret-key-1")
    assert "secret" not in f"{client!r} {client._transport!r}"


def test_request_id_of_a_failed_call_is_kept() -> None:
    async def use(client: Client) -> dict[str, str]:
        with pytest.raises(APIStatusError):
            await client.get_session("nobody")
        return client.request_ids

    with FakeCore() as core:
        assert run(core, use) == {"session": "req_00000000000000000000000000000001"}
