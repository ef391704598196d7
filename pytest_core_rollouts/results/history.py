"""Many runs over time: each agent's figures run by run, where they changed, and tasks that are solved sometimes.

The files of the runs are the history; nothing else is stored. Means are compared only over tasks that are the same, by
their digests, in all runs shown: a task that was changed would look like a change of the agent.
"""

from __future__ import annotations

import dataclasses
import math
import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Final

from pytest_core_rollouts.records.record import RolloutRecord
from pytest_core_rollouts.results.prices import Prices
from pytest_core_rollouts.results.scores import AgentScore, Estimate, TaskScore
from pytest_core_rollouts.results.significance import SEED
from pytest_core_rollouts.results.summary import summarize_rounds

LEAST_RUNS: Final = 3
"""Runs that a change point needs on either side."""
CHANGE_LEVEL: Final = Fraction(1, 100)
"""The largest p-value of a change that is reported. Results that wander a little from night to night, without any
change, are reported in 2 to 6% of histories at this level, and in 8 to 16% at 0.05."""
SHUFFLES: Final = 999
RECENT_RUNS: Final = 10
LEAST_SAMPLES: Final = 8
"""Graded samples in the recent runs that a task needs to be listed as solved sometimes."""
MOST_TASKS: Final = 10

Versions = Mapping[str, str]
"""The versions of the programs that made a run, by name."""


@dataclass(frozen=True)
class RunResult:
    """One agent's results in one run."""

    run_id: str
    score: AgentScore
    reward: Estimate
    """The mean reward over the tasks that are the same in all runs shown."""
    complete: bool
    """Whether every planned rollout has a row. If not, the run is in no comparison over time."""
    changes: tuple[str, ...]
    """What is not as in the run before: the agent, tasks, programs."""


@dataclass(frozen=True)
class ChangePoint:
    """Where the mean reward changed most: from this run on, by its position among the complete runs."""

    position: int
    before: float
    after: float
    p: Fraction
    """How often shuffled runs show a change of this size."""


@dataclass(frozen=True)
class Sometimes:
    """A task that was solved by some and not by all samples in the recent runs."""

    task: str
    solved: int
    graded: int

    @property
    def disagreement(self) -> float:
        """The chance that two samples differ: 2 p (1 - p)."""
        share = self.solved / self.graded
        return 2 * share * (1 - share)


@dataclass(frozen=True)
class AgentHistory:
    """The runs of one agent in order of time."""

    label: str
    runs: tuple[RunResult, ...]
    tasks: int
    """Number of tasks that are the same in all complete runs."""
    change: ChangePoint | None
    sometimes: tuple[Sometimes, ...]

    @property
    def compared(self) -> list[RunResult]:
        """The runs that are compared over time."""
        return [run for run in self.runs if run.complete and run.reward.value is not None]


def histories(rows: Iterable[RolloutRecord], last: int, prices: Prices | None = None) -> list[AgentHistory]:
    """Return the history of each agent over its `last` runs. Rows of replays are left out: nothing ran in them."""
    of_runs: dict[str, list[RolloutRecord]] = {}
    for row in rows:
        if "replay_of" not in row.settings:
            of_runs.setdefault(row.run_id, []).append(row)
    began = {run_id: min(row.started_at or "" for row in of_run) for run_id, of_run in of_runs.items()}
    agents: dict[tuple[str, str, str | None], list[tuple[str, AgentScore, Versions]]] = {}
    for run_id in sorted(of_runs, key=lambda run_id: (began[run_id], run_id)):
        versions = _versions(of_runs[run_id])
        scores = {
            score.identity: score
            for score in sorted(summarize_rounds(of_runs[run_id], prices=prices).agents, key=lambda one: one.began)
        }
        for identity, score in scores.items():  # the newest version of an agent that was changed within a run
            agents.setdefault(identity, []).append((run_id, score, versions))
    return [_history(runs[-last:]) for _, runs in sorted(agents.items(), key=lambda one: str(one[0]))]


def _versions(rows: Iterable[RolloutRecord]) -> Versions:
    found: dict[str, str] = {}
    for row in rows:
        versions = row.settings.get("versions")
        if isinstance(versions, Mapping):
            found.update({str(name): str(version) for name, version in versions.items()})
    return found


