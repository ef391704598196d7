"""What is skipped starts nothing; what is expected to fail hides no fault and turns nothing red."""

from __future__ import annotations

import pytest

from tests.integration.conftest import RIGHT, WRONG, Project, outcomes, text_of
from tests.support.fake_core import FakeCore, Fault, Script

HOOK = """
import pytest

def pytest_collection_modifyitems(items):
    for item in items:
        if "a/" in item.nodeid:
            item.add_marker({mark})
"""


def tasks_that_ran(core: FakeCore) -> list[str]:
    return sorted(session.metadata["task"] for session in core.sessions.values())


@pytest.mark.parametrize("workers", [(), ("-n", "2")], ids=["one-process", "workers"])
def test_skip_in_task_yaml_starts_no_rollout(project: Project, core: FakeCore, workers: tuple[str, ...]) -> None:
    project.task("a", yaml="skip: needs a GPU")
    project.task("b")
    result = project.run("tasks", "-rs", *workers)
    assert outcomes(result) == {"passed": 1, "skipped": 1}
    assert "needs a GPU" in text_of(result)
    assert tasks_that_ran(core) == ["b"]


@pytest.mark.parametrize("mark", ["pytest.mark.skip('not now')", "pytest.mark.skipif('True', reason='not now')"])
def test_a_skip_marker_of_a_hook_starts_no_rollout(project: Project, core: FakeCore, mark: str) -> None:
    project.task("a")
    project.task("b")
    project.write("conftest.py", HOOK.format(mark=mark))
    assert outcomes(project.run("tasks")) == {"passed": 1, "skipped": 1}
    assert tasks_that_ran(core) == ["b"]


def test_a_false_skip_condition_skips_nothing(project: Project, core: FakeCore) -> None:
    project.task("a")
    project.write("conftest.py", HOOK.format(mark="pytest.mark.skipif('False', reason='never')"))
    assert outcomes(project.run("tasks")) == {"passed": 1}


@pytest.mark.usefixtures("no_core")
def test_no_core_is_needed_if_every_rollout_is_skipped(project: Project) -> None:
    project.task("a", yaml="skip: later")
    result = project.run("tasks")
    assert outcomes(result) == {"skipped": 1}
    assert result.ret == 0


def test_a_task_without_a_solution_is_skipped_under_oracle(project: Project) -> None:
    project.task("a")
    result = project.run("--core", "embedded", "-rs")
    assert outcomes(result) == {"skipped": 1}
    result.stdout.fnmatch_lines(["SKIPPED*task a has no solution/solve.sh for oracle to run"])
    assert project.records == []


def test_xfail_with_run_false_starts_no_rollout(project: Project, core: FakeCore) -> None:
    project.task("a")
    project.write("conftest.py", HOOK.format(mark="pytest.mark.xfail(run=False, reason='hangs')"))
    assert outcomes(project.run("tasks")) == {"xfailed": 1}
    assert not core.sessions


XFAILS = ["pytest.mark.xfail", "pytest.mark.xfail(strict=True, reason='hard')", "pytest.mark.xfail(raises=ValueError)"]


@pytest.mark.parametrize(
    ("mark", "workers"), [*((mark, ()) for mark in (None, *XFAILS)), (None, ("-n", "2")), (XFAILS[1], ("-n", "2"))]
)
def test_xfail_covers_wrong_answers_and_no_errors(
    project: Project, core: FakeCore, mark: str | None, workers: tuple[str, ...]
) -> None:
    """One sample is right, one wrong, and one can't be run."""
    project.ini("xfail_strict = true")
    project.task("a", yaml="xfail: too hard yet\nsamples: 3" if mark is None else "samples: 3")
    if mark is not None:
        project.write("conftest.py", HOOK.format(mark=mark))
    answers = {"0": RIGHT, "1": WRONG}
    core.script = lambda body: (
        Script(answer=answers[body["metadata"]["sample"]])
        if body["metadata"]["sample"] in answers
        else Script(turn_status="failed", error={"code": "internal_error", "message": "It broke."})
    )
    result = project.run("tasks", "--rollout-retries", "0", *workers)
    assert outcomes(result) == {"xpassed": 1, "xfailed": 1, "errors": 1}, text_of(result)
    assert result.ret == 1
    assert sorted((record["sample"], record["reward"]) for record in project.records) == [(0, 1.0), (1, 0.0), (2, None)]


def test_a_run_with_only_xfails_passes(project: Project, core: FakeCore) -> None:
    project.ini("xfail_strict = true")
    project.task("a", yaml="xfail: too hard yet\nsamples: 2")
    core.script = lambda body: Script(answer=RIGHT if body["metadata"]["sample"] == "0" else WRONG)
    for gate in ("each", "none"):
        result = project.run("tasks", "--rollout-gate", gate)
        assert outcomes(result) == {"xpassed": 1, "xfailed": 1}
        assert result.ret == 0


def test_an_xfail_added_during_the_run_hides_no_error(project: Project, core: FakeCore) -> None:
    project.task("a", yaml="samples: 2")
    project.write(
        "conftest.py",
        """
import pytest

@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item):
    item.add_marker(pytest.mark.xfail)
""",
    )
    no = Fault(status=413, body=b'{"error": {"message": "no"}}')
    core.fault = lambda request: no if request.route == "create" and request.nth == 1 else None
    core.script = lambda body: Script(answer=WRONG)
    result = project.run("tasks", "--rollout-concurrency", "1", "--rollout-retries", "0")
    assert outcomes(result) == {"xfailed": 1, "errors": 1}, text_of(result)
