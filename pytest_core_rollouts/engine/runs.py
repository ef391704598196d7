"""Results of one run as they come: outcome by outcome, or as groups."""

from __future__ import annotations

import asyncio
import collections
import threading
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_core_rollouts.records.record import RolloutRecord
from pytest_core_rollouts.rollout.attempts import Outcome
from pytest_core_rollouts.rollout.stopping import Stop
from pytest_core_rollouts.tasks.matrix import Agent, Rollout
from pytest_core_rollouts.tasks.task import Task

if TYPE_CHECKING:
    from pytest_core_rollouts.training.sequences import Sequence


class RunEnded(Exception):
    """The run ended before its rollouts did: it was cancelled, the engine was closed or broke.

    `reason` says which; `str()` also says how many rollouts have no result.
    """

    def __init__(self, reason: str, missing: str = "") -> None:
        super().__init__(f"{reason} ({missing})" if missing else reason)
        self.reason = reason


@dataclass(frozen=True)
class Group:
    """All samples of one task by one agent in one run, finished: a GRPO group."""

    group_id: str
    task: Task
    agent: Agent
    labels: Mapping[str, str]
    records: tuple[RolloutRecord, ...]
    """By sample, with their trajectories."""
    captures: Path | None = None
    """The folder with their model requests, if the Core captures them."""

    @property
    def rewards(self) -> tuple[float | None, ...]:
        """By sample. None if infrastructure spoiled the rollout: leave it out, it is not a 0."""
        return tuple(record.reward for record in self.records)

    def sequences(self, captures: Path | str | None = None) -> tuple[list[Sequence], ...]:
        """Return the token sequences of each rollout, by sample; [] for one without a reward.

        `captures`: the folder with the model requests, one JSONL per rollout. Default: the engine's `capture`. Raises
        CaptureError if there is no such folder, or if a request has no token ids.
        """
        from pytest_core_rollouts.training.captures import CaptureError, exchanges
        from pytest_core_rollouts.training.sequences import sequences  # few runs need it

        folder = self.captures if captures is None else Path(captures)
        if folder is None:
            raise CaptureError(
                "sequences: no model requests were captured; set capture=DIR in Engine.embedded, or captures=DIR here"
            )
        if not folder.is_dir():
            raise CaptureError(f"sequences: {folder} is not a folder")
        return tuple(
            [] if record.reward is None else sequences(exchanges(folder, record.rollout_id, record.session_id))
            for record in self.records
        )


