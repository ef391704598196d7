"""Whether a fault of a model's server stops the run: only if a second rollout met it, so that no agent can stop a run.

An agent can write requests to its model by hand, and so have a refusal that no other rollout would get. Therefore a
Turn counts as a witness only if its agent had used no tool yet, and the run stops only when rollouts of two tasks met
the same fault with the same agent file. In a run of one task, two rollouts of it do. A Turn that completes in between
shows that the model can be asked: what was seen before it counts no more. Under xdist each worker has its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from pytest_core_rollouts.agents_api import FaultPolicy
from pytest_core_rollouts.tasks.matrix import Rollout

_WORDS = frozenset({"message", "reasoning"})
"""Types of Items by which an agent says something and does nothing."""


@dataclass
class Witnesses:
    """What the rollouts of a process saw of faults that would stop the run. `task_count`: of a run, by its id."""

    task_count: Callable[[str], int]
    _seen: dict[str, dict[FaultPolicy, set[tuple[str, str]]]] = field(default_factory=dict)
    """By agent and fault: task and id of each rollout that met it."""

    def confirm(self, fault: FaultPolicy, rollout: Rollout) -> bool:
        """Note that `rollout` met `fault`. Returns True if that is enough to stop the run."""
        seen = self._seen.setdefault(rollout.agent.slug, {}).setdefault(fault, set())
        seen.add((rollout.task.id, rollout.rollout_id))
        tasks = {task for task, _ in seen}
        return len(tasks) > 1 or (len(seen) > 1 and self.task_count(rollout.run_id) == 1)

    def refute(self, rollout: Rollout) -> None:
        """The model answered this rollout's agent to the end of its Turn."""
        self._seen.pop(rollout.agent.slug, None)


def used_a_tool(items: Iterable[Mapping[str, Any]]) -> bool:
    """Whether an agent has done more than speak, by its Turn's Items."""
    return any(item.get("type") not in _WORDS for item in items)
