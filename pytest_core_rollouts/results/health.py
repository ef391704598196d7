"""What else rows tell about a run: how many groups could teach something, and what kinds of faults there were."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from pytest_core_rollouts.records.record import RolloutRecord


@dataclass(frozen=True)
class GroupHealth:
    """How many groups (the samples of one task by one agent in one run) could teach something.

    Methods that learn from a group (GRPO and its kin) compare each reward with the group's mean: where all are the
    same, every advantage is 0 and the group teaches nothing, whatever it cost.
    """

    total: int
    complete: int  # every sample has a reward
    signal: int  # rewards differ
    all_one: int
    all_zero: int
    alike: int  # the same reward throughout, between 0 and 1
    empty: int  # no reward at all


def group_health(rows: Sequence[RolloutRecord]) -> GroupHealth:
    groups: dict[str, list[RolloutRecord]] = {}
    tasks: dict[str, int] = {}
    for row in rows:
        groups.setdefault(row.group_id, []).append(row)
        tasks[row.run_id] = max(tasks.get(row.run_id, 0), row.planned.get("tasks", 0))
    kinds = Counter(_group_kind(group) for group in groups.values())
    total = max(len(groups), sum(tasks.values()))
    return GroupHealth(
        total=total,
        complete=sum(map(_is_complete, groups.values())),
        signal=kinds["signal"],
        all_one=kinds[1],
        all_zero=kinds[0],
        alike=kinds["alike"],
        empty=kinds["empty"] + total - len(groups),
    )


def _is_complete(group: Sequence[RolloutRecord]) -> bool:
    return sum(row.graded for row in group) >= max(len(group), *(row.planned.get("group", 0) for row in group))


def _group_kind(group: Iterable[RolloutRecord]) -> str | int:
    rewards = {row.reward for row in group if row.reward is not None}
    if len(rewards) != 1:
        return "signal" if rewards else "empty"
    [reward] = rewards
    return int(reward) if reward in (0, 1) else "alike"


_PARTICULAR = re.compile(
    r"""\b(?=[\w-]*[A-Za-z])(?=[\w-]*\d)[\w-]{8,}\b  # ids: letters and digits in one long word
    | \b\d+\.\d+\b | \b\d{4,}\b                      # measured times, sizes, ports
    """,
    re.VERBOSE,
)
_KIND_LENGTH = 100


def fault_kind(row: RolloutRecord) -> str:
    """The kind of a fault: its status and text without what differs from one rollout to the next."""
    [first, *_] = (row.error or "no reason given").splitlines() or [""]
    kind = _PARTICULAR.sub("*", first)
    return f"{row.status}: {kind if len(kind) <= _KIND_LENGTH else kind[:_KIND_LENGTH] + '...'}"
