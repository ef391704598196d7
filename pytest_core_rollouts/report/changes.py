"""A comparison as text: what changed, how certain it is, and which drops it could not detect."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from pytest_core_rollouts.report.cells import Column, escape, prose, table, wrapped
from pytest_core_rollouts.results.comparison import Comparison, Power, TaskChange
from pytest_core_rollouts.results.number_text import decimal, p_clause, p_value_text, signed
from pytest_core_rollouts.results.scores import AgentScore
from pytest_core_rollouts.text import listed

FEW = 5
"""Number of tasks named in a terminal without -v."""


def changes(comparison: Comparison, before: str, after: str, *, width: int | None = None, whole: bool = True) -> str:
    """Return Markdown, also for terminals (`width` columns): `after` compared with `before`, worst tasks first.

    If not `whole`, tasks are named in a sentence instead of a table.
    """
    after, before = _named(after, comparison.after), _named(before, comparison.before)
    changed = sorted((one for one in comparison.tasks if one.difference), key=lambda one: (one.difference, one.task))
    sentences = [*_certainty(comparison), *_left_out(comparison, whole=whole)]
    if not whole and (worst := _worst(changed)):
        sentences.insert(0, worst)
    lines = [wrapped(f"{prose(after)} compared with {prose(before)}: {headline(comparison)}.", width)]
    lines += [wrapped(f"- {sentence}", width) for sentence in sentences]
    if whole and changed:
        lines += ["", table(_columns(changed))]
    if whole and (same := len(comparison.tasks) - len(changed)):
        lines += [*([] if changed else [""]), f"{same} task{'s' if same > 1 else ''} without a change.\n"]
    return "\n".join(lines).rstrip("\n") + "\n"


def _named(name: str, agent: AgentScore) -> str:
    """Return the name of a side, with the rounds that are counted of a run that stopped early."""
    return f"{name} ({agent.rounds})" if agent.rounds else name


def headline(comparison: Comparison) -> str:
    """Return the change in one clause."""
    if comparison.difference is None:
        return "no task can be compared"
    before, after = comparison.means
    tasks = len(comparison.tasks)
    return (
        f"mean reward {decimal(before)} -> {decimal(after)} over {tasks} task{'s' if tasks > 1 else ''}, "
        f"{signed(comparison.difference)}{_interval(comparison)}"
    )


def _interval(comparison: Comparison) -> str:
    if comparison.interval is None:
        return ""
    low, high = comparison.interval
    return f" (95% interval {signed(low)} to {signed(high)})"


def _certainty(comparison: Comparison) -> Iterator[str]:
    if not comparison.tasks:
        return
    these, such = comparison.p_these_tasks, comparison.p_such_tasks
    if comparison.difference:
        yield (
            f"a difference this large by chance: {p_clause(these.value)} on these tasks, "
            f"{p_clause(such.value)} on tasks like these (both two-sided)"
        )
    yield from could_see(comparison.power)


def could_see(power: Power) -> Iterator[str]:
    """Yield what the comparison could detect, in clauses."""
    yield from (f"it could {sight}" for sight in detectable_changes(power))


def detectable_changes(power: Power) -> Iterator[str]:
    """Yield what can be detected: clauses that follow "it can"."""
    tasks = f"{power.tasks} task{'s' if power.tasks > 1 else ''}"
    if not power.solved:
        yield f"say nothing of lost rollouts: none of the {tasks} was solved before"
    elif power.overall is None:
        yield f"see no drop of the mean, however large: so few samples of {tasks} are too few"
    else:
        yield (
            f"see a drop of {decimal(power.overall.drop)} in the mean ({power.overall.rollouts} fewer of "
            f"{power.rollouts} rollouts solved, spread over the tasks), a smaller one only if few tasks bear it"
        )
    if power.solved and power.least is not None and not power.detects_single_task:
        n1, c1, n2 = power.least
        yield (
            f"fail no single task: even {c1}/{n1} -> 0/{n2} has {p_clause(power.p)} (two-sided), "
            f"{p_value_text(power.corrected)} after Holm's correction for {tasks}"
        )


def _left_out(comparison: Comparison, *, whole: bool) -> Iterator[str]:
    lists: Sequence[tuple[str, Sequence[str]]] = (
        ("new, not compared", comparison.new),
        ("task changed, not compared", comparison.changed),
        ("no result now", comparison.ungraded),
        ("no result before", comparison.unknown),
        ("not selected, or gone", comparison.gone),
    )
    for what, tasks in lists:
        if tasks:
            yield f"{what}: {listed(list(map(escape, tasks)), None if whole else FEW)}"


def _worst(changed: Sequence[TaskChange]) -> str:
    worse = [
        f"{escape(one.task)} {one.before.solved}/{one.before.graded} -> {one.after.solved}/{one.after.graded}"
        for one in changed
        if one.difference < 0
    ]
    return f"worse: {listed(worse, FEW)}" if worse else ""


def _columns(changed: Sequence[TaskChange]) -> list[Column]:
    return [
        Column("task", [escape(one.task) for one in changed], numeric=False),
        Column("before", [f"{one.before.solved}/{one.before.graded}" for one in changed]),
        Column("after", [f"{one.after.solved}/{one.after.graded}" for one in changed]),
        Column("change", [signed(one.difference) for one in changed]),
        Column("p (two-sided)", [p_value_text(one.p) for one in changed]),
        Column("Holm", [p_value_text(one.corrected) for one in changed]),
    ]
