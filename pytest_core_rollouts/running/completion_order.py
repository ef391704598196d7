"""pytest's loop in completion order: rollouts are reported as they finish, not in the order they were collected.

Other tests of the same run come first, in their own order, with their own fixtures and without rollouts in flight: they
stop clocks, forbid sockets or replace the file system. A rollout in flight would fail because of that, and lose its
row. A rollout that a marker may skip only starts when pytest comes to it.
"""

from __future__ import annotations

import gc
from collections.abc import Sequence

import pytest

from pytest_core_rollouts.collecting.collect import RolloutItem
from pytest_core_rollouts.engine.runs import RunEnded
from pytest_core_rollouts.rollout.attempts import Outcome
from pytest_core_rollouts.running.early_stop import EarlyStop
from pytest_core_rollouts.running.session_run import SessionRun


class Boundary(pytest.Item):
    """A `nextitem` that never runs: it keeps the session's fixtures alive while the next item is not known yet."""

    def runtest(self) -> None:
        raise AssertionError("a boundary is never run")


def run_items(session: pytest.Session, run: SessionRun) -> bool | None:
    """Run all items. Returns None to leave them to the loop of pytest, or of an xdist worker, which can't reorder."""
    rollouts = [item for item in session.items if isinstance(item, RolloutItem)]
    if not rollouts or run.is_worker:
        return None
    if session.testsfailed and not session.config.option.continue_on_collection_errors:
        return None  # pytest's own loop reports it and stops
    _Loop(session, run).run(rollouts)
    return True


def wait_before(item: pytest.Item, nextitem: pytest.Item | None, run: SessionRun) -> bool | None:
    """In a worker, wait for the rollout before its protocol starts, so that one that will not run is not reported.

    A worker that knows its items in advance keeps several rollouts in flight; other tests come first.
    """
    if run.is_worker and _will_not_run(item, run):
        _tear_down(item, nextitem)
        return True
    return None


def _will_not_run(item: pytest.Item, run: SessionRun) -> bool:
    if not isinstance(item, RolloutItem):
        return run.must_stop
    run.submit_assigned(item.session.items)
    if run.is_reported_elsewhere(item):
        return True
    if not item.starts_at_once:
        return False
    try:
        item.deliver(run.outcome_of(item))
    except RunEnded:
        return True
    return False


def _tear_down(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """Tear down what an item that is skipped shares with the one before it, and not with the next one.

    pytest kept that for this item. Without this, the next item that runs fails, because of what is still set up.
    Only pytest's own hook is called: those of other plugins expect that the item's setup has run.
    """
    manager = item.config.pluginmanager
    others = [plugin for name, plugin in manager.list_name_plugin() if name != "runner" and plugin is not None]
    teardown = manager.subset_hook_caller("pytest_runtest_teardown", others)
    reraise = (pytest.exit.Exception, KeyboardInterrupt)
    call = pytest.CallInfo.from_call(lambda: teardown(item=item, nextitem=nextitem), "teardown", reraise)
    if call.excinfo is not None:
        report = item.ihook.pytest_runtest_makereport(item=item, call=call)
        item.ihook.pytest_runtest_logreport(report=report)


class _Loop:
    def __init__(self, session: pytest.Session, run: SessionRun) -> None:
        self.session = session
        self.rollouts_run = run
        self.boundary = Boundary.from_parent(session, name="rollouts")

    def run(self, rollouts: list[RolloutItem]) -> None:
        early = {self.rollouts_run.id_of(item): item for item in rollouts if item.starts_at_once}
        others = [item for item in self.session.items if not isinstance(item, RolloutItem)]
        late = [item for item in rollouts if not item.starts_at_once]
        self._in_order(others, self.boundary)
        if self.rollouts_run.settings.stop is not None:
            self._in_order(late, self.boundary if early else None)
            self._until_decided(early)
            return
        self.rollouts_run.submit(list(early.values()))
        self._in_order(late, self.boundary if early else None)
        # Thousands of items live to the end, and searching them for garbage takes a sixth of the time of a replay.
        gc.collect()
        gc.freeze()  # until the process ends, see `session_plugin.begin`
        self._as_they_finish(early)

    def _in_order(self, items: Sequence[pytest.Item], following: pytest.Item | None) -> None:
        for item, after in zip(items, [*items[1:], following], strict=False):
            self._one(item, after)

    def _as_they_finish(self, waiting: dict[str, RolloutItem]) -> None:
        while waiting:
            if (outcome := self._next_done(len(waiting))) is not None:
                item = waiting.pop(outcome.record.rollout_id)
                item.deliver(outcome)
                self._one(item, self.boundary if waiting else None)

    def _until_decided(self, waiting: dict[str, RolloutItem]) -> None:
        """Run what the gates need, and report the rest as skipped."""
        stop = EarlyStop(self.rollouts_run, waiting.values())
        starting = stop.known or stop.to_start()
        while waiting:
            if starting:
                self.rollouts_run.submit(starting)
            for item in stop.not_needed():
                del waiting[self.rollouts_run.id_of(item)]
                item.not_needed = True
                self.rollouts_run.not_needed += 1
                self._one(item, self.boundary if waiting else None)
            if waiting and (outcome := self._next_done(len(waiting))) is not None:
                item = waiting.pop(outcome.record.rollout_id)
                item.deliver(outcome)
                self._one(item, self.boundary if waiting else None)
                stop.note(item, outcome)
            starting = stop.to_start()

    def _next_done(self, waiting: int) -> Outcome | None:
        """Return the next outcome, or None after a tick. Ends the session if there will be none."""
        try:
            return self.rollouts_run.next_done()
        except RunEnded as ended:
            text = f"{ended.reason} ({waiting} rollouts not run)"
            if self.rollouts_run.store.caps.stopped is not None:
                self.session.shouldfail = text
                raise self.session.Failed(text) from None
            raise self.session.Interrupted(text) from None

    def _one(self, item: pytest.Item, following: pytest.Item | None) -> None:
        item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
        if self.session.shouldfail:
            raise self.session.Failed(self.session.shouldfail)
        if self.session.shouldstop:
            raise self.session.Interrupted(self.session.shouldstop)
