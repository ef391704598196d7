"""Files as one archive: what is in it, that it is always the same, and what is refused."""

from __future__ import annotations

import io
import os
import subprocess
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

from pytest_core_rollouts.tasks.files import FILE_LIMIT, InputFile, TaskError
from pytest_core_rollouts.tasks.loading import load_task
from pytest_core_rollouts.tasks.packing import PART, UNPACK, Pack
from pytest_core_rollouts.tasks.task import Task


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A task whose files are packed."""
    folder = tmp_path / "packed"
    (folder / "files").mkdir(parents=True)
    (folder / "instruction.md").write_text("Do it.")
    (folder / "expected.json").write_text('{"x": 1}')
    (folder / "task.yaml").write_text("pack: true\nsetup_commands: [make]\n")
    return folder


def put(folder: Path, name: str, content: bytes = b"", mode: int = 0o644) -> None:
    file = folder / "files" / name
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(content)
    file.chmod(mode)


def error_of(folder: Path) -> str:
    with pytest.raises(TaskError) as caught:
        load_task(folder, "packed")
    return str(caught.value)


def unpacked(task: Task, to: Path) -> Path:
    """What the sandbox will have, unpacked by the very command."""
    to.mkdir()
    for file in task.uploads:
        (to / file.path).write_bytes(file.read())
    command = task.preparation[0].replace("/workspace", str(to))
    subprocess.run(["sh", "-c", f"umask 077; {command}"], check=True)
    return to


def test_what_arrives(folder: Path, tmp_path: Path) -> None:
    put(folder, "run.sh", b"#!/bin/sh\n", 0o755)
    put(folder, "private", b"x", 0o600)
    put(folder, "é/deep/er/empty.txt")
    put(folder, ".git/HEAD", b"ref: refs/heads/main\n")
    put(folder, ".git/objects/ab/cd", bytes(range(256)), 0o444)
    (folder / "files" / ".git" / "refs" / "tags").mkdir(parents=True)
    (folder / "files" / "empty").mkdir()
    (folder / "files" / "link").symlink_to("é/deep")
    (folder / "files" / "é" / "up").symlink_to("../run.sh")
    (folder / "files" / "nowhere").symlink_to("not-there-yet")
    put(folder, "__pycache__/x.pyc", b"junk")
    task = load_task(folder, "packed")
    assert (task.files, task.preparation) == ((), (UNPACK, "make"))
    assert [file.path for file in task.uploads] == [f"{PART}0"]
    assert task.warnings == ()
    there = unpacked(task, tmp_path / "workspace")
    found = sorted(path.relative_to(there).as_posix() for path in there.rglob("*"))
    assert found == [
        *(".git", ".git/HEAD", ".git/objects", ".git/objects/ab", ".git/objects/ab/cd", ".git/refs", ".git/refs/tags"),
        *("empty", "link", "nowhere", "private", "run.sh", "é", "é/deep", "é/deep/er", "é/deep/er/empty.txt", "é/up"),
    ]
    assert [oct((there / name).stat().st_mode & 0o777) for name in ("run.sh", "private", ".git/objects/ab/cd")] == [
        "0o755",
        "0o600",
        "0o444",
    ]
    assert [os.readlink(there / name) for name in ("link", "é/up", "nowhere")] == [  # noqa: PTH115
        "é/deep",
        "../run.sh",
        "not-there-yet",
    ]
    assert (there / ".git/objects/ab/cd").read_bytes() == bytes(range(256))


def test_more_files_than_a_session_takes(folder: Path, tmp_path: Path) -> None:
    for number in range(300):
        put(folder, f"f{number}", str(number).encode())
    task = load_task(folder, "packed")
    assert len(task.uploads) == 1
    assert len(list(unpacked(task, tmp_path / "workspace").iterdir())) == 300


def test_an_archive_beyond_one_file_goes_in_parts(folder: Path, tmp_path: Path) -> None:
    content = os.urandom(FILE_LIMIT + 100_000)
    put(folder, "big", content)
    task = load_task(folder, "packed")
    assert [file.path for file in task.uploads] == [f"{PART}0", f"{PART}1"]
    assert all(file.size <= FILE_LIMIT for file in task.uploads)
    assert (unpacked(task, tmp_path / "workspace") / "big").read_bytes() == content


def test_the_limit_is_about_the_compressed_size(folder: Path) -> None:
    put(folder, "zeros", bytes(50 * 1024 * 1024))
    assert sum(file.size for file in load_task(folder, "packed").uploads) < 100_000
    put(folder, "noise", os.urandom(11 * 1024 * 1024))
    assert error_of(folder).startswith(
        f"{folder / 'files'}: more than 10.0 MiB even when compressed, which is all that"
    )


def test_the_archive_is_the_same_for_the_same_files(folder: Path) -> None:
    put(folder, "b", b"2", 0o755)
    put(folder, "a", b"1")
    task = load_task(folder, "packed")
    for name in ("a", "b"):
        os.utime(folder / "files" / name, (1, 1))
    again = load_task(folder, "packed")
    assert [file.read() for file in task.uploads] == [file.read() for file in again.uploads]
    assert task.input_digest == again.input_digest
    with tarfile.open(fileobj=io.BytesIO(task.uploads[0].read())) as archive:
        assert [(entry.name, entry.uid, entry.uname, entry.mtime) for entry in archive] == [
            ("a", 0, "", 946684800),
            ("b", 0, "", 946684800),
        ]


def test_what_the_agent_sees_is_in_the_digest(folder: Path) -> None:
    put(folder, "a", b"1")
    digests = [load_task(folder, "packed").input_digest]
    (folder / "files" / "a").chmod(0o664)  # another umask
    assert load_task(folder, "packed").input_digest == digests[0]
    changes: list[Callable[[], object]] = [
        lambda: (folder / "files" / "a").chmod(0o755),
        lambda: (folder / "files" / "empty").mkdir(),
        lambda: (folder / "files" / "link").symlink_to("a"),
        lambda: put(folder, "a", b"2", 0o755),
    ]
    for change in changes:
        change()
        digests.append(load_task(folder, "packed").input_digest)
    assert len(set(digests)) == 5


@pytest.mark.parametrize(
    ("name", "target"),
    [
        ("key", "/etc/passwd"),
        ("up", ".."),
        ("in/out", "../../expected.json"),
        ("home", "~/../../../x/../../../y"),
        ("in/deep", "../in/../../instruction.md"),
    ],
)
def test_a_link_that_leads_out_is_an_error(folder: Path, name: str, target: str) -> None:
    (folder / "files" / "in").mkdir()
    (folder / "files" / name).symlink_to(target)
    assert error_of(folder).startswith(f"{folder / 'files' / name}: is a symbolic link that leads out of files/;")


def test_a_link_that_leads_out_by_way_of_another_is_an_error(folder: Path) -> None:
    (folder / "files" / "a" / "b").mkdir(parents=True)
    (folder / "files" / "short").symlink_to("a/b")
    (folder / "files" / "a" / "b" / "c").symlink_to("../../short/..")
    load_task(folder, "packed")
    (folder / "files" / "x").mkdir()
    (folder / "files" / "x" / "self").symlink_to("..")
    (folder / "files" / "x" / "out").symlink_to("self/../expected.json")  # as written it stays in x
    assert "x/out: is a symbolic link that leads out" in error_of(folder)


def test_what_else_is_refused(folder: Path) -> None:
    os.mkfifo(folder / "files" / "pipe")
    assert error_of(folder).startswith(f"{folder / 'files' / 'pipe'}: is a FIFO")
    (folder / "files" / "pipe").unlink()
    put(folder, "outputs/answer.json", b"{}")
    assert "the agent's answer goes to outputs/answer.json" in error_of(folder)
    (folder / "files" / "outputs" / "answer.json").unlink()
    put(folder, "outputs/seed.txt", b"{}")
    load_task(folder, "packed")
    put(folder, f"{PART}0", b"")
    assert "names that begin with .task-files. are taken; rename it" in error_of(folder)


def test_files_that_is_a_link_is_refused(folder: Path, tmp_path: Path) -> None:
    (folder / "files").rmdir()
    (folder / "files").symlink_to(tmp_path)
    assert "files: is a symbolic link; it must be a folder" in error_of(folder)


def test_a_pack_without_files_uploads_nothing(folder: Path) -> None:
    task = load_task(folder, "packed")
    assert (task.packed, task.uploads, task.preparation) == (None, (), ("make",))


def test_a_file_that_changed_since_is_an_error(folder: Path) -> None:
    put(folder, "a", b"1")
    task = load_task(folder, "packed")
    put(folder, "a", b"2")
    with pytest.raises(TaskError, match="changed since the task was collected"):
        task.uploads  # noqa: B018


def test_what_is_odd_about_a_file_is_still_warned_about(folder: Path) -> None:
    put(folder, "run.sh", b"#!/bin/sh\r\n", 0o755)
    assert load_task(folder, "packed").warnings == (
        f"{folder / 'files'}: run.sh: a script with Windows line endings, which fails on Linux; convert it to LF",
    )


def test_files_made_in_code_can_be_packed() -> None:
    files = tuple(InputFile.of(f"f{number:02}", b"x") for number in range(60))
    task = Task(id="t", instruction="x", expected={"n": 1}, files=files, pack=True)
    assert isinstance(task.packed, Pack)
    assert [entry.path for entry in task.packed.entries] == [file.path for file in files]
    assert [file.path for file in task.uploads] == [f"{PART}0"]
