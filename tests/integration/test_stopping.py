"""What a run that was stopped, or could not go on, says about itself."""

from __future__ import annotations

import re
import signal

import pytest

from tests.integration.conftest import RIGHT, WRONG, Project, outcomes, text_of
from tests.support.fake_core import FakeCore, Fault, Request, Script
from tests.support.running import Running, rows, statuses, until

pytestmark = pytest.mark.slow

SHARDED = ("-n", "2", "--rollout-concurrency", "4")


@pytest.mark.parametrize("way", [(), SHARDED], ids=["one-process", "sharded"])
@pytest.mark.parametrize("gate", [(), ("--rollout-gate", "none"), ("--rollout-gate", "mean>=0.5")], ids=" ".join)
def test_an_interrupted_run_exits_with_2(
    project: Project, core: FakeCore, gate: tuple[str, ...], way: tuple[str, ...]
) -> None:
    project.task("a", yaml="samples: 8")
    core.script = lambda body: Script(answer=RIGHT, turn_seconds=0.0 if len(core.sessions) < 3 else 3600.0)
    with Running(project, "tasks", *gate, *way) as pytest_:
        until(lambda: len(rows(project)) == 3 and len(core.sessions) >= 7, "three rows")
        pytest_.signal(signal.SIGINT, group=True)
        ended = pytest_.end()
    assert ended.code == 2, ended.text
    assert statuses(project)["completed"] == 3
    assert re.search(r"\| default +\| +3/3 \|", ended.text), ended.text
    assert "to finish: pytest tasks" in ended.text
    if gate[-1:] == ("mean>=0.5",):
        verdict = next(line for line in ended.text.splitlines() if "mean>=0.5" in line and "pytest" not in line)
        assert "undecided" in verdict


@pytest.mark.slow
def test_a_turn_that_never_ends_does_not_delay_other_rollouts(project: Project) -> None:
    project.task("a", yaml="samples: 2")
    project.task("b")

    def script(body: dict[str, dict[str, str]]) -> Script:
        stuck = body["metadata"]["task"] == "a"
        return Script(never_ends=True, ignore_cancel=True) if stuck else Script(answer=RIGHT)

    with FakeCore(script=script) as core:
        env = {"OPENAI_BASE_URL": core.base_url}
        args = ("tasks", "--rollout-timeout", "1", "--rollout-concurrency", "2")
        with Running(project, *args, env=env) as pytest_:
            ended = pytest_.end()
        left = [session.id for session in core.sessions.values() if not session.deleted]
    assert {(row["task"], row["status"]) for row in rows(project)} == {("a", "timeout"), ("b", "completed")}
    assert len(left) == 2
    assert all(one in ended.text for one in left), ended.text
    assert "2 failed, 1 passed" in ended.text


def test_a_core_that_never_answers_does_not_delay_the_end(project: Project) -> None:
    """It makes the Session, and then accepts connections without a word: the limit holds, and no thread stays."""
    project.task("a")

    def mute(request: Request) -> Fault | None:
        return Fault(hang=True) if request.route in ("session", "turns", "events") else None

    with FakeCore(script=lambda body: Script(never_ends=True), fault=mute) as core:
        args = ("tasks", "--rollout-timeout", "1", "--rollout-retries", "0")
        with Running(project, *args, env={"OPENAI_BASE_URL": core.base_url}) as pytest_:
            ended = pytest_.end()
    [row] = rows(project)
    assert ended.code == 1, ended.text
    assert (row["status"], row["reward"]) == ("error", None)
    assert "1 error" in ended.text


@pytest.mark.parametrize("way", [(), ("-n", "2"), SHARDED], ids=["one-process", "workers", "sharded"])
def test_an_error_that_affects_every_rollout_ends_the_run(
    project: Project, core: FakeCore, way: tuple[str, ...]
) -> None:
    project.task("a", yaml="samples: 30")
    core.script = lambda body: Script(answer=WRONG, turn_seconds=0.3)
    core.fault = lambda request: Fault(status=403) if request.route == "create" and request.nth > 6 else None
    result = project.run_apart("tasks", *way)
    text = text_of(result)
    assert result.ret == 2, text
    assert "INTERNALERROR" not in text, text
    assert "403" in text
    found = rows(project)
    named = re.findall(r"^not run: a default-default (.*)$", text, re.MULTILINE)
    assert len(found) < 30
    assert named, text
    assert outcomes(result)["failed"] <= 6


def test_pytest_exit_of_another_plugin_cancels_rollouts_and_deletes_sessions(project: Project, core: FakeCore) -> None:
    project.task("a", yaml="samples: 8")
    core.script = lambda body: Script(answer=RIGHT, turn_seconds=0.0 if len(core.sessions) < 2 else 3600.0)
    hook = "def pytest_runtest_logreport(report):\n    if report.when == 'call': pytest.exit('enough', returncode=9)\n"
    project.write("conftest.py", f"import pytest\n\n{hook}")
    result = project.run_apart("tasks")
    assert result.ret == 9, text_of(result)
    assert "enough" in text_of(result)
    assert set(statuses(project)) <= {"completed", "cancelled"}
    assert all(session.deleted for session in core.sessions.values())
