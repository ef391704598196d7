"""The plan of a run as lines, before it is paid for."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction

from pytest_core_rollouts.report.progress import short_number
from pytest_core_rollouts.results.plan import (
    HALF,
    OFTEN,
    TEN_POINTS,
    Before,
    Forecast,
    Range,
    Sight,
    samples_for,
    with_samples,
)
from pytest_core_rollouts.results.prices import dollars
from pytest_core_rollouts.text import counted

MORE = 8
"""Samples in a baseline that are suggested."""


def size_line(rollouts: int, tasks: int, agents: int) -> str:
    """Return how many rollouts are planned: `120 rollouts: 30 tasks, 1 agent`."""
    return f"{counted(rollouts, 'rollout')}: {counted(tasks, 'task')}, {counted(agents, 'agent')}"


def forecast_line(name: str, found: Forecast, places: int) -> str:
    """Return what a run will take by the file `name`."""
    parts = []
    if found.tokens is not None:
        middle, low, high = (short_number(int(end)) for end in _ends(found.tokens))
        parts.append(f"about {middle} tokens ({low} to {high})")
    if found.dollars is not None:
        middle, low, high = (dollars(Fraction(end)) for end in _ends(found.dollars))
        parts.append(f"about {middle} ({low} to {high})")
    if found.seconds is not None:
        parts.append(f"about {_minutes(found.seconds)} with {places} in flight")
    if found.unknown_tasks:
        parts.append(f"without {counted(found.unknown_tasks, 'task')} that it does not have")
    return f"by {name}: {', '.join(parts)}" if parts else f"by {name}: it has none of these rollouts"


def sight_lines(before: Before, samples: int) -> Iterator[str]:
    """Yield which drops the gate `baseline` sees, as a clause that follows the gate's name."""
    sight = Sight(before, samples)
    often, half = sight.least_drop(OFTEN), sight.least_drop(HALF)
    if often is None or half is None:
        return
    text = f"sees a drop of {_points(often)} 4 times in 5, of {_points(half)} half of the time"
    if often > TEN_POINTS:
        more = samples_for(before, TEN_POINTS)
        with_more = samples_for(with_samples(before, MORE), TEN_POINTS) if min(n for n, _ in before) < MORE else None
        ways = [f"--samples {more}"] if more is not None else []
        if with_more is not None and (more is None or with_more < more):
            ways.append(f"{with_more} with {MORE} samples in the baseline")
        text += f"; for 10 points: {', or '.join(ways)}" if ways else "; 10 points need more than 32 samples"
    yield text


def _points(drop: float) -> str:
    return f"{round(100 * drop)} points"


def _ends(found: Range) -> tuple[float, float, float]:
    return found.middle, found.low, found.high


def _minutes(seconds: float) -> str:
    if seconds < 90:
        return f"{max(5, 5 * round(seconds / 5))} s"
    minutes = seconds / 60
    if minutes < 90:
        return f"{5 * round(minutes / 5) if minutes > 10 else round(minutes)} min"
    return f"{minutes / 60:.1f} h"
