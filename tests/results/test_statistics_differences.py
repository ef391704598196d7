"""Tests of difference, against published values, brute-force enumeration and simulated runs."""

from __future__ import annotations

import itertools
import math
import random
import statistics
from collections.abc import Sequence
from fractions import Fraction
from statistics import NormalDist

import pytest

from pytest_core_rollouts.results import significance
from pytest_core_rollouts.results.passing import difference_interval
from pytest_core_rollouts.results.significance import (
    DRAWS,
    LeastDrop,
    Pair,
    fisher,
    holm,
    least_drop,
    least_fisher,
    permutation,
    sign_flip,
)
from tests.support.tables import rows

DARWIN = (49, -67, 8, 16, 6, 23, 28, 41, 14, 29, 56, 24, 75, 60, -48)
"""Crossed minus self-fertilized maize, in eighths of an inch: Fisher 1935, section 17."""


def results(*counts: tuple[int, int, int, int]) -> list[Pair]:
    """(n before, c before, n after, c after) a task."""
    return [(ones(n1, c1), ones(n2, c2)) for n1, c1, n2, c2 in counts]


def ones(n: int, c: int) -> tuple[Fraction, ...]:
    return (Fraction(1),) * c + (Fraction(0),) * (n - c)


# Fisher's exact test


@rows(
    ("table", "p"),
    [
        ((4, 3, 4, 1), Fraction(34, 70)),  # a lady tasting tea: Fisher 1935, chapter II
        ((4, 4, 4, 0), Fraction(2, 70)),
        ((12, 2, 18, 15), 0.0005367241),  # criminal twins: fisher.test's own example in R
        ((8, 8, 8, 3), Fraction(2 * 56, 4368)),  # 5 of the 16 unsolved, all among 8: C(8,5)/C(16,5) on each side
        ((5, 0, 5, 0), 1),
        ((0, 0, 4, 2), 1),
    ],
)
def test_fisher_against_published_values(table: tuple[int, int, int, int], p: float) -> None:
    assert float(fisher(*table)) == pytest.approx(float(p), rel=1e-6)


def test_fisher_agrees_with_counting_every_way_to_label_the_samples() -> None:
    for n1, n2 in itertools.product(range(1, 6), repeat=2):
        for c1, c2 in itertools.product(range(n1 + 1), range(n2 + 1)):
            tables = [sum(index < n1 for index in chosen) for chosen in itertools.combinations(range(n1 + n2), c1 + c2)]
            often = {x: tables.count(x) for x in tables}
            share = Fraction(sum(often[x] <= often[c1] for x in tables), len(tables))
            assert fisher(n1, c1, n2, c2) == share


def test_fisher_refuses_counts_that_cannot_be() -> None:
    with pytest.raises(ValueError, match="5 of 4 against 0 of 4"):
        fisher(4, 5, 4, 0)


# Holm


def test_holm_against_a_published_value() -> None:
    # p.adjust(c(0.01, 0.04, 0.03, 0.005), "holm") in R
    values = [Fraction(1, 100), Fraction(4, 100), Fraction(3, 100), Fraction(5, 1000)]
    assert [float(value) for value in holm(values)] == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([]) == []


def test_four_of_four_to_none_among_30_tasks_is_not_evidence() -> None:
    corrected = holm([fisher(4, 4, 4, 0), *[Fraction(1)] * 29])
    assert round(float(fisher(4, 4, 4, 0)), 3) == 0.029
    assert round(float(corrected[0]), 2) == 0.86
    assert least_fisher(4, 4, 4) * 30 == corrected[0]


def test_the_least_p_of_a_drop() -> None:
    assert least_fisher(8, 8, 8) == Fraction(2, math.comb(16, 8))
    assert least_fisher(4, 0, 4) == 1  # nothing can fall
    assert least_fisher(1, 1, 1) == 1
    assert least_fisher(4, 4, 0) == least_fisher(0, 0, 4) == 1


