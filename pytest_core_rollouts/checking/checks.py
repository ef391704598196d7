"""Checks of a task that do not run it.

They find out whether the expected answer earns 1 and wrong answers do not, whether the instruction names what an agent
must know, and whether the agent can read the answer in the files. `FINDINGS` in `tasks.task_settings` lists the codes.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from pytest_core_rollouts.grading.answers import Answer, Grade
from pytest_core_rollouts.grading.comparing import render_path, size
from pytest_core_rollouts.grading.threads import GraderFailed, Graders
from pytest_core_rollouts.tasks.task import Task
from pytest_core_rollouts.tasks.task_settings import UNFINISHED, WARNINGS
from pytest_core_rollouts.text import reward_text

ANSWER: Final = "/workspace/outputs/answer.json"
SHOWN: Final = 5
"""The most places that one finding lists."""
COMPARED_VALUES: Final = 300_000
"""The most values that the built-in comparison compares for a task. If that is not enough to try every wrong answer,
some are tried, evenly spread."""
CUSTOM_GRADES: Final = 30
"""The most wrong answers that a grader of the project gets: it may be slow."""

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
            yield self._finding("warning", warning, "files")

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
        for key in filter(None, task.expected or {}):
            if not _has_word(task.instruction, key):
                problem = f"the instruction does not name the key {key!r}"
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
            problem = f"keys found neither in the instruction nor in a file: {_listed(missing)}"
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
        task = self.task
        found: dict[str, list[str]] = {}
        try:
            if task.expected is not None and not (self.custom and task.outputs is not None):
                reward = self._reward(Answer(value=task.expected))
                if self.custom and (again := self._reward(Answer(value=task.expected))) != reward:
                    rewards = f"{reward_text(reward)}, then {reward_text(again)}"
                    problem = f"the expected answer earns {rewards}; the same answer must always get the same reward"
                    yield self._finding("grader-unstable", problem, self._graded_by)
                    return
                if reward < 1:
                    problem = f"the expected answer earns {reward_text(reward)} instead of 1"
                    yield self._finding("expected-fails", problem, self._graded_by)
                    return
            for what, answer in self._wrong_answers():
                if self._reward(answer) >= 1:
                    found.setdefault("wrong-answer-passes", []).append(what)
        except GraderFailed as failure:
            yield self._finding("grader-fails", str(failure), self._graded_by)
            return
        for code, places in found.items():
            yield self._finding(code, f"wrong answers that earn 1: {_listed(places)}", self._graded_by)

    def _wrong_answers(self) -> Iterator[tuple[str, Answer]]:
        yield "a missing answer", Answer(problem=f"{ANSWER} not found")
        yield "an empty object", Answer(value={})
        expected = self.task.expected
        if expected is None:
            return
        changes = list(_changes(expected))
        most = CUSTOM_GRADES if self.custom else max(20, COMPARED_VALUES // size(expected))
        step = -(-len(changes) // most)
        far = 2 * self._largest_absolute()
        for path, dropped in changes[::step]:
            if dropped:
                yield f"{render_path(path)} left out", Answer(value=_without(expected, path))
            else:
                yield f"{render_path(path)} changed", Answer(value=self._changed(expected, path, far))

    def _changed(self, expected: Any, path: tuple[Any, ...], far: float) -> Any:
        """Return the answer with one value changed, if possible to one that no rule such as `one_of` accepts."""
        value = _at(expected, path)
        candidates = [_other(value, far, number) for number in range(3)]
        answers = [_with(expected, path, candidate) for candidate in candidates]
        return next((answer for answer in answers if self._reward(Answer(value=answer)) < 1), answers[0])

    def _largest_absolute(self) -> float:
        rules = [rule.tolerance.absolute for rule in self.task.grading.values() if rule.tolerance is not None]
        return max([self.task.tolerance.absolute, *rules])

    def _reward(self, answer: Answer) -> float:
        if not self.custom:
            return self.grade(self.task, answer).reward
        return asyncio.run(Graders().call(lambda: self.grade(self.task, answer))).reward

    def _zero_tolerances(self) -> Iterator[Finding]:
        task = self.task
        if self.custom:
            return
        zeros = [path for path, value in _values(task.expected) if isinstance(value, float) and value == 0]
        places = [render_path(path) for path in zeros if self._has_only_relative_tolerance(path)]
        if places:
            problem = f"{_listed(places)}: a relative tolerance of 0.0 is 0; set an absolute tolerance"
            yield self._finding("zero-tolerance", problem, "expected.json", find=f'"{zeros[0][-1]}"')

    def _empty_objects(self) -> Iterator[Finding]:
        if self.custom:
            return
        empty = list(_empty_in(self.task.expected))
        if empty:
            places = _listed([render_path(path) for path in empty])
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


def _changes(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], bool]]:
    """Yield each change that makes an answer wrong: a path, and whether it is left out (True) or changed (False)."""
    children = value.items() if isinstance(value, Mapping) else enumerate(value) if isinstance(value, list) else ()
    for step, child in children:
        inner = (*path, step)
        yield inner, True
        if not isinstance(child, (Mapping, list)):
            yield inner, False
        yield from _changes(child, inner)


def _at(value: Any, path: tuple[Any, ...]) -> Any:
    for step in path:
        value = value[step]
    return value


def _with(value: Any, path: tuple[Any, ...], other: Any) -> Any:
    """Return a copy of the value with `other` at `path`. Only what is on the path is copied."""
    if not path:
        return other
    copy = dict(value) if isinstance(value, Mapping) else list(value)
    copy[path[0]] = _with(value[path[0]], path[1:], other)
    return copy


def _without(value: Any, path: tuple[Any, ...]) -> Any:
    copy = dict(value) if isinstance(value, Mapping) else list(value)
    if len(path) == 1:
        del copy[path[0]]
    else:
        copy[path[0]] = _without(value[path[0]], path[1:])
    return copy


def _other(value: Any, far: float, number: int) -> Any:
    """Return a wrong value, outside of every tolerance; each `number` gives another one."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, (int, float)):
        distance = abs(value) + far + 1 + 7 * number
        return type(value)(value - distance if value < 0 else value + distance)
    if isinstance(value, str):
        return f"{value} (changed{' again' * number})"
    return number  # the value is null


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


def _listed(places: Sequence[str]) -> str:
    more = f" and {len(places) - SHOWN} more" if len(places) > SHOWN else ""
    return ", ".join(places[:SHOWN]) + more
