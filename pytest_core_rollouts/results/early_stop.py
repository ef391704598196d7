"""When a gate's verdict is known before all rollouts have run: for certain, or at a risk that the user accepts.

The reference is always the whole run as it was planned. For the mean there is a rule for the risk of another verdict
than that run would have: given the mean of all `n` rounds, the mean of the first `r` is a bridge around it, whatever
the agent's true rate is (Xiong 1995, JASA 90:1463, the sequential conditional probability ratio test). A round is one
sample of each task. Only complete rounds are looked at: rollouts that finish early, which are often the solved ones,
must not decide by being fast.

The formulas and their checks by simulation are in docs/statistics.md and benchmarks/stopping.py.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from statistics import NormalDist
from typing import Final

from pytest_core_rollouts.results.scores import AgentScore, Sample
from pytest_core_rollouts.results.significance import LEVEL

CERTAIN: Final = "certain"
_NORMAL: Final = NormalDist()
_LEAST_FREEDOM: Final = 5
"""Degrees of freedom below which Student's quantile is not computed: the series is not exact enough there."""


@dataclass(frozen=True)
class StopRule:
    """When a run stops early: `certain`, or a risk in per cent of another verdict than the whole run's."""

    text: str
    risk: float = 0.0
    """Between 0 and 0.5; 0: only where the rest can't change the verdict."""

    @classmethod
    def parse(cls, text: str) -> StopRule:
        """Parse `certain` or `5%`. Raises ValueError."""
        if text == CERTAIN:
            return cls(text)
        if re.fullmatch(r"[0-9]{1,2}(\.[0-9]{1,4})?%", text) and 0 < float(text[:-1]) <= 50:
            return cls(text, float(Fraction(text[:-1]) / 100))
        raise ValueError(f"expected `certain` or a risk above 0% and at most 50%, such as 5%, got {text!r}")


@dataclass(frozen=True)
class Rounds:
    """How many of an agent's rounds are complete: each task has a result, or an error, of each of their samples."""

    complete: int
    planned: int
    equal: bool
    """Whether all tasks have the same number of samples. If not, there is no rule for the mean."""

    def __str__(self) -> str:
        return f"from {self.complete} of {self.planned} rounds"

    @classmethod
    def of(cls, agent: AgentScore) -> Rounds:
        planned = [task.planned for task in agent.tasks]
        most = max(planned, default=0)
        equal = agent.planned == most * agent.planned_tasks and set(planned) <= {most}
        if not agent.tasks or len(agent.tasks) < agent.planned_tasks:
            return cls(0, most, equal)
        complete = min(
            next((index for index in range(task.planned) if index not in task.samples), most) for task in agent.tasks
        )
        return cls(complete, most, equal)


Value = Callable[[Sample], "Fraction | None"]
"""What a figure takes of a sample: its reward, or 1 if it was solved; None for an error."""


def mean_reaches(agent: AgentScore, least: Fraction, value: Value, r: int, n: int, risk: float) -> bool | None:
    """Return whether the mean over all rounds reaches `least`, as far as the first `r` say; None: they don't.

    Errors count as 0 for yes, and as 1 for no.
    """
    for filled, verdict in ((0.0, True), (1.0, False)):
        samples = first_rounds(agent, value, r, filled)
        # After one round: the variance of equal tasks at the threshold, but never as if no sample could differ
        first = max(float(least * (1 - least)), 0.5 / (len(samples) + 1))
        spread = first if r == 1 else _spread(samples)
        if _reaches(samples, spread, r, n, float(least), risk) is verdict:
            return verdict
    return None


def mean_holds(
    before: Sequence[Sequence[Fraction]], agent: AgentScore, value: Value, r: int, n: int, risk: float, verdicts: int
) -> bool | None:
    """Return whether the mean over all rounds is no significant drop from `before`, the rewards of the same tasks.

    With several `verdicts`, a drop is only certain at the strictest level of Holm's correction, and no drop only at
    the uncorrected one.
    """
    for filled, verdict, level in ((0.0, True, LEVEL), (1.0, False, LEVEL / verdicts)):
        samples = first_rounds(agent, value, r, filled)
        pooled = [[*map(float, old), *new] for old, new in zip(before, samples, strict=True)]
        weights = [1 / len(old) + 1 / n for old in before]
        error = math.sqrt(sum(_variance(one) * weight for one, weight in zip(pooled, weights, strict=True)))
        drop = (_NORMAL.inv_cdf(1 - float(level)) * error + min(weights) / 2) / len(pooled)  # half a rollout
        mean = sum(float(sum(old) / len(old)) for old in before) / len(before)
        if _reaches(samples, _spread(pooled), r, n, mean - drop, risk) is verdict:
            return verdict
    return None


def first_rounds(agent: AgentScore, value: Value, r: int, filled: float) -> list[list[float]]:
    """Return each task's values of its first `r` samples, with `filled` for errors."""
    found = ([value(task.samples[index]) for index in range(r)] for task in agent.tasks)
    return [[filled if one is None else float(one) for one in of_task] for of_task in found]


def _reaches(
    samples: Sequence[Sequence[float]], spread: float, r: int, n: int, needed: float, risk: float
) -> bool | None:
    """Return the verdict of Xiong's rule after `r` of `n` rounds, each of the n - 1 looks with its share of the risk.

    Var(mean after r | mean after n) = spread / tasks * (1/r - 1/n), where `spread` is the variance within a task.
    """
    tasks = len(samples)
    level = 1 - risk / (n - 1)
    quantile = _NORMAL.inv_cdf(level) if r == 1 else _student(level, max(_LEAST_FREEDOM, (r - 1) * tasks))
    far = quantile * math.sqrt(spread / tasks * (1 / r - 1 / n))
    mean = sum(map(sum, samples)) / (r * tasks)
    if mean - needed >= far:
        return True
    return False if needed - mean >= far else None


def _spread(samples: Iterable[Sequence[float]]) -> float:
    """Return the mean variance within tasks as if one more task had been split evenly: never 0 by luck."""
    variances = [_variance(one) for one in samples]
    return (sum(variances) + 0.5) / (len(variances) + 1)


def _variance(values: Sequence[float]) -> float:
    mean = sum(values) / len(values)
    return sum((value - mean) ** 2 for value in values) / (len(values) - 1)


def _student(level: float, freedom: float) -> float:
    """Return Student's quantile (Abramowitz and Stegun 26.7.5), within 1% from 5 degrees of freedom on."""
    z = _NORMAL.inv_cdf(level)
    return z + (z**3 + z) / (4 * freedom) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * freedom**2)
