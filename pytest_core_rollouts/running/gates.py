"""Gates and the baseline in a pytest session: checked before the first rollout, evaluated after the last."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pytest

from pytest_core_rollouts.collecting.selection import why_absent
from pytest_core_rollouts.records.record import RecordsError
from pytest_core_rollouts.report.changes import changes, detectable_changes
from pytest_core_rollouts.results.comparison import Baseline, Comparison, comparisons, load_baseline, power
from pytest_core_rollouts.results.gate import Identity, Judgment, Selection, judge
from pytest_core_rollouts.results.gate_forms import scope_problem
from pytest_core_rollouts.results.gate_kinds import Gate, NoDrop
from pytest_core_rollouts.results.scores import AgentScore, TaskScore
from pytest_core_rollouts.results.summary import Summary
from pytest_core_rollouts.running.plan import agent_sight
from pytest_core_rollouts.tasks.task import Task
from pytest_core_rollouts.text import counted, listed, one_line

if TYPE_CHECKING:
    from pytest_core_rollouts.running.session_run import SessionRun


def load_and_check(run: SessionRun, task_of: Callable[[str], Task | None]) -> Baseline | None:
    """Return the baseline, if one was given. Raises pytest.UsageError for a gate that can't be decided."""
    settings = run.settings
    _set_tags(run, task_of)
    baseline = None
    if settings.baseline is not None:
        try:
            baseline = load_baseline(settings.baseline, exclude_run=run.run_id)
        except RecordsError as error:
            raise pytest.UsageError(f"--rollout-baseline: {error}") from None
        if baseline.lacks and not settings.allow_missing:
            raise pytest.UsageError(
                f"--rollout-baseline: {baseline.lacks}; finish that run with --rollout-resume, or accept this with "
                "--rollout-allow-missing"
            )
    for gate in settings.gates:
        scope = _scope(gate, run)
        most = max(counts["group"] for (_, task), counts in run.planned.items() if scope is None or task in scope)
        if gate.needs_samples > most:
            raise pytest.UsageError(
                f"--rollout-gate {gate.expression}: needs {gate.needs_samples} samples per task, but only {most} "
                f"{'is' if most == 1 else 'are'} planned; add --samples {gate.needs_samples}"
            )
        if gate.needs_baseline and baseline is not None:
            _require_agents(run, baseline, gate.expression)
    return baseline


def _set_tags(run: SessionRun, task_of: Callable[[str], Task | None]) -> None:
    """Set the tags of the selected tasks, if a gate judges some tasks only."""
    if any(gate.scope is not None for gate in run.settings.gates):
        ids = {task for tasks in run.agent_tasks.values() for task in tasks}
        run.tags = {task_id: task.tags for task_id in sorted(ids) if (task := task_of(task_id)) is not None}


def _scope(gate: Gate, run: SessionRun) -> frozenset[str] | None:
    """Return the planned tasks that the gate judges; None for all. Raises pytest.UsageError if there are none."""
    if gate.scope is None:
        return None
    tasks = {task for _, task in run.planned}
    unknown = tasks - run.tags.keys()  # a controller does not know tasks that are made in files which only workers read
    if not unknown and (problem := scope_problem(gate, {task: run.tags[task] for task in tasks})) is not None:
        raise pytest.UsageError(f"--rollout-gate {gate.expression}: {problem}")
    return gate.scope.ids(run.tags) | unknown


def _require_agents(run: SessionRun, baseline: Baseline, gate: str) -> None:
    known = {agent.identity: agent.label for agent in baseline.summary.agents}
    if len(known) == len(run.agent_tasks) == 1:
        return
    for identity in run.agent_tasks:
        if identity not in known:
            harness, model, name = identity
            raise pytest.UsageError(
                f"--rollout-gate {gate}: {baseline.path} has no results of {name or f'{harness}/{model}'}; "
                f"it has {', '.join(known.values())}"
            )


def preflight_lines(run: SessionRun, task_of: Callable[[str], Task | None]) -> Iterator[str]:
    """Yield what a replay leaves out, and which changes the gate `baseline` can detect, before anything is paid for.

    `task_of` returns a task by its id, None if it isn't known. Raises pytest.UsageError if nothing can be compared.
    """
    yield from _replayed(run)
    yield from _taken_out(run)
    baseline = run.baseline
    if baseline is None:
        return
    for gate in run.settings.gates:
        if isinstance(gate, NoDrop):
            yield from _detectable(run, baseline, gate, task_of)


