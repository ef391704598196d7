"""Checks of a task that do not run it.

They find out whether the expected answer earns 1 and wrong answers do not, whether the instruction names what an agent
must know, and whether the agent can read the answer in the files. `FINDINGS` in `tasks.task_settings` lists the codes.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from pytest_core_rollouts.checking.grading_checks import CODES as GRADING_CODES
from pytest_core_rollouts.checking.grading_checks import SHOWN, GradingChecks
from pytest_core_rollouts.grading.answers import Answer, Grade
from pytest_core_rollouts.grading.comparing import render_path
from pytest_core_rollouts.tasks.loading import NO_SOLVE
from pytest_core_rollouts.tasks.task import Task
from pytest_core_rollouts.tasks.task_settings import FINDINGS, UNFINISHED, WARNINGS
from pytest_core_rollouts.text import counted, listed

ANSWER: Final = "/workspace/outputs/answer.json"
Grader = Callable[[Task, Answer], Grade]


@dataclass(frozen=True)
class Finding:
    """A fault or a doubt about a task: a code of `FINDINGS`, and the file and line that it is about."""

    code: str
    task_id: str
    message: str
    path: Path | None = None
    line: int = 1

    @property
    def is_warning(self) -> bool:
        return self.code in WARNINGS


@dataclass(frozen=True)
class TaskChecks:
    """The checks of one task that do not run it. `grade` grades as a run would."""

    task: Task
    grade: Grader
    custom: bool = False
    """Whether code of the project grades the task, and not the built-in comparison."""
    env_listed: bool = False
    """Whether an ini file lists the variables that tasks may read."""

    def findings(self) -> Iterator[Finding]:
        """Yield all findings, errors and warnings, including those that the task silences."""
        unfinished = list(self._unfinished())
        yield from unfinished
        if not unfinished:  # in an unfinished task, the other checks would only find more of the same
            yield from self._instruction()
            yield from self._leaked_answers()
            yield from self._grading()
        yield from self._zero_tolerances()
        yield from self._empty_objects()
        yield from self._environment()
        if self.task.solution_file is None and self.task.path is not None:
            yield self._finding(
                "no-solution", "solution/solve.sh is missing, so nothing shows that the task can be solved"
            )
        for warning in self.task.warnings:
            if not warning.endswith(NO_SOLVE):
                yield self._finding("warning", warning, "files")

    @property
    def codes(self) -> frozenset[str]:
        """The codes that these checks look for."""
        return frozenset(FINDINGS) - (GRADING_CODES if self._is_not_graded else frozenset())

    @property
    def _is_not_graded(self) -> bool:
        return self.custom and self.task.check == "static"

    # ---- texts

    def _unfinished(self) -> Iterator[Finding]:
        task = self.task
        solution = (task.solution or b"").decode("utf-8", "replace")
        texts = {"instruction.md": task.instruction, "expected.json": str(task.expected), "solution/solve.sh": solution}
        for name, text in texts.items():
            if UNFINISHED in text:
                yield self._finding(
                    "unfinished", f"{name} is unfinished: it still contains {UNFINISHED}", name, find=UNFINISHED
                )

    def _instruction(self) -> Iterator[Finding]:
        task = self.task
        outputs = task.outputs.files if task.outputs is not None else ()
        paths = [ANSWER] if task.expected is not None or not outputs else []
        paths += [f"/workspace/outputs/{path}" for path in outputs if not set("*?") & set(path)]
        for path in paths:
            if path not in task.instruction:
                problem = f"the instruction does not name {path}, so an agent can't know where to write"
                yield self._finding("output-path", problem, "instruction.md")
        missing = [repr(key) for key in task.expected or {} if key and not _has_word(task.instruction, key)]
        if missing:
            problem = f"the instruction does not name the key{'s'[: len(missing) - 1]} {listed(missing, SHOWN)}"
            yield self._finding("key-not-named", problem, "instruction.md")
        yield from self._nested_keys()

    def _nested_keys(self) -> Iterator[Finding]:
        nested = {path[-1] for path, _ in _values(self.task.expected) if len(path) > 1 and path[-1]}
        words = [key for key in nested if isinstance(key, str)]
        missing = sorted(key for key in words if not _has_word(self.task.instruction, key))
        if missing:
            content = [text for _, text in self._files()]
            missing = [key for key in missing if not any(key in text for text in content)]
        if missing:
            problem = f"keys found neither in the instruction nor in a file: {listed(missing, SHOWN)}"
            yield self._finding("nested-key-not-named", problem, "instruction.md")

    def _environment(self) -> Iterator[Finding]:
        if self.env_listed:
            return
        for variable, source in self.task.env.items():
            if not isinstance(source, str) and not source.secret:
                problem = (
                    f"env.{variable} reads {source.name} from this machine and is not masked; set `secret: true`, or "
                    "add the name to the ini key rollout_task_env"
                )
                yield self._finding("env-unlisted", problem, "task.yaml", find=source.name)

    # ---- answers that an agent can read

    def _leaked_answers(self) -> Iterator[Finding]:
        copies = self.task.answer_copies()
        for path in copies:
            yield self._finding("answer-in-file", f"{path} equals the expected answer", f"files/{path}")
        leaves = [(path, value) for path, value in _values(self.task.expected) if _is_recognizable(value)]
        if len({_forms(value)[0] for _, value in leaves}) < 2:
            return  # a single value often is in the data as well
        instruction = self.task.instruction
        yield from self._find_answers_in(
            "answer-in-instruction", "the instruction", "instruction.md", instruction, leaves
        )
        for name, text in self._files():
            if name in copies:
                continue
            yield from self._find_answers_in("answer-in-file", name, f"files/{name}", text, leaves)

    def _find_answers_in(
        self, code: str, what: str, place: str, text: str, leaves: Sequence[tuple[tuple[Any, ...], Any]]
    ) -> Iterator[Finding]:
        """Yield a finding if the text contains every expected value."""
        if not all(any(form in text for form in _forms(value)) for _, value in leaves):
            return
        if not all(any(_has_word(text, form) for form in _forms(value)) for _, value in leaves):
            return
        characters = sum(len(form) for form in {_forms(value)[0] for _, value in leaves})
        follow_keys = all(_follows_key(text, path, value) for path, value in leaves)
        doubt = "" if characters >= 24 or follow_keys else "; all are short, so it may be a coincidence"
        yield self._finding(code, f"{what} contains every expected value{doubt}", place)

    def _files(self) -> Iterator[tuple[str, str]]:
        """Yield the path and the text of each file. A file that is not UTF-8 is decoded byte by byte."""
        task = self.task
        entries = [] if task.packed is None else [(each.path, each.read) for each in task.packed.entries if each.source]
        for path, read in [*((file.path, file.read) for file in task.files), *entries]:
            content = read()
            try:
                yield path, content.decode("utf-8")
            except UnicodeDecodeError:
                yield path, content.decode("latin-1")

    # ---- grading

    def _grading(self) -> Iterator[Finding]:
        if self._is_not_graded:
            return
        for code, message in GradingChecks(self.task, self.grade, self.custom).findings():
            yield self._finding(code, message, self._graded_by)

    def _zero_tolerances(self) -> Iterator[Finding]:
        task = self.task
        if self.custom:
            return
        zeros = [path for path, value in _values(task.expected) if isinstance(value, float) and value == 0]
        places = [render_path(path) for path in zeros if self._has_only_relative_tolerance(path)]
        if places:
            problem = f"{listed(places, SHOWN)}: a relative tolerance of 0.0 is 0; set an absolute tolerance"
            yield self._finding("zero-tolerance", problem, "expected.json", find=f'"{zeros[0][-1]}"')

    def _empty_objects(self) -> Iterator[Finding]:
        if self.custom:
            return
        empty = list(_empty_in(self.task.expected))
        if empty:
            places = listed([render_path(path) for path in empty], SHOWN)
            problem = f"{places}: every object matches an empty object; add keys to it"
            yield self._finding("constrains-nothing", problem, "expected.json", find=f'"{empty[0][-1]}"')

    def _has_only_relative_tolerance(self, path: tuple[Any, ...]) -> bool:
        tolerance = self.task.tolerance
        for depth in range(1, len(path) + 1):
            if (rule := self.task.rules.get(path[:depth])) is not None:
                if rule.exact:
                    return False
                tolerance = rule.tolerance or tolerance
        return tolerance.relative > 0 and tolerance.absolute == 0

    # ---- findings

    @property
    def _graded_by(self) -> str:
        return "grader.py" if self.task.grader is not None else "expected.json"

    def _finding(self, code: str, message: str, place: str | None = None, *, find: str | None = None) -> Finding:
        folder = self.task.path
        path = None if folder is None else folder / (place or "instruction.md")
        line = 1
        if find is not None and path is not None and path.is_file():
            text = path.read_text(encoding="utf-8", errors="replace")
            line = text.count("\n", 0, max(text.find(find), 0)) + 1
        return Finding(code, self.task.id, message, path, line)


def apply_silence(task: Task, findings: Iterable[Finding], checked: frozenset[str]) -> Iterator[Finding]:
    """Yield the findings that the task does not silence, and a finding for each code that it silences for nothing.

    `checked`: the codes that were looked for.
    """
    found = set()
    for finding in findings:
        found.add(finding.code)
        if finding.code not in task.silence:
            yield finding
    for code in sorted(task.silence.keys() - found):
        if code in checked:
            path = None if task.path is None else task.path / "task.yaml"
            yield Finding("silence-unused", task.id, f"silence: {code} was not found; remove it here", path)


def merge_hook_faults(findings: Iterable[Finding]) -> list[Finding]:
    """Return the findings with one for each fault of a hook, and not one for each task that the hook grades."""
    merged: dict[object, list[Finding]] = {}
    for finding in findings:
        by_hook = finding.code == "grader-fails" and (finding.path is None or finding.path.name != "grader.py")
        merged.setdefault(finding.message if by_hook else finding, []).append(finding)
    return [
        replace(first, message=f"{first.message}, and for {counted(len(others), 'other task')}") if others else first
        for first, *others in merged.values()
    ]


# ---- values


def _values(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], Any]]:
    """Yield every value that is not an object or an array, with its path."""
    if isinstance(value, Mapping):
        for key, child in value.items():
            yield from _values(child, (*path, key))
    elif isinstance(value, list):
        for index, child in enumerate(value):
            yield from _values(child, (*path, index))
    elif path:
        yield path, value


def _empty_in(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the path of every object without keys."""
    if isinstance(value, Mapping) and not value and path:
        yield path
    children = value.items() if isinstance(value, Mapping) else enumerate(value) if isinstance(value, list) else ()
    for step, child in children:
        yield from _empty_in(child, (*path, step))


