"""What a real agent can do whose model means harm: nothing to the host, to others, or to the key."""

from __future__ import annotations

import json
import os
import signal
import socket
import statistics
import threading
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from pytest_core_rollouts.embedded.harnesses.native import EVENTS_LIMIT, LINES
from pytest_core_rollouts.embedded.launch import EmbeddedCore
from tests.support.agents import KEY, both, creation, needs_codex
from tests.support.sandboxes import processes_with, wait_until_gone
from tests.support.scripted_models import Hang, Reply, Say, ScriptedModel, Shell
from tests.support.waiting import no_hang
from tests.support.wire import Wire

# Looks for keys and for what others have, and tries ways out. Prints what it found.
PROBE = r"""
import json, os, pathlib, socket, sys

found = {"environ": [], "files": [], "roots": [], "opened": [], "statuses": {}}
secrets = [(first + second).encode() for first, second in json.loads(sys.argv[1])]  # halves, not to find themselves
for process in pathlib.Path("/proc").glob("[0-9]*"):
    for name in ("environ", "cmdline", "maps"):
        try:
            data = (process / name).read_bytes()
        except OSError:
            continue
        if any(secret in data for secret in secrets):
            found["environ"].append(f"{process}/{name}")
    for name in ("root", "cwd"):
        try:
            found["roots"] += [entry for entry in os.listdir(process / name) if "rollouts" in entry]
        except OSError:
            pass
for folder in ("/home", "/workspace", "/run", "/tmp", "/etc", "/opt/agent", "/root", "/var"):
    for parent, _, names in os.walk(folder):
        for name in names:
            path = os.path.join(parent, name)
            try:
                if os.path.getsize(path) < 1 << 20 and not os.path.islink(path):
                    data = open(path, "rb").read() if os.path.isfile(path) else b""
                    found["files"] += [path] if any(secret in data for secret in secrets) else []
            except OSError:
                pass
for address in json.loads(sys.argv[2]):
    try:
        with socket.create_connection(tuple(address), timeout=2):
            found["opened"].append(address)
    except OSError:
        pass
for target in ("/../other", "/%2e%2e/other", "http://127.0.0.1/", "/models"):
    try:
        with socket.create_connection(("127.0.0.1", 48080), timeout=5) as client:
            client.sendall(f"GET {target} HTTP/1.1\r\nHost: x\r\nAuthorization: y\r\n\r\n".encode())
            found["statuses"][target] = client.recv(12).decode()
    except OSError as error:
        found["statuses"][target] = str(error)
print(json.dumps(found))
"""


def run(wire: Wire, harness: str, *commands: str) -> tuple[dict[str, Any], list[dict[str, Any]], str]:
    """The Turn, the Items of the commands and the Session's id of an agent that runs these commands."""
    replies: list[Reply] = [*map(Shell, commands), Say("Done.")]
    with ScriptedModel(lambda ask: replies[min(ask.step, len(replies) - 1)]) as model:
        session_id = wire.ok("POST", "/sessions", 201, json=creation(harness, f"{model.url}/v1"))["id"]
        turn = wire.wait(session_id, seconds=60)
    return turn, [item for item in wire.items(session_id) if item["type"] == "command_execution"], session_id


@pytest.fixture
def listener() -> Iterator[tuple[int, list[object]]]:
    """A port of the host, and who connected to it."""
    server = socket.create_server(("127.0.0.1", 0))
    seen: list[object] = []

    def accept() -> None:
        while len(seen) < 100:
            try:
                seen.append(server.accept()[1])
            except OSError:
                return

    threading.Thread(target=accept, daemon=True).start()
    yield server.getsockname()[1], seen
    server.close()


