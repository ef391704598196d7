"""What the rollouts say about the run: passed, failed, or undecided, and why.

A gate reads counts, never pytest: exit codes are the caller's. Undecided is neither: where rollouts have no grade, a
verdict that could turn with them is not given.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Protocol

MIN_COVERAGE = 0.5
"""The share of selected rollouts that must be graded before a run that only collects counts as one."""


class GateError(ValueError):
    """A gate that cannot be understood; the text is one line that says what can."""


class Scores(Protocol):
    """The counts of one run (report.summary.Summary has them)."""

    @property
    def planned(self) -> int: ...  # rollouts selected
    @property
    def rows(self) -> int: ...  # that ran, whatever came of it
    @property
    def graded(self) -> int: ...  # that have a reward
    @property
    def solved(self) -> int: ...  # whose reward is 1


@dataclass(frozen=True)
class Verdict:
    """`passed` is None where the gate is undecided; `text` is one line that says why."""

    passed: bool | None
    text: str


class Gate(ABC):
    """One condition on a run. `asserts_each`: whether every rollout is also a test that fails on its own."""

    expression: str
    asserts_each: bool = False

    @abstractmethod
    def verdict(self, scores: Scores) -> Verdict: ...


class Each(Gate):
    """The default: every rollout must be solved."""

    expression = "each"
    asserts_each = True

    def verdict(self, scores: Scores) -> Verdict:
        unsolved = scores.graded - scores.solved
        text = f"{scores.solved} of {scores.planned} rollouts solved{_missing(scores)}"
        if unsolved:
            return Verdict(False, text)
        return Verdict(True if 0 < scores.planned == scores.graded else None, text)


class Collect(Gate):
    """`none`: rewards decide nothing, but rollouts that never ran, or too few grades, leave the run undecided."""

    expression = "none"

    def verdict(self, scores: Scores) -> Verdict:
        text = f"{scores.graded} of {scores.planned} rollouts graded{_missing(scores)}"
        enough = scores.rows >= scores.planned > 0 and scores.graded >= MIN_COVERAGE * scores.planned
        return Verdict(True if enough else None, text)


def _missing(scores: Scores) -> str:
    errors, not_run = scores.rows - scores.graded, scores.planned - scores.rows
    parts = (f"{errors} without a grade" if errors else "", f"{not_run} did not run" if not_run else "")
    said = ", ".join(filter(None, parts))
    return f" ({said})" if said else ""


_GATES: dict[str, type[Gate]] = {gate.expression: gate for gate in (Each, Collect)}


def parse_gate(text: str) -> Gate:
    """The gate that `text` names. Raises GateError for one that is not known."""
    gate = _GATES.get(text.strip())
    if gate is None:
        raise GateError(f"unknown gate {text!r}; known are {', '.join(_GATES)}")
    return gate()
