"""`python -m pytest_core_rollouts reap`: what a run left on its Core is deleted, what can't be is named."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from pytest_core_rollouts.cli import main
from tests.rollout.test_session_deletion import left
from tests.support.fake_core import FakeCore, Fault, Script
from tests.support.rollouts import RUN_ID
from tests.support.running import until

OTHER = "20261129T120000Z-9999"


@pytest.fixture
def core(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeCore]:
    with FakeCore() as running:
        monkeypatch.setenv("OPENAI_BASE_URL", running.base_url)
        monkeypatch.setenv("OPENAI_API_KEY", running.api_key)
        yield running


def undeleted(core: FakeCore) -> list[str]:
    return [session.id for session in core.sessions.values() if not session.deleted]


def test_the_sessions_of_the_run_are_deleted_and_no_others(core: FakeCore, capsys: pytest.CaptureFixture[str]) -> None:
    core.script = lambda body: Script(never_ends=True)
    mine, others = left(core, 3), left(core, 2, OTHER)
    assert main(["reap", RUN_ID]) == 0
    assert undeleted(core) == others
    assert sorted(capsys.readouterr().out.splitlines()) == [f"deleted {one}" for one in mine]
    assert main(["reap", RUN_ID, "--core", "openai"]) == 0, "through the gateway that OPENAI_BASE_URL names"
    assert capsys.readouterr().out == f"no Sessions of {RUN_ID} found\n"


def test_openai_s_own_service_is_asked_by_its_name(
    core: FakeCore, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OPENAI_BASE_URL")
    monkeypatch.delenv("OPENAI_API_KEY")
    assert main(["reap", RUN_ID, "--core", "openai"]) == 4
    assert "no API key for the Core at https://api.openai.com/v1; set OPENAI_API_KEY" in capsys.readouterr().err


def test_young_sessions_can_be_kept(core: FakeCore, capsys: pytest.CaptureFixture[str]) -> None:
    old, young = left(core, 1), left(core, 1)
    core.sessions[old[0]].created_at = int(time.time()) - 7300
    assert main(["reap", RUN_ID, "--older-than", "2h"]) == 0
    assert undeleted(core) == young
    assert f"kept 1 Sessions of {RUN_ID} that are younger" in capsys.readouterr().out


def test_what_can_not_be_deleted_is_named(
    core: FakeCore, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pytest_core_rollouts.cli.reap._TIMEOUT", 2.0)
    core.script = lambda body: Script(prepare_seconds=None)
    [stuck] = left(core, 1)
    assert main(["reap", RUN_ID]) == 1
    assert f"left {stuck}: DELETE /agents/sessions/{stuck}: HTTP 409" in capsys.readouterr().out


def test_a_core_that_is_away_or_refuses_is_reported(
    core: FakeCore, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pytest_core_rollouts.cli.reap._TIMEOUT", 1.0)
    core.fault = lambda request: Fault(status=403, body=b'{"error": {"message": "no \\u001b[31m"}}')
    assert main(["reap", RUN_ID]) == 1
    out = capsys.readouterr().out
    assert "could not be read completely: GET /agents/sessions" in out
    assert "403" in out
    assert "\x1b" not in out
    core.go_down()
    assert main(["reap", RUN_ID]) == 1
    core.come_back()


@pytest.mark.parametrize(
    ("unset", "args", "error"),
    [
        ("OPENAI_BASE_URL", [], "no Core configured; set OPENAI_BASE_URL"),
        ("OPENAI_API_KEY", [], "; set OPENAI_API_KEY"),
        (None, ["--core", "http://example.com/v1"], "refusing to send the API key"),
        (None, ["--core", "nonsense"], "expected http(s)://"),
        (None, ["--older-than", "yesterday"], "invalid duration 'yesterday'"),
    ],
)
def test_what_makes_no_sense_is_a_usage_error(
    core: FakeCore,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    unset: str | None,
    args: list[str],
    error: str,
) -> None:
    if unset is not None:
        monkeypatch.delenv(unset)
    assert main(["reap", RUN_ID, *args]) == 4
    assert error in capsys.readouterr().err
    assert not core.requests


@pytest.mark.parametrize("run_id", [f"runs/{RUN_ID}.jsonl", f"{RUN_ID}.jsonl", f"{RUN_ID} ", ""])
def test_a_file_is_not_a_run_id(core: FakeCore, capsys: pytest.CaptureFixture[str], run_id: str) -> None:
    left(core, 1)
    assert main(["reap", run_id]) == 4
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith(f"ERROR: invalid run id {run_id!r}; use the file's name without")
    assert len(undeleted(core)) == 1


def test_more_sessions_than_a_page_holds_among_those_of_another_run(
    core: FakeCore, capsys: pytest.CaptureFixture[str]
) -> None:
    mine, others = left(core, 130), left(core, 120, OTHER)
    mine += left(core, 5)
    assert main(["reap", RUN_ID]) == 0
    assert undeleted(core) == others
    assert sorted(capsys.readouterr().out.splitlines()) == sorted(f"deleted {one}" for one in mine)


def test_as_a_command(core: FakeCore, tmp_path: Path) -> None:
    [one] = left(core, 1)
    command = [sys.executable, "-m", "pytest_core_rollouts", "reap", RUN_ID]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
    progress = f"looking for Sessions of {RUN_ID} at {core.base_url}\n"
    assert (done.returncode, done.stdout, done.stderr) == (0, f"deleted {one}\n", progress)


def test_ctrl_c_ends_a_command_with_a_word(core: FakeCore) -> None:
    core.fault = lambda request: Fault(hang=True)
    command = [sys.executable, "-m", "pytest_core_rollouts", "reap", RUN_ID]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    # A job in the background of a shell script ignores Ctrl-C, and its processes inherit that.
    listening = {"preexec_fn": lambda: signal.signal(signal.SIGINT, signal.SIG_DFL)}
    with subprocess.Popen(command, **pipes, **listening) as process:  # type: ignore[call-overload]
        until(lambda: core.requests, "a request")
        process.send_signal(signal.SIGINT)
        output, errors = process.communicate(timeout=30)
    assert (process.returncode, output, errors.splitlines()[1:]) == (2, "", ["interrupted"])
