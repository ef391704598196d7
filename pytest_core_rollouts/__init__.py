"""Agent rollouts as pytest test cases.

The names listed in `__all__` are the public interface; docs/api.md describes them. Everything else is private and may
change without notice. They are imported when they are first used, so that importing the package costs nothing.
"""

from __future__ import annotations

from importlib import import_module

__version__ = "0.1.0"

TYPE_CHECKING = False  # type checkers take it for true; to import typing takes longer than all the rest here
if TYPE_CHECKING:
    from typing import Any

    from pytest_core_rollouts.engine.core_access import CoreError as CoreError
    from pytest_core_rollouts.engine.core_access import CoreUnreachable as CoreUnreachable
    from pytest_core_rollouts.engine.engine import Engine as Engine
    from pytest_core_rollouts.engine.runs import Group as Group
    from pytest_core_rollouts.engine.runs import Run as Run
    from pytest_core_rollouts.engine.runs import RunEnded as RunEnded
    from pytest_core_rollouts.grading.answers import Answer as Answer
    from pytest_core_rollouts.grading.answers import Grade as Grade
    from pytest_core_rollouts.grading.answers import grade_answer as grade_answer
    from pytest_core_rollouts.grading.comparing import Reason as Reason
    from pytest_core_rollouts.grading.comparing import Tolerance as Tolerance
    from pytest_core_rollouts.grading.failures import GraderFailed as GraderFailed
    from pytest_core_rollouts.grading.sandbox import run_in_sandbox as run_in_sandbox
    from pytest_core_rollouts.records.record import RecordsError as RecordsError
    from pytest_core_rollouts.records.record import RolloutRecord as RolloutRecord
    from pytest_core_rollouts.records.rows import read_records as read_records
    from pytest_core_rollouts.rollout.attempts import Outcome as Outcome
    from pytest_core_rollouts.tasks.files import InputFile as InputFile
    from pytest_core_rollouts.tasks.files import TaskError as TaskError
    from pytest_core_rollouts.tasks.harness_file import HarnessError as HarnessError
    from pytest_core_rollouts.tasks.harness_file import HarnessFile as HarnessFile
    from pytest_core_rollouts.tasks.harness_file import load_harness as load_harness
    from pytest_core_rollouts.tasks.loading import load_task as load_task
    from pytest_core_rollouts.tasks.loading import load_tasks as load_tasks
    from pytest_core_rollouts.tasks.matrix import Agent as Agent
    from pytest_core_rollouts.tasks.matrix import MatrixError as MatrixError
    from pytest_core_rollouts.tasks.matrix import Rollout as Rollout
    from pytest_core_rollouts.tasks.task import Task as Task
    from pytest_core_rollouts.tasks.task_settings import Network as Network
    from pytest_core_rollouts.tasks.task_settings import Xfail as Xfail
    from pytest_core_rollouts.training.captures import CaptureError as CaptureError
    from pytest_core_rollouts.training.groups import advantages as advantages
    from pytest_core_rollouts.training.sequences import Sequence as Sequence
    from pytest_core_rollouts.training.sequences import sequences as sequences

_MODULES = {
    "Agent": "tasks.matrix",
    "Answer": "grading.answers",
    "CaptureError": "training.captures",
    "CoreError": "engine.core_access",
    "CoreUnreachable": "engine.core_access",
    "Engine": "engine.engine",
    "Grade": "grading.answers",
    "GraderFailed": "grading.failures",
    "Group": "engine.runs",
    "HarnessError": "tasks.harness_file",
    "HarnessFile": "tasks.harness_file",
    "InputFile": "tasks.files",
    "MatrixError": "tasks.matrix",
    "Network": "tasks.task_settings",
    "Outcome": "rollout.attempts",
    "Reason": "grading.comparing",
    "RecordsError": "records.record",
    "Rollout": "tasks.matrix",
    "RolloutRecord": "records.record",
    "Run": "engine.runs",
    "RunEnded": "engine.runs",
    "Sequence": "training.sequences",
    "Task": "tasks.task",
    "TaskError": "tasks.files",
    "Tolerance": "grading.comparing",
    "Xfail": "tasks.task_settings",
    "advantages": "training.groups",
    "grade_answer": "grading.answers",
    "load_harness": "tasks.harness_file",
    "load_task": "tasks.loading",
    "load_tasks": "tasks.loading",
    "read_records": "records.rows",
    "run_in_sandbox": "grading.sandbox",
    "sequences": "training.sequences",
}
"""The module of each public name."""

__all__ = [*sorted(_MODULES)]


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
