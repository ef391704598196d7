"""The progress of a run in one line: counts so far, and the estimated time left."""

from __future__ import annotations

from dataclasses import dataclass

from pytest_core_rollouts.results.number_text import decimal


@dataclass
class Progress:
    """Counts of a run with `total` rollouts, at most `places` of them at a time."""

    total: int
    places: int = 1
    done: int = 0
    errors: int = 0
    tokens: int | None = None
    """None until a rollout reports its usage."""
    _rewards: float = 0.0
    _seconds: float = 0.0
    _timed: int = 0

    def note(self, reward: float | None, tokens: int | None, seconds: float) -> None:
        """Count a finished rollout; without a reward it is an error. `seconds` is 0 if unknown."""
        self.done += 1
        if reward is None:
            self.errors += 1
        else:
            self._rewards += reward
        if tokens is not None:
            self.tokens = (self.tokens or 0) + tokens
        if seconds:
            self._seconds += seconds
            self._timed += 1

    def line(self, in_flight: int | None) -> str:
        """Return a line: `12/40 done, 8 in flight, mean reward 0.750, 1 error, 1.2M tokens, about 3 min left`."""
        parts = [f"{self.done}/{self.total} done"]
        if in_flight:
            parts.append(f"{in_flight} in flight")
        if graded := self.done - self.errors:
            parts.append(f"mean reward {decimal(self._rewards / graded)}")
        if self.errors:
            parts.append(f"{self.errors} error{'s' if self.errors > 1 else ''}")
        if self.tokens is not None:
            parts.append(f"{_short(self.tokens)} tokens")
        if (left := self.seconds_left) is not None:
            parts.append(f"about {_span(left)} left")
        return ", ".join(parts)

    @property
    def seconds_left(self) -> float | None:
        """Seconds left if the rest takes as long and those in flight are half done; None if unknown."""
        rest = self.total - self.done
        if not self._timed or rest <= 0:
            return None
        at_once = min(self.places, rest)
        return self._seconds / self._timed * (rest - at_once / 2) / at_once


def _short(number: int) -> str:
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
