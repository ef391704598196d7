"""Reward, and the reasons for it: what an agent answered, compared with what was expected.

Pure functions over plain values. Everything an agent can write gives a grade, never an exception, so that an exception
is always a fault of ours. The work is linear in the size of the answer, whatever the answer is: a grader that could be
stalled would let an agent turn its wrong answer into an infrastructure fault.

The rules of comparison:

- The answer must be an object that has every expected key with a matching value. Extra keys are ignored, at every
  depth.
- Arrays match element by element, in order and length. Booleans match only booleans, null only null.
- Two integers match exactly. Where either number is written with a fraction or an exponent, they match within a
  tolerance, relative to the expected number. Both are taken as the decimals they are written as, so that 1.11 is within
  0.01 of 1.1.
- Strings match after trimming white space (as `str.strip` has it) on both sides, in Unicode's NFC. Nothing looser: no
  case folding, no units guessed. Keys match in NFC too, untrimmed; a key that is there literally comes first.
"""

from __future__ import annotations

import json
import math
import re
import unicodedata
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from decimal import Context, Decimal
from itertools import islice, zip_longest
from typing import Any, Final

ANSWER_LIMIT: Final = 1024 * 1024
"""Bytes of an answer that are read at most; a larger one is graded 0, unread."""
TEXT_LIMIT: Final = 64 * 1024
"""Bytes (as UTF-8) kept of an answer that is no JSON."""
DEPTH_LIMIT: Final = 100
NUMBER_LIMIT: Final = 1000
"""Characters of a number's literal."""
REASONS_LIMIT: Final = 100

MISSING: Final = "(missing)"
"""Stands in `Reason.answered` where the answer has no such key or element."""
NOTHING: Final = "(nothing)"
"""Stands in `Reason.expected` where an array of the answer goes on past its expected end."""

_Path = tuple["str | int", ...]


class InvalidJSON(ValueError):
    """Not JSON as we take it. `str()` is one line that says why: `not valid JSON: duplicate key "x"`."""

    def __init__(self, problem: str) -> None:
        super().__init__(f"not valid JSON: {problem}")


@dataclass(frozen=True)
class Tolerance:
    """How far a number may be from the expected one, unless both are integers.

    By `relative` times the expected number, or by `absolute`, whichever allows more; what is not given is 0.
    Raises TypeError or ValueError for values that make no sense.
    """

    relative: float = 0.0
    absolute: float = 0.0

    def __post_init__(self) -> None:
        for name, value in (("relative", self.relative), ("absolute", self.absolute)):
            if isinstance(value, bool) or not isinstance(value, (int, float)):
                raise TypeError(f"tolerance: {name} must be a number, not {value!r}")
            if not (0 <= value < math.inf):
                raise ValueError(f"tolerance: {name} must be finite and not negative, not {value!r}")
        if self.relative >= 1:
            raise ValueError(f"tolerance: relative must be below 1 (5 percent is 0.05), not {self.relative!r}")


DEFAULT_TOLERANCE: Final = Tolerance(relative=1e-6)


@dataclass(frozen=True)
class Reason:
    """One place where the answer differs.

    `path` leads there from the top of the object: `regions.north[2]`, with keys that are no plain words in quotes:
    `totals["North East"]`. `expected` and `answered` are the whole values found there, or `NOTHING` and `MISSING`.
    """

    path: str
    expected: Any
    answered: Any


@dataclass(frozen=True)
class Answer:
    """What the agent left: a JSON `value`, or the `problem` that there is none to grade.

    `problem` is one line (missing, too large, not valid JSON); `text` is the beginning of what was no JSON, with U+FFFD
    for bytes that are not UTF-8.
    """

    value: Any = None
    text: str | None = None
    problem: str | None = None


@dataclass(frozen=True)
class Grade:
    """A reward in [0, 1], the differences that led to it (at most `REASONS_LIMIT`), a note on the answer as a whole.

    Raises TypeError for a reward that is no number (a bool is none), ValueError for one outside [0, 1].
    """

    reward: float
    reasons: tuple[Reason, ...] = ()
    note: str | None = None

    def __post_init__(self) -> None:
        if isinstance(self.reward, bool) or not isinstance(self.reward, (int, float)):
            raise TypeError(f"a reward must be a number from 0 to 1, not {self.reward!r}")
        if not 0 <= self.reward <= 1:
            raise ValueError(f"a reward must be from 0 to 1, not {self.reward!r}")
        object.__setattr__(self, "reward", float(self.reward))


