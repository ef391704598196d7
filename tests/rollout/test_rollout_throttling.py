"""Throttled models, a Core that is down for everyone, and what stops a run: nothing is burned as an error."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from pytest_core_rollouts.agents_api import Client, RetryPolicy
from pytest_core_rollouts.engine.pool import PoolStopped
from pytest_core_rollouts.rollout.adaptive_limit import AdaptiveLimit
from pytest_core_rollouts.rollout.attempts import Outcome
from pytest_core_rollouts.rollout.runner import RolloutRunner, Timeouts
from pytest_core_rollouts.rollout.stopping import Stop
from pytest_core_rollouts.rollout.witnesses import Witnesses
from pytest_core_rollouts.tasks.matrix import Rollout
from tests.support.api import quick
from tests.support.fake_core import FakeCore, Fault, Request, Script
from tests.support.pools import CollectingPool
from tests.support.rollouts import RIGHT, TIMEOUTS, Keeper, grade, nothing_open, on, plan, refused, run, scripted
from tests.support.waiting import no_hang

TIMEOUT = 30.0
IMPATIENT = quick(patience=0.2)
THROTTLED = Script(turn_status="failed", error={"code": "rate_limit_exceeded", "message": "Slow down."})


@pytest.fixture(autouse=True)
def nothing_is_left() -> Iterator[None]:
    with nothing_open():
        yield


def quickly() -> AdaptiveLimit:
    return AdaptiveLimit(first_pause=0.1, longest_pause=0.4)


@contextmanager
def rollouts(
    core: FakeCore, concurrency: int, retry: RetryPolicy = IMPATIENT, timeouts: Timeouts = TIMEOUTS
) -> Iterator[tuple[CollectingPool[Rollout, Client, Outcome], Keeper]]:
    keeper = Keeper(core)
    shared = {"adaptive_limit": quickly(), "witnesses": Witnesses(lambda run_id: 1), "halted": lambda: pool.fatal}
    runner = RolloutRunner(grade=grade, save=keeper, timeouts=timeouts, **shared)  # type: ignore[arg-type]

    async def run_one(client: Client, rollout: Rollout, stop: Stop) -> Outcome:
        outcome = await runner.run(client, rollout, stop)
        if outcome.fatal is not None:
            pool.halt(outcome.fatal)
        return outcome

    pool: CollectingPool[Rollout, Client, Outcome] = CollectingPool(
        lambda: Client(core.base_url, core.api_key, retry=retry),
        run_one,
        concurrency=concurrency,
        admits=runner.adaptive_limit.admits,
    )
    try:
        yield pool, keeper
    finally:
        pool.stop("the test is over")


def finished(pool: CollectingPool[Rollout, Client, Outcome], number: int) -> list[Outcome]:
    outcomes = [pool.next_done(TIMEOUT) for _ in range(number)]
    return [outcome for outcome in outcomes if outcome is not None]


# ---- throttled models


class Model:
    """Serves at most `most` Turns at a time, and throttles the others."""

    def __init__(self, core: FakeCore, most: int) -> None:
        self.core, self.most, self.throttled = core, most, 0

    def __call__(self, body: dict[str, Any]) -> Script:
        busy = sum(session.busy for session in self.core.sessions.values())
        if busy < self.most:
            return Script(turn_seconds=0.1, answer=RIGHT)
        self.throttled += 1
        return THROTTLED


def test_a_throttled_model_is_asked_by_fewer_until_all_have_their_result() -> None:
    with FakeCore() as core:
        core.script = model = Model(core, most=3)
        with rollouts(core, 16) as (pool, keeper):
            pool.submit(plan(sample=sample, retries=8) for sample in range(48))
            assert len(finished(pool, 48)) == 48
        assert Counter((record.status, record.reward) for record in keeper.records) == {("completed", 1.0): 48}
        assert model.throttled >= 13, "the first sixteen came at once"
        assert model.throttled < 48, "later ones wait for room"
        assert all(session.deleted for session in core.sessions.values())


@pytest.mark.parametrize("code", ["rate_limit_exceeded", "flex_unavailable"])
def test_the_attempt_after_a_throttled_one_waits(code: str) -> None:
    with FakeCore() as core:
        throttled = Script(turn_status="failed", error={"code": code, "message": "Slow down."})
        scripted(core, throttled, Script(answer=RIGHT))
        ran = run(core, plan(retries=1), adaptive_limit=AdaptiveLimit(first_pause=0.8, chance=lambda: 1.0))
        assert ran.verdict == ("completed", 1.0)
        first, second = core.sessions.values()
        assert second.history[0][0] - first.history[-1][0] >= 0.7
        assert ran.record.duration_s is not None
        assert ran.record.duration_s < 0.7, "the pause is not the agent's"
        assert ran.record.notes == [f"attempt 1: the Turn failed: {code}: Slow down."]


def test_another_fault_makes_no_attempt_wait() -> None:
    with FakeCore() as core:
        scripted(core, Script(session_failure="no room"), Script(answer=RIGHT))
        with no_hang():
            ran = run(core, plan(retries=1), adaptive_limit=AdaptiveLimit(first_pause=3600))
        assert ran.verdict == ("completed", 1.0)


def test_a_stop_ends_the_wait_for_a_further_attempt() -> None:
    with FakeCore(script=lambda body: THROTTLED) as core:

        async def drive(stop: Stop, task: asyncio.Task[Outcome]) -> None:
            for _ in range(1000):
                if core.counts["delete"]:
                    break
                await asyncio.sleep(0.01)
            stop.request(1.0)

        ran = run(core, plan(retries=1), adaptive_limit=AdaptiveLimit(first_pause=60), drive=drive)
        assert ran.verdict == ("cancelled", None)
        assert ran.record.notes == ["attempt 1: the Turn failed: rate_limit_exceeded: Slow down."]
        assert len(core.sessions) == 1


def test_a_run_that_is_halted_makes_no_further_attempt() -> None:
    with FakeCore(script=lambda body: THROTTLED) as core:
        reasons = iter([None])
        ran = run(
            core,
            plan(retries=1),
            adaptive_limit=AdaptiveLimit(first_pause=60),
            halted=lambda: next(reasons, "--rollout-max-time is reached"),
        )
        assert ran.verdict == ("error", None)
        assert ran.record.error == "no further attempt: --rollout-max-time is reached"
        assert ran.record.notes == ["attempt 1: the Turn failed: rate_limit_exceeded: Slow down."]
        assert len(core.sessions) == 1


STOPPING = (
    *("authentication_error", "usage_limit_exceeded", "credit_balance_exhausted", "project_spend_limit_exceeded"),
    *("organization_spend_limit_exceeded", "organization_usage_limit_exceeded", "billing_not_active"),
)


@pytest.mark.parametrize("code", STOPPING)
def test_a_model_that_two_rollouts_may_not_use_stops_the_run(code: str) -> None:
    script = Script(turn_status="failed", error={"code": code, "message": "No.\x1b[2J\r\n\u202e"}, turn_seconds=0.1)
    with FakeCore(script=lambda body: script) as core:
        with rollouts(core, 4) as (pool, keeper):
            pool.submit(plan(sample=sample, retries=3) for sample in range(50))
            with pytest.raises(PoolStopped, match=code) as stopped:
                finished(pool, 50)
        assert str(stopped.value).isprintable()
        assert 2 <= len(core.sessions) <= 8, "those in flight, and what started after the first had ended"
        assert {(record.status, record.reward) for record in keeper.records} == {("failed", None)}
        assert all(session.deleted for session in core.sessions.values())


# ---- a Core that is down for everyone


def test_an_outage_costs_no_rollout_its_result() -> None:
    with FakeCore(script=lambda body: Script(turn_seconds=0.1, answer=RIGHT)) as core:
        core.fault = lambda request: Fault(status=503) if time.monotonic() < back else None
        back = time.monotonic() + 1.5
        with rollouts(core, 4) as (pool, keeper):
            pool.submit(plan(sample=sample, retries=0, timeout=1.4) for sample in range(12))
            assert len(finished(pool, 12)) == 12
        assert {(record.status, record.reward) for record in keeper.records} == {("completed", 1.0)}
        assert len(core.sessions) == 12
        waited = [note for record in keeper.records for note in record.notes]
        assert len(waited) == 4, "those that were in flight"
        assert all(note.startswith(("waited 1 s for the Core", "waited 2 s for the Core")) for note in waited)
        assert all("HTTP 503" in note for note in waited)
        assert all((record.duration_s or 9) < 1.4 for record in keeper.records), "the outage is not the agent's time"


def test_a_core_that_restarts_costs_no_rollout_its_result() -> None:
    with FakeCore(script=lambda body: Script(turn_seconds=0.1, answer=RIGHT)) as core:
        core.go_down()
        threading.Timer(1.2, core.come_back).start()
        with rollouts(core, 3) as (pool, keeper):
            pool.submit(plan(sample=sample, retries=0, timeout=5) for sample in range(9))
            assert len(finished(pool, 9)) == 9
        assert {(record.status, record.reward) for record in keeper.records} == {("completed", 1.0)}


def poison(request: Request) -> Fault | None:
    """One rollout's creation breaks the server each time."""
    return Fault(status=500) if request.route == "create" and b'"sample":"3"' in request.body else None