def test_no_drop_has_a_smaller_p_than_the_fall_to_none() -> None:
    for n1, n2 in itertools.product(range(1, 12), repeat=2):
        for c1 in range(1, n1 + 1):
            drops = [fisher(n1, c1, n2, c2) for c2 in range(n2) if c2 * n1 < c1 * n2]
            assert least_fisher(n1, c1, n2) == min(drops)


@pytest.mark.slow
def test_thousands_of_samples_of_a_task_break_nothing() -> None:
    # only the table with all solved samples on the other side is as unlikely
    assert fisher(5000, 5000, 5000, 0) == Fraction(2, math.comb(10_000, 5000))
    assert permutation(results((900, 900, 900, 0)), drop=True).value == Fraction(1, math.comb(1800, 900))
    assert permutation(results((5000, 5000, 5000, 0))) == significance.PValue(Fraction(1, DRAWS + 1), False)


# The permutation tests


def test_the_sign_flip_test_gives_fishers_own_count_on_darwins_maize() -> None:
    # Fisher counted 863 of 32,768 arrangements on either side
    assert sign_flip([Fraction(one, 1000) for one in DARWIN]) == significance.PValue(Fraction(2 * 863, 32768), True)


def flipped(differences: Sequence[Fraction]) -> Fraction:
    sums = [
        sum((sign * one for sign, one in zip(signs, differences, strict=True)), Fraction(0))
        for signs in itertools.product((1, -1), repeat=len(differences))
    ]
    return Fraction(sum(abs(one) >= abs(sum(differences, Fraction(0))) for one in sums), len(sums))


def test_the_sign_flip_test_agrees_with_flipping_every_sign() -> None:
    source = random.Random(5)
    for tasks in range(1, 9):
        for _ in range(10):
            differences = [Fraction(source.randint(-4, 4), 4) for _ in range(tasks)]
            assert sign_flip(differences).value == flipped(differences)


def relabeled(pairs: Sequence[Pair], *, drop: bool) -> Fraction:
    """By listing every way to exchange samples within tasks."""
    per_task = []
    for before, after in pairs:
        values = (*before, *after)
        chosen = [set(some) for some in itertools.combinations(range(len(values)), len(after))]
        per_task.append(
            [
                sum((values[i] for i in some), Fraction(0)) / len(after)
                - sum((value for i, value in enumerate(values) if i not in some), Fraction(0)) / len(before)
                for some in chosen
            ]
        )
    seen = Fraction(0)
    for before, after in pairs:
        seen += sum(after, Fraction(0)) / len(after) - sum(before, Fraction(0)) / len(before)
    sums = [sum(one, Fraction(0)) for one in itertools.product(*per_task)]
    return Fraction(sum(one <= seen if drop else abs(one) >= abs(seen) for one in sums), len(sums))


@rows("drop", [False, True])
def test_the_permutation_test_agrees_with_every_relabeling(drop: bool) -> None:
    source = random.Random(6)
    for _ in range(60):
        pairs = [
            (
                [Fraction(source.randint(0, 2), 2) for _ in range(source.randint(1, 3))],
                [Fraction(source.randint(0, 2), 2) for _ in range(source.randint(1, 3))],
            )
            for _ in range(source.randint(1, 3))
        ]
        assert permutation(pairs, drop=drop) == significance.PValue(relabeled(pairs, drop=drop), True)


def test_permutation_values_worked_by_hand() -> None:
    collapse = results(*[(4, 4, 4, 0)] * 2)
    assert permutation(collapse, drop=True).value == Fraction(1, 70**2)
    assert permutation(collapse).value == Fraction(2, 70**2)
    assert permutation(results(*[(1, 1, 1, 0)] * 5), drop=True).value == Fraction(1, 32)
    swap = results((4, 4, 4, 0), (4, 0, 4, 4))  # the mean is the same
    assert permutation(swap).value == 1
    assert permutation([]).value == 1
    assert permutation(results((4, 4, 4, 4), (2, 0, 3, 0))).value == 1


