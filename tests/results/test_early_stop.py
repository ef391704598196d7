"""The rule for stopping early: simulated runs have the verdict of the whole run, at most at the stated risk."""

from __future__ import annotations

import random

import pytest

from pytest_core_rollouts.results.early_stop import StopRule
from pytest_core_rollouts.results.gate_forms import parse_gate
from pytest_core_rollouts.results.gate_kinds import Evidence
from tests.support.early_stopping import Suite, near, play, run, score, spent_and_wrong

SUITES = [
    (Suite(30, 4, 0.75), 0.75),
    (Suite(30, 4, 0.75, 1000.0), 0.75),
    (Suite(30, 4, 0.9), 0.9),
    (Suite(30, 4, 0.95, 0.5), 0.95),
    (Suite(30, 8, 0.75), 0.75),
    (Suite(10, 4, 0.75), 0.75),
    (Suite(6, 8, 0.75), 0.75),
    (Suite(30, 4, 0.5, 0.3), 0.5),
    (Suite(30, 2, 0.75), 0.75),
]
"""With their thresholds, which are the true means: there the rule is tried hardest."""


@pytest.mark.parametrize("runs", [150, pytest.param(3000, marks=pytest.mark.slow)])
@pytest.mark.parametrize("risk", [0.05, 0.01])
def test_close_runs_rarely_have_another_verdict_than_the_whole_run(runs: int, risk: float) -> None:
    """Of whole runs that end one rollout from the threshold."""
    for suite, least in SUITES:
        _, wrong = spent_and_wrong(suite, least, risk, runs, only=near(least, suite))
        assert wrong <= risk + 2.5 * (risk * (1 - risk) / runs) ** 0.5, (suite, wrong)


def test_a_clear_run_spends_little_and_a_close_one_not_all() -> None:
    spent, wrong = spent_and_wrong(Suite(30, 4, 0.9), 0.75, 0.05, 400)
    assert spent <= 0.45
    assert wrong == 0
    spent, wrong = spent_and_wrong(Suite(30, 4, 0.75), 0.75, 0.05, 400)
    assert spent <= 0.85
    assert wrong <= 0.02


@pytest.mark.parametrize("runs", [200, pytest.param(4000, marks=pytest.mark.slow)])
def test_a_baseline_without_a_drop_spends_little_and_a_drop_is_still_seen(runs: int) -> None:
    gate, source, spent = parse_gate("baseline"), random.Random(1), 0
    differ, more = {0.0: 0, 0.2: 0}, {0.0: 0, 0.2: 0}
    for drop in differ:
        for _ in range(runs):
            rates = Suite(30, 4, 0.75).rates(source)
            before = score(run(rates, 4, source), 4)
            now = [max(0.0, rate - drop * (rate > drop)) for rate in rates]
            played = play(gate, run(now, 4, source), 4, 0.05, before)
            spent += played.rounds if not drop else 0
            differ[drop] += played.stopped is not played.whole
            more[drop] += played.whole - played.stopped
    assert spent / runs / 4 <= 0.60 + 0.6 / runs**0.5
    assert all(count <= 0.02 * runs + 2 for count in differ.values()), differ
    assert more[0.0] <= 0.002 * runs + 2, "further false alarms"
    assert -more[0.2] <= 0.01 * runs + 2, "drops that the whole run sees"


def test_a_threshold_of_1_or_0_is_not_taken_for_reached_after_a_round() -> None:
    solved = score([[True] * 4] * 30, 4)
    gate = parse_gate("mean>=1.0")
    assert gate.look(Evidence(solved), 1, StopRule("5%", 0.05), 1) is None
    assert gate.look(Evidence(score([[False] * 4] * 30, 4)), 1, StopRule("5%", 0.05), 1) is False


@pytest.mark.parametrize("text", ["5", "0%", "50.1%", "-1%", "1e1%", "Certain", "", "5 %"])
def test_invalid_rules_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="expected `certain` or a risk above 0% and at most 50%"):
        StopRule.parse(text)
    assert StopRule.parse("2.5%").risk == 0.025
    assert StopRule.parse("certain").risk == 0
