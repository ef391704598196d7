"""pytest -n: the same items, ids and rows in whatever process they run, and one run that all workers share."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import pytest

from tests.integration.conftest import RIGHT, WRONG, Project, node_ids, outcomes, text_of, usage_error
from tests.support.fake_core import FakeCore, Script
from tests.support.running import rows

pytestmark = pytest.mark.slow

SHARDED = ("-n", "2", "--rollout-concurrency", "5")
WAYS = [
    ("-n", "2"),
    ("-n", "1"),
    SHARDED,
    ("-n", "2", "--dist", "load"),
    ("-n", "2", "--dist", "loadscope"),
    ("-n", "2", "--dist", "loadfile"),
    ("-n", "2", "--dist", "loadgroup"),
    ("-n", "2", "--dist", "worksteal"),
    ("-n", "2", "--maxschedchunk", "1"),
]


@pytest.fixture
def six(project: Project, core: FakeCore) -> Project:
    """Six rollouts, two of them wrong, and two unit tests."""
    project.task("a")
    project.task("b")
    project.task("c")
    project.unit_tests()
    core.script = lambda body: Script(answer=WRONG if body["metadata"]["task"] == "b" else RIGHT)
    return project


@pytest.mark.parametrize("way", WAYS, ids=" ".join)
def test_every_distribution_mode_gives_the_same_rows(six: Project, core: FakeCore, way: tuple[str, ...]) -> None:
    result = six.run("tasks", "tests", "--samples", "2", *way)
    assert outcomes(result) == {"passed": 6, "failed": 2}, text_of(result)
    assert result.ret == 1
    assert "INTERNALERROR" not in text_of(result)
    found = rows(six)
    assert Counter(row["task"] for row in found) == {"a": 2, "b": 2, "c": 2}
    [run_id] = {row["run_id"] for row in found}
    assert [path.stem for path in six.results] == [run_id]
    assert len(core.sessions) == 6


@pytest.mark.parametrize("way", [(), ("-n", "2"), SHARDED], ids=" ".join)
def test_workers_run_without_the_terminal_plugin(six: Project, core: FakeCore, way: tuple[str, ...]) -> None:
    first = six.run_apart("tasks", "-p", "no:terminal", *way)
    [path] = six.results
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:2]))
    again = six.run_apart("tasks", "-p", "no:terminal", "--rollout-resume", str(path), "--rollout-report", "r.md", *way)
    assert (first.ret, again.ret) == (1, 1)
    assert text_of(first) == text_of(again) == ""
    assert len(rows(six)) == 3
    assert "3 rollouts: 3 tasks, 1 sample each" in (six.path / "r.md").read_text()


def test_loadgroup_does_not_change_rollout_ids(six: Project, core: FakeCore) -> None:
    hook = "item.add_marker(pytest.mark.xdist_group('one'))"
    six.write(
        "conftest.py", f"import pytest\n\ndef pytest_collection_modifyitems(items):\n    for item in items: {hook}\n"
    )
    result = six.run("tasks", "-n", "2", "--dist", "loadgroup")
    assert outcomes(result) == {"passed": 2, "failed": 1}, text_of(result)
    assert {row["task"] for row in rows(six)} == {"a", "b", "c"}
    assert len(core.sessions) == 3


@pytest.mark.parametrize("dist", ["loadscope", "worksteal", "each"])
def test_the_option_concurrency_can_not_be_combined_with_dist(six: Project, core: FakeCore, dist: str) -> None:
    message = usage_error(six.run_apart("tasks", *SHARDED, "--dist", dist))
    assert "--dist" in message
    assert not core.sessions


def test_the_option_dist_each_is_a_usage_error(six: Project, core: FakeCore) -> None:
    message = usage_error(six.run_apart("tasks", "-n", "2", "--dist", "each"))
    assert "--dist each" in message
    assert not core.sessions
    assert outcomes(six.run("tests", "-n", "2", "--dist", "each")) == {"passed": 4}


def test_items_are_the_same_with_and_without_workers(six: Project) -> None:
    args = ("tasks", "--samples", "2", "--collect-only", "-q")
    assert node_ids(six.run(*args)) == node_ids(six.run(*args, "-n", "2"))


@pytest.mark.parametrize("workers", [("-n", "2"), SHARDED], ids=len)
def test_a_run_whose_workers_collect_different_items_fails(
    six: Project, core: FakeCore, workers: tuple[str, ...]
) -> None:
    odd = "def pytest_collection_modifyitems(items):\n    if os.environ.get('PYTEST_XDIST_WORKER') == 'gw1': "
    six.write("conftest.py", f"import os\n\n{odd}items.pop()\n")
    result = six.run_apart("tasks", *workers)
    assert result.ret != 0
    text = text_of(result)
    assert "different" in text.lower(), text
    assert "INTERNALERROR" not in text
    assert not core.sessions


def test_the_option_concurrency_applies_to_each_worker(project: Project, core: FakeCore) -> None:
    project.task("a")
    core.script = lambda body: Script(answer=RIGHT, turn_seconds=1.0)
    project.run("tasks", "--samples", "16", "-n", "2", "--rollout-concurrency", "4")
    times = [{what: at for at, what in session.history} for session in core.sessions.values()]
    most = max(sum(one["created"] <= other["created"] < one["completed"] for one in times) for other in times)
    assert 5 <= most <= 8


ALONE = """
import os, socket, time
from pathlib import Path
import pytest

HERE = Path(__file__).parent

@pytest.mark.parametrize("number", range(4))
def test_hostile(number, monkeypatch):
    with monkeypatch.context() as patch:
        for module, name in ((os, "open"), (os, "write"), (socket, "socket"), (time, "monotonic")):
            patch.setattr(module, name, None)
        end = time.perf_counter() + 0.3
        while time.perf_counter() < end:
            pass
    (HERE / f"over-{number}").touch()
