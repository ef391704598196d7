"""Reward, and the reasons for it: what an agent answered, compared with what was expected.

Pure functions over plain values. Everything an agent can write gives a grade, never an exception, so that an exception
is always a fault of ours. The work is linear in the size of the answer, whatever the answer is: a grader that could be
stalled would let an agent turn its wrong answer into an infrastructure fault.

The rules of comparison:

- The answer must be an object that has every expected key with a matching value. Extra keys are ignored, at every
  depth.
- Arrays match element by element, in order and length. Booleans match only booleans, null only null.
- Numbers match within a tolerance, relative to the expected number, if either is written with a fraction or an
  exponent. Both are taken as the decimals that they are written as, so that 1.11 is within 0.01 of 1.1.
- An expected integer only matches itself, however it is written (5, 5.0, 5e0), and a fraction near it: 4999.9999999 is
  5000 with the noise of a float sum. The fraction must be less than 0.5 away, unless the task sets a tolerance.
- Strings match after trimming white space (as `str.strip` does) on both sides, in Unicode's NFC. Nothing looser: no
  case folding, no units guessed. Keys match in NFC too, untrimmed; a key that matches literally comes first. A text
  with more than 30 combining marks in a row is compared as it is.

A task may say otherwise for single values (`KeyRule`, `grading_rules`).
"""

from __future__ import annotations

import json
import math
import numbers
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Final

from pytest_core_rollouts.grading.comparing import (
    DEFAULT_TOLERANCE,
    MISSING,
    NOTHING,
    KeyRule,
    Path,
    Reason,
    Tolerance,
    differences,
    nfc,
    render_path,
)
from pytest_core_rollouts.strict_json import DEPTH_LIMIT, NUMBER_LIMIT, InvalidJSON, parse_json

__all__ = [
    "ANSWER_LIMIT",
    "DEFAULT_TOLERANCE",
    "DEPTH_LIMIT",
    "METRICS_LIMIT",
    "MISSING",
    "NOTHING",
    "NUMBER_LIMIT",
    "REASONS_LIMIT",
    "TEXT_LIMIT",
    "Answer",
    "Grade",
    "InvalidJSON",
    "KeyRule",
    "Reason",
    "Tolerance",
    "check_expected",
    "grade_answer",
    "is_number",
    "parse_json",
    "read_answer",
    "render_path",
    "round_reward",
]

ANSWER_LIMIT: Final = 1024 * 1024
"""Bytes of an answer that are read at most; a larger one is graded 0, unread."""
TEXT_LIMIT: Final = 64 * 1024
"""Bytes (as UTF-8) kept of an answer that is not JSON."""
REASONS_LIMIT: Final = 100
METRICS_LIMIT: Final = 32
"""Metrics of one grade; of a metric's name, `NAME_LIMIT` characters."""
NAME_LIMIT: Final = 64
NO_FILES: Final = "no answer.json: the agent left no files in /workspace/outputs"
"""The `problem` of an Answer if the agent did nothing."""


@dataclass(frozen=True)
class Answer:
    """What the agent left: a JSON `value`, or the `problem` that leaves nothing to grade.

    `problem` is one line (missing, too large, not valid JSON); `text` is the beginning of what was not JSON, with
    U+FFFD for bytes that are not UTF-8. `artifacts` are the further files that the task's `outputs` name, as they
    arrived: content by path below `/workspace/outputs`.
    """

    value: Any = None
    text: str | None = None
    problem: str | None = None
    artifacts: Mapping[str, bytes] = field(default_factory=dict, repr=False)


@dataclass(frozen=True)
class Grade:
    """A reward in [0, 1], the differences that led to it (at most `REASONS_LIMIT`), a note on the answer as a whole.

    `metrics` are further numbers by name, such as `{"style": 0.7, "tests_passed": 11}`, which are reported and never
    count: at most `METRICS_LIMIT` finite ones.
    The reward is rounded to 12 decimals, so that equal credit is equal in whatever order it was added up.
    Numbers of other libraries, such as NumPy's, are taken too.
    Raises TypeError for a reward that is not a number (a bool is not), ValueError for one outside [0, 1].
    """

    reward: float
    reasons: tuple[Reason, ...] = ()
    note: str | None = None
    metrics: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        object.__setattr__(self, "metrics", _checked_metrics(self.metrics))
        if isinstance(self.reward, bool) or not is_number(self.reward):
            raise TypeError(f"a reward must be a number from 0 to 1, not {self.reward!r:.200}")
        reward = round_reward(float(self.reward))
        if not 0 <= reward <= 1:
            raise ValueError(f"a reward must be from 0 to 1, not {self.reward!r:.200}")
        object.__setattr__(self, "reward", reward)