def test_a_request_that_breaks_the_server_holds_up_nobody_else() -> None:
    with FakeCore(script=lambda body: Script(turn_seconds=0.05, answer=RIGHT)) as core:
        core.fault = poison
        with rollouts(core, 2) as (pool, keeper):
            pool.submit(plan(sample=sample, retries=1) for sample in range(10))
            assert len(finished(pool, 10)) == 10
        rewards = {record.sample: record.reward for record in keeper.records}
        assert rewards == {sample: None if sample == 3 else 1.0 for sample in range(10)}


def test_neither_does_it_where_there_is_nobody_else() -> None:
    with FakeCore() as core:
        core.fault = on("create", Fault(status=500))
        ran = run(core, plan(retries=0), retry=IMPATIENT)
        assert ran.verdict == ("error", None)
        assert ran.outcome.fatal is None
        assert core.counts["sessions"] == 1, "the Core was asked whether it answers at all"


def test_an_outage_without_an_end_stops_the_run() -> None:
    with FakeCore() as core:
        core.fault = lambda request: refused(503, "no room", "execution_unavailable")
        with rollouts(core, 3, timeouts=Timeouts(outage=0.8, unanswered=0.4)) as (pool, keeper):
            pool.submit(plan(sample=sample, retries=2, timeout=0.5) for sample in range(50))
            with pytest.raises(PoolStopped, match=r"has not created a Session for 1 s: .*503 execution_unavailable"):
                finished(pool, 50)
        assert len(keeper.records) == 3, "the others are owed"
        assert {record.reward for record in keeper.records} == {None}


