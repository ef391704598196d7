"""Whether two sets of results differ by more than chance: pure functions, exact where that is affordable.

Three questions, each with its own test:

- One task, two counts of solved samples: Fisher's exact test (Fisher 1935, "The Design of Experiments", chapter II),
  two-sided: the chance of a table at most as likely as the one seen, its margins given.
- Many tasks, one by one: Holm's correction (Holm 1979, "A Simple Sequentially Rejective Multiple Test
  Procedure"), which keeps the chance of any false alarm among them at the level asked for.
- All tasks together: a permutation test (Fisher 1935, chapter III; Pitman 1937). Were there no difference, the samples
  of a task could as well carry each other's labels "before" and "after"; the p-value is the share of all relabelings
  that give a difference at least as large. With one value a task and side, a relabeling is a flip of the sign of that
  task's difference: the sign-flip test.

If there are too many relabelings to count, a seeded sample of them gives (hits + 1) / (draws + 1), which is never
0 and never too small on average (Phipson and Smyth 2010, "Permutation P-values Should Never Be Zero").
"""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cache, lru_cache
from itertools import accumulate, combinations
from statistics import NormalDist

LEVEL = Fraction(1, 20)
"""A p-value at or below this is called significant, everywhere in this project."""

DRAWS = 9_999
"""Relabelings drawn if they can't be counted; a p-value of 0.05 then has a standard error of 0.002."""
SEED = 20261129
"""Seed of the draws: the same results always give the same p-value."""

_MOST_STATES = 20_000
"""Relabelings of one task that are listed, or sums of them that are counted; beyond, they are drawn one by one."""
_MOST_BITS = 1 << 21
"""Size of the integer in which relabelings are counted (see `_count`): some tenths of a second."""
_MANY_TASKS = 60
"""From this many tasks on `least_drop` uses the normal distribution, which differs by at most one rollout."""

_QUANTILE = NormalDist().inv_cdf(float(1 - LEVEL))

Pair = tuple[Sequence[Fraction], Sequence[Fraction]]
"""One task's results before and after, each with at least one value."""


@dataclass(frozen=True)
class PValue:
    """A p-value. `exact`: every relabeling was counted; if not, a seeded sample of them."""

    value: Fraction
    exact: bool

    @property
    def significant(self) -> bool:
        return self.value <= LEVEL


# One task


