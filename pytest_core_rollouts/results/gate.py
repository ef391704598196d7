"""Gates: their expressions, and whether a run passed, failed, or is undecided, and why.

A gate judges one agent's results; the caller makes an exit code of the verdict. No gate passes over what is missing:
planned rollouts that did not run, and tasks of the baseline that the run does not have. Whoever means to leave them out
says so, and then the verdict names them.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import TypeAlias

from pytest_core_rollouts.results.comparison import NAMED, Baseline, Compared, correct_for_verdicts
from pytest_core_rollouts.results.gate_kinds import (
    Evidence,
    Gate,
    NoDrop,
    Verdict,
    missing_clause,
)
from pytest_core_rollouts.results.looks import Looks
from pytest_core_rollouts.results.scope import Scope, on_tasks, tags_of
from pytest_core_rollouts.results.scores import AgentScore
from pytest_core_rollouts.results.summary import Summary
from pytest_core_rollouts.text import listed

Identity: TypeAlias = tuple[str, str, "str | None"]
"""An agent's harness, model and name."""


@dataclass(frozen=True)
class Selection:
    """Which tasks a run was to have, as a session knows it. Tasks that are in none of these are missing."""

    tasks: Mapping[Identity, frozenset[str]]
    """All selected tasks of each agent, including those without a row."""
    left_out: Mapping[Identity, frozenset[str]] = field(default_factory=dict)
    """Tasks that the user left out on purpose."""
    gone: frozenset[str] = frozenset()
    """Tasks of the baseline that no longer exist."""
    tags: Mapping[str, Collection[str]] = field(default_factory=dict)
    """The tags of the selected tasks."""

    @property
    def all_tasks(self) -> frozenset[str]:
        return frozenset().union(self.gone, *self.tasks.values(), *self.left_out.values())

    def on_tasks(self, ids: frozenset[str]) -> Selection:
        """Return the selection of some tasks."""
        tasks, left_out = ({agent: of & ids for agent, of in by.items()} for by in (self.tasks, self.left_out))
        return Selection(tasks, left_out, self.gone & ids, self.tags)


# ---- the run


@dataclass(frozen=True)
class AllowedErrors:
    """How many of the selected rollouts may be errors: a number, or a share of them."""

    text: str
    number: int | None = None
    share: Fraction | None = None

    @classmethod
    def parse(cls, text: str) -> AllowedErrors:
        """Parse `3` or `2.5%`. Raises ValueError."""
        if re.fullmatch(r"[0-9]{1,6}", text):
            return cls(text, number=int(text))
        if re.fullmatch(r"(100(\.0+)?|[0-9]{1,2}(\.[0-9]{1,4})?)%", text):
            return cls(text, share=Fraction(text[:-1]) / 100)
        raise ValueError(f"expected a number of rollouts, such as 3, or a share of them, such as 2.5%, got {text!r}")

    def judge(self, summary: Summary) -> Judgment:
        errors = summary.rows - summary.graded
        allowed = self.number if self.share is None else math.floor(self.share * summary.planned)
        text = f"{errors} of {summary.planned} rollouts without a reward, {allowed} allowed"
        verdict = Verdict(errors <= (allowed or 0), text)
        return Judgment(f"errors<={self.text}", verdict.passed, text, {"all": verdict})


@dataclass(frozen=True)
class Judgment:
    """One gate's verdict on a run, over all its agents, and that on each agent by its label."""

    gate: str
    passed: bool | None
    text: str
    by_agent: Mapping[str, Verdict] = field(default_factory=dict, compare=False)

    def __str__(self) -> str:
        return f"gate {self.gate}: {WORDS[self.passed]}: {self.text}"

    @property
    def rows(self) -> list[tuple[str, Verdict]]:
        """Each agent's verdict. Its name is that of the gate, with the agent's in brackets if there are several."""
        if len(self.by_agent) < 2:
            return [(self.gate, Verdict(self.passed, self.text))]
        return [(f"{self.gate} [{agent}]", verdict) for agent, verdict in self.by_agent.items()]


WORDS = {True: "passed", False: "failed", None: "undecided"}


