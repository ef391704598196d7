from __future__ import annotations

import itertools
import random
from fractions import Fraction

import pytest

from pytest_core_rollouts.results.passing import PassRate, bounds, interval, mean, pass_at_k, pass_hat_k, student_t
from tests.support.tables import rows


def test_pass_at_k_known_values() -> None:
    assert [pass_at_k(4, 1, k) for k in (1, 2, 4)] == [Fraction(1, 4), Fraction(1, 2), 1]
    assert pass_at_k(5, 0, 5) == 0
    assert pass_at_k(5, 5, 1) == 1
    assert float(pass_at_k(200, 20, 10) or 0) == pytest.approx(0.660226, abs=5e-7)  # 1 - prod((180-i)/(200-i)), i < 10


def test_pass_hat_k_known_values() -> None:
    assert [pass_hat_k(4, 3, k) for k in (1, 2, 3, 4)] == [Fraction(3, 4), Fraction(1, 2), Fraction(1, 4), 0]
    assert pass_hat_k(8, 8, 8) == 1
    assert pass_hat_k(8, 0, 1) == 0


def test_both_agree_with_counting_every_choice_of_k_samples() -> None:
    for n in range(1, 8):
        for c, k in itertools.product(range(n + 1), range(1, n + 1)):
            chosen = list(itertools.combinations([True] * c + [False] * (n - c), k))
            assert pass_at_k(n, c, k) == Fraction(sum(map(any, chosen)), len(chosen))
            assert pass_hat_k(n, c, k) == Fraction(sum(map(all, chosen)), len(chosen))


def test_thousands_of_samples_are_exact() -> None:
    product = Fraction(1)
    for i in range(1000):
        product *= Fraction(4000 - i, 5000 - i)
    assert pass_at_k(5000, 1000, 1000) == 1 - product
    assert pass_at_k(5000, 1000, 4001) == 1
    assert 0 < 1 - (pass_at_k(5000, 1000, 1000) or 0) < Fraction(1, 10**90)


def test_fewer_samples_than_k_tell_nothing() -> None:
    assert pass_at_k(1, 1, 10) is None
    assert pass_hat_k(3, 3, 4) is None
    assert pass_at_k(0, 0, 1) is None
    # 50 of 164 tasks solved with one sample each: pass@10 cannot be known
    assert mean(pass_at_k(1, int(task < 50), 10) for task in range(164)) is None


@rows(("n", "c", "k"), [(3, 4, 1), (3, -1, 1), (3, 1, 0)])
def test_counts_that_cannot_be_are_refused(n: int, c: int, k: int) -> None:
    for rate in (pass_at_k, pass_hat_k):
        with pytest.raises(ValueError, match=f"n={n}, c={c}, k={k}"):
            rate(n, c, k)


def test_every_task_weighs_the_same_whatever_its_number_of_samples() -> None:
    assert mean([pass_at_k(1, 1, 1), pass_at_k(4, 1, 1)]) == Fraction(5, 8)  # pooling would give 2/5


@rows(
    ("rate", "n", "c", "missing", "k", "low", "high"),
    [
        (pass_at_k, 2, 2, 2, 1, Fraction(1, 2), Fraction(1)),
        (pass_at_k, 1, 0, 3, 4, Fraction(0), Fraction(1)),
        (pass_hat_k, 3, 3, 1, 4, Fraction(0), Fraction(1)),
        (pass_at_k, 4, 1, 0, 2, Fraction(1, 2), Fraction(1, 2)),
    ],
)
def test_bounds_take_in_what_is_missing(
    rate: PassRate, n: int, c: int, missing: int, k: int, low: Fraction, high: Fraction
) -> None:
    assert bounds(rate, n, c, missing, k) == (low, high)


def test_without_enough_samples_even_then_there_are_no_bounds() -> None:
    assert bounds(pass_at_k, 1, 1, 1, 4) is None


def test_student_t_against_published_tables() -> None:
    published = {1: 12.706, 2: 4.303, 3: 3.182, 4: 2.776, 5: 2.571, 9: 2.262, 10: 2.228, 29: 2.045, 30: 2.042}
    published |= {60: 2.000, 100: 1.984, 120: 1.980, 1000: 1.962, 1001: 1.962, 10**6: 1.960}
    assert {freedom: round(student_t(freedom), 3) for freedom in published} == published


