"""Checks of how a task is graded: the expected answer earns 1, wrong answers do not, and each always earns the same.

Code of the project may be slow or cost money (a judge), so it grades as few answers as possible: none twice except to
see whether it agrees with itself, and those that `SECONDS` allow, evenly spread.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from math import inf
from typing import Any, Final

from pytest_core_rollouts.engine.parts import Grading
from pytest_core_rollouts.grading.answers import NO_FILES, Answer, Grade
from pytest_core_rollouts.grading.comparing import render_path, size
from pytest_core_rollouts.grading.failures import GraderFailed
from pytest_core_rollouts.grading.threads import Graders
from pytest_core_rollouts.tasks.matrix import Agent, Rollout
from pytest_core_rollouts.tasks.task import Task
from pytest_core_rollouts.tasks.task_settings import Network
from pytest_core_rollouts.text import listed, reward_text

CODES: Final = frozenset(("expected-fails", "wrong-answer-passes", "grader-fails", "grader-unstable"))
"""The codes that these checks look for."""
SAME_REWARD: Final = "the same answer must always get the same reward"
SHOWN: Final = 5
"""The most places that one finding lists."""
COMPARED_VALUES: Final = 300_000
"""The most values that the built-in comparison compares for a task. If that is not enough to try every wrong answer,
some are tried, evenly spread."""
CUSTOM_GRADES: Final = 30
"""The most changed answers that code of the project grades."""
SECONDS: Final = 6.0
"""The seconds that changed answers may take code of the project; one is always tried."""
QUICK: Final = 0.05
"""If a grade takes fewer seconds, each wrong answer is graded twice."""


class KnownGrades:
    """Grades for `check`: a grade that was made without running the task is not made again when the task runs."""

    def __init__(self, grading: Grading) -> None:
        self._grading = grading
        self._known: dict[tuple[str, str], Grade | GraderFailed] = {}
        self.failed: set[str] = set()
        """Ids of the rollouts whose grader failed."""
        self.graded: dict[str, str] = {}
        """By rollout id, a text that is the same for the same answer and files."""

    def uses_builtin_grading(self, task: Task) -> bool:
        return self._grading.uses_builtin_grading(task)

    def grade(self, task: Task, answer: Answer, rollout: Rollout) -> Grade:
        self.graded[rollout.rollout_id] = key = _key(answer)
        known = self._known.get((task.id, key))
        try:
            if isinstance(known, GraderFailed):
                raise known
            return self._grading.grade(task, answer, rollout) if known is None else known
        except BaseException:  # a hook may raise anything, as pytest.fail() does
            self.failed.add(rollout.rollout_id)
            raise

    def grade_now(self, task: Task, answer: Answer) -> Grade:
        """Grade an answer that no agent gave, as a run would, and remember the grade. Raises GraderFailed."""
        rollout = Rollout(task, Agent("oracle"), 0, "check", timeout=900, network=Network.disabled())
        if self.uses_builtin_grading(task):
            return self._grading.grade(task, answer, rollout)
        known: Grade | GraderFailed
        try:
            known = asyncio.run(Graders().call(lambda: self._grading.grade(task, answer, rollout)))
        except GraderFailed as failure:
            known = failure
        self._known[task.id, _key(answer)] = known
        if isinstance(known, GraderFailed):
            raise known
        return known


def _key(answer: Answer) -> str:
    files = {path: sha256(content).hexdigest() for path, content in answer.artifacts.items()}
    text = json.dumps([answer.value, answer.text, answer.problem, files], sort_keys=True, default=str)
    return sha256(text.encode()).hexdigest()


@dataclass(frozen=True)
class GradingChecks:
    """The checks of how one task is graded."""

    task: Task
    grade: Callable[[Task, Answer], Grade]
    custom: bool
    """Whether code of the project grades the task, and not the built-in comparison."""
    _rewards: dict[str, float] = field(default_factory=dict)

    def findings(self) -> Iterator[tuple[str, str]]:
        """Yield a code of `FINDINGS` and a message for each fault."""
        try:
            yield from self._find()
        except GraderFailed as failure:
            yield "grader-fails", str(failure)

    def _find(self) -> Iterator[tuple[str, str]]:
        seconds = inf  # unknown
        if self.task.expected is not None and not (self.custom and self.task.outputs is not None):
            expected = Answer(value=self.task.expected)
            reward = self._grade_again(expected)
            if self.custom:
                start = time.monotonic()
                again = self._grade_again(expected)  # the first grade may have taken longer: it starts a process
                seconds = time.monotonic() - start
                if again != reward:
                    yield "grader-unstable", _unstable("the expected answer", reward, again)
                    return
            if reward < 1:
                yield "expected-fails", f"the expected answer earns {reward_text(reward)} instead of 1"
                return
        passing = []
        for what, answer in self._wrong_answers(seconds):
            reward = self._reward(answer)
            if reward >= 1:
                passing.append(what)
            if self.custom and seconds < QUICK and (again := self._grade_again(answer)) != reward:
                yield "grader-unstable", _unstable(what, reward, again)
                return
        if passing:
            yield "wrong-answer-passes", f"wrong answers that earn 1: {listed(passing, SHOWN)}"

    def _wrong_answers(self, seconds: float) -> Iterator[tuple[str, Answer]]:
        """Yield wrong answers and what is wrong with each. `seconds`: how long code of the project takes for one."""
        yield "a missing answer", Answer(problem=NO_FILES)
        start = time.monotonic()
        yield "an empty object", Answer(value={})
        expected = self.task.expected
        if expected is None:
            return
        if self.custom:
            if seconds == inf:
                seconds = time.monotonic() - start
            most = max(1, min(CUSTOM_GRADES, int(SECONDS / max(seconds, 0.001))))
        else:
            most = max(20, COMPARED_VALUES // size(expected))
        changes = list(_changes(expected))
        if len(expected) == 1:
            changes = changes[1:]  # without its only key, the answer is an empty object
        if most == 1:
            changes = [change for change in changes if not change[1]] or changes
        step = -(-len(changes) // most) or 1
        far = 2 * self._largest_absolute()
        start = time.monotonic()
        for number, (path, dropped) in enumerate(changes[::step]):
            if self.custom and number and time.monotonic() - start > SECONDS:
                return
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
        """Return the reward of an answer. Code of the project does not grade an answer again."""
        if not self.custom:
            return self._grade_again(answer)
        key = _key(answer)
        if key not in self._rewards:
            self._rewards[key] = self._grade_again(answer)
        return self._rewards[key]

    def _grade_again(self, answer: Answer) -> float:
        return self.grade(self.task, answer).reward


def _unstable(what: str, first: float, second: float) -> str:
    rewards = f"{reward_text(first)}, then {reward_text(second)}"
    return f"{what} earns {rewards}; {SAME_REWARD}"


# ---- values


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
