"""Further files of an agent: which are fetched, within which caps, and how they are kept, whatever they are called."""

from __future__ import annotations

import dataclasses
import hashlib
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from pytest_core_rollouts.grading.answers import Answer, Grade
from pytest_core_rollouts.records.kept_files import keep_files, read_kept_files
from pytest_core_rollouts.records.masking import Masker
from pytest_core_rollouts.records.record import RecordsError
from pytest_core_rollouts.tasks.matrix import Rollout
from pytest_core_rollouts.tasks.task import Task
from pytest_core_rollouts.tasks.task_settings import Outputs
from tests.support.fake_core import FakeCore, Script
from tests.support.rollouts import RIGHT, TASK, Ran, plan, run
from tests.support.tables import rows

BASE = "/workspace/outputs/"
NO_MASKS = Masker([])


def ran(artifacts: Mapping[str, bytes], outputs: Outputs) -> tuple[Answer, Ran]:
    """A rollout whose agent leaves these files, and the answer that its grader got."""
    seen: list[Answer] = []

    def grade(task: Task, answer: Answer, rollout: Rollout) -> Grade:
        seen.append(answer)
        return Grade(1.0)

    task = dataclasses.replace(TASK, outputs=outputs)
    with FakeCore(script=lambda body: Script(answer=RIGHT, artifacts=artifacts)) as core:
        result = run(core, plan(task), grade=grade)
    return seen[0], result


# Fetching


def test_what_patterns_take() -> None:
    outputs = Outputs(("fix.patch", "reports/*.md", "logs/**", "**/data.json"))
    taken = ["fix.patch", "reports/a.md", "logs/a", "logs/b/c.txt", "data.json", "x/y/data.json"]
    left = ["fix.patch2", "a/fix.patch", "reports/a/b.md", "reports/.txt", "logs", "mydata.json", "fixxpatch"]
    assert all(outputs.pattern_of(path) for path in taken)
    assert not any(outputs.pattern_of(path) for path in left)


def test_a_grader_gets_the_files_and_the_answer() -> None:
    files = {f"{BASE}fix.patch": b"\0\xff", f"{BASE}r/a.md": b"A", f"{BASE}other": b"x", "/workspace/fix.patch": b"y"}
    answer, result = ran(files, Outputs(("fix.patch", "r/*")))
    assert answer.value == {"n": 1}
    assert answer.artifacts == {"fix.patch": b"\0\xff", "r/a.md": b"A"}
    assert list(result.record.notes) == []


def test_without_outputs_only_the_answer_is_fetched() -> None:
    with FakeCore(script=lambda body: Script(answer=RIGHT, artifacts={f"{BASE}fix.patch": b"x"})) as core:
        run(core)
        assert sum(request.path.endswith("/content") for request in core.requests) == 1


def test_what_is_over_a_cap_is_left_out_and_noted() -> None:
    files = {f"{BASE}{name}": b"x" * size for name, size in (("a", 10), ("b", 11), ("c", 8), ("d", 5), ("e", 2))}
    answer, result = ran(files, Outputs(("*",), max_bytes=10, max_total_bytes=20))
    assert {name: len(content) for name, content in answer.artifacts.items()} == {"a": 10, "c": 8, "e": 2}
    assert list(result.record.notes) == [
        "outputs: 'b' is left out: it has 11 bytes; 10 may still be fetched",
        "outputs: 'd' is left out: it has 5 bytes; 2 may still be fetched",
    ]


def test_a_pattern_that_finds_nothing_is_noted() -> None:
    answer, result = ran({}, Outputs(("fix.patch",)))
    assert answer.artifacts == {}
    assert list(result.record.notes) == ["outputs: no file matches fix.patch"]


@rows("name", ["../escape", "a/../../b", "a//b", "./a", "line\nbreak", "back\\slash", "/abs", ""])
def test_an_invalid_path_is_left_out(name: str) -> None:
    answer, result = ran({f"{BASE}{name}": b"x"}, Outputs(("**",)))
    assert answer.artifacts == {}
    assert all("its name can't be kept" in note or "no file matches" in note for note in result.record.notes)
    assert result.record.notes


