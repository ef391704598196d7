"""How the server is reached: addresses, proxies, TLS."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import ssl
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from pytest_core_rollouts.agents_api import APIStatusError, Client, ConnectionFailed, normalize_base_url
from tests.support.api import create, failure, quick, run, run_at
from tests.support.fake_core import FakeCore, Fault, Script
from tests.support.tables import rows


@pytest.fixture
def plain_http_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a client use http to another machine, so that a proxy can be tested without certificates."""
    monkeypatch.setattr("pytest_core_rollouts.agents_api.client.require_secure_url", normalize_base_url)


def test_core_on_this_machine_is_reached_without_a_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    monkeypatch.setenv("NO_PROXY", "somewhere.example")
    with FakeCore() as core:
        run(core, create)


@rows("suffix", ["", "/", "/v1", "/v1/", "//v1/"])
def test_paths_are_joined_once(suffix: str) -> None:
    with FakeCore() as core:
        run_at(f"http://127.0.0.1:{core.port}{suffix}", core.api_key, create)
        assert [request.target for request in core.requests] == ["/v1/agents/sessions"]


@pytest.mark.usefixtures("plain_http_allowed")
def test_proxy_of_the_environment_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    with FakeCore() as core:
        monkeypatch.setenv("HTTP_PROXY", f"http://me:proxy-secret@127.0.0.1:{core.port}")
        run_at("http://core.example/v1", core.api_key, create)
        [request] = core.requests
        assert request.target == "http://core.example/v1/agents/sessions"
        assert request.header("host") == "core.example"


@pytest.mark.usefixtures("plain_http_allowed")
@pytest.mark.parametrize("scheme", ["http", "https"])
def test_proxy_that_is_down_is_named(monkeypatch: pytest.MonkeyPatch, closed_port: int, scheme: str) -> None:
    monkeypatch.setenv(f"{scheme}_PROXY".upper(), f"http://me:proxy-secret@127.0.0.1:{closed_port}")
    with pytest.raises(ConnectionFailed) as caught:
        run_at(f"{scheme}://core.example/v1", "a-key-of-mine", create, retry=quick(patience=0.1))
    assert f"through the proxy http://127.0.0.1:{closed_port} from the environment" in str(caught.value)
    assert "NO_PROXY" in str(caught.value)
    assert "proxy-secret" not in str(caught.value)


def test_proxy_that_refuses_to_tunnel_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    with FakeCore(fault=lambda request: Fault(403)) as proxy:
        monkeypatch.setenv("HTTPS_PROXY", f"http://127.0.0.1:{proxy.port}")
        with pytest.raises(ConnectionFailed, match=f"through the proxy http://127.0.0.1:{proxy.port}"):
            run_at("https://core.example/v1", "a-key-of-mine", create, retry=quick(patience=0.1))
        assert proxy.requests[0].method == "CONNECT"
        assert proxy.requests[0].header("authorization") is None


@pytest.mark.usefixtures("plain_http_allowed")
def test_error_of_a_proxy_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    with FakeCore(fault=lambda request: Fault(407)) as proxy:
        monkeypatch.setenv("HTTP_PROXY", f"http://127.0.0.1:{proxy.port}")
        with pytest.raises(APIStatusError, match=f"HTTP 407: .*through the proxy http://127.0.0.1:{proxy.port}"):
            run_at("http://core.example/v1", "a-key-of-mine", create)


@pytest.mark.slow
def test_https_to_a_plain_http_server_is_named() -> None:
    with FakeCore() as core, pytest.raises(ConnectionFailed, match="check that the server speaks https on this port"):
        run_at(f"https://127.0.0.1:{core.port}/v1", "a-key-of-mine", create, retry=quick(patience=0.1))


def test_unknown_kind_of_proxy_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTPS_PROXY", "gopher://me:proxy-secret@proxy.example")
    with pytest.raises(ValueError, match=r"proxy gopher://proxy\.example") as caught:
        Client("https://core.example/v1", "key")
    assert "proxy-secret" not in str(caught.value)


