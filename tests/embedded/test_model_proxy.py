"""The model proxy: what a sandbox can ask of it, what reaches the model's server, what comes back and when."""

from __future__ import annotations

import asyncio
import shutil
import ssl
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest

from pytest_core_rollouts.embedded.model import upstream
from pytest_core_rollouts.embedded.model_provider import ModelProvider
from tests.support.proxies import KEY, Reader, Server, Writer, asyncio_test, proxied, replying, serving
from tests.support.tables import rows

# What reaches the server


@asyncio_test
async def test_only_the_proxy_has_the_key_and_the_real_address(tmp_path: Path) -> None:
    async with serving(replying(b"{}")) as server, proxied(tmp_path, f"{server.url}/a%20b/v1/") as (_, client):
        hop = {"Connection": "keep-alive, X-Hop", "X-Hop": "1", "TE": "trailers", "Proxy-Authorization": "x"}
        own = {"Authorization": "Bearer dummy", "X-Api-Key": "dummy", "X-Kept": "yes", "Accept-Encoding": "gzip"}
        response = await client.post("/responses?a=%2F&b", json={"model": "m"}, headers={**hop, **own})
    assert response.json() == {}
    first, *lines = server.heads[0]
    headers = {line.partition(":")[0].lower(): line.partition(": ")[2] for line in lines}
    assert first == "POST /a%20b/v1/responses?a=%2F&b HTTP/1.1"
    assert headers["host"] == f"127.0.0.1:{server.port}"
    assert headers["authorization"] == f"Bearer {KEY}"
    assert "x-api-key" not in headers
    assert headers["x-kept"] == "yes"
    assert headers["accept-encoding"] == "identity"
    assert headers["connection"] == "close"
    assert not {"x-hop", "te", "proxy-authorization"} & set(headers)
    assert server.bodies == [b'{"model":"m"}']


BEARER, API_KEY = ("authorization", f"Bearer {KEY}"), ("x-api-key", KEY)
GIVEN: list[list[tuple[str, str]]] = [
    [],
    [("Authorization", "Bearer wrong")],
    [("X-API-Key", "wrong"), ("Api-Key", "wrong"), ("X-Goog-Api-Key", "wrong"), ("Cookie", "key=wrong")],
    [("AUTHORIZATION", "Basic eA=="), ("authorization", "Bearer wrong"), ("x-api-key", "a"), ("x-api-key", "b")],
    [("OpenAI-Organization", "wrong"), ("OpenAI-Project", "wrong"), ("Authorization", "")],
]


@rows(("protocol", "credentials"), [("responses", [BEARER]), ("anthropic", [API_KEY, BEARER])])
def test_proxy_replaces_credentials_of_requests(
    tmp_path: Path, protocol: str, credentials: list[tuple[str, str]]
) -> None:
    async def check() -> None:
        async with serving(replying(b"")) as server, proxied(tmp_path, server.url, protocol) as (_, client):
            for given in GIVEN:
                for method, path in (("POST", "/responses"), ("POST", "/messages"), ("HEAD", "/"), ("DELETE", "/x")):
                    await client.request(method, path, headers=given)
                    head = [line.partition(": ")[::2] for line in server.heads[-1][1:]]
                    assert [(name.lower(), value) for name, value in head if KEY in value] == credentials
                    assert not any("wrong" in value or name.lower().startswith("openai") for name, value in head)

    asyncio.run(check())


@rows(
    ("base_url", "key", "names"),
    [
        ("https://api.anthropic.com", "sk-ant-api03-x", {b"x-api-key"}),
        ("https://api.anthropic.com", "sk-ant-oat01-x", {b"authorization"}),
        ("https://notanthropic.com", "sk-ant-api03-x", {b"x-api-key", b"authorization"}),
    ],
)
def test_anthropic_server_gets_only_the_header_that_it_accepts(base_url: str, key: str, names: set[bytes]) -> None:
    there = upstream.Upstream.of(ModelProvider("anthropic", base_url, key))
    assert {name for name, value in there.request_headers([(b"authorization", b"x")]) if key.encode() in value} == names


