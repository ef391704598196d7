"""The JSONL file that records live in.

The file is the only source of a run's results: a row is written, locked and synced before its rollout is reported, and
every report and gate is computed from rows. What this module must handle, and how:

- Several processes write one file. `append` locks the file, so rows of any size never interleave. A file system that
  can't lock files is an error.
- A process may be killed in the middle of a row. The next `append` removes a partial row before it writes (or adds the
  newline if only that is missing). A reader skips a partial row, only at the end of the file, with a warning.
- A disk may be full. What was written of the row is removed, and RecordsError is raised; the run must then stop.
- Any reader must be able to read the file. Rows are strict JSON in ASCII, one per line, whatever an agent writes.
"""

from __future__ import annotations

import dataclasses
import fcntl
import os
import stat
import tempfile
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from pytest_core_rollouts.records.kept_files import read_items
from pytest_core_rollouts.records.kept_folders import missing_text
from pytest_core_rollouts.records.masking import Masker
from pytest_core_rollouts.records.record import (
    COLUMNS,
    ROW_START,
    ContradictingRecords,
    ItemsMode,
    NotJSON,
    RecordsError,
    RecordsWarning,
    RolloutRecord,
    parse_row,
)

__all__ = [
    "EffectiveRow",
    "append",
    "check_writable",
    "effective_rows",
    "file_order",
    "read_located",
    "read_records",
    "record_at",
    "require_agreement",
    "warn",
]

# Writing


def append(
    path: Path,
    record: RolloutRecord,
    masks: Masker | None = None,
    *,
    items: ItemsMode = "inline",
    sync: bool = True,
) -> None:
    """Append one row and return when it is on disk. Creates folders as needed; any process or thread may call this.

    `sync=False` returns when the operating system has the row: for rows that can be made again at no cost.

    Raises RecordsError if the row could not be written whole (the file is then as long as before), or if the disk did
    not accept it.
    """
    line = record.to_line(masks, items=items)
    with _translate_os_errors(path):
        fd = _open(path)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)  # released by close
            end = _repair_tail(path, fd)
            try:
                _write(fd, line)
            except OSError:
                os.ftruncate(fd, end)
                raise
            if sync:
                fcntl.flock(fd, fcntl.LOCK_UN)  # others may write while the disk stores this row
                os.fsync(fd)
        finally:
            os.close(fd)


def _open(path: Path) -> int:
    flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
    try:
        return os.open(path, flags, 0o666)
    except FileNotFoundError:
        path.parent.mkdir(parents=True, exist_ok=True)
        return os.open(path, flags, 0o666)


def check_writable(path: Path) -> None:
    """Check, before any paid work, that rows can be appended to `path`. Leaves no new file.

    Raises RecordsError if they can't, or if the file contains something other than records.
    """
    with _translate_os_errors(path):
        if not path.exists():
            folder = next(parent for parent in path.absolute().parents if parent.exists())
            with tempfile.TemporaryFile(dir=folder):  # not `path` itself: another run may be creating it right now
                return
        if not stat.S_ISREG(path.stat().st_mode):
            raise RecordsError(f"{path}: not a regular file; choose another file with --rollout-out")
        with path.open("r+b") as file:
            start = file.read(len(ROW_START))
    if not ROW_START.startswith(start):
        raise RecordsError(f"{path}: not a file of rollout records; choose another file with --rollout-out")


def require_regular_file(path: Path) -> None:
    """Raise RecordsError for a pipe or a device: rows are read more than once, and a pipe can only be read once."""
    if path.exists() and not (path.is_file() or path.is_dir()):  # reading a folder raises its own error
        raise RecordsError(f"{path}: not a regular file, and it is read more than once; save it as a file")


def _write(fd: int, data: bytes) -> None:
    """Write all of `data`, usually in one call. If the system writes less, the next call raises why (a full disk)."""
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


