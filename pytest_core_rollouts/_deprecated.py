"""Import paths of earlier versions: they still work, with a warning that names the new one."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any, Final

MOVED: Final = {
    "pytest_core_rollouts.engine": ("Engine", "Group", "Run", "RunEnded"),
    "pytest_core_rollouts.grading": ("Answer", "Grade", "Reason", "Tolerance", "grade_answer"),
    "pytest_core_rollouts.grading.local_sandbox": ("run_in_sandbox",),
    "pytest_core_rollouts.matrix": ("Agent", "MatrixError", "Rollout"),
    "pytest_core_rollouts.tasks": ("InputFile", "Network", "Task", "TaskError", "Xfail", "load_task"),
    "pytest_core_rollouts.training": ("advantages",),
}
"""Names that earlier docs imported from these modules. All of them are in `pytest_core_rollouts` now."""


def moved_names(module: str) -> Callable[[str], Any]:
    """Return a module's `__getattr__` for the names that it had in earlier versions."""

    def get(name: str) -> Any:
        if name not in MOVED[module]:
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        import pytest_core_rollouts

        new = f"from pytest_core_rollouts import {name}"
        warnings.warn(f"{module}.{name} is deprecated; use `{new}`", DeprecationWarning, stacklevel=2)
        return getattr(pytest_core_rollouts, name)

    return get
