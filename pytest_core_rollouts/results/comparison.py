"""Two results compared task by task: how much they differ, and whether chance explains it. Also reads baselines.

Only tasks that both have, unchanged, are compared: a task that was added, removed or changed says nothing about the
agent. The tests are in `significance`, the interval is in `passing`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property
from pathlib import Path
from typing import Any

from pytest_core_rollouts.records.record import RecordsError, RolloutRecord
from pytest_core_rollouts.records.rows import read_records, slim_rows
from pytest_core_rollouts.results import passing, significance
from pytest_core_rollouts.results.scores import AgentScore, TaskScore
from pytest_core_rollouts.results.significance import LEVEL, LeastDrop, PValue
from pytest_core_rollouts.results.summary import Summary, agent_key, summarize
from pytest_core_rollouts.text import listed

NAMED = 5
"""Number of tasks that a sentence names."""


@dataclass(frozen=True)
class TaskChange:
    """One task, before and after."""

    before: TaskScore
    after: TaskScore
    p: Fraction  # of solved samples, by Fisher's exact test, two-sided
    corrected: Fraction  # by Holm, for all tasks compared

    @property
    def task(self) -> str:
        return self.before.task

    @property
    def difference(self) -> Fraction:
        """The difference of the mean rewards."""
        return (self.after.mean or Fraction(0)) - (self.before.mean or Fraction(0))

    @property
    def dropped(self) -> bool:
        """Whether significantly fewer samples are solved."""
        before, after = self.before, self.after
        return self.corrected <= LEVEL and after.solved * before.graded < before.solved * after.graded


@dataclass(frozen=True)
class Comparison:
    """The compared tasks, and the ids of all others, sorted, by the reason why they were not compared."""

    before: AgentScore
    after: AgentScore
    tasks: tuple[TaskChange, ...]
    new: tuple[str, ...] = ()  # only after
    gone: tuple[str, ...] = ()  # only before
    changed: tuple[str, ...] = ()  # what the agent saw, or what graded it, is not the same
    ungraded: tuple[str, ...] = ()  # no reward after
    unknown: tuple[str, ...] = ()  # no reward before
    drop_corrected: Fraction | None = None  # p_drop by Holm, for all verdicts of the run; see `correct_for_verdicts`
    verdicts: int = 1  # their number

    @cached_property
    def difference(self) -> Fraction | None:
        """The difference of the mean rewards over the compared tasks; None without tasks."""
        return passing.mean(self._differences)

    @cached_property
    def means(self) -> tuple[Fraction | None, Fraction | None]:
        """The mean rewards over the compared tasks, before and after."""
        return passing.mean(one.before.mean for one in self.tasks), passing.mean(one.after.mean for one in self.tasks)

    @cached_property
    def interval(self) -> tuple[float, float] | None:
        """The 95% interval of the difference over tasks like these."""
        return passing.difference_interval(self._differences)

    @cached_property
    def p_such_tasks(self) -> PValue:
        """Two-sided p-value by sign-flip: would tasks like these differ?"""
        return significance.sign_flip(self._differences)

    @cached_property
    def p_these_tasks(self) -> PValue:
        """Two-sided p-value by exchanging samples within tasks: do these tasks differ?"""
        return significance.permutation(self._pairs)

    @cached_property
    def p_drop(self) -> PValue:
        """One-sided p-value, by the same test: did these tasks drop?"""
        return significance.permutation(self._pairs, drop=True)

    @property
    def dropped(self) -> bool:
        """Whether the mean reward over these tasks dropped significantly."""
        p = self.p_drop.value if self.drop_corrected is None else self.drop_corrected
        return bool(self.difference and self.difference < 0 and p <= LEVEL)

    @property
    def dropped_tasks(self) -> list[TaskChange]:
        return [one for one in self.tasks if one.dropped]

    @property
    def lost(self) -> list[TaskChange]:
        """Tasks that every sample solved before and none solves now."""
        return [one for one in self.tasks if one.before.solved == one.before.graded and not one.after.solved]

    @cached_property
    def power(self) -> Power:
        return power((one.before.graded, one.before.solved, one.after.graded) for one in self.tasks)

    @property
    def _differences(self) -> list[Fraction]:
        return [one.difference for one in self.tasks]

    @property
    def _pairs(self) -> list[significance.Pair]:
        return [(one.before.rewards, one.after.rewards) for one in self.tasks]


def compare(before: AgentScore, after: AgentScore) -> Comparison:
    """Compare two results by task."""
    old, new = ({score.task: score for score in agent.tasks} for agent in (before, after))
    both = sorted(old.keys() & new.keys())
    same = [task for task in both if old[task].digests == new[task].digests]
    pairs = [(old[task], new[task]) for task in same if old[task].graded and new[task].graded]
    values = [significance.fisher(one.graded, one.solved, two.graded, two.solved) for one, two in pairs]
    changes = zip(pairs, values, significance.holm(values), strict=True)
    return Comparison(
        before,
        after,
        tasks=tuple(TaskChange(one, two, p, corrected) for (one, two), p, corrected in changes),
        new=tuple(sorted(new.keys() - old.keys())),
        gone=tuple(sorted(old.keys() - new.keys())),
        changed=tuple(task for task in both if task not in same),
        ungraded=tuple(task for task in same if old[task].graded and not new[task].graded),
        unknown=tuple(task for task in same if not old[task].graded),
    )


@dataclass(frozen=True)
class Compared:
    """One agent compared with the baseline as it is, and as if all missing rollouts had failed, or had passed."""

    now: Comparison
    worst: Comparison
    best: Comparison

    @classmethod
    def of(cls, before: AgentScore, after: AgentScore) -> Compared:
        now = compare(before, after)
        if not after.missing:
            return cls(now, now, now)
        return cls(now, compare(before, after.filled(0)), compare(before, after.filled(1)))


def correct_for_verdicts(
    compared: Sequence[tuple[str, Compared]], *, pending_verdicts: int = 0, pending_tasks: int = 0
) -> list[Compared]:
    """Correct the p-values of all verdicts of one run by Holm. Each has the label of its agent.

    The mean drops are corrected for the number of verdicts, the drops of single tasks for all tasks of all agents.
    Otherwise, each further agent or scope would be another chance of a false alarm. What is pending counts too, where
    missing rollouts are taken for passed: a drop must stay significant when the rest has run.
    """
    if len(compared) + pending_verdicts < 2 and not pending_tasks:
        return [one for _, one in compared]
    now = _corrected([(label, one.now) for label, one in compared])
    if not (pending_verdicts or pending_tasks) and all(one.now is one.worst is one.best for _, one in compared):
        return [Compared(one, one, one) for one in now]
    worst = _corrected([(label, one.worst) for label, one in compared])
    best = _corrected([(label, one.best) for label, one in compared], pending_verdicts, pending_tasks)
    return [Compared(*three) for three in zip(now, worst, best, strict=True)]


def _corrected(
    comparisons: Sequence[tuple[str, Comparison]], pending_verdicts: int = 0, pending_tasks: int = 0
) -> list[Comparison]:
    one = Fraction(1)
    # A mean that did not drop needs no test: the largest p-values change no smaller one.
    values = [comp.p_drop.value if (comp.difference or 0) < 0 else one for _, comp in comparisons]
    drops = significance.holm([*values, *[one] * pending_verdicts])
    tasks = {(label, change.task): change.p for label, comp in comparisons for change in comp.tasks}
    of_tasks = significance.holm([*tasks.values(), *[one] * pending_tasks])
    by_task = dict(zip(tasks, of_tasks, strict=False))
    corrected = []
    for (label, comp), drop in zip(comparisons, drops, strict=False):
        changes = tuple(replace(change, corrected=by_task[label, change.task]) for change in comp.tasks)
        corrected.append(replace(comp, tasks=changes, drop_corrected=drop, verdicts=len(drops)))
    return corrected


def counterpart(agent: AgentScore, others: Summary, own: Summary) -> AgentScore | None:
    """Return the agent of `others` with the same harness, model and name, or None.

    If several match (their agent files differ), the one with the same digest is returned. If both sides have a single
    agent, these two are compared, whatever their names.
    """
    named = [other for other in others.agents if other.identity == agent.identity]
    if len(named) > 1:
        named = [other for other in named if other.digest == agent.digest]
    if not named and len(others.agents) == len(own.agents) == 1:
        return others.agents[0]
    return named[0] if named else None


# What a comparison could detect


@dataclass(frozen=True)
class Power:
    """What a comparison of these sizes can detect."""

    tasks: int
    least: tuple[int, int, int] | None  # (n before, c before, n after) of the task whose drop to 0 has the smallest p
    p: Fraction  # of that drop
    corrected: Fraction  # the same after Holm's correction for all tasks
    overall: LeastDrop | None  # None: no drop could be significant
    rollouts: int  # after
    solved: int  # before

    @property
    def detects_single_task(self) -> bool:
        """Whether a drop of a single task could be significant."""
        return self.corrected <= LEVEL


def power(counts: Iterable[tuple[int, int, int]]) -> Power:
    """Return what can be detected, given each task's (n before, c before, n after)."""
    tasks: Sequence[tuple[int, int, int]] = [one for one in counts if one[0] and one[2]]
    falls = [(significance.least_fisher(*one), one) for one in tasks]
    p, least = min(falls, default=(Fraction(1), None))
    return Power(
        tasks=len(tasks),
        least=least,
        p=p,
        corrected=min(Fraction(1), p * max(1, len(tasks))),
        overall=significance.least_drop(tasks),
        rollouts=sum(more for _, _, more in tasks),
        solved=sum(solved for _, solved, _ in tasks),
    )


