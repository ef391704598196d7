"""How many attempts may be under way at a time, where models are throttled; and what all of them are waiting for.

A throttled Turn halves the number in flight, and each Turn that is not throttled lets it grow again, by a tenth once
every attempt in flight has had its turn. Attempts that follow a throttled one wait before they start.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from pytest_core_rollouts.agents_api import AgentsAPIError

UNTHROTTLED = float("inf")
SHOWN = 3.0
"""Seconds that calls wait for the Core before that is worth telling."""


class Waits(Protocol):
    """What is asked of a client."""

    @property
    def trouble(self) -> AgentsAPIError | None: ...


@dataclass
class Pressure:
    """What all attempts of a process share. Times are in seconds of `clock`, which is monotonic.

    An attempt calls `enter` with its client when it starts and `leave` when it is over; then `throttled` or `fine`
    with how its Turn ended. `clock` and `chance` (uniform in [0, 1)) are there to be replaced in tests.
    """

    first_pause: float = 5.0
    longest_pause: float = 60.0
    clock: Callable[[], float] = field(default=time.monotonic, repr=False)
    chance: Callable[[], float] = field(default=random.random, repr=False)
    limit: float = UNTHROTTLED
    """Attempts that may be in flight; whole ones count."""
    _clients: set[Waits] = field(default_factory=set)
    _most: int = 0
    """How many were in flight when the first was throttled."""
    _lowered: float = -UNTHROTTLED
    _in_a_row: int = 0
    _made: float = -UNTHROTTLED

    # ---- told

    def enter(self, client: Waits) -> None:
        """An attempt starts."""
        self._clients.add(client)

    def leave(self, client: Waits) -> None:
        """It is over."""
        self._clients.discard(client)

    def made(self) -> None:
        """The Core made a Session."""
        self._made = self.clock()

    def throttled(self, started: float) -> float:
        """An attempt that began at `started` was throttled; gives the seconds for which the next one is to wait.

        Of those that were in flight together the first alone lowers the limit.
        """
        if started >= self._lowered:
            in_flight = max(1, len(self._clients))
            if self.limit == UNTHROTTLED:
                self._most = in_flight
            self.limit = float(max(1, int(min(self.limit, in_flight)) // 2))
            self._lowered = self.clock()
            self._in_a_row += 1
        pause = min(self.longest_pause, self.first_pause * 2.0 ** min(max(0, self._in_a_row - 1), 30))
        return pause * (0.5 + self.chance() / 2)

    def fine(self) -> None:
        """A Turn ended otherwise."""
        self._in_a_row = 0
        self.limit += max(0.1, 1 / self.limit)
        if self.limit >= self._most:
            self.limit = UNTHROTTLED

    # ---- asked

    def admits(self, in_flight: int) -> bool:
        """Whether one more may start beside so many."""
        return in_flight < int(self.limit) if self.limit != UNTHROTTLED else True

    def admits_attempt(self) -> bool:
        """Whether one more attempt may start beside those that have."""
        return self.admits(len(self._clients))

    @property
    def has_made(self) -> bool:
        """Whether the Core has made a Session at all."""
        return self._made != -UNTHROTTLED

    def made_since(self, moment: float) -> bool:
        """Whether the Core has made a Session since then, for whomever."""
        return self._made >= moment

    def __str__(self) -> str:
        """What keeps rollouts from going on, in a few words; "" where nothing does. Any thread may ask."""
        waiting = [client.trouble for client in tuple(self._clients)]
        faults = [fault for fault in waiting if fault is not None and fault.elapsed_s >= SHOWN]
        parts = []
        if faults:
            longest = max(faults, key=lambda fault: fault.elapsed_s)
            parts.append(
                f"{len(faults)} waiting for the Core, {longest.elapsed_s:.0f} s and more ({longest.problem[:80]})"
            )
        if self.limit != UNTHROTTLED:
            parts.append(f"the model is throttled: {int(self.limit)} at a time")
        return "; ".join(parts)
