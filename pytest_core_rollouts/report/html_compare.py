"""A run beside a baseline, as data for the HTML report: for each agent, what changed on the tasks both runs have."""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from typing import Any

from pytest_core_rollouts.report.cells import chance, decimal, signed
from pytest_core_rollouts.report.changes import could_see
from pytest_core_rollouts.results.baseline import Baseline
from pytest_core_rollouts.results.comparison import Comparison, compare
from pytest_core_rollouts.results.significance import LEVEL
from pytest_core_rollouts.results.summary import AgentScore, Summary


def compare_runs(
    now: Summary, baseline: Baseline, tasks: Mapping[str, int], agents: Mapping[tuple[str, str, str, str], int]
) -> dict[str, Any]:
    """JSON data. `tasks` and `agents` (by `Summary`'s key) give the places by which the report names them."""
    pairs = [(agents[_key(agent)], agent, baseline.of(agent, now)) for agent in now.agents]
    matched = [other for _, _, other in pairs if other is not None]
    return {
        "files": [baseline.path.name],
        "agents": [_agent(at, compare(other, agent), tasks) for at, agent, other in pairs if other is not None],
        "onlyNow": [agent.label for _, agent, other in pairs if other is None],
        "onlyThen": [agent.label for agent in baseline.summary.agents if agent not in matched],
    }


def _key(agent: AgentScore) -> tuple[str, str, str, str]:
    return agent.harness, agent.model, agent.name or "", agent.digest


def _agent(at: int, comparison: Comparison, tasks: Mapping[str, int]) -> dict[str, Any]:
    before, after = comparison.means
    changed = sorted((one for one in comparison.tasks if one.difference), key=lambda one: (one.difference, one.task))
    return {
        "agent": at,
        "before": decimal(before),
        "after": decimal(after),
        "change": _change(comparison.difference, comparison.interval),
        "p": chance(comparison.p_these_tasks.value) if comparison.tasks else None,
        "power": list(could_see(comparison.power)) if comparison.tasks else [],
        "tasks": len(comparison.tasks),
        "rows": [
            {
                "task": tasks[one.task],
                "before": f"{one.before.solved}/{one.before.graded}",
                "after": f"{one.after.solved}/{one.after.graded}",
                "change": float(one.difference),
                "text": signed(one.difference),
                "p": chance(one.p),
                "corrected": chance(one.corrected),
                "sure": one.corrected <= LEVEL,
            }
            for one in changed
        ],
        "unchanged": len(comparison.tasks) - len(changed),
        "leftOut": [
            [text, list(names)]
            for text, names in (
                ("Task or grading changed, so not compared", comparison.changed),
                ("No result now", comparison.ungraded),
                ("No result before", comparison.unknown),
                ("New", comparison.new),
                ("Only in the baseline", comparison.gone),
            )
            if names
        ],
    }


def _change(difference: Fraction | None, interval: tuple[float, float] | None) -> dict[str, Any]:
    if difference is None:
        return {"value": 0, "text": "n/a", "range": None, "sure": False}
    ends = None if interval is None else f"{signed(interval[0])} to {signed(interval[1])}"
    sure = interval is not None and not interval[0] <= 0 <= interval[1]
    return {"value": float(difference), "text": signed(difference), "range": ends, "sure": sure}
