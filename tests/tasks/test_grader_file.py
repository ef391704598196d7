"""A grader.py in the folder of its task: how it is loaded and called, and what it may return."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pytest_core_rollouts.grading.answers import Answer, Grade
from pytest_core_rollouts.grading.comparing import Reason
from pytest_core_rollouts.tasks.files import TaskError
from pytest_core_rollouts.tasks.grader_file import as_grade, load_grader
from pytest_core_rollouts.tasks.loading import load_task
from pytest_core_rollouts.tasks.task import Task
from tests.support.tables import rows

ROLLOUT = object()


def task_with(folder: Path, grader: str, expected: str | None = None) -> Task:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "instruction.md").write_text("Do it.")
    (folder / "grader.py").write_text(grader, encoding="utf-8")
    if expected is not None:
        (folder / "expected.json").write_text(expected)
    return load_task(folder, folder.name)


def graded(task: Task, answer: Answer | None = None, rollout: object = None) -> Grade:
    """The grade, made in this process: what a worker process does (`test_grader_pool.py` has that)."""
    assert task.grader is not None
    return task.grader.grade_here(task, answer or Answer(), rollout)


def test_a_grader_may_lie_in_a_folder_of_any_name(tmp_path: Path) -> None:
    folder = Path(os.fsdecode(os.fsencode(tmp_path) + b"/caf\xe9"))
    folder.mkdir()
    (folder / "grader.py").write_text("def grade(): return 1")
    assert load_grader(folder / "grader.py").grade_here(None, Answer(), None) == Grade(1.0)


# What it gets, by name


@rows(
    ("arguments", "wanted"),
    [
        ("task, answer", "[task.id, answer.value]"),
        ("answer, *, rollout", "[answer.value, rollout]"),
        ("artifacts", "[artifacts]"),
        ("answer_text, extra=5", "[answer_text, extra]"),
        ("", "[]"),
        ("**everything", "sorted(everything)"),
    ],
)
def test_a_grader_takes_what_it_names(tmp_path: Path, arguments: str, wanted: str) -> None:
    grader = (
        f"SEEN = []\ndef grade({arguments}):\n    SEEN.append({wanted})\n    return Grade(1.0, note=str(SEEN[0]))\n"
    )
    task = task_with(tmp_path / "t", f"from pytest_core_rollouts.grading.answers import Grade\n{grader}")
    answer = Answer(value={"x": 1}, text="raw", artifacts={"a.txt": b"A"})
    values = {
        "task, answer": ["t", {"x": 1}],
        "answer, *, rollout": [{"x": 1}, ROLLOUT],
        "artifacts": [{"a.txt": b"A"}],
        "answer_text, extra=5": ["raw", 5],
        "": [],
        "**everything": ["answer", "answer_text", "artifacts", "rollout", "task"],
    }
    assert graded(task, answer, ROLLOUT).note == str(values[arguments])


def test_what_there_is_not_can_not_be_asked_for(tmp_path: Path) -> None:
    task = task_with(tmp_path / "t", "grade = lambda answer, expected: 1")
    with pytest.raises(TypeError, match=r"grade\(\) asks for 'expected'; it can have task, answer, artifacts"):
        graded(task)


def test_the_grader_decides_where_there_is_an_expected_answer_too(tmp_path: Path) -> None:
    task = task_with(tmp_path / "t", "def grade(task, answer): return answer.value == task.expected", '{"x": 1}')
    assert graded(task, Answer(value={"x": 1})).reward == 1
    assert graded(task, Answer(value={"x": 1, "y": 2})).reward == 0


# What it may return


@rows(("value", "reward"), [(1, 1.0), (0, 0.0), (0.25, 0.25), (True, 1.0), (False, 0.0)])
def test_a_number_from_0_to_1_is_a_reward(value: Any, reward: float) -> None:
    assert as_grade(value, "grade()") == Grade(reward)


def test_a_grade_is_kept_with_its_reasons() -> None:
    grade = Grade(0.5, (Reason("total", 1, 2),), "half")
    assert as_grade(grade, "grade()") is grade


@rows(
    ("value", "problem"),
    [
        (None, r"grade\(\): expected a number from 0 to 1 or a Grade, got None"),
        ("false", r"grade\(\): expected a number from 0 to 1 or a Grade, got 'false'"),
        ({"reward": 1}, r"grade\(\): expected a number from 0 to 1 or a Grade, got \{'reward': 1\}"),
        (1.01, "a reward must be from 0 to 1, not 1.01"),
        (-1, "a reward must be from 0 to 1, not -1"),
        (float("nan"), "a reward must be from 0 to 1, not nan"),
        (
            Grade(0.0, ("total",)),  # type: ignore[arg-type]
            r"grade\(\): expected a Reason\(path, expected, answered\) in its reasons, got 'total'",
        ),
    ],
)
def test_an_invalid_grade_is_an_error(value: Any, problem: str) -> None:
    with pytest.raises((TypeError, ValueError), match=problem):
        as_grade(value, "grade()")


def test_of_very_many_reasons_the_first_are_kept() -> None:
    grade = as_grade(Grade(0.0, tuple(Reason(str(n), 1, 2) for n in range(250))), "grade()")
    assert (len(grade.reasons), grade.note) == (100, "250 reasons; the first 100 are listed")


# The module


def test_two_graders_never_see_each_other_and_shadow_nothing(tmp_path: Path) -> None:
    path = list(sys.path)
    modules = set(sys.modules)
    tasks = [
        task_with(
            tmp_path / name / "json",
            f"import json\nfrom dataclasses import dataclass\n@dataclass\nclass Mine:\n    x: int\n"
            f"def grade(): return json.loads('{reward}')\n",
        )
        for name, reward in (("a", 0.25), ("b", 0.75))
    ]
    (tmp_path / "a" / "json" / "json.py").write_text("raise SystemExit('must not be imported')")
    assert [graded(task).reward for task in tasks] == [0.25, 0.75]
    assert sys.path == path
    new = set(sys.modules) - modules
    assert all(name.startswith("rollout_grader_") for name in new)
    assert "grader" not in sys.modules
    assert not list(tmp_path.rglob("__pycache__"))


def test_a_grader_runs_once_and_only_when_it_grades(tmp_path: Path) -> None:
    mark = tmp_path / "ran"
    task = task_with(tmp_path / "t", f"open({str(mark)!r}, 'a').write('x')\ndef grade(): return 1\n")
    assert not mark.exists()
    graded(task)
    graded(task)
    assert mark.read_text() == "x"


def test_what_runs_is_what_the_digest_says(tmp_path: Path) -> None:
    task = task_with(tmp_path / "t", "def grade(): return 1")
    changed = task_with(tmp_path / "t", "def grade(): return 0")
    assert task.grading_digest != changed.grading_digest
    assert task.input_digest == changed.input_digest
    assert (graded(task).reward, graded(changed).reward) == (1, 0)


def test_a_grader_is_not_a_file_of_the_task(tmp_path: Path) -> None:
    task = task_with(tmp_path / "t", "def grade(): return 1")
    assert task.uploads == ()


@rows(
    ("source", "problem"),
    [
        ("def grade(:\n", ":1: "),
        ("x = 1\ny = (\n", ":2: "),
        ("def other(): pass\n", ": defines no grade(); write `def grade(task, answer): ...`"),
        ("", ": defines no grade()"),
        ("def grade(answer, expected): return 1\n", ":1: grade() asks for 'expected'; it can have task, answer, "),
        ("x = 1\ndef grade(\n    answer, *, tsk, note=''\n): return 1\n", ":3: grade() asks for 'tsk'; "),
        ("grade: int\ndef f():\n    grade = 1\n", None),
    ],
)
def test_a_faulty_grader_is_an_error_at_collection(tmp_path: Path, source: str, problem: str | None) -> None:
    if problem is None:  # an annotation makes a name that has no value before it runs
        task = task_with(tmp_path / "t", source)
        with pytest.raises(TypeError, match="grade must be a function"):
            graded(task)
        return
    with pytest.raises(TaskError) as caught:
        task_with(tmp_path / "t", source)
    assert str(caught.value).startswith(f"{tmp_path / 't' / 'grader.py'}{problem}")


@rows("source", ["from math import floor as grade\n", "grade = lambda: 1\n", "if True:\n    def grade(): return 1\n"])
def test_grade_may_be_defined_in_any_way(tmp_path: Path, source: str) -> None:
    assert task_with(tmp_path / "t", source).grader is not None


def test_what_a_grader_raises_goes_on(tmp_path: Path) -> None:
    task = task_with(tmp_path / "t", "def grade(answer): return answer.value['x']")
    with pytest.raises(KeyError):
        graded(task, Answer(value={}))
    task = task_with(tmp_path / "t", "raise RuntimeError('at import')\ndef grade(): return 1")
    for _ in range(2):
        with pytest.raises(RuntimeError, match="at import"):
            graded(task)


def test_a_task_without_anything_to_grade_by_says_so() -> None:
    with pytest.raises(TaskError, match="has nothing to grade by"):
        Task(id="t", instruction="x").grade(Answer(), SimpleNamespace())
