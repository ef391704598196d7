"""Gates: whether a run passed, failed, or is undecided, and why.

A gate judges one agent's results; the caller makes an exit code of the verdict. If rollouts have no reward, a gate is
evaluated twice: as if all of them had failed, and as if all had passed. If both give the same verdict, that is the
verdict; if not, the run is undecided. Figures are compared as exact fractions: 0.79996 is below 0.8 and is shown with
all its digits.

No gate passes over what is missing: planned rollouts that did not run, and tasks of the baseline that the run does not
have. Whoever means to leave them out says so, and then the verdict names them.
"""

from __future__ import annotations

import dataclasses
import math
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import TypeAlias

from pytest_core_rollouts.results.comparison import NAMED, Baseline, Comparison, compare
from pytest_core_rollouts.results.number_text import decimal, decimal_beyond, p_clause
from pytest_core_rollouts.results.summary import AgentScore, Estimate, Summary
from pytest_core_rollouts.text import listed

MIN_COVERAGE = Fraction(1, 2)
"""The share of selected rollouts that must be graded for the gate `none` to pass."""

Identity: TypeAlias = tuple[str, str, "str | None"]
"""An agent's harness, model and name."""


class GateError(ValueError):
    """An unknown gate. `str()` is one line that names the known ones."""


@dataclass(frozen=True)
class Selection:
    """Which tasks a run was to have, as a session knows it. Tasks that are in none of these are missing."""

    tasks: Mapping[Identity, frozenset[str]]
    """All selected tasks of each agent, including those without a row."""
    left_out: Mapping[Identity, frozenset[str]] = field(default_factory=dict)
    """Tasks that the user left out on purpose."""
    gone: frozenset[str] = frozenset()
    """Tasks of the baseline that no longer exist."""


@dataclass(frozen=True)
class Evidence:
    """What a gate judges."""

    agent: AgentScore
    baseline: AgentScore | None = None
    tasks: frozenset[str] = frozenset()
    """All selected tasks, including those without a row."""
    excused: frozenset[str] = frozenset()
    """Tasks of the baseline that need no result: left out on purpose, gone, or expected to fail."""


@dataclass(frozen=True)
class Verdict:
    """`passed` is None if the gate is undecided; `text` says why."""

    passed: bool | None
    text: str


class Gate(ABC):
    """One condition on each agent's results."""

    expression: str
    asserts_each = False
    """Whether each rollout is a test that can fail."""
    needs_baseline = False
    needs_samples = 1
    """Samples that a task must have to be judged."""

    @abstractmethod
    def verdict(self, evidence: Evidence) -> Verdict: ...


# ---- counts


class Each(Gate):
    """The default: every rollout must be solved."""

    expression = "each"
    asserts_each = True

    def verdict(self, evidence: Evidence) -> Verdict:
        agent = evidence.agent
        text = f"{agent.solved} of {agent.planned} rollouts solved{_missing(agent)}"
        if agent.solved < agent.graded:
            return Verdict(False, text)
        return Verdict(True if 0 < agent.planned == agent.graded else None, text)


class Collect(Gate):
    """`none`: rewards decide nothing, but if rollouts did not run or too few have a reward, the run is undecided."""

    expression = "none"

    def verdict(self, evidence: Evidence) -> Verdict:
        agent = evidence.agent
        enough = agent.rows >= agent.planned > 0 and agent.graded >= MIN_COVERAGE * agent.planned
        return Verdict(True if enough else None, f"{agent.graded} of {agent.planned} rollouts graded{_missing(agent)}")


def _missing(agent: AgentScore) -> str:
    parts = (
        f"{agent.errors} without a reward" if agent.errors else "",
        f"{agent.not_run} did not run" if agent.not_run else "",
    )
    text = ", ".join(filter(None, parts))
    return f" ({text})" if text else ""


# ---- figures


