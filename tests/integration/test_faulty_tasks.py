"""A faulty task is a collection error of only that task: it names the file, starts nothing, and the others run."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.integration.conftest import Project, outcomes, text_of
from tests.support.fake_core import FakeCore


def put(path: str, content: bytes) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(content)

    return change


def link(path: str, target: str) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).symlink_to(target)

    return change


def fifo(folder: Path) -> None:
    (folder / "files").mkdir()
    os.mkfifo(folder / "files/pipe")


def remove(path: str) -> Callable[[Path], None]:
    return lambda folder: (folder / path).unlink()


FAULTS: list[tuple[Callable[[Path], None], str]] = [
    (put("instruction.md", b""), "instruction.md"),
    (put("instruction.md", b" \n"), "instruction.md"),
    (put("instruction.md", b"\xef\xbb\xbf"), "instruction.md"),
    (put("instruction.md", b"caf\xe9"), "instruction.md"),
    (put("instruction.md", b"a\0b"), "instruction.md"),
    (put("instruction.md", b"x" * 600 * 1024), "instruction.md"),
    (put("expected.json", b""), "expected.json"),
    (put("expected.json", b"[1]"), "expected.json"),
    (put("expected.json", b'{"x": NaN}'), "expected.json"),
    (put("expected.json", b'{"x": 1, "x": 2}'), "expected.json"),
    (put("task.yaml", b"timeout: 10:00"), "task.yaml:1: timeout"),
    (put("task.yaml", b"\ntimeot: 10"), "task.yaml:2: timeot"),
    (put("task.yaml", b"samples: 0"), "task.yaml:1: samples"),
    (put("task.yaml", b"tags: [Slow]"), "task.yaml:1: tags"),
    (put("files/outputs/answer.json", b"{}"), "outputs/answer.json"),
    (put("files", b"no folder"), "files"),
    (link("files/id", "/etc/hostname"), "files/id"),
    (link("files/self", "."), "files/self"),
    (fifo, "files/pipe"),
    (remove("expected.json"), "has instruction.md but no expected.json or grader.py"),
    (remove("instruction.md"), "has expected.json but no instruction.md"),
    (put("solution/solve.sh", b""), "solution/solve.sh"),
]


def test_every_faulty_task_is_a_collection_error_that_names_its_file(project: Project, core: FakeCore) -> None:
    project.task("good")
    for number, (change, _) in enumerate(FAULTS):
        change(project.task(f"bad{number:02}"))
    result = project.run("tasks", "--continue-on-collection-errors")
    assert outcomes(result) == {"passed": 1, "errors": len(FAULTS)}, text_of(result)
    assert "Traceback" not in text_of(result)
    assert [session.metadata["task"] for session in core.sessions.values()] == ["good"]
    for number, (_, named) in enumerate(FAULTS):
        folder = project.path / f"tasks/bad{number:02}"
        assert any(line.startswith(str(folder)) and named in line for line in result.outlines), named
        assert f"ERROR tasks/bad{number:02}/instruction.md" in result.outlines


def test_a_faulty_task_stops_the_run_by_default(project: Project, core: FakeCore) -> None:
    project.task("good")
    project.task("bad", expected=[])
    result = project.run("tasks")
    assert result.ret == pytest.ExitCode.INTERRUPTED
    assert not core.requests


def test_workers_run_the_other_tasks_after_a_collection_error(project: Project, core: FakeCore) -> None:
    project.task("good")
    project.task("bad", expected=[])
    result = project.run("tasks", "-n", "2")
    assert result.ret == 1
    assert outcomes(result)["passed"] == 1
    assert [session.metadata["task"] for session in core.sessions.values()] == ["good"]


def test_an_incomplete_task_is_an_error_only_below_a_root(project: Project) -> None:
    project.write("tasks/half/instruction.md", "Do it.")
    project.write("docs/half/instruction.md", "Not a task.")
    project.write("docs/half/test_it.py", "def test_it(): pass")
    project.write("tasks/task.yaml", "")  # the root itself is no task
    assert outcomes(project.run("tasks", "docs")) == {"errors": 1}
    assert outcomes(project.run("docs")) == {"passed": 1}


def test_warnings_are_shown_and_the_task_runs(project: Project) -> None:
    project.task(
        files={
            "data.csv": "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n",
            "run.sh": "#!/bin/sh\r\n",
        }
    )
    result = project.run("tasks")
    assert outcomes(result) == {"passed": 1, "warnings": 2}
    assert "Git LFS" in text_of(result)


def test_a_file_that_is_removed_after_collection_is_an_error_of_its_rollouts(project: Project, core: FakeCore) -> None:
    project.task("a", files={"data.csv": "1"})
    project.task("b")
    project.write(
        "conftest.py",
        "import pathlib\ndef pytest_collection_finish(session):\n    pathlib.Path('tasks/a/files/data.csv').unlink()\n",
    )
    result = project.run("tasks")
    assert outcomes(result) == {"passed": 1, "errors": 1}
    assert "data.csv" in text_of(result)
    assert [session.metadata["task"] for session in core.sessions.values()] == ["b"]
