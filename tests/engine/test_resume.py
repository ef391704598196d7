"""What a resume does with rows: which are reused, which are graded again, what runs and as which attempt."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from pytest_core_rollouts.engine.resume import (
    MASKED,
    Resumed,
    Verdict,
    changes,
    mark_run,
    resume_command,
    unmark_run,
)
from pytest_core_rollouts.grading.answers import Answer, Grade
from pytest_core_rollouts.records.record import RecordsError, RolloutRecord
from pytest_core_rollouts.records.rows import append
from pytest_core_rollouts.rollout.attempt_state import AttemptState, lost_record
from pytest_core_rollouts.tasks.matrix import Agent, Rollout
from pytest_core_rollouts.tasks.task_settings import Network
from tests.support.rollouts import RUN_ID, TASK, plan
from tests.support.tables import rows


def row(
    reward: float | None = 1.0, *, rollout: Rollout | None = None, attempt: int = 1, **fields: Any
) -> RolloutRecord:
    """A row that was written for the rollout as it was then."""
    progress = AttemptState(rollout or plan(), attempt, session_id="s1", answer=Answer(value={"n": 1}))
    if reward is not None:
        progress.grade = Grade(reward)
    status: Any = fields.pop("status", "error" if reward is None else "completed")
    return dataclasses.replace(progress.record(status, reward, fields.pop("error", None), {}), **fields)


def resumed(folder: Path, *rows: RolloutRecord) -> Resumed:
    path = folder / "r.jsonl"
    path.unlink(missing_ok=True)
    for one in rows:
        append(path, one)
    return Resumed.open(path)


def verdict(folder: Path, *rows: RolloutRecord, today: Rollout | None = None) -> Verdict:
    """The verdict, with the row's number in place of its offset."""
    found = resumed(folder, *rows)
    ours = found.verdict(today or plan())
    places = sorted(found.offsets)
    return ours if ours.offset is None else dataclasses.replace(ours, offset=places.index(ours.offset))


ERROR = row(None, error="503")
UNGRADED = row(None, error="the grader raised", timings={"create": 0.1, "turn": 1.0, "fetch": 0.1})


# ---- rows of the same work


@rows("rewarded", [row(1.0), row(0.0), row(0.5), row(0.0, status="timeout"), row(0.0, status="failed")])
def test_any_reward_is_reused(tmp_path: Path, rewarded: RolloutRecord) -> None:
    assert verdict(tmp_path, rewarded) == Verdict("reuse", 0)


@rows("status", ["error", "failed", "cancelled"])
def test_without_a_reward_the_next_attempt_runs(tmp_path: Path, status: str) -> None:
    assert verdict(tmp_path, row(None, status=status)) == Verdict("run", attempt=2)


def test_an_attempt_without_a_session_is_made_again_with_its_key(tmp_path: Path) -> None:
    assert verdict(tmp_path, dataclasses.replace(ERROR, session_id=None)) == Verdict("run", attempt=1)
    spent = row(None, attempt=3)
    assert verdict(tmp_path, spent, dataclasses.replace(ERROR, session_id=None)) == Verdict("run", attempt=4)


def test_a_rollout_whose_worker_died_runs_again(tmp_path: Path) -> None:
    assert verdict(tmp_path, lost_record(plan(), "its worker died 2 times")) == Verdict("run", attempt=1)


def test_a_rollout_without_rows_runs(tmp_path: Path) -> None:
    assert verdict(tmp_path, row(1.0), today=plan(sample=1)) == Verdict("run", attempt=1)


def test_the_first_reward_counts(tmp_path: Path) -> None:
    assert verdict(tmp_path, ERROR, row(0.0, attempt=2), row(1.0, attempt=3), ERROR) == Verdict("reuse", 1)


def test_an_answer_that_could_not_be_graded_is_graded_again(tmp_path: Path) -> None:
    assert verdict(tmp_path, UNGRADED) == Verdict("grade", 0)
    assert verdict(tmp_path, UNGRADED, ERROR, UNGRADED) == Verdict("grade", 2), "the newest of them"
    assert verdict(tmp_path, UNGRADED, row(1.0, attempt=2)) == Verdict("reuse", 1)


