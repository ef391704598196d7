"""A project's own graders: a `grader.py` in a task's folder, and what any grader may return.

`grader.py` defines `grade`, which takes any of these by name: `task`, `answer` (an Answer), `artifacts` (the files that
`outputs` names, content by path), `answer_text` (what the agent wrote, if that is not JSON), `rollout`. It returns a
Grade, or a reward from 0 to 1; True and False are 1 and 0.

The file is read and compiled when its task is collected, so that what runs is what the digest says. It runs as a module
in a worker process (`grader_pool`) when it first grades there. Its folder is not put on the path: two graders never see
each other, and none can replace another module. It is sent to no sandbox.
"""

from __future__ import annotations

import ast
import hashlib
import inspect
import os
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import ModuleType
from typing import Any, Final

from pytest_core_rollouts.grading.answers import REASONS_LIMIT, Answer, Grade, is_number
from pytest_core_rollouts.grading.comparing import Reason
from pytest_core_rollouts.tasks.files import TaskError, read_file

SIZE_LIMIT: Final = 1024 * 1024
ARGUMENTS: Final = ("task", "answer", "artifacts", "answer_text", "rollout")


@dataclass(frozen=True, eq=False)
class OwnGrader:
    """A task's `grader.py`. `sha256` is that of its source."""

    path: Path
    sha256: str
    source: bytes = field(repr=False)
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)
    _functions: list[Callable[..., Any]] = field(default_factory=list, repr=False)
    _arguments: list[list[str]] = field(default_factory=list, repr=False)

    def __reduce__(self) -> tuple[type[OwnGrader], tuple[Path, str, bytes]]:
        return OwnGrader, (self.path, self.sha256, self.source)

    def grade(self, task: Any, answer: Answer, rollout: Any) -> Grade:
        """Call `grade()` in a worker process and wait. Raises GraderFailed for whatever goes wrong there."""
        from pytest_core_rollouts.tasks.grader_pool import POOL

        return POOL.grade(self, task, answer, rollout)

    def grade_here(self, task: Any, answer: Answer, rollout: Any) -> Grade:
        """Call `grade()` in this process. Raises whatever it raises, TypeError or ValueError for an invalid grade."""
        function, arguments = self._load()
        values = dict(
            zip(ARGUMENTS, (task, answer, answer.artifacts, answer.text, rollout), strict=True)  # what it may ask for
        )
        return as_grade(function(**{name: values[name] for name in arguments}), "grade()")

    def takes(self, argument: str) -> bool:
        """Whether `grade()` takes this argument. Runs the module, as grading does."""
        return argument in self._load()[1]

    def _load(self) -> tuple[Callable[..., Any], list[str]]:
        """Return the function and the arguments that it takes."""
        with self._lock:  # several samples may be graded at once, and the module must run once
            if not self._functions:
                self._functions.append(self._run())
            if not self._arguments:
                self._arguments.append(_parameter_names(self._functions[0], self.path))
            return self._functions[0], self._arguments[0]

    def _run(self) -> Callable[..., Any]:
        place = hashlib.sha256(os.fsencode(self.path)).hexdigest()
        module = ModuleType(f"rollout_grader_{self.sha256[:12]}_{place[:12]}")
        module.__file__ = str(self.path)
        sys.modules[module.__name__] = module  # dataclasses and pickle look a class's module up
        try:
            exec(compile(self.source, str(self.path), "exec", dont_inherit=True), module.__dict__)
        except BaseException:
            del sys.modules[module.__name__]
            raise
        function: Callable[..., Any] | None = getattr(module, "grade", None)
        if not callable(function):  # it may have been set to anything
            raise TypeError(f"{self.path}: grade must be a function")
        return function


def load_grader(path: Path) -> OwnGrader:
    """Read and compile a `grader.py`, without running it. Raises TaskError."""
    source = read_file(path, SIZE_LIMIT)
    try:
        tree = ast.parse(source, filename=str(path))
        compile(tree, str(path), "exec", dont_inherit=True)
    except SyntaxError as error:
        raise TaskError(f"{path}:{error.lineno or 1}: {error.msg}; fix the grader") from None
    except (ValueError, RecursionError) as error:
        raise TaskError(f"{path}: not valid Python: {error}; fix the grader") from None
    if "grade" not in {name for statement in tree.body for name in _defined(statement)}:
        raise TaskError(f"{path}: defines no grade(); write `def grade(task, answer): ...`, which returns a reward")
    _check_arguments(tree, path)
    return OwnGrader(path, hashlib.sha256(source).hexdigest(), source)


def _check_arguments(tree: ast.Module, path: Path) -> None:
    """Raises TaskError where a plain `def grade` asks for what there is not. Any other `grade` is seen when it runs."""
    for function in tree.body:
        if not isinstance(function, ast.FunctionDef) or function.name != "grade" or function.decorator_list:
            continue
        asked = function.args
        plain = [*asked.posonlyargs, *asked.args]
        needed = plain[: len(plain) - len(asked.defaults)]
        needed += [one for one, default in zip(asked.kwonlyargs, asked.kw_defaults, strict=True) if default is None]
        for argument in needed:
            if argument.arg not in ARGUMENTS:
                raise TaskError(f"{path}:{argument.lineno}: {_not_offered(argument.arg)}")


def _not_offered(name: str) -> str:
    return f"grade() asks for {name!r}; it can have {', '.join(ARGUMENTS)}"


def _defined(statement: ast.stmt) -> set[str]:
    """Names that a statement at the top of a module may give a value to."""
    if isinstance(statement, (ast.FunctionDef, ast.ClassDef)):
        return {statement.name}
    names: set[str] = set()
    for node in ast.walk(statement):
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            names |= {alias.asname or alias.name for alias in node.names}
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
        elif isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            names.add(node.name)
    return names


def _parameter_names(function: Callable[..., Any], path: Path) -> list[str]:
    """The arguments that a grader takes. Raises TypeError for one there is not."""
    names = []
    for name, parameter in inspect.signature(function).parameters.items():
        if parameter.kind is inspect.Parameter.VAR_KEYWORD:
            return list(ARGUMENTS)
        if name in ARGUMENTS and parameter.kind is not inspect.Parameter.POSITIONAL_ONLY:
            names.append(name)
        elif parameter.default is inspect.Parameter.empty and parameter.kind is not inspect.Parameter.VAR_POSITIONAL:
            raise TypeError(f"{path}: {_not_offered(name)}")
    return names


def as_grade(value: Any, source: str) -> Grade:
    """What a grader returned as a Grade. Raises TypeError or ValueError, which names the `source`.

    A comparison's True and False have one meaning as a reward, 1 and 0; no other value is taken for a number.
    """
    if isinstance(value, bool) or is_number(value):
        return Grade(float(value))
    if not isinstance(value, Grade):
        raise TypeError(f"{source}: expected a number from 0 to 1 or a Grade, got {value!r:.200}")
    for reason in value.reasons:
        if not isinstance(reason, Reason):
            raise TypeError(
                f"{source}: expected a Reason(path, expected, answered) in its reasons, got {reason!r:.200}"
            )
    if len(value.reasons) <= REASONS_LIMIT:
        return value
    more = f"{len(value.reasons):,} reasons; the first {REASONS_LIMIT} are listed"
    note = more if value.note is None else f"{value.note}; {more}"
    return replace(value, reasons=tuple(value.reasons[:REASONS_LIMIT]), note=note)
