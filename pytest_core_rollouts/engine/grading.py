"""Who grades an engine's answers: each task as it says, or a function of the caller's for all of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from pytest_core_rollouts.grading.answers import Answer, Grade
from pytest_core_rollouts.rollout.attempts import Grader
from pytest_core_rollouts.tasks.matrix import Rollout
from pytest_core_rollouts.tasks.task import Task


class Grading(Protocol):
    """What an engine needs to know about grading."""

    def grade(self, task: Task, answer: Answer, rollout: Rollout) -> Grade:
        """Grade an answer. Called in a thread, off the event loop; may raise anything."""

    def uses_builtin_grading(self, task: Task) -> bool:
        """Whether only the built-in comparison grades the task. It neither raises nor hangs, and needs no thread."""


class TaskGrading:
    """Grades each task by its `grader.py`, else by its expected answer."""

    def grade(self, task: Task, answer: Answer, rollout: Rollout) -> Grade:
        return task.grade(answer, rollout)

    def uses_builtin_grading(self, task: Task) -> bool:
        return task.grader is None


@dataclass(frozen=True)
class FunctionGrading:
    """Grades every task by one function."""

    function: Grader

    def grade(self, task: Task, answer: Answer, rollout: Rollout) -> Grade:
        return self.function(task, answer, rollout)

    def uses_builtin_grading(self, task: Task) -> bool:
        return False
