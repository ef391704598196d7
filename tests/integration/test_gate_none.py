"""`--rollout-gate none` collects: rewards turn nothing red, what broke still does."""

from __future__ import annotations

import pytest

from tests.integration.conftest import RIGHT, WRONG, Project, outcomes, text_of
from tests.support.fake_core import FakeCore, Script

BROKEN = Script(turn_status="failed", error={"code": "internal_error", "message": "It broke."})


@pytest.mark.parametrize(
    "workers", [(), pytest.param(("-n", "2"), marks=pytest.mark.slow)], ids=["one-process", "workers"]
)
def test_wrong_answers_do_not_fail_the_run(project: Project, core: FakeCore, workers: tuple[str, ...]) -> None:
    project.unit_tests()
    project.task()
    core.script = lambda body: Script(answer=RIGHT if body["metadata"]["sample"] == "0" else WRONG)
    result = project.run("tasks", "tests", "--samples", "3", "--rollout-gate", "none", *workers)
    assert outcomes(result) == {"solved": 1, "unsolved": 2, "passed": 2}, text_of(result)
    assert result.ret == 0
    assert "gate none: passed: 3 of 3 rollouts graded" in text_of(result)
    assert [record["reward"] for record in sorted(project.records, key=lambda row: str(row["sample"]))] == [
        1.0,
        0.0,
        0.0,
    ]


def test_an_infrastructure_error_fails_the_run(project: Project, core: FakeCore) -> None:
    project.task()
    core.script = lambda body: Script(answer=WRONG) if body["metadata"]["sample"] == "0" else BROKEN
    result = project.run("tasks", "--samples", "2", "--rollout-gate", "none", "--rollout-retries", "0")
    assert outcomes(result) == {"unsolved": 1, "errors": 1}
    assert result.ret == 1


def test_other_tests_fail_the_run(project: Project) -> None:
    project.task()
    project.write("tests/test_red.py", "def test_red(): assert False")
    result = project.run("tasks", "tests", "--rollout-gate", "none")
    assert outcomes(result) == {"solved": 1, "failed": 1}
    assert result.ret == 1


def test_a_wrong_answer_fails_the_run_with_the_gate_each(project: Project, core: FakeCore) -> None:
    project.task()
    core.script = lambda body: Script(answer=WRONG)
    result = project.run("tasks", "--rollout-gate", "each")
    assert outcomes(result) == {"failed": 1}
    assert result.ret == 1
