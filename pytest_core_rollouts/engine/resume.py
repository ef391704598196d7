"""A run that is resumed: which rows are reused, which answers are graded again, and what has to run.

A row is reused if it has a reward and the same work would be done today: the same input, agent, labels, limit and
network. If only the grading changed, or the grader failed, the recorded answer is graded again. Everything else runs.
An attempt whose Session is known to be deleted is followed by the next one. If no Session is known, the same attempt
is made again with the same key, so that the Core returns a Session that a killed process left, instead of a second one.
"""

from __future__ import annotations

import glob
import shlex
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from functools import cached_property
from pathlib import Path
from typing import Literal

from pytest_core_rollouts.records.jsonable import jsonable
from pytest_core_rollouts.records.kept_files import missing_file
from pytest_core_rollouts.records.kept_folders import missing_text
from pytest_core_rollouts.records.record import RecordsError, RecordsWarning, RolloutRecord
from pytest_core_rollouts.records.rows import read_located, record_at, slim
from pytest_core_rollouts.tasks.matrix import RUN_ID, Chosen, Rollout, name_rollouts, run_began, slug

_MARK = ".run"
"""How the name of an empty file ends that names a run."""
MASKED = "an answer can't be graded again, because a known secret was masked in it or in a kept file; it is run again"


@dataclass(frozen=True)
class Verdict:
    """What a resume does with a rollout: reuses its row, grades its answer again, or runs it, starting with `attempt`.

    `why`: what changed since a row that had a reward.
    """

    action: Literal["reuse", "grade", "run"]
    offset: int | None = None
    """Of the row, in the file."""
    counts: bool = True
    """Whether the row is the one that counts in the file as it is."""
    attempt: int = 1
    why: str | None = None
    lacking: str | None = None
    """Why the row's answer can't be graded again: files that the agent left are missing, or masked."""
    core: str | None = None
    """The Core on which the row that is reused or graded again was made."""


