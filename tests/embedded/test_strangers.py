"""Connections to the embedded Core from other programs, which do not have its key."""

from __future__ import annotations

import contextlib
import resource
import select
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from pytest_core_rollouts.agents_api.fault_policies import turn_fault_policy
from pytest_core_rollouts.embedded.launch import EmbeddedCore
from tests.support.wire import Wire

MAX_OPEN = 512  # connections without the key
HEAD = b"GET /v1/agents/sessions HTTP/1.1\r\nHost: x\r\n"


@pytest.fixture
def small_core() -> Iterator[EmbeddedCore]:
    """A Core that may open 2,048 files."""
    core = EmbeddedCore.reserve()
    core.start()
    assert core.pid is not None
    resource.prlimit(core.pid, resource.RLIMIT_NOFILE, (2048, 2048))
    yield core
    core.stop()


def connected(core: EmbeddedCore, sent: bytes) -> socket.socket:
    client = socket.create_connection(("127.0.0.1", int(core.base_url.split(":")[2].split("/")[0])), timeout=10)
    client.sendall(sent)
    return client


def open_connections(clients: list[socket.socket]) -> list[socket.socket]:
    """Return the connections that the Core has not closed."""
    poll = select.poll()
    for client in clients:
        poll.register(client, select.POLLIN | select.POLLRDHUP)
    closed = {fd for fd, event in poll.poll(0) if event & (select.POLLRDHUP | select.POLLHUP | select.POLLERR)}
    return [client for client in clients if client.fileno() not in closed]


@pytest.mark.parametrize(
    "sent", [b"", HEAD, HEAD + b"Authorization: Bearer wrong\r\n\r\n"], ids=["no", "half", "wrong"]
)
def test_connections_without_the_key_do_not_delay_the_client(small_core: EmbeddedCore, sent: bytes) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 4096), hard))
    strangers: list[socket.socket] = []
    try:
        with httpx.Client(timeout=5, trust_env=False) as known, httpx.Client(timeout=5, trust_env=False) as new:
            wire = Wire(known, small_core.base_url, small_core.api_key)
            wire.ok("GET", "/sessions?limit=1")
            before = known._transport._pool.connections  # type: ignore[attr-defined]
            strangers += [connected(small_core, sent) for _ in range(1900)]
            for _ in range(3):
                wire.ok("GET", "/sessions?limit=1")
                Wire(new, small_core.base_url, small_core.api_key).ok("GET", "/sessions?limit=1")
            assert known._transport._pool.connections == before, "a connection that had sent the key was closed"  # type: ignore[attr-defined]
            deadline = time.monotonic() + 20
            while len(left := open_connections(strangers)) > MAX_OPEN:
                assert time.monotonic() < deadline, len(left)
                time.sleep(0.05)
            assert not set(left) & set(strangers[:1000]), "a newer connection was closed before an older one"
    finally:
        for stranger in strangers:
            stranger.close()
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert small_core.running


@pytest.mark.slow
def test_connection_without_the_key_is_closed_in_time(core: EmbeddedCore) -> None:
    half, whole = connected(core, HEAD), connected(core, HEAD + b"\r\n")
    with half, whole:
        for stranger in (half, whole):
            stranger.settimeout(30)
            while stranger.recv(4096):
                pass


def test_running_out_of_open_files_is_never_the_agents_fault(small_core: EmbeddedCore) -> None:
    """At each point of a Session where files can run out; the Core works again once files are free."""
    codes: set[str] = set()
    failed = 0
    with httpx.Client(timeout=20, trust_env=False) as client:
        wire = Wire(client, small_core.base_url, small_core.api_key)
        wire.end(wire.create("mkdir outputs; echo 1 >outputs/answer.json")["id"])
        pid = small_core.pid
        assert pid is not None
        for more in range(1, 16):
            limit = len(list(Path(f"/proc/{pid}/fd").iterdir())) + more
            resource.prlimit(pid, resource.RLIMIT_NOFILE, (limit, 2048))
            session = wire.create("mkdir -p outputs/a/b/c; echo 1 >outputs/a/b/c/answer.json")
            with contextlib.ExitStack() as held:
                for _ in range(more % 3):
                    held.enter_context(connected(small_core, b""))
                session = ended(wire, session["id"])
            turn = wire.turn(session["id"])
            failed += session["status"] == "failed"
            if turn is not None and turn["status"] == "completed":
                resource.prlimit(pid, resource.RLIMIT_NOFILE, (2048, 2048))
                assert list(wire.artifacts(session["id"]).values()) == [b"1\n"]
            elif turn is not None:
                codes.add(turn["error"]["code"])
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (2048, 2048))
        with httpx.Client(timeout=20, trust_env=False) as other:
            Wire(other, small_core.base_url, small_core.api_key).ok("GET", "/sessions?limit=1")
    assert failed
    assert {turn_fault_policy(code).reward for code in codes} <= {None}, codes


def ended(wire: Wire, session_id: str) -> dict[str, Any]:
    deadline = time.monotonic() + 30
    session: dict[str, Any]
    while (session := wire.ok("GET", f"/sessions/{session_id}"))["status"] != "failed":
        turn = wire.turn(session_id)
        if turn is not None and turn["status"] in ("completed", "failed", "cancelled"):
            break
        assert time.monotonic() < deadline, session
        time.sleep(0.02)
    return session
