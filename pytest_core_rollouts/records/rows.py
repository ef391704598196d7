"""The JSONL file that records live in.

The file is the only truth about a run: a row is written, locked and synced, before anybody hears of the rollout, and
every report and gate is computed from rows. What that asks of this module, and how it is met:

- Many processes write one file. `append` takes a lock on the file, so rows never interleave, whatever their size; a
  file system that cannot lock is an error, not a risk.
- A process may be killed in the middle of a row. The next `append` cuts a half row off before it writes (or ends
  a row that lacks only its newline), and a reader skips a half row at the end, and only there, with a warning.
- A disk may be full. What was written of the row is cut back, and `RecordsError` says so; the run must then stop.
- Any reader must cope. Rows are strict JSON in ASCII, one a line; nothing an agent writes can break a line or a parser.
"""

from __future__ import annotations

import dataclasses
import fcntl
import os
import stat
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from pytest_core_rollouts.records.kept_files import read_items
from pytest_core_rollouts.records.kept_folders import missing_text
from pytest_core_rollouts.records.masking import Masker
from pytest_core_rollouts.records.record import (
    ROW_START,
    ItemsMode,
    NotJSON,
    RecordsError,
    RolloutRecord,
    parse_row,
    warn,
)

__all__ = ["append", "check_writable", "effective", "read_located", "read_records", "record_at"]

# Writing


def append(
    path: Path,
    record: RolloutRecord,
    masks: Masker | None = None,
    *,
    items: ItemsMode = "inline",
    sync: bool = True,
) -> None:
    """Append one row and return when it is on disk. Folders are made as needed; any process or thread may call this.

    Without `sync` it is only the system's by then: for rows that can be made again for nothing.

    Raises RecordsError when the row could not be written whole, and the file then ends where it ended before; or when
    the disk would not take what was written.
    """
    line = record.to_line(masks, items=items)
    with _explained(path):
        fd = _opened(path)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)  # released by close
            end = _mend_tail(path, fd)
            try:
                _write(fd, line)
            except OSError:
                os.ftruncate(fd, end)
                raise
            if sync:
                fcntl.flock(fd, fcntl.LOCK_UN)  # while the disk takes this row, others may write theirs
                os.fsync(fd)
        finally:
            os.close(fd)


def _opened(path: Path) -> int:
    flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
    try:
        return os.open(path, flags, 0o666)
    except FileNotFoundError:
        path.parent.mkdir(parents=True, exist_ok=True)
        return os.open(path, flags, 0o666)


def check_writable(path: Path) -> None:
    """Make sure, before any paid work, that rows can be appended to `path`. Creates nothing that stays.

    Raises RecordsError when they cannot, or when the file holds something else than records.
    """
    with _explained(path):
        if not path.exists():
            folder = next(parent for parent in path.absolute().parents if parent.exists())
            with tempfile.TemporaryFile(dir=folder):  # a name of its own: another run may be making `path` right now
                return
        if not stat.S_ISREG(path.stat().st_mode):
            raise RecordsError(f"{path}: not a regular file; choose another file with --rollout-out")
        with path.open("r+b") as file:
            start = file.read(len(ROW_START))
    if not ROW_START.startswith(start):
        raise RecordsError(f"{path}: holds something else than rollout records; choose another file with --rollout-out")


def check_lasting(path: Path) -> None:
    """For who reads rows more than once: what a pipe held is gone by then. Raises RecordsError."""
    if path.exists() and not (path.is_file() or path.is_dir()):  # reading tells what else is wrong
        raise RecordsError(f"{path} is no regular file, and is read more than once; make a file of it")


def _write(fd: int, data: bytes) -> None:
    """Write all of `data`: one call, unless the system takes less; then the next call says why (a full disk)."""
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