def test_an_answer_whose_kept_files_are_missing_runs_again(tmp_path: Path) -> None:
    kept = dataclasses.replace(
        UNGRADED, outputs=[{"file": "kept/plot.png", "path": "plot.png", "size": 3, "sha256": "e"}]
    )
    found = verdict(tmp_path, kept)
    assert (found.action, found.attempt) == ("run", 2)
    assert found.lacking is not None
    assert found.lacking.startswith(f"{tmp_path / 'kept'}: missing, but rows of {tmp_path / 'r.jsonl'} name it")
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept/plot.png").touch()
    assert verdict(tmp_path, kept) == Verdict("grade", 0)


def test_a_masked_answer_keeps_its_reward_or_runs_again(tmp_path: Path) -> None:
    regraded = plan(dataclasses.replace(TASK, expected={"n": 2}))
    gone = [{"file": "kept/plot.png", "path": "plot.png", "size": 3, "sha256": "e", "masked": True}]
    assert verdict(tmp_path, row(1.0, masked=True, outputs=gone), today=regraded) == Verdict("grade", 0)
    ungraded = dataclasses.replace(UNGRADED, masked=True)
    assert verdict(tmp_path, ungraded) == Verdict("run", attempt=2, lacking=MASKED)


# ---- rows of other work

CHANGED: dict[str, tuple[Rollout, str]] = {
    "task": (plan(dataclasses.replace(TASK, instruction="Add all numbers.")), "input"),
    "agent": (plan(agent=Agent(instructions="Be brief.")), "agent"),
    "labels": (plan(labels={"policy": "7"}), "labels"),
    "limit": (plan(timeout=11.0), "timeout"),
    "network": (plan(network=Network("enabled")), "network"),
    "two": (plan(timeout=11.0, labels={"policy": "7"}), "labels, timeout"),
}


@rows(("today", "why"), CHANGED.values(), ids=CHANGED)
def test_a_rollout_with_other_settings_runs_again_with_the_reason(tmp_path: Path, today: Rollout, why: str) -> None:
    assert verdict(tmp_path, row(1.0), today=today) == Verdict("run", attempt=2, why=why)
    assert verdict(tmp_path, ERROR, today=today) == Verdict("run", attempt=2), "no result is lost"
    assert changes(row(1.0, rollout=today), today) == []


def test_a_setting_that_was_changed_back_makes_its_row_count_again(tmp_path: Path) -> None:
    other = plan(timeout=11.0)
    assert verdict(tmp_path, row(1.0), row(0.0, rollout=other, attempt=2)) == Verdict("reuse", 0, counts=False)
    assert verdict(tmp_path, row(1.0), row(0.0, rollout=other, attempt=2), today=other) == Verdict("reuse", 1)


def test_a_changed_grading_grades_the_answer_again(tmp_path: Path) -> None:
    regraded = plan(dataclasses.replace(TASK, expected={"n": 2}))
    assert verdict(tmp_path, row(1.0), today=regraded) == Verdict("grade", 0)
    assert verdict(tmp_path, row(1.0), row(0.0, rollout=regraded), today=regraded) == Verdict("reuse", 1)


def test_a_new_xfail_mark_is_recorded_in_the_row(tmp_path: Path) -> None:
    marked = plan(xfail="too hard")
    assert verdict(tmp_path, row(1.0), today=marked) == Verdict("grade", 0)
    assert resumed(tmp_path, row(1.0)).verdict(marked, marked=False).action == "reuse", "where marks are not known yet"


# ---- files


def test_the_newest_run_or_the_named_one_is_resumed(tmp_path: Path) -> None:
    newer = "20261130T000000Z-0000"
    path = tmp_path / "r.jsonl"
    for one in (row(1.0), row(0.0, rollout=plan(run_id=newer)), row(1.0, rollout=plan(sample=1))):
        append(path, one)
    assert (Resumed.open(path).run_id, len(Resumed.open(path).rows)) == (newer, 1)
    assert (Resumed.open(path, RUN_ID).run_id, len(Resumed.open(path, RUN_ID).rows)) == (RUN_ID, 2)
    with pytest.raises(RecordsError, match="holds no rows of run x"):
        Resumed.open(path, "x")