def test_a_rollout_keeps_its_files_before_its_row() -> None:
    kept: list[tuple[str, int, Mapping[str, bytes]]] = []

    def keep(rollout: Rollout, attempt: int, artifacts: Mapping[str, bytes]) -> list[dict[str, Any]]:
        kept.append((rollout.rollout_id, attempt, artifacts))
        return [{"path": path} for path in artifacts]

    task = dataclasses.replace(TASK, outputs=Outputs(("a",)))
    with FakeCore(script=lambda body: Script(answer=RIGHT, artifacts={f"{BASE}a": b"A"})) as core:
        result = run(core, plan(task), keep_files=keep)
    assert kept == [(result.record.rollout_id, 1, {"a": b"A"})]
    assert result.record.outputs == [{"path": "a"}]


# Keeping


def test_files_are_kept_beside_the_jsonl_and_read_back(tmp_path: Path) -> None:
    out = tmp_path / "runs" / "r1.jsonl"
    files = {"fix.patch": b"\0\xff\n", "reports/a.md": b"A", "empty": b""}
    rows = keep_files(out, "r1.t.codex-default.0", 1, files, NO_MASKS)
    assert rows[1] == {
        "path": "fix.patch",
        "size": 3,
        "sha256": hashlib.sha256(b"\0\xff\n").hexdigest(),
        "file": ".r1.files/r1.t.codex-default.0/a1/0002",
    }
    assert (tmp_path / "runs/.r1.files/r1.t.codex-default.0/a1/0003").read_bytes() == b"A"
    assert read_kept_files(out, rows) == files


HOSTILE = [
    "A",
    "a",
    "a/b",
    "a/b/c",
    "A/B",
    "0001",
    "0002",
    ".hidden",
    "-rf",
    "CON.",
    "é",
    "e\u0301",
    "with space",
    "x" * 300,
    "x/" * 60 + "y",
    "%2e%2e",
    "\u202egnp.exe",
    "a1.tmp",
]


