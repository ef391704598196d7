"""A task: its instruction, its files and the expected answer. Loaded from a folder, or made in code.

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

import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from copy import deepcopy
from dataclasses import asdict, dataclass, field, fields
from fnmatch import fnmatch
from functools import cached_property
from pathlib import Path
from typing import Any, Final

from pytest_core_rollouts.grading.answers import ANSWER_LIMIT, Answer, Grade, check_expected, grade_answer
from pytest_core_rollouts.grading.comparing import DEFAULT_TOLERANCE, KeyRule, Tolerance
from pytest_core_rollouts.grading.rules import rules_by_path
from pytest_core_rollouts.strict_json import InvalidJSON, parse_json, with_position
from pytest_core_rollouts.tasks.files import (
    FILE_LIMIT,
    LINE_ENDINGS,
    InputFile,
    TaskError,
    exists,
    input_path_problem,
    read_file,
    read_input_files,
    read_text,
    size_problem,
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
from pytest_core_rollouts.tasks.grader_file import OwnGrader, load_grader
from pytest_core_rollouts.tasks.packing import UNPACK, Pack, answer_copies
from pytest_core_rollouts.tasks.strict_yaml import SIZE_LIMIT, Invalid, YamlError, check, text
from pytest_core_rollouts.tasks.task_settings import UNFINISHED, FromEnv, Network, Outputs, Xfail
from pytest_core_rollouts.tasks.task_yaml import RULES, check_grading, read_settings
from pytest_core_rollouts.text import name_problem

__all__ = [
    "INSTRUCTION_LIMIT",
    "FromEnv",
    "InputFile",
    "Network",
    "Outputs",
    "Task",
    "TaskError",
    "Xfail",
    "is_task",
    "load_task",
]

INSTRUCTION_LIMIT: Final = 512 * 1024
"""Bytes of an instruction that a Session takes as its input."""


@dataclass(frozen=True, eq=False)
class Task:
    """One task, checked. Raises TaskError for anything that can't be run or graded.

    If a setting is None or empty, the run's options decide.
    """

    id: str
    instruction: str
    expected: Mapping[str, Any] | None = None
    """None if only a `grader.py` or the project's hook can grade it."""
    files: tuple[InputFile, ...] = ()
    tags: tuple[str, ...] = ()
    timeout: float | None = None
    """Seconds."""
    tolerance: Tolerance = DEFAULT_TOLERANCE
    network: Network | None = None
    env: Mapping[str, str | FromEnv] = field(default_factory=dict)
    packages: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """By package manager, `npm` or `python`."""
    setup_commands: tuple[str, ...] = ()
    samples: int | None = None
    skip: str | None = None
    xfail: Xfail | None = None
    """A text, the reason, is taken too."""
    grading: Mapping[str, KeyRule] = field(default_factory=dict)
    """Rules for single values, by their paths in `expected` as they are written: `totals.north`, `rows[*].price`."""
    pass_threshold: float = 1.0
    """The least reward with which a rollout passes."""
    outputs: Outputs | None = None
    """Further files that are fetched, for a grader and to be kept."""
    pack: bool = False
    """Whether the files go out as one archive."""
    silence: Mapping[str, str] = field(default_factory=dict)
    """Findings of `check` that are all right, by code, with the reason."""
    check: str | None = None
    """`static`: `check` only reads the task, and runs neither its solution nor code of the project that grades it."""
    path: Path | None = None
    """The folder; None for a task made in code."""
    solution_file: InputFile | None = None
    grader: OwnGrader | None = None
    packed: Pack | None = None
    """What `pack` made of the files; `files` is empty then."""
    warnings: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        try:
            self._check()
        except Invalid as invalid:
            raise TaskError(f"task {self.id!r}: {invalid}") from None

    def _check(self) -> None:
        given = {
            name: value
            for name in _RULES
            if (value := getattr(self, name)) is not None
            and value is not _DEFAULTS.get(name)
            and (value != {} or name == "expected")
        }
        for name, value in check(given, _RULES).items():
            if value is not given[name]:
                object.__setattr__(self, name, value)
        if self.grading:
            check_grading(self.expected, self.grading)
        self._refuse_answer_copies()
        if self.pack and self.files:
            object.__setattr__(self, "packed", Pack.of_files(self.files))
            object.__setattr__(self, "files", ())
        elif self.files and (problem := size_problem({file.path: file.size for file in self.files})):
            raise Invalid(problem, ("files",))

    def _refuse_answer_copies(self) -> None:
        if "answer-in-file" not in self.silence:
            for path in self.answer_copies():
                where = f"task {self.id!r}: files: {path}" if self.path is None else self.path / "files" / path
                raise TaskError(
                    f"{where}: equals the expected answer, so an agent could just copy it; remove the file, or say why "
                    "it is there with `silence: {answer-in-file: ...}` in task.yaml"
                )

    def answer_copies(self) -> list[str]:
        """The paths of files that equal the expected answer."""
        if self.expected is None:
            return []
        return list(answer_copies(self.expected, self.files, self.packed, self.path))

    @property
    def solution(self) -> bytes | None:
        """The content of `solution/solve.sh`, UTF-8; None without one. Raises TaskError if it changed since."""
        return None if self.solution_file is None else self.solution_file.read()

    def contents(self) -> dict[str, bytes]:
        """What is in `/workspace` for the agent to begin with: the content of every file by its relative path.

        Links and folders of a packed task are left out. Raises TaskError if a file changed since.
        """
        if self.packed is None:
            return {file.path: file.read() for file in self.files}
        return {entry.path: entry.read() for entry in self.packed.entries if entry.source is not None}

    @property
    def uploads(self) -> tuple[InputFile, ...]:
        """The files as a Session gets them. Raises TaskError if a packed one changed since."""
        return self.files if self.packed is None else self.packed.parts()

    @property
    def preparation(self) -> tuple[str, ...]:
        """The commands that prepare the sandbox, in their order."""
        return self.setup_commands if self.packed is None else (UNPACK, *self.setup_commands)

    @property
    def unset_variables(self) -> list[str]:
        """Variables of this machine that the sandbox should get and that are not set."""
        return [source.name for source in self._sources if source.value is None]

    def variables(self) -> dict[str, str]:
        """The sandbox's environment variables with their values. Raises TaskError for one that is not set here."""
        if unset := self.unset_variables:
            raise TaskError(f"task {self.id!r}: env: {', '.join(unset)} is not set in the environment of this machine")
        return {name: (value.value or "") if isinstance(value, FromEnv) else value for name, value in self.env.items()}

    @property
    def secrets(self) -> list[str]:
        """The values that must be masked wherever anything is written."""
        return [source.value for source in self._sources if source.secret and source.value is not None]

    @property
    def _sources(self) -> list[FromEnv]:
        return [value for value in self.env.values() if isinstance(value, FromEnv)]

    def grade(self, answer: Answer, rollout: object = None) -> Grade:
        """Grade by the task's `grader.py`, else by `expected`. Raises whatever `grader.py` raises."""
        if self.grader is not None:
            return self.grader.grade(self, answer, rollout)
        if self.expected is None:
            raise TaskError(
                f"task {self.id!r}: has nothing to grade by; give it `expected`, or implement the hook "
                "pytest_rollout_grade"
            )
        return grade_answer(self.expected, answer, self.tolerance, self.rules)

    @cached_property
    def rules(self) -> Mapping[tuple[str | int, ...], KeyRule]:
        """`grading` by paths into `expected`."""
        return rules_by_path(self.expected or {}, self.grading)

    @cached_property
    def input_digest(self) -> str:
        """SHA-256 (hex) of what the agent gets: the same task gives the same one in every checkout.

        What comes from a variable of this machine counts by the variable's name, never by its value.
        """
        env = {name: {"from_env": of.name} if isinstance(of, FromEnv) else of for name, of in self.env.items()}
        seen: dict[str, Any] = {
            "instruction": self.instruction,
            "files": [[file.path, file.sha256] for file in self.files],
            "env": env,
            "packages": self.packages,
            "setup_commands": self.setup_commands,
            "network": self.network and self.network.wire(),
        }
        return _digest(seen if self.packed is None else {**seen, "packed": self.packed.sha256})

    @cached_property
    def grading_digest(self) -> str:
        """SHA-256 (hex) of what decides the grade: 1 and 1.0 differ here, as they do in grading."""
        tolerance = [float(self.tolerance.relative), float(self.tolerance.absolute)]
        decides: dict[str, Any] = {"expected": self.expected, "tolerance": tolerance}
        if self.grading:
            decides["grading"] = {path: asdict(rule) for path, rule in self.grading.items()}
        if self.pass_threshold != 1:
            decides["pass_threshold"] = self.pass_threshold
        if self.outputs is not None:
            decides["outputs"] = asdict(self.outputs)
        if self.grader is not None:
            decides["grader"] = self.grader.sha256
        return _digest(decides)


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode("ascii")).hexdigest()


