"""Group-relative advantages: how much better each sample of a group did than the group.

- `grpo`: (r - mean) / std. Shao et al. 2024, DeepSeekMath (arXiv:2402.03300), outcome supervision. `std` is the sample
  standard deviation (n - 1), as common trainers compute it; the paper does not say.
- `dr-grpo`: r - mean. Liu et al. 2025, Understanding R1-Zero-Like Training (arXiv:2503.20783): the division gives
  groups that are nearly all right or nearly all wrong more weight than others.

There is no epsilon in the denominator: where all rewards are the same every advantage is exactly 0, elsewhere the
deviation is not small.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction
from typing import Final

METHODS: Final = ("grpo", "dr-grpo")


def advantages(rewards: Sequence[float | None], method: str = "grpo") -> list[float | None]:
    """The advantage of each sample, in the order of `rewards`.

    None, for a sample that says nothing about the agent, stays None and counts neither in the mean nor in the
    deviation. The result does not depend on the order of the samples, to the last bit. Raises ValueError for an
    unknown method.
    """
    if method not in METHODS:
        raise ValueError(f"unknown method {method!r}; known are {', '.join(METHODS)}")
    mean, variance = moments(rewards)
    divisor = (math.sqrt(variance) if method == "grpo" else 0.0) or 1.0
    return [None if reward is None else float(Fraction(reward) - mean) / divisor for reward in rewards]


def moments(rewards: Sequence[float | None]) -> tuple[Fraction, Fraction]:
    """Exact mean and sample variance of the rewards that are known; (0, 0) for none, variance 0 for one."""
    known = [Fraction(reward) for reward in rewards if reward is not None]
    if not known:
        return Fraction(0), Fraction(0)
    mean = sum(known, Fraction(0)) / len(known)
    squares = sum(((reward - mean) ** 2 for reward in known), Fraction(0))
    return mean, squares / max(len(known) - 1, 1)
