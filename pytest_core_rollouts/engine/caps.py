"""Limits on the time, the tokens and the cost of a session: at one, nothing more starts; what runs finishes."""

from __future__ import annotations

import math
import os
import tempfile
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pytest_core_rollouts.engine.cost_cap import CostCap
from pytest_core_rollouts.records.record import tokens_of


@dataclass
class Caps:
    """Counts what is spent, and says when a limit is reached.

    Under xdist all processes share a `folder`. Its files have the end of the time, on the monotonic clock, which is the
    same in all processes of a machine, and the tokens of each rollout. Without a folder, they are counted in memory.
    """

    max_time: float | None = None
    max_tokens: int | None = None
    cost: CostCap | None = None
    folder: Path | None = None
    until: float | None = None
    tokens: int = 0
    unknown: int = 0
    """Number of attempts whose usage is unknown, so that they can't be counted."""
    stopped: str | None = None
    """Which limit was reached; None: none so far."""
    _read: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def share(self, folder: Path) -> None:
        """Count together with other processes from now on, in files of this folder."""
        self.folder = folder
        if self.cost is not None:
            self.cost.folder = folder

    def start(self) -> None:
        """Start the time, unless this or another process has started it. Call it before rollouts start."""
        if self.max_time is None or self._until() < math.inf:
            return
        until = time.monotonic() + self.max_time
        if self.folder is None:
            self.until = until
            return
        with tempfile.NamedTemporaryFile("w", dir=self.folder) as own:
            own.write(repr(until))
            own.flush()
            with suppress(FileExistsError):  # another process was the first
                os.link(own.name, self.folder / "until")
        self._until()

    def spend_attempt(
        self, agent: str, harness: str, model: str, base_url: str | None, usage: Mapping[str, Any] | None
    ) -> None:
        """Count an attempt of an agent, which is given by its slug; None: its usage is unknown."""
        self.spend(tokens_of(usage))
        if self.cost is not None:
            self.cost.spend(agent, harness, model, base_url, usage)

    def spend(self, tokens: int | None) -> None:
        """Count the tokens of an attempt; None: its usage is unknown."""
        if self.max_tokens is None:
            return
        with self._lock:
            if self.folder is None:
                self._add(tokens)
                return
        descriptor = os.open(self.folder / "tokens", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        try:
            os.write(descriptor, f"{'?' if tokens is None else tokens}\n".encode())
        finally:
            os.close(descriptor)

    def reached(self) -> str | None:
        """Return why nothing more may start, or None."""
        self.stopped = self.stopped or self._reason()
        return self.stopped

    def _reason(self) -> str | None:
        if self.max_time is not None and time.monotonic() >= self._until():
            return f"--rollout-max-time {self.max_time:g} (seconds) is reached"
        if self.max_tokens is not None:
            self.count()
            if self.tokens >= self.max_tokens:
                return f"--rollout-max-tokens {self.max_tokens} is reached: {self.spent()}"
        return None if self.cost is None else self.cost.reason()

    def spent(self) -> str:
        """Return the known tokens as text."""
        known = f"{self.tokens:,} tokens spent"
        return f"{known}, and those of {self.unknown:,} attempts, which are unknown" if self.unknown else known

    def count(self) -> None:
        """Add what other processes have spent since the last call."""
        if self.folder is None or not (self.folder / "tokens").exists():
            return
        with self._lock, (self.folder / "tokens").open("rb") as file:
            file.seek(self._read)
            for line in file:
                if not line.endswith(b"\n"):
                    break
                self._read += len(line)
                self._add(None if line == b"?\n" else int(line))

    def _until(self) -> float:
        file = None if self.folder is None else self.folder / "until"
        if self.until is None and file is not None and file.exists():
            self.until = float(file.read_text(encoding="ascii"))
        return math.inf if self.until is None else self.until

    def _add(self, tokens: int | None) -> None:
        if tokens is None:
            self.unknown += 1
        else:
            self.tokens += tokens
