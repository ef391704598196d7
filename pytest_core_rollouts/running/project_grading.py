"""Grading in a pytest session: by the project's hook if there is one, else by the task."""

from __future__ import annotations

from typing import Any

from pytest_core_rollouts.collecting.collect import RolloutItem
from pytest_core_rollouts.grading.answers import Answer, Grade
from pytest_core_rollouts.grading.threads import GraderFailed
from pytest_core_rollouts.records.masking import Withheld, hide_note
from pytest_core_rollouts.tasks.grader_file import as_grade
from pytest_core_rollouts.tasks.matrix import Rollout
from pytest_core_rollouts.tasks.task import Task


class ProjectGrading:
    """Grades each task by the hooks of its folder. `hide_expected`: what the project's code reports is hidden.

    Hooks run in threads of this process, because they may use its state. A `grader.py` runs in a worker process.
    """

    def __init__(self, *, hide_expected: bool) -> None:
        self._hide_expected = hide_expected
        self._hooks: dict[str, Any] = {}
        """By task, the hooks of the conftest files that apply to it."""

    def register(self, item: RolloutItem) -> None:
        """Grade the item's task by the hooks of its folder from now on."""
        self._hooks[item.task.id] = item.ihook

    def uses_builtin_grading(self, task: Task) -> bool:
        """Whether only the built-in comparison grades the task, and no code of the project."""
        return task.grader is None and not self._hooks[task.id].pytest_rollout_grade.get_hookimpls()

    def grade(self, task: Task, answer: Answer, rollout: Rollout) -> Grade:
        """Grade by the project's hook, else by the task. Called in a thread, off the event loop."""
        if not self._hide_expected or self.uses_builtin_grading(task):
            return self._grade(task, answer, rollout)
        try:
            return hide_note(self._grade(task, answer, rollout))
        except GraderFailed as failure:
            raise failure.brief from None
        except BaseException as error:  # noqa: BLE001 - pytest.fail() raises no Exception, but a BaseException
            raise Withheld(error) from None

    def _grade(self, task: Task, answer: Answer, rollout: Rollout) -> Grade:
        hooks = self._hooks[task.id]
        given = hooks.pytest_rollout_grade(task=task, answer=answer, rollout=rollout)
        return task.grade(answer, rollout) if given is None else as_grade(given, "pytest_rollout_grade")