@cache
def fisher(n1: int, c1: int, n2: int, c2: int) -> Fraction:
    """Return the two-sided p-value of `c1` solved of `n1` against `c2` of `n2`; 1 without samples.

    Raises ValueError for impossible counts.
    """
    if not (0 <= c1 <= n1 and 0 <= c2 <= n2):
        raise ValueError(f"{c1} of {n1} against {c2} of {n2}: impossible counts")
    solved = c1 + c2
    least, most = max(0, solved - n2), min(n1, solved)
    ways = [math.comb(n1, least) * math.comb(n2, solved - least)]
    for x in range(least, most):  # each from the previous one: far cheaper with thousands of samples
        ways.append(ways[-1] * (n1 - x) * (solved - x) // ((x + 1) * (n2 - solved + x + 1)))
    seen = ways[c1 - least]
    return Fraction(sum(way for way in ways if way <= seen), math.comb(n1 + n2, solved))


def least_fisher(n1: int, c1: int, n2: int) -> Fraction:
    """Return the smallest p-value that a drop from `c1` of `n1` could have in `n2` samples: that of a drop to 0.

    1 if nothing was solved before or there are no samples.
    """
    return fisher(n1, c1, n2, 0)


def holm(values: Sequence[Fraction]) -> list[Fraction]:
    """Return the p-values, corrected for their number, in the same order; each at most 1."""
    corrected = [Fraction(0)] * len(values)
    largest = Fraction(0)
    for rank, index in enumerate(sorted(range(len(values)), key=values.__getitem__)):
        largest = max(largest, min(Fraction(1), values[index] * (len(values) - rank)))
        corrected[index] = largest
    return corrected


# All tasks


def sign_flip(differences: Sequence[Fraction]) -> PValue:
    """Return the two-sided p-value of the mean of `differences`, one per task, by flipping signs.

    It asks whether tasks like these would differ, so a task counts once, however many samples it has. With n tasks it
    is never below 2 / 2**n: from 6 tasks on it can be significant.
    """
    return permutation([((Fraction(0),), (difference,)) for difference in differences])


def permutation(pairs: Sequence[Pair], *, drop: bool = False) -> PValue:
    """Return the p-value of the mean over tasks of (mean after - mean before), by exchanging samples within each task.

    Two-sided, or with `drop` only for a drop. Exact for any rewards and any numbers of samples: it supposes only that
    without a difference a task's samples are interchangeable. It is about these tasks, not others like them.
    """
    if not pairs:
        return PValue(Fraction(1), exact=True)
    seen = sum((_mean(after) - _mean(before) for before, after in pairs), Fraction(0))
    if not drop and seen == 0:
        return PValue(Fraction(1), exact=True)
    tasks = tuple(map(_Samples.of, pairs))
    if (counted := _count(tasks, seen, drop=drop)) is not None:
        return PValue(counted, exact=True)
    totals, unit = _draw(tasks)
    bound = int(seen * unit)
    hits = sum(total <= bound for total in totals) if drop else sum(abs(total) >= abs(bound) for total in totals)
    return PValue(Fraction(hits + 1, DRAWS + 1), exact=False)


def _mean(values: Sequence[Fraction]) -> Fraction:
    return sum(values, Fraction(0)) / len(values)


@dataclass(frozen=True)
class _Samples:
    """One task's results of both sides as integers from 0: adding thousands of fractions takes minutes."""

    values: tuple[int, ...]  # in ascending order
    after: int  # how many of them are labeled "after"
    step: Fraction  # how much 1 in the sum of these adds to the difference of means
    shift: Fraction  # the difference is `sum * step - shift`

    @classmethod
    def of(cls, pair: Pair) -> _Samples:
        before, after = pair
        unit = math.lcm(*(value.denominator for value in (*before, *after)))
        whole = sorted(int(value * unit) for value in (*before, *after))
        scale = math.gcd(*(value - whole[0] for value in whole)) or 1
        values = tuple((value - whole[0]) // scale for value in whole)
        one = Fraction(scale, unit)
        step = one / len(before) + one / len(after)
        return cls(values, len(after), step, sum(values) * one / len(before))

    @property
    def relabelings(self) -> int:
        return math.comb(len(self.values), self.after)

    @property
    def least(self) -> int:
        return sum(self.values[: self.after])

    @property
    def span(self) -> int:
        return sum(self.values[-self.after :]) - self.least


@lru_cache(maxsize=1024)
def _sums(values: tuple[int, ...], chosen: int) -> dict[int, int]:
    """Return every sum of `chosen` of the values, with the number of ways to get it."""
    sums: dict[tuple[int, int], int] = {(0, 0): 1}
    left = len(values)
    for value, times in Counter(values).items():
        left -= times
        found: dict[tuple[int, int], int] = {}
        for (taken, total), ways in sums.items():
            for more in range(max(0, chosen - taken - left), min(times, chosen - taken) + 1):
                key = taken + more, total + value * more
                found[key] = found.get(key, 0) + ways * math.comb(times, more)
        sums = found
    return {total: ways for (_, total), ways in sums.items()}


def _count(tasks: Sequence[_Samples], seen: Fraction, *, drop: bool) -> Fraction | None:
    """Return the share of all combinations of the tasks' relabelings that reach `seen`; None if there are too many.

    Differences, scaled to whole numbers from 0, are exponents of a polynomial a task; the product's coefficients count
    the combinations. A polynomial is kept as one integer, its value at a power of two that no sum of coefficients
    reaches, so that the multiplication is Python's own.
    """
    unit = math.lcm(*(task.step.denominator for task in tasks))
    sizes = [int(task.step * unit) for task in tasks]
    span = sum(task.span * size for task, size in zip(tasks, sizes, strict=True))
    everything = math.prod(task.relabelings for task in tasks)
    width = everything.bit_length() + 1
    if span * width > _MOST_BITS:
        return None
    product = _product(
        [
            sum(ways << (total - task.least) * size * width for total, ways in _sums(task.values, task.after).items())
            for task, size in zip(tasks, sizes, strict=True)
        ]
    )
    base = sum((task.least * task.step - task.shift for task in tasks), Fraction(0))

    def up_to(difference: Fraction) -> int:
        """Return how many combinations give at most this. The coefficients' sum is the remainder by 2**width - 1."""
        steps = math.floor((difference - base) * unit) + 1
        return 0 if steps <= 0 else (product & ((1 << steps * width) - 1)) % ((1 << width) - 1)

    if drop:
        return Fraction(up_to(seen), everything)
    below, least = up_to(-abs(seen)), math.ceil((abs(seen) - base) * unit)
    return Fraction(below + everything - up_to(base + Fraction(least - 1, unit)), everything)


def _product(factors: list[int]) -> int:
    """Return the product, by halves: multiplication is fast if both factors are large."""
    while len(factors) > 1:
        factors = [math.prod(factors[index : index + 2]) for index in range(0, len(factors), 2)]
    return factors[0]


@lru_cache(maxsize=4)
def _draw(tasks: tuple[_Samples, ...]) -> tuple[list[int], int]:
    """Return `DRAWS` sums over tasks of a relabeling's difference as integers, and the unit they are divided by."""
    source = random.Random(SEED)
    unit = math.lcm(*(part.denominator for task in tasks for part in (task.step, task.shift)))
    totals = [-sum(int(task.shift * unit) for task in tasks)] * DRAWS
    for task in tasks:
        size = int(task.step * unit)
        totals = [total + size * chosen for total, chosen in zip(totals, _drawn(source, task), strict=True)]
    return totals, unit


def _drawn(source: random.Random, task: _Samples) -> list[int]:
    """Return `DRAWS` sums of the values labeled "after", drawn from the list of all if that is short."""
    values, after = task.values, task.after
    relabelings = task.relabelings
    if relabelings <= _MOST_STATES:
        return source.choices([sum(chosen) for chosen in combinations(values, after)], k=DRAWS)
    if len(set(values)) * task.span <= _MOST_STATES:
        sums = _sums(values, after)
        weights = [ways / relabelings for ways in accumulate(sums.values())]
        return source.choices(list(sums), cum_weights=weights, k=DRAWS)
    return [sum(source.sample(values, after)) for _ in range(DRAWS)]


# What could be detected


@dataclass(frozen=True)
class LeastDrop:
    """The smallest drop that `permutation(..., drop=True)` calls significant."""

    rollouts: int  # solved before, not after
    drop: Fraction  # of the mean over tasks


def least_drop(counts: Iterable[tuple[int, int, int]]) -> LeastDrop | None:
    """Return the smallest detectable drop, given each task's (n before, c before, n after); None if none is detectable.

    Starts from a run as good as the one before and takes away solved rollouts one by one, spread evenly over the
    tasks. A drop of exactly this size is detected about half of the time.
    """
    tasks = [(n, c, more) for n, c, more in counts if n and more]
    same = [-(-c * more // n) for n, c, more in tasks]

    def pairs(taken: int) -> list[Pair]:
        left = _take(same, taken)
        return [(_results(n, c), _results(more, solved)) for (n, c, more), solved in zip(tasks, left, strict=True)]

    low, high = 0, sum(same) + 1
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if _is_significant_drop(pairs(middle)) else (middle, high)
    if high > sum(same):
        return None
    return LeastDrop(
        high, sum((_mean(before) - _mean(after) for before, after in pairs(high)), Fraction(0)) / len(tasks)
    )


def _is_significant_drop(pairs: Sequence[Pair]) -> bool:
    if len(pairs) < _MANY_TASKS:
        return permutation(pairs, drop=True).significant
    fall = sum((_mean(before) - _mean(after) for before, after in pairs), Fraction(0))
    step = min(Fraction(1, len(before)) + Fraction(1, len(after)) for before, after in pairs)
    return float(fall - step / 2) >= _QUANTILE * math.sqrt(sum(map(_variance, pairs), Fraction(1, 10**6)))


def _variance(pair: Pair) -> Fraction:
    """Return the variance of the difference of means over all relabelings."""
    before, after = pair
    values = (*before, *after)
    middle = _mean(values)
    spread = sum(((value - middle) ** 2 for value in values), Fraction(0)) / (len(values) - 1)
    return spread * (Fraction(1, len(before)) + Fraction(1, len(after)))


def _take(counts: Sequence[int], taken: int) -> list[int]:
    """Return `counts` with `taken` fewer in total, one from each in turn, the largest first."""
    left = list(counts)
    while taken:
        most = max(left)
        for index in [index for index, count in enumerate(left) if count == most][:taken]:
            left[index] -= 1
            taken -= 1
    return left


def _results(n: int, c: int) -> tuple[Fraction, ...]:
    return (Fraction(0),) * (n - c) + (Fraction(1),) * c
