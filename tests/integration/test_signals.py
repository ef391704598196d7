"""Ctrl-C, SIGTERM and SIGKILL with rollouts in flight: nothing is lost, reported twice or left behind unnamed."""

from __future__ import annotations

import re
import signal
import subprocess
import sys

import pytest

from tests.integration.conftest import RIGHT, Project
from tests.support.fake_core import FakeCore, Fault, Script
from tests.support.running import Ended, Running, alive, descendants, rows, statuses, until

pytestmark = pytest.mark.slow

ALONE = ("--rollout-concurrency", "20")
ONE_EACH = ("-n", "2")
SHARDED = ("-n", "2", "--rollout-concurrency", "10")
IN_FLIGHT = {ALONE: 20, ONE_EACH: 2, SHARDED: 20}
QUICK = 3
"""Rollouts that have finished before the signal."""


def check(project: Project, ended: Ended, *, count: int, code: int = 2) -> None:
    """Every rollout has its result or is named as not run, and none that the stop cancelled counts as a failure."""
    assert ended.code == code, ended.text
    assert "INTERNALERROR" not in ended.text, ended.text
    assert "Traceback" not in ended.text, ended.text
    assert "cannot send" not in ended.text, ended.text
    assert not re.search(r"\d (errors?|failed)\b", ended.text.splitlines()[-1]), ended.text
    found = [row for row in rows(project) if row["status"] != "cancelled"]
    named = sum(samples(line) for line in ended.text.splitlines() if line.startswith("not run: "))
    assert len(found) + named == count, ended.text


def samples(line: str) -> int:
    """How many rollouts a line such as `not run: a codex-default 0-3, 7` names."""
    spans = [span.strip().split("-") for span in re.split(r" (?=\d)", line, maxsplit=1)[1].split(",")]
    return sum(int(span[-1]) - int(span[0]) + 1 for span in spans)


def test_the_helper_counts_samples_of_a_not_run_line() -> None:
    assert samples("not run: a default-default 0-3, 7") == 5
    assert samples("not run: a default-default 7") == 1


@pytest.fixture
def slow_core(project: Project, core: FakeCore) -> FakeCore:
    """A Core that answers three rollouts at once, and no other."""
    project.task("a", yaml="samples: 40")

    def script(body: dict[str, object]) -> Script:
        return Script(answer=RIGHT) if len(core.sessions) < QUICK else Script(turn_seconds=3600, answer=RIGHT)

    core.script = script
    return core


def in_flight(core: FakeCore) -> int:
    """Turns that run."""
    return sum(session.turn is not None and session.busy for session in list(core.sessions.values()))


KINDS = [
    pytest.param(signal.SIGINT, True, id="ctrl-c"),
    pytest.param(signal.SIGINT, False, id="sigint", marks=pytest.mark.slow),
    pytest.param(signal.SIGTERM, False, id="sigterm"),
    pytest.param(signal.SIGTERM, True, id="sigterm-group", marks=pytest.mark.slow),
]
WAYS = [
    pytest.param(ALONE, id="one-process"),
    pytest.param(ONE_EACH, id="one-each", marks=pytest.mark.slow),
    pytest.param(SHARDED, id="sharded"),
]


@pytest.mark.parametrize(("number", "group"), KINDS)
@pytest.mark.parametrize("way", WAYS)
def test_a_signal_cancels_rollouts_writes_rows_and_deletes_sessions(
    project: Project, slow_core: FakeCore, number: signal.Signals, group: bool, way: tuple[str, ...]
) -> None:
    with Running(project, "tasks", *way) as pytest_:
        until(lambda: in_flight(slow_core) == IN_FLIGHT[way] and len(rows(project)) == QUICK, "rollouts in flight")
        until(lambda: re.search(r"(^| )\.{3}$", pytest_.text, re.MULTILINE), "the quick ones are reported")
        made = len(slow_core.sessions)
        pytest_.signal(number, group=group)
        ended = pytest_.end()
    check(project, ended, count=40)
    assert statuses(project) == {"completed": QUICK, "cancelled": IN_FLIGHT[way]}
    assert len(slow_core.sessions) == made  # nothing new was started
    assert all(session.deleted for session in slow_core.sessions.values())
    assert all(
        session.cancels or session.turn["status"] == "completed"
        for session in slow_core.sessions.values()
        if session.turn
    )
    assert "3 passed" in ended.text
    assert f"interrupted: {IN_FLIGHT[way]} rollouts that were in flight" in ended.text
    assert_not_run(project, ended, ran=QUICK, count=40)