def _is_recognizable(value: Any) -> bool:
    """Whether the value can be searched for in a text."""
    return not isinstance(value, bool) and value is not None and bool(_forms(value)[0])


def _forms(value: Any) -> list[str]:
    """Return the ways in which a text may show the value."""
    if isinstance(value, str):
        return [value.strip()]
    forms = [f"{value}"]
    if isinstance(value, int):
        forms.append(f"{value:,}")
    elif abs(value) < 1e15:
        forms += [f"{value:.2f}", f"{value:,.2f}", *([f"{value:.0f}", f"{value:,.0f}"] if value == int(value) else [])]
    return forms


def _has_word(text: str, word: str) -> bool:
    """Whether `text` contains `word`, with no letter or digit right before or after it."""
    position = text.find(word) if word else -1
    while position >= 0:
        before, after = text[position - 1 : position], text[position + len(word) : position + len(word) + 2]
        joined_before = (before.isalnum() or before == "_") and (word[0].isalnum() or word[0] == "_")
        joined_after = (after[:1].isalnum() or after[:1] == "_") and (word[-1].isalnum() or word[-1] == "_")
        decimals = word[-1].isdigit() and re.match(r"[.,]\d", after) is not None
        if not (joined_before or joined_after or decimals):
            return True
        position = text.find(word, position + 1)
    return False


def _follows_key(text: str, path: tuple[Any, ...], value: Any) -> bool:
    """Whether the text has the value after its key, as in JSON, YAML or `key = value`."""
    key = next((step for step in reversed(path) if isinstance(step, str)), "")
    return any(re.search(rf"{re.escape(key)}\W{{1,8}}{re.escape(form)}(?!\w)", text) for form in _forms(value))
