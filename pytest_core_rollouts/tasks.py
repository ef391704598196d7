"""A task: what an agent is told and given, and what it should answer. Loaded from a folder, or made in code.

A task folder holds:

- `instruction.md`: the text that is sent, as it is (a byte order mark dropped; line endings kept, so a checkout that
  changes them changes `Task.input_digest`).
- `expected.json`: the object that the answer must match (see `grading`), or `grader.py`, or both.
- `files/`, optional: arrives in `/workspace`, byte for byte, hidden and empty files too; `.DS_Store`, `__pycache__` and
  `*.pyc` stay out.
- `task.yaml`, optional: settings (see `task_yaml`).
- `solution/solve.sh`, optional: a shell script that solves the task; never sent to an agent.

Whatever is wrong with a folder is a TaskError that names the file and says what to do.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Final

from pytest_core_rollouts.grading import (
    ANSWER_LIMIT,
    DEFAULT_TOLERANCE,
    InvalidJSON,
    Tolerance,
    check_expected,
    parse_json,
)
from pytest_core_rollouts.strict_yaml import SIZE_LIMIT, Invalid, YamlError, check, text
from pytest_core_rollouts.task_files import (
    FILE_LIMIT,
    LINE_ENDINGS,
    InputFile,
    TaskError,
    exists,
    path_problem,
    read_file,
    read_input_files,
    read_text,
    size_problem,
)
from pytest_core_rollouts.task_yaml import RULES, Network, read_settings

__all__ = ["INSTRUCTION_LIMIT", "InputFile", "Network", "Task", "TaskError", "is_task", "load_task"]

INSTRUCTION_LIMIT: Final = 512 * 1024
"""Bytes of an instruction that a Session takes as its input."""


@dataclass(frozen=True, eq=False)
class Task:
    """One task, checked. Raises TaskError for anything that can't be run or graded.

    What is None (or empty) was not said: the run's options decide.
    """

    id: str
    instruction: str
    expected: Mapping[str, Any] | None = None
    """None: only a grader of the project's own can grade it."""
    files: tuple[InputFile, ...] = ()
    tags: tuple[str, ...] = ()
    timeout: float | None = None
    """Seconds."""
    tolerance: Tolerance = DEFAULT_TOLERANCE
    network: Network | None = None
    env: Mapping[str, str] = field(default_factory=dict)
    packages: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """By package manager, `npm` or `python`."""
    setup_commands: tuple[str, ...] = ()
    samples: int | None = None
    skip: str | None = None
    xfail: str | None = None
    path: Path | None = None
    """The folder; None for a task made in code."""
    solution_file: InputFile | None = None
    warnings: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        given = {name: getattr(self, name) for name in _RULES}
        try:
            checked = check({name: value for name, value in given.items() if value is not None}, _RULES)
        except Invalid as invalid:
            raise TaskError(f"task {self.id!r}: {invalid}") from None
        for name, value in checked.items():
            object.__setattr__(self, name, value)

    @property
    def solution(self) -> bytes | None:
        """The content of `solution/solve.sh`, UTF-8; None if there is none. Raises TaskError if it changed since."""
        return None if self.solution_file is None else self.solution_file.read()

    @cached_property
    def input_digest(self) -> str:
        """SHA-256 (hex) of what the agent gets: the same task gives the same one in every checkout."""
        return _digest(
            {
                "instruction": self.instruction,
                "files": [[file.path, file.sha256] for file in self.files],
                "env": self.env,
                "packages": self.packages,
                "setup_commands": self.setup_commands,
                "network": self.network and self.network.wire(),
            }
        )

    @cached_property
    def grading_digest(self) -> str:
        """SHA-256 (hex) of what decides the grade: 1 and 1.0 differ here, as they do in grading."""
        tolerance = [float(self.tolerance.relative), float(self.tolerance.absolute)]
        return _digest({"expected": self.expected, "tolerance": tolerance})


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode("ascii")).hexdigest()


# Rules beside those of task.yaml


def _id(value: Any) -> str:
    if any(ord(character) < 32 for character in text(value)):
        raise Invalid("a control character is not allowed")
    return str(value)


def _instruction(value: Any) -> str:
    size = len(text(value).encode("utf-8"))
    if size > INSTRUCTION_LIMIT:
        raise Invalid(f"{size:,} bytes; a Session takes {INSTRUCTION_LIMIT:,} at most, so move data into files/")
    return str(value)


