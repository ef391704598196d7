"""Whether Turns failed more often for one agent or task than chance explains.

A Turn that failed for a reason which its Core does not name is missing data, or reward 0 if the user says so. Either
way it matters whether it hit everybody alike: a policy that learned to break its own Turn shows here. Each agent is
compared with all others by Fisher's exact test, and so is each task; Holm's correction counts all these comparisons.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from pytest_core_rollouts.agents_api.fault_policies import turn_fault_policy
from pytest_core_rollouts.records.record import RolloutRecord
from pytest_core_rollouts.report.cells import p_is
from pytest_core_rollouts.results.significance import LEVEL, fisher, holm

if TYPE_CHECKING:
    from pytest_core_rollouts.results.summary import TaskScore

_CODE = re.compile(r"the Turn failed: ([^:\s]+): ")
_SHOWN = 3


def is_unexplained(row: RolloutRecord) -> bool:
    """Whether its Turn failed, and by its code that may be the agent's doing or not."""
    found = _CODE.match(row.error or "")
    return row.status == "failed" and found is not None and turn_fault_policy(found[1]).reward is None


def failed_turn_warnings(agents: Mapping[str, Iterable[TaskScore]]) -> list[str]:
    """A sentence for each agent and task whose Turns failed too often. `agents`: the tasks of each, by its label."""
    of_agents: dict[str, tuple[int, int]] = {}
    of_tasks: dict[str, tuple[int, int]] = {}
    for label, scores in agents.items():
        for score in scores:
            _add(of_agents, label, score)
            _add(of_tasks, score.task, score)
    compared = [*_compared(of_agents, "agent"), *_compared(of_tasks, "task")]
    corrected = holm([fisher(n1, c1, n2, c2) for _, _, (n1, c1), (n2, c2) in compared])
    found = sorted(
        ((p, what, name, own, rest) for p, (what, name, own, rest) in zip(corrected, compared, strict=True)),
        key=lambda one: one[:3],
    )
    return [
        f"failed Turns: {what} {name} {c1} of {n1}, the other {what}s {c2} of {n2} ({p_is(p)}), which is more than "
        "chance; an agent can cause failures that a Core does not name"
        for p, what, name, (n1, c1), (n2, c2) in found
        if p <= LEVEL and c1 * n2 > c2 * n1
    ][:_SHOWN]


def _add(counts: dict[str, tuple[int, int]], name: str, score: TaskScore) -> None:
    rows, failed = counts.get(name, (0, 0))
    counts[name] = rows + score.rows, failed + score.failed_turns


def _compared(
    counts: Mapping[str, tuple[int, int]], what: str
) -> Iterable[tuple[str, str, tuple[int, int], tuple[int, int]]]:
    """Each with all others: what it is, its name, rows and failed Turns of its own and of the others."""
    rows, failed = (sum(numbers) for numbers in zip(*counts.values(), strict=True)) if counts else (0, 0)
    if not failed or len(counts) < 2:
        return
    for name, (own_rows, own_failed) in counts.items():
        yield what, name, (own_rows, own_failed), (rows - own_rows, failed - own_failed)
