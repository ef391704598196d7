"""Rollouts are reported as they finish; everything else about a run is as pytest's users know it."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from collections import Counter

import pytest

from tests.integration.conftest import RIGHT, WRONG, Project, node_ids, outcomes, text_of, usage_error
from tests.support.fake_core import FakeCore, Script

TURNS = {"a": 1.5, "b": 0.1, "c": 0.8}


@pytest.fixture
def paced(project: Project, core: FakeCore) -> Project:
    """Tasks a, b and c; b is done first, then c, then a."""
    for name in TURNS:
        project.task(name)
    core.script = lambda body: Script(turn_seconds=TURNS[body["metadata"]["task"]], answer=RIGHT)
    return project


def reported(result: pytest.RunResult) -> list[str]:
    """What -v lists, in its order: the last folder of each file and the test."""
    lines = [line for line in result.outlines if re.search(r"::\S+ (PASSED|FAILED|ERROR|SKIPPED)", line)]
    return [line.split()[0].replace("/instruction.md::default-default", "").rpartition("/")[2] for line in lines]


def wrong_for(core: FakeCore, *tasks: str, seconds: float = 0.0) -> None:
    """The agent errs at these; the others take so many seconds."""

    def script(body: dict[str, object]) -> Script:
        task = body["metadata"]["task"]  # type: ignore[index]
        return Script(answer=WRONG) if task in tasks else Script(answer=RIGHT, turn_seconds=seconds)

    core.script = script


def test_reports_come_in_completion_order(paced: Project) -> None:
    result = paced.run("tasks", "-v")
    assert reported(result) == ["b-0", "c-0", "a-0"]
    assert [row["task"] for row in paced.records] == ["b", "c", "a"]


def test_the_option_concurrency_limits_the_rollouts_in_flight(project: Project, core: FakeCore) -> None:
    project.task("a")
    core.script = lambda body: Script(answer=RIGHT, turn_seconds=0.3)
    project.run("tasks", "--samples", "9", "--rollout-concurrency", "3")
    spans = []
    for session in core.sessions.values():
        times = {what: at for at, what in session.history}
        spans.append((times["created"], times["completed"]))
    most = max(sum(begin <= at < end for begin, end in spans) for at, _ in spans)
    assert most == 3


UNIT = """
import pytest
from conftest import note

@pytest.fixture(scope="session")
def per_session():
    note("session up")
    yield
    note("session down")

@pytest.fixture(scope="package", autouse=True)
def per_package(per_session):
    note("package up")
    yield
    note("package down")

@pytest.fixture(scope="module", autouse=True)
def per_module(request):
    name = request.module.__name__.rpartition(".")[2]
    note(name + " up")
    yield
    note(name + " down")
"""
ROOT = """
from pathlib import Path

def note(text):
    with open(Path(__file__).with_name("log"), "a") as log:
        log.write(text + "\\n")

def pytest_runtest_logreport(report):
    if "instruction.md" in report.nodeid and report.when == "call":
        note("rollout")