def test_names_of_kept_files_are_numbers(tmp_path: Path) -> None:
    out = tmp_path / "r1.jsonl"
    files = {name: name.encode() for name in HOSTILE}
    rows = keep_files(out, "id", 1, files, NO_MASKS)
    assert read_kept_files(out, rows) == files
    assert [row["path"] for row in rows] == sorted(files)
    names = [f".r1.files/id/a1/{number:04}" for number in range(1, len(files) + 1)]
    assert [row["file"] for row in rows] == names
    assert sorted(path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*") if path.is_file()) == names


@pytest.mark.parametrize(
    ("umask", "folder", "file"), [(0o077, 0o700, 0o600), (0o022, 0o755, 0o644), (0o002, 0o775, 0o664)]
)
def test_what_holds_answers_follows_the_umask(tmp_path: Path, umask: int, folder: int, file: int) -> None:
    """Kept files, Items, rows and the HTML report, and the folders above them; the umask is a process's own."""
    program = f"""
import os
from pathlib import Path
from pytest_core_rollouts.records.record import RolloutRecord
from pytest_core_rollouts.records.rows import append
from pytest_core_rollouts.records.kept_files import keep_items
from pytest_core_rollouts.records.kept_files import keep_files
from pytest_core_rollouts.records.masking import Masker
from pytest_core_rollouts.report.html import write_html

os.umask({umask})
out = Path("runs/r1.jsonl")
kept = dict(outputs=keep_files(out, "id", 1, {{"run.sh": b"#!/bin/sh"}}, Masker([])))
kept |= dict(items_file=keep_items(out, "id", 1, [1], Masker([])))
names = dict(rollout_id="id", task="t", harness="h", model="m", sample=0, run_id="r1", group_id="g")
append(out, RolloutRecord(**names, **kept, status="completed", reward=1.0))
write_html([out], Path("reports/r1.html"))
"""
    subprocess.run([sys.executable, "-c", program], cwd=tmp_path, check=True)
    modes = {
        path.relative_to(tmp_path).as_posix(): (path.is_dir(), oct(path.stat().st_mode & 0o7777))
        for path in tmp_path.rglob("*")
    }
    folders = ("runs", "runs/.r1.files", "runs/.r1.files/id", "runs/.r1.files/id/a1", "reports")
    files = ("runs/r1.jsonl", "runs/.r1.files/id/a1/0001", "runs/.r1.files/id/a1.items.jsonl", "reports/r1.html")
    assert modes == {name: (True, oct(folder)) for name in folders} | {name: (False, oct(file)) for name in files}


def test_files_of_earlier_versions_are_read(tmp_path: Path) -> None:
    kept = tmp_path / "r1.files/id/a1/reports/a.md"
    kept.parent.mkdir(parents=True)
    kept.write_bytes(b"A")
    row = {"path": "reports/a.md", "size": 1, "sha256": hashlib.sha256(b"A").hexdigest()}
    row["file"] = kept.relative_to(tmp_path).as_posix()
    assert read_kept_files(tmp_path / "r1.jsonl", [row]) == {"reports/a.md": b"A"}
    (tmp_path / "r1.files").rename(tmp_path / "elsewhere")
    lost = "r1.files: missing, but rows of .*r1.jsonl name it; put r1.files back next to r1.jsonl$"
    with pytest.raises(RecordsError, match=lost):
        read_kept_files(tmp_path / "r1.jsonl", [row])


def test_what_a_killed_process_left_is_replaced(tmp_path: Path) -> None:
    out = tmp_path / "r1.jsonl"
    keep_files(out, "id", 1, {"a": b"old", "b": b"old"}, NO_MASKS)
    rows = keep_files(out, "id", 1, {"a": b"new"}, NO_MASKS)
    keep_files(out, "id", 2, {"a": b"second"}, NO_MASKS)
    assert read_kept_files(out, rows) == {"a": b"new"}
    assert sorted(path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*") if path.is_file()) == [
        ".r1.files/id/a1/0001",
        ".r1.files/id/a2/0001",
    ]


def test_secrets_are_masked_in_contents_and_names(tmp_path: Path) -> None:
    out = tmp_path / "r1.jsonl"
    files = {"log": b"\xff key=hunter2-hunter2 \0", "hunter2-hunter2.txt": b"x"}
    rows = keep_files(out, "id", 1, files, Masker(["hunter2-hunter2"]))
    assert read_kept_files(out, rows) == {"log": b"\xff key=[masked] \0", "[masked].txt": b"x"}
    assert not [path for path in tmp_path.rglob("*") if "hunter2" in path.name]


def test_a_file_that_was_changed_since_is_detected(tmp_path: Path) -> None:
    out = tmp_path / "r1.jsonl"
    (row,) = keep_files(out, "id", 1, {"a": b"one"}, NO_MASKS)
    for content in (b"two", b"longer", b""):
        (tmp_path / row["file"]).write_bytes(content)
        with pytest.raises(RecordsError, match="is not what the row of"):
            read_kept_files(out, [row])
    (tmp_path / row["file"]).unlink()
    with pytest.raises(RecordsError, match=r"/a1/0001: missing, but rows of .* name it; put \.r1\.files back"):
        read_kept_files(out, [row])
    (tmp_path / row["file"]).symlink_to("/etc/passwd")
    with pytest.raises(RecordsError, match="is a symbolic link"):
        read_kept_files(out, [row])
    shutil.rmtree(tmp_path / ".r1.files")
    lost = r"/\.r1\.files: missing, but rows of .*r1.jsonl name it; .* without `include-hidden-files: true`"
    with pytest.raises(RecordsError, match=lost):
        read_kept_files(out, [row])
    for file in ("../../etc/passwd", "/etc/passwd"):
        with pytest.raises(RecordsError, match="outside of its folder"):
            read_kept_files(out, [{**row, "file": file}])


def test_a_place_that_can_not_be_written_ends_the_run(tmp_path: Path) -> None:
    (tmp_path / ".r1.files").write_text("a file in the folder's place")
    with pytest.raises(RecordsError, match="cannot keep an agent's files"):
        keep_files(tmp_path / "r1.jsonl", "id", 1, {"a": b"x"}, NO_MASKS)