@both
def test_agent_finds_no_key_no_network_and_no_other_agent(
    agents_core: EmbeddedCore, agents_wire: Wire, harness: str, listener: tuple[int, list[object]]
) -> None:
    wire = agents_wire
    port, seen = listener
    core_port = int(agents_core.base_url.split(":")[2].split("/")[0])
    with ScriptedModel(lambda ask: Shell("echo the-neighbors-secret >note; sleep 60")) as other:
        neighbor = wire.ok("POST", "/sessions", 201, json=creation("codex", other.url))["id"]
        addresses = [("127.0.0.1", port), ("127.0.0.1", core_port), ("10.0.0.1", 53), ("8.8.8.8", 53), ("::1", port)]
        secrets = [(secret[:9], secret[9:]) for secret in (KEY, agents_core.api_key, "the-neighbors-secret")]
        probe = f"python3 /tmp/probe.py '{json.dumps(secrets)}' '{json.dumps(addresses)}' | sed 's/^/FOUND /'"
        replies = (Shell(f"cat >/tmp/probe.py <<'END'\n{PROBE}\nEND"), Shell(probe), Say("Done."))
        with ScriptedModel(lambda ask: replies[ask.step]) as model:
            session_id = wire.ok("POST", "/sessions", 201, json=creation(harness, f"{model.url}/v1"))["id"]
            turn = wire.wait(session_id, seconds=60)
            paths = [ask.path for ask in model.requests]
        wire.cancel(neighbor)
    assert turn["status"] == "completed", turn
    commands = [item for item in wire.items(session_id) if item["type"] == "command_execution"]
    found = json.loads(commands[1]["output"].split("FOUND ")[1].splitlines()[0])
    assert (found["environ"], found["files"], found["roots"], found["opened"]) == ([], [], [], [])
    assert found["statuses"] == {
        "/../other": "HTTP/1.1 403",
        "/%2e%2e/other": "HTTP/1.1 403",
        "http://127.0.0.1/": "HTTP/1.1 403",
        "/models": "HTTP/1.1 404",
    }
    assert all(path.startswith("/v1/") for path in paths)
    assert seen == []
    assert KEY not in json.dumps(wire.items(session_id))


@both
def test_environment_of_an_agent_has_a_dummy_key(agents_wire: Wire, harness: str) -> None:
    turn, [command], _ = run(agents_wire, harness, "env")
    assert turn["status"] == "completed"
    keys = [line for line in command["output"].splitlines() if "KEY" in line.partition("=")[0]]
    assert [line.partition("=")[2] for line in keys] == ["key-held-by-the-proxy"]


@both
def test_daemons_of_an_agent_end_with_its_turn(agents_wire: Wire, harness: str) -> None:
    fork = "for i in 1 2 3; do (trap '' TERM HUP; setsid nohup sleep 7775.5 >/dev/null 2>&1 &) ; done; sleep 0.2"
    turn, [command], _ = run(agents_wire, harness, fork)
    assert (turn["status"], command["exit_code"]) == ("completed", 0)
    assert wait_until_gone("7775.5", 3) == []


def processes_of(uid: int) -> list[str]:
    """Command lines of the processes of a user, which is a Core's own when the tests run as root."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if process.stat().st_uid == uid:
                found.append((process / "cmdline").read_text())
        except OSError:
            pass  # it ended meanwhile
    return found


@needs_codex
@pytest.mark.parametrize("killed", [False, True], ids=["stopped", "killed"])
def test_agents_end_with_the_core(killed: bool) -> None:
    core = EmbeddedCore.reserve()
    core.start()
    folders = core._folders
    nap = f"7775.{uuid.uuid4().int % 10**12:012}"
    script = f"setsid sleep {nap} & sleep {nap}"
    with (
        httpx.Client(timeout=30, trust_env=False) as client,
        ScriptedModel(lambda ask: Shell(script) if len(model.asks) % 2 else Hang()) as model,
    ):
        wire = Wire(client, core.base_url, core.api_key)
        for _ in range(6):
            wire.ok("POST", "/sessions", 201, json=creation("codex", model.url))
        deadline = time.monotonic() + 120
        while len(model.asks) < 6 or not processes_with(nap):
            assert time.monotonic() < deadline
            time.sleep(0.05)
        uid = next((folders[1] / "sessions").glob("*/home")).stat().st_uid
        assert core.pid is not None
        if killed:
            os.kill(core.pid, signal.SIGKILL)
        with no_hang():
            core.stop()
    assert wait_until_gone(nap, 60) == []
    deadline = time.monotonic() + 60
    while uid != os.geteuid() and (left := processes_of(uid)):
        assert time.monotonic() < deadline, left
        time.sleep(0.05)
    assert not any(folder.exists() for folder in folders)


@both
def test_outputs_that_are_links_or_pipes_are_not_followed(agents_wire: Wire, harness: str) -> None:
    wire = agents_wire
    turn, _, session_id = run(wire, harness, "mkdir outputs; ln -s /etc/passwd outputs/answer.json; echo 1 >outputs/b")
    assert turn["status"] == "completed"
    assert wire.artifacts(session_id) == {"/workspace/outputs/b": b"1\n"}
    for make in ("mkdir outputs; mkfifo outputs/answer.json", "ln -s /etc outputs"):
        turn, _, session_id = run(wire, harness, make)
        assert (turn["status"], turn["error"]["code"]) == ("failed", "outputs_rejected"), turn
        assert wire.artifacts(session_id) == {}


@both
def test_links_in_the_home_are_not_followed(agents_wire: Wire, harness: str) -> None:
    """The next Turn's settings are written into the home that an agent has had for itself."""
    wire = agents_wire
    links = "cd; for f in .codex .claude; do mv $f $f.old; ln -s /workspace $f; done; ls -la"
    replies = (Shell(links), Say("Done."))
    with ScriptedModel(lambda ask: replies[min(ask.step, 1)]) as model:
        body = creation(harness, model.url, agent={"instructions": "Be good."})
        session_id = wire.ok("POST", "/sessions", 201, json=body)["id"]
        assert wire.wait(session_id)["status"] == "completed"
        assert wire.say(session_id, "Again.").status_code == 202
        turn = wire.wait(session_id)
    assert (turn["status"], turn["error"]["code"]) == ("failed", "outputs_rejected"), turn
    assert "/home/agent/.c" in turn["error"]["message"], "it names the file that can't be written"


