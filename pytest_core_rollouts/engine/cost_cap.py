"""The limit on the dollars of a session. Once it is reached, nothing more starts; what runs finishes."""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from typing import Any, Final

from pytest_core_rollouts.results.prices import Prices, dollars
from pytest_core_rollouts.tasks.matrix import MODELLESS

SILENT: Final = 10
"""Attempts of unknown cost after which an agent is taken for one whose usage is never reported."""


@dataclass
class _Spent:
    """What one agent has spent."""

    known: Fraction = Fraction(0)
    attempts: int = 0
    """Of known cost."""
    unknown: int = 0

    @property
    def estimate(self) -> Fraction:
        """The sum if each unknown attempt cost as much as the mean of the known ones."""
        mean = self.known / self.attempts if self.attempts else Fraction(0)
        return self.known + self.unknown * mean


@dataclass
class CostCap:
    """Counts what attempts cost, by agent, and says when the limit is reached.

    An attempt without usage counts as the mean of its agent's known ones. If an agent's first attempts are all unknown,
    nothing can be counted, so the limit is taken for reached, unless `allows_unknown`.

    Under xdist, all processes share a folder, with a line for each attempt in its file `costs`.
    """

    limit: Fraction
    prices: Prices
    allows_unknown: bool = False
    folder: Path | None = None
    _agents: dict[str, _Spent] = field(default_factory=dict)
    _read: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def spend(
        self, agent: str, harness: str, model: str, base_url: str | None, usage: Mapping[str, Any] | None
    ) -> None:
        """Count an attempt of an agent, which is given by its slug."""
        prices = self.prices.of(model, base_url)
        cost = None if prices is None else prices.cost(usage)
        if harness in MODELLESS:
            cost = Fraction(0)
        with self._lock:
            if self.folder is None:
                self._add(agent, cost)
                return
        descriptor = os.open(self.folder / "costs", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        try:
            os.write(descriptor, f"{agent} {'?' if cost is None else cost}\n".encode())
        finally:
            os.close(descriptor)

    def reason(self) -> str | None:
        """Return why nothing more may start, or None."""
        self._count()
        with self._lock:
            total = sum((spent.estimate for spent in self._agents.values()), Fraction(0))
            silent = [name for name, spent in self._agents.items() if not spent.attempts and spent.unknown >= SILENT]
        if total >= self.limit:
            return f"--rollout-max-cost {dollars(self.limit)} is reached: {self.spent(total)}"
        if silent and not self.allows_unknown:
            return (
                f"--rollout-max-cost {dollars(self.limit)} can't be kept: the cost of the first {SILENT} attempts of "
                f"{silent[0]} is unknown; accept this with --rollout-allow-unknown-cost"
            )
        return None

    def spent(self, total: Fraction) -> str:
        more = f", with {self.unknown} attempts of unknown cost counted as their agent's mean" if self.unknown else ""
        return f"{dollars(total)} spent{more}"

    @property
    def unknown(self) -> int:
        """Number of attempts whose cost is unknown."""
        return sum(spent.unknown for spent in self._agents.values())

    def _count(self) -> None:
        """Add what all processes have spent since the last call."""
        if self.folder is None or not (self.folder / "costs").exists():
            return
        with self._lock, (self.folder / "costs").open("rb") as file:
            file.seek(self._read)
            for line in file:
                if not line.endswith(b"\n"):
                    break
                self._read += len(line)
                agent, cost = line.decode().split()
                self._add(agent, None if cost == "?" else Fraction(cost))

    def _add(self, agent: str, cost: Fraction | None) -> None:
        spent = self._agents.setdefault(agent, _Spent())
        if cost is None:
            spent.unknown += 1
        else:
            spent.known += cost
            spent.attempts += 1