"""


@pytest.mark.parametrize("order", [("tests", "tasks"), ("tasks", "tests")], ids=" ".join)
@pytest.mark.parametrize("way", [(), ("-n", "1", "--rollout-concurrency", "4")], ids=len)
def test_other_tests_run_without_rollouts_in_flight(
    project: Project, core: FakeCore, way: tuple[str, ...], order: tuple[str, str]
) -> None:
    """They may do to it what they like: no rollout is in flight until the last of them is over."""
    project.task("a")
    project.write("tests/test_hostile.py", ALONE)
    over: list[int] = []

    def script(body: dict[str, Any]) -> Script:
        over.append(len(list((project.path / "tests").glob("over-*"))))
        return Script(answer=RIGHT)

    core.script = script
    result = project.run_apart(*order, "--samples", "6", *way)
    assert outcomes(result) == {"passed": 10}, text_of(result)
    assert over == [4] * 6
    assert len(rows(project)) == 6


def test_workers_that_are_given_by_tx_all_get_rollouts(project: Project, core: FakeCore) -> None:
    project.task("a")
    project.write("conftest.py", WHERE)
    args = ("--tx", "3*popen", "-d", "--rollout-concurrency", "2")
    result = project.run_apart("tasks", "--samples", "6", *args)
    assert outcomes(result) == {"passed": 6}, text_of(result)
    assert Counter((project.path / "where").read_text().split()) == {"gw0": 2, "gw1": 2, "gw2": 2}


WHERE = """
import os
from pathlib import Path

def pytest_runtest_logstart():
    if "PYTEST_XDIST_WORKER" in os.environ:
        with Path(__file__).with_name("where").open("a") as file:
            file.write(os.environ["PYTEST_XDIST_WORKER"] + " ")
"""


ODD: dict[str, bytes | None] = {
    "surrogate": b'{"x": "\\ud835"}',
    "bytes": b'{"x": "\xff\xfe"}',
    "control": json.dumps({"x": "\x1b[31mred\x00\r\n\u2028\u202e"}).encode(),
    "huge": b'{"x": 1e999}',
    "big": json.dumps({"x": ["ab\ud800"] * 20_000}).encode(),
    "long": b'{"x": ' + b"9" * 999 + b"}",
    "deep": b'{"x": ' + b"[" * 5000 + b"]" * 5000 + b"}",
    "none": None,
}
ODD_ITEM: dict[str, Any] = {"type": "message", "text": "a\ud835b\x00", "n": 10**40, "list": [None, True, 1e300]}
TIMES = ("session_id", "duration_s", "started_at", "timings", "request_ids", "run_id", "rollout_id", "group_id")


def same(row: dict[str, Any]) -> dict[str, Any]:
    """What must not depend on who ran the rollout."""
    kept = {key: value for key, value in row.items() if key not in TIMES}
    kept["items"] = [{key: value for key, value in item.items() if key in ODD_ITEM} for item in row["items"] or ()]
    return kept


def test_unusual_answers_give_the_same_rows_in_a_worker(project: Project, core: FakeCore) -> None:
    for name in (*ODD, "right", "broken"):
        project.task(name)

    def script(body: dict[str, Any]) -> Script:
        task = body["metadata"]["task"]
        usage = {"input_tokens": 10**30, "output_tokens": 2, "total_tokens": 10**30}
        if task == "broken":
            return Script(turn_status="failed", error={"code": "x", "message": "\ud835 \x07"}, items=[ODD_ITEM])
        return Script(answer=ODD.get(task, RIGHT), items=[ODD_ITEM], usage=usage)

    core.script = script
    found = []
    for workers in ((), ("-n", "2"), SHARDED):
        before = len(project.records)
        result = project.run_apart("tasks", "--rollout-retries", "0", "--junitxml", "j.xml", *workers)
        assert outcomes(result) == {"passed": 1, "failed": len(ODD), "errors": 1}, text_of(result)
        assert result.ret == 1
        assert "INTERNALERROR" not in text_of(result)
        new = project.records[before:]
        found.append(sorted((same(row) for row in new), key=lambda row: str(row["task"])))
    assert found[0] == found[1] == found[2]
    assert len(found[0]) == len(ODD) + 2


def test_reports_only_contain_plain_types(project: Project, core: FakeCore) -> None:
    project.task("a")
    core.script = lambda body: Script(answer=RIGHT, usage={"total_tokens": 12})
    hook = "def pytest_runtest_logreport(report):\n    print('PROPS', report.user_properties)\n"
    project.write("conftest.py", hook)
    result = project.run("tasks", "-s")
    shown = [line for line in result.outlines if "PROPS" in line]
    assert shown
    assert "('reward', 1.0)" in shown[-1]
    assert "('status', 'completed')" in shown[-1]
    assert "('tokens', 12)" in shown[-1]


@pytest.mark.slow
def test_large_rows_of_many_workers_are_not_mixed(project: Project, core: FakeCore) -> None:
    project.task("a", yaml="samples: 60")
    item = {"type": "message", "text": "é" * 50_000}
    core.script = lambda body: Script(answer=RIGHT, items=[item])
    result = project.run_apart("tasks", "-n", "6", "--rollout-concurrency", "3")
    assert outcomes(result) == {"passed": 60}, text_of(result)
    lines = project.results[0].read_bytes().split(b"\n")
    assert lines.pop() == b""
    assert len(lines) == 60
    assert all(len(line) > 300_000 for line in lines)
    assert len({json.loads(line)["rollout_id"] for line in lines}) == 60
