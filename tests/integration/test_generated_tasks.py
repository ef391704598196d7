"""Tasks made in code: their node ids, choosing among them, workers, faults, and how many there may be."""

from __future__ import annotations

import json
import re

import pytest

from tests.integration.conftest import Project, node_ids, outcomes, text_of
from tests.support.fake_core import FakeCore, Script

HOOK = """
from pytest_core_rollouts.tasks.task import Task

def pytest_rollout_tasks(config):
    for number in range({count}):
        yield Task(id=f"sums/{{number}}", instruction=f"What is {{number}} + {{number}}?",
                   expected={{"sum": 2 * number}}, tags=("even",) if number % 2 == 0 else ())
"""


@pytest.fixture
def sums(project: Project, core: FakeCore) -> Project:
    """Six tasks; the agent gets the sixth wrong."""
    project.ini()
    project.write("conftest.py", HOOK.format(count=6))

    def script(body: dict[str, object]) -> Script:
        number = int(re.findall(r"\d+", str(body["input"]))[0])
        return Script(answer=json.dumps({"sum": 2 * number if number < 5 else 0}).encode())

    core.script = script
    return project


@pytest.mark.parametrize(
    "workers", [(), pytest.param(("-n", "2"), marks=pytest.mark.slow)], ids=["one-process", "workers"]
)
def test_options_run_tasks_made_in_code(sums: Project, workers: tuple[str, ...]) -> None:
    result = sums.run("--harness", "codex", *workers)
    assert outcomes(result) == {"passed": 5, "failed": 1}, text_of(result)
    assert sorted(row["task"] for row in sums.records) == [f"sums/{number}" for number in range(6)]
    assert "conftest.py::sums/5:codex-default-0" in text_of(result)
    again = sums.run("--harness", "codex", "--lf", *workers)
    assert outcomes(again)["failed"] == 1
    assert "passed" not in outcomes(again)


@pytest.mark.parametrize(
    "workers", [(), pytest.param(("-n", "2"), marks=pytest.mark.slow)], ids=["one-process", "workers"]
)
@pytest.mark.parametrize(
    "choice",
    [
        ("conftest.py::sums/3:default-default-0",),
        ("--rollout-task", "sums/3"),
        ("--rollout-retries", "1", "-k", "sums/3"),
        ("conftest.py", "-k", "sums/3:default"),
        ("conftest.py", "-m", "rollout(task='sums/3')"),
    ],
    ids=["node id", "option", "-k", "-k with agent", "-m"],
)
def test_one_task_made_in_code_can_be_selected(
    sums: Project, choice: tuple[str, ...], workers: tuple[str, ...]
) -> None:
    result = sums.run(*choice, *workers)
    assert result.ret == 0, text_of(result)
    assert [row["task"] for row in sums.records] == ["sums/3"]


def test_tasks_made_in_code_are_collected_along_with_task_folders(sums: Project, core: FakeCore) -> None:
    sums.task("folder", expected={"sum": 0})
    sums.write("tasks/gen/conftest.py", HOOK.format(count=1).replace("sums/", "more/"))
    result = sums.run("--collect-only", "-q", "--harness", "codex")
    assert sorted(node_ids(result)) == sorted(
        [f"conftest.py::sums/{number}:codex-default-0" for number in range(6)]
        + ["tasks/folder/instruction.md::codex-default-0", "tasks/gen/conftest.py::more/0:codex-default-0"]
    )
    assert not core.requests


@pytest.mark.parametrize(
    "workers", [(), pytest.param(("-n", "2"), marks=pytest.mark.slow)], ids=["one-process", "workers"]
)
def test_a_conftest_in_a_subfolder_can_make_tasks(project: Project, core: FakeCore, workers: tuple[str, ...]) -> None:
    core.script = lambda body: Script(answer=b'{"sum": 0}')
    project.write("tasks/gen/conftest.py", HOOK.format(count=2))
    result = project.run("--harness", "codex", *workers)
    assert outcomes(result) == {"passed": 1, "failed": 1}, text_of(result)
    named = project.run("tasks/gen/conftest.py::sums/0:codex-default-0", "--harness", "codex", *workers)
    assert outcomes(named) == {"passed": 1}, text_of(named)


def test_tasks_made_in_code_do_not_run_unless_requested(sums: Project, core: FakeCore) -> None:
    sums.unit_tests()
    result = sums.run()
    assert outcomes(result) == {"passed": 2}
    assert "rollouts: tasks made in code in conftest.py, not requested; to run: pytest conftest.py" in text_of(result)
    assert not core.requests


@pytest.mark.parametrize(
    ("hook", "problem"),
    [
        ("yield Task(id='a b', instruction='x', expected={'n': 1})", "invalid task id 'a b'; use"),
        ("yield Task(id='a:b', instruction='x', expected={'n': 1})", "invalid task id 'a:b'"),
        ("yield Task(id='a/../b/', instruction='x', expected={'n': 1})", "invalid task id 'a/../b/'"),
        ("yield Task(id='a', instruction='x', expected={})", "TaskError: task 'a': expected: the expected answer must"),
        ("yield {'id': 'a'}", "TypeError: expected a Task, got {'id': 'a'}"),
        ("raise RuntimeError('no data')", "RuntimeError: no data (line 5)"),
        (
            "yield from [Task(id='a', instruction='x', expected={'n': 1})] * 2",
            "duplicate task id 'a'; give each task its own id",
        ),
    ],
)
def test_an_invalid_task_made_in_code_is_a_collection_error(
    project: Project, core: FakeCore, hook: str, problem: str
) -> None:
    project.ini()
    start = "from pytest_core_rollouts.tasks.task import Task\n\ndef pytest_rollout_tasks(config):\n    if config:\n"
    project.write("conftest.py", f"{start}        {hook}\n    yield\n")
    result = project.run("--harness", "codex")
    assert result.ret == 2, text_of(result)
    assert problem in text_of(result)
    assert "INTERNALERROR" not in text_of(result)
    assert not core.sessions


def test_an_unknown_id_is_a_collection_error(sums: Project) -> None:
    result = sums.run("--rollout-task", "sums/99")
    assert result.ret == 2
    assert "makes no task 'sums/99'" in text_of(result)


def test_a_task_folder_with_the_same_id_is_a_collection_error(sums: Project) -> None:
    sums.task("sums/3")
    result = sums.run("--harness", "codex")
    assert result.ret == 2
    assert "task id 'sums/3' is already used by" in text_of(result)


@pytest.mark.parametrize("given", [None, [], ()])
def test_a_hook_may_make_no_tasks(project: Project, given: object) -> None:
    project.ini()
    project.write("conftest.py", f"def pytest_rollout_tasks(): return {given!r}\n")
    project.task("a")
    assert outcomes(project.run("--harness", "codex")) == {"passed": 1}
