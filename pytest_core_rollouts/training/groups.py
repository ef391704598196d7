"""Rows put together to groups, each with its advantages; what is left out is counted, never lost in silence."""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Final

from pytest_core_rollouts.records.record import RolloutRecord
from pytest_core_rollouts.records.rows import effective, read_located, record_at


@dataclass(frozen=True)
class Row:
    """A row that counts, without what is large, and where the whole of it stands."""

    record: RolloutRecord
    path: Path
    offset: int
    has_items: bool

    def whole(self) -> RolloutRecord:
        """The row read again. Raises RecordsError."""
        return record_at(self.path, self.offset)


@dataclass(frozen=True)
class Sample:
    """One rollout of a group. A masked one is missing data: no advantage, no part in the mean."""

    row: Row
    advantage: float | None

    @property
    def record(self) -> RolloutRecord:
        return self.row.record

    @property
    def masked(self) -> bool:
        return self.advantage is None


@dataclass(frozen=True)
class Group:
    """The samples of one task by one agent in one run, under the same labels, by sample."""

    samples: tuple[Sample, ...]
    mean: float
    std: float
    """Sample standard deviation (n - 1) of the rewards that are not masked; 0 for one."""

    @property
    def first(self) -> RolloutRecord:
        return self.samples[0].record

    @property
    def planned(self) -> int:
        """Samples that the run was to have."""
        return max(len(self.samples), *(sample.record.planned.get("group", 0) for sample in self.samples))

    @property
    def used(self) -> int:
        """Samples that are not masked."""
        return sum(not sample.masked for sample in self.samples)

    @property
    def complete(self) -> bool:
        return self.used == self.planned

    @property
    def signal(self) -> bool:
        """Whether rewards differ: else every advantage is 0 and nothing can be learned."""
        return self.std > 0


@dataclass(frozen=True)
class Choice:
    """What to export. `labels`: only rows that have all of these."""

    method: str = "grpo"
    mask_timeouts: bool = False
    drop_incomplete: bool = False
    drop_signal_free: bool = False
    run_id: str | None = None
    labels: Mapping[str, str] = dataclasses.field(default_factory=dict)

    def takes(self, record: RolloutRecord) -> bool:
        return self.run_id in (None, record.run_id) and self.labels.items() <= dict(record.labels).items()

    def masks(self, record: RolloutRecord) -> bool:
        return record.reward is None or (self.mask_timeouts and record.status == "timeout")


@dataclass(frozen=True)
class Selection:
    """The groups chosen, in the order in which their first rows stand, and how many were left out for what."""

    groups: tuple[Group, ...]
    left_out: Mapping[str, int]

    @property
    def account(self) -> str:
        """One line for people."""
        samples = [sample for group in self.groups for sample in group.samples]
        masked = Counter[str](sample.record.status for sample in samples if sample.masked)
        said = f"{_number(len(self.groups), 'group')}, {_number(len(samples), 'sample')}"
        if masked:
            said += f", masked: {_counts(masked)}"
        if self.left_out:
            said += f"; groups left out: {_counts(self.left_out)}"
        return said


def read_rows(paths: Iterable[Path], *, items: bool) -> list[Row]:
    """The row that counts of each rollout in all files, in order of first appearance. Raises RecordsError.

    Without `items` nobody looks whether there are any.
    """
    rows: dict[int, Row] = {}
    for path in paths:
        for offset, record in read_located(path, items=items):
            slim = dataclasses.replace(
                record, items=None, answer=None, answer_text=None, reasons=(), notes=(), outputs=(), request_ids={}
            )
            rows[id(slim)] = Row(slim, path, offset, record.items is not None)
    return [rows[id(record)] for record in effective(row.record for row in rows.values()).values()]


def select(rows: Iterable[Row], choice: Choice) -> Selection:
    """Group the rows and choose among the groups.

    A group never mixes what differs in more than its sample: labels (a policy's version), the agent, the task's input,
    its grading or limits. Where a resumed run brought such rows under one group_id, each kind is a group of its own.
    """
    kinds: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        if choice.takes(row.record):
            kinds.setdefault((row.record.group_id, row.record.work), []).append(row)
    chosen: list[Group] = []
    left_out: Counter[str] = Counter()
    for members in kinds.values():
        group = _group(members, choice)
        reason = _reason_against(group, choice)
        if reason is None:
            chosen.append(group)
        else:
            left_out[reason] += 1
    return Selection(tuple(chosen), left_out)


def _group(rows: Sequence[Row], choice: Choice) -> Group:
    rows = sorted(rows, key=lambda row: row.record.sample)
    rewards = [None if choice.masks(row.record) else row.record.reward for row in rows]
    mean, variance = moments(rewards)
    samples = map(Sample, rows, advantages(rewards, choice.method))
    return Group(tuple(samples), float(mean), math.sqrt(variance))


def _reason_against(group: Group, choice: Choice) -> str | None:
    if not group.used:
        return "without a reward"
    if choice.drop_incomplete and not group.complete:
        return "incomplete"
    if choice.drop_signal_free and not group.signal:
        return "signal-free"
    return None


def _number(count: int, what: str) -> str:
    return f"{count} {what}" if count == 1 else f"{count} {what}s"


def _counts(counter: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {name}" for name, count in sorted(counter.items()))


# Advantages


METHODS: Final = ("grpo", "dr-grpo")


def advantages(rewards: Sequence[float | None], method: str = "grpo") -> list[float | None]:
    """The advantage of each sample, in the order of `rewards`.

    None, for a sample that says nothing about the agent, stays None and counts neither in the mean nor in the
    deviation. The result does not depend on the order of the samples, to the last bit. Raises ValueError for an
    unknown method.
    """
    if method not in METHODS:
        raise ValueError(f"unknown method {method!r}; known are {', '.join(METHODS)}")
    mean, variance = moments(rewards)
    divisor = (math.sqrt(variance) if method == "grpo" else 0.0) or 1.0
    return [None if reward is None else float(Fraction(reward) - mean) / divisor for reward in rewards]


def moments(rewards: Sequence[float | None]) -> tuple[Fraction, Fraction]:
    """Exact mean and sample variance of the rewards that are known; (0, 0) for none, variance 0 for one."""
    known = [Fraction(reward) for reward in rewards if reward is not None]
    if not known:
        return Fraction(0), Fraction(0)
    mean = sum(known, Fraction(0)) / len(known)
    squares = sum(((reward - mean) ** 2 for reward in known), Fraction(0))
    return mean, squares / max(len(known) - 1, 1)
