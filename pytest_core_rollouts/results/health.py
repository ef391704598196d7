"""What rows say about the health of a run: groups that can teach something, kinds of errors, and two warnings.

- A Turn that failed for a reason that its Core does not name is missing data, or reward 0 if the user says so. A policy
  that learned to break its Turns would show as an agent whose Turns fail more often. So each agent is compared with all
  others by Fisher's exact test, and so is each task; Holm's correction counts all these comparisons.
- What a grader raises is missing data, because a grader that fails on right answers must not teach that they are wrong.
  But an answer can make a grader raise. So each report names these rollouts.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pytest_core_rollouts.agents_api.fault_policies import turn_fault_policy
from pytest_core_rollouts.records.record import RolloutRecord
from pytest_core_rollouts.results.number_text import p_clause
from pytest_core_rollouts.results.significance import LEVEL, fisher, holm

if TYPE_CHECKING:
    from pytest_core_rollouts.results.scores import TaskScore


@dataclass(frozen=True)
class GroupHealth:
    """How many groups (the samples of one task by one agent in one run) could teach something.

    Methods that learn from groups, such as GRPO, compare each reward with the group's mean. If all rewards are equal,
    every advantage is 0 and the group teaches nothing.
    """

    total: int
    complete: int  # every sample has a reward
    signal: int  # rewards differ
    all_one: int
    all_zero: int
    alike: int  # all rewards equal, between 0 and 1
    empty: int  # no reward at all

    @classmethod
    def none(cls) -> GroupHealth:
        """Return the counts without any group."""
        return cls(0, 0, 0, 0, 0, 0, 0)


def group_health(rows: Sequence[RolloutRecord]) -> GroupHealth:
    groups: dict[tuple[str, str], list[RolloutRecord]] = {}
    tasks: dict[str, int] = {}
    for row in rows:
        groups.setdefault(row.group_key, []).append(row)
        tasks[row.run_id] = max(tasks.get(row.run_id, 0), row.planned.get("tasks", 0))
    kinds = Counter(_group_kind(group) for group in groups.values())
    without_row = max(0, sum(tasks.values()) - len({group_id for group_id, _ in groups}))
    return GroupHealth(
        total=len(groups) + without_row,
        complete=sum(map(_is_complete, groups.values())),
        signal=kinds["signal"],
        all_one=kinds[1],
        all_zero=kinds[0],
        alike=kinds["alike"],
        empty=kinds["empty"] + without_row,
    )


def _is_complete(group: Sequence[RolloutRecord]) -> bool:
    return sum(row.graded for row in group) >= max(len(group), *(row.planned.get("group", 0) for row in group))


def _group_kind(group: Iterable[RolloutRecord]) -> str | int:
    rewards = {row.reward for row in group if row.reward is not None}
    if len(rewards) != 1:
        return "signal" if rewards else "empty"
    [reward] = rewards
    return int(reward) if reward in (0, 1) else "alike"


_SPECIFIC = re.compile(
    r"""\b(?=[\w-]*[A-Za-z])(?=[\w-]*\d)[\w-]{8,}\b  # ids: letters and digits in one long word
    | \b\d+\.\d+\b | \b\d{4,}\b                      # measured times, sizes, ports
    """,
    re.VERBOSE,
)
_KIND_LENGTH = 100


def fault_kind(row: RolloutRecord) -> str:
    """Return the kind of an error: its status and text without what differs between rollouts."""
    if not row.error:
        return f"{row.status}: {row.why}"  # the limit that was passed, for example
    return f"{row.status}: {without_specifics(row.error)}"


def without_specifics(text: str) -> str:
    """Return the first line of a text, shortened, without ids, times and sizes, which differ between rollouts."""
    [first, *_] = text.splitlines() or [""]
    kind = _SPECIFIC.sub("*", first)
    return kind if len(kind) <= _KIND_LENGTH else f"{kind[:_KIND_LENGTH]}..."


# Turns that failed


_CODE = re.compile(r"the Turn failed: ([^:\s]+): ")
_MAX_TURN_WARNINGS = 3


def is_unexplained(row: RolloutRecord) -> bool:
    """Return True if the row's Turn failed with a code that does not say whether the agent caused it."""
    found = _CODE.match(row.error or "")
    return row.status == "failed" and found is not None and turn_fault_policy(found[1]).reward is None


def failed_turn_warnings(agents: Mapping[str, Iterable[TaskScore]]) -> list[str]:
    """Return a sentence for each agent and task whose Turns failed significantly more often.

    `agents` has the tasks of each agent by its label.
    """
    of_agents: dict[str, tuple[int, int]] = {}
    of_tasks: dict[str, tuple[int, int]] = {}
    for label, scores in agents.items():
        for score in scores:
            _add(of_agents, label, score)
            _add(of_tasks, score.task, score)
    compared = [*_compared(of_agents, "agent"), *_compared(of_tasks, "task")]
    corrected = holm([fisher(n1, c1, n2, c2) for _, _, (n1, c1), (n2, c2) in compared])
    found = sorted(
        ((p, what, name, own, rest) for p, (what, name, own, rest) in zip(corrected, compared, strict=True)),
        key=lambda one: one[:3],
    )
    return [
        f"failed Turns: {what} {name} {c1} of {n1}, the other {what}s {c2} of {n2} ({p_clause(p)}, two-sided), "
        "which is more than chance; an agent can cause failures that a Core does not name"
        for p, what, name, (n1, c1), (n2, c2) in found
        if p <= LEVEL and c1 * n2 > c2 * n1
    ][:_MAX_TURN_WARNINGS]


def _add(counts: dict[str, tuple[int, int]], name: str, score: TaskScore) -> None:
    rows, failed = counts.get(name, (0, 0))
    counts[name] = rows + score.rows, failed + score.failed_turns


def _compared(
    counts: Mapping[str, tuple[int, int]], what: str
) -> Iterable[tuple[str, str, tuple[int, int], tuple[int, int]]]:
    """Yield each name with (rows, failed Turns) of itself and of all others."""
    rows, failed = (sum(numbers) for numbers in zip(*counts.values(), strict=True)) if counts else (0, 0)
    if not failed or len(counts) < 2:
        return
    for name, (own_rows, own_failed) in counts.items():
        yield what, name, (own_rows, own_failed), (rows - own_rows, failed - own_failed)


# Graders that failed


_MAX_GRADER_WARNINGS = 5


def is_grader_error(row: RolloutRecord) -> bool:
    """Return True if there is an answer, but its grader failed."""
    return row.status == "error" and (row.error or "").startswith("the grader")


def grader_warnings(agents: Mapping[str, Iterable[TaskScore]]) -> list[str]:
    """Return a sentence for each task and agent with grader errors, the most frequent first.

    `agents` has the tasks of each agent by its label.
    """
    found = sorted(
        (-score.grader_errors, score.task, label, score.rows)
        for label, scores in agents.items()
        for score in scores
        if score.grader_errors
    )
    lines = [
        f"the grader of {task} failed on {-errors} of {rows} answers by {label}, which have no reward; fix it, then "
        "grade them again with --rollout-replay"
        for errors, task, label, rows in found[:_MAX_GRADER_WARNINGS]
    ]
    if more := len(found) - _MAX_GRADER_WARNINGS:
        lines += [f"graders failed for {more} more tasks or agents"] if more > 0 else []
    return lines
