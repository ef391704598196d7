"""Tables of figures by tag or by agent, of a run and of comparisons."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final, Literal

from pytest_core_rollouts.report.cells import Column, escape, table
from pytest_core_rollouts.results.comparison import Comparison, compare
from pytest_core_rollouts.results.number_text import UNKNOWN, between, decimal, p_value_text, signed
from pytest_core_rollouts.results.scope import tags_of
from pytest_core_rollouts.results.scores import AgentScore
from pytest_core_rollouts.results.summary import Summary

By = Literal["tag", "agent"]
CHOICES: Final[tuple[By, ...]] = ("tag", "agent")
NO_TAG: Final = "(no tag)"


def figures_by(summary: Summary, by: By) -> str:
    """Return a table with a row for each tag and agent, or for each agent."""
    if by == "agent":
        return _figures([(escape(agent.label), agent) for agent in summary.agents], ["agent"])
    rows = [
        (f"{escape(tag)}\n{escape(agent.label)}", of_tag)
        for tag, tasks in _tasks_by_tag(summary).items()
        for agent in summary.agents
        if (of_tag := agent.on_tasks(tasks)).tasks
    ]
    return _figures(rows, ["tag", "agent"])


def _tasks_by_tag(*summaries: Summary) -> dict[str, frozenset[str]]:
    """Return the tasks of each tag, sorted by tag; at the end those without a tag."""
    tags = tags_of(*summaries)
    known = sorted({tag for of_task in tags.values() for tag in of_task})
    by_tag = {tag: frozenset(task for task, of_task in tags.items() if tag in of_task) for tag in known}
    if rest := frozenset(task for task, of_task in tags.items() if not of_task):
        by_tag[NO_TAG] = rest
    return by_tag


def _figures(rows: Sequence[tuple[str, AgentScore]], heads: Sequence[str]) -> str:
    agents = [agent for _, agent in rows]
    return table(
        [
            *_names(heads, [name for name, _ in rows]),
            Column("tasks", [str(len(agent.tasks)) for agent in agents]),
            Column("graded", [f"{agent.graded}/{agent.rows}" for agent in agents]),
            Column("mean reward", [str(agent.mean_reward) for agent in agents]),
            Column("95% interval", [between(agent.mean_reward.interval) for agent in agents]),
            Column(
                "tasks solved", [f"{sum(one.solved > 0 for one in agent.tasks)}/{len(agent.tasks)}" for agent in agents]
            ),
            Column("tokens", [_tokens(agent) for agent in agents]),
            *([Column("cost", [str(agent.cost) for agent in agents])] if any(agent.cost for agent in agents) else []),
        ]
    )


def _names(heads: Sequence[str], names: Sequence[str]) -> Iterator[Column]:
    split = [name.split("\n") for name in names]
    yield from (Column(head, [parts[at] for parts in split], numeric=False) for at, head in enumerate(heads))


def _tokens(agent: AgentScore) -> str:
    if agent.tokens is None:
        return UNKNOWN
    return f"{agent.tokens}+" if agent.tokens_unknown else str(agent.tokens)


def changes_by(compared: Iterable[tuple[Comparison, str, str]], by: By) -> str:
    """Return a table with a row for each tag of each comparison, or for each comparison."""
    rows: list[tuple[str, Comparison]] = []
    for comparison, _, after in compared:
        if by == "agent":
            rows.append((escape(after), comparison))
            continue
        # The tags of a task are those that it has after.
        sides = (Summary((comparison.after,), 0), Summary((comparison.before,), 0))
        rows += [
            (
                f"{escape(tag)}\n{escape(after)}",
                compare(comparison.before.on_tasks(tasks), comparison.after.on_tasks(tasks)),
            )
            for tag, tasks in _tasks_by_tag(*sides).items()
        ]
    rows = [(name, one) for name, one in rows if one.tasks]
    return table(
        [
            *_names(["after"] if by == "agent" else ["tag", "after"], [name for name, _ in rows]),
            Column("tasks", [str(len(one.tasks)) for _, one in rows]),
            Column("before", [decimal(one.means[0]) for _, one in rows]),
            Column("now", [decimal(one.means[1]) for _, one in rows]),
            Column("change", [signed(one.difference or 0) for _, one in rows]),
            Column("p (two-sided)", [p_value_text(one.p_these_tasks.value) for _, one in rows]),
        ]
    )