# A baseline


@dataclass(frozen=True)
class Baseline:
    """The file of an earlier run and the summary of its rows."""

    path: Path
    summary: Summary
    lacks: str = ""
    """Which of its planned rollouts have no result and no error, as a clause; empty if all have."""

    def of(self, agent: AgentScore, own: Summary) -> AgentScore | None:
        """Return the agent's results in the baseline; see `counterpart`."""
        return counterpart(agent, self.summary, own)

    def comparisons(self, summary: Summary) -> list[Comparison]:
        """Return a comparison for each agent of `summary` that the baseline has."""
        pairs = [(self.of(agent, summary), agent) for agent in summary.agents]
        return [compare(before, agent) for before, agent in pairs if before is not None]


def load_baseline(path: Path, *, exclude_run: str | None = None) -> Baseline:
    """Read the file, without the rows of `exclude_run`.

    If a task was changed between the runs of the file, only its newest version counts. Raises RecordsError if the file
    can't be read or has no reward.
    """
    rows = [record for record in slim_rows(read_records(path, items=False)) if record.run_id != exclude_run]
    if stopped := [run_id for run_id, of_run in _by_run(rows).items() if _stopped_early(of_run)]:
        raise RecordsError(
            f"{path}: run {stopped[0]} stopped early (--rollout-stop), so its results are no baseline; finish it with "
            f"--rollout-resume {path} and without --rollout-stop, or take another file"
        )
    summary = summarize(newest_versions(rows))
    if not any(agent.graded for agent in summary.agents):
        raise RecordsError(f"{path}: no graded rollouts to compare with")
    return Baseline(path, summary, missing_rows(path, rows))


