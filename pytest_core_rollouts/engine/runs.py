"""One run of the engine: its results as they come, singly or as groups."""

from __future__ import annotations

import asyncio
import collections
import threading
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from pytest_core_rollouts.records import RolloutRecord
from pytest_core_rollouts.rollout.stopping import Stop
from pytest_core_rollouts.tasks import Task
from pytest_core_rollouts.tasks.matrix import Agent, Rollout


class RunEnded(Exception):
    """The run ended before its rollouts did: it was cancelled, the engine was closed or broke. `str()` says which."""


@dataclass(frozen=True)
class Group:
    """All samples of one task by one agent in one run, finished: a GRPO group."""

    group_id: str
    task: Task
    agent: Agent
    labels: Mapping[str, str]
    records: tuple[RolloutRecord, ...]
    """By sample, with their trajectories."""

    @property
    def rewards(self) -> tuple[float | None, ...]:
        """By sample; None where infrastructure spoiled the rollout: leave it out, it is no 0."""
        return tuple(record.reward for record in self.records)


class Run:
    """The rollouts of one `submit`. Its results are handed out once, singly or by group, to one reader.

    Made by the engine: `read` is called when a result was taken, `ask` to end what is in flight.
    """

    def __init__(self, rollouts: Sequence[Rollout], read: Callable[[], None], ask: Callable[[Run], None]) -> None:
        self.run_id = rollouts[0].run_id
        self.rollouts = tuple(rollouts)
        self.warnings: list[str] = []
        """Sessions that could not be deleted, by name."""
        self.stop = Stop()
        self._read = read
        self._ask = ask
        self._results: collections.deque[RolloutRecord] = collections.deque()
        self._changed = threading.Condition()
        self._listeners: list[Callable[[], None]] = []
        self._left = len(rollouts)
        self._ended: str | None = None

    # ---- results

    def records(self) -> Iterator[RolloutRecord]:
        """Rollouts as they finish, with their trajectories. Raises RunEnded if some never will."""
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._results or self._left == 0 or self._ended)
                record = self._take()
            if record is None:
                return
            self._read()
            yield record

    def groups(self) -> Iterator[Group]:
        """Groups as they become complete. Raises RunEnded if some never will."""
        grouper = _Grouper(self.rollouts)
        for record in self.records():
            yield from grouper.add(record)

    async def arecords(self) -> AsyncIterator[RolloutRecord]:
        """`records` for asyncio."""
        loop, news = asyncio.get_running_loop(), asyncio.Event()

        def listener() -> None:
            loop.call_soon_threadsafe(news.set)

        with self._changed:
            self._listeners.append(listener)
        try:
            while True:
                news.clear()
                with self._changed:
                    waiting = not (self._results or self._left == 0 or self._ended)
                    record = None if waiting else self._take()
                if waiting:
                    await news.wait()
                    continue
                if record is None:
                    return
                self._read()
                yield record
        finally:
            with self._changed:
                self._listeners.remove(listener)

    async def agroups(self) -> AsyncIterator[Group]:
        """`groups` for asyncio."""
        grouper = _Grouper(self.rollouts)
        async for record in self.arecords():
            for group in grouper.add(record):
                yield group

    def _take(self) -> RolloutRecord | None:
        """The next result, or None after the last; the lock is held."""
        if self._results:
            return self._results.popleft()
        if self._left:
            raise RunEnded(f"{self._ended} ({self._left} rollouts of run {self.run_id} have no result)")
        return None

    # ---- its end

    def cancel(self) -> None:
        """Start no more of its rollouts; end those in flight, delete their Sessions and keep their records."""
        self.end("the run was cancelled")
        self._ask(self)

    @property
    def is_over(self) -> bool:
        """Whether no further result will come."""
        return self._ended is not None or self._left == 0

    @property
    def unread(self) -> int:
        """Rollouts whose results are still to come or to be read; 0 once the run has ended early."""
        with self._changed:
            return 0 if self._ended is not None else self._left + len(self._results)

    def end(self, reason: str) -> None:
        """For the engine: results that are not there yet will not come."""
        with self._changed:
            self._ended = self._ended or reason
            self._notify()

    def add(self, record: RolloutRecord) -> None:
        """For the engine: a rollout finished."""
        with self._changed:
            if record.status == "cancelled" and self._ended is not None:
                return
            self._left -= 1
            self._results.append(record)
            self._notify()

    def _notify(self) -> None:
        self._changed.notify_all()
        for listener in self._listeners:
            listener()


class _Grouper:
    """Puts records together to complete groups."""

    def __init__(self, rollouts: Iterable[Rollout]) -> None:
        self._of: dict[str, Rollout] = {rollout.rollout_id: rollout for rollout in rollouts}
        self._size = collections.Counter(rollout.group_id for rollout in self._of.values())
        self._open: dict[str, list[RolloutRecord]] = {}

    def add(self, record: RolloutRecord) -> Iterator[Group]:
        rollout = self._of[record.rollout_id]
        records = self._open.setdefault(rollout.group_id, [])
        records.append(record)
        if len(records) == self._size[rollout.group_id]:
            del self._open[rollout.group_id]
            by_sample = tuple(sorted(records, key=lambda one: one.sample))
            yield Group(rollout.group_id, rollout.task, rollout.agent, rollout.labels, by_sample)
