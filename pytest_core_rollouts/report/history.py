"""The history of runs as text for a terminal, and as one HTML page with a picture for each agent."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pytest_core_rollouts.report.cells import Column, escape, prose, table
from pytest_core_rollouts.report.html import require_jinja
from pytest_core_rollouts.results.history import RECENT_RUNS, AgentHistory, RunResult
from pytest_core_rollouts.results.number_text import UNKNOWN, between, decimal, p_clause
from pytest_core_rollouts.text import counted, one_line

BARS: Final = "\u2581\u2582\u2583\u2584\u2585\u2586\u2587\u2588"
PLAIN_BARS: Final = "_.,:;+*#"
"""The same for an output that has no block characters."""
TEMPLATE: Final = Path(__file__).parent / "templates" / "history.html"
WIDTH, HEIGHT, LEFT, BOTTOM, TOP = 720, 180, 36, 24, 10
"""Of a picture, in CSS pixels, with its margins."""


def history_text(agents: Sequence[AgentHistory], *, bars: str = BARS) -> str:
    """Return the history as Markdown: per agent a line of bars, the change point, a row per run, unsteady tasks.

    `bars`: eight characters for the mean reward from 0 to 1; a run that is not compared is a space.
    """
    return "\n".join(_agent(agent, bars) for agent in agents)


def _agent(agent: AgentHistory, bars: str) -> str:
    line = "".join(_bar(run, bars) for run in agent.runs)
    parts = [f"{escape(agent.label)}: {_scope(agent)}\n", f"\n{line}\n", f"\n{_change(agent)}\n\n", _table(agent)]
    if agent.sometimes:
        parts.append(f"\nSolved sometimes, over the last {min(RECENT_RUNS, len(agent.runs))} runs:\n\n")
        parts += [f"- {escape(name)}: {text}\n" for name, text in sometimes_texts(agent)]
    return "".join(parts)


def _bar(run: RunResult, bars: str) -> str:
    if not run.complete or run.reward.value is None:
        return " "
    return bars[min(7, int(run.reward.value * 8))]


def _scope(agent: AgentHistory) -> str:
    compared = len(agent.compared)
    if not agent.tasks:
        return f"{counted(len(agent.runs), 'run')}; no task is the same in all of them, so show fewer with --last"
    runs = "all" if compared == len(agent.runs) else compared
    verb = "is" if agent.tasks == 1 else "are"
    return (
        f"{counted(len(agent.runs), 'run')}, compared over {counted(agent.tasks, 'task')} that {verb} the same in "
        f"{runs} of them"
    )


def _change(agent: AgentHistory) -> str:
    """Return the sentence about the change point."""
    if agent.change is None:
        return "no change in the mean reward (p > 0.01)"
    change, first = agent.change, agent.compared[agent.change.position]
    what = f"; there: {', '.join(first.changes)}" if first.changes else ""
    return (
        f"mean reward {decimal(change.before)} -> {decimal(change.after)} from run {prose(first.run_id)} on "
        f"({p_clause(change.p)}){prose(what)}"
    )


def _table(agent: AgentHistory) -> str:
    runs = agent.runs
    costs = [Column("cost", list(map(_cost, runs)))] if any(run.score.cost for run in runs) else []
    return table(
        [
            Column("run", [escape(run.run_id) for run in runs], numeric=False),
            Column("mean reward", [str(run.reward) for run in runs]),
            Column("95% interval", [between(run.reward.interval) for run in runs]),
            Column("graded", [f"{run.score.graded}/{run.score.planned}" for run in runs]),
            Column("errors", [str(run.score.errors) for run in runs]),
            Column("tokens", [_tokens(run) for run in runs]),
            *costs,
            Column("notes", [escape(", ".join(notes(run)) or UNKNOWN) for run in runs], numeric=False),
        ]
    )


def _tokens(run: RunResult) -> str:
    if run.score.tokens is None:
        return UNKNOWN
    return f"{run.score.tokens:,}{'+' if run.score.tokens_unknown else ''}"


def _cost(run: RunResult) -> str:
    return UNKNOWN if run.score.cost is None else str(run.score.cost)


def notes(run: RunResult) -> list[str]:
    """Return what a reader must know of a run: whether it is incomplete, and what changed since the one before."""
    rounds = [f"stopped early, {run.score.rounds}"] if run.score.rounds else []
    return [*([] if run.complete else ["incomplete, not compared"]), *rounds, *run.changes]


def sometimes_texts(agent: AgentHistory) -> Iterator[tuple[str, str]]:
    """Yield each task that is solved sometimes, with its counts."""
    for one in agent.sometimes:
        yield one.task, f"{one.solved}/{one.graded} (two samples differ {one.disagreement:.0%} of the time)"


# ---- HTML


@dataclass(frozen=True)
class Mark:
    """A run in the picture, in CSS pixels."""

    x: float
    y: float
    low: float
    high: float
    title: str
    changed: bool
    compared: bool


def write_history_html(agents: Sequence[AgentHistory], path: Path) -> None:
    """Write the page. Raises HtmlReportError without the extra `report`, and OSError."""
    require_jinja()
    import jinja2

    environment = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True)
    template = environment.from_string(TEMPLATE.read_text(encoding="utf-8"))
    sections = [
        {
            "label": one_line(agent.label),
            "scope": _scope(agent),
            "change": _change(agent),
            "changed": agent.change is not None,
            "marks": _marks(agent),
            "sometimes": list(sometimes_texts(agent)),
            "costs": any(run.score.cost for run in agent.runs),
            "runs": [
                (run.run_id, str(run.reward), between(run.reward.interval), _tokens(run), _cost(run), notes(run))
                for run in agent.runs
            ],
        }
        for agent in agents
    ]
    page = template.render(
        sections=sections, width=WIDTH, height=HEIGHT, left=LEFT, lines=[(_y(v), v) for v in (0, 0.5, 1)]
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(page, encoding="utf-8")


def _y(value: float) -> float:
    return round(HEIGHT - BOTTOM - value * (HEIGHT - BOTTOM - TOP), 1)


def _marks(agent: AgentHistory) -> list[Mark]:
    step = (WIDTH - LEFT - 12) / max(1, len(agent.runs) - 1)
    marks = []
    for at, run in enumerate(agent.runs):
        if run.reward.value is None:
            continue
        value = float(run.reward.value)
        low, high = run.reward.interval or (value, value)
        title = ", ".join([run.run_id, f"mean reward {run.reward} ({between(run.reward.interval)})", *notes(run)])
        marks.append(
            Mark(round(LEFT + at * step, 1), _y(value), _y(low), _y(high), title, bool(run.changes), run.complete)
        )
    return marks
