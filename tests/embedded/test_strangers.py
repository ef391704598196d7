"""Connections to the embedded Core from those who do not have its key."""

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

MOST = 512  # strangers
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


def are_open(clients: list[socket.socket]) -> list[socket.socket]:
    """Those that have not been closed by the other side."""
    poll = select.poll()
    for client in clients:
        poll.register(client, select.POLLIN | select.POLLRDHUP)
    closed = {fd for fd, event in poll.poll(0) if event & (select.POLLRDHUP | select.POLLHUP | select.POLLERR)}
    return [client for client in clients if client.fileno() not in closed]


@pytest.mark.parametrize(
    "sent", [b"", HEAD, HEAD + b"Authorization: Bearer wrong\r\n\r\n"], ids=["no", "half", "wrong"]
)
def test_strangers_who_hold_connections_do_not_hold_up_the_client(small_core: EmbeddedCore, sent: bytes) -> None:
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
            assert known._transport._pool.connections == before, "a connection that had shown the key was dropped"  # type: ignore[attr-defined]
            deadline = time.monotonic() + 20
            while len(left := are_open(strangers)) > MOST:
                assert time.monotonic() < deadline, len(left)
                time.sleep(0.05)
            assert not set(left) & set(strangers[:1000]), "the oldest go first"
    finally:
        for stranger in strangers:
            stranger.close()
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert small_core.running


@pytest.mark.slow
def test_a_stranger_has_ten_seconds(core: EmbeddedCore) -> None:
    half, whole = connected(core, HEAD), connected(core, HEAD + b"\r\n")
    with half, whole:
        for stranger in (half, whole):
            stranger.settimeout(30)
            while stranger.recv(4096):
                pass


def test_running_out_of_files_is_never_the_agents_fault(small_core: EmbeddedCore) -> None:
    """Whatever a Core with few files left is doing when they run out; and it serves on when there are some again."""
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