def _checked_metrics(metrics: Mapping[str, float]) -> dict[str, float]:
    """Return the metrics as floats. Raises TypeError or ValueError."""
    if not isinstance(metrics, Mapping):
        raise TypeError(f"metrics must be a mapping of names to numbers, not {metrics!r:.200}")
    if len(metrics) > METRICS_LIMIT:
        raise ValueError(f"a grade can have at most {METRICS_LIMIT} metrics, not {len(metrics):,}")
    checked: dict[str, float] = {}
    given: Mapping[Any, Any] = metrics
    for name, value in given.items():
        if not isinstance(name, str) or not name.strip() or len(name) > NAME_LIMIT or not name.isprintable():
            raise ValueError(f"a metric's name must be 1 to {NAME_LIMIT} printable characters, not {name!r:.200}")
        if isinstance(value, bool) or not is_number(value):
            raise TypeError(f"the metric {name} must be a number, not {value!r:.200}")
        checked[name] = float(value)
        if not math.isfinite(checked[name]):
            raise ValueError(f"the metric {name} must be finite, not {value!r:.200}")
    return checked


def round_reward(reward: float) -> float:
    """Return the reward rounded to 12 decimals: sums of the same credits in another order are the same reward."""
    return round(reward, 12) + 0.0  # a reward of -0.0 is 0.0


def is_number(value: Any) -> bool:
    """Whether a value is one number, of Python or of another library such as NumPy. A text or an array is not."""
    if isinstance(value, numbers.Complex):
        return isinstance(value, numbers.Real)
    return hasattr(type(value), "__float__") and not hasattr(type(value), "__len__")


def read_answer(data: bytes) -> Answer:
    """The content of an answer file as an `Answer`. Never raises: what can't be graded is an answer with a problem."""
    if len(data) > ANSWER_LIMIT:
        return Answer(problem=f"the answer is too large: {len(data):,} bytes; at most {ANSWER_LIMIT:,} are read")
    try:
        return Answer(value=parse_json(data))
    except InvalidJSON as error:
        text = data[:TEXT_LIMIT].decode("utf-8", "replace")
        text = text.encode("utf-8")[:TEXT_LIMIT].decode("utf-8", "ignore")
        return Answer(text=text, problem=f"the answer is {error}")


def check_expected(expected: Any) -> None:
    """Raise ValueError, with a path, unless this is a filled object of plain JSON values, which an answer can match.

    Meant for values made in code. What `parse_json` read can only fail here by being no object, by being empty, or by
    two keys that are one in NFC.
    """
    if type(expected) is not dict or not expected:
        raise ValueError("the expected answer must be an object with at least one key")
    for path, value in _walk(expected):
        where = f" (at {render_path(path)})" if path else ""
        if len(path) >= DEPTH_LIMIT and isinstance(value, (dict, list)):
            raise ValueError(f"the expected answer is nested more than {DEPTH_LIMIT} levels deep")
        if type(value) is dict:
            if any(type(key) is not str for key in value):
                raise ValueError(f"an expected object has a key that is not a string{where}")
            if len({nfc(key) for key in value}) != len(value):
                raise ValueError(f"an expected object has two keys that only differ in Unicode form{where}")
        elif type(value) not in (list, str, int, float, bool, type(None)):
            raise ValueError(
                f"the expected answer has a value of type {type(value).__name__}, which JSON can't hold{where}"
            )
        elif type(value) in (int, float) and not _is_finite(value):
            raise ValueError(f"the expected answer has a number that is too large for a float{where}")


def _is_finite(number: float) -> bool:
    try:
        return math.isfinite(number)
    except OverflowError:
        return False


def _walk(value: Any) -> Iterator[tuple[Path, Any]]:
    """Each value within, with its path, the whole first; not below a level that is too deep (it may be endless)."""
    pending: list[tuple[Path, Any]] = [((), value)]
    while pending:
        path, value = pending.pop()
        yield path, value
        if len(path) < DEPTH_LIMIT and isinstance(value, (dict, list)):
            children = value.items() if isinstance(value, dict) else enumerate(value)
            pending.extend(((*path, key), child) for key, child in children)


def grade_answer(
    expected: Mapping[str, Any],
    answer: Answer,
    tolerance: Tolerance = DEFAULT_TOLERANCE,
    rules: Mapping[Path, KeyRule] = {},
) -> Grade:
    """1.0 if the answer has all that is expected, else 0.0 with a reason a difference. Never raises for an answer.

    `rules`: for single values, by their paths in `expected`, checked (`grading_rules.rules_by_path`).
    """
    if answer.problem is not None:
        return Grade(0.0, note=answer.problem)
    if not isinstance(answer.value, dict):
        return Grade(0.0, note=f"expected a JSON object, got {_kind(answer.value)}")
    found = differences(expected, answer.value, tolerance, rules)
    reasons = tuple(difference.reason for difference in islice(found, REASONS_LIMIT))
    more = sum(1 for _ in found)
    note = f"{len(reasons) + more:,} values differ; the first {len(reasons)} are listed" if more else None
    return Grade(0.0 if reasons else 1.0, reasons, note)


def _kind(value: Any) -> str:
    if value is None or isinstance(value, bool):
        return json.dumps(value)
    if isinstance(value, (list, str)):
        return "an array" if isinstance(value, list) else "a string"
    return "a number"
