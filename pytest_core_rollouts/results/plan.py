"""What a run will take, before it is paid for: tokens, dollars and minutes by an earlier file, and what its gates see.

All of it is computed in a fraction of a second, by seeded simulations: the same files give the same lines.
"""

from __future__ import annotations

import heapq
import math
import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from statistics import NormalDist
from typing import Final

from pytest_core_rollouts.records.record import RolloutRecord
from pytest_core_rollouts.results.early_stop import StopRule
from pytest_core_rollouts.results.gate_kinds import Evidence, Gate
from pytest_core_rollouts.results.health import GroupHealth
from pytest_core_rollouts.results.prices import Prices
from pytest_core_rollouts.results.scores import AgentScore, Sample, TaskScore
from pytest_core_rollouts.results.summary import identity_of

Group = tuple[tuple[str, str, "str | None"], str]
"""An agent's identity and a task."""

SEED: Final = 1
WORK: Final = 30_000
"""Simulated samples in one estimate of a chance."""
OFTEN, HALF = 0.8, 0.5
TEN_POINTS: Final = 0.1
_SAMPLES: Final = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)
_Z05: Final = NormalDist().inv_cdf(0.05)
_Z95: Final = -_Z05


@dataclass(frozen=True)
class Range:
    """An expected sum, and the ends of its 90% range."""

    middle: float
    low: float
    high: float


@dataclass(frozen=True)
class Forecast:
    """What the rollouts of a run will take, by an earlier file. None: the file does not say."""

    tokens: Range | None
    dollars: Range | None
    seconds: float | None
    """Until the last rollout has ended."""
    unknown_tasks: int
    """Tasks that the file does not have."""


def forecast(
    rows: Iterable[RolloutRecord], counts: Mapping[Group, int], places: int, prices: Prices | None = None
) -> Forecast:
    """Return what `counts` rollouts of each group will take, `places` of them at a time."""
    tokens: dict[Group, list[float]] = {}
    dollars: dict[Group, list[float]] = {}
    seconds: dict[Group, list[float]] = {}
    for row in rows:
        group = identity_of(row), row.task
        if group not in counts:
            continue
        if row.tokens is not None:
            tokens.setdefault(group, []).append(row.tokens)
        if prices is not None and (cost := prices.cost(row)) is not None:
            dollars.setdefault(group, []).append(float(cost))
        if row.duration_s is not None:
            seconds.setdefault(group, []).append(row.duration_s)
    return Forecast(
        total(tokens, counts),
        total(dollars, counts),
        _last_end(seconds, counts, places) if seconds else None,
        len({task for _, task in counts} - {task for _, task in (*tokens, *seconds)}),
    )


def total(old: Mapping[Group, Sequence[float]], counts: Mapping[Group, int]) -> Range | None:
    """Return the sum over groups of the number of rollouts times their mean, with a 90% range; None without values.

    Medians would be too low, because long rollouts are rare and dear. The spread is pooled over groups: a few samples
    of one task say little about its tail.
    """
    means = {group: sum(values) / len(values) for group, values in old.items()}
    middle = sum(counts[group] * mean for group, mean in means.items())
    if not middle:
        return None
    parts = [(group, values) for group, values in old.items() if len(values) > 1 and means[group]]
    squares = sum((value / means[group] - 1) ** 2 for group, values in parts for value in values)
    spread = squares / max(1, sum(len(values) - 1 for _, values in parts))
    error = math.sqrt(
        sum(mean**2 * spread * (counts[group] ** 2 / len(old[group]) + counts[group]) for group, mean in means.items())
    )
    factor = math.exp(_Z95 * error / middle)
    return Range(middle, middle / factor, middle * factor)