def _detectable(
    run: SessionRun, baseline: Baseline, gate: Gate, task_of: Callable[[str], Task | None]
) -> Iterator[str]:
    """Yield which changes the gate `baseline` can detect. Raises pytest.UsageError if nothing can be compared."""
    scope = _scope(gate, run)
    samples: dict[Identity, dict[str, int]] = {}
    for task, agent, _ in run.selected.values():
        if scope is not None and task not in scope:
            continue
        of_agent = samples.setdefault((agent.harness, agent.model, agent.name), {})
        of_agent[task] = of_agent.get(task, 0) + 1
    blind = True
    for before in baseline.summary.agents:
        planned = samples.get(before.identity) or (next(iter(samples.values())) if len(samples) == 1 else {})
        same = [one for one in before.tasks if one.task in planned and _is_as_before(one, before, task_of(one.task))]
        blind = blind and not same
        seen = power((score.graded, score.solved, planned[score.task]) for score in same)
        whose = f" ({before.label})" if len(samples) > 1 else ""
        if seen.tasks:
            yield from (f"gate {gate.expression}{whose} can {sight}" for sight in detectable_changes(seen))
            likely = agent_sight(dataclasses.replace(before, tasks=tuple(same)), planned)
            yield from (f"gate {gate.expression}{whose} {text}" for text in likely)
    if blind:
        raise pytest.UsageError(
            f"--rollout-gate {gate.expression}: {baseline.path} has no results of the selected tasks as they are now, "
            "so nothing can be compared; select other tasks, or run once without this gate to get a baseline"
        )


def _is_as_before(score: TaskScore, agent: AgentScore, task: Task | None) -> bool:
    """Whether a task of the baseline can be compared, as far as is known before the run."""
    if task is None:
        return True
    expected_to_fail = task.xfail is not None and task.xfail.applies_to(agent.harness, agent.model, agent.name)
    return score.digests == {(task.input_digest, task.grading_digest)} and not expected_to_fail


def _taken_out(run: SessionRun) -> Iterator[str]:
    if (shard := run.settings.shard) is not None:
        yield f"shard {shard[0]} of {shard[1]}: {len(run.selected)} of {counted(run.planned_rollouts, 'rollout')}"
    elif taken_out := run.found.taken_out:
        tasks = sorted({task for task, _, _ in taken_out})
        consequence = "" if run.settings.allow_missing else "; no gate passes without them (--rollout-allow-missing)"
        yield (
            f"planned, but not selected: {counted(len(taken_out), 'rollout')} of {listed(tasks, 5)}, which a plugin or "
            f"a conftest.py took out{consequence}"
        )


def _replayed(run: SessionRun) -> Iterator[str]:
    replay = run.settings.replay
    if replay is None:
        return
    selected = {task for tasks in run.agent_tasks.values() for task in tasks}
    left_out = sorted(task for task in replay.rows if task not in selected)
    tasks = f"; no rollout selected of {', '.join(left_out[:5])}" if left_out else ""
    more = f" and {len(left_out) - 5} more tasks" if len(left_out) > 5 else ""
    yield f"replay: {len(run.selected)} of {replay.size} rows of {one_line(str(replay.path))}{tasks}{more}"


@dataclass
class GateResults:
    """The results of gates and comparisons for a run."""

    judgments: list[Judgment] = field(default_factory=list)
    comparisons: list[tuple[Comparison, str, str]] = field(default_factory=list)
    """Each with the names of its sides."""

    @property
    def passed(self) -> bool:
        return all(judgment.passed for judgment in self.judgments)

    @property
    def undecided(self) -> bool:
        return any(judgment.passed is None for judgment in self.judgments)

    def changes(self, *, width: int | None = None, whole: bool = True) -> list[str]:
        """Return the comparisons as text."""
        return [changes(*compared, width=width, whole=whole) for compared in self.comparisons]


def judge_run(run: SessionRun, summary: Summary) -> GateResults:
    """Evaluate the gates, if there are any, and compare with the baseline."""
    settings = run.settings
    if settings.shard is not None:
        return GateResults()
    results = GateResults(comparisons=comparisons(summary, run.baseline))
    if (
        settings.soft or settings.allow_errors is not None
    ):  # `each` must count the errors that --rollout-allow-errors hides
        accepts = settings.allow_missing
        results.judgments = judge(settings.gates, summary, run.baseline, selection_of(run), accepts_missing=accepts)
    if settings.allow_errors is not None:
        results.judgments.append(settings.allow_errors.judge(summary))
    return results


def selection_of(run: SessionRun) -> Selection:
    """Return which tasks the run was to have, and why it has no rollouts of others that the baseline has."""
    if run.baseline is None:
        return Selection(run.agent_tasks, tags=run.tags)
    left_out: dict[Identity, frozenset[str]] = {}
    gone: set[str] = set()
    known = {score.task for agent in run.baseline.summary.agents for score in agent.tasks}
    for identity, tasks in run.agent_tasks.items():
        agents = [one.slug for one in run.settings.agents if (one.harness, one.model, one.name) == identity]
        why = {task: why_absent(run.config, run.found, task, agents) for task in known - tasks}
        left_out[identity] = frozenset(task for task, reason in why.items() if reason == "left out")
        gone |= {task for task, reason in why.items() if reason == "gone"}
    return Selection(run.agent_tasks, left_out, frozenset(gone), run.tags)