@rows(
    ("values", "low", "high"),
    [
        ([1] * 5, 0.393433, 1.0),  # 5 / (5 + 2.776445^2)
        ([0] * 5, 0.0, 0.606567),
        ([1] * 5 + [0] * 5, 0.198966, 0.801034),  # effective size 9, t = 2.262157
    ],
)
def test_intervals_worked_by_hand(values: list[int], low: float, high: float) -> None:
    found = interval([Fraction(value) for value in values], [1] * len(values))
    assert list(found or ()) == pytest.approx([low, high], abs=1e-6)


def test_more_samples_of_the_same_tasks_do_not_stand_for_more_tasks() -> None:
    values = [Fraction(1), Fraction(1), Fraction(0), Fraction(0)]
    assert interval(values, [1000] * 4) == interval(values, [1] * 4)


def test_tasks_that_do_not_differ_still_leave_the_doubt_of_their_samples() -> None:
    few, many = (interval([Fraction(1, 2)] * 6, [trials] * 6) for trials in (2, 200))
    assert few is not None
    assert many is not None
    assert few[0] < many[0] < 0.5 < many[1] < few[1]


def test_one_task_says_nothing_about_others() -> None:
    assert interval([Fraction(1)], [100]) is None
    assert interval([], []) is None


def test_an_interval_stays_within_the_possible_and_holds_its_estimate() -> None:
    for tasks in (2, 3, 7):
        for values in itertools.combinations_with_replacement([Fraction(i, 4) for i in range(5)], tasks):
            low, high = interval(values, [4] * tasks) or (2.0, -1.0)
            assert 0 <= low <= float(sum(values) / tasks) <= high <= 1
            assert low < high


@rows(
    ("tasks", "samples", "shape", "least", "most"),
    [
        (30, 4, (0.5, 0.5), 0.93, 0.97),
        (30, 4, (2.0, 2.0), 0.93, 0.97),
        (100, 4, (1.0, 4.0), 0.93, 0.97),
        (10, 4, (1.0, 1.0), 0.93, 1.0),
        (5, 4, (1.0, 1.0), 0.95, 1.0),
        (5, 4, (0.3, 2.7), 0.95, 1.0),
    ],
)
def test_coverage(tasks: int, samples: int, shape: tuple[float, float], least: float, most: float) -> None:
    """How often the interval holds the truth, over simulated runs whose tasks' solve rates are drawn from a beta."""
    source, runs, held = random.Random(20261129), 2000, 0
    truth = shape[0] / sum(shape)
    for _ in range(runs):
        rates = [source.betavariate(*shape) for _ in range(tasks)]
        values = [Fraction(sum(source.random() < rate for _ in range(samples)), samples) for rate in rates]
        low, high = interval(values, [samples] * tasks) or (1.0, 0.0)
        held += low <= truth <= high
    assert least <= held / runs <= most


@rows(
    ("rate", "k", "shape", "truth"),
    [
        (pass_at_k, 2, (1.0, 4.0), Fraction(1, 3)),  # of a beta(1, 4): 1 - (4 / 5) (5 / 6)
        (pass_at_k, 4, (1.0, 1.0), Fraction(4, 5)),  # of a uniform: 1 - 1 / 5
        (pass_hat_k, 2, (1.0, 1.0), Fraction(1, 3)),
        (pass_hat_k, 4, (4.0, 1.0), Fraction(1, 2)),  # (4 / 5) (5 / 6) (6 / 7) (7 / 8)
    ],
)
def test_coverage_of_pass_at_k_and_pass_hat_k(
    rate: PassRate, k: int, shape: tuple[float, float], truth: Fraction
) -> None:
    """The same of 30 tasks with 4 samples; the truth over all tasks is a moment of the beta."""
    source, runs, held = random.Random(20261129), 2000, 0
    for _ in range(runs):
        solved = [
            sum(source.random() < chance for _ in range(4))
            for chance in (source.betavariate(*shape) for _ in range(30))
        ]
        values = [value for c in solved if (value := rate(4, c, k)) is not None]
        low, high = interval(values, [4 // k] * 30) or (1.0, 0.0)
        held += low <= truth <= high
    assert 0.93 <= held / runs <= 0.97