def test_a_rollout_that_finished_is_reported_although_one_before_it_will_not_run(
    project: Project, core: FakeCore
) -> None:
    """The first sample of each task finishes at once: between two that are reported are some that are not."""
    for task in "abcdef":
        project.task(task, yaml="samples: 3")
    core.script = lambda body: Script(never_ends=body["metadata"]["sample"] != "0", answer=RIGHT)
    with Running(project, "tasks", *SHARDED) as pytest_:
        until(lambda: in_flight(core) == 12 and len(rows(project)) == 6, "rollouts in flight")
        pytest_.signal(signal.SIGINT, group=True)
        ended = pytest_.end()
    assert ended.code == 2, ended.text
    assert re.search(r"=+ 6 passed in ", ended.text.splitlines()[-1]), ended.text
    assert "not run: 12 rollouts of 6 tasks" in ended.text


def assert_not_run(project: Project, ended: Ended, *, ran: int, count: int) -> None:
    """What the stop cancelled is no error, in no report."""
    [path] = project.results
    command = [sys.executable, "-m", "pytest_core_rollouts", "report", str(path)]
    again = subprocess.run(command, cwd=project.path, capture_output=True, text=True, check=True).stdout
    for text in (ended.text, again):
        assert f"rows {ran} of {count} planned" in text
        assert f"valid {ran}/{count}, not run {count - ran}." in text
        assert "the run was interrupted" not in text


def test_a_sigint_that_was_inherited_as_ignored_ends_the_run(project: Project, slow_core: FakeCore) -> None:
    deaf = ("sh", "-c", 'trap "" INT; exec "$@"', "sh")
    with Running(project, "tasks", *ALONE, prefix=deaf) as pytest_:
        until(lambda: in_flight(slow_core) == 20 and len(rows(project)) == QUICK, "rollouts in flight")
        pytest_.signal(signal.SIGINT)
        ended = pytest_.end()
    check(project, ended, count=40)


@pytest.mark.parametrize("way", [pytest.param(ALONE, id="one-process"), pytest.param(SHARDED, id="sharded")])
def test_a_second_signal_ends_the_process_at_once(project: Project, way: tuple[str, ...]) -> None:
    """It does not wait for the orderly end, whose last step names each Session that it could not delete."""
    project.task("a", yaml="samples: 20")
    with FakeCore(script=lambda body: Script(never_ends=True, ignore_cancel=True)) as core:
        env = {"OPENAI_BASE_URL": core.base_url}
        with Running(project, "tasks", *way, env=env) as pytest_:
            until(lambda: in_flight(core) == 20, "rollouts in flight")
            pytest_.signal(signal.SIGINT, group=True)
            until(lambda: core.counts["cancel"], "an orderly end begun")
            workers = pytest_.workers
            pytest_.signal(signal.SIGINT, group=True)
            ended = pytest_.end()
            assert ended.code == 2
            run_id = project_run_id(ended)
            assert f"python -m pytest_core_rollouts reap {run_id}" in ended.text
            assert "ended at once" in ended.text
            assert "left behind: Session" not in ended.text, ended.text
            until(lambda: not any(map(alive, workers)), "workers gone")


def project_run_id(ended: Ended) -> str:
    match = re.search(r"rollouts: run (\S+),", ended.text)
    assert match is not None, ended.text
    return match[1]


