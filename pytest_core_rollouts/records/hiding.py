"""What `--rollout-hide-expected` leaves out: for logs that everybody reads.

The expected side of every reason, and whatever a project's own grader says in its own words: its note, the text of what
it raises. What the agent answered stays, and so do the paths at which it differs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from pytest_core_rollouts.grading.answers import Grade

HIDDEN = "(hidden)"
"""Stands in a row for what was expected."""


class Withheld(Exception):
    """Stands for what a grader raised, with the place where it did; `str()` tells its type alone."""

    def __init__(self, error: BaseException) -> None:
        super().__init__(f"{type(error).__name__}, its text left out (--rollout-hide-expected)")
        self.__traceback__ = error.__traceback__


def hide_reasons(reasons: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The reasons of a row without what was expected."""
    return [{**reason, "expected": HIDDEN} for reason in reasons]


def hide_note(grade: Grade) -> Grade:
    """A grade without a note of the grader's own."""
    return grade if grade.note is None else replace(grade, note=f"the grader's note is {HIDDEN}")
