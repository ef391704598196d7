"""What gates say before all rollouts have run, in a run that stops early: looks at complete rounds, in order."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction

from pytest_core_rollouts.results.comparison import Compared
from pytest_core_rollouts.results.early_stop import Rounds, StopRule
from pytest_core_rollouts.results.gate_kinds import Evidence, Gate, Verdict
from pytest_core_rollouts.results.number_text import decimal
from pytest_core_rollouts.results.scores import AgentScore


@dataclass(frozen=True)
class Early:
    """What the first rounds said of one agent."""

    passed: bool
    after: int
    """The number of these rounds."""


@dataclass(frozen=True)
class Looks:
    """Looks at one run, each at the end of a round. The first that decides counts, whatever later rows say.

    So a verdict depends on rows, plan, gates and the run's rule only, and not on the order in which rollouts finished.
    """

    rule: StopRule | None
    """None: the run does not stop early."""
    verdicts: int
    """Verdicts of the run, which share the risk."""
    comparisons: int
    """Those of gates that compare with a baseline."""
    corrections: Mapping[int, Mapping[str, Compared]]
    """Comparisons with corrected p-values, by the gate's `id()` and the agent's label."""

    def corrected(self, gate: Gate, label: str, evidence: Evidence) -> Evidence:
        """Return the evidence with its comparison corrected for other verdicts."""
        return dataclasses.replace(evidence, compared=self.corrections.get(id(gate), {}).get(label))

    def may_decide(self, gate: Gate, agent: AgentScore) -> bool:
        """Whether a look at this agent may decide the gate."""
        return self.rule is not None and self.rule.risk > 0 and gate.has_rule(agent)

    def first(self, gate: Gate, evidence: Evidence) -> Early | None:
        """Return the first look that decides; None if none does."""
        if self.rule is None or not self.may_decide(gate, evidence.agent):
            return None
        rounds = Rounds.of(evidence.agent)
        share = dataclasses.replace(self.rule, risk=self.rule.risk / self.verdicts)
        for r in range(1, min(rounds.complete, rounds.planned - 1) + 1):
            if (passed := gate.look(evidence, r, share, self.comparisons)) is not None:
                return Early(passed, r)
        return None

    def verdict(self, gate: Gate, evidence: Evidence, whole: Verdict, early: Early) -> Verdict:
        """Return the verdict of an early look. `whole` is that on all rows, which single tasks may still decide."""
        assert self.rule is not None
        agent = evidence.agent
        samples = [task.samples[index] for task in agent.tasks for index in range(early.after)]
        values = [value for sample in samples if (value := gate.value(sample)) is not None]
        mean = sum(values, Fraction(0)) / len(values) if values else None
        text = (
            f"after round {early.after} of {Rounds.of(agent).planned}: {decimal(mean)} from {len(samples)} of "
            f"{agent.planned} rollouts; the whole run would say otherwise in at most {self.rule.text} of runs"
        )
        passed = gate.rest(evidence) if early.passed else False
        return Verdict(passed, text if passed is early.passed else f"{whole.text}; the mean passed {text}")
