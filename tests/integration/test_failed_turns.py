"""--rollout-failed-turns: what a Turn counts as whose Core does not say why it failed."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

from pytest_core_rollouts.engine.engine import Engine
from tests.integration.conftest import RIGHT, Project, text_of, usage_error
from tests.integration.test_html_report import index
from tests.support.fake_core import FakeCore, Script
from tests.support.rollouts import TASK

UNNAMED = ["internal_error", "a_code_of_next_year"]
WARNING = "warning: failed Turns: task broken 8 of 8, the other tasks 0 of 8 (p = 0.0"


def failing(code: str) -> Script:
    return Script(turn_status="failed", error={"code": code, "message": "It broke."})


def outcome(row: dict[str, Any]) -> tuple[Any, ...]:
    return row["status"], row["reward"], row["attempt"], row["settings"].get("failed_turns")


@pytest.mark.parametrize("code", UNNAMED)
@pytest.mark.parametrize(
    ("option", "expected", "counted"),
    [
        ([], ("failed", None, 2, None), "missing"),
        (["--rollout-failed-turns", "missing"], ("failed", None, 2, None), "missing"),
        (["--rollout-failed-turns", "zero"], ("failed", 0.0, 1, "zero"), "reward 0"),
    ],
)
def test_a_turn_that_failed_without_a_reason_counts_as_the_option_says(
    project: Project, core: FakeCore, code: str, option: list[str], expected: tuple[Any, ...], counted: str
) -> None:
    project.task()
    core.script = lambda body: failing(code)
    project.run("tasks", *option)
    [row] = project.records
    assert outcome(row) == expected
    note = f"the Core does not say why the Turn failed; counted as {counted} (--rollout-failed-turns)"
    assert row["notes"][-1] == note


@pytest.mark.parametrize("code", ["sandbox_error", "rate_limit_exceeded", "server_error"])
def test_a_turn_that_failed_for_a_named_infrastructure_reason_is_missing(
    project: Project, core: FakeCore, code: str
) -> None:
    project.task()
    core.script = lambda body: failing(code)
    project.ini("rollout_failed_turns = zero")
    project.run("tasks", "--rollout-retries", "0")
    [row] = project.records
    assert outcome(row) == ("failed", None, 1, "zero")
    assert row["notes"] == []


def test_an_unknown_value_is_a_usage_error(project: Project) -> None:
    project.task()
    error = usage_error(project.run("tasks", "--rollout-failed-turns", "0"))
    assert "--rollout-failed-turns" in error
    with pytest.raises(ValueError, match="failed_turns: expected 'missing' or 'zero', got '0'"):
        Engine("http://127.0.0.1:9/v1", "key", failed_turns="0")  # type: ignore[arg-type]


def test_the_engine_has_the_same_option(core: FakeCore) -> None:
    core.script = lambda body: failing("internal_error")
    with Engine(core.base_url, core.api_key, failed_turns="zero") as engine:
        [group] = engine.submit([TASK], samples=2).groups()
    assert group.rewards == (0.0, 0.0)


@pytest.mark.parametrize("setting", ["missing", "zero"])
def test_every_report_warns_if_failures_concentrate_on_tasks(project: Project, core: FakeCore, setting: str) -> None:
    project.task("broken")
    project.task("whole")

    def script(body: dict[str, Any]) -> Script:
        return failing("internal_error") if "Do broken." in str(body) else Script(answer=RIGHT)

    core.script = script
    options = ["--samples", "8", "--rollout-retries", "0", "--rollout-failed-turns", setting]
    result = project.run("tasks", *options, "--rollout-report", "r.md", "--rollout-html", "r.html")
    joined = " ".join(text_of(result).split())
    assert WARNING in joined
    assert WARNING in (project.path / "r.md").read_text()
    [warning] = index(project.path / "r.html")["warnings"]
    assert f"warning: {warning}".startswith(WARNING)
    command = [sys.executable, "-m", "pytest_core_rollouts", "report", str(project.results[0])]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert WARNING in " ".join(done.stdout.split())


def test_evenly_spread_failures_give_no_warning(project: Project, core: FakeCore) -> None:
    for name in ("one", "two"):
        project.task(name)
    core.script = lambda body: failing("internal_error") if core.counts["create"] % 2 else Script(answer=RIGHT)
    result = project.run("tasks", "--samples", "8", "--rollout-retries", "0", "--rollout-concurrency", "1")
    assert sum(row["reward"] is None for row in project.records) == 8
    assert "warning: failed Turns" not in text_of(result)
