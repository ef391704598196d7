"""The pool with rollouts over real HTTP: faults stay where they are, a stop leaves nothing behind."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from pytest_core_rollouts.agents_api import Client
from pytest_core_rollouts.engine import pool as pool_module
from pytest_core_rollouts.engine.pool import PoolStopped
from pytest_core_rollouts.rollout.attempts import Outcome
from pytest_core_rollouts.rollout.runner import RolloutRunner
from pytest_core_rollouts.rollout.stopping import Stop
from pytest_core_rollouts.tasks.matrix import Rollout
from tests.support.api import QUICK
from tests.support.fake_core import FakeCore, Fault, Request, Script
from tests.support.pools import CollectingPool
from tests.support.rollouts import RIGHT, TIMEOUTS, Keeper, grade, nothing_open, plan, refused
from tests.support.waiting import no_hang

TIMEOUT = 20.0


@pytest.fixture(autouse=True)
def nothing_is_left() -> Iterator[None]:
    with nothing_open():
        yield


@contextmanager
def rollouts(core: FakeCore, concurrency: int) -> Iterator[tuple[CollectingPool[Rollout, Client, Outcome], Keeper]]:
    keeper = Keeper(core)
    runner = RolloutRunner(grade=grade, save=keeper, timeouts=TIMEOUTS)

    async def run(client: Client, rollout: Rollout, stop: Stop) -> Outcome:
        outcome = await runner.run(client, rollout, stop)
        if outcome.fatal is not None:
            pool.halt(outcome.fatal)
        return outcome

    pool: CollectingPool[Rollout, Client, Outcome] = CollectingPool(
        lambda: Client(core.base_url, core.api_key, retry=QUICK), run, concurrency=concurrency
    )
    try:
        yield pool, keeper
    finally:
        pool.stop("the test is over")


def to_the_end(pool: CollectingPool[Rollout, Client, Outcome]) -> None:
    while pool.next_done(TIMEOUT) is not None:
        pass


@pytest.mark.slow
def test_many_rollouts_run_at_once() -> None:
    with FakeCore(script=lambda body: Script(prepare_seconds=0.05, turn_seconds=0.2, answer=RIGHT)) as core:
        with rollouts(core, 50) as (pool, keeper):
            pool.submit(plan(sample=sample) for sample in range(150))
            outcomes = [pool.next_done(TIMEOUT) for _ in range(150)]
        assert all(outcome is not None and outcome.record.solved for outcome in outcomes)
        assert len({record.rollout_id for record in keeper.records}) == 150
        assert all(session.deleted for session in core.sessions.values())
        assert max(_in_flight(core)) <= 50


def _in_flight(core: FakeCore) -> Iterator[int]:
    """How many Sessions there were at each change."""
    changes = [(at, what) for session in core.sessions.values() for at, what in session.history]
    number = 0
    for _, what in sorted(changes):
        number += {"created": 1, "deleted": -1}.get(what, 0)
        yield number


def test_a_fault_of_one_rollout_does_not_affect_others() -> None:
    with FakeCore(script=lambda body: Script(turn_seconds=0.2, answer=RIGHT)) as core:

        def spoil(request: Request) -> Fault | None:
            session = core.sessions.get(request.session_id or "")
            if session is not None and session.metadata["sample"] == "3" and request.route != "delete":
                return Fault(status=200, body=b'{"object": "list", "data": 7}')
            return None

        core.fault = spoil
        with rollouts(core, 10) as (pool, keeper):
            pool.submit(plan(sample=sample, retries=0) for sample in range(10))
            for _ in range(10):
                assert pool.next_done(TIMEOUT) is not None
        rewards = {record.sample: record.reward for record in keeper.records}
        assert rewards == {sample: None if sample == 3 else 1.0 for sample in range(10)}


@pytest.mark.parametrize("concurrency", [1, 20])
def test_a_wrong_key_costs_one_request_for_each_place(concurrency: int) -> None:
    with FakeCore() as core:
        core.fault = lambda request: refused(401, "A valid key is required.")
        with rollouts(core, concurrency) as (pool, keeper):
            pool.submit(plan(sample=sample) for sample in range(100))
            with pytest.raises(PoolStopped, match="OPENAI_API_KEY"):
                to_the_end(pool)
        assert len(core.requests) == len(keeper.records) == concurrency


def test_a_key_that_is_revoked_stops_the_run_midway() -> None:
    with FakeCore(script=lambda body: Script(turn_seconds=0.1, answer=RIGHT)) as core:
        core.fault = lambda request: refused(401, "no") if len(core.requests) > 100 else None
        with rollouts(core, 5) as (pool, keeper):
            pool.submit(plan(sample=sample) for sample in range(100))
            with pytest.raises(PoolStopped, match="OPENAI_API_KEY"):
                to_the_end(pool)
        assert all(record.reward in (None, 1.0) for record in keeper.records)
        # after the first refusal each place ends what it has: an answer, a cancel, a deletion are refused it as well
        assert len(core.requests) <= 100 + 5 * 6
        assert len(keeper.records) < 30


def test_stopping_many_rollouts_leaves_no_session(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool_module, "CANCEL_SECONDS", 60.0)  # a slow machine may need more than 6 s
    with FakeCore(script=lambda body: Script(never_ends=True)) as core:
        with rollouts(core, 30) as (pool, keeper):
            pool.submit(plan(sample=sample, timeout=60) for sample in range(100))
            while core.counts["turns"] < 30:
                time.sleep(0.01)
            pool.stop("Ctrl-C")
        assert [record.status for record in keeper.records] == ["cancelled"] * 30
        assert all(session.deleted for session in core.sessions.values())


def test_a_stop_ends_if_the_core_is_gone() -> None:
    with FakeCore(script=lambda body: Script(never_ends=True)) as core:
        with rollouts(core, 10) as (pool, keeper):
            pool.submit(plan(sample=sample, timeout=60) for sample in range(10))
            while core.counts["turns"] < 10:
                time.sleep(0.01)
            core.fault = lambda request: Fault(hang=True)
            with no_hang():
                pool.stop("Ctrl-C")
            warnings = [outcome.warnings for _ in range(10) if (outcome := pool.next_done(TIMEOUT)) is not None]
        assert [record.status for record in keeper.records] == ["cancelled"] * 10
        assert sorted(session_id for session_id in core.sessions if session_id in str(warnings)) == sorted(
            core.sessions
        )
