"""Further files of an agent: which are fetched, within which caps, and how they are kept, whatever they are called."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from pytest_core_rollouts.grading import Answer, Grade
from pytest_core_rollouts.matrix import Rollout
from pytest_core_rollouts.records import RecordsError
from pytest_core_rollouts.records.kept_files import keep_files, read_kept_files
from pytest_core_rollouts.records.masking import Masker
from pytest_core_rollouts.tasks import Task
from pytest_core_rollouts.tasks.task_settings import Outputs
from tests.fake_core import FakeCore, Script
from tests.rollout_support import RIGHT, TASK, Ran, plan, run

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


def test_without_outputs_nothing_is_fetched_beside_the_answer() -> None:
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
    assert list(result.record.notes) == ["outputs: no file is fix.patch"]


@pytest.mark.parametrize("name", ["../escape", "a/../../b", "a//b", "./a", "line\nbreak", "back\\slash", "/abs", ""])
def test_a_name_that_is_no_path_is_left_out(name: str) -> None:
    answer, result = ran({f"{BASE}{name}": b"x"}, Outputs(("**",)))
    assert answer.artifacts == {}
    assert all("its name can't be kept" in note or "no file is" in note for note in result.record.notes)
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
        "file": "r1.files/r1.t.codex-default.0/a1/fix.patch",
    }
    assert (tmp_path / "runs/r1.files/r1.t.codex-default.0/a1/reports/a.md").read_bytes() == b"A"
    assert read_kept_files(out, rows) == files


HOSTILE = [
    "A",
    "a",
    "a/b",
    "a/b/c",
    "A/B",
    "@0",
    "@1",
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


def test_no_name_escapes_or_meets_another(tmp_path: Path) -> None:
    out = tmp_path / "r1.jsonl"
    files = {name: name.encode() for name in HOSTILE}
    rows = keep_files(out, "id", 1, files, NO_MASKS)
    assert read_kept_files(out, rows) == files
    names = [row["file"].removeprefix("r1.files/id/a1/") for row in rows]
    folded = [name.casefold() for name in names]
    assert len(set(folded)) == len(folded)
    assert not any(one != other and other.startswith(f"{one}/") for one in folded for other in folded)
    assert all(name.isascii() and ".." not in name and not name.startswith(("/", ".", "-")) for name in names)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["r1.files"]


def test_what_a_killed_process_left_is_replaced(tmp_path: Path) -> None:
    out = tmp_path / "r1.jsonl"
    keep_files(out, "id", 1, {"a": b"old", "b": b"old"}, NO_MASKS)
    rows = keep_files(out, "id", 1, {"a": b"new"}, NO_MASKS)
    keep_files(out, "id", 2, {"a": b"second"}, NO_MASKS)
    assert read_kept_files(out, rows) == {"a": b"new"}
    assert sorted(path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*") if path.is_file()) == [
        "r1.files/id/a1/a",
        "r1.files/id/a2/a",
    ]


def test_secrets_are_masked_in_contents_and_names(tmp_path: Path) -> None:
    out = tmp_path / "r1.jsonl"
    files = {"log": b"\xff key=hunter2-hunter2 \0", "hunter2-hunter2.txt": b"x"}
    rows = keep_files(out, "id", 1, files, Masker(["hunter2-hunter2"]))
    assert read_kept_files(out, rows) == {"log": b"\xff key=[masked] \0", "[masked].txt": b"x"}
    assert not [path for path in tmp_path.rglob("*") if "hunter2" in path.name]


def test_a_file_that_was_changed_since_is_told_apart(tmp_path: Path) -> None:
    out = tmp_path / "r1.jsonl"
    (row,) = keep_files(out, "id", 1, {"a": b"one"}, NO_MASKS)
    (tmp_path / row["file"]).write_bytes(b"two")
    with pytest.raises(RecordsError, match="is not what the row of"):
        read_kept_files(out, [row])
    (tmp_path / row["file"]).unlink()
    with pytest.raises(RecordsError, match="can't be read"):
        read_kept_files(out, [row])
    for file in ("../../etc/passwd", "/etc/passwd"):
        with pytest.raises(RecordsError, match="outside of its folder"):
            read_kept_files(out, [{**row, "file": file}])


def test_a_place_that_can_not_be_written_ends_the_run(tmp_path: Path) -> None:
    (tmp_path / "r1.files").write_text("a file in the folder's place")
    with pytest.raises(RecordsError, match="cannot keep an agent's files"):
        keep_files(tmp_path / "r1.jsonl", "id", 1, {"a": b"x"}, NO_MASKS)