def _by_run(rows: Iterable[RolloutRecord]) -> dict[str, list[RolloutRecord]]:
    found: dict[str, list[RolloutRecord]] = {}
    for row in rows:
        found.setdefault(row.run_id, []).append(row)
    return found


def _stopped_early(rows: Sequence[RolloutRecord]) -> bool:
    summary = summarize(rows)
    return summary.stop is not None and summary.rows < summary.planned


def missing_rows(path: Path, rows: Iterable[RolloutRecord]) -> str:
    """Return which rollouts that were planned have no result and no error, as a clause; empty if all have.

    A file that was cut, or that is one of several shards, would else pass for the whole: its tasks that are not there
    would be compared with nothing.
    """
    summary = summarize(rows)
    if summary.rows >= summary.planned:
        return ""
    short = sorted({task.task for agent in summary.agents for task in agent.tasks if task.rows < task.planned})
    tasks = f" ({listed(short, NAMED)})" if short else ""
    return f"{path} lacks {summary.planned - summary.rows} of its {summary.planned} planned rollouts{tasks}"


def newest_versions(rows: Iterable[RolloutRecord]) -> Iterator[RolloutRecord]:
    """Yield the rows whose task has the digests of the newest row of that task and agent."""
    rows = list(rows)
    newest: dict[Any, tuple[str, str]] = {}
    for row in sorted(rows, key=lambda row: (row.started_at or "", row.run_id)):
        newest[_task_key(row)] = row.input_digest, row.grading_digest
    return (row for row in rows if newest[_task_key(row)] == (row.input_digest, row.grading_digest))


def _task_key(row: RolloutRecord) -> tuple[Any, str]:
    return agent_key(row), row.task


def comparisons(summary: Summary, baseline: Baseline | None) -> list[tuple[Comparison, str, str]]:
    """Compare a run with the baseline, or without one its other agents with its first.

    Returns each comparison with the names of its two sides.
    """
    if baseline is not None:
        name = baseline.path.name
        return [
            (one, name, "this run")
            if len(summary.agents) == 1
            else (one, f"{one.before.label} in {name}", one.after.label)
            for one in baseline.comparisons(summary)
        ]
    return compared_agents(summary)


def compared_agents(summary: Summary) -> list[tuple[Comparison, str, str]]:
    """Compare the first agent with each of the others, and name them. Versions of one agent are in order of time."""
    if not summary.agents:
        return []
    order = sorted(summary.agents, key=lambda agent: (agent.harness, agent.model, agent.name or "", agent.began))
    first, *others = order
    return [(compare(first, other), first.label, other.label) for other in others]
