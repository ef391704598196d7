"""The rows that a process writes and reads: appended to a JSONL file, or handed to a function of the caller's."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from pytest_core_rollouts.engine.caps import Caps
from pytest_core_rollouts.engine.resume import Resumed
from pytest_core_rollouts.records.kept_files import keep_files, keep_items
from pytest_core_rollouts.records.masking import Masker, hide_reasons
from pytest_core_rollouts.records.record import RecordsError, RolloutRecord
from pytest_core_rollouts.records.rows import append, check_writable, effective_rows, read_located
from pytest_core_rollouts.records.why import why_text
from pytest_core_rollouts.tasks.matrix import Rollout
from pytest_core_rollouts.tasks.task_settings import RUN_KEYS

Plan = Mapping[tuple[str, str], Mapping[str, int]]
"""What a run planned, by agent slug and task id. See `records.count_planned`."""


class RowStore:
    """Appends rows to a JSONL file and reads them back.

    Known secrets are masked before a row is written, and expected values are left out if `hide_expected` is set.
    Tokens of rows written by `save` count towards `caps`.

    Other processes, and other runs, may append to the same file. Safe to use from several threads.
    """

    def __init__(
        self,
        path: Path | None = None,
        *,
        also_to: Callable[[RolloutRecord], None] | None = None,
        resumed: Resumed | None = None,
        items: str = "inline",
        hide_expected: bool = False,
        caps: Caps | None = None,
        on_failure: Callable[[str], None] = lambda reason: None,
    ) -> None:
        """
        * `path`: the file. None: rows are not kept, except by `also_to`.
        * `also_to`: is called with each row, masked, after it was written.
        * `resumed`: the rows that a resumed run already had in the file.
        * `items`: where trajectories go. "inline" keeps them in the row, "files" in files next to the JSONL.
        * `on_failure`: is called once, with the reason, when a row or file can't be written.
        """
        self.path = path
        self.caps = caps or Caps()
        self.failure: str | None = None
        """Why a row or file could not be written. The run must stop: further results would be lost too."""
        self._also_to = also_to
        self._resumed_offsets = frozenset() if resumed is None else resumed.offsets
        self._items = items
        self._hide_expected = hide_expected
        self._on_failure = on_failure
        self._masker = Masker(())
        self._secrets: frozenset[str] = frozenset()
        self._plans: dict[str, Plan] = {}
        self._split: str | None = None
        # An agent's program may have its key from elsewhere, so they are masked whether this run uses them or not.
        self.mask([value for name in RUN_KEYS if (value := os.environ.get(name))])

    def set_plan(self, run_id: str, planned: Plan, split: str | None = None) -> None:
        """Set what the rows of a run record in `planned` and `split`. An empty plan is forgotten."""
        self._split = split
        if planned:
            self._plans[run_id] = planned
        else:
            self._plans.pop(run_id, None)

    def task_count(self, run_id: str) -> int:
        """Return how many tasks a run planned; 0 if its plan is not known."""
        return len({task_id for _, task_id in self._plans.get(run_id, {})})

    def task_counts(self, run_id: str) -> Mapping[str, int]:
        """Return how many tasks a run planned for each agent, by its slug; empty if its plan is not known."""
        return Counter(agent for agent, _ in self._plans.get(run_id, {}))

    def mask(self, secrets: Collection[str]) -> None:
        """Mask these values too from now on. Rows already written stay as they are."""
        if new := frozenset(secrets) - self._secrets:
            self._secrets |= new
            self._masker = Masker(sorted(self._secrets))

    def masked(self, text: str) -> str:
        """A text for people, without secrets."""
        return self._masker.message(text)

    def explain(self, record: RolloutRecord, note: str | None = None) -> RolloutRecord:
        """Return the record with its `why`, without secrets and hidden values. `note`: the note of its grade."""
        why = why_text(record, note=note, masked=self.masked, hide_expected=self._hide_expected)
        return record if record.why == why else replace(record, why=why)

    # ---- writing

    def check_writable(self) -> None:
        """Raise RecordsError if rows can't be appended to the file. Creates nothing."""
        if self.path is not None:
            check_writable(self.path)

    def save(self, record: RolloutRecord, *, ran: bool = True) -> None:
        """Append a row, and return when it is on disk.

        With `ran=False` the row is not synced to disk and its tokens are not counted. Use it for rows that can be
        recreated for free, such as a copy of an earlier row.

        Raises RecordsError if the row could not be written.
        """
        if record.reasons or record.why == why_text(record):  # what made it may not have masked or hidden anything
            record = self.explain(record)
        if self._hide_expected:
            record = replace(record, reasons=hide_reasons(record.reasons))
        planned = self._plans.get(record.run_id, {}).get((str(record.agent["slug"]), record.task), {})
        record = replace(record, planned={**planned, **record.planned}, split=self._split)
        try:
            if self.path is not None:
                self._append(self.path, record, sync=ran)
            if self._also_to is not None:
                self._hand_over(record)
        except RecordsError as error:
            self.mark_failed(str(error))
            raise
        if ran and record.session_id is not None:  # earlier attempts are counted when they end
            base_url = record.settings.get("base_url")
            self.caps.spend_attempt(str(record.agent["slug"]), record.harness, record.model, base_url, record.usage)

    def save_files(self, rollout: Rollout, attempt: int, artifacts: Mapping[str, bytes]) -> Sequence[Mapping[str, Any]]:
        """Save the files that an agent produced, and return the row's `outputs`.

        Raises RecordsError if they could not be written.
        """
        if self.path is None:
            return ()
        try:
            return keep_files(self.path, rollout.rollout_id, attempt, artifacts, self._masker)
        except RecordsError as error:
            self.mark_failed(str(error))
            raise

    def mark_failed(self, reason: str) -> None:
        """Record that results can no longer be written. Only the first reason counts."""
        if self.failure is None:
            self.failure = reason
            self._on_failure(reason)

    def _append(self, path: Path, record: RolloutRecord, *, sync: bool) -> None:
        if self._items == "files" and record.items is not None:
            kept = keep_items(path, record.rollout_id, record.attempt, record.items, self._masker)
            record = replace(record, items=None, items_file=kept)
        append(path, record, self._masker, sync=sync)

    def _hand_over(self, record: RolloutRecord) -> None:
        """Hand the row to the caller's function. What it raises is a row that could not be written."""
        assert self._also_to is not None
        try:
            self._also_to(RolloutRecord.from_line(record.to_line(self._masker)))
        except Exception as error:
            raise RecordsError(f"save: {type(error).__name__}: {error} (row of {record.rollout_id})") from error

    # ---- reading

    def rows(self, run_id: str) -> Iterator[tuple[RolloutRecord, bool]]:
        """Yield a run's rows without trajectories, each with whether this session wrote it."""
        if self.path is None or not self.path.exists():
            return
        for offset, record in read_located(self.path, items=False):
            if record.run_id == run_id:
                yield record, offset not in self._resumed_offsets

    def finished(self, run_id: str, rollout_ids: Collection[str]) -> dict[str, RolloutRecord]:
        """Return the rows of those `rollout_ids` that this session has finished, in whichever process."""
        if not rollout_ids:
            return {}
        new = (record for record, is_new in self.rows(run_id) if is_new)
        rows = effective_rows(record for record in new if record.rollout_id in rollout_ids)
        return {rollout_id: row.record for rollout_id, row in rows.items()}