def judge(
    gates: Sequence[Gate],
    summary: Summary,
    baseline: Baseline | None = None,
    selection: Selection | None = None,
    *,
    accepts_missing: bool = False,
) -> list[Judgment]:
    """Return every gate's verdict on a run: the worst verdict of its agents decides.

    Without a `selection` only rows say which tasks the run has. `accepts_missing`: the run is judged as if no more had
    been planned than has a row, and what is missing is named. If the run was to stop early, the rest need not have run.
    """
    cases, looks = _cases(gates, summary, baseline, selection, accepts_missing=accepts_missing)
    return [one.judgment(looks) for one in cases]


@dataclass(frozen=True)
class Need:
    """What undecided gates still need of one agent."""

    tasks: frozenset[str]
    """The tasks of which more samples could change a verdict."""
    waits: bool
    """Whether the next round must wait for a look at the rounds before it."""


def needs(
    gates: Sequence[Gate], summary: Summary, baseline: Baseline | None, selection: Selection
) -> dict[Identity, Need]:
    """Return what gates still need of each agent that they judge, in a run that stops early; nothing if decided.

    Until every task has a result, all are needed: only rows say which tags a task has.
    """
    cases, looks = _cases(gates, summary, baseline, selection, accepts_missing=False)
    found: dict[Identity, Need] = {}
    with_row = {agent.identity: {task.task for task in (*agent.tasks, *agent.xfails)} for agent in summary.agents}
    for of_gate in cases:
        for label, case in of_gate.by_agent.items():
            agent = case.evidence.agent
            one = found.setdefault(agent.identity, Need(frozenset(), False))
            missing = selection.tasks.get(agent.identity, frozenset()) - with_row.get(agent.identity, set())
            tasks, waits = frozenset[str](), False
            passed = _verdict(of_gate.gate, case, looks, label).passed
            if passed is None:
                evidence = looks.corrected(of_gate.gate, label, case.evidence)
                early = looks.first(of_gate.gate, evidence)
                tasks = missing | of_gate.gate.open_tasks(evidence, None if early is None else early.passed)
                waits = early is None and looks.may_decide(of_gate.gate, agent)
            elif passed and of_gate.gate.needs_baseline:
                tasks = missing  # without a row, the file would not say that the run has the task
            found[agent.identity] = Need(one.tasks | tasks, one.waits or waits)
    return found


def _cases(
    gates: Sequence[Gate],
    summary: Summary,
    baseline: Baseline | None,
    selection: Selection | None,
    *,
    accepts_missing: bool,
) -> tuple[list[_Cases], Looks]:
    cases = [_Cases.of(gate, summary, baseline, selection, accepts_missing=accepts_missing) for gate in gates]
    compared = [one for one in cases if isinstance(one.gate, NoDrop)]
    corrections = {id(one.gate): of_gate for one, of_gate in zip(compared, _corrected(compared), strict=True)}
    agents = len(summary.agents if selection is None else selection.tasks)
    verdicts = max(1, len(gates) * agents)
    return cases, Looks(None if accepts_missing else summary.stop, verdicts, len(compared) * agents, corrections)


@dataclass(frozen=True)
class _Case:
    """What one gate judges of one agent, and what its verdict must say in addition."""

    evidence: Evidence
    unfinished: AgentScore | None = None
    """The agent, if what did not run makes a pass undecided."""
    remarks: Sequence[str] = ()


