"""The embedded Core with rollouts in flight when something is killed or stopped: its Sessions are counted too.

Each Session that the Core ever had must be named by a row, each row must be there once, and of the Core and its
sandboxes neither a process nor a file may be left.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import tempfile
import threading
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator
from http.client import HTTPException
from pathlib import Path
from typing import Any

import pytest

from tests.integration.conftest import Project
from tests.integration.test_signals import ALONE, IN_FLIGHT, ONE_EACH, SHARDED, check
from tests.support.running import Running, alive, descendants, kill, rows, statuses, until

pytestmark = pytest.mark.slow

SAMPLES = 24
SLEEP = f"317.{os.getpid()}"
"""Seconds for which a solution sleeps so that it is in flight; the odd number identifies its processes."""
ANSWER = "mkdir -p outputs; echo '{\"x\": 1}' > outputs/answer.json\n"
TELL_CORE = """
import json
from pathlib import Path

import pytest

from pytest_core_rollouts.collecting.collect import run_key

@pytest.hookimpl(wrapper=True)
def pytest_runtestloop(session):
    run = session.config.stash[run_key]
    if not run.is_worker:
        partial = Path(__file__).with_name("core.part")
        partial.write_text(json.dumps([run.core.base_url, run.core.api_key]))
        partial.rename(partial.with_suffix(".json"))
    return (yield)
"""


def sleepers() -> int:
    """Sandboxed solutions that run, of whatever run."""
    count = 0
    for entry in Path("/proc").iterdir():
        try:
            count += entry.name.isdecimal() and (entry / "cmdline").read_bytes() == f"sleep\0{SLEEP}\0".encode()
        except (FileNotFoundError, ProcessLookupError, PermissionError):
            continue
    return count


class Sessions(threading.Thread):
    """All Sessions that the embedded Core of a run has had, looked at several times a second until the Core is gone."""

    def __init__(self, project: Project) -> None:
        super().__init__(daemon=True)
        self._told = project.path / "core.json"
        self.seen: dict[str, str] = {}
        """Rollout ids by Session id."""
        self.there = 0
        """How many there were at the last look."""
        self._over = threading.Event()

    def __enter__(self) -> Sessions:
        self.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._over.set()
        self.join()

    def run(self) -> None:
        while not self._told.exists():
            if self._over.wait(0.05):
                return
        base_url, key = json.loads(self._told.read_text())
        headers = {"Authorization": f"Bearer {key}", "OpenAI-Beta": "agents=v1"}
        request = urllib.request.Request(f"{base_url}/agents/sessions?limit=100", headers=headers)
        while not self._over.wait(0.1):
            try:
                with urllib.request.urlopen(request, timeout=10) as answer:
                    page = json.load(answer)
            except (OSError, HTTPException):
                continue  # not there yet, or gone
            assert not page["has_more"]
            self.seen |= {one["id"]: one["metadata"]["rollout_id"] for one in page["data"]}
            self.there = len(page["data"])


@pytest.fixture
def temporary() -> Iterator[Path]:
    """A folder for everything temporary, empty again in the end; its short name leaves room for those of sockets."""
    folder = Path(tempfile.mkdtemp(prefix="t-", dir="/tmp"))
    yield folder
    left = list(folder.iterdir())
    shutil.rmtree(folder)
    assert left == []


@pytest.fixture
def sandboxed(project: Project, no_core: None, temporary: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Project]:
    """A task whose solution never ends by itself, and a way to the Core's Sessions."""
    monkeypatch.setenv("TMPDIR", str(temporary))
    project.write("conftest.py", TELL_CORE)
    project.task("a", yaml=f"samples: {SAMPLES}")
    project.write("tasks/a/solution/solve.sh", f"sleep {SLEEP}\n")
    yield project
    until(lambda: sleepers() == 0, "no sandbox is left")


def all_named(project: Project, sessions: Sessions) -> None:
    """Every Session is in a row of its rollout."""
    named = {row["session_id"]: row["rollout_id"] for row in rows(project)}
    assert sessions.seen.items() <= named.items()


def run(project: Project, *args: str) -> Running:
    return Running(project, "tasks", "--core", "embedded", *args)


def at_work(sessions: Sessions, count: int) -> None:
    until(lambda: sessions.there == count and sleepers() >= 2, f"{count} Sessions, some at work, the rest waiting", 120)


STOPS = [
    pytest.param(number, group, way, id=f"{name}-{where}")
    for where, way in (("one-process", ALONE), ("one-each", ONE_EACH), ("sharded", SHARDED))
    for name, number, group in (
        ("ctrl-c", signal.SIGINT, True),
        ("sigterm", signal.SIGTERM, False),
        ("sigterm-group", signal.SIGTERM, True),
    )
]


