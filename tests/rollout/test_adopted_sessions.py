"""The limit of a Session that existed before: it runs from the Session's creation, by the server's times."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import datetime, timezone
from types import SimpleNamespace
from typing import Any

import pytest

from pytest_core_rollouts.rollout.turn_watch import TurnWatch
from tests.support.fake_core import FakeCore, FakeSession, Fault, Request, Script
from tests.support.rollouts import RIGHT, Ran, only_session, plan, run
from tests.support.tables import rows

LOST = Fault(reset=True, processed=True)


def adopt(
    core: FakeCore,
    age: int,
    *,
    is_ready: Callable[[FakeSession], bool] = lambda session: session.turn is not None,
    turn_took: int | None = None,
) -> Ran:
    """Run a rollout whose Session was created `age` seconds before the Core's answer to its create arrives.

    The first answer is lost. Before the answer that arrives, the Session and its Turn are made so much older.
    """
    aged = False

    def hook(request: Request) -> Fault | None:
        nonlocal aged
        if request.route != "create" or aged:
            return None
        if not core.sessions:
            return LOST
        session = only_session(core)
        if not is_ready(session):
            return Fault(status=503)
        session.created_at -= age
        if turn_took is not None and session.turn is not None:
            session.turn["completed_at"] = session.created_at + turn_took
        aged = True
        return None

    core.fault = hook
    return run(core, plan(timeout=10.0))


def has_completed(session: FakeSession) -> bool:
    return session.turn is not None and session.turn["status"] == "completed"


@rows(("turn_took", "status"), [(9, "completed"), (10, "completed"), (11, "timeout")])
def test_a_turn_that_ended_before_adoption_counts_if_it_kept_the_limit(turn_took: int, status: str) -> None:
    """Earlier, a resumed rollout that took 16 s of a limit of 10 s was completed, with reward 1."""
    with FakeCore(script=lambda body: Script(answer=RIGHT)) as core:
        ran = adopt(core, 300, is_ready=has_completed, turn_took=turn_took)
        assert ran.verdict == (status, 1.0 if status == "completed" else 0.0), ran.record.error
        assert ran.record.duration_s == turn_took
        assert any("adopted a Session that had been created" in note for note in ran.record.notes)
        assert only_session(core).deleted


def test_a_turn_that_still_runs_past_its_limit_at_adoption_is_a_timeout() -> None:
    with FakeCore(script=lambda body: Script(never_ends=True)) as core:
        ran = adopt(core, 30)
        assert ran.verdict == ("timeout", 0.0)
        assert ran.record.duration_s is not None
        assert 28 < ran.record.duration_s < 60
        assert only_session(core).cancels == 1


def test_a_turn_that_completes_while_it_is_cancelled_after_its_limit_is_a_timeout() -> None:
    with FakeCore(script=lambda body: Script(never_ends=True, completes_on_cancel=True, answer=RIGHT)) as core:
        assert adopt(core, 30).verdict == ("timeout", 0.0)


def test_an_adopted_turn_may_use_the_rest_of_its_limit() -> None:
    with FakeCore(script=lambda body: Script(turn_seconds=0.5, answer=RIGHT)) as core:
        ran = adopt(core, 5)
        assert ran.verdict == ("completed", 1.0)
        assert ran.record.duration_s is not None
        assert ran.record.duration_s >= 4
        started = datetime.fromisoformat(ran.record.started_at or "")
        assert (datetime.now(timezone.utc) - started).total_seconds() >= 4


def test_a_turn_that_may_still_be_in_time_is_not_cancelled() -> None:
    """The server gives the creation in whole seconds, so an adopted Session may seem up to 1 s too old."""

    def seconds_left(created_at: int | None) -> float:
        client: Any = SimpleNamespace(waited_s=0.0)
        start = time.monotonic() - 10
        watch = TurnWatch(
            client, "s", started_at=start, limit=10, first_poll=0.5, cancel_timeout=1, created_at=created_at
        )
        return watch.seconds_left

    assert seconds_left(None) <= 0
    assert seconds_left(1_800_000_000) == pytest.approx(seconds_left(None) + 1, abs=0.9)


@rows("ahead", [-3600.0, 3600.0])
def test_the_age_of_a_session_does_not_depend_on_our_clock(ahead: float) -> None:
    with FakeCore(clock_ahead=ahead, script=lambda body: Script(answer=RIGHT)) as core:
        ran = run(core)
        assert ran.verdict == ("completed", 1.0)
        assert ran.record.notes == []


@rows("created_at", [0, None, "yesterday", 1.5, -5, 10**30, True])
def test_an_invalid_creation_time_is_not_believed(created_at: object) -> None:
    with FakeCore(script=lambda body: Script(answer=RIGHT)) as core:

        def hook(request: Request) -> Fault | None:
            if request.route != "create" or not core.sessions:
                return LOST if request.route == "create" else None
            only_session(core).created_at = created_at  # type: ignore[assignment]
            return None

        core.fault = hook
        ran = run(core)
        assert ran.verdict == ("completed", 1.0)
        assert ran.record.notes == []
