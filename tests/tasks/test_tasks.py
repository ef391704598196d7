from __future__ import annotations

import hashlib
import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest

from pytest_core_rollouts.grading.answers import ANSWER_LIMIT
from pytest_core_rollouts.grading.comparing import DEFAULT_TOLERANCE, Tolerance
from pytest_core_rollouts.tasks.files import InputFile, TaskError
from pytest_core_rollouts.tasks.folders import is_task
from pytest_core_rollouts.tasks.loading import load_task
from pytest_core_rollouts.tasks.task import INSTRUCTION_LIMIT, Task
from pytest_core_rollouts.tasks.task_settings import Network, Xfail
from tests.support.tables import rows

MIB = 1024 * 1024


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder that is a task, and no more than that."""
    folder = tmp_path / "count"
    folder.mkdir()
    (folder / "instruction.md").write_bytes(b"Count the {lines}.\n")
    (folder / "expected.json").write_bytes(b'{"lines": 3}')
    return folder


def put(folder: Path, files: dict[str, bytes]) -> None:
    """Write files under a folder, their parents too."""
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)


def error_of(folder: Path) -> str:
    """The message for a folder that can't be loaded, without the path that leads to it."""
    with pytest.raises(TaskError) as caught:
        load_task(folder, "count")
    message = str(caught.value)
    assert message.startswith(str(folder))
    assert "\n" not in message
    return message.removeprefix(f"{folder}/")


# A whole task


def test_the_least_task(folder: Path) -> None:
    task = load_task(folder, "some/count")
    assert (task.id, task.instruction, task.expected, task.path) == (
        "some/count",
        "Count the {lines}.\n",
        {"lines": 3},
        folder,
    )
    assert (task.files, task.tags, task.setup_commands, task.warnings) == ((), (), (), ())
    assert (task.timeout, task.network, task.samples, task.skip, task.xfail, task.solution) == (None,) * 6
    assert (task.env, task.packages, task.tolerance) == ({}, {}, DEFAULT_TOLERANCE)


def test_a_task_with_everything(folder: Path) -> None:
    put(
        folder,
        {
            "files/data/in.csv": b"a,b\n",
            "solution/solve.sh": "echo é\n".encode(),
            "solution/notes.txt": b"not sent",
            "task.yaml": b"""
tags: [csv, slow-one]
timeout: 90
tolerance: {absolute: 0.01}
network: {allowed_domains: [data.example.com, "*.example.com"]}
env: {MODE: "1", EMPTY: ""}
packages: {npm: [left-pad], python: [numpy, six]}
setup_commands: [make all]
samples: 4
skip: not yet
xfail: too hard
""",
        },
    )
    task = load_task(folder, "count")
    assert [file.path for file in task.files] == ["data/in.csv"]
    assert task.solution == "echo é\n".encode()
    assert (task.tags, task.timeout, task.tolerance) == (("csv", "slow-one"), 90.0, Tolerance(absolute=0.01))
    assert task.network is not None
    assert task.network.wire() == {"access": "restricted", "allowed_domains": ["data.example.com", "*.example.com"]}
    assert (task.env, task.packages) == ({"MODE": "1", "EMPTY": ""}, {"npm": ("left-pad",), "python": ("numpy", "six")})
    assert (task.setup_commands, task.samples, task.skip, task.xfail) == (
        ("make all",),
        4,
        "not yet",
        Xfail("too hard"),
    )


def test_a_fault_in_task_yaml_has_file_key_and_line(folder: Path) -> None:
    put(folder, {"task.yaml": b"tags: [a]\ntimeout: 10:00\n"})
    assert error_of(folder).startswith("task.yaml:2: timeout: 10:00 is ambiguous")


def test_an_empty_task_yaml_means_defaults(folder: Path) -> None:
    put(folder, {"task.yaml": b""})
    assert load_task(folder, "count").timeout is None


# Halves


