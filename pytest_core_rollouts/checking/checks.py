"""Is a task sound? What can be told without running it.

Whether the expected answer, and nothing wrong, earns a reward; whether the instruction says what it has to; whether an
answer stands where the agent can read it off. Codes and their meaning: `findings`.
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
"""Places of one finding that are listed for a task."""
PLAIN_WORK: Final = 300_000
"""Values compared for one task's wrong answers; of more answers than that allows, some are tried, evenly spread."""
OWN_GRADES: Final = 30
"""Wrong answers that a grader of the project's own is tried with: it may be slow."""

Grader = Callable[[Task, Answer], Grade]


@dataclass(frozen=True)
class Finding:
    """Something about a task, by its code in `findings`, with the file (and line) that it is about."""

    code: str
    task_id: str
    message: str
    path: Path | None = None
    line: int = 1

    @property
    def is_warning(self) -> bool:
        return self.code in WARNINGS


@dataclass(frozen=True)
class Soundness:
    """The offline checks of one task. `grade` grades as a run would; `own`: whether that is code of the project's."""

    task: Task
    grade: Grader
    own: bool = False
    env_listed: bool = False
    """Whether an ini file lists the variables that tasks may take."""

    def findings(self) -> Iterator[Finding]:
        """What there is to say, errors and warnings, whatever the task silences."""
        unfinished = list(self._unfinished())
        yield from unfinished
        if not unfinished:  # what is still to be written needs no more remarks
            yield from self._instruction()
            yield from self._leaked_answers()
            yield from self._grading()
        yield from self._zero_tolerances()
        yield from self._empty_objects()
        yield from self._environment()
        if self.task.solution_file is None and self.task.path is not None:
            yield self._finding("no-solution", "there is no solution/solve.sh, so nothing shows that it can be solved")
        for warning in self.task.warnings:
            yield self._finding("warning", warning, "files")

    # ---- what is written

    def _unfinished(self) -> Iterator[Finding]:
        task = self.task
        solution = (task.solution or b"").decode("utf-8", "replace")
        texts = {"instruction.md": task.instruction, "expected.json": str(task.expected), "solution/solve.sh": solution}
        for name, text in texts.items():
            if UNFINISHED in text:
                yield self._finding("unfinished", f"{name} is still to be written", name, find=UNFINISHED)

    def _instruction(self) -> Iterator[Finding]:
        task = self.task
        outputs = task.outputs.files if task.outputs is not None else ()
        due = [ANSWER] if task.expected is not None or not outputs else []
        due += [f"/workspace/outputs/{path}" for path in outputs if not set("*?") & set(path)]
        for path in due:
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
            problem = f"keys that stand neither in the instruction nor in a file: {_some(missing)}"
            yield self._finding("nested-key-not-named", problem, "instruction.md")

    def _environment(self) -> Iterator[Finding]:
        if self.env_listed:
            return
        for variable, source in self.task.env.items():
            if not isinstance(source, str) and not source.secret:
                problem = (
                    f"env.{variable} takes {source.name} from this machine and is not masked; say `secret: true`, or "
                    "list the name in the ini key rollout_task_env"
                )
                yield self._finding("env-unlisted", problem, "task.yaml", find=source.name)

    # ---- answers that can be read off

    def _leaked_answers(self) -> Iterator[Finding]:
        copies = self.task.answer_copies()
        for path in copies:
            yield self._finding("answer-in-file", f"{path} equals the expected answer", f"files/{path}")
        leaves = [(path, value) for path, value in _values(self.task.expected) if _tells(value)]
        if len({_forms(value)[0] for _, value in leaves}) < 2:
            return  # a single value may well stand in the data
        instruction = self.task.instruction
        yield from self._held_by("answer-in-instruction", "the instruction", "instruction.md", instruction, leaves)
        for name, text in self._files():
            if name in copies:
                continue
            yield from self._held_by("answer-in-file", name, f"files/{name}", text, leaves)

    def _held_by(
        self, code: str, what: str, place: str, text: str, leaves: Sequence[tuple[tuple[Any, ...], Any]]
    ) -> Iterator[Finding]:
        if not all(any(form in text for form in _forms(value)) for _, value in leaves):
            return
        if not all(any(_has_word(text, form) for form in _forms(value)) for _, value in leaves):
            return
        characters = sum(len(form) for form in {_forms(value)[0] for _, value in leaves})
        beside_keys = all(_stands_beside(text, path, value) for path, value in leaves)
        chance = "" if characters >= 24 or beside_keys else "; all are short, so it may be chance"
        yield self._finding(code, f"{what} holds every expected value{chance}", place)

    def _files(self) -> Iterator[tuple[str, str]]:
        """Paths and texts of all files; what is not UTF-8 byte by byte."""
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
            if task.expected is not None and not (self.own and task.outputs is not None):
                reward = self._reward(Answer(value=task.expected))
                if self.own and (again := self._reward(Answer(value=task.expected))) != reward:
                    rewards = f"{reward_text(reward)}, then {reward_text(again)}"
                    problem = f"the expected answer earns {rewards}; a grader must give one answer one reward"
                    yield self._finding("grader-unstable", problem, self._graded_by)
                    return
                if reward < 1:
                    problem = f"the expected answer itself earns {reward_text(reward)}"
                    yield self._finding("expected-fails", problem, self._graded_by)
                    return
            for what, answer in self._wrong_answers():
                if self._reward(answer) >= 1:
                    found.setdefault("wrong-answer-passes", []).append(what)
        except GraderFailed as failure:
            yield self._finding("grader-fails", str(failure), self._graded_by)
            return
        for code, places in found.items():
            yield self._finding(code, f"earns 1: {_some(places)}", self._graded_by)

    def _wrong_answers(self) -> Iterator[tuple[str, Answer]]:
        yield "an answer that is missing", Answer(problem=f"{ANSWER} not found")
        yield "an empty object", Answer(value={})
        expected = self.task.expected
        if expected is None:
            return
        changes = list(_changes(expected))
        most = OWN_GRADES if self.own else max(20, PLAIN_WORK // size(expected))
        step = -(-len(changes) // most)
        far = 2 * self._largest_absolute()
        for path, dropped in changes[::step]:
            if dropped:
                yield f"{render_path(path)} left out", Answer(value=_without(expected, path))
            else:
                yield f"{render_path(path)} changed", Answer(value=self._changed(expected, path, far))

    def _changed(self, expected: Any, path: tuple[Any, ...], far: float) -> Any:
        """The answer with one value changed, to one that is not right for another reason (`one_of`)."""
        value = _at(expected, path)
        candidates = [_other(value, far, number) for number in range(3)]
        answers = [_with(expected, path, candidate) for candidate in candidates]
        return next((answer for answer in answers if self._reward(Answer(value=answer)) < 1), answers[0])

    def _largest_absolute(self) -> float:
        rules = [rule.tolerance.absolute for rule in self.task.grading.values() if rule.tolerance is not None]
        return max([self.task.tolerance.absolute, *rules])

    def _reward(self, answer: Answer) -> float:
        if not self.own:
            return self.grade(self.task, answer).reward
        return asyncio.run(Graders().call(lambda: self.grade(self.task, answer))).reward

    def _zero_tolerances(self) -> Iterator[Finding]:
        task = self.task
        if self.own:
            return
        zeros = [path for path, value in _values(task.expected) if isinstance(value, float) and value == 0]
        places = [render_path(path) for path in zeros if self._is_relative_alone(path)]
        if places:
            problem = f"{_some(places)}: of 0.0 every relative tolerance is 0; give it an absolute one"
            yield self._finding("zero-tolerance", problem, "expected.json", find=f'"{zeros[0][-1]}"')

    def _empty_objects(self) -> Iterator[Finding]:
        if self.own:
            return
        empty = list(_empty_in(self.task.expected))
        if empty:
            problem = f"{_some([render_path(path) for path in empty])}: an empty object, which every object matches"
            yield self._finding("constrains-nothing", problem, "expected.json", find=f'"{empty[0][-1]}"')

    def _is_relative_alone(self, path: tuple[Any, ...]) -> bool:
        tolerance = self.task.tolerance
        for depth in range(1, len(path) + 1):
            if (rule := self.task.rules.get(path[:depth])) is not None:
                if rule.exact:
                    return False
                tolerance = rule.tolerance or tolerance
        return tolerance.relative > 0 and tolerance.absolute == 0

    # ---- words

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


def silenced(task: Task, findings: Iterable[Finding], tried: frozenset[str]) -> Iterator[Finding]:
    """The findings that the task does not silence, and what it silences for nothing, of the codes that were `tried`."""
    found = set()
    for finding in findings:
        found.add(finding.code)
        if finding.code not in task.silence:
            yield finding
    for code in sorted(task.silence.keys() - found):
        if code in tried:
            path = None if task.path is None else task.path / "task.yaml"
            yield Finding("silence-unused", task.id, f"silence: there is no {code} to silence; remove it", path)


# ---- values


def _values(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], Any]]:
    """Every single value within, with its path."""
    if isinstance(value, Mapping):
        for key, child in value.items():
            yield from _values(child, (*path, key))
    elif isinstance(value, list):
        for index, child in enumerate(value):
            yield from _values(child, (*path, index))
    elif path:
        yield path, value


