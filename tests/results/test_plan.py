"""The forecast of sums and times, and which drops the gate `baseline` sees."""

from __future__ import annotations

import random

import pytest

from pytest_core_rollouts.results.early_stop import StopRule
from pytest_core_rollouts.results.gate_forms import parse_gate
from pytest_core_rollouts.results.plan import OFTEN, Group, Sight, samples_for, spent_share, total, with_samples
from tests.support.early_stopping import Suite, run, score


def before(suite: Suite, seed: int) -> list[tuple[int, int]]:
    source = random.Random(seed)
    return [(suite.samples, sum(one)) for one in run(suite.rates(source), suite.samples, source)]


def test_the_range_of_a_sum_holds_nine_times_in_ten() -> None:
    source, held = random.Random(1), 0
    groups: list[Group] = [(("codex", "m", None), f"t{number}") for number in range(30)]
    for _ in range(300):
        scale = {group: source.lognormvariate(0, 1) for group in groups}
        old = {group: [scale[group] * source.lognormvariate(0, 0.5) for _ in range(4)] for group in groups}
        found = total(old, dict.fromkeys(groups, 4))
        assert found is not None
        now = sum(scale[group] * source.lognormvariate(0, 0.5) for group in groups for _ in range(4))
        held += found.low <= now <= found.high
    assert 0.8 <= held / 300 <= 0.97


@pytest.mark.parametrize(("samples", "low", "high"), [(1, 0.13, 0.3), (4, 0.08, 0.2), (12, 0.05, 0.16)])
def test_more_samples_see_smaller_drops(samples: int, low: float, high: float) -> None:
    """The figures of docs/statistics.md for 30 tasks with 4 samples before, over several suites."""
    drops = [Sight(before(Suite(30, 4, 0.75), seed), samples).least_drop(OFTEN) for seed in range(3)]
    assert all(drop is not None and low <= drop <= high for drop in drops), drops


def test_a_larger_baseline_needs_fewer_samples() -> None:
    old = before(Suite(30, 4, 0.75), 1)
    few, many = samples_for(old, 0.1), samples_for(with_samples(old, 8), 0.1)
    assert many is not None
    assert few is None or many < few
    assert Sight([(4, 0)] * 10, 4).least_drop(OFTEN) is None


def test_stopping_saves_what_simulated_runs_save() -> None:
    source = random.Random(1)
    agent = score(run(Suite(30, 4, 0.75).rates(source), 8, source), 8)
    share = spent_share(parse_gate("baseline"), agent, 4, StopRule("5%", 0.05))
    assert share is not None
    assert 0.45 <= share <= 0.75
    assert spent_share(parse_gate("pass@4>=0.5"), agent, 4, StopRule("5%", 0.05)) is None
