"""The scores of one agent: counts and figures per task and over tasks, as numbers.

Bounds show how much missing data could matter: the figure if every missing rollout had failed, and if every one had
passed.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cached_property
from typing import Final, NamedTuple

from pytest_core_rollouts.results import passing
from pytest_core_rollouts.results.health import GroupHealth
from pytest_core_rollouts.results.number_text import decimal
from pytest_core_rollouts.results.passing import PassRate, pass_at_k, pass_hat_k
from pytest_core_rollouts.results.prices import Cost

METRICS_SHOWN: Final = 32
"""Metrics that reports show of an agent. Graders of many tasks may have many."""


class Metric(NamedTuple):
    """The mean of a metric over the `rows` that have a reward and the metric. `str()` is the mean.

    The mean of an agent is that of its tasks' means.
    """

    name: str
    mean: Fraction
    rows: int

    def __str__(self) -> str:
        return f"{float(self.mean):.4g}"


class Sample(NamedTuple):
    """The result of one rollout: its reward, None for an error, and whether it solved its task."""

    reward: Fraction | None
    solved: bool


@dataclass(frozen=True)
class TaskScore:
    """One agent's samples of one task."""

    task: str
    planned: int
    rows: int  # without interrupted rollouts
    rewards: tuple[Fraction, ...]  # of the graded rows, in ascending order
    solved: int  # rows whose reward reaches the task's threshold (default 1)
    timeouts: int
    digests: frozenset[tuple[str, str]] = frozenset()  # (input, grading) of its rows: several if the task was changed
    interrupted: int = 0
    failed_turns: int = 0  # rows whose Turn failed for a reason that may or may not be the agent's doing
    grader_errors: int = 0  # rows with an answer and no reward, because the grader failed
    tags: frozenset[str] = frozenset()  # of all its rows
    tokens: int | None = None  # None if no row has a usage
    tokens_unknown: int = 0  # rows whose usage is unknown
    metrics: tuple[Metric, ...] = ()  # by name
    cost: Cost | None = None  # None without prices
    samples: Mapping[int, Sample] = field(default_factory=dict)  # by number, if the run may stop early

    @property
    def graded(self) -> int:
        return len(self.rewards)

    @property
    def missing(self) -> int:
        """Selected rollouts without a reward: errors, and those that never ran."""
        return self.planned - self.graded

    @property
    def mean(self) -> Fraction | None:
        return passing.mean(self.rewards)

    def filled(self, reward: int) -> TaskScore:
        """Return the score if every missing rollout had this reward."""
        rewards = tuple(sorted((*self.rewards, *(Fraction(reward),) * self.missing)))
        solved = self.solved + reward * self.missing
        return dataclasses.replace(self, rewards=rewards, solved=solved, rows=self.planned)

    @property
    def of_its_rows(self) -> TaskScore:
        """The score as if nothing more had been planned than has a result or an error."""
        return dataclasses.replace(self, planned=self.rows, interrupted=0)


@dataclass(frozen=True)
class Estimate:
    """A figure over tasks: the estimate, its 95% interval, and its bounds if all missing rollouts failed or passed.

    `value` is None if no task has enough graded samples, `interval` if fewer than two tasks have. `str()` is the value
    with three decimals.
    """

    value: Fraction | None
    interval: tuple[float, float] | None
    low: Fraction | None
    high: Fraction | None
    tasks: int  # number of tasks in the estimate
    tasks_left_out: int  # tasks with too few graded samples

    def __str__(self) -> str:
        return "n/a" if self.value is None else decimal(self.value)


class TasksSolved(NamedTuple):
    """The number of tasks that at least one rollout solved, of all planned tasks. `str()` is `12/16`.

    A task without a reward is not solved. `most`: the number if every missing rollout had passed.
    """

    solved: int
    tasks: int
    most: int

    def __str__(self) -> str:
        return f"{self.solved}/{self.tasks}"


