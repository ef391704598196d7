"""Load tasks from their folders.

A task folder holds:

- `instruction.md`: the text that is sent, as it is (a byte order mark dropped; line endings kept, so a checkout that
  changes them changes `Task.input_digest`).
- `expected.json`: the object that the answer must match (see `grading`), or `grader.py`: a function that grades (see
  `grader_file`), or both.
- `files/`, optional: arrives in `/workspace`, byte for byte, hidden and empty files too; `.DS_Store`, `__pycache__` and
  `*.pyc` stay out. With `pack: true` as one archive (see `packing`).
- `task.yaml`, optional: settings (see `task_yaml`).
- `solution/solve.sh`, optional: a shell script that solves the task; never sent to an agent.

Whatever is wrong with a folder is a TaskError that names the file and says what to do.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from fnmatch import fnmatch
from pathlib import Path
from typing import Any, Final

from pytest_core_rollouts.grading.answers import ANSWER_LIMIT
from pytest_core_rollouts.strict_json import InvalidJSON, parse_json, with_position
from pytest_core_rollouts.tasks.files import (
    FILE_LIMIT,
    LINE_ENDINGS,
    InputFile,
    TaskError,
    exists,
    read_file,
    read_input_files,
    read_text,
)
from pytest_core_rollouts.tasks.folders import (
    GRADED_BY,
    is_task,
    is_task_folder,
    leads_back,
    settings_of_pytest,
    task_id,
    utf8_name,
)
from pytest_core_rollouts.tasks.grader_file import load_grader
from pytest_core_rollouts.tasks.packing import Pack
from pytest_core_rollouts.tasks.strict_yaml import SIZE_LIMIT, Invalid, YamlError
from pytest_core_rollouts.tasks.task import INSTRUCTION_LIMIT, Task, expected_rule, instruction_rule
from pytest_core_rollouts.tasks.task_settings import UNFINISHED
from pytest_core_rollouts.tasks.task_yaml import read_settings
from pytest_core_rollouts.text import name_problem


def load_task(path: Path, task_id: str) -> Task:
    """The task in a folder. Raises TaskError for whatever is wrong with it; reads all of it, follows no link in it."""
    _check_parts(path)
    expected = _read_expected(path / "expected.json")
    settings = _read_settings(path / "task.yaml", expected)
    packed = Pack.of_folder(path / "files") if settings.get("pack") else None
    files, file_warnings = ((), ()) if settings.get("pack") else read_input_files(path / "files")
    solution, solution_warnings = _read_solution(path / "solution")
    return Task(
        id=utf8_name(task_id),
        instruction=_read_instruction(path / "instruction.md"),
        expected=expected,
        files=files,
        path=path,
        solution_file=solution,
        grader=load_grader(path / "grader.py") if exists(path / "grader.py") else None,
        packed=packed,
        warnings=(*file_warnings, *(packed.warnings if packed else ()), *solution_warnings),
        **settings,
    )


def _check_parts(path: Path) -> None:
    instruction = exists(path / "instruction.md")
    graded_by = [name for name in GRADED_BY if exists(path / name)]
    if not instruction and not graded_by:
        raise TaskError(f"{path}: not a task; a task folder needs instruction.md and expected.json or grader.py")
    if not instruction:
        raise TaskError(
            f"{path}: has {graded_by[0]} but no instruction.md; write the instruction, or move the folder away"
        )
    if not graded_by:
        raise TaskError(
            f"{path}: has instruction.md but no expected.json or grader.py; add one, or move the folder away"
        )
    if exists(path / "task.yml"):
        raise TaskError(f"{path / 'task.yml'}: would be ignored; name it task.yaml")


def _read_instruction(path: Path) -> str:
    content = read_text(path, INSTRUCTION_LIMIT + len(_BOM))
    try:
        return instruction_rule(content)
    except Invalid as invalid:
        raise TaskError(f"{path}: {invalid}") from None


_BOM: Final = b"\xef\xbb\xbf"


def _read_expected(path: Path) -> dict[str, Any] | None:
    if not exists(path):
        return None
    content = read_file(path, ANSWER_LIMIT)
    try:
        return expected_rule(parse_json(content))
    except InvalidJSON as error:
        what = with_position(error, content)
        raise TaskError(f"{path}: {what}; fix it, the same rules apply to answers") from None
    except Invalid as invalid:
        raise TaskError(f"{path}: {invalid}") from None


def _read_settings(path: Path, expected: Mapping[str, Any] | None) -> dict[str, Any]:
    if not exists(path):
        return {}
    try:
        return read_settings(path, read_file(path, SIZE_LIMIT), expected)
    except YamlError as error:
        raise TaskError(str(error)) from None


NO_SOLVE: Final = "has no solve.sh, so the task counts as one without a solution"


def _read_solution(folder: Path) -> tuple[InputFile | None, tuple[str, ...]]:
    if not exists(folder):
        return None, ()
    if folder.is_symlink() or not folder.is_dir():
        raise TaskError(f"{folder}: must be a folder (no link to one) with solve.sh in it; remove it, or make it one")
    script = folder / "solve.sh"
    if not exists(script):
        return None, (f"{folder}: {NO_SOLVE}",)
    content = read_text(script, FILE_LIMIT)
    if not content.strip():
        raise TaskError(f"{script}: must not be blank; write the solution, or remove the file")
    warnings = (f"{script}: {LINE_ENDINGS}",) if "\r\n" in content else ()
    return InputFile.of("solution/solve.sh", read_file(script, FILE_LIMIT), script), warnings


NOT_SEARCHED: Final = ("*.egg", ".*", "_darcs", "build", "CVS", "dist", "node_modules", "venv", "{arch}")
"""Folders that pytest does not look into (its default of `norecursedirs`)."""


def load_tasks(root: Path | str) -> list[Task]:
    """Load every task below a folder, with the ids that a pytest session gives them, in its order.

    A task's id is its path below `root`: `orders-json`, `sql/joins`. A folder that is a task itself is the only one,
    with its name as id. Other files and folders are ignored.

    Raises TaskError for a faulty or unfinished task, and for a folder without tasks.
    """
    folder = Path(os.path.normpath(Path(root).absolute()))
    if not folder.is_dir():
        raise TaskError(f"{folder}: not a folder; name the folder that holds the tasks")
    tasks = [_load(path, folder) for path in ([folder] if is_task(folder) else _task_folders(folder, folder))]
    if not tasks:
        raise TaskError(f"{folder}: holds no tasks; a task is a folder with instruction.md and expected.json")
    return tasks


def _task_folders(folder: Path, root: Path) -> Iterator[Path]:
    for path in sorted(folder.iterdir()):
        if not path.is_dir() or any(fnmatch(path.name, pattern) for pattern in NOT_SEARCHED):
            continue
        if path.is_symlink() and leads_back(path, [root]):
            continue
        if is_task_folder(path, [root]):
            yield path
        else:
            yield from _task_folders(path, root)


def _load(path: Path, root: Path) -> Task:
    name = task_id(path, [root], root)
    if (problem := name_problem(name)) is not None:
        raise TaskError(f"{path}: {problem}")
    if settings := settings_of_pytest(path):
        raise TaskError(f"{settings[0]}: a task folder is data and can't configure pytest; move the file away")
    task = load_task(path, name)
    if UNFINISHED in f"{task.instruction}{task.expected}":
        raise TaskError(f"{path}: unfinished, it still contains {UNFINISHED}")
    return task
