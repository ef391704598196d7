"""The engine by itself, with jobs that do no HTTP, and with rollouts against a fake Core."""

from __future__ import annotations

import asyncio
import gc
import threading
import time
import warnings
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pytest

from pytest_core_rollouts import engine as engine_module
from pytest_core_rollouts.agents_api import Client
from pytest_core_rollouts.engine import Engine, EngineStopped
from pytest_core_rollouts.matrix import Rollout
from pytest_core_rollouts.rollout import Outcome, RolloutRunner
from pytest_core_rollouts.stopping import Stop
from tests.agents_api.support import QUICK
from tests.fake_core import FakeCore, Fault, Request, Script
from tests.rollout_support import LIMITS, RIGHT, Keeper, grade, plan, refused

TIMEOUT = 20.0


@dataclass(frozen=True)
class Job:
    rollout_id: str
    seconds: float = 0.0
    act: Callable[[Stop], Awaitable[None]] | None = None


class Connection:
    """A client without a server."""

    made: list[Connection]

    def __init__(self) -> None:
        self.users = 0
        self.closed = False
        self.made.append(self)

    async def aclose(self) -> None:
        self.closed = True


async def run_job(connection: Connection, job: Job, stop: Stop) -> str:
    connection.users += 1
    assert connection.users == 1, "a client serves one job at a time"
    assert not connection.closed
    try:
        if job.act is not None:
            await job.act(stop)
        await asyncio.sleep(job.seconds)
        return job.rollout_id
    finally:
        connection.users -= 1


Plain = Engine[Job, Connection, str]


@pytest.fixture(autouse=True)
def nothing_is_left() -> Iterator[None]:
    """After every test: no thread of an engine, no socket that nobody closed."""
    Connection.made = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", ResourceWarning)
        yield
        gc.collect()
    assert [str(one.message) for one in caught if issubclass(one.category, ResourceWarning)] == []
    assert [thread for thread in threading.enumerate() if thread.name == "rollouts"] == []
    assert all(connection.closed for connection in Connection.made)


@contextmanager
def started(concurrency: int = 4, run: Callable[..., Awaitable[str]] = run_job) -> Iterator[Plain]:
    engine: Plain = Engine(Connection, run, concurrency=concurrency)
    try:
        yield engine
    finally:
        engine.stop("the test is over")


def jobs(number: int, seconds: float = 0.0) -> list[Job]:
    return [Job(f"job-{index}", seconds) for index in range(number)]


def taken(engine: Plain, number: int) -> list[str]:
    results = [engine.next_done(TIMEOUT) for _ in range(number)]
    assert all(result is not None for result in results)
    return [str(result) for result in results]


def test_results_come_in_the_order_of_completion() -> None:
    with started() as engine:
        engine.submit([Job("slow", 0.4), Job("fast", 0.0), Job("middle", 0.2)])
        assert taken(engine, 3) == ["fast", "middle", "slow"]
        assert engine.next_done(0.05) is None


def test_a_result_can_be_waited_for_by_its_id() -> None:
    with started() as engine:
        engine.submit([Job("slow", 0.3), Job("fast", 0.0)])
        assert engine.wait("slow", 0.05) is None
        assert engine.wait("slow", TIMEOUT) == "slow"
        assert engine.wait("fast", TIMEOUT) == "fast"
        assert engine.next_done(0.05) is None


def test_no_more_jobs_are_in_flight_than_allowed() -> None:
    in_flight: list[int] = []

    async def run(connection: Connection, job: Job, stop: Stop) -> str:
        in_flight.append(engine.in_flight)
        return await run_job(connection, job, stop)

    with started(3, run) as engine:
        engine.submit(jobs(30, 0.01))
        assert engine.concurrency == 3
        taken(engine, 30)
        assert max(in_flight) == 3
        assert engine.started == 30
        assert engine.in_flight == engine.pending == 0
    assert len(Connection.made) == 3