def _expected(value: Any) -> dict[str, Any]:
    plain = dict(value) if isinstance(value, Mapping) else value
    try:
        check_expected(plain)
    except ValueError as error:
        raise Invalid(f"{error}; write the object that the answer must match") from None
    return deepcopy(plain)


def _files(value: Any) -> tuple[InputFile, ...]:
    files: dict[str, InputFile] = {}
    for file in value:
        if not isinstance(file, InputFile):
            raise Invalid(f"an InputFile is due, not {file!r}; make one with InputFile.of(path, content)")
        if problem := path_problem(file.path):
            raise Invalid(f"{file.path!r}: {problem}")
        if file.path in files:
            raise Invalid(f"{file.path!r} is there twice; remove one")
        files[file.path] = file
    for path in files:
        parents = path.split("/")[:-1]
        for depth in range(1, len(parents) + 1):
            if (parent := "/".join(parents[:depth])) in files:
                raise Invalid(f"{parent!r} is a file, and the folder of {path!r} too; rename one")
    if problem := size_problem({path: file.size for path, file in files.items()}):
        raise Invalid(problem)
    return tuple(files[path] for path in sorted(files))


_RULES: Final = {"id": _id, "instruction": _instruction, "expected": _expected, "files": _files, **RULES}


# Loading


def is_task(path: Path) -> bool:
    """Whether a folder is a task: `instruction.md`, and `expected.json` or `grader.py`."""
    return (path / "instruction.md").is_file() and any((path / name).is_file() for name in _GRADED_BY)


_GRADED_BY: Final = ("expected.json", "grader.py")


def load_task(path: Path, task_id: str) -> Task:
    """The task in a folder. Raises TaskError for whatever is wrong with it; reads all of it, follows no link in it."""
    _check_parts(path)
    solution, solution_warnings = _read_solution(path / "solution")
    files, file_warnings = read_input_files(path / "files")
    return Task(
        id=_decoded(task_id),
        instruction=_read_instruction(path / "instruction.md"),
        expected=_read_expected(path / "expected.json"),
        files=files,
        path=path,
        solution_file=solution,
        warnings=(*file_warnings, *solution_warnings),
        **_read_settings(path / "task.yaml"),
    )


def _decoded(name: str) -> str:
    """A name from the file system as the UTF-8 it is, also where the locale made Python read it as ASCII."""
    try:
        return name.encode("ascii", "surrogateescape").decode("utf-8")
    except UnicodeError:
        return name


def _check_parts(path: Path) -> None:
    instruction = exists(path / "instruction.md")
    graded_by = [name for name in _GRADED_BY if exists(path / name)]
    if not instruction and not graded_by:
        raise TaskError(f"{path}: is no task; a task is a folder with instruction.md and expected.json (or grader.py)")
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
        return _instruction(content)
    except Invalid as invalid:
        raise TaskError(f"{path}: {invalid}") from None


_BOM: Final = b"\xef\xbb\xbf"


def _read_expected(path: Path) -> dict[str, Any] | None:
    if not exists(path):
        return None
    try:
        return _expected(parse_json(read_file(path, ANSWER_LIMIT)))
    except InvalidJSON as error:
        raise TaskError(f"{path}: {error}; mend it, an answer is held to the same rules") from None
    except Invalid as invalid:
        raise TaskError(f"{path}: {invalid}") from None


def _read_settings(path: Path) -> dict[str, Any]:
    if not exists(path):
        return {}
    try:
        return read_settings(path, read_file(path, SIZE_LIMIT))
    except YamlError as error:
        raise TaskError(str(error)) from None


def _read_solution(folder: Path) -> tuple[InputFile | None, tuple[str, ...]]:
    if not exists(folder):
        return None, ()
    if folder.is_symlink() or not folder.is_dir():
        raise TaskError(f"{folder}: must be a folder (no link to one) with solve.sh in it; remove it, or make it one")
    script = folder / "solve.sh"
    if not exists(script):
        return None, (f"{folder}: has no solve.sh, so the task counts as one without a solution",)
    content = read_text(script, FILE_LIMIT)
    if not content.strip():
        raise TaskError(f"{script}: is blank; write the solution, or remove the file")
    warnings = (f"{script}: {LINE_ENDINGS}",) if "\r\n" in content else ()
    return InputFile.of("solution/solve.sh", read_file(script, FILE_LIMIT), script), warnings
