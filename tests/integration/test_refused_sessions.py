"""A Core that refuses what all rollouts ask for stops the run; one that refuses single tasks or agents does not."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial

import pytest

from tests.integration.conftest import RIGHT, Project, outcomes, text_of
from tests.support.fake_core import FakeCore, Fault, Request, Script

TASKS = 6


def refusal(code: str, message: str, param: str | None) -> Fault:
    return Fault(400, json.dumps({"error": {"code": code, "message": message, "param": param}}).encode())


REFUSALS = {
    "network": (
        refusal("unsupported_or_invalid_configuration", "not disabled here", "environment.network.access"),
        "such as --rollout-network enabled",
    ),
    "harness": (
        refusal("invalid_request_error", "unknown harness", "agent.x_agents_core.harness"),
        "choose another with --harness",
    ),
    "model": (refusal("invalid_request_error", "unknown model", "agent.model"), "choose another with --model"),
    "provider": (refusal("model_provider_required", "a model provider is required", None), "add --model and"),
}


def tasks(project: Project, number: int = TASKS) -> None:
    for name in range(number):
        project.task(f"t{name}")


def contains(part: str, body: str) -> bool:
    return part in body


def refuse(core: FakeCore, which: Callable[[str], bool], fault: Fault) -> None:
    """Refuse the Sessions for whose body `which` returns True."""

    def answer(request: Request) -> Fault | None:
        return fault if request.route == "create" and which(request.body.decode()) else None

    core.script, core.fault = (lambda body: Script(answer=RIGHT)), answer


@pytest.mark.parametrize("kind", REFUSALS)
def test_a_core_that_refuses_three_tasks_alike_stops_the_run(project: Project, core: FakeCore, kind: str) -> None:
    tasks(project)
    fault, setting = REFUSALS[kind]
    refuse(core, lambda body: True, fault)
    result = project.run("tasks", "--samples", "2", "--rollout-concurrency", "1", "-p", "no:randomly")
    text = text_of(result)
    assert result.ret == 2, text
    assert {row["task"] for row in project.records} == {"t0", "t1", "t2"}
    assert all(row["reward"] is None for row in project.records)
    [line] = [line for line in text.splitlines() if "the Core refuses every Session in the same way: " in line]
    assert setting in line
    assert "Traceback" not in text


def test_in_a_run_of_one_task_one_refusal_stops_it(project: Project, core: FakeCore) -> None:
    tasks(project, 1)
    refuse(core, lambda body: True, REFUSALS["network"][0])
    result = project.run("tasks", "--samples", "9", "--rollout-concurrency", "1")
    assert result.ret == 2, text_of(result)
    assert len(project.records) == 1


def test_a_core_that_refuses_single_tasks_or_agents_does_not_stop_the_run(project: Project, core: FakeCore) -> None:
    tasks(project)
    for which in ('"task":"t1"', '"harness":"mcode"'):  # one of six tasks, and all tasks of the first agent
        refuse(core, partial(contains, which), REFUSALS["harness"][0])
        result = project.run("tasks", "--harness", "mcode", "--harness", "codex", "--rollout-concurrency", "1")
        refused = 2 if which == '"task":"t1"' else TASKS
        assert outcomes(result) == {"errors": refused, "passed": 2 * TASKS - refused}, text_of(result)

    def another(request: Request) -> Fault | None:
        name = request.body.decode().partition('"task":"')[2][:2]
        return refusal("invalid_request_error", "no", f"environment.{name}") if request.route == "create" else None

    core.fault = another
    result = project.run("tasks", "--harness", "codex", "--rollout-concurrency", "1")
    assert outcomes(result) == {"errors": TASKS}, "each was refused for another reason"