def test_unknown_host_is_named() -> None:
    with pytest.raises(ConnectionFailed, match=r"cannot connect to https://nowhere\.invalid/v1"):
        run_at("https://nowhere.invalid", "key", create, retry=quick(patience=0.1))


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A certificate for 127.0.0.1 and core.example that nobody signed, and its key."""
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("needs the openssl command, to make a certificate")
    folder = tmp_path_factory.mktemp("tls")
    where = folder / "certificate.pem", folder / "key.pem"
    command = [openssl, "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=127.0.0.1"]
    command += [
        "-addext",
        "subjectAltName=IP:127.0.0.1,DNS:core.example",
        "-out",
        str(where[0]),
        "-keyout",
        str(where[1]),
    ]
    subprocess.run(command, check=True, capture_output=True)
    return where


@pytest.fixture
def tls_core(certificate: tuple[Path, Path]) -> Iterator[FakeCore]:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*certificate)
    with FakeCore(tls=context) as core:
        yield core


def test_untrusted_certificate_is_named_and_final(tls_core: FakeCore) -> None:
    error = failure(tls_core, create, ConnectionFailed)
    assert "CERTIFICATE_VERIFY_FAILED" in str(error)
    assert "SSL_CERT_FILE" in str(error)
    assert error.stops_run
    assert error.tries == 1
    assert tls_core.requests == []


@pytest.fixture
def trusted(certificate: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate[0]))


@pytest.mark.usefixtures("trusted")
def test_certificate_from_the_environment_is_trusted(tls_core: FakeCore) -> None:
    async def twice(client: Client) -> None:
        await create(client)
        await client.check()

    run(tls_core, twice)
    assert len({request.connection for request in tls_core.requests}) == 1


class Tunnels:
    """A proxy that opens tunnels, all of them to one port, and keeps the heads of requests for one."""

    def __init__(self, to: int, context: ssl.SSLContext | None) -> None:
        self.heads: list[bytes] = []
        self._to = to
        self._context = context

    @contextlib.contextmanager
    def open(self) -> Iterator[int]:
        """Serve in its own thread. Yields the port."""
        loop = asyncio.new_event_loop()
        server = loop.run_until_complete(asyncio.start_server(self._serve, "127.0.0.1", 0, ssl=self._context))
        thread = threading.Thread(target=loop.run_forever)
        thread.start()
        yield server.sockets[0].getsockname()[1]
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        for task in asyncio.all_tasks(loop):
            task.cancel()
        server.close()
        loop.run_until_complete(asyncio.sleep(0.05))
        loop.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, EOFError, asyncio.CancelledError):
            self.heads.append(await reader.readuntil(b"\r\n\r\n"))
            from_core, to_core = await asyncio.open_connection("127.0.0.1", self._to)
            writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
            await asyncio.gather(_copy(reader, to_core), _copy(from_core, writer))


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(65536):
        writer.write(data)
        await writer.drain()
    writer.close()


@pytest.mark.usefixtures("trusted")
@pytest.mark.parametrize("scheme", ["http", "https"])
def test_core_behind_a_proxy_is_reached_through_a_tunnel(
    tls_core: FakeCore, certificate: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch, scheme: str
) -> None:
    context = None
    if scheme == "https":
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(*certificate)
    tunnels = Tunnels(tls_core.port, context)
    with tunnels.open() as port:
        monkeypatch.setenv("HTTPS_PROXY", f"{scheme}://me:proxy-secret@127.0.0.1:{port}")
        session = run_at("https://core.example/v1", tls_core.api_key, create)
    assert [*tls_core.sessions] == [session["id"]]
    [head] = tunnels.heads
    assert head.startswith(b"CONNECT core.example:443 HTTP/1.1\r\n")
    assert b"Proxy-Authorization: Basic bWU6cHJveHktc2VjcmV0" in head
    assert tls_core.api_key.encode() not in head


class Counting(httpx.AsyncBaseTransport):
    """Another transport, as someone might bring it."""

    def __init__(self) -> None:
        self.requests = 0
        self.is_closed = False
        self._inner = httpx.AsyncHTTPTransport()

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        self.requests += 1
        return await self._inner.handle_async_request(request)

    async def aclose(self) -> None:
        self.is_closed = True
        await self._inner.aclose()


def test_client_uses_and_closes_the_transport_that_it_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTPS_PROXY", "gopher://proxy.example")  # not looked at
    counting = Counting()

    async def main(base_url: str, key: str) -> None:
        async with Client(base_url, key, transport=counting) as client:
            await create(client)
            await client.check()

    with FakeCore() as core:
        asyncio.run(main(core.base_url, core.api_key))
        assert counting.requests == len(core.requests) == 2
    assert counting.is_closed


def test_faults_of_another_transport_are_named() -> None:
    def broken(request: httpx.Request) -> httpx.Response:
        raise httpx.ReadError("the line is cut")

    async def main() -> None:
        async with Client(
            "https://core.example", "key", transport=httpx.MockTransport(broken), retry=quick()
        ) as client:
            client.deadline = client.retry.clock() + 0.1
            await create(client)

    with pytest.raises(ConnectionFailed, match=r"no complete answer from .* \(ReadError: the line is cut\)"):
        asyncio.run(main())


def test_all_clients_share_one_tls_context(certificate: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SSL_CERT_FILE", raising=False)
    made: list[ssl.SSLContext] = []
    make = httpx.create_ssl_context

    def counted() -> ssl.SSLContext:
        made.append(make())
        return made[-1]

    monkeypatch.setattr(httpx, "create_ssl_context", counted)
    for _ in range(3):
        Client("https://core.example", "key")
    assert len(made) <= 1  # an earlier test may have made it
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate[0]))
    before = len(made)
    for _ in range(3):
        Client("https://core.example", "key")
    assert len(made) == before + 1


@pytest.mark.usefixtures("trusted")
def test_client_works_in_an_event_loop_of_another_kind(tls_core: FakeCore) -> None:
    uvloop = pytest.importorskip("uvloop", reason="needs uvloop: pip install uvloop")

    async def use() -> None:
        async with Client(tls_core.base_url, tls_core.api_key, retry=quick(patience=0.1)) as client:
            session = await create(client)
            async with contextlib.aclosing(client.events(session["id"])) as events:
                assert (await events.__anext__())["type"].startswith("agent.session.")
                assert (await client.get_session(session["id"]))["id"] == session["id"]
            tls_core.go_down()
            with pytest.raises(ConnectionFailed, match=r"cannot connect to .* \(ConnectError"):
                await client.check()

    tls_core.script = lambda body: Script(prepare_seconds=0.2, never_ends=True)
    loop = uvloop.new_event_loop()
    try:
        loop.run_until_complete(use())
    finally:
        loop.close()
