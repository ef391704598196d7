from __future__ import annotations

from dataclasses import dataclass

import pytest

from pytest_core_rollouts.gate import GateError, Verdict, parse_gate


@dataclass(frozen=True)
class Counts:
    planned: int
    rows: int
    graded: int
    solved: int


def test_the_default_asserts_each_rollout_and_none_does_not() -> None:
    assert parse_gate("each").asserts_each
    assert not parse_gate(" none ").asserts_each


@pytest.mark.parametrize("text", ["", "all", "Each", "mean>=0.7", "none,each"])
def test_an_unknown_gate_is_refused_in_one_line_that_names_the_known(text: str) -> None:
    with pytest.raises(GateError) as caught:
        parse_gate(text)
    assert str(caught.value) == f"unknown gate {text!r}; known are each, none"


@pytest.mark.parametrize(
    ("counts", "verdict"),
    [
        (Counts(8, 8, 8, 8), Verdict(True, "8 of 8 rollouts solved")),
        (Counts(8, 8, 8, 7), Verdict(False, "7 of 8 rollouts solved")),
        (Counts(8, 8, 1, 1), Verdict(None, "1 of 8 rollouts solved (7 without a grade)")),
        (Counts(16, 5, 4, 4), Verdict(None, "4 of 16 rollouts solved (1 without a grade, 11 did not run)")),
        (Counts(16, 5, 4, 3), Verdict(False, "3 of 16 rollouts solved (1 without a grade, 11 did not run)")),
        (Counts(0, 0, 0, 0), Verdict(None, "0 of 0 rollouts solved")),
    ],
)
def test_each(counts: Counts, verdict: Verdict) -> None:
    assert parse_gate("each").verdict(counts) == verdict


@pytest.mark.parametrize(
    ("counts", "verdict"),
    [
        (Counts(8, 8, 8, 0), Verdict(True, "8 of 8 rollouts graded")),
        (Counts(8, 8, 4, 4), Verdict(True, "4 of 8 rollouts graded (4 without a grade)")),
        (Counts(8, 8, 3, 3), Verdict(None, "3 of 8 rollouts graded (5 without a grade)")),
        (Counts(8, 8, 1, 1), Verdict(None, "1 of 8 rollouts graded (7 without a grade)")),
        (Counts(8, 7, 7, 7), Verdict(None, "7 of 8 rollouts graded (1 did not run)")),
        (Counts(0, 0, 0, 0), Verdict(None, "0 of 0 rollouts graded")),
    ],
)
def test_none_never_fails_and_is_undecided_without_enough_grades(counts: Counts, verdict: Verdict) -> None:
    assert parse_gate("none").verdict(counts) == verdict
