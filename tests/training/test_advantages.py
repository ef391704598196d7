"""Advantages: the published formulas, worked by hand, and what must hold for any group."""

from __future__ import annotations

import math
import random
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_core_rollouts.training.groups import METHODS, advantages
from tests.support.tables import rows

REWARDS = st.lists(
    st.one_of(st.none(), st.sampled_from([0.0, 1.0]), st.floats(0, 1).map(lambda value: round(value, 6))), max_size=12
)


def test_grpo_divides_by_the_deviation() -> None:
    one_in_four = advantages([1.0, 0.0, 0.0, 0.0])  # mean 1/4, std 1/2
    assert one_in_four == [1.5, -0.5, -0.5, -0.5]
    half = advantages([1.0, 0.0])  # mean 1/2, std sqrt(1/2)
    assert half == [pytest.approx(math.sqrt(0.5)), pytest.approx(-math.sqrt(0.5))]


def test_dr_grpo_does_not() -> None:
    assert advantages([1.0, 0.0, 0.0, 0.0], "dr-grpo") == [0.75, -0.25, -0.25, -0.25]


@rows("method", METHODS)
@rows("rewards", [[1.0] * 8, [0.0] * 3, [0.1, 0.1, 0.1], [0.7]])
def test_rewards_that_are_alike_teach_nothing(method: str, rewards: list[float]) -> None:
    """Exactly 0, though 0.1 has no exact binary form: nothing is amplified by a deviation of rounding errors."""
    assert advantages(rewards, method) == [0.0] * len(rewards)


@rows("method", METHODS)
def test_missing_rewards_are_no_zeros(method: str) -> None:
    filled, masked = advantages([1.0, 0.0, 0.0], method), advantages([1.0, None, 0.0], method)
    assert masked == [*advantages([1.0, 0.0], method)[:1], None, *advantages([1.0, 0.0], method)[1:]]
    assert masked[0] != filled[0]
    assert advantages([None, None], method) == [None, None]
    assert advantages([], method) == []


@given(REWARDS, st.sampled_from(METHODS))
def test_for_any_group(rewards: list[float | None], method: str) -> None:
    values = advantages(rewards, method)
    assert [value is None for value in values] == [reward is None for reward in rewards]
    known = [value for value in values if value is not None]
    assert math.fsum(known) == pytest.approx(0, abs=1e-9)
    pairs = [(reward, value) for reward, value in zip(rewards, values, strict=True) if value is not None]
    for reward, value in pairs:
        for other, its in pairs:
            assert (reward is not None and other is not None and reward > other) <= (value >= its)
    if method == "grpo" and len({reward for reward, _ in pairs}) > 1:
        assert statistics.stdev(known) == pytest.approx(1)


@given(REWARDS, st.integers(), st.sampled_from(METHODS))
def test_the_order_of_samples_changes_no_bit(rewards: list[float | None], seed: int, method: str) -> None:
    order = list(range(len(rewards)))
    random.Random(seed).shuffle(order)
    shuffled = advantages([rewards[index] for index in order], method)
    assert shuffled == [advantages(rewards, method)[index] for index in order]


def test_an_unknown_method_is_named() -> None:
    with pytest.raises(ValueError, match="unknown method 'ppo'; choose from grpo, dr-grpo"):
        advantages([1.0], "ppo")