class Run:
    """The rollouts of one submit. Each result is handed out once, singly or by group.

    `on_read` is called when a result was read, `on_cancel` to end what is in flight. `captures`: the folder with the
    rollouts' model requests.
    """

    def __init__(
        self,
        run_id: str,
        on_read: Callable[[Run], None],
        on_cancel: Callable[[Run], None],
        captures: Path | None = None,
    ) -> None:
        self.run_id = run_id
        self.skipped: dict[str, str] = {}
        """Why each task that was skipped was skipped, by task id."""
        self.warnings: list[str] = []
        """Sessions that could not be deleted, by name."""
        self._captures = captures
        self._on_read = on_read
        self._on_cancel = on_cancel
        self._stop = Stop()
        self._rollouts: dict[str, Rollout] = {}
        self._results: collections.OrderedDict[str, Outcome] = collections.OrderedDict()
        self._changed = threading.Condition()
        self._listeners: list[Callable[[], None]] = []
        self._pending = 0
        self._ended: str | None = None

    @property
    def rollouts(self) -> tuple[Rollout, ...]:
        """What was submitted, in order."""
        return tuple(self._rollouts.values())

    # ---- results

    def next_outcome(self, timeout: float | None = None) -> Outcome | None:
        """The next outcome in completion order; None after `timeout` seconds without one, or after the last.

        Raises RunEnded if some will never come.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._results or self._is_over, timeout)
            outcome = self._pop(None)
        return self._read(outcome)

    def wait(self, rollout_id: str, timeout: float | None = None) -> Outcome | None:
        """The outcome of one rollout; None after `timeout` seconds. Raises RunEnded if it will never come."""
        with self._changed:
            self._changed.wait_for(lambda: rollout_id in self._results or self._is_over, timeout)
            outcome = self._pop(rollout_id)
        return self._read(outcome)

    def records(self) -> Iterator[RolloutRecord]:
        """Yield rollouts as they finish, with their trajectories. Raises RunEnded if some never will."""
        while (outcome := self.next_outcome()) is not None:
            yield outcome.record

    def groups(self) -> Iterator[Group]:
        """Yield groups as they become complete. Raises RunEnded if some never will."""
        grouper = _Grouper(self.rollouts, self._captures)
        for record in self.records():
            yield from grouper.add(record)

    async def arecords(self) -> AsyncIterator[RolloutRecord]:
        """`records` for asyncio."""
        loop, changed = asyncio.get_running_loop(), asyncio.Event()

        def listener() -> None:
            loop.call_soon_threadsafe(changed.set)

        with self._changed:
            self._listeners.append(listener)
        try:
            while True:
                changed.clear()
                with self._changed:
                    waits = not (self._results or self._is_over)
                if waits:
                    await changed.wait()
                    continue
                if (outcome := self.next_outcome(0)) is None:
                    return
                yield outcome.record
        finally:
            with self._changed:
                self._listeners.remove(listener)

    async def agroups(self) -> AsyncIterator[Group]:
        """`groups` for asyncio."""
        grouper = _Grouper(self.rollouts, self._captures)
        async for record in self.arecords():
            for group in grouper.add(record):
                yield group

    def cancel(self) -> None:
        """Start no more of its rollouts. End those in flight, delete their Sessions and keep their records."""
        self._end("the run was cancelled")
        self._on_cancel(self)

    # ---- for the engine

    @property
    def _is_over(self) -> bool:
        """Whether no further result will come."""
        return self._ended is not None or self._pending == 0

    @property
    def _awaited(self) -> int:
        """Rollouts whose results are still to come; 0 once the run has ended early."""
        with self._changed:
            return 0 if self._ended is not None else self._pending

    @property
    def _unread(self) -> int:
        """Rollouts whose results are still to come or to be read; 0 once the run has ended early."""
        with self._changed:
            return 0 if self._ended is not None else self._pending + len(self._results)

    def _expect(self, rollouts: Iterable[Rollout]) -> None:
        with self._changed:
            for rollout in rollouts:
                self._rollouts[rollout.rollout_id] = rollout
                self._pending += 1

    def _add(self, outcome: Outcome) -> None:
        """A rollout finished. What a stop cancelled has its row, and is no result."""
        with self._changed:
            if outcome.record.status == "cancelled" and self._ended is not None:
                return
            self._pending -= 1
            self._results[outcome.record.rollout_id] = outcome
            self._notify()

    def _end(self, reason: str) -> None:
        """Results that have not come yet will not come."""
        with self._changed:
            if self._pending:
                self._ended = self._ended or reason
            self._notify()

    def _pop(self, rollout_id: str | None) -> Outcome | None:
        """The next result, or that of one rollout; the lock is held."""
        if rollout_id is None and self._results:
            return self._results.popitem(last=False)[1]
        if rollout_id is not None and rollout_id in self._results:
            return self._results.pop(rollout_id)
        if self._pending and self._ended is not None:
            raise RunEnded(self._ended, f"{self._pending} rollouts of run {self.run_id} have no result")
        return None

    def _read(self, outcome: Outcome | None) -> Outcome | None:
        if outcome is not None:
            self._on_read(self)
        return outcome

    def _notify(self) -> None:
        self._changed.notify_all()
        for listener in self._listeners:
            listener()


class _Grouper:
    """Puts records together to complete groups."""

    def __init__(self, rollouts: Iterable[Rollout], captures: Path | None) -> None:
        self._captures = captures
        self._rollouts: dict[str, Rollout] = {rollout.rollout_id: rollout for rollout in rollouts}
        self._sizes = collections.Counter(rollout.group_id for rollout in self._rollouts.values())
        self._open: dict[str, list[RolloutRecord]] = {}

    def add(self, record: RolloutRecord) -> Iterator[Group]:
        rollout = self._rollouts[record.rollout_id]
        records = self._open.setdefault(rollout.group_id, [])
        records.append(record)
        if len(records) == self._sizes[rollout.group_id]:
            del self._open[rollout.group_id]
            by_sample = tuple(sorted(records, key=lambda one: one.sample))
            yield Group(rollout.group_id, rollout.task, rollout.agent, rollout.labels, by_sample, self._captures)
