"""The model proxy against a sandbox that means harm: what it can make of failures, connections and odd requests."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import httpx
import pytest

from pytest_core_rollouts.embedded.model import ModelProxy
from pytest_core_rollouts.embedded.model import proxy as proxy_module
from tests.support.agents import KEY as MODEL_KEY
from tests.support.agents import creation, needs_codex
from tests.support.proxies import Reader, Server, Writer, asyncio_test, proxied, serving, sse
from tests.support.scripted_models import Reply, Say, ScriptedModel, Shell
from tests.support.wire import Wire

# Whose fault a failure is

SAID = sse({"type": "response.output_item.done", "item": {}}, {"type": "response.completed", "response": {}})
NOT_FOUND = sse({"type": "response.created"}, {"type": "response.failed", "response": {"error": {"code": "not_found"}}})
BROKEN = sse({"type": "response.failed", "response": {"error": {"code": "server_error"}}})


async def obedient(server: Server, reader: Reader, writer: Writer) -> None:
    """Answers with the status, or with the stream, that the request's body asks for."""
    await server.read(reader)
    asked = json.loads(server.bodies[-1] or b"{}").get("answer", 400)
    if isinstance(asked, str):
        body, status, kind = {"said": SAID, "not found": NOT_FOUND, "broken": BROKEN}[asked], 200, "text/event-stream"
    else:
        error = {"type": "scripted", "message": "unknown model 'insufficient_quota'"}
        body, status, kind = json.dumps({"error": error}).encode(), asked, "application/json"
    writer.write(f"HTTP/1.1 {status} X\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body)
    await writer.drain()


async def code_after(proxy: ModelProxy, client: httpx.AsyncClient, path: str, answer: Any) -> str | None:
    """The code of the failure that counts after a call that is answered so."""
    await client.post(path, json={"answer": answer})
    return proxy.failure.code if proxy.failure is not None else None


@asyncio_test
async def test_every_failure_counts_before_the_first_reply(tmp_path: Path) -> None:
    """There is no agent yet: a wrong model or a wrong base URL is the user's."""
    async with serving(obedient) as server, proxied(tmp_path, server.url) as (proxy, client):
        assert await code_after(proxy, client, "/responses", 404) == "resource_not_found"
        assert await code_after(proxy, client, "/responses", 400) == "invalid_request"
        assert await code_after(proxy, client, "/responses", "not found") == "resource_not_found"
        assert await code_after(proxy, client, "/responses", 401) == "authentication_error"
        assert not proxy.replied
        assert await code_after(proxy, client, "/responses", "said") is None
        assert proxy.replied


@asyncio_test
async def test_request_made_by_hand_does_not_set_the_failure(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"params": {"seed": 1}, "capture": tmp_path}
    async with serving(obedient) as server, proxied(tmp_path, server.url, **settings) as (proxy, client):
        assert await code_after(proxy, client, "/responses", "said") is None
        for status in (302, 400, 404, 405, 408, 409, 413, 415, 422, 431):
            assert await code_after(proxy, client, "/responses", status) is None
            assert proxy.agents_failure is not None
            assert f"answered {status}" in proxy.agents_failure.message
        assert await code_after(proxy, client, "/responses", "not found") is None
        for path in ("/chat/completions", "/messages", "/x/responses", "/%2e%2e/responses", "/v1/responses/x"):
            assert await code_after(proxy, client, path, 503) is None
        for body in (b"", b"[]", b"{", b'{"a":' * 100_000, b"[" * 900 + b"]" * 900, b'{"a":' * 900 + b"1" + b"}" * 900):
            await client.post("/responses", content=body)
            assert proxy.failure is None
        await client.post("/responses", content=b"{}", headers={"Content-Encoding": "zstd"})
        assert proxy.failure is None
    kept = [json.loads(line) for line in (tmp_path / "run.task.agent.3.jsonl").read_text().splitlines()]
    assert kept[0]["request"] == {"answer": "said", "seed": 1}
    assert [(one["request"], one["truncated"]) for one in kept if one["truncated"]] == [(None, True)], "nested deep"


@asyncio_test
async def test_failure_of_the_server_counts_until_the_next_call(tmp_path: Path) -> None:
    expected = {
        401: "authentication_error",
        402: "usage_limit_exceeded",
        403: "usage_limit_exceeded",  # from its message
        429: "usage_limit_exceeded",
        500: "server_error",
        503: "server_overloaded",
        "broken": "server_error",
    }
    async with serving(obedient) as server, proxied(tmp_path, server.url) as (proxy, client):
        await code_after(proxy, client, "/responses", "said")
        for answer, code in expected.items():
            assert await code_after(proxy, client, "/v1/responses?x", answer) == code
            assert await code_after(proxy, client, "/responses", 400) == code
            assert await code_after(proxy, client, "/chat/completions", "said") == code
            assert await code_after(proxy, client, "/responses", "said") is None


@asyncio_test
async def test_first_reply_of_an_earlier_turn_counts(tmp_path: Path) -> None:
    async with serving(obedient) as server, proxied(tmp_path, server.url, replied=True) as (proxy, client):
        assert await code_after(proxy, client, "/responses", 404) is None


@asyncio_test
async def test_request_that_the_server_does_not_read_sets_no_failure(tmp_path: Path) -> None:
    async def handler(server: Server, reader: Reader, writer: Writer) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.transport.abort()  # in the middle of the request

    async def endless() -> Any:
        for _ in range(2000):
            yield b"x" * (1 << 16)

    async with serving(handler) as server, proxied(tmp_path, server.url, replied=True) as (proxy, client):
        assert (await client.post("/responses", content=endless())).status_code == 502
        assert proxy.failure is None
        assert proxy.agents_failure is not None
        assert "did not read the whole request" in proxy.agents_failure.message


@asyncio_test
async def test_chunks_override_a_content_length(tmp_path: Path) -> None:
    async with serving(obedient) as server, proxied(tmp_path, server.url, replied=True) as (proxy, _):
        reader, writer = await asyncio.open_unix_connection(proxy.socket_path)
        head = "POST /responses HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n"
        writer.write(head.encode() + b"2\r\n{}\r\n")
        await server_began(server, writer, b"0\r\n\r\n")
        assert (await reader.readline()).startswith((b"HTTP/1.1 400", b"HTTP/1.1 5", b""))
        writer.close()
        assert proxy.failure is None


async def server_began(server: Server, writer: Writer, rest: bytes) -> None:
    await writer.drain()
    await asyncio.sleep(0.05)
    writer.write(rest)


# Connections


async def is_closed(reader: Reader) -> bool:
    try:
        return await reader.read(1) == b""
    except OSError:
        return True


@asyncio_test
async def test_too_many_connections_end_the_oldest_unfinished_one(tmp_path: Path) -> None:
    release = asyncio.Event()

    async def slow(server: Server, reader: Reader, writer: Writer) -> None:
        await server.read(reader)
        await release.wait()
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")
        await writer.drain()

    async with serving(slow) as server, proxied(tmp_path, server.url) as (proxy, client):
        under_way = asyncio.create_task(client.get("/models"))
        await server.asked.wait()
        half = []
        for number in range(200):
            reader, writer = await asyncio.open_unix_connection(proxy.socket_path)
            writer.write(b"GET /models HTTP/1.1\r\nX: " + b"x" * (100 if number % 2 else 200_000))
            half.append((reader, writer))
            await asyncio.sleep(0)
        late = asyncio.create_task(client.get("/models"))
        assert all(await asyncio.gather(*(is_closed(reader) for reader, _ in half[:100])))
        assert len(proxy._connections) <= proxy_module.CONNECTIONS
        release.set()
        assert [(await one).status_code for one in (under_way, late)] == [200, 200]
        for _, writer in half:
            writer.close()


@pytest.mark.parametrize("sent", [b"G", b"GET /models HTTP/1.1\r\nHost: x\r\n"])
def test_a_head_has_a_time_limit_and_an_idle_connection_has_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sent: bytes
) -> None:
    monkeypatch.setattr(proxy_module, "HEAD_S", 0.2)

    async def check() -> None:
        async with serving(obedient) as server, proxied(tmp_path, server.url) as (proxy, _):
            idle_reader, idle = await asyncio.open_unix_connection(proxy.socket_path)
            reader, writer = await asyncio.open_unix_connection(proxy.socket_path)
            writer.write(sent)
            assert await asyncio.wait_for(is_closed(reader), 20)
            idle.write(b"GET /models HTTP/1.1\r\nHost: x\r\n\r\n")
            assert (await idle_reader.readline()).startswith(b"HTTP/1.1 400")
            for one in (writer, idle):
                one.close()

    asyncio.run(check())


