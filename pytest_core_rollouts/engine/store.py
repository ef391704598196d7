"""The rows of a run as one process writes and reads them: masked, hidden, counted, beside what else is kept."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from pytest_core_rollouts.engine.caps import Caps
from pytest_core_rollouts.engine.resume import Resumed
from pytest_core_rollouts.records import RecordsError, RolloutRecord, append, effective, read_located
from pytest_core_rollouts.records.hiding import hide_reasons
from pytest_core_rollouts.records.item_files import keep_items
from pytest_core_rollouts.records.kept_files import keep_files
from pytest_core_rollouts.records.masking import Masker
from pytest_core_rollouts.tasks.matrix import Rollout


@dataclass
class Books:
    """What a run writes to its JSONL, and reads in it."""

    out: Path
    run_id: str
    resumed: Resumed | None = None
    """The rows that the file had of this run before this session."""
    items: str = "inline"
    hide_expected: bool = False
    caps: Caps = field(default_factory=Caps)
    masks: Masker = field(default_factory=lambda: Masker(()))
    planned: Mapping[tuple[str, str], Mapping[str, int]] = field(default_factory=dict)
    """See `records.count_planned`."""
    on_broken: Callable[[str], None] = lambda reason: None
    """Told once when a row could not be written: no further rollout is worth its price."""
    broken: str | None = None

    def save(self, record: RolloutRecord, *, ran: bool = True) -> None:
        """Write a row. `ran`: whether it was paid for, and is not one that can be made again for nothing.

        Raises RecordsError.
        """
        if self.hide_expected:
            record = replace(record, reasons=hide_reasons(record.reasons))
        planned = self.planned.get((str(record.agent["slug"]), record.task), {})
        try:
            if self.items == "files" and record.items is not None:
                kept = keep_items(self.out, record.rollout_id, record.attempt, record.items, self.masks)
                record = replace(record, items=None, items_file=kept)
            append(self.out, replace(record, planned=planned), self.masks, sync=ran)
        except RecordsError as error:
            self._break(str(error))
            raise
        if ran and record.session_id is not None:
            self.caps.spend(record.tokens)

    def keep_files(self, rollout: Rollout, attempt: int, artifacts: Mapping[str, bytes]) -> Sequence[Mapping[str, Any]]:
        """Keep the files that an agent made. Raises RecordsError."""
        try:
            return keep_files(self.out, rollout.rollout_id, attempt, artifacts, self.masks)
        except RecordsError as error:
            self._break(str(error))
            raise

    def _break(self, reason: str) -> None:
        if self.broken is None:
            self.broken = reason
            self.on_broken(reason)

    # ---- reading; always without Items

    def rows(self) -> Iterator[tuple[RolloutRecord, bool]]:
        """The rows of this run in its file, which may hold other runs too; with each, whether this session wrote it."""
        before = frozenset() if self.resumed is None else self.resumed.offsets
        if self.out.exists():
            for offset, record in read_located(self.out, items=False):
                if record.run_id == self.run_id:
                    yield record, offset not in before

    def finished(self, rollout_ids: Collection[str]) -> dict[str, RolloutRecord]:
        """Of these rollouts, those that this session has finished already, in another process."""
        if not rollout_ids:
            return {}
        return effective(record for record, new in self.rows() if new and record.rollout_id in rollout_ids)