@dataclass(frozen=True)
class _Cases:
    """What one gate judges: a case for each agent, by its label."""

    gate: Gate
    by_agent: Mapping[str, _Case]
    extra: Mapping[str, Verdict] = field(default_factory=dict)
    """The verdict on agents that have no row, or on a run of expected failures."""
    pending_verdicts: int = 0
    """How many agents of the baseline may still get rows."""
    pending_tasks: int = 0
    """How many of its tasks these agents have."""

    @classmethod
    def of(
        cls,
        gate: Gate,
        summary: Summary,
        baseline: Baseline | None,
        selection: Selection | None,
        *,
        accepts_missing: bool,
    ) -> _Cases:
        if gate.scope is not None:
            summary, baseline, selection = _in_scope(gate.scope, summary, baseline, selection)
        by_agent: dict[str, _Case] = {}
        for agent in summary.agents:
            before = None if baseline is None else baseline.of(agent, summary)
            if agent.planned or not agent.xfails:
                evidence = _evidence(agent, before, selection)
                if gate.scope is None or agent.planned or (before is not None and before.tasks):
                    remarks = _remarks(gate, before, baseline, selection)
                    by_agent[agent.label] = (
                        _of_rows(gate, evidence, remarks) if accepts_missing else _Case(evidence, agent, remarks)
                    )
        pending = summary.planned - sum(agent.planned for agent in summary.agents)
        without_rows: list[AgentScore] = []
        if gate.needs_baseline and baseline is not None and not accepts_missing:
            if selection is not None:
                by_agent |= {
                    one.agent.label: _Case(one) for one in _agents_without_rows(summary, baseline, selection, pending)
                }
            if pending:
                known = {agent.identity for agent in summary.agents}
                without_rows = [agent for agent in baseline.summary.agents if agent.identity not in known]
        extra: dict[str, Verdict] = {}
        if pending:
            accepted = accepts_missing and bool(by_agent)
            text = f"none of {pending} rollouts has run{', accepted' if accepted else ''}"
            extra["others"] = Verdict(True if accepted else None, text)
        elif not by_agent and gate.kind in ("each", "none") and _all_expected_to_fail(summary, selection):
            extra["all"] = Verdict(True, "every rollout was expected to fail")
        return cls(gate, by_agent, extra, len(without_rows), sum(len(agent.tasks) for agent in without_rows))

    def judgment(self, looks: Looks) -> Judgment:
        verdicts = {label: _verdict(self.gate, case, looks, label) for label, case in self.by_agent.items()} | dict(
            self.extra
        )
        all_passed = [verdict.passed for verdict in verdicts.values()]
        passed = False if False in all_passed else None if None in all_passed or not all_passed else True
        if len(verdicts) == 1:
            [text] = [verdict.text for verdict in verdicts.values()]
        else:
            text = "; ".join(f"{label}: {verdict.text}" for label, verdict in verdicts.items())
        nothing = "no rollout has run" if self.gate.scope is None else "no task in this scope has run"
        return Judgment(self.gate.expression, passed, text or nothing, verdicts)


def _verdict(gate: Gate, case: _Case, looks: Looks, label: str) -> Verdict:
    evidence = looks.corrected(gate, label, case.evidence)
    verdict = gate.verdict(evidence)
    if (early := looks.first(gate, evidence)) is not None:
        verdict = looks.verdict(gate, evidence, verdict, early)
    elif case.unfinished is not None and (looks.rule is None or not case.unfinished.graded):
        verdict = _unless_unfinished(case.unfinished, verdict)
    return dataclasses.replace(verdict, text="; ".join([verdict.text, *case.remarks]))


def _corrected(cases: Sequence[_Cases]) -> list[dict[str, Compared]]:
    """Return the comparisons of each gate `baseline`, with p-values corrected for all of them."""
    compared = [
        {
            label: Compared.of(case.evidence.baseline, case.evidence.agent)
            for label, case in one.by_agent.items()
            if case.evidence.baseline is not None
        }
        for one in cases
    ]
    lacking = {
        (label, task)
        for one, of_gate in zip(cases, compared, strict=True)
        for label, found in of_gate.items()
        for task in _lacking(one.by_agent[label].evidence, found)
    }
    corrected = iter(
        correct_for_verdicts(
            [pair for of_gate in compared for pair in of_gate.items()],
            pending_verdicts=sum(one.pending_verdicts for one in cases),
            pending_tasks=len(lacking) + max((one.pending_tasks for one in cases), default=0),
        )
    )
    return [{label: next(corrected) for label in of_gate} for of_gate in compared]


def _lacking(evidence: Evidence, compared: Compared) -> Iterator[str]:
    """Yield the tasks that the baseline has and that may still get a result."""
    assert evidence.baseline is not None
    found = {change.task for change in compared.best.tasks} | set(compared.now.changed) | evidence.excused
    yield from (score.task for score in evidence.baseline.tasks if score.graded and score.task not in found)