# Reading


def parse_json(data: bytes) -> Any:
    """The value of a JSON text, strictly; raises InvalidJSON and nothing else.

    UTF-8, with a byte order mark dropped. No duplicate keys (as decoded), no NaN or Infinity, at most 100 levels of
    nesting, no number of more than 1,000 characters or beyond a float. An integer's literal becomes an int, any other
    number a float. A lone surrogate escape is taken as it is.
    """
    try:
        text = data.decode("utf-8").removeprefix("\ufeff")
    except UnicodeDecodeError as error:
        raise InvalidJSON(f"byte {error.start} is not UTF-8") from None
    if _is_deeper_than(DEPTH_LIMIT, text):
        raise InvalidJSON(f"nested more than {DEPTH_LIMIT} levels deep")
    try:
        return _DECODER.decode(text)
    except json.JSONDecodeError as error:
        problem = error.msg if text.strip() else "the file is empty"
        raise InvalidJSON(f"{problem} (line {error.lineno}, column {error.colno})") from None


def read_answer(data: bytes) -> Answer:
    """The content of an answer file as an `Answer`. Never raises: what can't be graded is an answer with a problem."""
    if len(data) > ANSWER_LIMIT:
        return Answer(problem=f"the answer is too large: {len(data):,} bytes; {ANSWER_LIMIT:,} are read at most")
    try:
        return Answer(value=parse_json(data))
    except InvalidJSON as error:
        text = data[:TEXT_LIMIT].decode("utf-8", "replace")
        text = text.encode("utf-8")[:TEXT_LIMIT].decode("utf-8", "ignore")
        return Answer(text=text, problem=f"the answer is {error}")


def _is_deeper_than(limit: int, text: str) -> bool:
    """Whether brackets outside strings nest deeper. Done before parsing, since the parser recurses."""
    if text.count("[") + text.count("{") <= limit:
        return False
    outside_strings = "".join(text.replace("\\\\", "").replace('\\"', "").split('"')[::2])
    depth = 0
    for bracket in re.findall(r"[][{}]", outside_strings):
        depth += 1 if bracket in "[{" else -1
        if depth > limit:
            return True
    return False


def _integer(literal: str) -> int:
    _number(literal)  # what is within a float is also within Python's limit of digits
    return int(literal)


def _number(literal: str) -> float:
    if len(literal) > NUMBER_LIMIT:
        raise InvalidJSON(f"a number of {len(literal):,} characters ({NUMBER_LIMIT:,} are read at most)")
    if math.isinf(number := float(literal)):
        raise InvalidJSON(f"a number beyond a float: {literal[:20]}{'...' if len(literal) > 20 else ''}")
    return number


def _constant(name: str) -> Any:
    raise InvalidJSON(f"{name} is no JSON number")


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        seen: set[str] = set()
        duplicate = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
        raise InvalidJSON(f"duplicate key {json.dumps(duplicate[:50])}")
    return result


_DECODER: Final = json.JSONDecoder(
    parse_int=_integer, parse_float=_number, parse_constant=_constant, object_pairs_hook=_object
)


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
                raise ValueError(f"an expected object has a key that is no string{where}")
            if len({_nfc(key) for key in value}) != len(value):
                raise ValueError(f"an expected object has two keys that differ in Unicode form only{where}")
        elif type(value) not in (list, str, int, float, bool, type(None)):
            raise ValueError(f"a value of type {type(value).__name__} can't be expected of JSON{where}")
        elif type(value) in (int, float) and not _is_finite(value):
            raise ValueError(f"a number that no float can hold can't be expected of JSON{where}")


def _is_finite(number: float) -> bool:
    try:
        return math.isfinite(number)
    except OverflowError:
        return False


def _walk(value: Any) -> Iterator[tuple[_Path, Any]]:
    """Each value within, with its path, the whole first; not below a level that is too deep (it may be endless)."""
    pending: list[tuple[_Path, Any]] = [((), value)]
    while pending:
        path, value = pending.pop()
        yield path, value
        if len(path) < DEPTH_LIMIT and isinstance(value, (dict, list)):
            children = value.items() if isinstance(value, dict) else enumerate(value)
            pending.extend(((*path, key), child) for key, child in children)


# Comparing


