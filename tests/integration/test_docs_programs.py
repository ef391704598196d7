"""The Python in docs/tasks.md and docs/migrating.md, run as it stands there."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from pytest_core_rollouts.grading.answers import Answer
from pytest_core_rollouts.tasks.loading import load_task
from tests.integration.conftest import Project, outcomes, text_of
from tests.support.fake_core import FakeCore, Script

DOCS = Path(__file__).parents[2] / "docs"
BROKEN = "def longest(text):\n    return min(text.split(), key=len)\n"
RIGHT_PATCH = """\
--- a/words.py
+++ b/words.py
@@ -1,2 +1,2 @@
 def longest(text):
-    return min(text.split(), key=len)
+    return max(text.split(), key=len)
"""
WRONG_PATCH = RIGHT_PATCH.replace("return max(text.split(), key=len)", "return text")
HIDDEN = """\
import unittest

from words import longest


class Test(unittest.TestCase):
    def test_longest(self):
        self.assertEqual(longest("a bb c"), "bb")
"""


def block(page: str, language: str, holds: str) -> str:
    """The one block of this language that holds this text."""
    text = (DOCS / page).read_text(encoding="utf-8")
    [found] = [one for one in re.finditer(rf"```{language}\n(.*?)```", text, re.DOTALL) if holds in one[1]]
    return found[1]


def task_folder(tmp_path: Path, grader: str, **files: str) -> Path:
    for name, content in {"instruction.md": "Mend it.", "grader.py": grader, **files}.items():
        file = tmp_path / "task" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(content)
    return tmp_path / "task"


def rewards(folder: Path, *contents: str | None, name: str = "fix.patch") -> list[float]:
    task = load_task(folder, "task")
    artifacts = [{} if content is None else {name: content.encode()} for content in contents]
    return [task.grade(Answer(artifacts=one)).reward for one in artifacts]


def test_moved_task_runs_hidden_tests_on_the_agents_file(tmp_path: Path) -> None:
    folder = task_folder(
        tmp_path,
        block("migrating.md", "python", "run_in_sandbox"),
        **{
            "task.yaml": block("migrating.md", "yaml", "outputs: [dates.py]"),
            "files/dates.py": BROKEN,
            "hidden/test_dates.py": HIDDEN.replace("from words", "from dates"),
        },
    )
    assert load_task(folder, "task").outputs is not None
    fixed = BROKEN.replace("min(", "max(")
    assert rewards(folder, fixed, BROKEN, "not Python", None, name="dates.py") == [1, 0, 0, 0]


def test_the_example_runs_a_patch_in_a_sandbox(tmp_path: Path) -> None:
    before = 'from pathlib import Path\n\nHIDDEN = Path(__file__).parent / "hidden_test.py"\n'  # as the example has it
    folder = task_folder(
        tmp_path,
        before + block("tasks.md", "python", "fix.patch"),
        **{"files/words.py": BROKEN, "hidden_test.py": HIDDEN},
    )
    assert rewards(folder, RIGHT_PATCH, WRONG_PATCH, None) == [1, 0, 0]


def test_the_example_grader_gives_a_part_of_the_reward_for_each_key(tmp_path: Path) -> None:
    expected = {"expected.json": '{"a": 1, "b": 2}'}
    task = load_task(task_folder(tmp_path, block("tasks.md", "python", "answer.problem"), **expected), "task")
    answers = [Answer(value={"a": 1, "b": 2}), Answer(value={"a": 1}), Answer(problem="not found")]
    assert [task.grade(answer).reward for answer in answers] == [1, 0.5, 0]


@pytest.mark.parametrize("graded", [0.0, 1.0])
def test_the_example_conftest_makes_tasks_and_grades_those_with_a_tag(
    project: Project, core: FakeCore, graded: float
) -> None:
    core.script = lambda body: Script(answer=b'{"answer": 4, "total": 7}')
    made, hook = (
        block("tasks.md", "python", "pytest_rollout_tasks"),
        block("tasks.md", "python", "pytest_rollout_grade"),
    )
    project.write("conftest.py", f"{made}\n\n{hook}\n\ndef grade_query(answer): return {graded}\n")
    questions = [{"id": "q1", "question": "2 + 2?", "answer": 4}, {"id": "q2", "question": "2 + 3?", "answer": 5}]
    project.write("questions.jsonl", "".join(json.dumps(one) + "\n" for one in questions))
    project.task("query", expected={"total": 0}, yaml="tags: [sql]")
    result = project.run("--harness", "codex")
    assert {row["task"]: row["reward"] for row in project.records} == {
        "questions/q1": 1.0,
        "questions/q2": 0.0,
        "query": graded,
    }, text_of(result)
    assert outcomes(result)["passed"] == 1 + graded