@dataclass(frozen=True)
class Resumed:
    """The rows of one run that were in its file when it was resumed, by rollout id, each with its offset in bytes."""

    path: Path
    run_id: str
    rows: Mapping[str, Sequence[tuple[int, RolloutRecord]]] = field(repr=False)
    truncated_tail: str | None = None
    """What was skipped at the end of the file."""

    @classmethod
    def open(cls, path: Path, run_id: str | None = None) -> Resumed:
        """Read the rows of the run, or of the newest one in the file. Raises RecordsError.

        A run that was killed before its first row left a file of its name, or a mark (see `mark_run`).
        """
        rows: dict[str, list[tuple[int, RolloutRecord]]] = {}
        if not path.is_file():
            raise RecordsError(f"{path}: there is no such file to resume")
        marked = _marked_runs(path)
        newest = run_id
        began: dict[str, tuple[str, str]] = {}
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", RecordsWarning)
            for offset, record in read_located(path, items=False):
                if record.run_id not in began:
                    began[record.run_id] = _began(record.run_id, record.started_at or "")
                    if run_id is None and (newest is None or began[record.run_id] > began[newest]):
                        newest = record.run_id
                        rows.clear()
                if record.run_id == newest:
                    rows.setdefault(record.rollout_id, []).append((offset, slim(record)))
        if run_id is not None and not rows and run_id not in marked:
            raise RecordsError(f"{path}: holds no rows of run {run_id}")
        if run_id is None and marked and (newest is None or max(marked.values()) > began[newest]):
            newest = max(marked, key=marked.__getitem__)
            rows.clear()
        if newest is None and RUN_ID.fullmatch(path.stem):
            newest = path.stem
        if newest is None:
            raise RecordsError(f"{path}: holds no rows, and its name is not a run's; run without --rollout-resume")
        if newest != slug(newest, dots=False):  # folders of kept files are named by it, and the file may be foreign
            raise RecordsError(f"{path}: invalid run id {newest!r} in its rows; run without --rollout-resume")
        return cls(path, newest, rows, str(caught[-1].message) if caught else None)

    # ---- for xdist's workers, which get what the controller read

    def dump(self, file: Path) -> None:
        """Write the rows to a file for `load`; without trajectories it is far smaller than the JSONL."""
        with file.open("wb") as opened:
            for offset, record in (row for rows in self.rows.values() for row in rows):
                opened.write(b"%d %s" % (offset, record.to_line()))

    @classmethod
    def load(cls, file: Path, path: Path, run_id: str) -> Resumed:
        rows: dict[str, list[tuple[int, RolloutRecord]]] = {}
        with file.open("rb") as opened:
            for line in opened:
                offset, _, row = line.partition(b" ")
                record = RolloutRecord.from_line(row)
                rows.setdefault(record.rollout_id, []).append((int(offset), record))
        return cls(path, run_id, rows)

    # ---- one rollout

    @cached_property
    def offsets(self) -> frozenset[int]:
        """The offsets of the rows. A row with another offset was written after the resume started."""
        return frozenset(offset for rows in self.rows.values() for offset, _ in rows)

    def verdict(self, rollout: Rollout, *, marked: bool = True) -> Verdict:
        """Return what to do with a rollout. `marked`: whether it is known if the rollout is expected to fail."""
        rows = self.rows.get(rollout.rollout_id, ())
        changed = [(offset, record, changes(record, rollout)) for offset, record in rows]
        same = [(offset, record) for offset, record, what in changed if not what]
        for offset, record in same:
            if record.graded and not _graded_otherwise(record, rollout, marked=marked):
                counts = record.work == rows[-1][1].work
                return Verdict("reuse", offset, counts=counts, core=record.settings.get("core"))
        lacking = None
        for offset, record in reversed(same):
            if record.masked and record.answered and not record.graded:
                lacking = MASKED
            elif record.graded or record.answered:
                missing = None if record.masked else missing_file(self.path, record.outputs)  # it keeps its reward
                if missing is None:
                    return Verdict("grade", offset, core=record.settings.get("core"))
                lacking = missing_text(self.path, missing)
        attempt = max((record.attempt + (record.session_id is not None) for _, record in rows), default=1)
        lost = [", ".join(what) or "kept files" for _, record, what in changed if record.graded]
        return Verdict("run", attempt=max(1, attempt), why=lost[-1] if lost else None, lacking=lacking)

    def source(self, rollout: Rollout) -> RolloutRecord:
        """Return the whole row whose answer is graded again. Raises RecordsError."""
        offset = self.verdict(rollout).offset
        assert offset is not None, "only a rollout with a row is graded again"
        return record_at(self.path, offset)

    def reused(self, verdict: Verdict) -> RolloutRecord:
        """Return the row that is reused, without its Items. Raises RecordsError."""
        assert verdict.offset is not None
        return replace(record_at(self.path, verdict.offset), items=None)


def mark_run(path: Path, run_id: str) -> None:
    """Name a run that has no row yet next to its JSONL, before its first Session, so that it can be resumed.

    A file with the name of the run needs no mark. Raises OSError.
    """
    if path.stem != run_id:
        _mark(path, run_id).touch()


def unmark_run(path: Path, run_id: str) -> None:
    """Remove the mark of a run: it has rows, so a mark that can't be removed changes nothing."""
    with suppress(OSError):
        _mark(path, run_id).unlink(missing_ok=True)


def _marked_runs(path: Path) -> dict[str, tuple[str, str]]:
    """Return the ids of the runs whose marks are next to the file, each with when it began."""
    found = {}
    for mark in path.parent.glob(_mark(Path(glob.escape(path.name)), "*").name):
        run_id = mark.name.removesuffix(_MARK).rpartition(".")[2]
        with suppress(OSError):  # another process has just removed it
            made = datetime.fromtimestamp(mark.stat().st_mtime, timezone.utc).isoformat()
            found[run_id] = _began(run_id, made)
    return found


