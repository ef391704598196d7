"""The kinds of gates: what each requires of one agent's results, and its verdict.

If rollouts have no reward, a gate is evaluated twice: as if all of them had failed, and as if all had passed. If both
give the same verdict, that is the verdict; if not, the run is undecided. Figures are compared as exact fractions:
0.79996 is below 0.8 and is shown with all its digits.
"""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction

from pytest_core_rollouts.results.comparison import NAMED, Compared, Comparison
from pytest_core_rollouts.results.early_stop import Rounds, StopRule, mean_holds, mean_reaches
from pytest_core_rollouts.results.number_text import decimal, decimal_beyond, p_clause, p_value_text
from pytest_core_rollouts.results.passing import PassRate, bounds
from pytest_core_rollouts.results.scope import Scope
from pytest_core_rollouts.results.scores import AgentScore, Estimate, Sample, TaskScore
from pytest_core_rollouts.text import listed

MIN_COVERAGE = Fraction(1, 2)
"""The share of selected rollouts that must be graded for the gate `none` to pass."""


@dataclass(frozen=True)
class Evidence:
    """What a gate judges."""

    agent: AgentScore
    baseline: AgentScore | None = None
    tasks: frozenset[str] = frozenset()
    """All selected tasks, including those without a row."""
    excused: frozenset[str] = frozenset()
    """Tasks of the baseline that need no result: left out on purpose, gone, or expected to fail."""
    compared: Compared | None = None
    """The comparison with the baseline, if p-values were corrected for other verdicts of the run."""


@dataclass(frozen=True)
class Verdict:
    """`passed` is None if the gate is undecided; `text` says why."""

    passed: bool | None
    text: str


class Gate(ABC):
    """One condition on each agent's results, over the tasks of its scope."""

    kind: str
    """The part of the expression before the scope: `mean`, `pass@4`."""
    condition = ""
    """The part after the scope: `>=0.8`."""
    scope: Scope | None = None
    """The tasks that it judges; None: all."""
    needs_baseline = False
    needs_samples = 1
    """Samples that a task must have to be judged."""

    @property
    def expression(self) -> str:
        return f"{self.kind}{self.scope or ''}{self.condition}"

    @property
    def asserts_each(self) -> bool:
        """Whether each rollout is a test that can fail."""
        return False

    @abstractmethod
    def verdict(self, evidence: Evidence) -> Verdict: ...

    def look(self, evidence: Evidence, r: int, rule: StopRule, verdicts: int) -> bool | None:
        """Return what the first `r` rounds say at the rule's risk; None: nothing. Most gates have no such rule.

        `verdicts`: how many verdicts of gates `baseline` the run has.
        """
        return None

    def has_rule(self, agent: AgentScore) -> bool:
        """Whether `look` may say something about this agent."""
        return False

    def value(self, sample: Sample) -> Fraction | None:
        """Return what the mean that `look` judges takes of a sample; None for an error."""
        return sample.reward

    def rest(self, evidence: Evidence) -> bool | None:
        """Return the verdict on what `look` does not judge, after it has passed."""
        return True

    def open_tasks(self, evidence: Evidence, early: bool | None) -> frozenset[str]:
        """Return the tasks of which more samples could change the verdict. `early`: what a look has said."""
        return evidence.tasks


# ---- counts


class Each(Gate):
    """The default: every rollout must be solved. With a scope it is decided at the end, as other gates are."""

    kind = "each"

    @property
    def asserts_each(self) -> bool:
        return self.scope is None

    def verdict(self, evidence: Evidence) -> Verdict:
        agent = evidence.agent
        text = f"{agent.solved} of {agent.planned} rollouts solved{missing_clause(agent)}"
        if agent.solved < agent.graded:
            return Verdict(False, text)
        return Verdict(True if 0 < agent.planned == agent.graded else None, text)


class Collect(Gate):
    """`none`: rewards decide nothing, but if rollouts did not run or too few have a reward, the run is undecided."""

    kind = "none"

    def verdict(self, evidence: Evidence) -> Verdict:
        agent = evidence.agent
        enough = agent.rows >= agent.planned > 0 and agent.graded >= MIN_COVERAGE * agent.planned
        return Verdict(
            True if enough else None, f"{agent.graded} of {agent.planned} rollouts graded{missing_clause(agent)}"
        )


