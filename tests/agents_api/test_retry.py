"""The policy by itself, with a clock that only moves when somebody sleeps."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Iterator
from email.utils import formatdate

import pytest

from pytest_core_rollouts.agents_api import (
    AgentsAPIError,
    APIStatusError,
    ConnectionFailed,
    DeadlinePassed,
    InvalidResponse,
    NotACore,
    RetryPolicy,
    ShortRead,
    StreamLost,
    TooLarge,
)
from pytest_core_rollouts.agents_api.retry import retry_after_seconds, retrying
from tests.support.tables import rows


class Clock:
    def __init__(self) -> None:
        self.now = 100.0
        self.slept: list[float] = []

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds


@dataclasses.dataclass
class State:
    deadline: float | None = None
    waited_s: float = 0.0
    waited_for: AgentsAPIError | None = None
    trouble: AgentsAPIError | None = None


def status(code: int, retry_after: float | None = None) -> APIStatusError:
    return APIStatusError(code, method="GET", path="/x", retry_after=retry_after)


def fault(kind: type[AgentsAPIError]) -> AgentsAPIError:
    return kind("it broke", method="GET", path="/x")


def policy(clock: Clock, **changes: object) -> RetryPolicy:
    base = RetryPolicy(sleep=clock.sleep, clock=lambda: clock.now, chance=lambda: 1.0)
    return dataclasses.replace(base, **changes)  # type: ignore[arg-type]


def play(clock: Clock, state: State, faults: Iterator[AgentsAPIError], *, cost: float = 0.0, **changes: object) -> str:
    """Calls something that raises `faults`, each after `cost` seconds, and then returns."""

    async def attempt() -> str:
        clock.now += cost
        for error in faults:
            raise error
        return "fine"

    return asyncio.run(retrying(policy(clock, **changes), state, attempt))


def test_pauses_grow_up_to_a_limit() -> None:
    clock, state = Clock(), State()
    assert play(clock, state, iter([status(503)] * 8)) == "fine"
    assert clock.slept == [0.5, 1.0, 2.0, 4.0, 8.0, 15.0, 15.0, 15.0]
    assert state.waited_s == sum(clock.slept)


def test_pauses_have_a_random_part() -> None:
    lower = policy(Clock(), chance=lambda: 0.0)
    upper = policy(Clock(), chance=lambda: 1.0)
    assert (lower.pause(status(500), 3), upper.pause(status(500), 3)) == (1.0, 2.0)
    assert (lower.pause(status(429, 8.0), 1), upper.pause(status(429, 8.0), 1)) == (8.0, 10.0)


@rows("retry_after", [0.0, 7.0, 60.0, 86_400.0])
def test_retry_after_is_followed_up_to_a_limit(retry_after: float) -> None:
    clock, state = Clock(), State()
    play(clock, state, iter([status(429, retry_after)]))
    [slept] = clock.slept
    assert min(retry_after, 60.0) < slept <= 75.0


def test_only_time_lost_to_faults_is_counted() -> None:
    clock, state = Clock(), State()
    play(clock, state, iter([fault(ConnectionFailed), status(429, 7.0)]), cost=3.0)
    assert state.waited_s == 3.0 + 3.0 + sum(clock.slept)
    assert state.trouble is None


@rows("error", [status(408), status(429), status(500), status(502), fault(ConnectionFailed)])
def test_call_is_given_up_when_patience_has_passed(error: AgentsAPIError) -> None:
    clock, state = Clock(), State()
    with pytest.raises(AgentsAPIError) as caught:
        play(clock, state, iter([error] * 1000), cost=1.0, patience=30.0)
    assert caught.value is error
    assert clock.now <= 100.0 + 1.0 + 30.0
    assert error.tries == 6
    assert f"gave up after 6 tries in {error.elapsed_s:.1f} s" in str(error)


@rows("error", [fault(InvalidResponse), fault(ShortRead)])
def test_call_with_a_wrong_body_is_tried_a_few_times(error: AgentsAPIError) -> None:
    clock, state = Clock(), State()
    with pytest.raises(type(error)):
        play(clock, state, iter([error] * 1000))
    assert error.tries == 4


FINAL = [status(code) for code in (301, 400, 401, 403, 404, 405, 409, 413, 422)]
FINAL += [fault(kind) for kind in (NotACore, TooLarge, StreamLost, DeadlinePassed)]  # type: ignore[misc]


@rows("error", FINAL)
def test_final_faults_are_not_repeated(error: AgentsAPIError) -> None:
    clock, state = Clock(), State()
    with pytest.raises(type(error)):
        play(clock, state, iter([error]))
    assert clock.slept == []
    assert error.tries == 1
    assert "gave up" not in str(error)


def test_untrusted_certificate_is_final() -> None:
    error = ConnectionFailed("bad certificate", method="GET", path="/x")
    error.permanent = True
    assert error.stops_run
    with pytest.raises(ConnectionFailed):
        play(Clock(), State(), iter([error]))
    assert error.tries == 1


def test_no_pause_goes_past_the_deadline() -> None:
    clock, state = Clock(), State(deadline=104.0)
    with pytest.raises(APIStatusError):
        play(clock, state, iter([status(503)] * 99))
    assert clock.slept == [0.5, 1.0, 2.0]  # 4 more seconds would end after it
    with pytest.raises(APIStatusError):
        play(Clock(), State(deadline=105.0), iter([status(429, 7.0)] * 99))


def test_trouble_is_the_fault_during_its_pause() -> None:
    clock, state = Clock(), State()
    seen: list[AgentsAPIError | None] = []

    async def sleep(seconds: float) -> None:
        seen.append(state.trouble)

    error = status(502)
    play(clock, state, iter([error]), sleep=sleep)
    assert seen == [error]
    assert state.trouble is None


NOW = 1_000_000_000.0


@rows(
    ("value", "date", "seconds"),
    [
        ("7", None, 7.0),
        (" 7 ", None, 7.0),
        ("0", None, 0.0),
        ("1.5", None, 1.5),
        (formatdate(NOW + 9, usegmt=True), None, 9.0),
        (formatdate(NOW - 9, usegmt=True), None, 0.0),
        (formatdate(NOW + 3609, usegmt=True), formatdate(NOW + 3600, usegmt=True), 9.0),
        (None, None, None),
        ("", None, None),
        ("-3", None, None),
        ("soon", None, None),
        ("inf", None, None),
        ("9" * 400, None, None),
        ("Fri, 99 Foo 2020 10:00:00 GMT", None, None),
        (formatdate(NOW + 9, usegmt=True), "no date", 9.0),
    ],
)
def test_retry_after_header(value: str | None, date: str | None, seconds: float | None) -> None:
    assert retry_after_seconds(value, date, NOW) == seconds


def test_passed_deadline_names_the_previous_fault() -> None:
    clock, state = Clock(), State()
    late = DeadlinePassed("no complete answer within 2 s", method="GET", path="/x")
    with pytest.raises(DeadlinePassed, match=r"within 2 s \(gave up after 3 tries .*\) \(before that: HTTP 503\)"):
        play(clock, state, iter([status(502), status(503), late]))
    assert isinstance(state.waited_for, APIStatusError)
    assert state.waited_for.status == 503


def test_deadline_passed_at_once_names_no_previous_fault() -> None:
    with pytest.raises(DeadlinePassed) as caught:
        play(Clock(), State(), iter([fault(DeadlinePassed)]))
    assert "before that" not in str(caught.value)