def test_sessions_that_can_not_be_deleted_are_named(project: Project) -> None:
    project.task("a", yaml="samples: 5")
    with FakeCore(script=lambda body: Script(never_ends=True, ignore_cancel=True)) as core:
        with Running(project, "tasks", *ALONE, env={"OPENAI_BASE_URL": core.base_url}) as pytest_:
            until(lambda: in_flight(core) == 5, "rollouts in flight")
            pytest_.signal(signal.SIGTERM)
            ended = pytest_.end()
        assert ended.code == 2, ended.text
        left = [session.id for session in core.sessions.values() if not session.deleted]
        assert len(left) == 5
        assert all(f"left behind: Session {one}" in ended.text for one in left), ended.text
        assert f"python -m pytest_core_rollouts reap {project_run_id(ended)}" in ended.text
        assert statuses(project) == {"cancelled": 5}


SLOW_TO_FINISH = """
import time
from pytest_core_rollouts.running import signals

signals.OVERDUE = 8.0

def pytest_sessionfinish(session):
    if not hasattr(session.config, "workerinput"):
        time.sleep(signals.OVERDUE)
"""


@pytest.mark.parametrize("way", WAYS)
def test_a_core_that_falls_silent_delays_no_end_and_each_session_is_named(
    project: Project, way: tuple[str, ...]
) -> None:
    """Not even the list of Sessions can be read. The time for workers is over while pytest finishes."""
    project.task("a", yaml="samples: 20")
    project.write("conftest.py", SLOW_TO_FINISH)
    with FakeCore(script=lambda body: Script(never_ends=True)) as core:
        with Running(project, "tasks", *way, env={"OPENAI_BASE_URL": core.base_url}) as pytest_:
            until(lambda: in_flight(core) == IN_FLIGHT[way], "rollouts in flight")
            core.fault = lambda request: Fault(hang=True)
            pytest_.signal(signal.SIGINT, group=True)
            ended = pytest_.end()
        assert ended.code == 2, ended.text
        assert "Traceback" not in ended.text, ended.text
        assert f"interrupted: {IN_FLIGHT[way]} rollouts that were in flight" in ended.text
        assert "Sessions may be left behind, and could not be listed" in ended.text
        assert all(f"Session {one} of " in ended.text for one in core.sessions), ended.text
        assert f"python -m pytest_core_rollouts reap {project_run_id(ended)}" in ended.text
        assert statuses(project) == {"cancelled": IN_FLIGHT[way]}


@pytest.mark.parametrize("way", [pytest.param(ONE_EACH, id="one-each"), pytest.param(SHARDED, id="sharded")])
def test_workers_cancel_and_delete_after_their_controller_was_killed(
    project: Project, slow_core: FakeCore, way: tuple[str, ...]
) -> None:
    temporary = project.path / "tmp"
    temporary.mkdir()
    with Running(project, "tasks", *way, env={"TMPDIR": str(temporary)}) as pytest_:
        until(lambda: in_flight(slow_core) == IN_FLIGHT[way] and len(rows(project)) == QUICK, "rollouts in flight")
        assert list(temporary.iterdir())
        workers = pytest_.workers
        pytest_.signal(signal.SIGKILL)
        pytest_.end()
        until(lambda: not any(map(alive, workers)), "workers gone")
        output = pytest_.text
    assert "cannot send" not in output, output
    assert "INTERNALERROR" not in output, output
    assert list(temporary.iterdir()) == []
    assert statuses(project) == {"completed": QUICK, "cancelled": IN_FLIGHT[way]}
    assert all(session.deleted for session in slow_core.sessions.values())