def grade_answer(expected: Mapping[str, Any], answer: Answer, tolerance: Tolerance = DEFAULT_TOLERANCE) -> Grade:
    """1.0 if the answer has all that is expected, else 0.0 with a reason a difference. Never raises for an answer."""
    if answer.problem is not None:
        return Grade(0.0, note=answer.problem)
    if not isinstance(answer.value, dict):
        return Grade(0.0, note=f"the answer is {_kind(answer.value)}; a JSON object was due")
    differences = _differences(expected, answer.value, tolerance, ())
    reasons = tuple(islice(differences, REASONS_LIMIT))
    more = sum(1 for _ in differences)
    note = f"{len(reasons) + more:,} values differ; the first {len(reasons)} are listed" if more else None
    return Grade(0.0 if reasons else 1.0, reasons, note)


def _differences(expected: Any, answered: Any, tolerance: Tolerance, path: _Path) -> Iterator[Reason]:
    if isinstance(expected, Mapping) and isinstance(answered, dict):
        found = _KeyLookup(expected, answered)
        for key, value in expected.items():
            yield from _differences(value, found[key], tolerance, (*path, key))
    elif isinstance(expected, list) and isinstance(answered, list):
        for index, (value, other) in enumerate(zip_longest(expected, answered, fillvalue=_ABSENT)):
            yield from _differences(value, other, tolerance, (*path, index))
    elif not _match(expected, answered, tolerance):
        yield Reason(
            render_path(path),
            NOTHING if expected is _ABSENT else expected,
            MISSING if answered is _ABSENT else answered,
        )


_ABSENT: Final = object()


class _KeyLookup:
    """The values of an answered object by expected keys: literally, else in NFC; `_ABSENT` for none."""

    def __init__(self, expected: Mapping[str, Any], answered: dict[str, Any]) -> None:
        self._expected, self._answered = expected, answered
        self._by_form: dict[str, str] | None = None

    def __getitem__(self, key: str) -> Any:
        if key in self._answered:
            return self._answered[key]
        if self._by_form is None:  # made when a key is missing, once: both objects may be large
            longest = _FORMS * max(map(len, self._expected))
            unusual = (key for key in self._answered if not key.isascii() and len(key) <= longest)
            self._by_form = {_nfc(key): key for key in unusual}
        form = _nfc(key)
        return self._answered.get(self._by_form.get(form, form), _ABSENT)


def _match(expected: Any, answered: Any, tolerance: Tolerance) -> bool:
    """Whether two values that are not both objects or both arrays match. Types come first: in Python True equals 1."""
    if isinstance(expected, bool) or isinstance(answered, bool) or expected is None:
        return expected is answered
    if isinstance(expected, str) and isinstance(answered, str):
        return _match_text(expected.strip(), answered.strip())
    if isinstance(expected, (int, float)) and isinstance(answered, (int, float)):
        return _match_number(expected, answered, tolerance)
    return False


def _match_number(expected: Any, answered: Any, tolerance: Tolerance) -> bool:
    if isinstance(expected, int) and isinstance(answered, int):
        return expected == answered
    if any(number in (math.inf, -math.inf) or number != number for number in (expected, answered)):
        return False
    if expected == answered:
        return True
    wanted = _decimal(expected)
    allowed = max(_EXACT.multiply(_decimal(tolerance.relative), abs(wanted)), _decimal(tolerance.absolute))
    return abs(_EXACT.subtract(wanted, _decimal(answered))) <= allowed


_EXACT: Final = Context(prec=1000)  # digits enough for the difference of any two floats


def _decimal(number: Any) -> Decimal:
    return Decimal(repr(number) if isinstance(number, float) else number)


# NFC makes a text at most 3 times and at least 1/4 as long. Texts further apart can't match, and are not normalized,
# since a long run of combining marks takes quadratic time.
_FORMS: Final = 12


def _match_text(expected: str, answered: str) -> bool:
    return expected == answered or (len(answered) <= _FORMS * len(expected) and _nfc(expected) == _nfc(answered))


def _nfc(text: str) -> str:
    return unicodedata.normalize("NFC", text)


# Words


def render_path(path: tuple[str | int, ...]) -> str:
    """A path for people: `regions.north[2]`, `totals["North East"]`."""
    text = ""
    for step in path:
        if isinstance(step, int):
            text += f"[{step}]"
        elif re.fullmatch(r"[^\W\d][\w-]*", step):
            text += f".{step}" if text else step
        else:
            text += f"[{json.dumps(step, ensure_ascii=not step.isprintable())}]"
    return text


def _kind(value: Any) -> str:
    if value is None or isinstance(value, bool):
        return json.dumps(value)
    if isinstance(value, (list, str)):
        return "an array" if isinstance(value, list) else "a string"
    return "a number"