def _began(run_id: str, first_row: str) -> tuple[str, str]:
    """Return a key by which runs are sorted in time. `first_row`: the time of its first row, for an id without time."""
    began = run_began(run_id)
    return first_row if began is None else began.isoformat(), run_id


def _mark(path: Path, run_id: str) -> Path:
    return path.with_name(f".{path.name}.{run_id}{_MARK}")


def changes(record: RolloutRecord, rollout: Rollout) -> list[str]:
    """Return the settings, except those of grading, in which a row differs from the rollout today."""
    asked = {"timeout": rollout.timeout, "network": rollout.network.wire()}
    found = {
        "input": record.input_digest != rollout.task.input_digest,
        "agent": record.agent.get("digest") != rollout.agent.digest,
        "labels": dict(record.labels) != dict(rollout.labels),
        **{name: record.settings.get(name) != jsonable(value) for name, value in asked.items()},
        "outputs": _kept_otherwise(record, rollout),
    }
    return [name for name, differs in found.items() if differs]


def _kept_otherwise(record: RolloutRecord, rollout: Rollout) -> bool:
    """Whether the files that are fetched for the grader have changed since."""
    outputs = rollout.task.outputs
    return outputs is not None and record.settings.get("outputs") != jsonable(outputs)


def _graded_otherwise(record: RolloutRecord, rollout: Rollout, *, marked: bool) -> bool:
    if marked and record.settings.get("xfail") != rollout.xfail:
        return True
    return record.grading_digest != rollout.task.grading_digest


@dataclass
class Plan:
    """What a resumed session does with each selected rollout, by rollout id."""

    selected: Mapping[str, Chosen]
    verdicts: Mapping[str, Verdict]
    core: str | None = None
    """The Core of this session; None if it has none."""

    @property
    def to_run(self) -> int:
        """The number of rollouts that have to run, for which a Core is needed."""
        return self._count("run")

    def lines(self) -> Iterator[str]:
        """Yield the lines that are printed before the first rollout."""
        graded = self._count("grade")
        yield (
            f"resume: {self._count('reuse')} of {len(self.verdicts)} rollouts reused, "
            + (f"{graded} graded again, " if graded else "")
            + f"{self.to_run} to run"
        )
        if others := Counter(one.core for one in self.verdicts.values() if one.core not in (None, self.core)):
            cores = ", ".join(sorted(map(str, others)))
            if self.core is not None:
                yield f"resume: {others.total()} of them ran on another Core ({cores}), which counts as the same work"
        yield from sorted({f"resume: {verdict.lacking}" for verdict in self.verdicts.values() if verdict.lacking})
        whys = sorted({verdict.why for verdict in self.verdicts.values() if verdict.why})
        for why in whys:
            again = [self.selected[rollout_id] for rollout_id, one in self.verdicts.items() if one.why == why]
            yield from (f"resume: to run again, changed since ({why}): {line}" for line in name_rollouts(again))

    def _count(self, action: str) -> int:
        return sum(verdict.action == action for verdict in self.verdicts.values())


def resume_command(args: Sequence[str], path: Path, run_id: str, here: Path) -> str:
    """Return the command that continues a run, for a shell in the folder `here`. `args`: the arguments of pytest."""
    file = path.relative_to(here) if path.is_relative_to(here) else path
    named = str(file) if path.stem == run_id else f"{file}::{run_id}"  # the file may hold other runs, or will
    return shlex.join(["pytest", *_without(args, "--rollout-resume", "--rollout-out"), "--rollout-resume", named])


def _without(args: Sequence[str], *options: str) -> Iterator[str]:
    """Yield the arguments without some options and their values."""
    rest = iter(args)
    for arg in rest:
        if arg in options:
            next(rest, None)
        elif arg.partition("=")[0] not in options:
            yield arg