def test_a_run_that_may_spend_no_more_waits_for_no_core() -> None:
    with FakeCore() as core:
        core.fault = lambda request: Fault(status=503)
        timeouts = Timeouts(outage=60.0)
        ran = run(core, retry=IMPATIENT, timeouts=timeouts, halted=lambda: "--rollout-max-time is reached")
        assert ran.verdict == ("error", None)
        assert ran.record.error is not None
        assert ran.record.error.startswith("no Session was created: POST /agents/sessions: HTTP 503")
        assert ran.record.error.endswith("; --rollout-max-time is reached")
        assert ran.outcome.fatal is None


def test_a_stop_takes_effect_in_an_outage() -> None:
    with FakeCore() as core:
        core.fault = lambda request: Fault(status=503)

        async def drive(stop: Stop, task: asyncio.Task[Outcome]) -> None:
            await asyncio.sleep(0.5)
            stop.request(1.0)

        with no_hang():
            ran = run(core, plan(timeout=3600), retry=IMPATIENT, drive=drive)
        assert ran.verdict == ("cancelled", None)


# ---- attempts


def test_a_key_that_a_dead_process_used_up_costs_no_attempt() -> None:
    with FakeCore(script=lambda body: Script(answer=RIGHT)) as core:
        assert run(core).record.attempt == 1
        again = run(core, plan(retries=0))
        assert again.verdict == ("completed", 1.0)
        assert again.record.attempt == 2


def test_keys_that_are_always_used_up_are_not_tried_for_ever() -> None:
    with FakeCore() as core:
        core.fault = on("create", refused(409, "used", "idempotency_conflict"))
        ran = run(core, plan(retries=1))
        assert ran.verdict == ("error", None)
        assert ran.record.attempt == 3
        assert core.counts["create"] == 3