def missing_clause(agent: AgentScore) -> str:
    parts = (
        f"{agent.errors} without a reward" if agent.errors else "",
        f"{agent.not_run} did not run" if agent.not_run else "",
    )
    text = ", ".join(filter(None, parts))
    return f" ({text})" if text else ""


# ---- figures


class AtLeast(Gate):
    """`mean>=X`, `pass@K>=X`, `pass^K>=X`: a figure over tasks reaches X."""

    def __init__(
        self,
        name: str,
        figure: Callable[[AgentScore], Estimate],
        least: str,
        samples: int = 1,
        *,
        is_mean: bool = False,
        rate: PassRate | None = None,
    ) -> None:
        """`is_mean`: the figure is a mean of samples; `rate`: how it is computed from what a task's samples solved."""
        self.kind, self.condition = name, f">={least}"
        self.needs_samples = samples
        self._figure = figure
        self._least = Fraction(least)
        self._is_mean = is_mean
        self._rate = rate

    def verdict(self, evidence: Evidence) -> Verdict:
        agent = evidence.agent
        figure = self._figure(agent)
        if figure.low is None or figure.high is None:
            return Verdict(None, f"no task has {self.needs_samples} samples")
        note = self._note(agent)
        if not agent.missing:
            return Verdict(figure.low >= self._least, self._compared(figure.low) + note)
        missing = missing_clause(agent)
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

    def look(self, evidence: Evidence, r: int, rule: StopRule, verdicts: int) -> bool | None:
        n = Rounds.of(evidence.agent).planned
        return mean_reaches(evidence.agent, self._least, self.value, r, n, rule.risk)

    def has_rule(self, agent: AgentScore) -> bool:
        return self._is_mean and Rounds.of(agent).equal

    def value(self, sample: Sample) -> Fraction | None:
        return sample.reward if self._rate is None or sample.reward is None else Fraction(sample.solved)

    def open_tasks(self, evidence: Evidence, early: bool | None) -> frozenset[str]:
        if self._rate is None:
            return evidence.tasks
        ends = {
            task.task: bounds(self._rate, task.graded, task.solved, task.missing, self.needs_samples)
            for task in evidence.agent.tasks
        }
        settled = {task for task, of_task in ends.items() if of_task is None or of_task[0] == of_task[1]}
        return evidence.tasks - settled

    def _compared(self, value: Fraction) -> str:
        sign = ">=" if value >= self._least else "<"
        return f"{decimal_beyond(value, self._least)} {sign} {self.condition.removeprefix('>=')}"

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
        compared = evidence.compared or Compared.of(evidence.baseline, evidence.agent)
        now = compared.now
        known = frozenset(score.task for score in evidence.baseline.tasks if score.graded)
        graded = {score.task for score in evidence.agent.tasks if score.graded} | set(now.changed)
        lacking = sorted((evidence.tasks & known) - graded)
        verdict = self.judge(now, compared.worst, compared.best, lacking)
        absent = sorted(known - graded - evidence.tasks - evidence.excused)
        if absent and verdict.passed is not False:
            return Verdict(None, f"{verdict.text}; no row of {listed(absent, NAMED)}, which the baseline has")
        return verdict

    @abstractmethod
    def judge(self, now: Comparison, worst: Comparison, best: Comparison, lacking: list[str]) -> Verdict: ...


