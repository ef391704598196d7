"""Tasks: loaded from folders or made in code, and checked."""

from __future__ import annotations

from pytest_core_rollouts.tasks.task import (
    INSTRUCTION_LIMIT,
    InputFile,
    Network,
    Task,
    TaskError,
    Xfail,
    is_task,
    load_task,
)

__all__ = [
    "INSTRUCTION_LIMIT",
    "InputFile",
    "Network",
    "Task",
    "TaskError",
    "Xfail",
    "is_task",
    "load_task",
]
