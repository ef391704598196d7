"""How many attempts may run at a time while a model is throttled, and what all of them wait for.

A throttled Turn halves the number in flight. Each Turn that was not throttled raises it again, by a tenth in all once
every attempt in flight has ended. An attempt that follows a throttled one waits before it starts.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from pytest_core_rollouts.agents_api import AgentsAPIError

UNLIMITED = float("inf")
MIN_SHOWN_WAIT = 3.0
"""Seconds for which a call has to wait for the Core before the progress display shows it."""


class HasTrouble(Protocol):
    """The part of a client that is read here."""

    @property
    def trouble(self) -> AgentsAPIError | None: ...


@dataclass
class AdaptiveLimit:
    """The limit that all attempts of a process share. Times are in seconds of `clock`, which is monotonic.

    An attempt calls `enter` with its client when it starts, `turn_throttled` or `turn_ok` when its Turn has ended, and
    `leave` when it is over. Tests replace `clock` and `chance` (uniform in [0, 1)).
    """

    first_pause: float = 5.0
    longest_pause: float = 60.0
    clock: Callable[[], float] = field(default=time.monotonic, repr=False)
    chance: Callable[[], float] = field(default=random.random, repr=False)
    limit: float = UNLIMITED
    """Attempts that may be in flight. Grows by fractions; only whole attempts count."""
    _clients: set[HasTrouble] = field(default_factory=set)
    _full_size: int = 0
    """How many attempts were in flight when the first was throttled. At this number the limit is lifted."""
    _lowered_at: float = -UNLIMITED
    _throttled_in_a_row: int = 0
    _session_created_at: float = -UNLIMITED

    # ---- events

    def enter(self, client: HasTrouble) -> None:
        """An attempt starts."""
        self._clients.add(client)

    def leave(self, client: HasTrouble) -> None:
        """An attempt is over."""
        self._clients.discard(client)

    def session_created(self) -> None:
        """The Core created a Session."""
        self._session_created_at = self.clock()

    def turn_throttled(self, started: float) -> float:
        """A Turn of an attempt that started at `started` was throttled.

        Returns for how many seconds the next attempt has to wait. The limit is lowered once for all attempts that
        were in flight together.
        """
        if started >= self._lowered_at:
            in_flight = max(1, len(self._clients))
            if self.limit == UNLIMITED:
                self._full_size = in_flight
            self.limit = float(max(1, int(min(self.limit, in_flight)) // 2))
            self._lowered_at = self.clock()
            self._throttled_in_a_row += 1
        pause = min(self.longest_pause, self.first_pause * 2.0 ** min(max(0, self._throttled_in_a_row - 1), 30))
        return pause * (0.5 + self.chance() / 2)

    def turn_ok(self) -> None:
        """A Turn ended without being throttled."""
        self._throttled_in_a_row = 0
        self.limit += max(0.1, 1 / self.limit)
        if self.limit >= self._full_size:
            self.limit = UNLIMITED

    # ---- state

    def admits(self, in_flight: int) -> bool:
        """Whether one more attempt may start while `in_flight` run."""
        return self.limit == UNLIMITED or in_flight < int(self.limit)

    def admits_attempt(self) -> bool:
        """Whether one more attempt may start now."""
        return self.admits(len(self._clients))

    @property
    def ever_created(self) -> bool:
        """Whether the Core has created any Session."""
        return self._session_created_at != -UNLIMITED

    def created_since(self, moment: float) -> bool:
        """Whether the Core has created a Session since then, for any attempt."""
        return self._session_created_at >= moment

    def __str__(self) -> str:
        """What slows the rollouts down, in a few words; "" if nothing does. Any thread may call it."""
        faults = [client.trouble for client in tuple(self._clients)]
        waiting = [fault for fault in faults if fault is not None and fault.elapsed_s >= MIN_SHOWN_WAIT]
        parts = []
        if waiting:
            longest = max(waiting, key=lambda fault: fault.elapsed_s)
            parts.append(
                f"{len(waiting)} waiting for the Core, {longest.elapsed_s:.0f} s and more ({longest.problem[:80]})"
            )
        if self.limit != UNLIMITED:
            parts.append(f"the model is throttled: {int(self.limit)} at a time")
        return "; ".join(parts)