"""


def test_other_tests_keep_their_order_and_fixtures_end_when_they_should(paced: Project) -> None:
    paced.write("conftest.py", ROOT)
    paced.write("tests/unit/__init__.py")
    paced.write("tests/unit/conftest.py", UNIT)
    module = "from conftest import note\n" + "".join(f"def test_{n}(): note('test {n}')\n" for n in (1, 2))
    paced.write("tests/unit/test_m.py", module)
    paced.write("tests/unit/test_n.py", module)
    result = paced.run("tasks", "tests")
    assert outcomes(result) == {"passed": 7}, text_of(result)
    assert (paced.path / "log").read_text().splitlines() == [
        "session up",
        "package up",
        *("test_m up", "test 1", "test 2", "test_m down"),
        *("test_n up", "test 1", "test 2", "test_n down"),
        "package down",
        *("rollout", "rollout", "rollout"),
        "session down",
    ]


ONE_EACH = ("-n", "2", "--rollout-concurrency", "2")


@pytest.mark.parametrize(
    ("limit", "failed", "workers"),
    [
        ("-x", 1, ()),
        pytest.param("--maxfail=2", 2, ("-n", "2"), marks=pytest.mark.slow),
        pytest.param("-x", 1, ONE_EACH, marks=pytest.mark.slow),
        pytest.param("--maxfail=2", 2, (), marks=pytest.mark.slow),
        pytest.param("-x", 1, ("-n", "2"), marks=pytest.mark.slow),
        pytest.param("--maxfail=2", 2, ONE_EACH, marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_maxfail_stops_the_rollouts_in_flight(
    project: Project, core: FakeCore, limit: str, failed: int, workers: tuple[str, ...]
) -> None:
    for name in "abcdef":
        project.task(name)
    wrong_for(core, "a", "b", seconds=3600)
    result = project.run_apart("tasks", "-v", limit, *workers)
    assert outcomes(result)["failed"] >= failed, text_of(result)  # two workers may fail at the same moment
    assert workers or outcomes(result)["failed"] == failed, text_of(result)
    assert not outcomes(result).keys() & {"errors", "passed"}, text_of(result)
    assert result.ret == (2 if workers else 1)
    finished = {row["task"] for row in project.records if row["status"] == "completed"}
    assert finished <= {"a", "b"}
    assert len(finished) >= failed
    named = {name for name in "abcdef" for line in result.outlines if line.startswith(f"not run: {name} ")}
    assert sorted([*named, *finished]) == list("abcdef"), text_of(result)
    assert all(session.deleted for session in core.sessions.values())


@pytest.mark.slow
def test_lf_ff_and_nf_select_and_order_rollouts(project: Project, core: FakeCore) -> None:
    for name in "abc":
        project.task(name)
    wrong_for(core, "c")
    project.run("tasks")
    project.task("new")
    order = ("--rollout-concurrency", "1", "-v")
    assert reported(project.run("tasks", "--lf", *order)) == ["c-0"]
    assert reported(project.run("tasks", "--ff", *order)) == ["c-0", "a-0", "b-0", "new-0"]
    project.task("newest")
    assert reported(project.run("tasks", "--nf", *order))[0] == "newest-0"


def test_lf_runs_rollouts_with_errors_again(project: Project, core: FakeCore) -> None:
    project.task("a")
    project.task("b")
    core.script = lambda body: Script(
        answer=RIGHT, turn_status="failed" if body["metadata"]["task"] == "b" else "completed"
    )
    project.run("tasks", "--rollout-retries", "0")
    assert reported(project.run("tasks", "--lf", "-v", "--rollout-retries", "0")) == ["b-0"]


@pytest.mark.parametrize("workers", [(), ("-n", "2")], ids=["one-process", "workers"])
def test_the_reported_duration_is_that_of_the_rollout(paced: Project, workers: tuple[str, ...]) -> None:
    options = ("--durations=0", "-vv", "--junitxml=j.xml", "-o", "junit_duration_report=call")
    result = paced.run("tasks", *options, *workers)
    rows = {row["task"]: row["duration_s"] for row in paced.records}
    shown = {}
    for line in result.outlines:
        if match := re.match(r"(\d+\.\d\d)s call +tasks/(\w)/", line):
            shown[match[2]] = float(match[1])
    rounded = {task: pytest.approx(seconds, abs=0.011) for task, seconds in rows.items()}
    assert shown == rounded
    cases = ElementTree.parse(paced.path / "j.xml").findall(".//testcase")
    assert {str(case.get("classname")).split(".")[1]: float(case.get("time") or -1) for case in cases} == rounded


@pytest.mark.parametrize(
    ("how", "workers"),
    [
        pytest.param("fd", ("-n", "1"), marks=pytest.mark.slow),
        ("sys", ()),
        *(pytest.param(how, (), marks=pytest.mark.slow) for how in ("fd", "no", "tee-sys")),
        *(pytest.param(how, ("-n", "1"), marks=pytest.mark.slow) for how in ("sys", "no", "tee-sys")),
    ],
    ids=str,
)
def test_every_capture_mode_works_with_rollouts(
    project: Project, core: FakeCore, how: str, workers: tuple[str, ...]
) -> None:
    project.task("a")
    project.task("b")
    project.unit_tests()
    wrong_for(core, "b")
    result = project.run_apart("tasks", "tests", f"--capture={how}", *workers)
    assert outcomes(result) == {"passed": 3, "failed": 1}, text_of(result)
    assert result.ret == 1


REST = ("junitxml", "cacheprovider", "setuponly", "stepwise", "logging", "capture")


@pytest.mark.parametrize(
    "without",
    [("xdist",), ("terminal",), REST, *(pytest.param((name,), marks=pytest.mark.slow) for name in REST)],
    ids=" ".join,
)
def test_rollouts_run_without_each_plugin_of_pytest(project: Project, core: FakeCore, without: tuple[str, ...]) -> None:
    project.task("a")
    project.task("b")
    wrong_for(core, "b")
    result = project.run("tasks", *(f"-pno:{name}" for name in without))
    assert result.ret == 1, text_of(result)
    assert "INTERNALERROR" not in text_of(result)
    assert {row["task"]: row["reward"] for row in project.records} == {"a": 1.0, "b": 0.0}


def test_setup_show_works_with_rollouts(project: Project) -> None:
    project.task("a")
    project.unit_tests()
    result = project.run("tasks", "tests", "--setup-show")
    assert outcomes(result) == {"passed": 3}


@pytest.mark.parametrize("how", ["--sw", "--stepwise", "--sw-skip"])
@pytest.mark.parametrize(
    "workers", [(), pytest.param(("-n", "2"), marks=pytest.mark.slow)], ids=["one-process", "workers"]
)
def test_stepwise_is_refused_with_the_reason(
    project: Project, core: FakeCore, how: str, workers: tuple[str, ...]
) -> None:
    project.task("a")
    project.unit_tests()
    message = usage_error(project.run_apart("tasks", "tests", how, *workers))
    assert "--stepwise" in message
    assert "-x" in message
    assert not core.sessions


def test_the_option_forked_is_a_usage_error(project: Project, core: FakeCore) -> None:
    project.task("a")
    option = "parser.addoption('--forked', action='store_true', dest='forked')"
    project.write("conftest.py", f"def pytest_addoption(parser): {option}\n")
    assert usage_error(project.run("tasks", "--forked")).startswith("--forked ")
    assert not core.requests


def test_stepwise_works_without_rollouts(project: Project) -> None:
    project.task("a")
    project.unit_tests()
    assert outcomes(project.run("tests", "--sw")) == {"passed": 2}
    result = project.run("tasks", "tests", "--sw", "-k", "test_one")
    assert outcomes(result) == {"passed": 1, "deselected": 2}


SKIPS = (
    "item.add_marker(pytest.mark.skip(reason='no'))",
    "item.add_marker(pytest.mark.skipif(True, reason='no'))",
    "item.add_marker(pytest.mark.skipif('1 > 0', reason='no'))",
)
HOOK = """
import pytest