def test_what_is_a_task(folder: Path, tmp_path: Path) -> None:
    assert is_task(folder)
    assert not is_task(tmp_path)
    assert not is_task(tmp_path / "nowhere")
    (folder / "expected.json").rename(folder / "grader.py")
    assert is_task(folder)
    (folder / "grader.py").unlink()
    assert not is_task(folder)


def test_a_task_with_its_own_grader_needs_no_expected_answer(folder: Path) -> None:
    (folder / "expected.json").unlink()
    put(folder, {"grader.py": b"def grade(answer):\n    return 1\n"})
    assert load_task(folder, "count").expected is None


def test_the_missing_half_is_named(folder: Path) -> None:
    (folder / "instruction.md").rename(folder / "other.md")
    assert error_of(folder).endswith(
        "has expected.json but no instruction.md; write the instruction, or move the folder away"
    )
    (folder / "expected.json").unlink()
    assert "not a task" in error_of(folder)
    (folder / "other.md").rename(folder / "instruction.md")
    assert "has instruction.md but no expected.json or grader.py" in error_of(folder)


def test_a_settings_file_with_another_name_is_not_ignored(folder: Path) -> None:
    put(folder, {"task.yml": b"timeout: 1"})
    assert error_of(folder) == "task.yml: would be ignored; name it task.yaml"


# The instruction


@rows(
    ("content", "message"),
    [
        (b"", "instruction.md: must not be blank"),
        (b" \n\t\n", "instruction.md: must not be blank"),
        (b"\xef\xbb\xbf", "instruction.md: must not be blank"),
        (b"caf\xe9", "instruction.md:1: byte 3 is not UTF-8; save the file as UTF-8"),
        (b"ok\n\nna\xefve", "instruction.md:3: byte 6 is not UTF-8"),
        ("Zählen".encode("utf-16"), "instruction.md:1: byte 0 is not UTF-8"),
        (b"a\0b", "instruction.md: the string contains a NUL character"),
        (b"x" * (600 * 1024), "instruction.md: has 614,400 bytes; at most 524,291 are allowed"),
        (
            b"x" * (INSTRUCTION_LIMIT + 1),
            "instruction.md: 524,289 bytes; a Session takes 524,288 at most, so move data into",
        ),
    ],
)
def test_a_faulty_instruction(folder: Path, content: bytes, message: str) -> None:
    put(folder, {"instruction.md": content})
    assert error_of(folder).startswith(message)


@rows(
    ("content", "text"),
    [
        (b"\xef\xbb\xbfCount.", "Count."),
        (b"a\r\nb\r\n", "a\r\nb\r\n"),
        ("{x} é 🎈 %s $HOME".encode(), "{x} é 🎈 %s $HOME"),
        (b"x" * INSTRUCTION_LIMIT, "x" * INSTRUCTION_LIMIT),
        (b"\xef\xbb\xbf" + b"x" * INSTRUCTION_LIMIT, "x" * INSTRUCTION_LIMIT),
    ],
)
def test_an_instruction_is_sent_as_it_is(folder: Path, content: bytes, text: str) -> None:
    put(folder, {"instruction.md": content})
    assert load_task(folder, "count").instruction == text


# The expected answer


@rows(
    ("content", "problem"),
    [
        (b"", "not valid JSON: the file is empty (line 1, column 1)"),
        (b"{", "not valid JSON: "),
        (b'{"x": NaN}', "not valid JSON: NaN is not a JSON number"),
        (b'{"x": Infinity}', "not valid JSON: Infinity is not a JSON number"),
        (b'{"x": 1e999}', "not valid JSON: a number too large for a float"),
        (b'{"x": 1, "x": 2}', 'not valid JSON: duplicate key "x"'),
        (b'{"x": "\xff"}', "not valid JSON: byte 7 is not UTF-8"),
        (b"[" * 101 + b"]" * 101, "not valid JSON: nested more than 100 levels deep"),
        (b"{}", "the expected answer must be an object with at least one key"),
        (b"[1]", "the expected answer must be an object with at least one key"),
        (b"null", "the expected answer must be an object with at least one key"),
        ('{"\u00e9": 1, "e\u0301": 1}'.encode(), "an expected object has two keys that only differ in Unicode form"),
        (b'{"x": "' + b"x" * ANSWER_LIMIT + b'"}', "has 1,048,585 bytes; at most 1,048,576 are allowed"),
    ],
)
def test_a_faulty_expected_answer(folder: Path, content: bytes, problem: str) -> None:
    put(folder, {"expected.json": content})
    assert error_of(folder).startswith(f"expected.json: {problem}")


