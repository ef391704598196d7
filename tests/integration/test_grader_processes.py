"""grader.py in a run: one that an answer breaks costs the agent its reward, and no other rollout anything."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.integration.conftest import Project, outcomes, text_of
from tests.support.fake_core import FakeCore, Script

GRADER = """
import ctypes, os, re
def grade(answer):
    if answer.problem or answer.value == {"x": 1}:
        return 1.0 if answer.value else 0.0
    if answer.value == {"x": "hang"}:
        re.match("(a+)+b", "a" * 60)  # holds the GIL for hours
    if answer.value == {"x": "crash"}:
        ctypes.string_at(0)
    raise KeyError("y")
"""
WORKERS = pytest.mark.parametrize(
    "workers", [(), pytest.param(("-n", "1"), marks=pytest.mark.slow)], ids=["one-process", "worker"]
)
SHORT_LIMIT = """
from pytest_core_rollouts.tasks import grader_pool
grader_pool.GRADE_SECONDS = 2.0
"""


@WORKERS
def test_an_answer_that_breaks_its_grader_earns_0_and_affects_no_other_rollout(
    project: Project, core: FakeCore, workers: tuple[str, ...]
) -> None:
    leaves: dict[str, Any] = {"a": "hang", "b": "crash", "c": "raise"}
    core.script = lambda body: Script(answer=json.dumps({"x": leaves.get(body["metadata"]["task"], 1)}).encode())
    for name in (*leaves, "d", "e"):
        (project.task(name) / "expected.json").unlink()
        project.write(f"tasks/{name}/grader.py", GRADER)
    project.task("f")  # graded without a process
    project.write("conftest.py", SHORT_LIMIT)
    result = project.run_apart("tasks", "--rollout-concurrency", "6", "--rollout-report", "report.md", *workers)
    rows = {row["task"]: row for row in project.records}
    assert {task: (row["status"], row["reward"]) for task, row in rows.items()} == {
        "a": ("failed", 0.0),
        "b": ("failed", 0.0),
        "c": ("error", None),
        **dict.fromkeys("def", ("completed", 1.0)),
    }, text_of(result)
    assert rows["a"]["error"].startswith("grader_broken: the grader took more than 2 s (grader.py:7), twice")
    assert rows["b"]["error"].startswith(
        "grader_broken: the grader's process was ended by SIGSEGV (grader.py:9), twice"
    )
    assert rows["c"]["error"] == "the grader raised KeyError: 'y' (grader.py:10)"
    assert [row["attempt"] for row in rows.values()] == [1] * 6
    warning = "the grader of c failed on 1 of 1 answers by default, which have no reward; fix it, then grade them"
    assert warning in text_of(result).replace("\n", " ") or warning in (project.path / "report.md").read_text()
    assert outcomes(result) == {"passed": 3, "failed": 2, "errors": 1}


def test_a_replay_grades_an_answer_that_broke_its_grader_again(project: Project, core: FakeCore) -> None:
    core.script = lambda body: Script(answer=b'{"x": "crash"}')
    (project.task("b") / "expected.json").unlink()
    grader: Path = project.write("tasks/b/grader.py", GRADER)
    project.run("tasks")
    [path] = project.results
    again = project.run("--rollout-replay", str(path.relative_to(project.path)))
    assert outcomes(again) == {"failed": 1}, text_of(again)
    [row] = [row for row in project.records if row["settings"].get("replay_of")]
    assert (row["status"], row["reward"], row["answer"]) == ("failed", 0.0, {"x": "crash"})
    assert row["error"].startswith("grader_broken: ")
    grader.write_text("def grade(answer): return answer.value['x'] == 'crash'\n")
    fixed = project.run("--rollout-replay", str(path.relative_to(project.path)))
    assert outcomes(fixed) == {"passed": 1}, text_of(fixed)