def _last_end(old: Mapping[Group, Sequence[float]], counts: Mapping[Group, int], places: int) -> float:
    """Return the mean time at which the last rollout ends, with durations drawn from the earlier ones."""
    source = random.Random(SEED)
    everything = [value for values in old.values() for value in values]
    rollouts = [old.get(group, everything) for group, count in counts.items() for _ in range(count)]
    runs = max(1, min(20, WORK // max(1, len(rollouts))))
    ends = 0.0
    for _ in range(runs):
        free = [0.0] * max(1, min(places, len(rollouts)))
        for durations in rollouts:
            heapq.heapreplace(free, free[0] + source.choice(durations))
        ends += max(free)
    return ends / runs


# ---- what a run that stops early saves


def imagined(tasks: Sequence[TaskScore], results: Sequence[Sequence[bool]]) -> AgentScore:
    """Return the score of a run in which the samples of these tasks were solved or not, as `results` say."""
    scores = tuple(
        TaskScore(
            task=task.task,
            planned=len(solved),
            rows=len(solved),
            rewards=tuple(sorted(map(Fraction, solved))),
            solved=sum(solved),
            timeouts=0,
            digests=task.digests,
            samples={index: Sample(Fraction(one), one) for index, one in enumerate(solved)},
        )
        for task, solved in zip(tasks, results, strict=True)
    )
    planned = sum(score.planned for score in scores)
    groups = GroupHealth.none()
    return AgentScore("", "", None, "", "", "", planned, len(scores), scores, (), None, None, 0, groups, ())


def spent_share(gate: Gate, before: AgentScore, samples: int, rule: StopRule) -> float | None:
    """Return the share of the rollouts that run if the agent is as it was before; None if the gate has no rule."""
    tasks = [task for task in before.tasks if task.graded]
    source, rounds = random.Random(SEED), 0
    if not tasks or samples < 2:
        return None
    mean = sum(task.solved / task.graded for task in tasks) / len(tasks)
    runs = max(20, min(100, WORK // (10 * len(tasks) * samples)))
    for _ in range(runs):
        rates = [
            source.betavariate(task.solved + mean + 1e-3, task.graded - task.solved + 1 - mean + 1e-3) for task in tasks
        ]
        agent = imagined(tasks, [[source.random() < rate for _ in range(samples)] for rate in rates])
        if not gate.has_rule(agent):
            return None
        looks = (r for r in range(1, samples) if gate.look(Evidence(agent, before), r, rule, 1) is not None)
        rounds += next(looks, samples)
    return rounds / runs / samples


# ---- what the gate `baseline` sees


Before = Sequence[tuple[int, int]]
"""Each task's number of samples in the baseline, and how many of them were solved."""


class Sight:
    """Which drops of the mean the gate `baseline` sees, with `samples` of each task.

    The tasks' true rates are drawn from what the baseline says about them, and the drop is in proportion to them.
    """

    def __init__(self, before: Before, samples: int) -> None:
        self._before = before
        self._samples = samples
        self.mean = sum(solved / count for count, solved in before) / len(before)
        source = random.Random(SEED)
        draws = max(60, min(400, WORK // (len(before) * samples)))
        self._runs = [
            [
                (
                    source.betavariate(solved + self.mean + 1e-3, count - solved + 1 - self.mean + 1e-3),
                    [source.random() for _ in range(samples)],
                )
                for count, solved in before
            ]
            for _ in range(draws)
        ]

    def chance(self, drop: float) -> float:
        """Return how often the gate fails if the mean has dropped so much."""
        n, half = self._samples, min(1 / count + 1 / self._samples for count, _ in self._before) / 2
        kept = 1 - drop / self.mean if self.mean else 0.0
        seen = 0
        for tasks in self._runs:
            change = variance = 0.0
            for (count, solved), (rate, draws) in zip(self._before, tasks, strict=True):
                now = sum(draw < rate * kept for draw in draws)
                both = count + n
                share = (now + solved) / both
                change += now / n - solved / count
                variance += share * (1 - share) * both / (both - 1) * (1 / count + 1 / n)
            seen += change + half <= _Z05 * math.sqrt(max(variance, 1e-9))
        return seen / len(self._runs)

    def least_drop(self, chance: float) -> float | None:
        """Return the smallest drop that is seen this often, within a point; None if none is."""
        low, high = 0.0, self.mean
        if self.chance(high) < chance:
            return None
        while high - low > 0.01:
            middle = (low + high) / 2
            low, high = (middle, high) if self.chance(middle) < chance else (low, middle)
        return high


def samples_for(before: Before, drop: float) -> int | None:
    """Return the number of samples with which a drop is seen 4 times in 5; None if more than 32 are needed."""
    return next((count for count in _SAMPLES if Sight(before, count).chance(drop) >= OFTEN), None)


def with_samples(before: Before, samples: int) -> list[tuple[int, int]]:
    """Return the same baseline with so many samples of each task."""
    return [(samples, round(Fraction(solved, count) * samples)) for count, solved in before]
