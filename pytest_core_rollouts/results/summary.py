"""Summaries of rows: counts and figures per agent and per task, as numbers.

A row without a reward (an error, a cancelled rollout) is missing data: it is not graded, is counted separately, and its
task stays in the summary. A rollout that was interrupted because its run stopped counts as not run, though it has a
row. Bounds show how much missing data could matter: the figure if every missing rollout had failed, and if every one
had passed.

Rollouts that were expected to fail are in no figure; each agent has them apart, in `xfails`. Only tokens, which say
what a run cost, and kinds of errors are of all rows.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import Any, NamedTuple

from pytest_core_rollouts.records.record import RolloutRecord, slim_rows
from pytest_core_rollouts.records.rows import effective_rows
from pytest_core_rollouts.results import passing
from pytest_core_rollouts.results.health import (
    GroupHealth,
    failed_turn_warnings,
    fault_kind,
    grader_warnings,
    group_health,
    is_grader_error,
    is_unexplained,
)
from pytest_core_rollouts.results.number_text import decimal
from pytest_core_rollouts.results.passing import PassRate, pass_at_k, pass_hat_k


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


@dataclass(frozen=True)
class Summary:
    """The scores of all agents, sorted by harness, model and name."""

    agents: tuple[AgentScore, ...]
    planned: int  # rollouts, without those that were expected to fail
    runs: int = 1  # number of runs that the rows come from

    @property
    def rows(self) -> int:
        return sum(agent.rows for agent in self.agents)

    @property
    def graded(self) -> int:
        return sum(agent.graded for agent in self.agents)

    @property
    def solved(self) -> int:
        return sum(agent.solved for agent in self.agents)

    @property
    def tasks(self) -> tuple[str, ...]:
        """Ids of the tasks with a row, sorted; without those that every agent was expected to fail."""
        return tuple(sorted({task.task for agent in self.agents for task in agent.tasks}))

    @property
    def warnings(self) -> list[str]:
        """Warnings that a reader needs before trusting the figures."""
        tasks = {agent.label: (*agent.tasks, *agent.xfails) for agent in self.agents}
        return [*failed_turn_warnings(tasks), *grader_warnings(tasks)]

    @property
    def samples(self) -> tuple[int, int]:
        """The smallest and the largest number of planned samples per task and agent; (0, 0) without rows."""
        counts = [task.planned for agent in self.agents for task in agent.tasks]
        return (min(counts), max(counts)) if counts else (0, 0)

    @property
    def ks(self) -> list[int]:
        """The k of pass@k and pass^k that tables show: powers of two, and the largest number of planned samples."""
        most = self.samples[1]
        return [1 << power for power in range(most.bit_length()) if 1 << power < most] + ([most] if most else [])


def summarize(records: Iterable[RolloutRecord], planned: int = 0) -> Summary:
    """Summarize the effective rows of one run, or of several merged.

    `planned`, the number of planned rollouts, is only needed if there may be no row, because rows contain it.
    The order of the rows does not matter, except among those of one rollout.
    """
    rows, xfails = _split([row.record for row in effective_rows(slim_rows(records)).values()])
    planned -= sum(row.planned["group"] for row in _first_of_groups(xfails))
    by_agent: dict[tuple[str, str, str, str], tuple[list[RolloutRecord], list[RolloutRecord]]] = {}
    by_run: dict[str, int] = {}
    for at, some in enumerate((rows, xfails)):
        for record in some:
            by_agent.setdefault(agent_key(record), ([], []))[at].append(record)
            by_run[record.run_id] = max(by_run.get(record.run_id, 0), record.planned.get("run", 0))
    labels = _labels(by_agent)
    agents = tuple(_agent_score(labels[key], *by_agent[key]) for key in sorted(by_agent))
    most = max(planned, sum(by_run.values()), sum(agent.planned for agent in agents))
    return Summary(agents, most, max(1, len(by_run)))


def _split(rows: Sequence[RolloutRecord]) -> tuple[Sequence[RolloutRecord], Sequence[RolloutRecord]]:
    """Return the rows of rollouts that were not expected to fail, and of those that were.

    `planned` of a row then only counts rollouts of the same kind.
    """
    if not any(row.xfail for row in rows):
        return rows, ()
    groups: dict[tuple[str, Any, str], list[RolloutRecord]] = {}
    for row in rows:
        groups.setdefault((row.run_id, agent_key(row), row.task), []).append(row)
    less: Counter[tuple[Any, ...]] = Counter()
    for (run_id, agent, task), group in groups.items():
        xfails = sum(row.xfail for row in group)
        if xfails == len(group):  # the whole task, including rollouts that did not run
            xfails = max(xfails, *(row.planned.get("group", 0) for row in group))
            less[run_id, agent, "tasks"] += 1
        less[run_id, agent, task, "group"] = xfails
        less[run_id, agent, "agent"] += xfails
        less[run_id, "run"] += xfails

    def plan(row: RolloutRecord) -> dict[str, int]:
        run_id, agent = row.run_id, agent_key(row)
        xfails = {
            "run": less[run_id, "run"],
            "agent": less[run_id, agent, "agent"],
            "tasks": less[run_id, agent, "tasks"],
            "group": less[run_id, agent, row.task, "group"],
        }
        if not row.xfail:
            return {what: count - xfails.get(what, 0) for what, count in row.planned.items()}
        run = row.planned.get("run", 0) - xfails["run"]
        return {"run": max(0, run), "group": xfails["group"]}

    planned = [dataclasses.replace(row, planned=plan(row)) for row in rows]
    return [row for row in planned if not row.xfail], [row for row in planned if row.xfail]


def _first_of_groups(rows: Iterable[RolloutRecord]) -> Iterable[RolloutRecord]:
    return {(row.run_id, agent_key(row), row.task): row for row in rows}.values()


def agent_key(record: RolloutRecord) -> tuple[str, str, str, str]:
    """Return what identifies a row's agent: harness, model, name, digest. `Summary.agents` is sorted by it."""
    name, digest = record.agent.get("name"), record.agent.get("digest")
    return record.harness, record.model, str(name or ""), str(digest or "")