@rows(
    ("content", "place"),
    [
        ('{\n  "é": 1,\n  "x": NaN\n}', "NaN is not a JSON number (line 3, column 8)"),
        ('{"a": [1, -Infinity]}', "-Infinity is not a JSON number (line 1, column 11)"),
        ('{\r\n "é": 1e999, "b": 1}', "1e999 (line 2, column 7)"),
        (f'{{"a": {"9" * 1001}\n}}', "(at most 1,000 are read) (line 1, column 7)"),
        ('\ufeff{\n  "x": 1,\n  "y": {"z": 2},\n  "x": 3\n}', 'duplicate key "x" (line 4, column 3)'),
        ('{"x": 1, "\\u0078": 1}', 'duplicate key "x" (line 1, column 2)'),
        ('{"x":\n' + "[" * 100 + "]" * 100 + "}", "levels deep (line 2, column 100)"),
        ('{\n"x": 1,}', "(line 2, column 8)"),
        ('{\n"x": "\udcff"}', "byte 8 is not UTF-8 (line 2, column 7)"),
    ],
)
def test_a_fault_of_an_expected_answer_has_its_line_and_column(folder: Path, content: str, place: str) -> None:
    put(folder, {"expected.json": content.encode("utf-8", "surrogateescape")})
    assert f"{place}; fix it" in error_of(folder)


def test_an_expected_answer_may_have_a_byte_order_mark_and_line_endings_of_windows(folder: Path) -> None:
    put(folder, {"expected.json": b'\xef\xbb\xbf{\r\n"s": "a\\r\\n"\r\n}'})
    assert load_task(folder, "count").expected == {"s": "a\r\n"}


def test_an_expected_answer_is_read_once(folder: Path) -> None:
    task = load_task(folder, "count")
    (folder / "expected.json").unlink()
    assert task.expected == {"lines": 3}


# Files


def test_files_arrive_byte_for_byte(folder: Path) -> None:
    contents = {
        "all.bin": bytes(range(256)),
        "lines.txt": b"a\r\nb\n\r",
        "empty.txt": b"",
        ".env": b"A=1",
        ".git/HEAD": b"ref: x",
        "data.sqlite": b"SQLite format 3\0\xff",
        "deep/er/é 🎈.txt": b"x",
        "outputs/template.json": b"{}",
        "answer.json": b"{}",
    }
    put(folder / "files", contents)
    files = load_task(folder, "count").files
    assert [file.path for file in files] == sorted(contents)
    for file in files:
        assert file.read() == contents[file.path]
        assert (file.size, file.sha256) == (len(file.read()), hashlib.sha256(file.read()).hexdigest())


def test_junk_is_left_out(folder: Path) -> None:
    put(folder / "files", {"a.py": b"", "__pycache__/a.pyc": b"", "b.pyc": b"", "d/.DS_Store": b"", "d/e": b""})
    assert [file.path for file in load_task(folder, "count").files] == ["a.py", "d/e"]


def _file_instead(files: Path) -> None:
    files.rmdir()
    files.write_bytes(b"x")


def _linked(files: Path) -> None:
    files.rmdir()
    files.symlink_to("/")


def _socket(files: Path) -> None:
    here = Path.cwd()
    os.chdir(files)  # a socket's path must be short
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind("s")
    os.chdir(here)


def _named(name: bytes) -> Callable[[Path], None]:
    def make(files: Path) -> None:
        Path(os.fsdecode(os.fsencode(files) + b"/" + name)).write_bytes(b"x")

    return make