class NoDrop(_AgainstBaseline):
    """`baseline`: no significant drop, neither over all tasks nor on a single one, and a result for each."""

    kind = "baseline"

    def judge(self, now: Comparison, worst: Comparison, best: Comparison, lacking: list[str]) -> Verdict:
        reasons = list(self._reasons(best))
        if surely := _unobtainable(now.after, lacking):
            reasons.insert(0, f"no result for {listed(surely, NAMED)}, which the baseline has")
        if reasons:
            return Verdict(False, "; ".join(reasons))
        if lacking:
            text = f"no result yet for {listed(lacking, NAMED)}, which the baseline has"
            return Verdict(None, text + missing_clause(now.after))
        if not now.tasks:
            return Verdict(None, "no task can be compared: all are new or changed")
        missing = missing_clause(now.after)
        if any(self._reasons(worst)):
            return Verdict(
                None, f"{_change(now)}; it could be a significant drop, had all failed that have no reward{missing}"
            )
        return Verdict(True, f"{_change(now)}, no significant drop ({_p_drop(now)}){missing}")

    def look(self, evidence: Evidence, r: int, rule: StopRule, verdicts: int) -> bool | None:
        """Return what the first rounds say about the mean. After a yes, single tasks can still fail the gate."""
        tasks = _comparable(evidence)
        if not tasks:
            return None
        agent = dataclasses.replace(evidence.agent, tasks=tuple(after for _, after in tasks))
        n = Rounds.of(evidence.agent).planned
        return mean_holds([old.rewards for old, _ in tasks], agent, self.value, r, n, rule.risk, max(1, verdicts))

    def has_rule(self, agent: AgentScore) -> bool:
        return Rounds.of(agent).equal

    def rest(self, evidence: Evidence) -> bool | None:
        """Return whether no single task drops significantly, whatever the rest of the rollouts give."""
        if evidence.baseline is None:
            return None
        compared = evidence.compared or Compared.of(evidence.baseline, evidence.agent)
        if compared.best.dropped_tasks:
            return False
        known = {score.task for score in evidence.baseline.tasks if score.graded}
        graded = {score.task for score in evidence.agent.tasks if score.graded} | set(compared.now.changed)
        return None if compared.worst.dropped_tasks or known - graded - evidence.excused else True

    def open_tasks(self, evidence: Evidence, early: bool | None) -> frozenset[str]:
        if early is not True or evidence.baseline is None:
            return evidence.tasks
        compared = evidence.compared or Compared.of(evidence.baseline, evidence.agent)
        return frozenset(one.task for one in compared.worst.dropped_tasks)

    def _reasons(self, comparison: Comparison) -> Iterator[str]:
        if comparison.dropped:
            yield f"{_change(comparison)}, a significant drop ({_p_drop(comparison)})"
        if dropped := comparison.dropped_tasks:
            worst = sorted(dropped, key=lambda one: (one.corrected, one.task))
            drops = [
                f"{one.task} {one.before.solved}/{one.before.graded} -> {one.after.solved}/{one.after.graded} "
                f"({p_clause(one.corrected)}, two-sided)"
                for one in worst
            ]
            yield f"significant drop on {listed(drops, NAMED)}"


def _comparable(evidence: Evidence) -> list[tuple[TaskScore, TaskScore]]:
    """Return each unchanged task that the baseline has a reward of, as it was and as it is."""
    old = {task.task: task for task in evidence.baseline.tasks} if evidence.baseline is not None else {}
    return [
        (before, task)
        for task in evidence.agent.tasks
        if (before := old.get(task.task)) is not None and before.graded and before.digests == task.digests
    ]


def _p_drop(comparison: Comparison) -> str:
    text = f"{p_clause(comparison.p_drop.value)}, one-sided"
    if comparison.drop_corrected is None or comparison.verdicts < 2:
        return text
    return (
        f"{text}; {p_value_text(comparison.drop_corrected)} after Holm's correction for {comparison.verdicts} verdicts"
    )


def _unobtainable(agent: AgentScore, lacking: Sequence[str]) -> list[str]:
    """Return the tasks without a result that no pending rollout can give one.

    If more tasks have no row than are still planned to run, some of them were skipped.
    """
    done = {score.task: score.rows >= score.planned for score in agent.tasks}
    skipped = sum(task not in done for task in lacking) > agent.planned_tasks - len(done)
    return [task for task in lacking if done.get(task, skipped)]


class Lost(_AgainstBaseline):
    """`lost<=N`: at most N tasks that the baseline always solves are never solved now."""

    kind = "lost"

    def __init__(self, most: int) -> None:
        self.condition = f"<={most}"
        self._most = most

    def open_tasks(self, evidence: Evidence, early: bool | None) -> frozenset[str]:
        before = () if evidence.baseline is None else evidence.baseline.tasks
        always = {task.task for task in before if 0 < task.graded == task.solved}
        return evidence.tasks & (always - {task.task for task in evidence.agent.tasks if task.solved})

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
