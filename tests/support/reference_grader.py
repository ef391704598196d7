"""An independent reference for the built-in grading: slow and plain, written from docs/tasks.md only.

It imports nothing of the package. A test compares the two on random pairs; if they disagree, docs/tasks.md decides.
"""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Iterator, Mapping
from fractions import Fraction
from functools import partial
from typing import Any, NamedTuple

Rules = Mapping[str, Mapping[str, Any]]
_nfc = partial(unicodedata.normalize, "NFC")
_STEP = re.compile(r'\.?(?:\*|[^.\[\]"*]+)|\[(?:\d+|\*)\]|\["(?:[^"\\]|\\.)*"\]')


class Number(NamedTuple):
    """A number of a JSON text: an integer if it is written as one, or is a whole number that a double would change."""

    value: Fraction
    is_integer: bool


class Mode(NamedTuple):
    """How numbers and texts are compared at one place and below it."""

    relative: float
    absolute: float
    is_default: bool
    is_for_integers: bool = False
    texts: str = "trimmed"


def reference_reward(expected: str, answer: bytes, tolerance: Mapping[str, float] | None, rules: Rules) -> float:
    """Return 1.0 if an answer matches the JSON text of what is expected, else 0.0."""
    try:
        answered = _read(answer.decode().removeprefix("\ufeff"))
    except (ValueError, RecursionError):
        return 0.0
    if not isinstance(answered, dict) or _levels(answered) > 100 or len(answer) > 1024 * 1024:
        return 0.0
    wanted = _read(expected)
    steps = {text: [step[0].removeprefix(".") for step in _STEP.finditer(text)] for text in rules}
    by_stars = sorted(rules, key=lambda text: -steps[text].count("*") - steps[text].count("[*]"))
    by_path = {path: rules[text] for text in by_stars for path in _paths(wanted, steps[text])}
    given = {"relative": 1e-6} if tolerance is None else tolerance
    mode = Mode(given.get("relative", 0), given.get("absolute", 0), tolerance is None)
    return float(_Reference(by_path).matches(wanted, answered, (), mode))


def _read(text: str) -> Any:
    return json.loads(text, object_pairs_hook=_object, parse_constant=_number, parse_int=_number, parse_float=_number)


def _number(literal: str) -> Number:
    """Whole numbers keep all their digits; others are read in double precision. Raises ValueError for NaN."""
    value, double = Fraction(literal), _written(float(literal))
    is_integer = literal.lstrip("-").isdigit() or (value.denominator == 1 and value != double)
    return Number(value if is_integer else double, is_integer)


def _written(number: float) -> Fraction:
    return Fraction(repr(number))  # 0.1 is one tenth


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len(dict(pairs)) < len(pairs):
        raise ValueError("a key occurs twice")
    return dict(pairs)


def _levels(value: Any) -> int:
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else None
    return 0 if inner is None else 1 + max(map(_levels, inner), default=0)


def _paths(value: Any, steps: list[str], path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    if not steps:
        yield path
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, child in inner if steps else ():
        names = ("*", key, f"[{json.dumps(key)}]") if isinstance(key, str) else ("[*]", f"[{key}]")
        if steps[0] in names:
            yield from _paths(child, steps[1:], (*path, key))


class _Reference(NamedTuple):
    rules: Mapping[tuple[Any, ...], Mapping[str, Any]]

    def matches(self, expected: Any, answered: Any, path: tuple[Any, ...], mode: Mode) -> bool:
        rule = self.rules.get(path, {})
        if "exact" in rule:
            mode = mode._replace(relative=0, absolute=0, texts="exact")
        if "ignore_case" in rule:
            mode = mode._replace(texts="ignore_case")
        if "relative" in rule or "absolute" in rule:
            mode = Mode(rule.get("relative", 0), rule.get("absolute", 0), False, True, mode.texts)
        pair = self.pair if "unordered" in rule else self.compare
        values = [expected, *_read(json.dumps(rule.get("one_of", [])))]
        return any(pair(value, answered, path, mode) for value in values)

    def pair(self, expected: Any, answered: Any, path: tuple[Any, ...], mode: Mode) -> bool:
        """Whether all elements can be paired, in any order: each may take another's partner that finds a new one."""
        if not (isinstance(expected, list) and isinstance(answered, list)):
            return self.compare(expected, answered, path, mode)
        owners: dict[int, int] = {}

        def place(index: int, tried: set[int]) -> bool:
            for other, value in enumerate(answered):
                if other not in tried and self.matches(expected[index], value, (*path, index), mode):
                    tried.add(other)
                    if other not in owners or place(owners[other], tried):
                        owners[other] = index
                        return True
            return False

        return len(expected) == len(answered) and all(place(index, set()) for index in range(len(expected)))

    def compare(self, expected: Any, answered: Any, path: tuple[Any, ...], mode: Mode) -> bool:
        if isinstance(expected, Number) or isinstance(answered, Number):
            return type(expected) is type(answered) and _same_number(expected, answered, mode)
        if isinstance(expected, dict) and isinstance(answered, dict):
            found = {_nfc(key): value for key, value in answered.items()}
            values = {key: answered.get(key, found.get(_nfc(key), "missing")) for key in expected}
            return {_nfc(key) for key in expected} <= set(found) and all(
                self.matches(value, values[key], (*path, key), mode) for key, value in expected.items()
            )
        if isinstance(expected, list) and isinstance(answered, list):
            pairs = enumerate(zip(expected, answered, strict=False))
            return len(expected) == len(answered) and all(self.matches(*both, (*path, n), mode) for n, both in pairs)
        if isinstance(expected, str) and isinstance(answered, str):
            return _text(expected, mode) == _text(answered, mode)
        return type(expected) is type(answered) and bool(expected == answered)


def _same_number(expected: Number, answered: Number, mode: Mode) -> bool:
    difference = abs(expected.value - answered.value)
    is_another = answered.value.denominator == 1 or (mode.is_default and difference >= Fraction(1, 2))
    if difference and expected.is_integer and is_another and not mode.is_for_integers:
        return False
    return difference <= max(abs(expected.value) * _written(mode.relative), _written(mode.absolute))


def _text(text: str, mode: Mode) -> str:
    trimmed = _nfc(text.strip())
    return {"exact": text, "ignore_case": _nfc(trimmed.casefold()), "trimmed": trimmed}[mode.texts]
