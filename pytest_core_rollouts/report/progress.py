"""Where a run stands, in one line: counts as they come in, and the time that is left."""

from __future__ import annotations

from dataclasses import dataclass, field

from pytest_core_rollouts.report.cells import decimal


@dataclass
class Progress:
    """Counts of one run. Times are in seconds, of any monotonic clock."""

    total: int
    started: float
    done: int = 0
    errors: int = 0
    tokens: int | None = None
    """None while no rollout has said."""
    _rewards: list[float] = field(default_factory=list)

    def note(self, reward: float | None, tokens: int | None) -> None:
        """A rollout finished; no reward is an error."""
        self.done += 1
        if reward is None:
            self.errors += 1
        else:
            self._rewards.append(reward)
        if tokens is not None:
            self.tokens = (self.tokens or 0) + tokens

    def line(self, now: float, in_flight: int | None) -> str:
        """Such as `12/40 done, 8 in flight, mean reward 0.750, 1 error, 1.2M tokens, 3 min left`."""
        parts = [f"{self.done}/{self.total} done"]
        if in_flight:
            parts.append(f"{in_flight} in flight")
        if self._rewards:
            parts.append(f"mean reward {decimal(sum(self._rewards) / len(self._rewards))}")
        if self.errors:
            parts.append(f"{self.errors} error{'s' if self.errors > 1 else ''}")
        if self.tokens is not None:
            parts.append(f"{_short(self.tokens)} tokens")
        if (left := self._left(now)) is not None:
            parts.append(f"{_span(left)} left")
        return ", ".join(parts)

    def _left(self, now: float) -> float | None:
        """Seconds to go at the pace so far; None until there is one."""
        if not self.done or self.done >= self.total:
            return None
        return (now - self.started) / self.done * (self.total - self.done)


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