def _empty_in(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Every path within of an object without keys."""
    if isinstance(value, Mapping) and not value and path:
        yield path
    children = value.items() if isinstance(value, Mapping) else enumerate(value) if isinstance(value, list) else ()
    for step, child in children:
        yield from _empty_in(child, (*path, step))


def _changes(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], bool]]:
    """Every path whose key can be left out (True) and whose single value can be changed (False)."""
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
    """The value with another one at `path`; what is not on the way is shared."""
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
    """A value that is wrong in place of this one: out of every tolerance, and another for each `number`."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, (int, float)):
        distance = abs(value) + far + 1 + 7 * number
        return type(value)(value - distance if value < 0 else value + distance)
    if isinstance(value, str):
        return f"{value} (changed{' again' * number})"
    return number  # in place of null


def _tells(value: Any) -> bool:
    """Whether a value that stands somewhere could be recognized."""
    return not isinstance(value, bool) and value is not None and bool(_forms(value)[0])


def _forms(value: Any) -> list[str]:
    """How a value may be written in a text."""
    if isinstance(value, str):
        return [value.strip()]
    forms = [f"{value}"]
    if isinstance(value, int):
        forms.append(f"{value:,}")
    elif abs(value) < 1e15:
        forms += [f"{value:.2f}", f"{value:,.2f}", *([f"{value:.0f}", f"{value:,.0f}"] if value == int(value) else [])]
    return forms


def _has_word(text: str, word: str) -> bool:
    """Whether a word, or any text, stands in `text` with no letter or digit right beside it."""
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


def _stands_beside(text: str, path: tuple[Any, ...], value: Any) -> bool:
    """Whether the value follows its key, as in JSON, YAML or `key = value`."""
    key = next((step for step in reversed(path) if isinstance(step, str)), "")
    return any(re.search(rf"{re.escape(key)}\W{{1,8}}{re.escape(form)}(?!\w)", text) for form in _forms(value))


def _some(places: Sequence[str]) -> str:
    more = f" and {len(places) - SHOWN} more" if len(places) > SHOWN else ""
    return ", ".join(places[:SHOWN]) + more
