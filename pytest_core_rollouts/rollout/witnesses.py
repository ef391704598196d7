"""Whether a fault that one rollout met stops the run: only if others met it too.

A fault of a model's server needs a second rollout, so that no agent can stop a run.

An agent can write requests to its model by hand, and so provoke a refusal that no other rollout would get. Therefore a
Turn counts as a witness only if its agent had not used a tool yet. The run stops only when rollouts of two tasks met
the same fault with the same agent file (in a run of one task, two rollouts of it). A Turn that completes shows that
the model answers: what was seen before no longer counts. Under xdist each worker has its own witnesses.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from pytest_core_rollouts.agents_api import APIStatusError, FaultPolicy
from pytest_core_rollouts.tasks.matrix import Rollout

REFUSED_TASKS = 3
"""Tasks whose Sessions a Core must refuse before the run stops."""
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


@dataclass
class Refusals:
    """The Sessions that a Core refused to create, while it has created none.

    `task_counts(run_id)` counts the tasks of each agent of a run. If the Sessions of three tasks of each agent (or of
    all its tasks) were refused in the same way, all others would be, too. A Core that has created a Session accepts
    what rollouts ask for in general, so what it refuses then is about single tasks or agents.
    """

    task_counts: Callable[[str], Mapping[str, int]]
    _created: bool = False
    _seen: dict[tuple[object, ...], set[tuple[str, str]]] = field(default_factory=dict)
    """By run and refusal: agent and task of each rollout that was refused."""

    def confirm(self, error: APIStatusError, rollout: Rollout) -> bool:
        """Note that the Session of `rollout` was refused. Returns True if that is enough to stop the run."""
        if self._created:
            return False
        seen = self._seen.setdefault((rollout.run_id, error.status, error.code, error.param), set())
        seen.add((rollout.agent.slug, rollout.task.id))
        counts = self.task_counts(rollout.run_id) or {rollout.agent.slug: REFUSED_TASKS}
        refused = Counter(agent for agent, _ in seen)
        return all(refused[agent] >= min(count, REFUSED_TASKS) for agent, count in counts.items())

    def refute(self) -> None:
        """Note that the Core created a Session."""
        self._created = True
        self._seen.clear()


def used_a_tool(items: Iterable[Mapping[str, Any]]) -> bool:
    """Return whether the Items of a Turn show that its agent did more than write messages."""
    return any(item.get("type") not in _MESSAGE_TYPES for item in items)