def test_clients_are_made_only_for_work_there_is() -> None:
    with started(50) as engine:
        for job in jobs(20):
            engine.submit([job])
            assert engine.next_done(TIMEOUT) == job.rollout_id
    assert len(Connection.made) == 1


def test_jobs_are_taken_while_others_run_and_from_any_thread() -> None:
    def submit(number: int) -> None:
        for index in range(50):
            engine.submit([Job(f"{number}-{index}", 0.001)])

    with started(8) as engine:
        threads = [threading.Thread(target=submit, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        assert len(set(taken(engine, 200))) == 200
        for thread in threads:
            thread.join()


def test_jobs_may_come_from_a_generator_and_an_id_may_come_again() -> None:
    with started() as engine:
        engine.submit(Job(f"job-{index}") for index in range(3))
        assert len(taken(engine, 3)) == 3
        engine.submit([Job("job-0")])
        assert engine.wait("job-0", TIMEOUT) == "job-0"


def test_thousands_of_tiny_jobs_take_time_in_proportion() -> None:
    def seconds(number: int) -> float:
        with started(100) as engine:
            began = time.process_time()
            for job in jobs(number):
                engine.submit([job])
            taken(engine, number)
            return time.process_time() - began

    seconds(500)
    small, large = seconds(2000), seconds(16000)
    assert large < 8 * small * 2.5 + 0.5


def test_results_that_nobody_takes_in_order_are_found_fast() -> None:
    with started(100) as engine:
        engine.submit(jobs(10000))
        began = time.monotonic()
        for index in reversed(range(10000)):
            assert engine.wait(f"job-{index}", TIMEOUT) == f"job-{index}"
        assert time.monotonic() - began < 10


# Faults


def test_what_a_job_raises_halts_the_engine_and_is_told() -> None:
    async def full(stop: Stop) -> None:
        raise OSError("no space left on the device")

    with started(1) as engine:
        engine.submit([Job("first"), Job("full", act=full), *jobs(5)])
        assert engine.next_done(TIMEOUT) == "first"
        with pytest.raises(EngineStopped, match="no space left on the device"):
            engine.next_done(TIMEOUT)
        with pytest.raises(EngineStopped, match="no space left on the device"):
            engine.wait("full", TIMEOUT)
        assert engine.fatal == "no space left on the device"
        assert engine.started == 2


def test_what_is_in_flight_when_the_engine_is_halted_goes_on() -> None:
    with started(2) as engine:
        engine.submit([Job("one", 0.3), Job("two", 0.3), *jobs(5)])
        while engine.in_flight < 2:
            time.sleep(0.005)
        engine.halt("the key is wrong")
        engine.halt("something later")
        assert sorted(taken(engine, 2)) == ["one", "two"]
        with pytest.raises(EngineStopped, match="the key is wrong"):
            engine.next_done(TIMEOUT)
        assert engine.started == 2


def test_a_client_that_can_not_be_made_halts_the_engine() -> None:
    def connect() -> Connection:
        raise ValueError("base URL 'nonsense': expected http(s)://host")

    engine: Plain = Engine(connect, run_job, concurrency=3)
    engine.submit(jobs(5))
    with pytest.raises(EngineStopped, match="base URL 'nonsense'"):
        engine.next_done(TIMEOUT)
    engine.stop("over")


def test_no_loop_no_rollouts(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_loop(main: Any) -> None:
        main.close()
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(asyncio, "run", no_loop)
    engine: Plain = Engine(Connection, run_job, concurrency=3)
    engine.submit(jobs(2))
    with pytest.raises(EngineStopped, match="Too many open files"):
        engine.next_done(TIMEOUT)
    engine.stop("over")


@pytest.mark.parametrize("concurrency", [0, -1])
def test_there_is_at_least_one_place(concurrency: int) -> None:
    with pytest.raises(ValueError, match="at least 1"):
        Engine(Connection, run_job, concurrency=concurrency)


# Stopping


def test_a_stop_is_told_to_what_runs_and_drops_what_waits() -> None:
    heeded: list[float] = []

    async def heed(stop: Stop) -> None:
        work = asyncio.ensure_future(asyncio.sleep(60))
        await stop.before(work)
        heeded.append(stop.left)
        work.cancel()

    with started(2) as engine:
        engine.submit([Job("one", act=heed), Job("two", act=heed), *jobs(100)])
        while engine.in_flight < 2:
            time.sleep(0.005)
        time.sleep(0.1)
        began = time.monotonic()
        engine.stop("Ctrl-C")
        assert time.monotonic() - began < 1
        assert len(heeded) == 2
        assert all(5 < left <= engine_module.CANCEL_SECONDS for left in heeded)
        assert sorted(taken(engine, 2)) == ["one", "two"]
        with pytest.raises(EngineStopped, match="Ctrl-C"):
            engine.next_done(TIMEOUT)
        with pytest.raises(EngineStopped, match="Ctrl-C"):
            engine.submit(jobs(1))


def test_a_job_that_does_not_heed_a_stop_is_cancelled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_module, "CANCEL_SECONDS", 0.2)
    monkeypatch.setattr(engine_module, "CLOSE_SECONDS", 0.2)
    with started(1) as engine:
        engine.submit([Job("deaf", 60)])
        while not engine.in_flight:
            time.sleep(0.005)
        began = time.monotonic()
        engine.stop("Ctrl-C")
        assert time.monotonic() - began < 2
        with pytest.raises(EngineStopped, match="Ctrl-C"):
            engine.wait("deaf", TIMEOUT)


def test_a_second_stop_returns_at_once() -> None:
    async def linger(stop: Stop) -> None:
        await stop.before(asyncio.ensure_future(asyncio.sleep(60)))
        await asyncio.sleep(0.5)

    with started(1) as engine:
        engine.submit([Job("one", act=linger)])
        while not engine.in_flight:
            time.sleep(0.005)
        first = threading.Thread(target=engine.stop, args=("Ctrl-C",))
        first.start()
        time.sleep(0.1)
        began = time.monotonic()
        engine.stop("Ctrl-C again")
        assert time.monotonic() - began < 0.1
        first.join()
        assert engine.next_done(TIMEOUT) == "one"
        with pytest.raises(EngineStopped, match=r"Ctrl-C$"):
            engine.next_done(TIMEOUT)


def test_somebody_who_waits_hears_of_a_stop() -> None:
    told: list[str] = []

    def wait(engine: Plain) -> None:
        try:
            engine.next_done()
        except EngineStopped as stopped:
            told.append(str(stopped))

    with started(1) as engine:
        engine.submit([Job("one")])
        assert engine.next_done(TIMEOUT) == "one"
        thread = threading.Thread(target=wait, args=(engine,))
        thread.start()
        engine.stop("enough")
        thread.join(TIMEOUT)
        assert told == ["enough"]


def test_an_engine_without_work_has_no_thread() -> None:
    with started() as engine:
        assert engine.next_done(0.01) is None
        engine.stop("nothing to do")
        with pytest.raises(EngineStopped):
            engine.next_done(TIMEOUT)


# With rollouts


@contextmanager
def rollouts(core: FakeCore, concurrency: int) -> Iterator[tuple[Engine[Rollout, Client, Outcome], Keeper]]:
    keeper = Keeper(core)
    runner = RolloutRunner(grade=grade, save=keeper, limits=LIMITS)

    async def run(client: Client, rollout: Rollout, stop: Stop) -> Outcome:
        outcome = await runner.run(client, rollout, stop)
        if outcome.fatal is not None:
            engine.halt(outcome.fatal)
        return outcome

    engine = Engine(lambda: Client(core.base_url, core.api_key, retry=QUICK), run, concurrency=concurrency)
    try:
        yield engine, keeper
    finally:
        engine.stop("the test is over")


def to_the_end(engine: Engine[Rollout, Client, Outcome]) -> None:
    while engine.next_done(TIMEOUT) is not None:
        pass


def test_many_rollouts_at_once() -> None:
    with FakeCore(script=lambda body: Script(prepare_seconds=0.05, turn_seconds=0.2, answer=RIGHT)) as core:
        with rollouts(core, 50) as (engine, keeper):
            engine.submit(plan(sample=sample) for sample in range(150))
            outcomes = [engine.next_done(TIMEOUT) for _ in range(150)]
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


def test_a_fault_of_one_rollout_touches_no_other() -> None:
    with FakeCore(script=lambda body: Script(turn_seconds=0.2, answer=RIGHT)) as core:

        def spoil(request: Request) -> Fault | None:
            session = core.sessions.get(request.session_id or "")
            if session is not None and session.metadata["sample"] == "3" and request.route != "delete":
                return Fault(status=200, body=b'{"object": "list", "data": 7}')
            return None

        core.fault = spoil
        with rollouts(core, 10) as (engine, keeper):
            engine.submit(plan(sample=sample, retries=0) for sample in range(10))
            for _ in range(10):
                assert engine.next_done(TIMEOUT) is not None
        rewards = {record.sample: record.reward for record in keeper.records}
        assert rewards == {sample: None if sample == 3 else 1.0 for sample in range(10)}


@pytest.mark.parametrize("concurrency", [1, 20])
def test_a_wrong_key_costs_one_request_for_each_place(concurrency: int) -> None:
    with FakeCore() as core:
        core.fault = lambda request: refused(401, "A valid key is required.")
        with rollouts(core, concurrency) as (engine, keeper):
            engine.submit(plan(sample=sample) for sample in range(100))
            with pytest.raises(EngineStopped, match="OPENAI_API_KEY"):
                to_the_end(engine)
        assert len(core.requests) == len(keeper.records) == concurrency


def test_a_key_that_is_revoked_stops_the_run_midway() -> None:
    with FakeCore(script=lambda body: Script(turn_seconds=0.1, answer=RIGHT)) as core:
        core.fault = lambda request: refused(401, "no") if len(core.requests) > 100 else None
        with rollouts(core, 5) as (engine, keeper):
            engine.submit(plan(sample=sample) for sample in range(100))
            with pytest.raises(EngineStopped, match="OPENAI_API_KEY"):
                to_the_end(engine)
        assert all(record.reward in (None, 1.0) for record in keeper.records)
        # after the first refusal each place ends what it has: an answer, a cancel, a deletion are refused it as well
        assert len(core.requests) <= 100 + 5 * 6
        assert len(keeper.records) < 30


def test_stopping_many_rollouts_leaves_no_session() -> None:
    with FakeCore(script=lambda body: Script(never_ends=True)) as core:
        with rollouts(core, 30) as (engine, keeper):
            engine.submit(plan(sample=sample, timeout=60) for sample in range(100))
            while core.counts["turns"] < 30:
                time.sleep(0.01)
            began = time.monotonic()
            engine.stop("Ctrl-C")
            assert time.monotonic() - began < engine_module.CANCEL_SECONDS
        assert [record.status for record in keeper.records] == ["cancelled"] * 30
        assert all(session.deleted for session in core.sessions.values())


def test_stopping_with_a_core_that_has_gone() -> None:
    with FakeCore(script=lambda body: Script(never_ends=True)) as core:
        with rollouts(core, 10) as (engine, keeper):
            engine.submit(plan(sample=sample, timeout=60) for sample in range(10))
            while core.counts["turns"] < 10:
                time.sleep(0.01)
            core.fault = lambda request: Fault(hang=True)
            began = time.monotonic()
            engine.stop("Ctrl-C")
            assert time.monotonic() - began < engine_module.CANCEL_SECONDS + engine_module.CLOSE_SECONDS
            warnings = [outcome.warnings for _ in range(10) if (outcome := engine.next_done(TIMEOUT)) is not None]
        assert [record.status for record in keeper.records] == ["cancelled"] * 10
        assert sorted(session_id for session_id in core.sessions if session_id in str(warnings)) == sorted(
            core.sessions
        )