TARGETS = [
    "/../other",
    "/v1/../../other",
    "/%2e%2e/other",
    "/a/%2E./other",
    "/a%2f..%2fother",
    "/a%252f%252e%252e",
    "/a\\..\\b",
    "/.",
    "/v1/..;/admin",
    "/v1/..;a=b/admin",
    "/v1/.%2e%3b/admin",
    "/%25252e%25252e/admin",
    "/%" + "25" * 7 + "2e%2e/admin",
    "/" + "%" + "25" * 40 + "2e./admin",
    "/%c0%ae%c0%ae/admin",
    "/%e0%80%ae./admin",
    "/%ef%bc%8e%ef%bc%8e/admin",
    "/%u002e%u002e/admin",
    "/..%5cadmin",
    "/%5c..%5cadmin",
    "/..%09/admin",
    "/.%2e%20/admin",
    "/a%00/../admin",
    "/a%0d%0aX-Header:%20y",
    "//127.0.0.1:1/admin",
    "/v1//admin",
    "/%2f127.0.0.1/admin",
    "/;/admin",
    "http://127.0.0.1:1/x",
    "*",
]


@rows("target", TARGETS)
def test_no_path_leads_out_of_the_base_url(tmp_path: Path, target: str) -> None:
    async def check() -> None:
        async with serving(replying(b"{}")) as server, proxied(tmp_path, f"{server.url}/base") as (proxy, _):
            reader, writer = await asyncio.open_unix_connection(proxy.socket_path)
            writer.write(f"GET {target} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
            assert (await reader.readline()).startswith((b"HTTP/1.1 403", b""))
            writer.close()
            assert server.heads == []

    asyncio.run(check())


@asyncio_test
async def test_connect_and_invalid_http_are_refused(tmp_path: Path) -> None:
    async with serving(replying(b"{}")) as server, proxied(tmp_path, server.url) as (proxy, client):
        for sent in (b"CONNECT 127.0.0.1:22 HTTP/1.1\r\nHost: x\r\n\r\n", b"\x16\x03\x01garbage\r\n\r\n", b"GET"):
            reader, writer = await asyncio.open_unix_connection(proxy.socket_path)
            writer.write(sent)
            writer.write_eof()
            answer = await reader.read()
            assert answer == b"" or answer.startswith(b"HTTP/1.1 403")
            writer.close()
        assert server.heads == []
        assert (await client.get("/models")).status_code == 200  # and it serves on


def test_v1_of_a_base_url_is_not_doubled() -> None:
    for base in ("https://x.example/v1", "https://x.example", "https://x.example/v1/"):
        there = upstream.Upstream.of(ModelProvider("anthropic", base, "k"))
        assert there.target(b"/v1/messages?beta=true") == b"/v1/messages?beta=true"


# Streams


@asyncio_test
async def test_a_stream_passes_chunk_by_chunk(tmp_path: Path) -> None:
    """The server sends the next event only when the client has reported, on the side, that it has the one before."""
    received: asyncio.Queue[None] = asyncio.Queue()

    async def handler(server: Server, reader: Reader, writer: Writer) -> None:
        await server.read(reader)
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n")
        for number in range(5):
            data = f"data: {number}\n\n".encode()
            writer.write(b"%x\r\n%b\r\n" % (len(data), data))
            await writer.drain()
            await received.get()
        last = b'data: {"type": "response.completed", "response": {}}\n\n'
        writer.write(b"%x\r\n%b\r\n0\r\n\r\n" % (len(last), last))

    async with serving(handler) as server, proxied(tmp_path, server.url) as (proxy, client):
        chunks = []
        async with client.stream("POST", "/responses", json={}) as response:
            assert response.headers["content-type"] == "text/event-stream"
            async for chunk in response.aiter_raw():
                chunks.append(chunk)
                received.put_nowait(None)
        assert [chunk for chunk in chunks if chunk][:5] == [f"data: {number}\n\n".encode() for number in range(5)]
        assert proxy.failure is None


@asyncio_test
async def test_bodies_of_any_length_pass_in_both_directions(tmp_path: Path) -> None:
    """64 MiB there in unknown length, and 64 MiB back until the connection's end."""
    size, piece = 64 << 20, b"x" * (1 << 18)
    received = 0

    async def handler(server: Server, reader: Reader, writer: Writer) -> None:
        nonlocal received
        head = await reader.readuntil(b"\r\n\r\n")
        assert b"transfer-encoding: chunked" in head.lower()
        while length := int(await reader.readline(), 16):
            received += len(await reader.readexactly(length))
            await reader.readline()
        writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
        for _ in range(size // len(piece)):
            writer.write(piece)
            await writer.drain()

    async def body() -> AsyncIterator[bytes]:
        for _ in range(size // len(piece)):
            yield piece

    async with serving(handler) as server, proxied(tmp_path, server.url) as (_, client):
        back = 0
        async with client.stream("POST", "/files", content=body()) as response:
            async for chunk in response.aiter_raw():
                back += len(chunk)
    assert (received, back) == (size, size)


@asyncio_test
async def test_end_of_the_turn_cuts_running_requests(tmp_path: Path) -> None:
    gone = asyncio.Event()

    async def handler(server: Server, reader: Reader, writer: Writer) -> None:
        await server.read(reader)
        assert await reader.read() == b""  # the proxy has let go
        gone.set()

    async with serving(handler) as server:
        async with proxied(tmp_path, server.url) as (_, client):
            asking = asyncio.create_task(client.post("/responses", json={}))
            await server.asked.wait()
        with pytest.raises(httpx.HTTPError):
            await asking
        await asyncio.wait_for(gone.wait(), 5)


@asyncio_test
async def test_many_requests_on_one_connection_and_at_most_eight_at_once(tmp_path: Path) -> None:
    now, most = 0, 0

    async def handler(server: Server, reader: Reader, writer: Writer) -> None:
        nonlocal now, most
        await server.read(reader)
        now += 1
        most = max(most, now)
        await asyncio.sleep(0.05)
        now -= 1
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")
        await writer.drain()

    async with serving(handler) as server, proxied(tmp_path, server.url) as (_, client):
        for _ in range(3):
            assert (await client.get("/models")).status_code == 200
        answers = await asyncio.gather(*(client.get("/models") for _ in range(30)))
    assert {answer.status_code for answer in answers} == {200}
    assert most == 8


# TLS


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A certificate for localhost that nobody vouches for, with its key."""
    if shutil.which("openssl") is None:
        pytest.skip("not installed: apt-get install openssl")
    folder = tmp_path_factory.mktemp("certificate")
    names = ["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost"]
    kind = ["-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2"]
    files = ["-keyout", str(folder / "key.pem"), "-out", str(folder / "cert.pem")]
    subprocess.run(["openssl", "req", *kind, *names, *files], check=True, capture_output=True)
    both = folder / "both.pem"
    both.write_bytes(b"".join((folder / name).read_bytes() for name in ("key.pem", "cert.pem")))
    return both


@pytest.mark.parametrize("trusted", [True, False])
def test_certificates_are_verified(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, certificate: Path, trusted: bool
) -> None:
    if trusted:
        monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    upstream.tls.cache_clear()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)

    async def check() -> None:
        async with (
            serving(replying(b"{}"), ssl=context) as server,
            proxied(tmp_path, f"https://localhost:{server.port}/v1") as (proxy, client),
        ):
            response = await client.post("/responses", json={}, headers={"Authorization": "Bearer dummy"})
            assert response.status_code == (200 if trusted else 502)
            if not trusted:
                assert proxy.failure is not None
                assert proxy.failure.code == "connection_failed"
                assert "CERTIFICATE_VERIFY_FAILED" in proxy.failure.message
                assert server.heads == []

    try:
        asyncio.run(check())
    finally:
        upstream.tls.cache_clear()


# Silence


@asyncio_test
async def test_a_silent_server_is_waited_for_once(tmp_path: Path) -> None:
    async def handler(server: Server, reader: Reader, writer: Writer) -> None:
        await server.read(reader)
        await asyncio.sleep(60)

    async with serving(handler) as server, proxied(tmp_path, server.url, idle_s=0.2) as (proxy, client):
        for _ in range(3):
            answer = await client.post("/responses", json={})
            assert answer.status_code == 424
            assert answer.json()["error"]["code"] == "request_timeout"
        assert len(server.heads) == 1
        assert proxy.failure is not None
        assert proxy.failure.message == "The model's server sent nothing for 0.2 seconds."


@asyncio_test
async def test_invalid_or_incomplete_replies_are_failures(tmp_path: Path) -> None:
    replies = [b"", b"garbage\r\n\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n{"]

    async def handler(server: Server, reader: Reader, writer: Writer) -> None:
        await server.read(reader)
        writer.write(replies[len(server.heads) - 1])

    async with serving(handler) as server, proxied(tmp_path, server.url) as (proxy, client):
        for reply in replies:
            if reply.startswith(b"HTTP"):
                with pytest.raises(httpx.HTTPError):
                    await client.post("/responses", json={})
            else:
                assert (await client.post("/responses", json={})).status_code == 502
            assert proxy.failure is not None
            assert proxy.failure.code == "connection_failed"
