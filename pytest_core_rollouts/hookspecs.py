"""Hooks that a project may implement in a `conftest.py` or a plugin."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pytest_core_rollouts.grading.answers import Answer, Grade
    from pytest_core_rollouts.tasks.matrix import Rollout
    from pytest_core_rollouts.tasks.task import Task


@pytest.hookspec(firstresult=True)
def pytest_rollout_grade(task: Task, answer: Answer, rollout: Rollout) -> Grade | float | None:
    """Grade an answer. None leaves it to the next one: another hook, the task's `grader.py`, its `expected.json`.

    Called for every answer, also a missing or unreadable one (`answer.problem`), in threads of pytest's process,
    several at a time, each within 60 s. The limit can't stop code that holds the GIL, and a crash ends the run: a
    `grader.py` runs in its own process. A reward is from 0 to 1; True and False are 1 and 0. If it raises, the
    rollout is an error without a reward, and the answer is kept. A `conftest.py` grades the tasks in and below its
    folder.
    """


@pytest.hookspec
def pytest_rollout_tasks(config: pytest.Config) -> Iterable[Task] | None:
    """Make tasks in code. Each has its own id, and every process must make the same tasks.

    Called at collection, and only when rollouts are requested. The tasks are items of the file that implements the
    hook: `conftest.py::gsm8k/17:codex-default-0`.
    """
