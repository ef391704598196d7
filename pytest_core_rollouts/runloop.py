"""pytest's loop in completion order: rollouts are reported as they finish, not in the order they were collected.

Other tests of the same run come first, in their own order and with their own fixtures. A rollout that a marker may
skip is started only when pytest comes to it.
"""

from __future__ import annotations

import pytest

from pytest_core_rollouts.collect import RolloutItem
from pytest_core_rollouts.engine import EngineStopped
from pytest_core_rollouts.run import Run


class Boundary(pytest.Item):
    """Only ever a `nextitem`: it keeps the session's fixtures alive between items whose order is not known yet."""

    def runtest(self) -> None:
        raise AssertionError("a boundary is never run")


def run_in_completion_order(session: pytest.Session, run: Run) -> bool | None:
    """Run all items; None where there is no rollout among them or this process may not reorder (an xdist worker)."""
    rollouts = [item for item in session.items if isinstance(item, RolloutItem)]
    if not rollouts or run.is_worker:
        return None
    if session.testsfailed and not session.config.option.continue_on_collection_errors:
        return None  # pytest's own loop says so and stops
    _Loop(session, run).run(rollouts)
    return True


class _Loop:
    def __init__(self, session: pytest.Session, run: Run) -> None:
        self.session = session
        self.rollouts_run = run
        self.boundary = Boundary.from_parent(session, name="rollouts")

    def run(self, rollouts: list[RolloutItem]) -> None:
        others = [item for item in self.session.items if not isinstance(item, RolloutItem)]
        early = {self.rollouts_run.plan(item).rollout_id: item for item in rollouts if item.starts_at_once}
        late = [item for item in rollouts if not item.starts_at_once]
        self.rollouts_run.submit(list(early.values()))
        self._in_order(others, last=not rollouts)
        self._in_order(late, last=not early)
        self._as_they_finish(early)

    def _in_order(self, items: list[pytest.Item] | list[RolloutItem], *, last: bool) -> None:
        for item, following in zip(items, [*items[1:], None], strict=True):
            self._one(item, following if following is not None or last else self.boundary)

    def _as_they_finish(self, waiting: dict[str, RolloutItem]) -> None:
        while waiting:
            try:
                rollout_id = self.rollouts_run.next_done()
            except EngineStopped as stopped:
                raise self.session.Interrupted(f"{stopped} ({len(waiting)} rollouts not run)") from None
            if rollout_id is not None:
                item = waiting.pop(rollout_id)
                self._one(item, self.boundary if waiting else None)

    def _one(self, item: pytest.Item, following: pytest.Item | None) -> None:
        item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
        if self.session.shouldfail:
            raise self.session.Failed(self.session.shouldfail)
        if self.session.shouldstop:
            raise self.session.Interrupted(self.session.shouldstop)