@pytest.mark.parametrize(("number", "group", "way"), STOPS)
def test_a_signal_ends_the_run_its_sessions_and_its_processes(
    sandboxed: Project, number: signal.Signals, group: bool, way: tuple[str, ...]
) -> None:
    with run(sandboxed, *way) as pytest_, Sessions(sandboxed) as sessions:
        at_work(sessions, IN_FLIGHT[way])
        processes = descendants(pytest_.pid)
        pytest_.signal(number, group=group)
        ended = pytest_.end()
        until(lambda: not any(map(alive, processes)), "all processes gone")
    check(sandboxed, ended, count=SAMPLES)
    assert statuses(sandboxed) == {"cancelled": IN_FLIGHT[way]}
    assert len(sessions.seen) == IN_FLIGHT[way], "nothing new was started"
    all_named(sandboxed, sessions)


def test_the_option_x_stops_the_rollouts_in_flight(sandboxed: Project) -> None:
    sandboxed.task("b")
    sandboxed.write("tasks/b/solution/solve.sh", "mkdir -p outputs; echo '{}' > outputs/answer.json\n")
    args = ("tasks/b", "tasks/a", "--core", "embedded", "-x", "--rollout-concurrency", "4")
    with Running(sandboxed, *args) as pytest_, Sessions(sandboxed) as sessions:
        ended = pytest_.end()
    assert ended.code == 1, ended.text
    assert "1 failed in" in ended.text
    assert statuses(sandboxed)["completed"] == 1
    all_named(sandboxed, sessions)


@pytest.mark.parametrize("way", [pytest.param(ONE_EACH, id="one-each"), pytest.param(SHARDED, id="sharded")])
def test_a_run_stops_in_order_after_a_worker_was_killed(sandboxed: Project, way: tuple[str, ...]) -> None:
    """Another one takes its Sessions over, under their keys: no attempt has a second one."""
    with run(sandboxed, *way) as pytest_, Sessions(sandboxed) as sessions:
        at_work(sessions, IN_FLIGHT[way])
        victim = pytest_.workers[0]
        kill(victim)
        until(lambda: len([pid for pid in pytest_.workers if pid != victim]) == 2, "another worker")
        time.sleep(2.0)  # it collects, and takes over; to be stopped earlier does no harm either
        processes = descendants(pytest_.pid)
        pytest_.signal(signal.SIGTERM)
        ended = pytest_.end()
        until(lambda: not any(map(alive, processes)), "all processes gone")
    check(sandboxed, ended, count=SAMPLES)
    assert set(statuses(sandboxed)) == {"cancelled"}
    assert set(Counter(sessions.seen.values()).values()) == {1}


@pytest.mark.parametrize("way", [pytest.param(ONE_EACH, id="one-each"), pytest.param(SHARDED, id="sharded")])
def test_a_run_goes_on_after_a_worker_was_killed(sandboxed: Project, way: tuple[str, ...]) -> None:
    sandboxed.write("tasks/a/solution/solve.sh", f"sleep 2\n{ANSWER}")
    with run(sandboxed, *way) as pytest_, Sessions(sandboxed) as sessions:
        until(lambda: sessions.there == IN_FLIGHT[way], "Sessions in flight")
        processes = descendants(pytest_.pid)
        kill(pytest_.workers[0])
        ended = pytest_.end()
        until(lambda: not any(map(alive, processes)), "all processes gone")
    assert ended.code == 0, ended.text
    assert f"{SAMPLES} passed" in ended.text
    assert statuses(sandboxed) == {"completed": SAMPLES}
    all_named(sandboxed, sessions)
    assert len({row["session_id"] for row in rows(sandboxed)}) == SAMPLES


@pytest.mark.parametrize("way", [pytest.param(ALONE, id="one-process"), pytest.param(SHARDED, id="sharded")])
def test_a_run_can_be_resumed_after_its_controller_was_killed(sandboxed: Project, way: tuple[str, ...]) -> None:
    """The Core goes with it, and its sandboxes; what had finished stays, and the rest runs on another Core."""
    sandboxed.write("tasks/a/solution/solve.sh", f"sleep 1\n{ANSWER}")
    with run(sandboxed, *way) as pytest_, Sessions(sandboxed) as sessions:
        until(lambda: graded(sandboxed) and sessions.there >= 4, "the first row, others in flight")
        processes = descendants(pytest_.pid)
        pytest_.signal(signal.SIGKILL)
        pytest_.end()
        until(lambda: not any(map(alive, processes)), "all processes gone")
    before = graded(sandboxed)
    assert 0 < len(before) < SAMPLES
    (sandboxed.path / "core.json").unlink()
    [path] = sandboxed.results
    with run(sandboxed, *way, "--rollout-resume", str(path)) as pytest_:
        ended = pytest_.end()
    assert ended.code == 0, ended.text
    after = graded(sandboxed)
    assert len(after) == SAMPLES
    assert before.items() <= after.items(), "what had finished was not run again"


def graded(project: Project) -> dict[str, str]:
    """The Sessions of whole rows with a reward, by rollout id; of each there is one."""
    lines = [line for path in project.results for line in path.read_bytes().split(b"\n")[:-1]]
    found: list[dict[str, Any]] = [row for row in map(json.loads, lines) if row["reward"] is not None]
    sessions = {row["rollout_id"]: row["session_id"] for row in found}
    assert len(sessions) == len(found)
    return sessions