def test_the_newest_run_is_found_by_time_where_its_id_has_none(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    for hour, run_id in enumerate(("ci-9", "ci-10", "ci-9")):
        started_at = f"2026-11-30T1{hour}:00:00.000Z"
        append(path, row(1.0, rollout=plan(run_id=run_id, sample=hour), started_at=started_at))
    assert (Resumed.open(path).run_id, len(Resumed.open(path).rows)) == ("ci-10", 1)
    mark_run(path, "ci-11")
    assert (Resumed.open(path).run_id, len(Resumed.open(path).rows)) == ("ci-11", 0)


def test_a_file_without_rows_is_named_after_its_run_or_refused(tmp_path: Path) -> None:
    (tmp_path / f"{RUN_ID}.jsonl").touch()
    assert Resumed.open(tmp_path / f"{RUN_ID}.jsonl").run_id == RUN_ID
    (tmp_path / "mine.jsonl").touch()
    with pytest.raises(RecordsError, match="its name is not a run's"):
        Resumed.open(tmp_path / "mine.jsonl")
    with pytest.raises(RecordsError, match="there is no such file"):
        Resumed.open(tmp_path / "none.jsonl")


def test_a_mark_names_a_run_that_has_no_row_yet(tmp_path: Path) -> None:
    older, newer = "20261128T000000Z-0000", "20261130T000000Z-0000"
    path = tmp_path / "mine[1].jsonl"
    path.touch()
    (tmp_path / "other.jsonl").touch()
    mark_run(path, older)
    mark_run(tmp_path / f"{newer}.jsonl", newer)
    assert [file.name for file in tmp_path.iterdir() if file.name.startswith(".")] == [f".mine[1].jsonl.{older}.run"]
    assert Resumed.open(path).run_id == older
    append(path, row(1.0))
    opened = Resumed.open(path)
    assert (opened.run_id, len(opened.rows)) == (RUN_ID, 1), "a run with rows that is newer"
    assert Resumed.open(path, older).run_id == older
    mark_run(path, newer)
    opened = Resumed.open(path)
    assert (opened.run_id, len(opened.rows)) == (newer, 0), "not the rows of the run before"
    for run_id in (older, newer):
        unmark_run(path, run_id)
    assert Resumed.open(path).run_id == RUN_ID
    with pytest.raises(RecordsError, match="holds no rows of run"):
        Resumed.open(path, newer)


def test_half_a_row_is_reported_and_runs_again(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    append(path, row(1.0))
    append(path, row(1.0, rollout=plan(sample=1)))
    path.write_bytes(path.read_bytes()[:-20])
    found = Resumed.open(path)
    assert found.truncated_tail == f"{path}:2: skipped a row that was cut off"
    assert [found.verdict(plan(sample=sample)).action for sample in (0, 1)] == ["reuse", "run"]


def test_workers_get_the_rows_that_the_controller_read(tmp_path: Path) -> None:
    rows = [row(1.0), ERROR, row(0.0, rollout=plan(sample=1)), row(1.0, rollout=plan(sample=2, timeout=11.0))]
    found = resumed(tmp_path, *rows)
    found.dump(tmp_path / "dumped")
    loaded = Resumed.load(tmp_path / "dumped", found.path, found.run_id)
    assert loaded.offsets == found.offsets
    for sample in range(4):
        assert loaded.verdict(plan(sample=sample)) == found.verdict(plan(sample=sample))


COMMANDS: list[tuple[list[str], str, str]] = [
    (
        ["tasks", "--samples", "4"],
        f"runs/{RUN_ID}.jsonl",
        f"pytest tasks --samples 4 --rollout-resume runs/{RUN_ID}.jsonl",
    ),
    (["tasks", "--rollout-out", "a b.jsonl"], "a b.jsonl", f"pytest tasks --rollout-resume 'a b.jsonl::{RUN_ID}'"),
    (
        ["--rollout-resume=x.jsonl", "tasks", "--rollout-out=x.jsonl"],
        "x.jsonl",
        f"pytest tasks --rollout-resume x.jsonl::{RUN_ID}",
    ),
]


@rows(("given", "file", "command"), COMMANDS)
def test_the_resume_command(tmp_path: Path, given: list[str], file: str, command: str) -> None:
    assert resume_command(given, tmp_path / file, RUN_ID, tmp_path) == command