LINK = "is a symbolic link; put a copy of what it points to in its place"
FAULTS: dict[str, tuple[Callable[[Path], None], str]] = {
    "files is a file": (_file_instead, "files: is a regular file; it must be a folder with the files for /workspace"),
    "files is a link": (_linked, "files: is a symbolic link; it must be a folder"),
    "a link to a file": (lambda files: (files / "id").symlink_to("/etc/passwd"), f"files/id: {LINK}"),
    "a link to a folder": (lambda files: (files / "d").symlink_to("/"), f"files/d: {LINK}"),
    "a link to itself": (lambda files: (files / "self").symlink_to("."), f"files/self: {LINK}"),
    "a broken link": (lambda files: (files / "gone").symlink_to("nowhere"), f"files/gone: {LINK}"),
    "a link that stays inside": (lambda files: (files / "ok").symlink_to("../instruction.md"), f"files/ok: {LINK}"),
    "a FIFO": (lambda files: os.mkfifo(files / "pipe"), "files/pipe: is a FIFO; only files can be sent; remove it"),
    "a socket": (_socket, "files/s: is a socket; only files can be sent; remove it"),
    "a name that is not UTF-8": (_named(b"caf\xe9"), "files: the name b'caf\\xe9' in it is not UTF-8; rename it"),
    "a backslash": (_named(b"a\\b"), "files/'a\\\\b': a backslash is not allowed in a name; rename it"),
    "a line feed": (
        _named(b"a\nb"),
        "files/'a\\nb': the character U+000A is not allowed in a name; rename it",
    ),
    "a control character": (
        _named("a\u0085".encode()),
        "files/'a\\x85': the character U+0085 is not allowed in a name",
    ),
    "an answer": (
        lambda files: put(files, {"outputs/answer.json": b"{}"}),
        "files/'outputs/answer.json': the agent's answer goes to outputs/answer.json, so it can't be there",
    ),
    "an answer that is a folder": (
        lambda files: put(files, {"outputs/answer.json/x": b""}),
        "files/'outputs/answer.json/x': the agent's answer goes to outputs/answer.json",
    ),
    "outputs is a file": (lambda files: put(files, {"outputs": b""}), "files/'outputs': outputs must be a folder"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_faulty_file_is_named(folder: Path, fault: str) -> None:
    (folder / "files").mkdir()
    make, message = FAULTS[fault]
    make(folder / "files")
    assert error_of(folder).startswith(message)


def test_nothing_is_read_behind_a_link(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(tmp_path, {"secret/key": b"secret"})
    (folder / "files").mkdir()
    (folder / "files" / "a").symlink_to(tmp_path / "secret")
    opened: list[str] = []
    system_open = os.open

    def noted_open(path: Path, flags: int) -> int:
        opened.append(str(path))
        return system_open(path, flags)

    monkeypatch.setattr(os, "open", noted_open)
    assert error_of(folder).startswith("files/a: is a symbolic link")
    assert not [path for path in opened if "secret" in path or "files" in path]


@pytest.mark.parametrize("name", ["instruction.md", "expected.json", "task.yaml", "solution/solve.sh"])
def test_no_file_of_a_task_is_a_link(folder: Path, tmp_path: Path, name: str) -> None:
    (folder / "solution").mkdir()
    put(tmp_path, {"elsewhere": b'{"x": 1}'})
    (folder / name).unlink(missing_ok=True)
    (folder / name).symlink_to(tmp_path / "elsewhere")
    assert error_of(folder) == f"{name}: {LINK}"


@pytest.mark.parametrize("name", ["instruction.md", "expected.json", "task.yaml"])
def test_no_file_of_a_task_is_anything_but_a_file(folder: Path, name: str) -> None:
    (folder / name).unlink(missing_ok=True)
    (folder / name).mkdir()
    assert error_of(folder) == f"{name}: expected a regular file, found a folder; remove it"
    (folder / name).rmdir()
    os.mkfifo(folder / name)
    assert error_of(folder) == f"{name}: expected a regular file, found a FIFO; remove it"


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")
def test_what_cannot_be_read_is_named(folder: Path) -> None:
    put(folder, {"files/d/x": b""})
    (folder / "expected.json").chmod(0)
    assert error_of(folder).startswith("expected.json: can't be read: Permission denied")
    (folder / "expected.json").chmod(0o600)
    (folder / "files" / "d").chmod(0)
    assert error_of(folder).startswith("files/d: can't be read: Permission denied")
    (folder / "files" / "d").chmod(0o700)


def _sparse(path: Path, size: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:
        file.truncate(size)


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ([10] * 51, "files: 1 of 51 files are too many; a Session"),
        ([5 * MIB + 1, 7], "files: f00 has 1 byte too many; a Session takes at most 50"),
        (
            [MIB, 5 * MIB, 4 * MIB, 2],
            "files: together they have 2 bytes too many, the largest are f01 (5,242,880), f02 (4,194,304), "
            "f00 (1,048,576); a Session",
        ),
        ([20 * MIB], "files: f00 has 15,728,640 bytes too many; together they have 10,485,760 bytes too many"),
    ],
)
def test_too_many_or_too_large_files(folder: Path, sizes: list[int], message: str) -> None:
    for index, size in enumerate(sizes):
        _sparse(folder / "files" / f"f{index:02}", size)
    error = error_of(folder)
    assert error.startswith(message)
    assert error.endswith(
        "50 files, 5.0 MiB each and 10.0 MiB in all, so remove some, make them smaller, or set `pack: true` "
        "in task.yaml"
    )


def test_files_up_to_the_limits_are_taken(folder: Path) -> None:
    for index, size in enumerate([5 * MIB, 5 * MIB] + [0] * 48):
        _sparse(folder / "files" / f"f{index:02}", size)
    assert len(load_task(folder, "count").files) == 50


def test_a_file_that_changed_since_is_not_sent(folder: Path) -> None:
    put(folder, {"files/a": b"before", "files/b": b"before", "files/c": b"before"})
    same, grown, gone = load_task(folder, "count").files
    put(folder, {"files/a": b"behind", "files/b": b"before and more"})
    (folder / "files" / "c").unlink()
    with pytest.raises(TaskError, match="files/a: changed since the task was collected; run again"):
        same.read()
    with pytest.raises(TaskError, match="files/b: "):
        grown.read()
    with pytest.raises(TaskError, match="files/c: can't be read: No such file or directory"):
        gone.read()


def test_very_deep_folders_are_walked(folder: Path) -> None:
    depths = [folder / "files" / "/".join("d" * depth) for depth in range(1200)]
    for deeper in depths:
        deeper.mkdir()
    try:
        (warning,) = load_task(folder, "count").warnings
    finally:
        for deeper in reversed(depths):  # too deep for those who clean up by recursion
            deeper.rmdir()
    assert warning.startswith(f"{folder / 'files'}: d/: empty")


# Warnings


def test_what_arrives_otherwise_than_it_looks_is_warned_about(folder: Path) -> None:
    put(
        folder / "files",
        {
            "run.sh": b"#!/bin/sh\necho\n",
            "dos.sh": b"#!/bin/sh\r\necho\r\n",
            "dos.txt": b"a\r\n",
            "data.csv": b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12345\n",
            "junk/.DS_Store": b"",
        },
    )
    (folder / "files" / "run.sh").chmod(0o755)
    (folder / "files" / "out" / "in").mkdir(parents=True)
    where = f"{folder / 'files'}: "
    assert load_task(folder, "count").warnings == (
        f"{where}junk/, out/: empty, so it will not arrive; put a file into it, or set `pack: true` in task.yaml",
        f"{where}data.csv: a Git LFS pointer, not the data; run `git lfs pull`",
        f"{where}dos.sh: a script with Windows line endings, which fails on Linux; convert it to LF",
        f"{where}run.sh: arrives without its executable bit; start it with its interpreter, or set "
        "`pack: true` in task.yaml",
    )


def test_warnings_of_a_kind_are_one(folder: Path) -> None:
    for name in ("a/x", "b", "c/x", "d", "e"):
        put(folder / "files", {name: b""})
        (folder / "files" / name).chmod(0o755)
    (warning,) = load_task(folder, "count").warnings
    assert "files: a/x, b, c/x and 2 more: arrives without" in warning


def test_an_empty_files_folder_is_fine(folder: Path) -> None:
    (folder / "files").mkdir()
    task = load_task(folder, "count")
    assert (task.files, task.warnings) == ((), ())


# The solution


def test_a_solution_without_its_script_is_warned_about(folder: Path) -> None:
    put(folder, {"solution/solution.sh": b"echo"})
    task = load_task(folder, "count")
    assert task.solution is None
    assert task.warnings == (f"{folder / 'solution'}: has no solve.sh, so the task counts as one without a solution",)


@rows(
    ("content", "message"),
    [
        (b"", "solution/solve.sh: must not be blank; write the solution, or remove the file"),
        (b"echo \xff", "solution/solve.sh:1: byte 5 is not UTF-8"),
    ],
)
def test_a_faulty_solution(folder: Path, content: bytes, message: str) -> None:
    put(folder, {"solution/solve.sh": content})
    assert error_of(folder).startswith(message)


def test_a_solution_that_is_a_file_or_a_link(folder: Path) -> None:
    (folder / "solution").write_bytes(b"echo")
    assert error_of(folder).startswith("solution: must be a folder")
    (folder / "solution").unlink()
    (folder / "solution").symlink_to("/tmp")
    assert error_of(folder).startswith("solution: must be a folder")


def test_a_solution_with_line_endings_of_windows_is_warned_about(folder: Path) -> None:
    put(folder, {"solution/solve.sh": b"echo\r\n"})
    (warning,) = load_task(folder, "count").warnings
    assert warning.startswith(f"{folder / 'solution' / 'solve.sh'}: a script with Windows line endings")


def test_a_solution_that_changed_since_is_not_sent(folder: Path) -> None:
    put(folder, {"solution/solve.sh": b"echo 1"})
    task = load_task(folder, "count")
    put(folder, {"solution/solve.sh": b"echo 2"})
    with pytest.raises(TaskError, match="changed since"):
        _ = task.solution


# Digests


def make(**changes: Any) -> Task:
    """A task made in code."""
    return Task(**{"id": "t", "instruction": "Do it.", "expected": {"n": 1}, **changes})


def test_digests_do_not_depend_on_the_place(folder: Path, tmp_path: Path) -> None:
    put(folder, {"files/a": b"a", "files/b/c": b"c", "solution/solve.sh": b"x", "task.yaml": b"env: {B: '1', A: '2'}"})
    other = tmp_path / "elsewhere" / "renamed"
    put(other, {"files/b/c": b"c", "files/a": b"a", "task.yaml": b"env: {A: '2', B: '1'}"})
    put(other, {"instruction.md": b"\xef\xbb\xbfCount the {lines}.\n", "expected.json": b'{ "lines" : 3 }'})
    here, there = load_task(folder, "count"), load_task(other, "x")
    assert (here.input_digest, here.grading_digest) == (there.input_digest, there.grading_digest)


def test_a_task_made_in_code_has_the_digests_of_its_folder(folder: Path) -> None:
    put(folder, {"files/a": b"a"})
    made = make(instruction="Count the {lines}.\n", expected={"lines": 3}, files=[InputFile.of("a", b"a")])
    loaded = load_task(folder, "count")
    assert (made.input_digest, made.grading_digest) == (loaded.input_digest, loaded.grading_digest)


CHANGES_OF_INPUT: list[dict[str, Any]] = [
    {"instruction": "Do it!"},
    {"files": (InputFile.of("a", b""),)},
    {"files": (InputFile.of("b", b""),)},
    {"files": (InputFile.of("a", b"x"),)},
    {"env": {"A": "1"}},
    {"packages": {"npm": ("x",)}},
    {"setup_commands": ("x",)},
    {"network": Network.disabled()},
    {"network": Network.enabled()},
    {"network": Network("restricted", ("x.org",))},
]
CHANGES_OF_GRADING: list[dict[str, Any]] = [
    {"expected": {"n": 1.0}},
    {"expected": {"n": True}},
    {"expected": {"n": "1"}},
    {"expected": {"n": [1]}},
    {"expected": {"m": 1}},
    {"expected": None},
    {"tolerance": Tolerance(relative=0.1)},
    {"tolerance": Tolerance(absolute=1e-6)},
]
NO_CHANGES: list[dict[str, Any]] = [
    {"id": "u"},
    {"tags": ("a",)},
    {"timeout": 5},
    {"samples": 2},
    {"skip": "x"},
    {"xfail": "x"},
    {"path": Path("x")},
    {"warnings": ("x",)},
    {"solution_file": InputFile.of("solution/solve.sh", b"x")},
]


def test_each_digest_covers_what_it_should() -> None:
    base = make()
    for change in CHANGES_OF_INPUT:
        assert make(**change).input_digest != base.input_digest, change
        assert make(**change).grading_digest == base.grading_digest, change
    for change in CHANGES_OF_GRADING:
        assert make(**change).input_digest == base.input_digest, change
        assert make(**change).grading_digest != base.grading_digest, change
    for change in NO_CHANGES:
        assert make(**change).input_digest == base.input_digest, change
        assert make(**change).grading_digest == base.grading_digest, change
    assert len({make(**change).input_digest for change in CHANGES_OF_INPUT}) == len(CHANGES_OF_INPUT)
    assert len({make(**change).grading_digest for change in CHANGES_OF_GRADING}) == len(CHANGES_OF_GRADING)


def test_a_whole_tolerance_has_the_digest_of_a_fractional_one() -> None:
    assert make(tolerance=Tolerance(0, 1)).grading_digest == make(tolerance=Tolerance(0.0, 1.0)).grading_digest


# Made in code


def test_a_task_made_in_code_is_put_into_shape() -> None:
    values = [1]
    task = make(
        expected=MappingProxyType({"n": values}),
        files=[InputFile.of("b", b""), InputFile.of("a/x", b"x")],
        tags=["a"],
        timeout=5,
        network="enabled",
        packages={"npm": ["x"]},
    )
    assert [file.path for file in task.files] == ["a/x", "b"]
    assert (task.tags, task.timeout, task.network) == (("a",), 5.0, Network.enabled())
    assert task.packages == {"npm": ("x",)}
    values.append(2)
    assert task.expected == {"n": [1]}
    assert (task.path, task.solution) == (None, None)
    assert make(solution_file=InputFile.of("solution/solve.sh", b"x")).solution == b"x"


@rows(
    ("change", "message"),
    [
        ({"id": ""}, "task '': id: must not be blank"),
        ({"id": "a\nb"}, "task 'a\\nb': id: the character U+000A is not allowed in a name"),
        ({"id": "a\udcff"}, "task 'a\\udcff': id: the string contains a lone surrogate"),
        ({"instruction": " "}, "task 't': instruction: must not be blank"),
        ({"instruction": "é" * 300_000}, "task 't': instruction: 600,000 bytes; a Session takes 524,288 at most"),
        ({"instruction": "\ud835"}, "task 't': instruction: the string contains a lone surrogate"),
        ({"instruction": b"x"}, "task 't': instruction: expected a string, got a value of type bytes"),
        ({"expected": {}}, "task 't': expected: the expected answer must be an object with at least one key"),
        ({"expected": {"n": float("nan")}}, "task 't': expected: the expected answer has a number that is too large"),
        ({"expected": [1]}, "task 't': expected: the expected answer must be an object"),
        ({"files": ["a"]}, "task 't': files: expected an InputFile, got 'a'"),
        ({"files": [InputFile.of("/a", b"")]}, "task 't': files: '/a': the path must be relative"),
        ({"files": [InputFile.of("../a", b"")]}, "task 't': files: '../a': the path must be relative"),
        ({"files": [InputFile.of("a//b", b"")]}, "task 't': files: 'a//b': the path must be relative"),
        ({"files": [InputFile.of("", b"")]}, "task 't': files: '': the path must be relative"),
        (
            {"files": [InputFile.of("a\ud835", b"")]},
            "task 't': files: 'a\\ud835': the character U+D835 is not allowed",
        ),
        (
            {"files": [InputFile.of("outputs/answer.json", b"")]},
            "task 't': files: 'outputs/answer.json': the agent's answer",
        ),
        ({"files": [InputFile.of("a", b"")] * 2}, "task 't': files: duplicate file 'a'; remove one"),
        (
            {"files": [InputFile.of("a/b/c", b""), InputFile.of("a", b"")]},
            "task 't': files: 'a' is a file, and the folder of",
        ),
        ({"files": [InputFile.of(f"{n}", b"") for n in range(51)]}, "task 't': files: 1 of 51 files are too many"),
        ({"files": [InputFile.of("a", bytes(5 * MIB + 1))]}, "task 't': files: a has 1 byte too many"),
        ({"tags": ["no tag"]}, "task 't': tags[0]: invalid tag 'no tag'"),
        ({"timeout": -1}, "task 't': timeout: expected a number above 0, got -1"),
        ({"timeout": float("inf")}, "task 't': timeout: expected a number above 0, got inf"),
        ({"network": "offline"}, "task 't': network: expected disabled, enabled or"),
        ({"network": Network("offline")}, "task 't': network: expected disabled, enabled or"),
        ({"network": Network("restricted")}, "task 't': network.allowed_domains: expected at least one domain"),
        ({"env": {"A": 1}}, "task 't': env.A: expected a string, got 1; put it in quotes"),
        ({"packages": {"system": ["x"]}}, "task 't': packages.system: OpenAgentCore rejects system packages"),
        ({"samples": 0}, "task 't': samples: expected a positive integer, got 0"),
        ({"skip": True}, "task 't': skip: expected a string, got true"),
    ],
)
def test_a_task_made_in_code_is_held_to_the_same_rules(change: dict[str, Any], message: str) -> None:
    with pytest.raises(TaskError) as caught:
        make(**change)
    assert str(caught.value).startswith(message)


def test_messages_can_always_be_printed() -> None:
    with pytest.raises(TaskError) as caught:
        load_task(Path("caf\udce9"), "x")
    assert str(caught.value).startswith("caf\\udce9: not a task")


# Everywhere the same


@pytest.fixture
def foreign(tmp_path: Path) -> Path:
    """A task with é and a balloon in every name and text."""
    folder = tmp_path / "zählen-🎈"
    put(
        folder,
        {
            "instruction.md": "Zähle 🎈.".encode(),
            "expected.json": '{"é": "🎈"}'.encode(),
            "task.yaml": "env: {A: é}".encode(),
            "files/é/🎈.txt": "é".encode(),
        },
    )
    return folder


SCRIPT = """
import json, os, sys
from pathlib import Path
from pytest_core_rollouts.tasks.loading import load_task
folder, = Path(sys.argv[1]).iterdir()
task = load_task(folder, folder.name)
contents = {file.path: file.read().hex() for file in task.files}
print(json.dumps([task.id, task.instruction, dict(task.expected), dict(task.env), contents, task.input_digest]))
"""


def test_nothing_depends_on_the_locale(foreign: Path) -> None:
    results = []
    for settings in ({"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}, {"PYTHONUTF8": "1"}):
        environment = {"PATH": os.environ["PATH"], **settings}
        command = [sys.executable, "-c", SCRIPT, str(foreign.parent)]
        results.append(subprocess.run(command, env=environment, check=True, capture_output=True).stdout)
    assert results[0] == results[1]
    content = ["zählen-🎈", "Zähle 🎈.", {"é": "🎈"}, {"A": "é"}, {"é/🎈.txt": "é".encode().hex()}]
    assert json.loads(results[0])[:-1] == content
