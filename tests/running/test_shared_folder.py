"""The folder that a controller and its workers share: kept while one of them lives, removed after that."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from pytest_core_rollouts.running.shared_folder import PREFIX, SharedFolder

WORKER = """
import sys
from pathlib import Path
from pytest_core_rollouts.running.shared_folder import SharedFolder

folder = SharedFolder(Path(sys.argv[1])) if len(sys.argv) > 1 else SharedFolder.make()
folder.hold()
print(folder.path, flush=True)
sys.stdin.read()
folder.leave()
"""


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    return tmp_path


@contextmanager
def holding(*folder: Path) -> Iterator[tuple[subprocess.Popen[str], Path]]:
    """Another process that holds a folder: a new one, unless one is given."""
    command = [sys.executable, "-c", WORKER, *map(str, folder)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        yield process, Path(process.stdout.readline().rstrip("\n"))


def folders(temporary: Path) -> list[Path]:
    return list(temporary.glob(f"*{PREFIX}*"))


def test_a_folder_of_a_killed_process_is_removed_by_the_next_run(temporary: Path) -> None:
    with holding() as (process, left):
        (left / "stop").write_text("a file")
        process.kill()
        process.wait()
        assert folders(temporary) == [left]
        new = SharedFolder.make()
    assert folders(temporary) == [new.path]
    new.remove()
    assert folders(temporary) == []


def test_a_folder_that_a_process_holds_is_not_removed(temporary: Path) -> None:
    with holding() as (controller, left), holding(left):
        controller.kill()
        controller.wait()
        new = SharedFolder.make()
        assert sorted(folders(temporary)) == sorted([left, new.path]), "a worker is still at its end"


def test_the_last_worker_of_a_dead_controller_removes_the_folder(temporary: Path) -> None:
    with holding() as (controller, left), holding(left) as (one, _), holding(left) as (other, _):
        controller.kill()
        controller.wait()
        one.communicate()
        assert folders(temporary) == [left]
        other.communicate()
        assert folders(temporary) == []


def test_links_and_files_with_the_same_name_are_not_removed(temporary: Path) -> None:
    kept = temporary / "kept"
    kept.mkdir()
    (kept / "file").touch()
    (temporary / f"{PREFIX}link").symlink_to(kept)
    (temporary / f"{PREFIX}file").write_text("no folder")
    SharedFolder.make().remove()
    assert (kept / "file").exists()
    assert sorted(path.name for path in folders(temporary)) == [f"{PREFIX}file", f"{PREFIX}link"]


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give a folder away")
def test_a_folder_of_another_user_is_not_removed(temporary: Path) -> None:
    theirs = temporary / f"{PREFIX}theirs"
    theirs.mkdir()
    os.chown(theirs, 12345, 12345)
    SharedFolder.make().remove()
    assert theirs.exists()


def test_holding_a_removed_folder_raises(temporary: Path) -> None:
    with pytest.raises(FileNotFoundError):
        SharedFolder(temporary / "gone").hold()