class AtLeast(Gate):
    """`mean>=X`, `pass@K>=X`, `pass^K>=X`: a figure over tasks reaches X."""

    def __init__(self, name: str, figure: Callable[[AgentScore], Estimate], least: str, samples: int = 1) -> None:
        self.expression = f"{name}>={least}"
        self.needs_samples = samples
        self._figure = figure
        self._least = Fraction(least)

    def verdict(self, evidence: Evidence) -> Verdict:
        agent = evidence.agent
        figure = self._figure(agent)
        if figure.low is None or figure.high is None:
            return Verdict(None, f"no task has {self.needs_samples} samples")
        note = self._note(agent)
        if not agent.missing:
            return Verdict(figure.low >= self._least, self._compared(figure.low) + note)
        missing = _missing(agent)
        if figure.low >= self._least:
            return Verdict(
                True, f"{self._compared(figure.low)} even if all had failed that have no reward{missing}{note}"
            )
        if figure.high < self._least:
            return Verdict(
                False, f"{self._compared(figure.high)} even if all had passed that have no reward{missing}{note}"
            )
        ends = f"{decimal_beyond(figure.low, self._least)} to {decimal_beyond(figure.high, self._least)}"
        return Verdict(None, f"{ends}, as those turn out that have no reward{missing}{note}")

    def _compared(self, value: Fraction) -> str:
        sign = ">=" if value >= self._least else "<"
        return f"{decimal_beyond(value, self._least)} {sign} {self.expression.partition('>=')[2]}"

    def _note(self, agent: AgentScore) -> str:
        few = sum(task.planned < self.needs_samples for task in agent.tasks)
        return f"; {few} of {agent.planned_tasks} tasks have fewer than {self.needs_samples} samples" if few else ""


# ---- against a baseline


class _AgainstBaseline(Gate):
    """Compares twice, with missing rollouts failed and passed, and decides if both give the same verdict."""

    needs_baseline = True

    def verdict(self, evidence: Evidence) -> Verdict:
        if evidence.baseline is None:
            return Verdict(None, "the baseline does not have this agent")
        now = worst = best = compare(evidence.baseline, evidence.agent)
        if evidence.agent.missing:
            worst, best = (compare(evidence.baseline, evidence.agent.filled(reward)) for reward in (0, 1))
        known = frozenset(score.task for score in evidence.baseline.tasks if score.graded)
        graded = {score.task for score in evidence.agent.tasks if score.graded} | set(now.changed)
        lacking = sorted((evidence.tasks & known) - graded)
        verdict = self.judge(now, worst, best, lacking)
        absent = sorted(known - graded - evidence.tasks - evidence.excused)
        if absent and verdict.passed is not False:
            return Verdict(None, f"{verdict.text}; no row of {listed(absent, NAMED)}, which the baseline has")
        return verdict

    @abstractmethod
    def judge(self, now: Comparison, worst: Comparison, best: Comparison, lacking: list[str]) -> Verdict: ...


class NoDrop(_AgainstBaseline):
    """`baseline`: no significant drop, neither over all tasks nor on a single one, and a result for each."""

    expression = "baseline"

    def judge(self, now: Comparison, worst: Comparison, best: Comparison, lacking: list[str]) -> Verdict:
        reasons = list(self._reasons(best))
        if surely := _unobtainable(now.after, lacking):
            reasons.insert(0, f"no result for {listed(surely, NAMED)}, which the baseline has")
        if reasons:
            return Verdict(False, "; ".join(reasons))
        if lacking:
            text = f"no result yet for {listed(lacking, NAMED)}, which the baseline has"
            return Verdict(None, text + _missing(now.after))
        if not now.tasks:
            return Verdict(None, "no task can be compared: all are new or changed")
        missing = _missing(now.after)
        if any(self._reasons(worst)):
            return Verdict(
                None, f"{_change(now)}; it could be a significant drop, had all failed that have no reward{missing}"
            )
        return Verdict(True, f"{_change(now)}, no significant drop ({p_clause(now.p_drop.value)}, one-sided){missing}")

    def _reasons(self, comparison: Comparison) -> Iterator[str]:
        if comparison.dropped:
            yield f"{_change(comparison)}, a significant drop ({p_clause(comparison.p_drop.value)}, one-sided)"
        if dropped := comparison.dropped_tasks:
            worst = sorted(dropped, key=lambda one: (one.corrected, one.task))
            drops = [
                f"{one.task} {one.before.solved}/{one.before.graded} -> {one.after.solved}/{one.after.graded} "
                f"({p_clause(one.corrected)}, two-sided)"
                for one in worst
            ]
            yield f"significant drop on {listed(drops, NAMED)}"


