"""What is let into a sandbox on purpose: programs, files in its home, one socket with the forwarder before it."""

from __future__ import annotations

import asyncio
import json
import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from pytest_core_rollouts.embedded.model import FORWARDER, inside_argv, inside_binds, inside_url
from pytest_core_rollouts.embedded.model.channel import serve_unix
from pytest_core_rollouts.embedded.sandbox import Completed, Isolation, Sandbox
from tests.support.sandboxes import new_sandbox, run, text

AS_ROOT = os.geteuid() == 0


@pytest.fixture(scope="module")
def isolation() -> Iterator[Isolation]:
    isolation = Isolation.probe()
    yield isolation
    isolation.close()


@pytest.fixture
def sandbox(isolation: Isolation) -> Iterator[Sandbox]:
    with new_sandbox(isolation) as sandbox:
        yield sandbox


@pytest.mark.skipif(not AS_ROOT, reason="an ordinary user's sandboxes reach what the user reaches")
def test_programs_that_only_root_can_reach_are_copied(isolation: Isolation, sandbox: Sandbox, tmp_path: Path) -> None:
    closed = tmp_path / "closed"
    (closed / "lib").mkdir(parents=True)
    program = closed / "program"
    program.write_text("#!/bin/sh\ncat /opt/agent/lib/word\n")
    program.chmod(0o700)
    (closed / "lib" / "word").write_text("shared")
    (closed / "lib" / "word").chmod(0o600)
    closed.chmod(0o700)
    binds = [
        (isolation.reachable(program), "/opt/agent/program"),
        (isolation.reachable(closed / "lib"), "/opt/agent/lib"),
    ]
    assert text(run(sandbox, "/opt/agent/program; ls /opt/agent", binds=binds)) == "sharedlib\nprogram\n"
    assert isolation.reachable(program) == binds[0][0], "once is enough"
    assert program.stat().st_mode & 0o777 == 0o700, "the original stays as it was"
    assert isolation.reachable(Path("/usr/bin/env")) == Path("/usr/bin/env").resolve()


def test_files_in_the_home_belong_to_the_agent(sandbox: Sandbox) -> None:
    sandbox.write_home([("/home/agent/.config/deep/a.toml", b"x = 1")])
    assert text(run(sandbox, "stat -c '%a %U' ~/.config/deep/a.toml; cat ~/.config/deep/a.toml")) == "600 agent\nx = 1"
    for path in ("/workspace/a", "/home/agent/../a", "/home/agent", "/etc/passwd"):
        with pytest.raises(ValueError, match="expected a path under"):
            sandbox.write_home([(path, b"")])


def forwarded(isolation: Isolation, sandbox: Sandbox, *command: str) -> Completed:
    """The command under the forwarder; a server at the socket answers with what it receives, in capitals."""
    listener, path = sandbox.listen("model.sock")
    binds = inside_binds(path, isolation.reachable(FORWARDER))

    async def main() -> Completed:
        async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write((await reader.read()).upper())
            writer.write_eof()
            await writer.drain()
            writer.close()

        server = await serve_unix(listener, echo)
        try:
            return await sandbox.run(
                inside_argv(command), env={"PYTHONDONTWRITEBYTECODE": "1"}, binds=binds, timeout=30
            )
        finally:
            server.close()

    return asyncio.run(main())


def test_forwarder_passes_connections_on_and_reports_the_end(isolation: Isolation, sandbox: Sandbox) -> None:
    port = inside_url().rpartition(":")[2]
    script = f"""
import socket, sys, threading
def ask(number):
    with socket.create_connection(("127.0.0.1", {port})) as client:
        client.sendall(b"ab%d" % number * 50_000)
        client.shutdown(socket.SHUT_WR)
        data = b""
        while piece := client.recv(65536):
            data += piece
        assert data == b"AB%d" % number * 50_000, number
threads = [threading.Thread(target=ask, args=(number,)) for number in range(8)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
print("all right", file=sys.stderr)
sys.exit(3)
"""
    done = forwarded(isolation, sandbox, "python3", "-c", script)
    assert done.returncode == 3
    assert json.loads(done.output) == {"type": "exit", "stderr": "all right\n"}


@pytest.mark.parametrize(
    ("command", "status", "stderr"),
    [
        (["bash", "-c", "kill -9 $$"], 137, ""),
        (["/nowhere"], 127, "No such file or directory"),
        (["bash", "-c", "head -c 1000000 /dev/zero | tr '\\0' x >&2; echo the end >&2"], 0, "xxx\nthe end\n"),
        (["bash", "-c", "sleep 60 & echo left >&2"], 0, "left\n"),
    ],
)
def test_forwarder_exits_with_the_status_of_the_command(
    isolation: Isolation, sandbox: Sandbox, command: list[str], status: int, stderr: str
) -> None:
    done = forwarded(isolation, sandbox, *command)
    result = json.loads(done.output)
    assert done.returncode == status
    assert stderr.replace("xxx\n", "xxx") in result["stderr"]
    assert len(result["stderr"]) <= 8192


def test_only_the_sandbox_can_connect_to_its_socket(isolation: Isolation, sandbox: Sandbox) -> None:
    listener, path = sandbox.listen("model.sock")
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.stat().st_uid == isolation.uid
    again, _ = sandbox.listen("model.sock")  # of the next Turn
    for one in (listener, again):
        one.close()
    with socket.socket(socket.AF_UNIX) as client, pytest.raises(ConnectionRefusedError):
        client.connect(str(path)[-100:] if len(str(path)) > 107 else str(path))
