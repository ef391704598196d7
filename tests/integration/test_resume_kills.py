"""Whatever is killed, and whenever: a resume runs what is lacking, takes over what is there, pays for nothing twice."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from collections import Counter
from typing import Any

import pytest

from tests.integration.conftest import RIGHT, Project, outcomes, text_of
from tests.support.fake_core import FakeCore, FakeSession, Fault, Script
from tests.support.running import Running, descendants, kill, until

pytestmark = pytest.mark.slow

SAMPLES = ("--samples", "8")


def finished(project: Project) -> int:
    """Rows so far; the last may be half there."""
    return sum(path.read_bytes().count(b"\n") for path in project.results)


def kill_all(running: Running) -> None:
    for pid in [running.pid, *descendants(running.pid)]:
        kill(pid)
    running.process.wait()


def completed(core: FakeCore) -> list[FakeSession]:
    return [one for one in core.sessions.values() if one.turn is not None and one.turn["status"] == "completed"]


def resumed(project: Project, *args: str) -> pytest.RunResult:
    [path] = project.results
    return project.run_apart("tasks", *args, "--rollout-resume", str(path.relative_to(project.path)))


@pytest.mark.parametrize("workers", [(), ("-n", "2"), ("-n", "2", "--rollout-concurrency", "3")], ids=len)
def test_a_run_whose_processes_were_killed_twice_finishes_and_pays_nothing_twice(
    project: Project, core: FakeCore, workers: tuple[str, ...]
) -> None:
    project.task("a")
    core.script = lambda body: Script(answer=RIGHT, turn_seconds=0.4)
    args = ("tasks", *SAMPLES, *(workers or ("--rollout-concurrency", "2")))
    with Running(project, *args) as running:
        until(lambda: finished(project) >= 2, "two rows")
        kill_all(running)
    [path] = project.results
    before = path.read_bytes()
    with Running(project, *args, "--rollout-resume", str(path)) as running:
        until(lambda: path.read_bytes().count(b"\n") >= before.count(b"\n") + 2, "two rows more")
        kill_all(running)
    assert path.read_bytes().startswith(before)
    result = resumed(project, *args[1:])
    assert result.ret == 0, text_of(result)
    assert outcomes(result) == {"passed": 8}
    rows = [json.loads(line) for line in path.read_bytes().splitlines()]
    assert Counter(row["rollout_id"] for row in rows if row["reward"] == 1.0).most_common(1)[0][1] == 1
    assert len(rows) == 8
    assert len(core.sessions) == len(completed(core)) == 8, "each was paid for once"


def test_a_session_whose_creation_was_not_answered_before_the_kill_is_adopted(project: Project, core: FakeCore) -> None:
    project.task("a")
    core.script = lambda body: Script(answer=RIGHT, turn_seconds=0.2)
    core.fault = lambda request: Fault(processed=True, hang=True) if request.route == "create" else None
    with Running(project, "tasks") as running:
        until(lambda: core.sessions, "a Session")
        kill_all(running)
    core.fault = lambda request: None
    [path] = project.results
    assert path.read_bytes() == b""
    result = resumed(project)
    assert outcomes(result) == {"passed": 1}, text_of(result)
    assert len(core.sessions) == 1
    assert {row["session_id"] for row in project.records} == set(core.sessions)


@pytest.mark.parametrize("workers", [("--rollout-concurrency", "3"), ("-n", "2")], ids=len)
def test_a_run_in_a_named_file_that_was_killed_before_its_first_row_is_resumed(
    project: Project, core: FakeCore, workers: tuple[str, ...]
) -> None:
    """Also after an earlier run in that file, which is another run."""
    project.task("a")
    args = ("tasks", "--samples", "3", *workers, "--rollout-out", "mine.jsonl")
    file, in_flight = project.path / "mine.jsonl", 2 if "-n" in workers else 3
    for earlier in (0, 3):
        core.script = lambda body: Script(answer=RIGHT, turn_seconds=5.0)
        with Running(project, *args) as running:
            until(lambda: sum(one.busy for one in list(core.sessions.values())) == in_flight, "Sessions in flight")
            kill_all(running)
        assert file.read_bytes().count(b"\n") == earlier
        core.script = lambda body: Script(answer=RIGHT)
        result = project.run_apart(*args[:-2], "--rollout-resume", "mine.jsonl")
        assert outcomes(result) == {"passed": 3}, text_of(result)
        assert len(core.sessions) == len(completed(core)) == earlier + 3, "each was paid for once"
    rows = [json.loads(line) for line in file.read_bytes().splitlines()]
    assert Counter(Counter(row["run_id"] for row in rows).values()) == {3: 2}
    assert not list(project.path.glob(".mine.jsonl.*")), "no mark is left"


def test_the_next_attempt_runs_if_the_session_was_deleted(project: Project, core: FakeCore) -> None:
    """The row is lost, as on a disk that lost its last seconds; its Session is spent."""
    project.task("a")
    project.run("tasks", "--samples", "3")
    [path] = project.results
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(lines[0])
    result = resumed(project, "--samples", "3")
    assert outcomes(result) == {"passed": 3}, text_of(result)
    assert [row["attempt"] for row in project.records] == [1, 2, 2]
    assert len(core.sessions) == 5


def test_a_second_attempt_that_was_running_is_adopted(project: Project, core: FakeCore) -> None:
    project.task("a")

    def script(body: dict[str, Any]) -> Script:
        return Script(answer=RIGHT, turn_seconds=1.0) if core.sessions else Script(session_failure="broken")

    core.script = script
    with Running(project, "tasks") as running:
        until(lambda: len(core.sessions) == 2, "a second attempt")
        kill_all(running)
    result = resumed(project)
    assert outcomes(result) == {"passed": 1}, text_of(result)
    assert len(core.sessions) == 2
    [row] = project.records
    assert row["attempt"] == 2
    assert row["session_id"] == list(core.sessions)[1]


def test_leftover_sessions_are_deleted_although_nothing_is_left_to_run(project: Project, core: FakeCore) -> None:
    project.task("a")
    core.fault = lambda request: Fault(hang=True) if request.route == "delete" else None
    with Running(project, "tasks") as running:
        until(lambda: finished(project) == 1, "its row")
        kill_all(running)
    assert not any(session.deleted for session in core.sessions.values())
    core.fault = lambda request: None
    result = resumed(project)
    assert outcomes(result) == {"passed": 1}
    assert len(core.sessions) == 1
    assert all(session.deleted for session in core.sessions.values())


def test_an_interrupted_run_prints_the_command_that_resumes_it(project: Project, core: FakeCore) -> None:
    project.task("a")
    core.script = lambda body: Script(answer=RIGHT, turn_seconds=0.1 if body["metadata"]["sample"] == "0" else 30)
    with Running(project, "tasks", "--samples", "4") as running:
        until(lambda: finished(project) == 1, "the first row")
        running.signal(signal.SIGINT)
        ended = running.end()
    [path] = project.results
    assert ended.code == 2
    assert f"to finish: pytest tasks --samples 4 --rollout-resume {path.relative_to(project.path)}" in ended.text
    core.script = lambda body: Script(answer=RIGHT)
    result = resumed(project, "--samples", "4")
    assert outcomes(result) == {"passed": 4}, text_of(result)
    assert Counter(row["status"] for row in project.records) == {"completed": 4, "cancelled": 3}
    assert len(core.sessions) == 7


@pytest.mark.parametrize("workers", [(), ("-n", "2")], ids=len)
def test_kept_and_added_rollouts_are_counted_once(project: Project, core: FakeCore, workers: tuple[str, ...]) -> None:
    project.task("a")
    project.task("b")
    core.script = lambda body: Script(answer=RIGHT, turn_seconds=0.0 if len(core.sessions) < 5 else 300.0)
    with Running(project, "tasks", "--samples", "4", *workers) as running:
        until(lambda: finished(project) == 5 and len(core.sessions) > 5, "five rows")
        running.signal(signal.SIGINT)
        running.end()
    core.script = lambda body: Script(answer=RIGHT)
    result = resumed(project, "--samples", "4", "--rollout-report", "r.md", *workers)
    assert outcomes(result) == {"passed": 8}, text_of(result)
    table = (project.path / "r.md").read_text()
    assert table.startswith("8 rollouts: 2 tasks, 4 samples each\n")
    assert re.findall(r"^\| ([ab]) +\| +(\S+) \|$", table, re.MULTILINE) == [("a", "4/4"), ("b", "4/4")]
    command = [sys.executable, "-m", "pytest_core_rollouts", "report", str(project.results[0])]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == table


def test_an_interrupted_resume_names_the_rollouts_that_did_not_run(project: Project, core: FakeCore) -> None:
    project.task("a")
    core.script = lambda body: Script(session_failure="broken")
    project.run("tasks", "--samples", "4", "--rollout-retries", "0")
    core.script = lambda body: Script(never_ends=True)
    [path] = project.results
    args = ("tasks", "--samples", "4", "--rollout-concurrency", "1", "--rollout-resume", str(path))
    with Running(project, *args) as running:
        until(lambda: len(core.sessions) == 5, "the first again")
        running.signal(signal.SIGINT)
        ended = running.end()
    assert ended.code == 2
    assert "not run: a default-default 0-3" in ended.text


@pytest.mark.parametrize("flight", [(), ("--rollout-concurrency", "2")], ids=["one", "two"])
def test_a_resumed_run_finishes_although_a_worker_died(
    project: Project, core: FakeCore, flight: tuple[str, ...]
) -> None:
    """Old rows without a reward are not mistaken for what the dead worker had finished."""
    project.task("a")
    core.script = lambda body: Script(session_failure="broken")
    project.run("tasks", "--samples", "4", "--rollout-retries", "0")
    core.script = lambda body: Script(answer=RIGHT, turn_seconds=0.7)
    [path] = project.results
    args = ("tasks", "--samples", "4", "-n", "2", *flight, "--rollout-resume", str(path))
    with Running(project, *args) as running:
        until(lambda: len(core.sessions) >= 6, "two in flight")
        kill(running.workers[0])
        ended = running.end()
    assert ended.code == 0, ended.text
    assert "4 passed" in ended.text
    assert len(core.sessions) == len(completed(core)) + 4 == 8, "what the dead one had begun was taken over"
    rows = [json.loads(line) for line in path.read_bytes().splitlines()]
    assert Counter((row["status"], row["attempt"]) for row in rows) == {("error", 1): 4, ("completed", 2): 4}