def _in_scope(
    scope: Scope, summary: Summary, baseline: Baseline | None, selection: Selection | None
) -> tuple[Summary, Baseline | None, Selection | None]:
    """Return what there is of the tasks in the scope. The tags of a task are those that it has now."""
    known: dict[str, Collection[str]] = dict(tags_of(summary, *([] if baseline is None else [baseline.summary])))
    if selection is not None:
        known = dict.fromkeys(selection.all_tasks, ()) | known | dict(selection.tags)
    ids = scope.ids(known)
    return (
        on_tasks(summary, ids),
        None if baseline is None else dataclasses.replace(baseline, summary=on_tasks(baseline.summary, ids)),
        None if selection is None else selection.on_tasks(ids),
    )


def _evidence(agent: AgentScore, before: AgentScore | None, selection: Selection | None) -> Evidence:
    own = frozenset(score.task for score in agent.tasks)
    xfails = frozenset(score.task for score in agent.xfails) - own
    if selection is None:
        return Evidence(agent, before, own, xfails)
    left_out = selection.left_out.get(agent.identity, frozenset())
    tasks = selection.tasks.get(agent.identity, own) - xfails
    return Evidence(agent, before, tasks, xfails | left_out | selection.gone)


def _of_rows(gate: Gate, evidence: Evidence, remarks: Sequence[str]) -> _Case:
    """Return the case of the rows that there are. It names what is missing."""
    now = evidence.agent.of_its_rows
    own = frozenset(score.task for score in now.tasks)
    before = () if evidence.baseline is None else evidence.baseline.tasks
    known = frozenset(score.task for score in before if score.graded)
    missing = sorted(known - own - evidence.excused) if gate.needs_baseline else []
    parts = [
        f"{evidence.agent.not_run} of {evidence.agent.planned} rollouts did not run" if evidence.agent.not_run else "",
        f"no row of {listed(missing, NAMED)}" if missing else "",
    ]
    accepted = ", ".join(filter(None, parts))
    return _Case(
        dataclasses.replace(evidence, agent=now, tasks=own, excused=known),
        remarks=[*([f"accepted: {accepted}"] if accepted else []), *remarks],
    )


def _remarks(
    gate: Gate, before: AgentScore | None, baseline: Baseline | None, selection: Selection | None
) -> list[str]:
    """Return the names of the baseline's tasks that no longer exist, which don't block a gate, and what it lacks."""
    if not gate.needs_baseline or baseline is None:
        return []
    tasks = () if before is None or selection is None else (score.task for score in before.tasks)
    gone = sorted(task for task in tasks if selection is not None and task in selection.gone)
    return [
        *([f"gone: {listed(gone, NAMED)}"] if gone else []),
        *([f"accepted: {baseline.lacks}"] if baseline.lacks else []),
    ]


def _all_expected_to_fail(summary: Summary, selection: Selection | None) -> bool:
    xfails = {agent.identity: {score.task for score in agent.xfails} for agent in summary.agents}
    selected = {} if selection is None else selection.tasks
    return bool(xfails) and all(tasks <= xfails.get(identity, set()) for identity, tasks in selected.items())


def _agents_without_rows(
    summary: Summary, baseline: Baseline, selection: Selection, planned: int
) -> Iterator[Evidence]:
    """Yield the evidence of agents without a row that have selected tasks which the baseline has.

    `planned` is the number of pending rollouts of all such agents; 0 means that all their tasks were skipped.
    """
    with_rows = {agent.identity for agent in summary.agents if agent.planned or not agent.xfails}
    xfails = {agent.identity: frozenset(score.task for score in agent.xfails) for agent in summary.agents}
    for before in baseline.summary.agents:
        tasks = selection.tasks.get(before.identity, frozenset()) - xfails.get(before.identity, frozenset())
        if before.identity not in with_rows and any(score.graded and score.task in tasks for score in before.tasks):
            of_tasks = len(tasks) if planned else 0
            now = dataclasses.replace(before, tasks=(), xfails=(), planned=planned, planned_tasks=of_tasks)
            yield Evidence(now, before, tasks, frozenset(score.task for score in before.tasks))


def _unless_unfinished(agent: AgentScore, verdict: Verdict) -> Verdict:
    """Return undecided instead of passed if there is no result or a rollout has not run."""
    if verdict.passed and not (agent.graded and agent.rows >= agent.planned):
        return Verdict(None, f"{verdict.text}{'' if missing_clause(agent) in verdict.text else missing_clause(agent)}")
    return verdict