def test_where_relabelings_are_drawn_the_p_is_near_the_exact_one_and_the_same_each_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pairs = results(*[(4, 3, 4, 2)] * 6, *[(4, 2, 4, 3)] * 2)
    for drop in (True, False):
        exact = permutation(pairs, drop=drop)
        monkeypatch.setattr(significance, "_MOST_BITS", 0)
        first, second = permutation(pairs, drop=drop), permutation(pairs, drop=drop)
        monkeypatch.undo()
        assert exact.exact
        assert not first.exact
        assert first == second
        assert abs(float(first.value - exact.value)) < 4 * math.sqrt(0.25 / DRAWS)


def test_rewards_of_many_values_are_drawn_and_never_impossible() -> None:
    source = random.Random(7)
    high = [[Fraction(source.randint(500_000, 999_999), 1_000_000) for _ in range(12)] for _ in range(3)]
    low = [[value - Fraction(1, 2) for value in values] for values in high]
    found = permutation(list(zip(high, low, strict=True)), drop=True)
    assert found == significance.PValue(Fraction(1, DRAWS + 1), False)


def test_thousands_of_different_rewards_are_compared_within_seconds_as_by_a_normal_distribution() -> None:
    source = random.Random(9)

    def rewards(top: float) -> list[Fraction]:
        return [Fraction(repr(source.random() * top)) for _ in range(8)]

    pairs: list[Pair] = [(rewards(1), rewards(0.97)) for _ in range(250)]
    fall, either = permutation(pairs, drop=True), permutation(pairs)
    assert not fall.exact
    falls = [statistics.fmean(before) - statistics.fmean(after) for before, after in pairs]
    spread = math.sqrt(sum(statistics.variance(map(float, [*before, *after])) / 4 for before, after in pairs))
    assert float(fall.value) == pytest.approx(1 - NormalDist().cdf(sum(falls) / spread), abs=0.01)
    assert float(either.value) == pytest.approx(2 * float(fall.value), abs=0.015)


def test_drawn_from_a_list_from_counted_sums_or_one_by_one_the_p_is_about_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pairs = results(*[(6, 4, 5, 2)] * 3, (8, 6, 4, 2))
    exact = permutation(pairs, drop=True)
    assert exact.exact
    for most in (10_000, 40, 0):
        monkeypatch.setattr(significance, "_MOST_BITS", 0)
        monkeypatch.setattr(significance, "_MOST_STATES", most)
        significance._draw.cache_clear()
        drawn = permutation(pairs, drop=True)
        monkeypatch.undo()
        assert not drawn.exact
        assert abs(float(drawn.value - exact.value)) < 4 * math.sqrt(0.25 / DRAWS)


@rows(("tasks", "samples"), [(5, 4), (20, 2), (30, 4)])
def test_without_a_difference_a_drop_is_found_in_at_most_one_run_of_twenty(tasks: int, samples: int) -> None:
    source, runs, alarms = random.Random(8), 400, 0
    for _ in range(runs):
        rates = [source.betavariate(0.7, 0.7) for _ in range(tasks)]
        counts = [[sum(source.random() < rate for _ in range(samples)) for _ in "ab"] for rate in rates]
        alarms += permutation(results(*((samples, a, samples, b) for a, b in counts)), drop=True).significant
    assert alarms / runs <= 0.05 + 2 * math.sqrt(0.05 * 0.95 / runs)


# What could be seen


def test_the_least_drop_worked_by_hand() -> None:
    # five failures in five tasks: a chance of 1/32; four: 1/16
    assert least_drop([(4, 4, 4)] * 30) == LeastDrop(5, Fraction(5, 120))
    assert least_drop([(1, 1, 1)] * 5) == LeastDrop(5, Fraction(1))
    assert least_drop([(1, 1, 1)] * 4) is None
    assert least_drop([(4, 4, 4)]) == LeastDrop(4, Fraction(1))  # 1/70; of 3 failures 1/14
    assert least_drop([(4, 0, 4)] * 9) is None
    assert least_drop([]) is None
    assert least_drop([(4, 4, 0)] * 9) is None