def _unobtainable(agent: AgentScore, lacking: Sequence[str]) -> list[str]:
    """Return the tasks without a result that no pending rollout can give one.

    If more tasks have no row than are still planned to run, some of them were skipped.
    """
    done = {score.task: score.rows >= score.planned for score in agent.tasks}
    skipped = sum(task not in done for task in lacking) > agent.planned_tasks - len(done)
    return [task for task in lacking if done.get(task, skipped)]


class Lost(_AgainstBaseline):
    """`lost<=N`: at most N tasks that the baseline always solves are never solved now."""

    def __init__(self, most: int) -> None:
        self.expression = f"lost<={most}"
        self._most = most

    def judge(self, now: Comparison, worst: Comparison, best: Comparison, lacking: list[str]) -> Verdict:
        always = {score.task for score in now.before.tasks if score.graded and score.solved == score.graded}
        surely, possibly = ([one.task for one in compared.lost] for compared in (best, worst))
        possibly = sorted({*possibly, *(task for task in lacking if task in always)})
        if len(surely) > self._most:
            return Verdict(False, f"{len(surely)} lost that the baseline always solves: {listed(surely, NAMED)}")
        if len(possibly) > self._most:
            lost = f"{len(surely)} to {len(possibly)} lost"
            return Verdict(None, f"{lost}, as those turn out that have no reward: {listed(possibly, NAMED)}")
        compared = len(now.tasks)
        if not compared:
            return Verdict(None, "no task can be compared: all are new, changed or without a result")
        lost = f": {listed(possibly, NAMED)}" if possibly else ""
        return Verdict(True, f"{len(possibly)} lost of {compared} compared{lost}")


def _change(comparison: Comparison) -> str:
    before, after = comparison.means
    tasks = len(comparison.tasks)
    return f"mean reward {decimal(before)} -> {decimal(after)} over {tasks} task{'s' if tasks > 1 else ''}"


# ---- parsing

_SHARE = r"(?P<share>0|1|0?\.\d{1,100}|1\.0{1,100})"
_FORMS: Mapping[str, Callable[[re.Match[str]], Gate]] = {
    r"each": lambda _: Each(),
    r"none": lambda _: Collect(),
    r"baseline": lambda _: NoDrop(),
    r"mean\s*>=\s*" + _SHARE: lambda m: AtLeast("mean", lambda agent: agent.mean_reward, m["share"]),
    r"pass@(?P<k>[1-9]\d{0,5})\s*>=\s*" + _SHARE: lambda m: _pass("@", int(m["k"]), m["share"]),
    r"pass\^(?P<k>[1-9]\d{0,5})\s*>=\s*" + _SHARE: lambda m: _pass("^", int(m["k"]), m["share"]),
    r"lost\s*<=\s*(?P<most>\d{1,6})": lambda m: Lost(int(m["most"])),
}
KNOWN = "each, none, mean>=X, pass@K>=X, pass^K>=X, lost<=N or baseline (X from 0 to 1, such as 0.8)"


def _pass(sign: str, k: int, share: str) -> Gate:
    figure = (lambda agent: agent.pass_at(k)) if sign == "@" else (lambda agent: agent.pass_hat(k))
    return AtLeast(f"pass{sign}{k}", figure, share, samples=k)


def parse_gate(text: str) -> Gate:
    """Return the gate that `text` names. Raises GateError if it is unknown."""
    for form, make in _FORMS.items():
        if (match := re.fullmatch(form, text.strip(), re.ASCII)) is not None:
            return make(match)
    raise GateError(f"unknown gate {text!r}; use {KNOWN}")


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
        return f"gate {self.gate}: {_WORDS[self.passed]}: {self.text}"


