"""Workers that die: what finished stands, the rest runs again elsewhere, and nothing is reported twice."""

from __future__ import annotations

import random
import time
from collections import Counter
from typing import Any

import pytest

from tests.integration.conftest import RIGHT, Project, outcomes, text_of
from tests.support.fake_core import FakeCore, Script
from tests.support.running import Ended, Running, kill, rows, until

pytestmark = pytest.mark.slow

ONE_AT_A_TIME = ("-n", "2")
SHARDED = ("-n", "2", "--rollout-concurrency", "4")
SCOPES = ("-n", "2", "--dist", "loadscope")


def attempts(core: FakeCore) -> Counter[str]:
    """How many Sessions each attempt at a rollout has got."""
    return Counter(str(session.key) for session in core.sessions.values())


def check(project: Project, core: FakeCore, ended: Ended, count: int) -> None:
    """Every rollout has one row and one report, and no attempt more than one Session."""
    assert "INTERNALERROR" not in ended.text, ended.text
    assert ended.code == 0, ended.text
    assert f"{count} passed" in ended.text, ended.text
    assert {row["status"] for row in rows(project)} == {"completed"}
    assert len(rows(project)) == count
    assert set(attempts(core).values()) == {1}
    assert all(session.deleted for session in core.sessions.values())


@pytest.mark.parametrize("workers", [ONE_AT_A_TIME, SHARDED, SCOPES], ids=" ".join)
def test_rollouts_of_a_killed_worker_run_again(project: Project, core: FakeCore, workers: tuple[str, ...]) -> None:
    for name in "abcd":
        project.task(name)
    core.script = lambda body: Script(answer=RIGHT, turn_seconds=1.5)
    with Running(project, "tasks", "--samples", "2", "-p", "no:cacheprovider", *workers) as pytest_:
        until(lambda: len(core.sessions) > 1, "two Sessions")
        kill(pytest_.workers[0])
        check(project, core, pytest_.end(), 8)


@pytest.mark.parametrize("hook", ["collection_modifyitems", "sessionfinish"])
@pytest.mark.parametrize("workers", [ONE_AT_A_TIME, SHARDED], ids=" ".join)
def test_a_worker_that_dies_before_its_first_or_after_its_last_report_loses_nothing(
    project: Project, core: FakeCore, workers: tuple[str, ...], hook: str
) -> None:
    """The one that replaces it has all of its work to do, or none: another plugin may crash it at the very end."""
    project.task("a")
    core.script = lambda body: Script(answer=RIGHT, turn_seconds=(0.1, 2.0)[int(body["metadata"]["sample"]) % 2])
    project.write("conftest.py", DIES_IN.format(hook=hook))
    with Running(project, "tasks", "--samples", "6", *workers) as pytest_:
        check(project, core, pytest_.end(), 6)
    assert (project.path / "died").exists()


DIES_IN = """
import os, signal
from pathlib import Path

def pytest_{hook}():
    flag = Path(__file__).with_name("died")
    if os.environ.get("PYTEST_XDIST_WORKER") == "gw0" and not flag.exists():
        flag.touch()
        os.kill(os.getpid(), signal.SIGKILL)
"""
DIES = """
import os, signal
from pathlib import Path

def pytest_runtest_logreport(report):
    flag = Path(__file__).with_name("died")
    if os.environ.get("PYTEST_XDIST_WORKER") and report.when == {when!r} and "{task}" in report.nodeid:
        if {always} or not flag.exists():
            flag.touch()
            os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize("workers", [ONE_AT_A_TIME, SHARDED, SCOPES], ids=" ".join)
@pytest.mark.parametrize("when", ["setup", "teardown"])
def test_a_worker_that_dies_during_a_report_loses_and_repeats_nothing(
    project: Project, core: FakeCore, workers: tuple[str, ...], when: str
) -> None:
    """What the controller has received is not reported again, although the worker has not confirmed the end."""
    for name in "abc":
        project.task(name)
    project.write("conftest.py", DIES.format(when=when, task="tasks/b/", always=False))
    with Running(project, "tasks", "--samples", "2", *workers) as pytest_:
        check(project, core, pytest_.end(), 6)
    assert (project.path / "died").exists()


KILLER = """
import os, signal

def pytest_rollout_grade(task):
    if task.id == "c":
        os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize("workers", [ONE_AT_A_TIME, SHARDED], ids=" ".join)
def test_a_rollout_that_kills_two_workers_is_an_error(
    project: Project, core: FakeCore, workers: tuple[str, ...]
) -> None:
    for name in "abcdef":
        project.task(name)
    project.write("conftest.py", KILLER)
    with Running(project, "tasks", "--junitxml=j.xml", *workers) as pytest_:
        ended = pytest_.end()
    assert "INTERNALERROR" not in ended.text, ended.text
    found = {row["task"]: row for row in rows(project)}
    assert set(found) == set("abcdef")
    assert found["c"]["status"] == "error"
    assert found["c"]["reward"] is None
    assert "its worker died 2 times" in found["c"]["error"]
    assert "ERROR tasks/c/instruction.md::default-default-0" in ended.text, ended.text
    assert ended.code == 1
    graded = [row for row in rows(project) if row["status"] == "completed"]
    assert f"{len(graded)} passed" in ended.text
    assert len(graded) >= 3  # what was in flight with it twice may have to go with it
    assert all(session.deleted for session in core.sessions.values())

    (project.path / "conftest.py").unlink()
    made, owed = len(core.sessions), len(found) - len(graded)
    [path] = project.results
    again = project.run_apart("tasks", *workers, "--rollout-resume", str(path.relative_to(project.path)))
    assert outcomes(again) == {"passed": 6}, text_of(again)
    assert len(core.sessions) == made + owed, "those that were given up, and no others"