@pytest.mark.slow
@needs_codex
def test_full_disk_only_affects_its_agent(agents_wire: Wire) -> None:
    turn, _, _ = run(agents_wire, "codex", "for i in 1 2 3 4; do head -c 400M /dev/zero >f$i; sleep 0.6; done")
    assert turn["error"]["code"] == "sandbox_limit_exceeded"
    assert "disk: at least" in turn["error"]["message"]


@needs_codex
@pytest.mark.parametrize(
    ("event", "bound"),
    [
        ('{"type":"item.completed","item":{"type":"agent_message","text":""}}', f"{LINES} lines"),
        ("x" * 40_000, f"{EVENTS_LIMIT} bytes of events"),
    ],
    ids=["many", "long"],
)
def test_flood_of_events_is_stopped(agents_core: EmbeddedCore, agents_wire: Wire, event: str, bound: str) -> None:
    """It can write what the agent program prints; that falsifies its own trajectory, and is bounded."""
    find = "for p in /proc/[0-9]*; do case $(readlink $p/exe) in */codex) break;; esac; done"
    turn, _, _ = run(agents_wire, "codex", f"{find}; yes '{event}' >$p/fd/1")
    assert turn["error"]["code"] == "sandbox_limit_exceeded", turn
    assert turn["error"]["message"] == f"The agent program printed more than {bound}."
    status = Path(f"/proc/{agents_core.pid}/status").read_text()
    [resident] = [int(line.split()[1]) for line in status.splitlines() if line.startswith("VmRSS")]
    assert resident < 600_000, "KiB"


@needs_codex
def test_the_core_serves_others_while_one_floods_its_model(agents_wire: Wire) -> None:
    wire = agents_wire
    flood = "head -c 20M /dev/zero >/tmp/z; while :; do python3 - <<'END'\n"
    flood += "import urllib.request\n"
    flood += "data = open('/tmp/z', 'rb').read()\n"
    flood += "urllib.request.urlopen('http://127.0.0.1:48080/files', data).read()\nEND\ndone"
    with ScriptedModel(lambda ask: Shell(flood)) as model:
        session_id = wire.ok("POST", "/sessions", 201, json=creation("codex", model.url))["id"]
        deadline = time.monotonic() + 120
        while len(model.requests) < 3:
            assert time.monotonic() < deadline, wire.turn(session_id)
            time.sleep(0.05)
        seconds = []
        for _ in range(50):
            started = time.monotonic()
            wire.ok("GET", "/sessions?limit=1")
            seconds.append(time.monotonic() - started)
        assert statistics.median(seconds) < 2, "one slow answer may be the machine's fault"
        wire.end(session_id)
