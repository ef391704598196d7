"""Whether a fault of a model's server stops the run: only if a second rollout met it, so that no agent can stop a run.

An agent can write requests to its model by hand, and so provoke a refusal that no other rollout would get. Therefore a
Turn counts as a witness only if its agent had not used a tool yet. The run stops only when rollouts of two tasks met
the same fault with the same agent file (in a run of one task, two rollouts of it). A Turn that completes shows that
the model answers: what was seen before no longer counts. Under xdist each worker has its own witnesses.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from pytest_core_rollouts.agents_api import FaultPolicy
from pytest_core_rollouts.tasks.matrix import Rollout

_MESSAGE_TYPES = frozenset({"message", "reasoning"})
"""Types of Items that are only text: the agent did nothing."""


@dataclass
class Witnesses:
    """Which rollouts of this process met faults that would stop the run. `task_count(run_id)` counts a run's tasks."""

    task_count: Callable[[str], int]
    _seen: dict[str, dict[FaultPolicy, set[tuple[str, str]]]] = field(default_factory=dict)
    """By agent and fault: task id and rollout id of each rollout that met it."""

    def confirm(self, fault: FaultPolicy, rollout: Rollout) -> bool:
        """Note that `rollout` met `fault`. Returns True if that is enough to stop the run."""
        seen = self._seen.setdefault(rollout.agent.slug, {}).setdefault(fault, set())
        seen.add((rollout.task.id, rollout.rollout_id))
        tasks = {task for task, _ in seen}
        return len(tasks) > 1 or (len(seen) > 1 and self.task_count(rollout.run_id) == 1)

    def refute(self, rollout: Rollout) -> None:
        """Note that the model answered this rollout's agent to the end of its Turn."""
        self._seen.pop(rollout.agent.slug, None)


def used_a_tool(items: Iterable[Mapping[str, Any]]) -> bool:
    """Return whether the Items of a Turn show that its agent did more than write messages."""
    return any(item.get("type") not in _MESSAGE_TYPES for item in items)
