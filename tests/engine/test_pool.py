"""The pool by itself, with jobs that do no HTTP."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import pytest

from pytest_core_rollouts.engine import pool as pool_module
from pytest_core_rollouts.engine.pool import PoolStopped
from pytest_core_rollouts.rollout.stopping import Stop
from tests.support.pools import CollectingPool
from tests.support.rollouts import nothing_open
from tests.support.waiting import no_hang

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


Plain = CollectingPool[Job, Connection, str]


@pytest.fixture(autouse=True)
def nothing_is_left() -> Iterator[None]:
    """After every test: no thread of a pool, no socket that nobody closed."""
    Connection.made = []
    with nothing_open():
        yield
    assert all(connection.closed for connection in Connection.made)


@contextmanager
def started(concurrency: int = 4, run: Callable[..., Awaitable[str]] = run_job) -> Iterator[Plain]:
    pool: Plain = CollectingPool(Connection, run, concurrency=concurrency)
    try:
        yield pool
    finally:
        pool.stop("the test is over")


def jobs(number: int, seconds: float = 0.0) -> list[Job]:
    return [Job(f"job-{index}", seconds) for index in range(number)]


def taken(pool: Plain, number: int) -> list[str]:
    results = [pool.next_done(TIMEOUT) for _ in range(number)]
    assert all(result is not None for result in results)
    return [str(result) for result in results]


def test_results_come_in_the_order_of_completion() -> None:
    with started() as pool:
        pool.submit([Job("slow", 0.4), Job("fast", 0.0), Job("middle", 0.2)])
        assert taken(pool, 3) == ["fast", "middle", "slow"]
        assert pool.next_done(0.05) is None


def test_a_result_can_be_waited_for_by_its_id() -> None:
    with started() as pool:
        pool.submit([Job("slow", 0.3), Job("fast", 0.0)])
        assert pool.wait("slow", 0.05) is None
        assert pool.wait("slow", TIMEOUT) == "slow"
        assert pool.wait("fast", TIMEOUT) == "fast"
        assert pool.next_done(0.05) is None


def test_at_most_concurrency_jobs_are_in_flight() -> None:
    in_flight: list[int] = []

    async def run(connection: Connection, job: Job, stop: Stop) -> str:
        in_flight.append(pool.in_flight)
        return await run_job(connection, job, stop)

    with started(3, run) as pool:
        pool.submit(jobs(30, 0.01))
        assert pool.concurrency == 3
        taken(pool, 30)
        assert max(in_flight) == 3
        assert pool.started == 30
        assert pool.in_flight == pool.pending == 0
    assert len(Connection.made) == 3


def test_clients_are_only_made_for_existing_jobs() -> None:
    with started(50) as pool:
        for job in jobs(20):
            pool.submit([job])
            assert pool.next_done(TIMEOUT) == job.rollout_id
    assert len(Connection.made) == 1


def test_jobs_can_be_submitted_at_any_time_from_any_thread() -> None:
    def submit(number: int) -> None:
        for index in range(50):
            pool.submit([Job(f"{number}-{index}", 0.001)])

    with started(8) as pool:
        threads = [threading.Thread(target=submit, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        assert len(set(taken(pool, 200))) == 200
        for thread in threads:
            thread.join()


def test_jobs_can_come_from_a_generator_and_repeat_an_id() -> None:
    with started() as pool:
        pool.submit(Job(f"job-{index}") for index in range(3))
        assert len(taken(pool, 3)) == 3
        pool.submit([Job("job-0")])
        assert pool.wait("job-0", TIMEOUT) == "job-0"


def test_thousands_of_tiny_jobs_take_linear_time() -> None:
    def seconds(number: int) -> float:
        with started(100) as pool:
            began = time.process_time()
            for job in jobs(number):
                pool.submit([job])
            taken(pool, number)
            return time.process_time() - began

    seconds(500)
    small, large = seconds(2000), seconds(16000)
    assert large < 8 * small * 2.5 + 0.5


def test_results_are_found_fast_in_any_order() -> None:
    with started(100) as pool:
        pool.submit(jobs(10000))
        with no_hang():
            for index in reversed(range(10000)):
                assert pool.wait(f"job-{index}", TIMEOUT) == f"job-{index}"


# Faults


def test_an_exception_of_a_job_halts_the_engine_and_is_the_reason() -> None:
    async def full(stop: Stop) -> None:
        raise OSError("no space left on the device")

    with started(1) as pool:
        pool.submit([Job("first"), Job("full", act=full), *jobs(5)])
        assert pool.next_done(TIMEOUT) == "first"
        with pytest.raises(PoolStopped, match="no space left on the device"):
            pool.next_done(TIMEOUT)
        with pytest.raises(PoolStopped, match="no space left on the device"):
            pool.wait("full", TIMEOUT)
        assert pool.fatal == "no space left on the device"
        assert pool.started == 2


def test_jobs_in_flight_continue_after_a_halt() -> None:
    with started(2) as pool:
        pool.submit([Job("one", 0.3), Job("two", 0.3), *jobs(5)])
        while pool.in_flight < 2:
            time.sleep(0.005)
        pool.halt("the key is wrong")
        pool.halt("something later")
        assert sorted(taken(pool, 2)) == ["one", "two"]
        with pytest.raises(PoolStopped, match="the key is wrong"):
            pool.next_done(TIMEOUT)
        assert pool.started == 2


def test_a_failed_connect_halts_the_engine() -> None:
    def connect() -> Connection:
        raise ValueError("base URL 'nonsense': expected http(s)://host")

    pool: Plain = CollectingPool(connect, run_job, concurrency=3)
    pool.submit(jobs(5))
    with pytest.raises(PoolStopped, match="base URL 'nonsense'"):
        pool.next_done(TIMEOUT)
    pool.stop("over")


def test_without_an_event_loop_the_run_ends_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_loop() -> None:
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(asyncio, "SelectorEventLoop", no_loop)
    pool: Plain = CollectingPool(Connection, run_job, concurrency=3)
    pool.submit(jobs(2))
    with pytest.raises(PoolStopped, match="Too many open files"):
        pool.next_done(TIMEOUT)
    pool.stop("over")


@pytest.mark.parametrize("concurrency", [0, -1])
def test_concurrency_must_be_positive(concurrency: int) -> None:
    with pytest.raises(ValueError, match="expected a positive integer"):
        CollectingPool(Connection, run_job, concurrency=concurrency)


# Stopping


def test_a_stop_reaches_running_jobs_and_drops_waiting_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool_module, "CANCEL_SECONDS", 600.0)
    seconds_left: list[float] = []

    async def end_on_stop(stop: Stop) -> None:
        work = asyncio.ensure_future(asyncio.sleep(3600))
        await stop.wait_for(work)
        seconds_left.append(stop.seconds_left)
        work.cancel()

    with started(2) as pool:
        pool.submit([Job("one", act=end_on_stop), Job("two", act=end_on_stop), *jobs(100)])
        while pool.in_flight < 2:
            time.sleep(0.005)
        with no_hang():
            pool.stop("Ctrl-C")
        assert len(seconds_left) == 2
        assert all(500 < left <= 600 for left in seconds_left)
        assert sorted(taken(pool, 2)) == ["one", "two"]
        with pytest.raises(PoolStopped, match="Ctrl-C"):
            pool.next_done(TIMEOUT)
        with pytest.raises(PoolStopped, match="Ctrl-C"):
            pool.submit(jobs(1))


def test_a_job_that_ignores_a_stop_is_cancelled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool_module, "CANCEL_SECONDS", 0.2)
    monkeypatch.setattr(pool_module, "CLOSE_SECONDS", 0.2)
    with started(1) as pool:
        pool.submit([Job("deaf", 3600)])
        while not pool.in_flight:
            time.sleep(0.005)
        with no_hang():
            pool.stop("Ctrl-C")
        with pytest.raises(PoolStopped, match="Ctrl-C"):
            pool.wait("deaf", TIMEOUT)


def test_a_second_stop_does_not_wait_for_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool_module, "CANCEL_SECONDS", 600.0)
    stop_seen, may_end = threading.Event(), threading.Event()

    async def linger(stop: Stop) -> None:
        await stop.wait_for(asyncio.ensure_future(asyncio.sleep(3600)))
        stop_seen.set()
        await asyncio.to_thread(may_end.wait, TIMEOUT)

    with started(1) as pool:
        pool.submit([Job("one", act=linger)])
        while not pool.in_flight:
            time.sleep(0.005)
        first = threading.Thread(target=pool.stop, args=("Ctrl-C",))
        first.start()
        assert stop_seen.wait(TIMEOUT)
        pool.stop("Ctrl-C again")
        assert first.is_alive(), "the first one still waits"
        may_end.set()
        first.join()
        assert pool.next_done(TIMEOUT) == "one"
        with pytest.raises(PoolStopped, match=r"Ctrl-C$"):
            pool.next_done(TIMEOUT)


def test_waiting_for_a_result_ends_with_a_stop() -> None:
    raised: list[str] = []

    def wait(pool: Plain) -> None:
        try:
            pool.next_done()
        except PoolStopped as stopped:
            raised.append(str(stopped))

    with started(1) as pool:
        pool.submit([Job("one")])
        assert pool.next_done(TIMEOUT) == "one"
        thread = threading.Thread(target=wait, args=(pool,))
        thread.start()
        pool.stop("enough")
        thread.join(TIMEOUT)
        assert raised == ["enough"]


def test_an_engine_without_work_has_no_thread() -> None:
    with started() as pool:
        assert pool.next_done(0.01) is None
        pool.stop("nothing to do")
        with pytest.raises(PoolStopped):
            pool.next_done(TIMEOUT)


def test_jobs_wait_until_they_are_admitted() -> None:
    seen: list[int] = []

    def admits(in_flight: int) -> bool:
        seen.append(in_flight)
        return in_flight < limit

    limit = 2
    pool: Plain = CollectingPool(Connection, run_job, concurrency=8, admits=admits)
    try:
        pool.submit(jobs(6, 0.1))
        assert len(taken(pool, 3)) == 3
        assert pool.in_flight <= 2
        limit = 0  # still one at a time, or nothing would ever end it
        assert len(taken(pool, 3)) == 3
    finally:
        pool.stop("the test is over")
    assert max(seen) == 2
    assert len(Connection.made) == 2


def test_a_job_that_only_waits_leaves_its_place_to_the_next() -> None:
    last = threading.Event()
    order: list[str] = []

    async def run(connection: Connection, job: Job, stop: Stop) -> str:
        order.append(job.rollout_id)
        if job.rollout_id == "d":
            last.set()
        elif job.rollout_id != "c":
            pool.release(connection)
            assert await asyncio.to_thread(last.wait, TIMEOUT)
        return await run_job(connection, job, stop)

    with started(2, run) as pool:
        pool.submit([Job(name) for name in "abcd"])
        assert sorted(taken(pool, 4)) == order == list("abcd")