def _labels(keys: Iterable[tuple[str, str, str, str]]) -> dict[tuple[str, str, str, str], str]:
    """Return a unique short name for each agent.

    It is the agent file's name or harness/model. If two are equal, the start of the digest is added; if those are equal
    too (an agent file can have the name of a harness), a number.
    """
    plain = {key: key[2] or (key[0] if key[1] == "default" else f"{key[0]}/{key[1]}") for key in sorted(keys)}
    often = Counter(plain.values())
    labels: dict[tuple[str, str, str, str], str] = {}
    for key, label in plain.items():
        own = f"{label} {key[3][:6]}".rstrip() if often[label] > 1 else label
        numbered = (f"{own} ({number})" for number in itertools.count(2))
        taken = set(labels.values())
        labels[key] = next(one for one in itertools.chain((own,), numbered) if one not in taken)
    return labels


def _agent_score(label: str, rows: Sequence[RolloutRecord], xfails: Sequence[RolloutRecord]) -> AgentScore:
    tasks, every = _task_scores(rows), [*rows, *xfails]
    durations = [row.duration_s for row in rows if row.graded and row.duration_s is not None]
    tokens = [count for row in every if (count := row.tokens) is not None]
    faulty = [row for row in every if not (row.graded or row.interrupted)]
    whys = Counter((row.task, row.why) for row in rows if row.graded and row.why is not None)
    return AgentScore(
        harness=every[0].harness,
        model=every[0].model,
        name=every[0].agent.get("name"),
        digest=str(every[0].agent.get("digest") or ""),
        began=min((row.started_at for row in every if row.started_at is not None), default=""),
        label=label,
        planned=_planned(rows, "agent", sum(task.planned for task in tasks)),
        planned_tasks=_planned(rows, "tasks", len(tasks)),
        tasks=tasks,
        xfails=_task_scores(xfails),
        mean_duration=math.fsum(durations) / len(durations) if durations else None,
        tokens=sum(tokens) if tokens else None,
        tokens_unknown=len(every) - len(tokens),
        groups=group_health(rows),
        faults=tuple(sorted(Counter(map(fault_kind, faulty)).items(), key=lambda kind: (-kind[1], kind[0]))),
        whys=tuple(sorted((task, why, count) for (task, why), count in whys.items())),
    )


def _task_scores(rows: Iterable[RolloutRecord]) -> tuple[TaskScore, ...]:
    by_task: dict[str, list[RolloutRecord]] = {}
    for row in rows:
        by_task.setdefault(row.task, []).append(row)
    return tuple(_task_score(task, by_task[task]) for task in sorted(by_task))


def _task_score(task: str, rows: Sequence[RolloutRecord]) -> TaskScore:
    interrupted = sum(row.interrupted for row in rows)
    return TaskScore(
        task=task,
        planned=_planned(rows, "group", len(rows)),
        rows=len(rows) - interrupted,
        rewards=tuple(sorted(_exact(row.reward) for row in rows if row.reward is not None)),
        solved=sum(row.solved for row in rows),
        timeouts=sum(row.status == "timeout" for row in rows),
        digests=frozenset((row.input_digest, row.grading_digest) for row in rows),
        interrupted=interrupted,
        failed_turns=sum(map(is_unexplained, rows)),
        grader_errors=sum(map(is_grader_error, rows)),
    )


def _exact(reward: float) -> Fraction:
    """Return the decimal that the reward is written as: four rewards of 0.7 have a mean of exactly 0.7."""
    return Fraction(repr(reward))


def _planned(rows: Iterable[RolloutRecord], what: str, least: int) -> int:
    """Return the planned number over all runs (a resume may have selected fewer), but at least `least`."""
    by_run: dict[str, int] = {}
    for row in rows:
        by_run[row.run_id] = max(by_run.get(row.run_id, 0), row.planned.get(what, 0))
    return max(least, max(by_run.values(), default=0) if what == "tasks" else sum(by_run.values()))
