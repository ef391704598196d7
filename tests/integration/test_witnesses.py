"""A fault of the model's server stops the run only if a second rollout met it before its agent did anything."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pytest_core_rollouts.engine.engine import Engine
from pytest_core_rollouts.engine.runs import RunEnded
from pytest_core_rollouts.tasks.matrix import Agent
from tests.integration.conftest import Project, text_of
from tests.support.fake_core import FakeCore, Script
from tests.support.rollouts import RIGHT, TASK

REFUSED = {"code": "authentication_error", "message": "401 from the model"}
ACTED = [{"type": "command_execution", "command": "curl", "status": "completed"}]


def refusing(*, acted: bool = False, **more: float) -> Script:
    return Script(turn_status="failed", error=REFUSED, items=ACTED if acted else (), **more)  # type: ignore[arg-type]


def run_tasks(project: Project, core: FakeCore, scripts: list[Script], *options: str) -> tuple[int, list[object], str]:
    """Exit code, rewards and output of a run in which each Session follows the next script, the last one on."""
    waiting = list(scripts)
    core.script = lambda body: waiting.pop(0) if len(waiting) > 1 else waiting[0]
    result = project.run("tasks", "--rollout-concurrency", "1", *options)
    return int(result.ret), [row["reward"] for row in project.records], text_of(result)


def test_a_fault_of_one_rollout_does_not_stop_the_run(project: Project, core: FakeCore) -> None:
    for name in ("a", "b", "c"):
        project.task(name, expected={"n": 1})
    code, rewards, _ = run_tasks(project, core, [refusing(), Script(answer=RIGHT)], "--rollout-gate", "mean>=0")
    assert code == 1, "one rollout has no result"
    assert rewards == [None, 1.0, 1.0]


def test_a_fault_in_two_tasks_stops_the_run(project: Project, core: FakeCore) -> None:
    for name in ("a", "b"):
        project.task(name, expected={"n": 1})
    code, rewards, output = run_tasks(project, core, [refusing()], "--samples", "3")
    assert code == 2, output
    assert rewards == [None] * 4, "three samples of the first task, one of the second"
    assert "the Turn failed: authentication_error: 401 from the model" in output


def test_a_fault_in_two_rollouts_stops_a_run_of_one_task(project: Project, core: FakeCore) -> None:
    project.task("a", expected={"n": 1})
    code, rewards, _ = run_tasks(project, core, [refusing()], "--samples", "5")
    assert (code, rewards) == (2, [None, None])


@pytest.mark.parametrize("items", ["inline", "none"])
def test_a_fault_that_an_agent_may_have_caused_does_not_count(project: Project, core: FakeCore, items: str) -> None:
    for name in ("a", "b", "c"):
        project.task(name, expected={"n": 1})
    code, rewards, _ = run_tasks(project, core, [refusing(acted=True)], "--rollout-items", items)
    assert (code, rewards) == (1, [None] * 3)


def test_a_completed_turn_between_two_faults_lets_the_run_go_on(project: Project, core: FakeCore) -> None:
    for name in ("a", "b", "c"):
        project.task(name, expected={"n": 1})
    code, rewards, _ = run_tasks(project, core, [refusing(), Script(answer=RIGHT), refusing()])
    assert (code, rewards) == (1, [None, 1.0, None])


def test_the_engine_has_the_same_rule(core: FakeCore) -> None:
    tasks = [replace(TASK, id=name) for name in ("a", "b", "c")]
    agents = [Agent(harness="codex", name="one")]
    core.script = lambda body: refusing()
    with Engine(core.base_url, core.api_key, concurrency=1) as engine:
        run = engine.submit(tasks[:1], agents, samples=1)
        assert [record.reward for record in run.records()] == [None]
        run = engine.submit(tasks[1:], agents, samples=1)
        with pytest.raises(RunEnded, match="authentication_error"):
            list(run.records())