FLOOD = r"""
import os, socket
parent = os.fork() and os.fork()  # three processes: each may open 1,024 files at most
held = []
for number in range(500):
    client = socket.socket(socket.AF_UNIX)
    client.settimeout(5)
    try:
        client.connect("/run/model.sock")
        client.sendall(b"POST /responses HTTP/1.1\r\nX: " + b"x" * 200000)
    except OSError:
        pass
    held.append(client)
print("FLOODED", len(held), flush=True)
if parent:
    os.wait(), os.wait()  # or the command would end before they do
"""


def resident_kib(pid: int | None) -> int:
    status = Path(f"/proc/{pid}/status").read_text()
    [resident] = [int(line.split()[1]) for line in status.splitlines() if line.startswith("VmRSS")]
    return resident


@needs_codex
def test_unfinished_requests_of_a_real_agent_do_not_slow_others(agents_core: Any, agents_wire: Wire) -> None:
    wire = agents_wire
    by_hand = "curl -s -X POST -d '{}' http://127.0.0.1:48080/v1/responses; exit 1"
    replies: list[Reply] = [
        Shell(f"cat >/tmp/flood.py <<'END'\n{FLOOD}\nEND\npython3 /tmp/flood.py"),
        Shell(by_hand),
        Say("Done."),
    ]
    with ScriptedModel(lambda ask: replies[min(ask.step, 2)]) as model:
        wire.end(wire.ok("POST", "/sessions", 201, json=creation("codex", f"{model.url}/v1"))["id"])
        before = resident_kib(agents_core.pid)
        session_id = wire.ok("POST", "/sessions", 201, json=creation("codex", f"{model.url}/v1"))["id"]
        turn = wire.wait(session_id, seconds=60)
        heads = [{name.lower(): value for name, value in ask.headers.items()} for ask in model.requests]
    assert turn["status"] == "completed", turn
    commands = [item for item in wire.items(session_id) if item["type"] == "command_execution"]
    assert commands[0]["output"].count("FLOODED 500") == 3
    assert resident_kib(agents_core.pid) - before < 40_000
    assert {head.get("authorization") for head in heads} == {f"Bearer {MODEL_KEY}"}
