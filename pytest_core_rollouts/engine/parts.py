"""The parts of an engine: its Core, where rows are stored, how answers are graded, and defaults for rollouts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from pytest_core_rollouts.engine.caps import Caps
from pytest_core_rollouts.engine.core_access import CoreAccess
from pytest_core_rollouts.engine.replay import Replay
from pytest_core_rollouts.engine.resume import Resumed
from pytest_core_rollouts.engine.store import RowStore
from pytest_core_rollouts.grading.answers import Answer, Grade
from pytest_core_rollouts.records.record import RolloutRecord
from pytest_core_rollouts.rollout.runner import Grader
from pytest_core_rollouts.tasks.matrix import Agent, FailedTurns, Rollout
from pytest_core_rollouts.tasks.task import Task
from pytest_core_rollouts.tasks.task_settings import Network


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


@dataclass(frozen=True)
class Parts:
    """The parts of an engine. `Engine(...)` makes them from its arguments; a pytest session makes its own."""

    core: CoreAccess
    store: RowStore
    grading: Grading = field(default_factory=TaskGrading)
    concurrency: int = 4
    keep_items: bool = True
    """Whether trajectories are read from the Core and stored."""
    keep_results: bool = True
    """Whether outcomes contain trajectories. Rows contain them in any case."""
    resumed: Resumed | None = None
    """An earlier run to continue: its results are reused, or its answers graded again."""
    replay: Replay | None = None
    """Recorded rollouts to grade again; then nothing runs."""
    on_left_behind: Callable[[str], None] = lambda text: None
    """Called in the pool's thread with the name of each Session that could not be deleted, and the reason."""
    prepares: bool = True
    """Whether each submit prepares what it needs. False: the caller does, with `prepare`, in one of its processes."""


@dataclass(frozen=True)
class Defaults:
    """The settings of a rollout that neither `submit` nor its task sets."""

    timeout: float = 900.0
    network: Network = field(default_factory=Network.disabled)
    retries: int = 1
    failed_turns: FailedTurns | None = "missing"

    def __post_init__(self) -> None:
        if self.failed_turns not in ("missing", "zero", None):
            raise ValueError(f"failed_turns: expected 'missing' or 'zero', got {self.failed_turns!r}")

    def rollout(
        self, task: Task, agent: Agent, sample: int, run_id: str, labels: Mapping[str, str], timeout: float | None
    ) -> Rollout:
        xfail = task.xfail
        expected = xfail is not None and xfail.applies_to(agent.harness, agent.model, agent.name)
        return Rollout(
            task=task,
            agent=agent,
            sample=sample,
            run_id=run_id,
            timeout=timeout or task.timeout or self.timeout,
            network=task.network or self.network,
            retries=self.retries,
            failed_turns=self.failed_turns,
            labels=dict(labels),
            xfail=(xfail.reason or "xfail") if expected and xfail is not None else None,
        )


def make_parts(
    core: CoreAccess,
    concurrency: int,
    out: Path | str | None,
    save: Callable[[RolloutRecord], None] | None,
    grade: Grader | None,
    caps: Caps,
) -> Parts:
    """Return the parts of an engine with these arguments of its constructor."""
    store = RowStore(None if out is None else Path(out), also_to=save, caps=caps)
    return Parts(core, store, TaskGrading() if grade is None else FunctionGrading(grade), concurrency)