def _repair_tail(path: Path, fd: int) -> int:
    """Remove a partial last row, or add the newline that a whole one lacks. Returns the size of the file."""
    end = os.fstat(fd).st_size
    if end == 0 or os.pread(fd, 1, end - 1) == b"\n":
        return end
    start, tail = end, b""
    while start and b"\n" not in tail:
        block = min(start, 1 << 16)
        start -= block
        tail = os.pread(fd, block, start) + tail
    tail = tail[tail.rfind(b"\n") + 1 :]
    if not _is_partial_row(tail):
        raise RecordsError(
            f"{path}: its last line is neither complete nor a rollout record; choose another file with --rollout-out"
        )
    try:
        parse_row(tail)
    except NotJSON:
        os.ftruncate(fd, end - len(tail))
        return end - len(tail)
    _write(fd, b"\n")
    return end + 1


def _is_partial_row(tail: bytes) -> bool:
    """Return True if a last line without a newline is a row whose writer was killed, not some other text."""
    written = tail.rstrip(b"\0")  # a power cut can leave a file longer than what was written
    return written.startswith(ROW_START) or ROW_START.startswith(written)


@contextmanager
def _translate_os_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise RecordsError(
            f"{path}: cannot write rollout records: {error.strerror or error}; "
            "free or repair the disk, or choose another file with --rollout-out"
        ) from error


# Reading


def read_records(path: Path | str, *, items: bool = True) -> Iterator[RolloutRecord]:
    """Yield every record of the file in order. `items=False` drops trajectories while reading.

    A partial row at the very end is skipped with a RecordsWarning: its rollout has no result. Raises RecordsError, with
    file and line, for any other line that is not a record, and for a file that can't be read.
    """
    return (record for _, record in read_located(Path(path), items=items))


def read_located(path: Path, *, items: bool = True) -> Iterator[tuple[int, RolloutRecord]]:
    """Yield the same records, each with the offset in bytes of its line, for `record_at`."""
    offset = end = 0
    try:
        with path.open("rb") as file:  # binary: lines end only at \n, never at U+2028 or U+0085
            for number, line in enumerate(file, 1):
                offset, end = end, end + len(line)
                if not line.strip():
                    continue
                try:
                    record = RolloutRecord.from_line(line)
                except RecordsError as error:
                    if line.endswith(b"\n") or not (isinstance(error, NotJSON) and _is_partial_row(line)):
                        raise RecordsError(f"{path}:{number}: {error}") from None
                    warn(f"{path}:{number}: skipped a row that was cut off")
                    return
                yield offset, _with_items(path, record) if items else dataclasses.replace(record, items=None)
    except OSError as error:
        raise RecordsError(f"{path}: cannot read rollout records: {error.strerror or error}") from error


def record_at(path: Path, offset: int) -> RolloutRecord:
    """Return the record whose line begins at `offset` (bytes). Raises RecordsError."""
    try:
        with path.open("rb") as file:
            file.seek(offset)
            record = RolloutRecord.from_line(file.readline())
    except OSError as error:
        raise RecordsError(f"{path}: cannot read rollout records: {error.strerror or error}") from error
    except RecordsError as error:
        raise RecordsError(f"{path}: at byte {offset}: {error}; the file has changed since it was first read") from None
    return _with_items(path, record)


def _with_items(path: Path, record: RolloutRecord) -> RolloutRecord:
    """Return the record with its trajectory, from the row or from the file that the row names."""
    if record.items_file is None:
        return record
    items = read_items(path, record.items_file)
    if items is None:
        warn(f"{missing_text(path, str(record.items_file['file']))}; read without its trajectory")
    return dataclasses.replace(record, items=items, items_file=None)


def file_order(path: Path, records: Iterable[RolloutRecord]) -> tuple[str, int, str]:
    """Return a key that sorts files by the time of their newest row: what counts must not depend on who names them how.

    Of copies of one file that were made at different times, the longer one is newer.
    """
    starts = [record.started_at or "" for record in records]
    return max(starts, default=""), len(starts), str(path)


