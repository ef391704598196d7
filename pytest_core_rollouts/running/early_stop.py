"""A run that stops early: which rollouts start next, and which are no longer needed.

Rollouts start in rounds, sample 0 of all tasks first, and only as places become free: each finished rollout may decide
a gate. Where a gate has a rule for complete rounds, the next round waits for the look at them.
"""

from __future__ import annotations

import time
from collections.abc import Iterable

from pytest_core_rollouts.collecting.collect import RolloutItem
from pytest_core_rollouts.records.rows import slim
from pytest_core_rollouts.results.gate import Identity, Need, needs
from pytest_core_rollouts.results.summary import summarize
from pytest_core_rollouts.rollout.attempts import Outcome
from pytest_core_rollouts.running import gates
from pytest_core_rollouts.running.session_run import SessionRun

QUICK = 0.05
"""Seconds that a look may take after each result."""
SHARE = 20
"""If looks take longer, one is due at the end of a round, and else after so many times the time beyond that."""


class EarlyStop:
    """Decides which items of a run start."""

    def __init__(self, run: SessionRun, items: Iterable[RolloutItem]) -> None:
        self._run = run
        self._selection = gates.selection_of(run)
        known: list[RolloutItem] = []
        self._queue: list[RolloutItem] = []
        for item in sorted(items, key=lambda item: item.sample):  # stable: within a round, in the order of collection
            (known if run.is_known(item) else self._queue).append(item)
        self.known = known
        """Items whose results a resumed run has already."""
        self._unread = len(known)
        self._open = len(known)
        """Items that were submitted and have no outcome yet."""
        self._planned = run.planned_rollouts
        waiting = {run.id_of(item) for item in (*known, *self._queue)}
        self._records = [slim(row) for row, _ in run.store.rows(run.run_id) if row.rollout_id not in waiting]
        self._needs: dict[Identity, Need] = {}
        self._unfinished: dict[tuple[Identity, int], int] = {}
        """How many rollouts of an agent's round have no outcome yet."""
        for item in (*known, *self._queue):
            key = _identity(item), item.sample
            self._unfinished[key] = self._unfinished.get(key, 0) + 1
        self._next_look = 0.0

    def note(self, item: RolloutItem, outcome: Outcome) -> None:
        """Take a result into account."""
        self._open -= 1
        is_last_known = self._unread == 1  # nothing may start before a look at all that is known
        self._unread -= self._unread > 0
        planned = self._run.planned[item.agent.slug, item.task.id]  # as in the row on the disk
        self._records.append(slim(outcome.record, planned=planned))
        key = _identity(item), item.sample
        self._unfinished[key] -= 1
        if is_last_known or not self._unfinished[key] or time.monotonic() >= self._next_look:
            self._look()

    def to_start(self) -> list[RolloutItem]:
        """Return the items to start now, in the free places. While known results are read, none start."""
        places = self._run.concurrency - self._open
        if places <= 0 or self._unread:
            return []
        chosen = [item for item in self._queue if self._is_needed(item) and not self._waits(item)][:places]
        self._queue = [item for item in self._queue if item not in chosen]
        self._open += len(chosen)
        return chosen

    def not_needed(self) -> list[RolloutItem]:
        """Return the items that will never start, once: those of which no gate needs a result any more."""
        found = [item for item in self._queue if not self._is_needed(item)]
        self._queue = [item for item in self._queue if self._is_needed(item)]
        for item in found:
            self._unfinished[_identity(item), item.sample] -= 1
        return found

    def _look(self) -> None:
        began = time.monotonic()
        summary = summarize(self._records, planned=self._planned)
        self._needs = needs(self._run.settings.gates, summary, self._run.baseline, self._selection)
        took = time.monotonic() - began
        self._next_look = began + took + SHARE * max(0.0, took - QUICK)

    def _is_needed(self, item: RolloutItem) -> bool:
        """An agent without a result needs all its rollouts; what is expected to fail is in no gate, and always runs."""
        need = self._needs.get(_identity(item))
        return need is None or item.expected_failure is not None or item.task.id in need.tasks

    def _waits(self, item: RolloutItem) -> bool:
        """Whether the rollout's round waits: before the first look, every round but the first one does."""
        rule, identity = self._run.settings.stop, _identity(item)
        if rule is None or not rule.risk or not item.sample:
            return False
        need = self._needs.get(identity)
        if need is not None and not need.waits:
            return False
        return any(
            count for (agent, sample), count in self._unfinished.items() if agent == identity and sample < item.sample
        )


def _identity(item: RolloutItem) -> Identity:
    return item.agent.harness, item.agent.model, item.agent.name