@pytest.mark.parametrize("workers", [(), ("-n", "2")], ids=["one-process", "workers"])
def test_sigterm_ends_a_run_that_is_collecting(project: Project, core: FakeCore, workers: tuple[str, ...]) -> None:
    project.task("a")
    hook = "def pytest_collection_modifyitems():\n    Path(__file__).with_name('here').touch()\n    time.sleep(3600)\n"
    project.write("conftest.py", f"import time\nfrom pathlib import Path\n\n{hook}")
    with Running(project, "tasks", *workers) as pytest_:
        until((project.path / "here").exists, "collecting")
        processes = descendants(pytest_.pid)
        pytest_.signal(signal.SIGTERM)
        ended = pytest_.end()
        until(lambda: not any(map(alive, processes)), "workers gone")
    assert ended.code == 2, ended.text
    assert not core.requests
    assert not project.results


def test_sigterm_ends_another_test_and_its_fixtures(project: Project, slow_core: FakeCore) -> None:
    body = "    print('here', flush=True)\n    try:\n        time.sleep(3600)\n    finally:\n        print('tidied')\n"
    project.write("tests/test_long.py", f"import time\n\ndef test_long():\n{body}")
    with Running(project, "tests", "tasks", "-s", *ALONE) as pytest_:
        until(lambda: "here" in pytest_.text, "the other test runs")
        pytest_.signal(signal.SIGTERM)
        check(project, pytest_.end(), count=40)
        assert "tidied" in pytest_.text
        assert "stopped by SIGTERM" in pytest_.text
    assert not slow_core.sessions


LONG = """
import time
from pathlib import Path
import pytest

HERE = Path(__file__)

@pytest.fixture(scope="session")
def resource():
    yield
    HERE.with_name("tidied").touch()

def test_long(resource):
    HERE.with_name("here").touch()
    time.sleep(3600)

def test_of_the_other_worker():
    pass

def test_next():
    HERE.with_name("next").touch()
"""


@pytest.mark.parametrize(("number", "group"), KINDS)
@pytest.mark.parametrize("way", [pytest.param(ONE_EACH, id="one-each"), pytest.param(SHARDED, id="sharded")])
def test_a_worker_in_another_test_does_not_delay_the_end(
    project: Project, slow_core: FakeCore, number: signal.Signals, group: bool, way: tuple[str, ...]
) -> None:
    """It is interrupted as it would be without workers: it is not reported, and its fixtures end."""
    test = project.write("tests/test_long.py", LONG)
    waiting = 10 if way is SHARDED else 1
    with Running(project, "tests", "tasks", *way) as pytest_:
        until(lambda: in_flight(slow_core) == waiting and len(rows(project)) == QUICK, "rollouts in flight")
        until(test.with_name("here").exists, "the other test runs")
        pytest_.signal(number, group=group)
        ended = pytest_.end()
    check(project, ended, count=40)
    assert f"stopped by {number.name}" in ended.text
    assert "crashed" not in ended.text, ended.text
    assert test.with_name("tidied").exists()
    assert not test.with_name("next").exists()
    assert statuses(project) == {"completed": QUICK, "cancelled": waiting}
    assert "left behind" not in ended.text, ended.text
    assert all(session.deleted for session in slow_core.sessions.values())


def test_a_test_that_ignores_interrupts_is_ended_with_its_worker(project: Project, slow_core: FakeCore) -> None:
    stubborn = (
        "    while True:\n        try:\n            time.sleep(3600)\n        except BaseException:\n            pass\n"
    )
    hook = f"def test_long():\n    Path(__file__).with_name('here').touch()\n{stubborn}"
    test = project.write("tests/test_long.py", f"import time\nfrom pathlib import Path\n\n{hook}")
    with Running(project, "tests", "tasks", *SHARDED) as pytest_:
        until(lambda: in_flight(slow_core) == 10 and test.with_name("here").exists(), "all at work")
        pytest_.signal(signal.SIGTERM)
        ended = pytest_.end()
    assert ended.code == 2, ended.text
    assert "INTERNALERROR" not in ended.text, ended.text
    assert "left behind" not in ended.text, ended.text
    assert all(session.deleted for session in slow_core.sessions.values())