def _mend_tail(path: Path, fd: int) -> int:
    """Cut off a half row that a dead writer left, or end a whole one that lacks its newline; gives the file's size."""
    end = os.fstat(fd).st_size
    if end == 0 or os.pread(fd, 1, end - 1) == b"\n":
        return end
    start, tail = end, b""
    while start and b"\n" not in tail:
        block = min(start, 1 << 16)
        start -= block
        tail = os.pread(fd, block, start) + tail
    tail = tail[tail.rfind(b"\n") + 1 :]
    if not _is_begun(tail):
        raise RecordsError(
            f"{path}: its last line is neither whole nor a rollout record, and is left alone; "
            "choose another file with --rollout-out"
        )
    try:
        parse_row(tail)
    except NotJSON:
        os.ftruncate(fd, end - len(tail))
        return end - len(tail)
    _write(fd, b"\n")
    return end + 1


def _is_begun(tail: bytes) -> bool:
    """Whether a last line without its newline is a row whose writer died, and no other file's text."""
    begun = tail.rstrip(b"\0")  # a power cut can leave a file longer than what was written
    return begun.startswith(ROW_START) or ROW_START.startswith(begun)


@contextmanager
def _explained(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise RecordsError(
            f"{path}: cannot write rollout records: {error.strerror or error}; "
            "free or mend the disk, or choose another file with --rollout-out"
        ) from error


# Reading


def read_records(path: Path, *, items: bool = True) -> Iterator[RolloutRecord]:
    """Every record of the file, in its order, one at a time. `items=False` drops trajectories as it reads.

    A half row at the very end is passed over with a RecordsWarning: its rollout is owed again. Raises RecordsError,
    naming file and line, for any other line that is no record, and for a file that cannot be read.
    """
    return (record for _, record in read_located(path, items=items))


def read_located(path: Path, *, items: bool = True) -> Iterator[tuple[int, RolloutRecord]]:
    """The same, each with the offset of its line in the file, for `record_at`."""
    offset = end = 0
    try:
        with path.open("rb") as file:  # binary: lines end at \n alone, never at U+2028 or U+0085
            for number, line in enumerate(file, 1):
                offset, end = end, end + len(line)
                if not line.strip():
                    continue
                try:
                    record = RolloutRecord.from_line(line)
                except RecordsError as error:
                    if line.endswith(b"\n") or not (isinstance(error, NotJSON) and _is_begun(line)):
                        raise RecordsError(f"{path}:{number}: {error}") from None
                    warn(f"{path}:{number}: passed over: the row was cut off")
                    return
                yield offset, _with_items(path, record) if items else dataclasses.replace(record, items=None)
    except OSError as error:
        raise RecordsError(f"{path}: cannot read rollout records: {error.strerror or error}") from error


def record_at(path: Path, offset: int) -> RolloutRecord:
    """The record whose line begins at `offset`. Raises RecordsError."""
    try:
        with path.open("rb") as file:
            file.seek(offset)
            record = RolloutRecord.from_line(file.readline())
    except OSError as error:
        raise RecordsError(f"{path}: cannot read rollout records: {error.strerror or error}") from error
    except RecordsError as error:
        raise RecordsError(f"{path}: at byte {offset}: {error}; the file was changed since it was first read") from None
    return _with_items(path, record)


def _with_items(path: Path, record: RolloutRecord) -> RolloutRecord:
    """The record with a trajectory that is kept beside it, as if it stood in the row."""
    if record.items_file is None:
        return record
    items = read_items(path, record.items_file)
    if items is None:
        warn(f"{missing_text(path, str(record.items_file['file']))}; read without its trajectory")
    return dataclasses.replace(record, items=items, items_file=None)


def effective(records: Iterable[RolloutRecord]) -> dict[str, RolloutRecord]:
    """The one row that counts for each rollout_id, in order of first appearance.

    A rollout may have several rows: a resume ran it again, or graded it anew. Rows of other work than the newest (see
    `RolloutRecord.work`) do not count; of the rest the first graded one does, else the newest.
    """
    rows: dict[str, RolloutRecord] = {}
    graded: dict[tuple[str, str], RolloutRecord] = {}
    for record in records:
        work = record.rollout_id, record.work
        if record.graded:
            graded.setdefault(work, record)
        rows[record.rollout_id] = graded.get(work, record)
    return rows
