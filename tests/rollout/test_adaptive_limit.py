"""How many attempts may be in flight: exact, with a clock of the test's own."""

from __future__ import annotations

import dataclasses

import pytest

from pytest_core_rollouts.agents_api import AgentsAPIError, APIStatusError
from pytest_core_rollouts.rollout.adaptive_limit import UNLIMITED, AdaptiveLimit
from tests.support.tables import rows


@dataclasses.dataclass(eq=False)
class Slot:
    trouble: AgentsAPIError | None = None


class Clock:
    now = 100.0

    def __call__(self) -> float:
        self.now += 0.001
        return self.now


def under_way(number: int, clock: Clock | None = None) -> AdaptiveLimit:
    limit = AdaptiveLimit(clock=clock or Clock(), chance=lambda: 1.0)
    for _ in range(number):
        limit.enter(Slot())
    return limit


def test_without_a_throttled_turn_there_is_no_limit() -> None:
    limit = under_way(1000)
    for _ in range(100):
        limit.turn_ok()
    assert limit.limit == UNLIMITED
    assert limit.admits(10**6)
    assert str(limit) == ""


@rows(("in_flight", "half"), [(200, 100), (5, 2), (3, 1), (2, 1), (1, 1), (0, 1)])
def test_a_throttled_turn_halves_what_is_in_flight(in_flight: int, half: int) -> None:
    limit = under_way(in_flight)
    limit.turn_throttled(limit.clock())
    assert limit.limit == half
    assert limit.admits(half - 1)
    assert not limit.admits(half)


def test_of_those_in_flight_together_only_the_first_counts() -> None:
    clock = Clock()
    limit = under_way(16, clock)
    started = clock()
    assert [limit.turn_throttled(started) for _ in range(16)] == [5.0] * 16
    assert limit.limit == 8
    assert [limit.turn_throttled(clock.now + 1) for _ in range(2)] == [10.0, 20.0]
    assert limit.limit == 2, "these began after the limit had been lowered"


def test_halving_starts_from_the_places_in_use() -> None:
    limit = under_way(16)
    limit.turn_throttled(limit.clock())
    slots = [Slot() for _ in range(4)]
    fewer = dataclasses.replace(limit, _clients=set(slots))
    fewer.turn_throttled(limit.clock())
    assert fewer.limit == 2


def test_pauses_double_up_to_a_minute_and_start_again_after_a_turn_that_was_not_throttled() -> None:
    limit = under_way(1)
    assert [limit.turn_throttled(limit.clock()) for _ in range(6)] == [5.0, 10.0, 20.0, 40.0, 60.0, 60.0]
    limit.turn_ok()
    assert limit.turn_throttled(limit.clock()) == 5.0


def test_pauses_are_spread() -> None:
    limit = dataclasses.replace(under_way(1), chance=lambda: 0.0)
    assert limit.turn_throttled(limit.clock()) == 2.5


def test_it_recovers_by_a_tenth_a_round() -> None:
    limit = under_way(200)
    limit.turn_throttled(limit.clock())
    for _ in range(100):
        limit.turn_ok()
    assert limit.limit == pytest.approx(110)
    turns = 100
    while limit.limit != UNLIMITED:
        limit.turn_ok()
        turns += 1
    assert turns == pytest.approx(1000, abs=1)


def test_few_recover_by_one_a_round() -> None:
    limit = under_way(8)
    limit.turn_throttled(limit.clock())
    for _ in range(4):
        limit.turn_ok()
    assert 4.8 < limit.limit < 5
    for _ in range(100):
        limit.turn_ok()
    assert limit.limit == UNLIMITED


def test_a_limit_of_one_recovers_too() -> None:
    limit = under_way(2)
    limit.turn_throttled(limit.clock())
    limit.turn_ok()
    assert limit.limit == UNLIMITED


def test_attempts_count_those_that_have_started() -> None:
    limit = under_way(4)
    slot = Slot()
    limit.enter(slot)
    limit.turn_throttled(limit.clock())
    assert limit.limit == 2
    assert not limit.admits_attempt()
    many = dataclasses.replace(limit, _clients={slot})
    assert many.admits_attempt()
    many.leave(slot)
    many.leave(slot)
    assert many.admits_attempt()


def test_sessions_made_are_remembered_by_their_time() -> None:
    limit = under_way(0)
    assert not limit.created_since(0.0)
    limit.session_created()
    assert limit.created_since(limit.clock.now)  # type: ignore[attr-defined]
    assert not limit.created_since(limit.clock())


def test_it_says_what_holds_rollouts_up() -> None:
    limit = under_way(3)
    fault = APIStatusError(503, method="POST", path="/agents/sessions", message="no room")
    limit.enter(Slot(fault))
    assert str(limit) == "", "a moment is not worth telling"
    fault.elapsed_s = 41.3
    assert str(limit) == "1 waiting for the Core, 41 s and more (HTTP 503: no room)"
    limit.turn_throttled(limit.clock())
    assert str(limit).endswith("; the model is throttled: 2 at a time")
