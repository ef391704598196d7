"""Records: one row of JSONL per rollout."""

from __future__ import annotations

from pytest_core_rollouts.records.errors import RecordsError, RecordsWarning
from pytest_core_rollouts.records.record import SCHEMA, RolloutRecord, Status, count_planned
from pytest_core_rollouts.records.rows import (
    append,
    check_lasting,
    check_writable,
    effective,
    read_located,
    read_records,
    record_at,
)

__all__ = [
    "SCHEMA",
    "RecordsError",
    "RecordsWarning",
    "RolloutRecord",
    "Status",
    "append",
    "check_lasting",
    "check_writable",
    "count_planned",
    "effective",
    "read_located",
    "read_records",
    "record_at",
]
