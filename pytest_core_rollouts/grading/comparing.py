"""An answered value compared with an expected one: where they differ, under the task's rules for single keys.

`grading.answers` lists the rules that apply without a `KeyRule`. The work is linear in the size of both values. The
exception are arrays in any order: they are sorted, or, if their elements must be compared in pairs, bounded in length
(`UNORDERED_LIMIT`).
"""

from __future__ import annotations

import json
import math
import re
import sys
import unicodedata
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Context, Decimal
from itertools import zip_longest
from typing import Any, Final, NamedTuple

from pytest_core_rollouts.grading.pairing import most_pairs

MISSING: Final = "(missing)"
"""Stands in `Reason.answered` where the answer has no such key or element."""
NOTHING: Final = "(nothing)"
"""Stands in `Reason.expected` where an array of the answer goes on past its expected end."""
UNORDERED_LIMIT: Final = 500_000
"""Elements times size of an expected array whose order is free and whose elements need comparing in pairs."""

MARKS_LIMIT: Final = 30
"""Combining marks in a row that are normalized, as in Unicode's stream-safe texts (UAX #15)."""

Path = tuple["str | int", ...]


@dataclass(frozen=True)
class Tolerance:
    """How far a number may be from the expected one: `relative` times it, or `absolute`, whichever allows more.

    A whole number never stands for another integer, unless a rule names the key.
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
class KeyRule:
    """What holds for one value and everything in it, in place of the rules for the whole answer.

    `tolerance` is for integers too; `exact` allows no difference of numbers, and none of white space or Unicode
    form in texts; `ignore_case` compares texts case-folded. Two are only about the value: with `unordered` an
    array's elements may come in any order, and each value of `one_of` is as right as the expected one.
    """

    tolerance: Tolerance | None = None
    exact: bool = False
    ignore_case: bool = False
    unordered: bool = False
    one_of: tuple[Any, ...] = ()


@dataclass(frozen=True)
class Reason:
    """One place where the answer differs.

    `path` leads there from the top of the object: `regions.north[2]`, with keys in quotes that are not plain words:
    `totals["North East"]`. `expected` and `answered` are the whole values found there, or `NOTHING` and `MISSING`.
    """

    path: str
    expected: Any
    answered: Any


class Difference(NamedTuple):
    """A `Reason` whose path is not rendered yet: an answer may have very many, and few are shown."""

    path: Path
    expected: Any
    answered: Any

    @property
    def reason(self) -> Reason:
        return Reason(render_path(self.path), self.expected, self.answered)


def differences(
    expected: Any, answered: Any, tolerance: Tolerance, rules: Mapping[Path, KeyRule] = {}
) -> Iterator[Difference]:
    """Every place where `answered` is not as expected; `rules` by paths into `expected`."""
    return _Comparison(rules).differences(expected, answered, (), _Mode(tolerance))


def render_path(path: Sequence[str | int]) -> str:
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


def nfc(text: str) -> str:
    """Return the text in Unicode's composed form; as it is if it has more than `MARKS_LIMIT` combining marks in a row.

    Normalization sorts each run of marks, in quadratic time and without releasing the GIL.
    """
    if text.isascii() or _LONG_RUN.search(bytes(map(_CLASSES.__getitem__, text))):
        return text
    return unicodedata.normalize("NFC", text)


class _CombiningClasses(dict[str, int]):
    """Each character's combining class once it is decomposed; 0 for one that begins a new run.

    A few characters (U+0F73) have class 0 themselves, but consist of marks only.
    """

    def __missing__(self, character: str) -> int:
        combining = self[character] = unicodedata.combining(unicodedata.normalize("NFD", character)[0])
        return combining


_CLASSES: Final = _CombiningClasses()
_LONG_RUN: Final = re.compile(rb"[^\0]{%d}" % (MARKS_LIMIT + 1))


def is_countable(elements: Sequence[Any]) -> bool:
    """Whether elements in any order need no comparison in pairs: single values, not both integers and fractions."""
    kinds = {type(element) for element in elements}
    return kinds <= {str, bool, int, float, type(None)} and not kinds >= {int, float}


def size(value: Any) -> int:
    """How much there is to compare in a value: its single values and keys, long texts counting for several."""
    if isinstance(value, Mapping):
        return 1 + sum(1 + size(child) for child in value.values())
    if isinstance(value, list):
        return 1 + sum(map(size, value))
    return 1 + len(value) // 32 if isinstance(value, str) else 1


class _Mode(NamedTuple):
    """How values are compared at some place and, unless a rule says otherwise, in all that is below it."""

    tolerance: Tolerance
    integers_exact: bool = True
    exact: bool = False
    ignore_case: bool = False

    def under(self, rule: KeyRule) -> _Mode:
        if rule.exact:
            return _Mode(Tolerance(), exact=True)
        mode = self
        if rule.tolerance is not None:
            mode = mode._replace(tolerance=rule.tolerance, integers_exact=False)
        return mode._replace(ignore_case=True, exact=False) if rule.ignore_case else mode


_ABSENT: Final = object()
_Compare = Callable[[Any, Any, Path, _Mode], Iterator[Difference]]


class _Comparison:
    """One answer compared; forms of its texts and keys are worked out once."""

    def __init__(self, rules: Mapping[Path, KeyRule]) -> None:
        self._rules = rules
        self._forms: dict[tuple[str, bool], str] = {}
        self._keys: dict[int, dict[str, str]] = {}

    def differences(self, expected: Any, answered: Any, path: Path, mode: _Mode) -> Iterator[Difference]:
        if (rule := self._rules.get(path)) is None:
            return self._below(expected, answered, path, mode)
        mode = mode.under(rule)
        compare = self._in_any_order if rule.unordered and isinstance(answered, list) else self._below
        if rule.one_of:
            return self._one_of([expected, *rule.one_of], answered, path, mode, compare)
        return compare(expected, answered, path, mode)

    def _one_of(
        self, either: list[Any], answered: Any, path: Path, mode: _Mode, compare: _Compare
    ) -> Iterator[Difference]:
        if not any(next(compare(value, answered, path, mode), None) is None for value in either):
            yield Difference(path, {"one of": either}, _shown(answered))

    def _below(self, expected: Any, answered: Any, path: Path, mode: _Mode) -> Iterator[Difference]:
        if isinstance(expected, Mapping) and isinstance(answered, dict):
            for key, value in expected.items():
                yield from self.differences(value, self._value_of(key, answered), (*path, key), mode)
        elif isinstance(expected, list) and isinstance(answered, list):
            for index, (value, other) in enumerate(zip_longest(expected, answered, fillvalue=_ABSENT)):
                if value is _ABSENT:  # no rule at this place makes up for the element that is too many
                    yield Difference((*path, index), NOTHING, other)
                else:
                    yield from self.differences(value, other, (*path, index), mode)
        elif not self._match(expected, answered, mode):
            yield Difference(path, expected, _shown(answered))

    def _value_of(self, key: str, answered: dict[str, Any]) -> Any:
        """The value of an answered object by an expected key: literally, else in NFC; `_ABSENT` for none."""
        if key in answered:
            return answered[key]
        if (keys := self._keys.get(id(answered))) is None:  # made when a key is missing, once: it may be a large object
            keys = self._keys[id(answered)] = {nfc(key): key for key in answered if not key.isascii()}
        form = nfc(key)
        return answered.get(keys.get(form, form), _ABSENT)

    # ---- single values

    def _match(self, expected: Any, answered: Any, mode: _Mode) -> bool:
        """Whether two values that are not both objects or both arrays match. Types come first: True equals 1."""
        if isinstance(expected, bool) or isinstance(answered, bool) or expected is None:
            return expected is answered
        if isinstance(expected, str) and isinstance(answered, str):
            return self._match_text(expected, answered, mode)
        if isinstance(expected, (int, float)) and isinstance(answered, (int, float)):
            return _match_number(expected, answered, mode)
        return False

    def _match_text(self, expected: str, answered: str, mode: _Mode) -> bool:
        if expected == answered or mode.exact:
            return expected == answered
        expected, answered = expected.strip(), answered.strip()
        if expected == answered:
            return True
        return self._form(expected, mode.ignore_case) == self._form(answered, mode.ignore_case)

    def _form(self, text: str, ignore_case: bool) -> str:
        if (form := self._forms.get((text, ignore_case))) is None:
            form = nfc(nfc(text).casefold()) if ignore_case else nfc(text)
            self._forms[text, ignore_case] = form
        return form

    # ---- arrays in any order

    def _in_any_order(self, expected: Any, answered: list[Any], path: Path, mode: _Mode) -> Iterator[Difference]:
        """Pair off as many elements as can be; what is left over on both sides differs."""
        if not isinstance(expected, list):
            yield from self._below(expected, answered, path, mode)
            return
        own_rules = any((*path, index) in self._rules for index in range(len(expected)))
        if is_countable(expected) and not own_rules:
            pairs = self._counted_off(expected, answered, mode)
        else:
            pairs = self._paired_off(expected, answered, path, mode)
        left = [index for index in range(len(expected)) if index not in pairs]
        taken = set(pairs.values())
        right = [index for index in range(len(answered)) if index not in taken]
        for this, other in zip_longest(left, right):
            yield Difference(
                (*path, len(expected) if this is None else this),
                NOTHING if this is None else expected[this],
                MISSING if other is None else answered[other],
            )

    def _counted_off(self, expected: list[Any], answered: list[Any], mode: _Mode) -> dict[int, int]:
        """The most pairs of matching single values, by index. Alike ones are counted, near numbers are sorted."""
        if mode.integers_exact and any(type(element) is int for element in expected):
            answered = [_without_zero_fraction(value) for value in answered]
        places: dict[Any, list[int]] = defaultdict(list)
        for index in range(len(answered) - 1, -1, -1):
            if (token := self._token(answered[index], mode)) is not None:
                places[token].append(index)
        pairs = {}
        for index, element in enumerate(expected):
            if same := places.get(self._token(element, mode)):
                pairs[index] = same.pop()
        _pair_near_numbers(expected, answered, pairs, mode)
        return pairs

    def _token(self, value: Any, mode: _Mode) -> Any:
        """What is equal for elements that match; None for what can match none, and for numbers that may be near."""
        if isinstance(value, str):
            return "text", value if mode.exact else self._form(value.strip(), mode.ignore_case)
        if value is None or isinstance(value, bool):
            return "constant", value
        return ("integer", value) if isinstance(value, int) and mode.integers_exact else None

    def _paired_off(self, expected: list[Any], answered: list[Any], path: Path, mode: _Mode) -> dict[int, int]:
        """The most pairs of matching elements, by index. Answered elements past twice the expected ones get none."""
        matches = [
            [
                other
                for other, value in enumerate(answered[: 2 * len(expected)])
                if next(self.differences(element, value, (*path, index), mode), None) is None
            ]
            for index, element in enumerate(expected)
        ]
        return most_pairs(matches)


def _pair_near_numbers(expected: list[Any], answered: list[Any], pairs: dict[int, int], mode: _Mode) -> None:
    """Add as many pairs as can be of numbers that are left.

    What a number allows begins and ends below what a larger one allows, so going up both sides once is enough.
    """
    taken = set(pairs.values())
    left = [index for index, value in enumerate(expected) if _is_finite_number(value) and index not in pairs]
    right = [index for index, value in enumerate(answered) if _is_finite_number(value) and index not in taken]
    if mode.integers_exact and any(type(expected[index]) is int for index in left):
        # A whole number that is left over matches no integer, and would end the search of those below it.
        right = [index for index in right if type(answered[index]) is not int]
    left.sort(key=expected.__getitem__, reverse=True)
    right.sort(key=answered.__getitem__, reverse=True)
    while left and right:
        value, other = expected[left[-1]], answered[right[-1]]
        if _match_number(value, other, mode):
            pairs[left.pop()] = right.pop()
        else:
            (right if other < value else left).pop()


def _without_zero_fraction(value: Any) -> Any:
    return int(value) if type(value) is float and value.is_integer() else value


def _is_finite_number(value: Any) -> bool:
    return type(value) is int or (type(value) is float and math.isfinite(value))


def _shown(answered: Any) -> Any:
    return MISSING if answered is _ABSENT else answered


def _match_number(expected: Any, answered: Any, mode: _Mode) -> bool:
    is_integer = isinstance(expected, int) and mode.integers_exact
    if is_integer and isinstance(answered, int):
        return bool(expected == answered)
    if expected == answered:
        return bool(-math.inf < expected < math.inf)
    if any(number in (math.inf, -math.inf) or number != number for number in (expected, answered)):
        return False
    relative, absolute = mode.tolerance.relative, mode.tolerance.absolute
    if _is_far(expected, answered, relative, absolute):
        return False
    difference = abs(_EXACT.subtract(_decimal(expected), _decimal(answered)))
    if is_integer and difference and not _is_noise(answered, difference, mode.tolerance):
        return False
    return difference <= max(_EXACT.multiply(_decimal(relative), abs(_decimal(expected))), _decimal(absolute))


def _is_far(expected: Any, answered: Any, relative: float, absolute: float) -> bool:
    """Whether two numbers are so different that rounding does not matter: exact arithmetic takes ten times as long."""
    if isinstance(answered, int):
        return answered.bit_length() > 2 * sys.float_info.max_exp  # of an answer that was made in code
    if not (isinstance(expected, float) and isinstance(answered, float)):
        return False
    size = abs(expected) + abs(answered)
    return abs(expected - answered) > absolute * 1.001 + (relative * 1.001 + 1e-9) * size


def _is_noise(answered: float, difference: Decimal, tolerance: Tolerance) -> bool:
    """Whether a number may be an expected integer with the rounding noise of a sum, or a task allows the fraction.

    Another whole number is another answer, however it is written: 48213340.0 is not the order 48213377.
    """
    if answered.is_integer():
        return False
    return tolerance != DEFAULT_TOLERANCE or difference < _HALF


_EXACT: Final = Context(prec=1000, traps=[])  # digits enough for the difference of any two floats
_HALF: Final = Decimal("0.5")


def _decimal(number: Any) -> Decimal:
    return Decimal(repr(number) if isinstance(number, float) else number)