# Rules in addition to those of task.yaml


def _id(value: Any) -> str:
    if (problem := name_problem(text(value))) is not None:
        raise Invalid(problem)
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
            raise Invalid(f"expected an InputFile, got {file!r}; make one with InputFile.of(path, content)")
        if problem := input_path_problem(file.path):
            raise Invalid(f"{file.path!r}: {problem}")
        if file.path in files:
            raise Invalid(f"duplicate file {file.path!r}; remove one")
        files[file.path] = file
    for path in files:
        parents = path.split("/")[:-1]
        for depth in range(1, len(parents) + 1):
            if (parent := "/".join(parents[:depth])) in files:
                raise Invalid(f"{parent!r} is a file, and the folder of {path!r} too; rename one")
    return tuple(files[path] for path in sorted(files))


_RULES: Final = {"id": _id, "instruction": _instruction, "expected": _expected, "files": _files, **RULES}


_DEFAULTS: Final = {each.name: each.default for each in fields(Task)}  # need no check: tasks may be many

# Loading


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
        return _instruction(content)
    except Invalid as invalid:
        raise TaskError(f"{path}: {invalid}") from None


_BOM: Final = b"\xef\xbb\xbf"


def _read_expected(path: Path) -> dict[str, Any] | None:
    if not exists(path):
        return None
    content = read_file(path, ANSWER_LIMIT)
    try:
        return _expected(parse_json(content))
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
