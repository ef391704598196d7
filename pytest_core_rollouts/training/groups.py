"""Rows as groups with advantages. What is left out is counted and reported.

A group is the samples of one task by one agent in one run. An advantage says how much better a sample did than its
group:

- `grpo`: (r - mean) / std. Shao et al. 2024, DeepSeekMath (arXiv:2402.03300), outcome supervision. `std` is the sample
  standard deviation (n - 1), as common trainers compute it; the paper does not say which one it uses.
- `dr-grpo`: r - mean. Liu et al. 2025, Understanding R1-Zero-Like Training (arXiv:2503.20783): the division gives
  groups that are nearly all right or nearly all wrong more weight than others.

The denominator has no epsilon: if all rewards are equal every advantage is exactly 0, else the deviation is not small.
"""

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
from pytest_core_rollouts.records.rows import (
    effective_rows,
    file_order,
    read_located,
    record_at,
    require_agreement,
    slim,
)


@dataclass(frozen=True)
class Row:
    """The effective row of a rollout without its large fields, and the place of the whole row in its file."""

    record: RolloutRecord
    path: Path
    offset: int
    has_items: bool

    def load(self) -> RolloutRecord:
        """Read the whole row from its file. Raises RecordsError."""
        return record_at(self.path, self.offset)


@dataclass(frozen=True)
class Sample:
    """One rollout of a group. A masked one is missing data: it has no advantage and does not count in the mean."""

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
    """The samples of one task by one agent in one run with the same labels, in the order of their numbers."""

    samples: tuple[Sample, ...]
    mean: float
    std: float
    """Sample standard deviation (n - 1) of the rewards that are not masked; 0 for a single one."""

    @property
    def first(self) -> RolloutRecord:
        return self.samples[0].record

    @property
    def planned(self) -> int:
        """Number of samples that the run had planned."""
        return max(len(self.samples), *(sample.record.planned.get("group", 0) for sample in self.samples))

    @property
    def used(self) -> int:
        """Number of samples that are not masked."""
        return sum(not sample.masked for sample in self.samples)

    @property
    def complete(self) -> bool:
        return self.used == self.planned

    @property
    def signal(self) -> bool:
        """Whether rewards differ. If not, every advantage is 0 and the group teaches nothing."""
        return self.std > 0


@dataclass(frozen=True)
class Choice:
    """What to export. If `labels` is set, only rows with all of them are used."""

    method: str = "grpo"
    mask_timeouts: bool = False
    drop_incomplete: bool = False
    drop_signal_free: bool = False
    run_id: str | None = None
    labels: Mapping[str, str] = dataclasses.field(default_factory=dict)

    def accepts(self, record: RolloutRecord) -> bool:
        return self.run_id in (None, record.run_id) and self.labels.items() <= dict(record.labels).items()

    def masks(self, record: RolloutRecord) -> bool:
        return record.reward is None or (self.mask_timeouts and record.status == "timeout")


@dataclass(frozen=True)
class Selection:
    """The selected groups in the order of their first rows, and how many were left out for which reason."""

    groups: tuple[Group, ...]
    left_out: Mapping[str, int]

    @property
    def counts(self) -> str:
        """One line such as `2 groups, 8 samples, masked: 1 error; groups left out: 1 incomplete`."""
        samples = [sample for group in self.groups for sample in group.samples]
        masked = Counter[str](sample.record.status for sample in samples if sample.masked)
        text = f"{counted(len(self.groups), 'group')}, {counted(len(samples), 'sample')}"
        if masked:
            text += f", masked: {_counts(masked)}"
        if self.left_out:
            text += f"; groups left out: {_counts(self.left_out)}"
        return text


def read_rows(paths: Iterable[Path], *, items: bool) -> list[Row]:
    """Return the effective row of each rollout in all files, in the order of first appearance.

    Files are read in order of time, in whatever order they are named. `items` says whether Items are read, so that
    `has_items` is known. Raises RecordsError.
    """
    files = [
        [
            Row(slim(record, notes=(), outputs=()), path, offset, record.items is not None)
            for offset, record in read_located(path, items=items)
        ]
        for path in paths
    ]
    files.sort(key=lambda rows: file_order(rows[0].path, (row.record for row in rows)) if rows else ("", 0, ""))
    rows = [row for of_file in files for row in of_file]
    require_agreement((row.path, row.record) for row in rows)
    return [rows[row.position] for row in effective_rows(row.record for row in rows).values()]


def select(rows: Iterable[Row], choice: Choice) -> Selection:
    """Group the rows and select among the groups.

    The rows of a group differ only in their sample: labels (a policy's version), agent, task input, grading and limits
    are equal. If a resumed run has different rows under one group_id, each kind becomes a separate group.
    """
    kinds: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        if choice.accepts(row.record):
            kinds.setdefault(row.record.group_key, []).append(row)
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


def counted(count: int, what: str) -> str:
    return f"{count} {what}" if count == 1 else f"{count} {what}s"


def _counts(counter: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {name}" for name, count in sorted(counter.items()))


# Advantages


METHODS: Final = ("grpo", "dr-grpo")


def advantages(rewards: Sequence[float | None], method: str = "grpo") -> list[float | None]:
    """Return the advantage of each sample, in the order of `rewards`.

    None stands for missing data: it stays None and counts neither in the mean nor in the deviation. The
    result does not depend on the order of the samples, to the last bit. Raises ValueError for an unknown method.
    """
    if method not in METHODS:
        raise ValueError(f"unknown method {method!r}; choose from {', '.join(METHODS)}")
    mean, variance = moments(rewards)
    divisor = (math.sqrt(variance) if method == "grpo" else 0.0) or 1.0
    return [None if reward is None else float(Fraction(reward) - mean) / divisor for reward in rewards]


def moments(rewards: Sequence[float | None]) -> tuple[Fraction, Fraction]:
    """Return the exact mean and sample variance of the known rewards; (0, 0) for none, variance 0 for one."""
    known = [Fraction(reward) for reward in rewards if reward is not None]
    if not known:
        return Fraction(0), Fraction(0)
    mean = sum(known, Fraction(0)) / len(known)
    squares = sum(((reward - mean) ** 2 for reward in known), Fraction(0))
    return mean, squares / max(len(known) - 1, 1)
