"""The first table of a report: a row per agent."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from pytest_core_rollouts.report.cells import MIN_NAME, Column, clip, escape, table, table_width
from pytest_core_rollouts.results.number_text import UNKNOWN, between
from pytest_core_rollouts.results.scores import AgentScore
from pytest_core_rollouts.results.summary import Summary


@dataclass(frozen=True)
class _Figure:
    """A column of the agents' table. The one with the highest `rank` is left out first, one with rank 0 never."""

    head: str
    cell: Callable[[AgentScore], str]
    rank: float = 0
    numeric: bool = True


def agents_table(summary: Summary, width: int | None) -> str:
    """Return the table in `width` columns of a terminal, without the least important figures if they do not fit.

    None: all figures, as in a file.
    """
    figures = [*_names(summary), *_figures(summary)]
    if width is None or table_width(_columns(figures, summary)) <= width:
        return table(_columns(figures, summary))
    figures = [*_names(summary), *_short_figures(summary)]
    while table_width(_columns(figures, summary)) > width and max(figure.rank for figure in figures) > 0:
        figures.remove(max(figures, key=lambda figure: figure.rank))
    columns = _columns(figures, summary)
    if (excess := table_width(columns) - width) > 0:
        longest = max(columns, key=lambda column: column.width)
        room = max(MIN_NAME, longest.width - excess)
        shorter = Column(longest.head, [clip(cell, room) for cell in longest.cells], longest.numeric)
        columns = [shorter if column is longest else column for column in columns]
    return table(columns)


def _columns(figures: Sequence[_Figure], summary: Summary) -> list[Column]:
    return [Column(figure.head, [figure.cell(agent) for agent in summary.agents], figure.numeric) for figure in figures]


def _names(summary: Summary) -> Iterator[_Figure]:
    agents = summary.agents
    pairs = {(agent.harness, agent.model) for agent in agents}
    named = len(pairs) < len(agents) or any(
        agent.name not in (None, f"{agent.harness}-{agent.model}") for agent in agents
    )
    defaults = all(model == "default" for _, model in pairs)
    if named:
        yield _Figure("agent", lambda agent: escape(agent.label), numeric=False)
    yield _Figure("harness", lambda agent: escape(agent.harness), 4 if named else 0, numeric=False)
    yield _Figure("model", lambda agent: escape(agent.model), 5 if defaults else 3 if named else 0, numeric=False)


def _figures(summary: Summary) -> Iterator[_Figure]:
    yield _Figure("rollouts", lambda agent: str(agent.rows))
    yield _Figure("graded", _graded)
    yield _Figure("mean reward", _mean_reward)
    yield _Figure("95% interval", _interval)
    yield _Figure("tasks solved", _tasks_solved)
    yield _Figure("errors/timeouts", _faults)
    if any(agent.not_run for agent in summary.agents):
        yield _Figure("not run", lambda agent: str(agent.not_run))
    yield _Figure("mean duration (s)", _duration)
    yield _Figure("tokens", _tokens)
    if any(agent.cost for agent in summary.agents):
        yield _Figure("cost", _cost)


def _short_figures(summary: Summary) -> Iterator[_Figure]:
    yield _Figure("graded", _graded)
    yield _Figure("mean reward", _mean_reward)
    yield _Figure("95% interval", _interval, 1)
    yield _Figure("tasks solved", _tasks_solved)
    if any(agent.errors for agent in summary.agents):
        yield _Figure("errors", lambda agent: str(agent.errors), 0.5)
    if any(agent.timeouts for agent in summary.agents):
        yield _Figure("timeouts", lambda agent: str(agent.timeouts), 0.6)
    if any(agent.not_run for agent in summary.agents):
        yield _Figure("not run", lambda agent: str(agent.not_run))
    yield _Figure("mean s", _duration, 2)
    if any(agent.tokens for agent in summary.agents):
        yield _Figure("tokens", _tokens, 6)
    if any(agent.cost for agent in summary.agents):
        yield _Figure("cost", _cost, 1)


def _graded(agent: AgentScore) -> str:
    return f"{agent.graded}/{agent.rows}"


def _mean_reward(agent: AgentScore) -> str:
    return str(agent.mean_reward)


def _interval(agent: AgentScore) -> str:
    return between(agent.mean_reward.interval)


def _tasks_solved(agent: AgentScore) -> str:
    return str(agent.tasks_solved)


def _faults(agent: AgentScore) -> str:
    return f"{agent.errors}/{agent.timeouts}" if agent.errors or agent.timeouts else "0"


def _duration(agent: AgentScore) -> str:
    return UNKNOWN if agent.mean_duration is None else f"{agent.mean_duration:.1f}"


def _tokens(agent: AgentScore) -> str:
    if agent.tokens is None:
        return UNKNOWN
    return f"{agent.tokens}+" if agent.tokens_unknown else str(agent.tokens)


def _cost(agent: AgentScore) -> str:
    return UNKNOWN if agent.cost is None else str(agent.cost)
