"""How many attempts may be in flight: exact, with a clock of the test's own."""

from __future__ import annotations

import dataclasses

import pytest

from pytest_core_rollouts.agents_api import AgentsAPIError, APIStatusError
from pytest_core_rollouts.rollout.pressure import UNTHROTTLED, Pressure


@dataclasses.dataclass(eq=False)
class Slot:
    trouble: AgentsAPIError | None = None


class Clock:
    now = 100.0

    def __call__(self) -> float:
        self.now += 0.001
        return self.now


def under_way(number: int, clock: Clock | None = None) -> Pressure:
    pressure = Pressure(clock=clock or Clock(), chance=lambda: 1.0)
    for _ in range(number):
        pressure.enter(Slot())
    return pressure


def test_without_a_throttled_turn_there_is_no_limit() -> None:
    pressure = under_way(1000)
    for _ in range(100):
        pressure.fine()
    assert pressure.limit == UNTHROTTLED
    assert pressure.admits(10**6)
    assert str(pressure) == ""


@pytest.mark.parametrize(("in_flight", "half"), [(200, 100), (5, 2), (3, 1), (2, 1), (1, 1), (0, 1)])
def test_a_throttled_turn_halves_what_is_in_flight(in_flight: int, half: int) -> None:
    pressure = under_way(in_flight)
    pressure.throttled(pressure.clock())
    assert pressure.limit == half
    assert pressure.admits(half - 1)
    assert not pressure.admits(half)


def test_of_those_in_flight_together_the_first_alone_counts() -> None:
    clock = Clock()
    pressure = under_way(16, clock)
    started = clock()
    assert [pressure.throttled(started) for _ in range(16)] == [5.0] * 16
    assert pressure.limit == 8
    assert [pressure.throttled(clock.now + 1) for _ in range(2)] == [10.0, 20.0]
    assert pressure.limit == 2, "these began after the limit had been lowered"


def test_an_idle_place_is_none_to_halve() -> None:
    pressure = under_way(16)
    pressure.throttled(pressure.clock())
    slots = [Slot() for _ in range(4)]
    fewer = dataclasses.replace(pressure, _clients=set(slots))
    fewer.throttled(pressure.clock())
    assert fewer.limit == 2


def test_pauses_double_up_to_a_minute_and_begin_anew_after_a_turn_that_was_not_throttled() -> None:
    pressure = under_way(1)
    assert [pressure.throttled(pressure.clock()) for _ in range(6)] == [5.0, 10.0, 20.0, 40.0, 60.0, 60.0]
    pressure.fine()
    assert pressure.throttled(pressure.clock()) == 5.0


def test_pauses_are_spread() -> None:
    pressure = dataclasses.replace(under_way(1), chance=lambda: 0.0)
    assert pressure.throttled(pressure.clock()) == 2.5


def test_it_recovers_by_a_tenth_a_round() -> None:
    pressure = under_way(200)
    pressure.throttled(pressure.clock())
    for _ in range(100):
        pressure.fine()
    assert pressure.limit == pytest.approx(110)
    turns = 100
    while pressure.limit != UNTHROTTLED:
        pressure.fine()
        turns += 1
    assert turns == pytest.approx(1000, abs=1)


def test_few_recover_by_one_a_round() -> None:
    pressure = under_way(8)
    pressure.throttled(pressure.clock())
    for _ in range(4):
        pressure.fine()
    assert 4.8 < pressure.limit < 5
    for _ in range(100):
        pressure.fine()
    assert pressure.limit == UNTHROTTLED


def test_a_limit_of_one_recovers_too() -> None:
    pressure = under_way(2)
    pressure.throttled(pressure.clock())
    pressure.fine()
    assert pressure.limit == UNTHROTTLED


def test_attempts_count_those_that_have_started() -> None:
    pressure = under_way(4)
    slot = Slot()
    pressure.enter(slot)
    pressure.throttled(pressure.clock())
    assert pressure.limit == 2
    assert not pressure.admits_attempt()
    many = dataclasses.replace(pressure, _clients={slot})
    assert many.admits_attempt()
    many.leave(slot)
    many.leave(slot)
    assert many.admits_attempt()


def test_sessions_made_are_remembered_by_their_time() -> None:
    pressure = under_way(0)
    assert not pressure.made_since(0.0)
    pressure.made()
    assert pressure.made_since(pressure.clock.now)  # type: ignore[attr-defined]
    assert not pressure.made_since(pressure.clock())


def test_it_says_what_holds_rollouts_up() -> None:
    pressure = under_way(3)
    fault = APIStatusError(503, method="POST", path="/agents/sessions", message="no room")
    pressure.enter(Slot(fault))
    assert str(pressure) == "", "a moment is not worth telling"
    fault.elapsed_s = 41.3
    assert str(pressure) == "1 waiting for the Core, 41 s and more (HTTP 503: no room)"
    pressure.throttled(pressure.clock())
    assert str(pressure).endswith("; the model is throttled: 2 at a time")