def _history(runs: Sequence[tuple[str, AgentScore, Versions]]) -> AgentHistory:
    same = _same_tasks([score for _, score, _ in runs])
    results = tuple(
        RunResult(
            run_id, score, _over(score, same), _is_complete(score), _changes(runs[at - 1] if at else None, runs[at])
        )
        for at, (run_id, score, _) in enumerate(runs)
    )
    label = runs[-1][1].label
    history = AgentHistory(label, results, len(same), None, _sometimes([score for _, score, _ in runs[-RECENT_RUNS:]]))
    values = [float(run.reward.value) for run in history.compared if run.reward.value is not None]
    change = change_point(values)
    return dataclasses.replace(history, change=change if change is not None and change.p <= CHANGE_LEVEL else None)


def _is_complete(score: AgentScore) -> bool:
    return score.rows >= score.planned


def _same_tasks(scores: Sequence[AgentScore]) -> frozenset[str]:
    """Return the tasks that all complete runs have in one and the same version."""
    digests: dict[str, set[frozenset[tuple[str, str]]]] = {}
    seen: dict[str, int] = {}
    complete = [score for score in scores if _is_complete(score)]
    for score in complete:
        for task in score.tasks:
            digests.setdefault(task.task, set()).add(task.digests)
            seen[task.task] = seen.get(task.task, 0) + 1
    return frozenset(task for task, versions in digests.items() if len(versions) == 1 and seen[task] == len(complete))


def _over(score: AgentScore, tasks: frozenset[str]) -> Estimate:
    chosen = tuple(task for task in score.tasks if task.task in tasks)
    return dataclasses.replace(score, tasks=chosen, planned_tasks=len(chosen)).mean_reward


def _changes(
    before: tuple[str, AgentScore, Versions] | None, after: tuple[str, AgentScore, Versions]
) -> tuple[str, ...]:
    if before is None:
        return ()
    found = []
    if before[1].digest != after[1].digest:
        found.append("agent changed")
    old, new = ({task.task: task.digests for task in score.tasks} for score in (before[1], after[1]))
    for names, what in (
        (old.keys() & new.keys() & {task for task in new if old.get(task) != new[task]}, "changed"),
        (new.keys() - old.keys(), "new"),
        (old.keys() - new.keys() if _is_complete(after[1]) else (), "gone"),
    ):
        if names:
            found.append(f"{len(names)} {'task' if len(names) == 1 else 'tasks'} {what}")
    for name in sorted(before[2].keys() | after[2].keys()):
        if before[2].get(name) != after[2].get(name):
            found.append(f"{name} {before[2].get(name, 'none')} -> {after[2].get(name, 'none')}")
    return tuple(found)


def change_point(values: Sequence[float]) -> ChangePoint | None:
    """Return where the mean of a series changes most, with a p-value; None for fewer than six values.

    The statistic is the largest |mean left - mean right| * sqrt(k (n - k) / n) over all splits with at least three
    values on either side. The p-value is the share of 999 seeded shuffles, and of the series itself, with a change at
    least as large: a permutation test (Good 2005, "Permutation, Parametric and Bootstrap Tests of Hypotheses", 3rd
    edition, section 1.1), which supposes that without a change the order of the runs does not matter.
    """
    if len(values) < 2 * LEAST_RUNS:
        return None
    size, position = _largest_change(values)
    source, shuffled, as_large = random.Random(SEED), list(values), 1
    for _ in range(SHUFFLES):
        source.shuffle(shuffled)
        as_large += _largest_change(shuffled)[0] >= size - 1e-12
    left, right = values[:position], values[position:]
    p = Fraction(as_large, SHUFFLES + 1)
    return ChangePoint(position, math.fsum(left) / len(left), math.fsum(right) / len(right), p)


def _largest_change(values: Sequence[float]) -> tuple[float, int]:
    number, total, left = len(values), math.fsum(values), 0.0
    found = (-1.0, 0)
    for at in range(1, number - LEAST_RUNS + 1):
        left += values[at - 1]
        if at >= LEAST_RUNS:
            difference = abs(left / at - (total - left) / (number - at))
            found = max(found, (difference * math.sqrt(at * (number - at) / number), at))
    return found


def _sometimes(scores: Sequence[AgentScore]) -> tuple[Sometimes, ...]:
    """Return the tasks whose results vary most, as they are in the newest run that has them."""
    tasks: dict[str, list[TaskScore]] = {}
    for score in scores:
        for task in score.tasks:
            tasks.setdefault(task.task, []).append(task)
    found = []
    for name, samples in tasks.items():
        same = [task for task in samples if task.digests == samples[-1].digests]
        one = Sometimes(name, sum(task.solved for task in same), sum(task.graded for task in same))
        if one.graded >= LEAST_SAMPLES and 0 < one.solved < one.graded:
            found.append(one)
    return tuple(sorted(found, key=lambda one: (-one.disagreement, one.task))[:MOST_TASKS])
