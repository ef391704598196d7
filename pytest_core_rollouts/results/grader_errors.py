"""Answers that have no reward because their grader failed: which tasks and agents, and how many.

What a grader raises is missing data, because a grader that fails on right answers must not teach that they are wrong.
An answer can make a grader raise, too. So each report names these rollouts.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from pytest_core_rollouts.records.record import RolloutRecord

if TYPE_CHECKING:
    from pytest_core_rollouts.results.summary import TaskScore

_SHOWN = 5


def is_grader_error(row: RolloutRecord) -> bool:
    """Whether the agent's answer is there, but its grader failed."""
    return row.status == "error" and (row.error or "").startswith("the grader")


def grader_warnings(agents: Mapping[str, Iterable[TaskScore]]) -> list[str]:
    """A sentence for each task and agent, the most frequent first. `agents`: the tasks of each, by its label."""
    found = sorted(
        (-score.grader_errors, score.task, label, score.rows)
        for label, scores in agents.items()
        for score in scores
        if score.grader_errors
    )
    lines = [
        f"the grader of {task} failed on {-errors} of {rows} answers by {label}, which have no reward; fix it, then "
        "grade them again with --rollout-replay"
        for errors, task, label, rows in found[:_SHOWN]
    ]
    if more := len(found) - _SHOWN:
        lines += [f"graders failed for {more} more tasks or agents"] if more > 0 else []
    return lines
