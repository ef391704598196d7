"""Simulated runs that stop early, played by the product's own rule."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from pytest_core_rollouts.results.comparison import compare
from pytest_core_rollouts.results.early_stop import StopRule
from pytest_core_rollouts.results.gate_forms import parse_gate
from pytest_core_rollouts.results.gate_kinds import Evidence, Gate
from pytest_core_rollouts.results.plan import imagined
from pytest_core_rollouts.results.scores import AgentScore, TaskScore

Results = Sequence[Sequence[bool]]
"""Whether each task's samples solved it."""


@dataclass(frozen=True)
class Suite:
    """Tasks whose true rates have this mean; a small `concentration` gives many that are always or never solved."""

    tasks: int
    samples: int
    mean: float
    concentration: float = 1.0

    def rates(self, source: random.Random) -> list[float]:
        ends = max(1e-9, self.mean * self.concentration), max(1e-9, (1 - self.mean) * self.concentration)
        return [source.betavariate(*ends) for _ in range(self.tasks)]


def run(rates: Sequence[float], samples: int, source: random.Random) -> Results:
    return [[source.random() < rate for _ in range(samples)] for rate in rates]


def score(results: Results, planned: int) -> AgentScore:
    """Return the score of an agent with these results, of `planned` samples of each task."""
    tasks = [TaskScore(f"t{number:03}", planned, 0, (), 0, 0) for number in range(len(results))]
    return imagined(tasks, results)


@dataclass
class Played:
    """One run: the verdict of the rule and of the whole run, and the rounds that were run."""

    stopped: bool
    whole: bool
    rounds: int


def play(gate: Gate, results: Results, planned: int, risk: float, before: AgentScore | None = None) -> Played:
    """Look after each round, and stop where the rule decides."""
    agent = score(results, planned)
    evidence = Evidence(agent, before)
    whole = bool(gate.verdict(evidence).passed) if before is None else not compare(before, agent).dropped
    rule = StopRule("", risk)
    for r in range(1, planned):
        if (passed := gate.look(evidence, r, rule, 1)) is not None:
            return Played(passed, whole, r)
    return Played(whole, whole, planned)


def spent_and_wrong(
    suite: Suite, least: float, risk: float, runs: int, seed: int = 1, only: Callable[[Results], bool] = lambda _: True
) -> tuple[float, float]:
    """Return the mean share of rounds that ran, and the share of runs with another verdict than the whole run."""
    source = random.Random(seed)
    gate = parse_gate(f"mean>={least}")
    played: list[Played] = []
    while len(played) < runs:
        results = run(suite.rates(source), suite.samples, source)
        if only(results):
            played.append(play(gate, results, suite.samples, risk))
    return (
        sum(one.rounds for one in played) / runs / suite.samples,
        sum(one.stopped is not one.whole for one in played) / runs,
    )


def near(least: float, suite: Suite) -> Callable[[Results], bool]:
    """Return a filter for whole runs that end at most one rollout from the threshold."""
    total = least * suite.tasks * suite.samples
    return lambda results: abs(sum(map(sum, results)) - total) <= 1
