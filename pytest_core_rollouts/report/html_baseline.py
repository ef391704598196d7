"""The data of the HTML report's page that compares a run with a baseline."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pytest_core_rollouts.report.changes import could_see
from pytest_core_rollouts.results.comparison import Baseline, Comparison, TaskChange, compare
from pytest_core_rollouts.results.number_text import decimal, p_value_text, signed
from pytest_core_rollouts.results.scores import AgentScore, TaskScore
from pytest_core_rollouts.results.significance import LEVEL
from pytest_core_rollouts.results.summary import Summary


def compare_runs(
    now: Summary, baseline: Baseline, tasks: Mapping[str, int], agents: Mapping[tuple[str, str, str, str], int]
) -> dict[str, Any]:
    """Return what changed for each agent, as JSON data. `tasks` and `agents` map ids and keys to positions."""
    pairs = [(agents[agent_key_of(agent)], agent, baseline.of(agent, now)) for agent in now.agents]
    matched = [other for _, _, other in pairs if other is not None]
    return {
        "files": [baseline.path.name],
        "agents": [
            _compared_agent(at, compare(other, agent), tasks) for at, agent, other in pairs if other is not None
        ],
        "onlyNow": [agent.label for _, agent, other in pairs if other is None],
        "onlyThen": [agent.label for agent in baseline.summary.agents if agent not in matched],
    }


def agent_key_of(agent: AgentScore) -> tuple[str, str, str, str]:
    """Return the key of an agent, as `agent_key` returns it for a row."""
    return agent.harness, agent.model, agent.name or "", agent.digest


def _compared_agent(at: int, comparison: Comparison, tasks: Mapping[str, int]) -> dict[str, Any]:
    before, after = comparison.means
    changed = sorted((one for one in comparison.tasks if one.difference), key=lambda one: (one.difference, one.task))
    unchanged = sorted((one for one in comparison.tasks if not one.difference), key=lambda one: one.task)
    return {
        "agent": at,
        "before": decimal(before),
        "after": decimal(after),
        "change": _difference(comparison),
        "p": p_value_text(comparison.p_these_tasks.value) if comparison.tasks else None,
        "power": list(could_see(comparison.power)) if comparison.tasks else [],
        "tasks": len(comparison.tasks),
        "rows": [_compared_task(one, tasks) for one in [*changed, *unchanged]],
        "xfails": [task.task for task in comparison.after.xfails],
        "unchanged": len(unchanged),
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


def _compared_task(one: TaskChange, tasks: Mapping[str, int]) -> dict[str, Any]:
    return {
        "task": tasks[one.task],
        "before": f"{one.before.solved}/{one.before.graded}",
        "after": f"{one.after.solved}/{one.after.graded}",
        "squares": _squares(one.before),
        "change": float(one.difference),
        "text": signed(one.difference),
        "p": p_value_text(one.p),
        "corrected": p_value_text(one.corrected),
        "sure": one.corrected <= LEVEL,
    }


def _squares(before: TaskScore) -> list[tuple[str, float | None]]:
    """Return what the baseline's samples were, the solved ones first: an outcome and a reward each."""
    rewards = [float(reward) for reward in reversed(before.rewards)]
    graded = [
        ("solved" if at < before.solved else "partial" if reward else "unsolved", reward)
        for at, reward in enumerate(rewards)
    ]
    return [*graded, *[("error", None)] * (before.rows - before.graded)]


def _difference(comparison: Comparison) -> dict[str, Any]:
    if comparison.difference is None:
        return {"value": 0, "text": "n/a", "range": None, "sure": False}
    interval = comparison.interval
    ends = None if interval is None else f"{signed(interval[0])} to {signed(interval[1])}"
    sure = bool(comparison.difference) and comparison.p_these_tasks.significant  # as the p next to it
    return {
        "value": float(comparison.difference),
        "text": signed(comparison.difference),
        "range": ends,
        "sure": sure,
    }