@dataclass(frozen=True)
class AgentScore:
    """All rows of one agent."""

    harness: str
    model: str
    name: str | None  # of its agent file
    digest: str  # of the whole agent
    began: str  # when its first rollout started, ISO 8601 in UTC; "" if no row says
    label: str  # unique in its summary
    planned: int
    planned_tasks: int
    tasks: tuple[TaskScore, ...]  # those with a row, by id
    xfails: tuple[TaskScore, ...]  # the same of rollouts that were expected to fail, which nothing else counts
    mean_duration: float | None  # seconds, of graded rollouts
    tokens: int | None  # None if no row has a usage
    tokens_unknown: int  # rows whose usage is unknown
    groups: GroupHealth
    faults: tuple[tuple[str, int], ...]  # kinds of errors with their counts, the most frequent first
    cost: Cost | None = None  # of all rows; None without prices
    rounds: str = ""  # which ones are counted, of a run that stopped early
    whys: tuple[tuple[str, str, int], ...] = ()  # tasks and why graded rewards are below 1, with their counts

    @property
    def identity(self) -> tuple[str, str, str | None]:
        """What identifies the agent across runs, even if its file was changed."""
        return self.harness, self.model, self.name

    @property
    def rows(self) -> int:
        return sum(task.rows for task in self.tasks)

    @property
    def graded(self) -> int:
        return sum(task.graded for task in self.tasks)

    @property
    def solved(self) -> int:
        return sum(task.solved for task in self.tasks)

    @property
    def errors(self) -> int:
        return self.rows - self.graded

    @property
    def timeouts(self) -> int:
        return sum(task.timeouts for task in self.tasks)

    @property
    def not_run(self) -> int:
        """Selected rollouts that never ran or were interrupted."""
        return self.planned - self.rows

    @property
    def interrupted(self) -> int:
        return sum(task.interrupted for task in self.tasks)

    @property
    def missing(self) -> int:
        return self.planned - self.graded

    @property
    def gained(self) -> list[TaskScore]:
        """Tasks that were expected to fail, and of which at least half of the planned samples pass."""
        return [task for task in self.xfails if 2 * task.solved >= task.planned]

    def filled(self, reward: int) -> AgentScore:
        """Return the score if every missing rollout of the tasks with a row had this reward."""
        return dataclasses.replace(self, tasks=tuple(task.filled(reward) for task in self.tasks))

    @property
    def of_its_rows(self) -> AgentScore:
        """The score as if nothing more had been planned than has a result or an error."""
        tasks = tuple(task.of_its_rows for task in self.tasks if task.rows)
        return dataclasses.replace(self, tasks=tasks, planned=self.rows, planned_tasks=len(tasks))

    def on_tasks(self, ids: Collection[str]) -> AgentScore:
        """Return the score on some tasks. What was planned of tasks without a row stays planned.

        Kinds of errors, groups and durations are left out: they are not known by task.
        """
        tasks, xfails = (tuple(one for one in some if one.task in ids) for some in (self.tasks, self.xfails))
        known = [one.tokens for one in (*tasks, *xfails) if one.tokens is not None]
        return dataclasses.replace(
            self,
            tasks=tasks,
            xfails=xfails,
            planned=self.planned - sum(one.planned for one in self.tasks) + sum(one.planned for one in tasks),
            planned_tasks=self.planned_tasks - len(self.tasks) + len(tasks),
            mean_duration=None,
            tokens=sum(known) if known else None,
            tokens_unknown=sum(one.tokens_unknown for one in (*tasks, *xfails)),
            cost=None if self.cost is None else sum((one.cost for one in (*tasks, *xfails) if one.cost), Cost()),
            groups=GroupHealth.none(),
            faults=(),
            whys=tuple(why for why in self.whys if why[0] in ids),
        )

    @cached_property
    def metrics(self) -> tuple[Metric, ...]:
        """The metrics of graders, by name."""
        found: dict[str, list[Metric]] = {}
        for metric in (metric for task in self.tasks for metric in task.metrics):
            found.setdefault(metric.name, []).append(metric)
        means = {name: sum((one.mean for one in of_tasks), Fraction(0)) for name, of_tasks in found.items()}
        return tuple(
            Metric(name, means[name] / len(of_tasks), sum(one.rows for one in of_tasks))
            for name, of_tasks in sorted(found.items())
        )

    @cached_property
    def mean_reward(self) -> Estimate:
        """The mean over tasks of each task's mean reward."""

        def of_task(task: TaskScore) -> _TaskFigure:
            total = sum(task.rewards, Fraction(0))
            value = total / task.graded if task.graded else None
            return _TaskFigure(value, (total / task.planned, (total + task.missing) / task.planned), task.graded)

        return self._estimate(of_task)

    @property
    def tasks_solved(self) -> TasksSolved:
        """How many tasks at least one rollout solved."""
        solved = sum(task.solved > 0 for task in self.tasks)
        could_be = sum(not task.solved and task.missing > 0 for task in self.tasks)
        without_row = self.planned_tasks - len(self.tasks)
        return TasksSolved(solved, self.planned_tasks, solved + could_be + without_row)

    def pass_at(self, k: int) -> Estimate:
        """Return pass@k over the tasks with at least k graded samples."""
        return self._rate(pass_at_k, k)

    def pass_hat(self, k: int) -> Estimate:
        """Return pass^k over the tasks with at least k graded samples."""
        return self._rate(pass_hat_k, k)

    def figures(self, ks: Sequence[int]) -> dict[str, Estimate | TasksSolved]:
        """Return the figures that every report shows, under the names that docs/statistics.md defines."""
        return {
            "tasks solved": self.tasks_solved,
            "mean reward": self.mean_reward,
            **{f"pass@{k}": self.pass_at(k) for k in ks},
            **{f"pass^{k}": self.pass_hat(k) for k in ks if k > 1},
        }

    def _rate(self, rate: PassRate, k: int) -> Estimate:
        def of_task(task: TaskScore) -> _TaskFigure:
            ends = passing.bounds(rate, task.graded, task.solved, task.missing, k)
            return _TaskFigure(rate(task.graded, task.solved, k), ends, task.graded // k)

        return self._estimate(of_task)

    def _estimate(self, of_task: Callable[[TaskScore], _TaskFigure]) -> Estimate:
        figures = [of_task(task) for task in self.tasks]
        known = [(figure.value, figure.trials) for figure in figures if figure.value is not None]
        values = [value for value, _ in known]
        ends = [figure.ends for figure in figures if figure.ends is not None]
        ends += [(Fraction(0), Fraction(1))] * (self.planned_tasks - len(self.tasks))  # tasks without a row
        return Estimate(
            value=passing.mean(values),
            interval=passing.interval(values, [trials for _, trials in known]),
            low=passing.mean(low for low, _ in ends),
            high=passing.mean(high for _, high in ends),
            tasks=len(values),
            tasks_left_out=self.planned_tasks - len(values),
        )


@dataclass(frozen=True)
class _TaskFigure:
    value: Fraction | None
    ends: tuple[Fraction, Fraction] | None
    trials: int