def pytest_collection_modifyitems(items):
    for item in items:
"""


@pytest.mark.parametrize("workers", [(), ("-n", "2"), pytest.param(ONE_EACH, marks=pytest.mark.slow)], ids=len)
def test_skipped_rollouts_are_not_started(project: Project, core: FakeCore, workers: tuple[str, ...]) -> None:
    project.task("b")
    hook = HOOK
    for number, marking in enumerate(SKIPS):
        project.task(f"skipped-{number}")
        hook += f"        if 'tasks/skipped-{number}/' in item.nodeid:\n            {marking}\n"
    project.write("conftest.py", hook)
    result = project.run("tasks", *workers)
    assert outcomes(result) == {"passed": 1, "skipped": len(SKIPS)}, text_of(result)
    assert result.ret == 0
    assert [session.metadata["task"] for session in core.sessions.values()] == ["b"]


def test_a_skip_by_a_setup_hook_is_reported_and_counts_as_not_run(project: Project, core: FakeCore) -> None:
    project.task("a")
    hook = "@pytest.hookimpl(tryfirst=True)\ndef pytest_runtest_setup(item):\n    pytest.skip('not today')\n"
    project.write("conftest.py", "import pytest\n\n" + hook)
    result = project.run("tasks")
    assert outcomes(result) == {"skipped": 1}, text_of(result)
    assert "INTERNALERROR" not in text_of(result)


def test_deselected_rollouts_are_not_started(paced: Project, core: FakeCore) -> None:
    result = paced.run("tasks", "-m", "rollout(task='b') or rollout(task='c')")
    assert outcomes(result) == {"passed": 2, "deselected": 1}
    assert {session.metadata["task"] for session in core.sessions.values()} == {"b", "c"}
    assert len(node_ids(paced.run("tasks", "--collect-only", "-q"))) == 3


@pytest.mark.parametrize(
    ("stream", "most"), [("live", 8), pytest.param("silent", 8 + 2, marks=pytest.mark.slow)], ids=["live", "silent"]
)
def test_each_rollout_needs_few_requests(project: Project, core: FakeCore, stream: str, most: int) -> None:
    project.task("a")
    core.script = lambda body: Script(answer=RIGHT, turn_seconds=3.0 if stream == "live" else 20.0, stream=stream)
    assert outcomes(project.run("tasks", "--samples", "4")) == {"passed": 4}
    each = Counter(request.path.split("/")[4] for request in core.requests if request.path.count("/") > 3)
    assert sorted(each) == sorted(core.sessions)
    assert max(each.values()) + 1 <= most  # and its creation
    assert core.counts["sessions"] == 2  # whether the Core is there, and what is left on it


@pytest.mark.slow
def test_two_hundred_rollouts_run_with_fifty_in_flight(project: Project, core: FakeCore) -> None:
    for name in "abcd":
        project.task(name)
    wrong_for(core, "d")
    result = project.run("tasks", "--samples", "50", "--rollout-concurrency", "50")
    assert outcomes(result) == {"passed": 150, "failed": 50}
    assert len({row["rollout_id"] for row in project.records}) == 200
    assert not core.problems


@pytest.mark.slow
@pytest.mark.parametrize(("limits", "fewer"), [("-Sn 150", False), ("-Sn 150; ulimit -Hn 150", True)])
def test_a_low_limit_of_open_files_loses_no_rollout(project: Project, core: FakeCore, limits: str, fewer: bool) -> None:
    """The soft limit is raised; under a low hard one fewer rollouts are in flight, and a line says so."""
    project.task("a")
    core.script = lambda body: Script(turn_seconds=0.3, answer=RIGHT)
    options = "tasks --samples 100 --rollout-concurrency 100"
    command = f"ulimit {limits}; exec {shlex.quote(sys.executable)} -m pytest {options}"
    done = subprocess.run(["bash", "-c", command], cwd=project.path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert len(project.records) == 100
    line = "in flight: at most 5 rollouts instead of 100, because this process can't have enough open files; "
    assert (line in done.stdout) == fewer
