"""Rows that can't be written: an error before the first Session where it can be known, else the end of the run."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.integration.conftest import RIGHT, Project, outcomes, text_of, usage_error
from tests.support.fake_core import FakeCore, Script
from tests.support.running import Running

pytestmark = pytest.mark.slow

NOISE = "e" * 60_000


@pytest.fixture
def core() -> Iterator[FakeCore]:
    """A Core where each test says which Sessions may be left."""
    with FakeCore(script=lambda body: Script(answer=RIGHT)) as running:
        yield running


@pytest.fixture
def small_disk(project: Project) -> Iterator[Path]:
    """A disk of 256 KiB, within the project."""
    folder = project.path / "disk"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(folder)]
    if subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("needs the right to mount")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def large_rows(core: FakeCore, seconds: float = 0.2) -> None:
    items = [{"id": "item_1", "type": "message", "content": NOISE}]
    core.script = lambda body: Script(answer=RIGHT, items=items, turn_seconds=seconds)


def unwritten(core: FakeCore, text: str) -> set[str]:
    """Sessions whose result could not be written: they are there to be taken over, named, and no others."""
    left = {session.id for session in core.sessions.values() if not session.deleted}
    assert left == set(re.findall(r"^left behind: Session (\S+):", text, re.MULTILINE))
    return left


def outcomes_of(text: str) -> dict[str, str]:
    return dict(re.findall(r"^(FAILED|ERROR|PASSED) (\S+)", text, re.MULTILINE))


@pytest.mark.parametrize("items", ["inline", "files"])
@pytest.mark.parametrize("workers", [(), ("-n", "2"), ("-n", "2", "--rollout-concurrency", "3")], ids=len)
def test_a_full_disk_ends_the_run(
    project: Project, core: FakeCore, small_disk: Path, workers: tuple[str, ...], items: str
) -> None:
    project.task("a")
    large_rows(core)
    out = small_disk / "r.jsonl"
    args = ("--samples", "40", "--rollout-out", str(out), "--rollout-items", items, *workers)
    result = project.run_apart("tasks", *args)
    text = text_of(result)
    assert result.ret == 2, text
    assert "No space left on device" in text
    assert "not run: a default-default" in text
    assert "INTERNALERROR" not in text
    rows = [json.loads(line) for line in out.read_bytes().splitlines()]
    assert 1 <= len([row for row in rows if row["reward"] is not None]) < 8
    assert outcomes(result).get("passed", 0) <= len(rows)
    made = len(core.sessions)
    assert made <= len(rows) + 6, "no further Session once a row could not be written"
    spared = unwritten(core, text)

    subprocess.run(["mount", "-o", "remount,size=16m", str(small_disk)], check=True)
    again = project.run_apart("tasks", *args[:2], *workers, "--rollout-resume", f"disk/r.jsonl::{rows[0]['run_id']}")
    assert again.ret == 0, text_of(again)
    assert outcomes(again) == {"passed": 40}
    rows = [json.loads(line) for line in out.read_bytes().splitlines()]
    assert len({row["rollout_id"] for row in rows if row["reward"] == 1.0}) == 40
    completed = [one for one in core.sessions.values() if one.turn and one.turn["status"] == "completed"]
    assert len(completed) == 40, "nothing was paid for twice"
    assert spared <= {row["session_id"] for row in rows}, "what could not be written was taken over"


def test_a_run_that_can_not_write_does_not_wait_for_rollouts_in_flight(
    project: Project, core: FakeCore, small_disk: Path
) -> None:
    """No Turn goes on whose result could not be kept."""
    project.task("a")
    items = [{"id": "item_1", "type": "message", "content": NOISE * 6}]

    def script(body: dict[str, Any]) -> Script:
        first = body["metadata"]["sample"] == "0"
        return Script(answer=RIGHT, items=items) if first else Script(never_ends=True)

    core.script = script
    with Running(project, "tasks", "--samples", "4", "--rollout-out", str(small_disk / "r.jsonl")) as running:
        ended = running.end()
    assert ended.code == 2, ended.text
    statuses = [session.turn["status"] for session in core.sessions.values() if session.turn]
    assert statuses == ["completed", "cancelled", "cancelled", "cancelled"]
    assert outcomes_of(ended.text) == {}, "nothing is reported of what was cancelled"
    assert len(unwritten(core, ended.text)) == 1


def test_a_file_size_limit_ends_the_run(project: Project, core: FakeCore) -> None:
    """A short write, and then an error: the half row is cut off again."""
    project.task("a")
    large_rows(core)
    with Running(
        project, "tasks", "--samples", "9", "--rollout-out", "r.jsonl", prefix=("prlimit", "--fsize=150000")
    ) as running:
        ended = running.end()
    assert ended.code == 2, ended.text
    assert "File too large" in ended.text
    content = (project.path / "r.jsonl").read_bytes()
    assert content.endswith(b"}\n")
    rows = [json.loads(line) for line in content.splitlines()]  # those that a stop cancelled are small, and may fit
    assert [row["reward"] for row in rows if row["status"] != "cancelled"] == [1.0, 1.0]
    assert unwritten(core, ended.text)


def test_an_unwritable_jsonl_is_a_usage_error_before_the_first_session(
    project: Project, core: FakeCore, small_disk: Path
) -> None:
    project.task("a")
    project.write("file.txt", "hello")
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    for out in (str(small_disk / "new" / "r.jsonl"), str(small_disk / "r.jsonl")):
        assert "Read-only file system" in usage_error(project.run("tasks", "--rollout-out", out))
    assert "Not a directory" in usage_error(project.run("tasks", "--rollout-out", "file.txt/r.jsonl"))
    assert "not a file of rollout records" in usage_error(project.run("tasks", "--rollout-out", "file.txt"))
    assert "not a regular file" in usage_error(project.run("tasks", "--rollout-out", "/dev/full"))
    assert not core.sessions


def test_a_missing_folder_of_the_jsonl_is_created(project: Project, core: FakeCore) -> None:
    project.task("a")
    assert project.run("tasks", "--rollout-out", "some/where/new/r.jsonl").ret == 0
    assert (project.path / "some/where/new/r.jsonl").exists()


def test_several_runs_can_write_to_one_file(project: Project, core: FakeCore) -> None:
    project.task("a")
    large_rows(core, 0.05)
    args = ("tasks", "--samples", "12", "--rollout-out", "all.jsonl")
    with Running(project, *args) as one, Running(project, *args, "-n", "2") as two:
        ends = [one.end(), two.end()]
    assert [end.code for end in ends] == [0, 0], ends
    rows = [json.loads(line) for line in (project.path / "all.jsonl").read_bytes().splitlines()]
    assert len({row["rollout_id"] for row in rows}) == len(rows) == 24
    assert len({row["run_id"] for row in rows}) == 2
    for end in ends:
        assert "12 rollouts: 1 task, 12 samples each" in end.text


# Where trajectories go

ITEMS: list[dict[str, Any]] = [
    {"id": "item_1", "type": "tool", "output": {"api_key": "0123456789abcdef0123456789abcdef", "size": 1.5}},
]


@pytest.mark.parametrize("where", ["inline", "files", "none"])
@pytest.mark.parametrize("workers", [(), ("-n", "1")], ids=len)
def test_items_are_stored_where_the_option_says(
    project: Project, core: FakeCore, where: str, workers: tuple[str, ...]
) -> None:
    from pytest_core_rollouts.records.record import RecordsWarning
    from pytest_core_rollouts.records.rows import read_records

    project.task("a")
    core.script = lambda body: Script(answer=RIGHT, items=ITEMS)
    result = project.run_apart("tasks", "--rollout-items", where, *workers)
    assert result.ret == 0, text_of(result)
    [path], [row] = project.results, project.records
    [record] = read_records(path)
    if where == "none":
        assert row["items"] is None
        assert row["items_file"] is None
        assert record.items is None
        return
    assert record.items is not None
    assert [item["output"] for item in record.items if "output" in item] == [{"api_key": "[masked]", "size": 1.5}]
    if where == "inline":
        assert row["items"] == record.items
        assert row["items_file"] is None
        return
    assert row["items"] is None
    kept = path.parent / row["items_file"]["file"]
    assert kept == path.with_name(f".{path.stem}.files") / row["rollout_id"] / "a1.items.jsonl"
    assert kept.stat().st_size == row["items_file"]["size"]
    assert row["items_file"]["items"] == len(kept.read_bytes().splitlines())
    kept.parent.parent.rename(path.parent / "elsewhere")
    lost = (
        rf"/runs/\.{path.stem}\.files: missing, but rows of .*{path.name} name it; put .* `include-hidden-files: true`"
    )
    with pytest.warns(RecordsWarning, match=lost):
        [record] = read_records(path)
    assert record.items is None
    assert record.reward == 1.0, "a report can still be made"


def test_very_long_trajectories_stay_out_of_the_rows(project: Project, core: FakeCore) -> None:
    project.task("a")
    long: list[dict[str, Any]] = [{"id": f"item_{number}", "content": "x" * 50} for number in range(3000)]
    core.script = lambda body: Script(answer=RIGHT, items=[*long, {"id": "item_big", "content": "y" * 8_000_000}])
    result = project.run_apart("tasks", "-n", "1", "--rollout-items", "files")
    assert result.ret == 0, text_of(result)
    [path], [row] = project.results, project.records
    assert path.stat().st_size < 10_000
    assert row["items_file"]["items"] == 3002
    assert row["items_file"]["size"] > 8_000_000