def require_agreement(rows: Iterable[tuple[Path, RolloutRecord]]) -> None:
    """Raise ContradictingRecords if files can't be merged.

    Two may have different rewards for the same work of one rollout, or be shards of one run that was divided in
    different ways.

    Otherwise the figures would depend on the order of the files. Within a file the first graded row counts.
    """
    found: dict[tuple[str, str], tuple[Path, float]] = {}
    splits: dict[str, dict[Path, set[str]]] = {}
    for path, record in rows:
        if record.split is not None:
            splits.setdefault(record.run_id, {}).setdefault(path, set()).add(record.split)
        if record.reward is None:
            continue
        first, reward = found.setdefault((record.rollout_id, record.work), (path, record.reward))
        if first != path and reward != record.reward:
            raise ContradictingRecords(
                f"{first} and {path} contradict each other: rollout {record.rollout_id} has the rewards {reward:g} and "
                f"{record.reward:g}; leave out one of the files"
            )
    for run_id, of_files in splits.items():
        (first, known), *others = of_files.items()
        for path, other in others:
            if not known & other:
                raise ContradictingRecords(
                    f"{first} and {path} are shards of run {run_id} that was divided in different ways; run all shards "
                    "with the same tasks, agents, samples, number of shards and --rollout-plan-from"
                )


class EffectiveRow(NamedTuple):
    """The row that counts for a rollout, and its position among all rows, from 0."""

    position: int
    record: RolloutRecord


def effective_rows(records: Iterable[RolloutRecord]) -> dict[str, EffectiveRow]:
    """Return the row that counts for each rollout_id, in order of first appearance.

    A rollout has several rows if a resume ran it or graded it again. Rows of other work than its newest row (see
    `RolloutRecord.work`) do not count. Of the rest the first graded row counts, or the newest if none is graded.
    """
    rows: dict[str, EffectiveRow] = {}
    graded: dict[tuple[str, str], EffectiveRow] = {}
    for position, record in enumerate(records):
        row = EffectiveRow(position, record)
        work = record.rollout_id, record.work
        if record.graded:
            graded.setdefault(work, row)
        rows[record.rollout_id] = graded.get(work, row)
    return rows


def warn(text: str) -> None:
    """Issue a RecordsWarning. With `-W error` it is only shown: what a killed writer left must not stop anybody."""
    try:
        warnings.warn(text, RecordsWarning, stacklevel=4)
    except RecordsWarning:
        with warnings.catch_warnings():
            warnings.simplefilter("always", RecordsWarning)
            warnings.warn(text, RecordsWarning, stacklevel=4)


# Rows in memory

_NO_VALUES: dict[type, Any] = {dict: {}, list: ()}
_LEFT_OUT: dict[str, Any] = {
    name: _NO_VALUES.get(column.types[0]) if column.types and type(None) not in column.types else None
    for name, column in COLUMNS.items()
    if column.large
}
_SHARED = tuple(name for name, column in COLUMNS.items() if column.shared)


def slim(record: RolloutRecord, **changes: Any) -> RolloutRecord:
    """Return the record without its large fields, so that thousands fit in memory; `changes` replaces others."""
    if not changes and all(getattr(record, name) == value for name, value in _LEFT_OUT.items()):
        return record
    return dataclasses.replace(record, **_LEFT_OUT, **changes)


def slim_rows(records: Iterable[RolloutRecord]) -> Iterator[RolloutRecord]:
    """Yield each record slim. Values that it has in common with the first of its task and agent are held once."""
    first: dict[tuple[str, str, str], RolloutRecord] = {}
    for record in records:
        like = first.setdefault((record.run_id, record.task, str(record.agent.get("digest"))), record)
        if record is like or record.settings is like.settings:
            yield slim(record)
        else:
            same = {name: getattr(like, name) for name in _SHARED if getattr(record, name) == getattr(like, name)}
            yield slim(record, **same)


def count_planned(rollouts: Iterable[tuple[str, str]]) -> dict[tuple[str, str], dict[str, int]]:
    """Count what a run is going to do, given the (agent, task) of every rollout selected. Each row carries it.

    Returns for each (agent, task): {"run": all rollouts selected, "agent": those of this agent, "tasks": this agent's
    tasks, "group": the samples of this task and agent}. With it a report made only from rows knows what never ran.
    """
    groups: dict[tuple[str, str], int] = {}
    for key in rollouts:
        groups[key] = groups.get(key, 0) + 1
    of_agent: dict[str, list[int]] = {}
    for (agent, _), samples in groups.items():
        of_agent.setdefault(agent, []).append(samples)
    total = sum(groups.values())
    return {
        key: {"run": total, "agent": sum(of_agent[key[0]]), "tasks": len(of_agent[key[0]]), "group": samples}
        for key, samples in groups.items()
    }