def test_another_test_that_kills_its_worker_is_reported_as_crashed(project: Project, core: FakeCore) -> None:
    project.task("a")
    project.write("tests/test_die.py", "import os\n\ndef test_die(): os._exit(3)\n\ndef test_live(): pass\n")
    with Running(project, "tests", "tasks", "--samples", "6", *SHARDED) as pytest_:
        ended = pytest_.end()
    assert "1 failed, 7 passed" in ended.text, ended.text
    assert "crashed while running 'tests/test_die.py::test_die'" in ended.text
    assert len(rows(project)) == 6
    assert set(attempts(core).values()) == {1}


@pytest.mark.parametrize("most", [0, 1])
@pytest.mark.parametrize("workers", [ONE_AT_A_TIME, SHARDED], ids=" ".join)
def test_max_worker_restart_applies_and_rollouts_that_did_not_run_are_named(
    project: Project, core: FakeCore, workers: tuple[str, ...], most: int
) -> None:
    for name in "abcdefgh":
        project.task(name)
    core.script = lambda body: Script(answer=RIGHT, turn_seconds=1.0)
    with Running(project, "tasks", "-v", f"--max-worker-restart={most}", *workers) as pytest_:
        killed: list[int] = []
        for number in range(most + 1):
            until(lambda: [pid for pid in pytest_.workers if pid not in killed], "a worker")
            until(lambda: len(core.sessions) > 2 * len(killed), "a Session")
            time.sleep(0.5 * number)
            killed.append(next(pid for pid in pytest_.workers if pid not in killed))
            kill(killed[-1])
        ended = pytest_.end()
    assert "INTERNALERROR" not in ended.text, ended.text
    have = {row["task"] for row in rows(project)}
    named = {name for name in "abcdefgh" if f"not run: {name} " in ended.text}
    assert have | named == set("abcdefgh"), ended.text
    assert not have & named
    assert (ended.code == 0) == (not named), ended.text
    if most == 0:
        assert named
        assert ended.code == 1
    assert set(attempts(core).values()) == {1}
    assert all(session.deleted for session in core.sessions.values())


@pytest.mark.slow
def test_a_run_whose_workers_always_die_ends(project: Project, core: FakeCore) -> None:
    project.task("a")
    project.write("conftest.py", DIES.format(when="setup", task="tasks/a/", always=True))
    with Running(project, "tasks", "--samples", "40", *SHARDED) as pytest_:
        ended = pytest_.end()
    assert ended.code == 1, ended.text
    assert "maximum crashed workers reached: 8" in ended.text
    assert "finished but were not reported to pytest" in ended.text or "not run: a" in ended.text
    rows(project)
    assert set(attempts(core).values()) == {1}


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("workers", [ONE_AT_A_TIME, SHARDED], ids=" ".join)
def test_workers_killed_at_random_moments_lose_nothing(
    project: Project, core: FakeCore, workers: tuple[str, ...], seed: int
) -> None:
    dice = random.Random(seed)
    for name in "abcd":
        project.task(name)

    def script(body: dict[str, Any]) -> Script:
        return Script(answer=RIGHT, turn_seconds=dice.uniform(0.05, 1.5))

    core.script = script
    with Running(project, "tasks", "--samples", "5", *workers) as pytest_:
        until(lambda: core.sessions, "a Session")
        for _ in range(3):
            time.sleep(dice.uniform(0.1, 2.5))
            if pytest_.process.poll() is None and pytest_.workers:
                kill(dice.choice(pytest_.workers))
        ended = pytest_.end()
    found = rows(project)
    assert set(attempts(core).values()) == {1}
    if workers is ONE_AT_A_TIME and "OSError: cannot send" in ended.text:
        pytest.skip("xdist's own scheduler wrote to a worker that had just died, and ended the run")
    assert "INTERNALERROR" not in ended.text, ended.text
    assert len(found) == 20, ended.text
    lost = [row for row in found if row["status"] == "error"]
    assert (ended.code == 0) == (not lost), ended.text
    assert f"{20 - len(lost)} passed" in ended.text
    assert all(session.deleted for session in core.sessions.values())


def test_a_worker_crash_in_a_run_without_rollouts_is_left_to_xdist(project: Project) -> None:
    project.task("a")
    project.write("tests/test_die.py", "import os\n\ndef test_die(): os._exit(3)\n\ndef test_live(): pass\n")
    result = project.run_apart("tests", "-n", "2")
    assert outcomes(result) == {"failed": 1, "passed": 1}, text_of(result)
