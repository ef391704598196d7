"""Summaries of rows: counts and figures per agent and per task, as numbers.

A row without a reward (an error, a cancelled rollout) is missing data: it is not graded, is counted separately, and its
task stays in the summary. A rollout that was interrupted because its run stopped counts as not run, though it has a
row.

Rollouts that were expected to fail are in no figure; each agent has them separately, in `xfails`. Only tokens, which
say what a run cost, and kinds of errors are of all rows.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

from pytest_core_rollouts.records.record import RolloutRecord
from pytest_core_rollouts.records.rows import effective_rows, slim_rows
from pytest_core_rollouts.results.early_stop import Rounds, StopRule
from pytest_core_rollouts.results.health import (
    failed_turn_warnings,
    fault_kind,
    grader_warnings,
    group_health,
    is_grader_error,
    is_unexplained,
)
from pytest_core_rollouts.results.prices import Cost, Prices
from pytest_core_rollouts.results.scores import AgentScore, Metric, Sample, TaskScore


@dataclass(frozen=True)
class Summary:
    """The scores of all agents, sorted by harness, model and name."""

    agents: tuple[AgentScore, ...]
    planned: int  # rollouts, without those that were expected to fail
    runs: int = 1  # number of runs that the rows come from
    stop: StopRule | None = None  # when the run stops early, by its newest row
    rounds: Mapping[str, Rounds] = field(default_factory=dict)  # by agent's label, where others than all are counted

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


def summarize(records: Iterable[RolloutRecord], planned: int = 0, *, prices: Prices | None = None) -> Summary:
    """Summarize the effective rows of one run, or of several merged; with `prices`, also what they cost.

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
    stop = _stop_rule((*rows, *xfails))
    agents = tuple(
        _agent_score(labels[key], *by_agent[key], prices, by_sample=stop is not None) for key in sorted(by_agent)
    )
    most = max(planned, sum(by_run.values()), sum(agent.planned for agent in agents))
    return Summary(agents, most, max(1, len(by_run)), stop)


def summarize_rounds(records: Iterable[RolloutRecord], planned: int = 0, *, prices: Prices | None = None) -> Summary:
    """Summarize rows as reports show them: those of a run that stopped early only up to its last complete round.

    Further rows would bias the figures: which of them there are depends on the results of others.
    """
    rows = list(records)
    whole = summarize(rows, planned, prices=prices)
    if whole.stop is None or whole.rows >= whole.planned:
        return whole
    keys = {agent.identity: Rounds.of(agent) for agent in whole.agents}
    complete = {identity: rounds.complete for identity, rounds in keys.items()}
    shown = summarize(
        (row for row in rows if row.xfail or row.sample < complete.get(identity_of(row), 0)), prices=prices
    )
    agents = tuple(_of_rounds(agent, keys[agent.identity]) for agent in shown.agents)
    labels = {agent.label: keys[agent.identity] for agent in whole.agents}
    return Summary(agents, sum(agent.planned for agent in agents), stop=whole.stop, rounds=labels)


def identity_of(row: RolloutRecord) -> tuple[str, str, str | None]:
    """Return what identifies a row's agent across runs, as `AgentScore.identity` does."""
    return row.harness, row.model, row.agent.get("name")


def _of_rounds(agent: AgentScore, rounds: Rounds) -> AgentScore:
    tasks = tuple(dataclasses.replace(task, planned=min(task.planned, rounds.complete)) for task in agent.tasks)
    planned = sum(task.planned for task in tasks)
    return dataclasses.replace(agent, tasks=tasks, planned=planned, planned_tasks=len(tasks), rounds=str(rounds))


def _stop_rule(rows: Iterable[RolloutRecord]) -> StopRule | None:
    """Return the newest row's setting. Rows of several runs have none: each run would have stopped by itself."""
    rows = list(rows)
    if not any("stop" in row.settings for row in rows) or len({row.run_id for row in rows}) > 1:
        return None
    newest = max(rows, key=lambda row: (row.started_at or "", row.rollout_id))
    text = newest.settings.get("stop")
    return None if text is None else StopRule.parse(str(text))


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


def _agent_score(
    label: str,
    rows: Sequence[RolloutRecord],
    xfails: Sequence[RolloutRecord],
    prices: Prices | None,
    *,
    by_sample: bool,
) -> AgentScore:
    tasks, every = _task_scores(rows, prices, by_sample=by_sample), [*rows, *xfails]
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
        xfails=_task_scores(xfails, prices),
        mean_duration=math.fsum(durations) / len(durations) if durations else None,
        tokens=sum(tokens) if tokens else None,
        tokens_unknown=len(every) - len(tokens),
        cost=None if prices is None else Cost.of(every, prices),
        groups=group_health(rows),
        faults=tuple(sorted(Counter(map(fault_kind, faulty)).items(), key=lambda kind: (-kind[1], kind[0]))),
        whys=tuple(sorted((task, why, count) for (task, why), count in whys.items())),
    )


def _task_scores(
    rows: Iterable[RolloutRecord], prices: Prices | None, *, by_sample: bool = False
) -> tuple[TaskScore, ...]:
    by_task: dict[str, list[RolloutRecord]] = {}
    for row in rows:
        by_task.setdefault(row.task, []).append(row)
    return tuple(_task_score(task, by_task[task], prices, by_sample=by_sample) for task in sorted(by_task))


def _task_score(task: str, rows: Sequence[RolloutRecord], prices: Prices | None, *, by_sample: bool) -> TaskScore:
    interrupted = sum(row.interrupted for row in rows)
    tokens = [count for row in rows if (count := row.tokens) is not None]
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
        metrics=tuple(_metrics(rows)),
        tags=frozenset(tag for row in rows for tag in row.tags),
        tokens=sum(tokens) if tokens else None,
        tokens_unknown=len(rows) - len(tokens),
        cost=None if prices is None else Cost.of(rows, prices),
        samples=_samples(rows) if by_sample else {},
    )


def _samples(rows: Iterable[RolloutRecord]) -> dict[int, Sample]:
    return {
        row.sample: Sample(None if row.reward is None else _exact(row.reward), row.solved)
        for row in rows
        if not row.interrupted
    }


def _metrics(rows: Iterable[RolloutRecord]) -> Iterator[Metric]:
    values: dict[str, list[Fraction]] = {}
    for row in rows:
        for name, value in row.metrics.items() if row.graded else ():
            values.setdefault(name, []).append(_exact(value))
    for name, found in sorted(values.items()):
        yield Metric(name, sum(found, Fraction(0)) / len(found), len(found))


def _exact(reward: float) -> Fraction:
    """Return the decimal that the reward is written as: four rewards of 0.7 have a mean of exactly 0.7."""
    return Fraction(repr(reward))


def _planned(rows: Iterable[RolloutRecord], what: str, least: int) -> int:
    """Return the planned number over all runs (a resume may have selected fewer), but at least `least`."""
    by_run: dict[str, int] = {}
    for row in rows:
        by_run[row.run_id] = max(by_run.get(row.run_id, 0), row.planned.get(what, 0))
    return max(least, max(by_run.values(), default=0) if what == "tasks" else sum(by_run.values()))
