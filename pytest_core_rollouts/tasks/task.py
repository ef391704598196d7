"""A task: its instruction, its files and what grades its answer. `loading` makes it from a folder."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import asdict, dataclass, field, fields
from functools import cached_property
from pathlib import Path
from typing import Any, Final

from pytest_core_rollouts.grading.answers import Answer, Grade, check_expected, grade_answer
from pytest_core_rollouts.grading.comparing import DEFAULT_TOLERANCE, KeyRule, Tolerance
from pytest_core_rollouts.grading.rules import rules_by_path
from pytest_core_rollouts.tasks.files import (
    InputFile,
    TaskError,
    input_path_problem,
    size_problem,
)
from pytest_core_rollouts.tasks.grader_file import OwnGrader
from pytest_core_rollouts.tasks.packing import UNPACK, Pack, answer_copies
from pytest_core_rollouts.tasks.strict_yaml import Invalid, check, text
from pytest_core_rollouts.tasks.task_settings import FromEnv, Network, Outputs, Xfail
from pytest_core_rollouts.tasks.task_yaml import RULES, check_grading
from pytest_core_rollouts.text import name_problem

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


def instruction_rule(value: Any) -> str:
    """Return an instruction. Raises Invalid for one that no Session takes."""
    size = len(text(value).encode("utf-8"))
    if size > INSTRUCTION_LIMIT:
        raise Invalid(f"{size:,} bytes; a Session takes {INSTRUCTION_LIMIT:,} at most, so move data into files/")
    return str(value)


def expected_rule(value: Any) -> dict[str, Any]:
    """Return a copy of an expected answer. Raises Invalid for one that no answer can equal."""
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


_RULES: Final = {"id": _id, "instruction": instruction_rule, "expected": expected_rule, "files": _files, **RULES}


_DEFAULTS: Final = {each.name: each.default for each in fields(Task)}  # need no check: tasks may be many
