"""What a run cost, as sentences."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from pytest_core_rollouts.report.cells import escape
from pytest_core_rollouts.results.prices import Cost, dollars
from pytest_core_rollouts.results.summary import Summary
from pytest_core_rollouts.text import listed


def cost_lines(summary: Summary) -> Iterator[str]:
    """Yield what each agent cost, per solved task and in all, as entries of a list; nothing without prices."""
    several = len(summary.agents) > 1
    for agent in summary.agents:
        if agent.cost is not None:
            whose = f" of {escape(agent.label)}" if several else ""
            yield f"- cost{whose}: {cost_clause(agent.cost, agent.tasks_solved.solved)}"
    costs = [agent.cost for agent in summary.agents if agent.cost is not None]
    if several and costs:
        yield f"- cost in all: {cost_clause(sum(costs, Cost()), 0)}"


def cost_clause(cost: Cost, solved: int, written: Callable[[str], str] = escape) -> str:
    """Return a cost, how much of it is unknown, and that of a solved task. `written` escapes names."""
    models = f"; no price of {listed(list(map(written, sorted(cost.models))))}" if cost.unknown and cost.models else ""
    if cost.unknown == cost.rollouts:
        return f"unknown{models}"
    unknown = f" ({cost.unknown} of {cost.rollouts} rollouts unknown{models})" if cost.unknown else ""
    per_task = f", {dollars(cost.known / solved)}{'+' if cost.unknown else ''} per solved task" if solved else ""
    return f"{cost}{unknown}{per_task}"