def test_the_least_drop_is_the_least() -> None:
    found = least_drop([(4, 3, 4)] * 10)
    assert found is not None

    def fewer(rollouts: int) -> list[Pair]:
        return results(*((4, 3, 4, 3 - (index < rollouts)) for index in range(10)))

    assert found.rollouts <= 10
    assert permutation(fewer(found.rollouts), drop=True).significant
    assert not permutation(fewer(found.rollouts - 1), drop=True).significant


def test_for_many_tasks_the_normal_distribution_is_near(monkeypatch: pytest.MonkeyPatch) -> None:
    counts = [(4, 3, 4)] * 40 + [(4, 1, 4)] * 18
    exact = least_drop(counts)
    monkeypatch.setattr(significance, "_MANY_TASKS", 1)
    near = least_drop(counts)
    assert exact is not None
    assert near is not None
    assert abs(exact.rollouts - near.rollouts) <= 1


# The interval


def test_an_interval_worked_by_hand() -> None:
    # differences 0, 1/2, 0, -1/4: mean 1/16, variance 0.0989583, standard error 0.157288, t(3) = 3.182446
    low, high = difference_interval([Fraction(0), Fraction(1, 2), Fraction(0), Fraction(-1, 4)]) or (0, 0)
    assert (low, high) == pytest.approx((0.0625 - 3.182446 / 6, 0.0625 + 3.182446 / 6), abs=1e-6)  # the floor, 1/6
    many = [Fraction(one, 2) for one in (1, -1, 1, 0, 1, 1, -1, 1)]
    # mean 3/16, sum of squares 7/4 - 8 * (3/16)^2 = 1.46875, standard error 0.161948, above the floor of 0.1
    assert difference_interval(many) == pytest.approx(
        (0.1875 - 2.364624 * 0.161948, 0.1875 + 2.364624 * 0.161948), abs=1e-5
    )


def test_where_no_task_differs_the_doubt_stays() -> None:
    assert difference_interval([Fraction(0)] * 30) == pytest.approx((-2.045230 / 32, 2.045230 / 32), abs=1e-6)
    assert difference_interval([Fraction(-1)] * 6) == pytest.approx((-1.0, -1 + 2.570582 / 8), abs=1e-6)
    assert difference_interval([Fraction(1)]) is None


@pytest.mark.slow
@rows(
    ("tasks", "samples", "shape", "shift", "least", "most"),
    [
        (30, 4, (0.5, 0.5), 0.0, 0.93, 0.97),
        (30, 4, (2.0, 2.0), -0.1, 0.93, 0.97),
        (100, 4, (1.0, 4.0), 0.1, 0.93, 0.97),
        (50, 8, (1.0, 1.0), -0.1, 0.93, 0.97),
        (10, 4, (1.0, 1.0), -0.1, 0.95, 1.0),
        (5, 4, (0.3, 2.7), 0.1, 0.95, 1.0),
        (30, 4, (0.1, 0.1), 0.0, 0.95, 1.0),
    ],
)
def test_coverage_of_a_difference(
    tasks: int, samples: int, shape: tuple[float, float], shift: float, least: float, most: float
) -> None:
    """How often the interval holds the truth, over simulated pairs of runs; a task's rate moves by 0 to 2 `shift`."""
    source, runs, held = random.Random(20261129), 2000, 0

    def rates() -> tuple[float, float]:
        before = source.betavariate(*shape)
        return before, min(1.0, max(0.0, before + 2 * shift * source.random()))

    truth = math.fsum(after - before for before, after in (rates() for _ in range(100_000))) / 100_000
    for _ in range(runs):
        differences = []
        for _ in range(tasks):
            before, after = (sum(source.random() < rate for _ in range(samples)) for rate in rates())
            differences.append(Fraction(after - before, samples))
        low, high = difference_interval(differences) or (1.0, -1.0)
        held += low <= truth <= high
    assert least <= held / runs <= most