_WORDS = {True: "passed", False: "failed", None: "undecided"}


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
    been planned than has a row, and what is missing is named.
    """
    return [_judgment(gate, summary, baseline, selection, accepts_missing=accepts_missing) for gate in gates]


def _judgment(
    gate: Gate, summary: Summary, baseline: Baseline | None, selection: Selection | None, *, accepts_missing: bool
) -> Judgment:
    by_agent: dict[str, Verdict] = {}
    for agent in summary.agents:
        if agent.planned or not agent.xfails:
            before = None if baseline is None else baseline.of(agent, summary)
            evidence = _evidence(agent, before, selection)
            if accepts_missing:
                by_agent[agent.label] = _of_rows(gate, evidence)
            else:
                by_agent[agent.label] = _unless_unfinished(agent, gate.verdict(evidence))
            if gate.needs_baseline and selection is not None and before is not None:
                by_agent[agent.label] = _with_gone(by_agent[agent.label], before, selection)
    pending = summary.planned - sum(agent.planned for agent in summary.agents)
    if gate.needs_baseline and baseline is not None and selection is not None and not accepts_missing:
        by_agent |= {
            one.agent.label: gate.verdict(one) for one in _agents_without_rows(summary, baseline, selection, pending)
        }
    if pending:
        accepted = accepts_missing and bool(by_agent)
        by_agent["others"] = Verdict(
            True if accepted else None, f"none of {pending} rollouts has run{', accepted' if accepted else ''}"
        )
    if not by_agent and gate.expression in ("each", "none") and _all_expected_to_fail(summary, selection):
        by_agent["all"] = Verdict(True, "every rollout was expected to fail")
    verdicts = [verdict.passed for verdict in by_agent.values()]
    passed = False if False in verdicts else None if None in verdicts or not verdicts else True
    if len(by_agent) == 1:
        [text] = [verdict.text for verdict in by_agent.values()]
    else:
        text = "; ".join(f"{label}: {verdict.text}" for label, verdict in by_agent.items())
    if gate.needs_baseline and baseline is not None and baseline.lacks:
        text = f"{text}; accepted: {baseline.lacks}"
    return Judgment(gate.expression, passed, text or "no rollout has run", by_agent)


def _evidence(agent: AgentScore, before: AgentScore | None, selection: Selection | None) -> Evidence:
    own = frozenset(score.task for score in agent.tasks)
    xfails = frozenset(score.task for score in agent.xfails) - own
    if selection is None:
        return Evidence(agent, before, own, xfails)
    left_out = selection.left_out.get(agent.identity, frozenset())
    tasks = selection.tasks.get(agent.identity, own) - xfails
    return Evidence(agent, before, tasks, xfails | left_out | selection.gone)


def _of_rows(gate: Gate, evidence: Evidence) -> Verdict:
    """Return the verdict on the rows that there are. It names what is missing."""
    now = evidence.agent.of_its_rows
    own = frozenset(score.task for score in now.tasks)
    before = () if evidence.baseline is None else evidence.baseline.tasks
    known = frozenset(score.task for score in before if score.graded)
    verdict = gate.verdict(dataclasses.replace(evidence, agent=now, tasks=own, excused=known))
    missing = sorted(known - own - evidence.excused) if gate.needs_baseline else []
    parts = [
        f"{evidence.agent.not_run} of {evidence.agent.planned} rollouts did not run" if evidence.agent.not_run else "",
        f"no row of {listed(missing, NAMED)}" if missing else "",
    ]
    accepted = ", ".join(filter(None, parts))
    return dataclasses.replace(verdict, text=f"{verdict.text}; accepted: {accepted}") if accepted else verdict


def _all_expected_to_fail(summary: Summary, selection: Selection | None) -> bool:
    xfails = {agent.identity: {score.task for score in agent.xfails} for agent in summary.agents}
    selected = {} if selection is None else selection.tasks
    return bool(xfails) and all(tasks <= xfails.get(identity, set()) for identity, tasks in selected.items())


def _with_gone(verdict: Verdict, before: AgentScore, selection: Selection) -> Verdict:
    """Return the verdict with the names of the baseline's tasks that no longer exist. They don't block a gate."""
    gone = sorted(selection.gone.intersection(score.task for score in before.tasks))
    return dataclasses.replace(verdict, text=f"{verdict.text}; gone: {listed(gone, NAMED)}") if gone else verdict


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
        return Verdict(None, f"{verdict.text}{'' if _missing(agent) in verdict.text else _missing(agent)}")
    return verdict
