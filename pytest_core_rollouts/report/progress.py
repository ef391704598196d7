"""The progress of a run in one line: counts so far, and the estimated time left."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import NamedTuple

from pytest_core_rollouts.report.cells import width
from pytest_core_rollouts.text import one_line


class State(NamedTuple):
    """What runs now."""

    in_flight: int = 0
    """Rollouts in flight."""
    waits: str = ""
    """What they wait for, other than their agents; "" for nothing."""
    oldest: str = ""
    """The task of the rollout that has been in flight for the longest time; "" if unknown."""
    since: float = 0.0
    """When that rollout started, in seconds since 1970."""


@dataclass
class Progress:
    """Counts of a run with `total` rollouts, at most `places` of them at a time."""

    total: int
    places: int = 1
    marks: tuple[str, str, str] = ("✓", "✗", "!")
    """What stands before the numbers of solved and unsolved rollouts and of errors."""
    solved: int = 0
    unsolved: int = 0
    errors: int = 0
    tokens: int | None = None
    """None until a rollout reports its usage."""
    _seconds: float = 0.0
    _timed: int = 0

    @property
    def done(self) -> int:
        return self.solved + self.unsolved + self.errors

    def note(self, reward: float | None, tokens: int | None, seconds: float, *, solved: bool) -> None:
        """Count a finished rollout; without a reward it is an error. `seconds` is 0 if unknown."""
        if reward is None:
            self.errors += 1
        elif solved:
            self.solved += 1
        else:
            self.unsolved += 1
        if tokens is not None:
            self.tokens = (self.tokens or 0) + tokens
        if seconds:
            self._seconds += seconds
            self._timed += 1

    def line(self, state: State, columns: int | None = None) -> str:
        """Return a line: `72/128 ✓41 ✗29 !2 · 8 running, oldest 6m12 sql/joins · 1.2M tokens · ~5 min left`.

        If it is longer than `columns`, the least important parts are left out: tokens, the oldest rollout's task, the
        oldest rollout, how many run. What they wait for is cut at the end.
        """
        counts = zip(self.marks, (self.solved, self.unsolved, self.errors), strict=True)
        head = " ".join([f"{self.done}/{self.total}", *(f"{mark}{count}" for mark, count in counts if count)])
        left = "" if self.seconds_left is None else f"~{_span(self.seconds_left)} left"
        running = f"{state.in_flight} running" if state.in_flight else ""
        age = f", oldest {_age(time.time() - state.since)}" if running and state.oldest else ""
        tokens = "" if self.tokens is None else f"{short_number(self.tokens)} tokens"
        if state.waits:
            return " · ".join(filter(None, [head, left, one_line(state.waits)]))[:columns]
        ways = (
            (f"{running}{age}{age and f' {one_line(state.oldest)}'}", tokens),
            (f"{running}{age}{age and f' {one_line(state.oldest)}'}", ""),
            (running + age, ""),
            (running, ""),
            ("", ""),
        )
        lines = [" · ".join(filter(None, [head, *way, left])) for way in ways]
        return next((line for line in lines if columns is None or width(line) <= columns), lines[-1][:columns])

    @property
    def seconds_left(self) -> float | None:
        """Seconds left if the rest takes as long and those in flight are half done; None if unknown."""
        rest = self.total - self.done
        if not self._timed or rest <= 0:
            return None
        at_once = min(self.places, rest)
        return self._seconds / self._timed * (rest - at_once / 2) / at_once


def short_number(number: int) -> str:
    for unit, size in (("G", 10**9), ("M", 10**6), ("k", 10**3)):
        if number >= size:
            return f"{number / size:.1f}{unit}"
    return str(number)


def _span(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    if seconds < 5400:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h"


def _age(seconds: float) -> str:
    minutes, rest = divmod(max(0, int(seconds)), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}h{minutes:02}" if hours else f"{minutes}m{rest:02}" if minutes else f"{rest} s"
