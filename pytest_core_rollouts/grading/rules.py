"""Rules for single values of an answer: the paths that name them, and what each rule may be about.

A path is written as reasons show it, from the top of the object: `totals.north`, `rows[2].price`, and
`totals["North East"]` for a key that is not a plain word. `rows[*].price` and `totals.*` name every element and every
key.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from enum import Enum
from typing import Any, Final

from pytest_core_rollouts.grading.comparing import UNORDERED_LIMIT, KeyRule, Path, is_countable, render_path, size


class Every(Enum):
    """Steps that stand for all: of an object's keys, of an array's elements."""

    KEY = "*"
    ELEMENT = "[*]"


Pattern = tuple["str | int | Every", ...]

_STEP: Final = re.compile(
    r"""(?P<start>^|\.)(?:(?P<every_key>\*)|(?P<word>[^\W\d][\w-]*))
      | \[(?:(?P<every>\*)|(?P<index>0|[1-9][0-9]{0,9})|(?P<quoted>"(?:[^"\\]|\\.)*"))\]""",
    re.VERBOSE,
)


def parse_path(text: str) -> Pattern:
    """The steps of a written path. Raises ValueError that says how to write one."""
    steps: list[str | int | Every] = []
    position = 0
    while position < len(text):
        found = _STEP.match(text, position)
        if found is None or (found["start"] == "." and not steps):
            raise ValueError(_HOW)
        position = found.end()
        if found["index"] is not None:
            steps.append(int(found["index"]))
        elif found["quoted"] is not None:
            steps.append(_unquoted(found["quoted"]))
        elif found["word"] is not None:
            steps.append(found["word"])
        else:
            steps.append(Every.KEY if found["every_key"] else Every.ELEMENT)
    if not steps:
        raise ValueError(_HOW)
    return tuple(steps)


_HOW: Final = (
    'invalid path into the answer; write it as totals.north, rows[2].price, totals["North East"], or rows[*].price'
)


def _unquoted(literal: str) -> str:
    try:
        return str(json.loads(literal))
    except ValueError:
        raise ValueError(_HOW) from None


def rules_by_path(expected: Mapping[str, Any], rules: Mapping[str, KeyRule]) -> dict[Path, KeyRule]:
    """Each rule under every path into `expected` that it names; of two for one place the one with fewer `*` holds.

    Raises BadRule for a path that is invalid, that leads nowhere, or whose value the rule can't be about.
    """
    patterns: dict[Pattern, str] = {}
    for written in rules:
        try:
            pattern = parse_path(written)
        except ValueError as error:
            raise BadRule(written, str(error)) from None
        if pattern in patterns:
            raise BadRule(written, f"{patterns[pattern]} is the same path; remove one of the two")
        patterns[pattern] = written
    by_path: dict[Path, KeyRule] = {}
    for pattern in sorted(patterns, key=lambda steps: -sum(isinstance(step, Every) for step in steps)):
        written = patterns[pattern]
        found = dict(_found(expected, pattern, ()))
        if not found:
            raise BadRule(written, "the expected answer has no such value; correct the path")
        if problem := _problem(rules[written], list(found.values())):
            raise BadRule(written, problem)
        by_path.update(dict.fromkeys(found, rules[written]))
    _check_lengths(expected, by_path)
    return by_path


class BadRule(ValueError):
    """A rule that can't hold: the path it was written under, and what is wrong."""

    def __init__(self, path: str, problem: str) -> None:
        self.path, self.problem = path, problem
        super().__init__(f"{path}: {problem}")


def _found(value: Any, pattern: Pattern, path: Path) -> Iterator[tuple[Path, Any]]:
    """Every value that the pattern names, with its path."""
    if not pattern:
        yield path, value
        return
    step, rest = pattern[0], pattern[1:]
    if step is Every.KEY and isinstance(value, Mapping):
        for key, child in value.items():
            yield from _found(child, rest, (*path, key))
    elif step is Every.ELEMENT and isinstance(value, list):
        for index, child in enumerate(value):
            yield from _found(child, rest, (*path, index))
    elif isinstance(step, str) and isinstance(value, Mapping):
        if step in value:
            yield from _found(value[step], rest, (*path, step))
    elif isinstance(step, int) and isinstance(value, list) and step < len(value):
        yield from _found(value[step], rest, (*path, step))


def _problem(rule: KeyRule, values: list[Any]) -> str | None:
    """Why a rule can't be about any of these values."""
    candidates = [*values, *rule.one_of]
    numbers = any(_contains(value, _is_number) for value in candidates)
    texts = any(_contains(value, lambda leaf: isinstance(leaf, str)) for value in candidates)
    if rule.unordered and not any(isinstance(value, list) for value in values):
        return "unordered needs an array; the expected value is not one"
    if rule.tolerance is not None and not numbers:
        return "relative and absolute need a number in the expected value"
    if rule.ignore_case and not texts:
        return "ignore_case needs a string in the expected value"
    if rule.exact and not (numbers or texts):
        return "exact needs a number or a string in the expected value"
    return None


def _contains(value: Any, predicate: Any) -> bool:
    """Return True if the value, or any single value in it, fulfills the predicate."""
    if isinstance(value, Mapping):
        return any(_contains(child, predicate) for child in value.values())
    if isinstance(value, list):
        return any(_contains(child, predicate) for child in value)
    return bool(predicate(value))


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _check_lengths(expected: Mapping[str, Any], by_path: Mapping[Path, KeyRule]) -> None:
    """Raise BadRule for an array in any order whose elements would be compared in too many pairs."""
    lengths: dict[Path, int] = {}
    for path, rule in by_path.items():
        value = next(value for _, value in _found(expected, path, ()))
        own_rules = any(len(other) > len(path) and other[: len(path)] == path for other in by_path)
        if rule.unordered and isinstance(value, list) and (own_rules or not is_countable(value)):
            lengths[path] = len(value)
    for path, length in lengths.items():
        value = next(value for _, value in _found(expected, path, ()))
        inner = max(
            (lengths[other] for other in lengths if len(other) > len(path) and other[: len(path)] == path), default=1
        )
        if length * size(value) * inner > UNORDERED_LIMIT:
            problem = f"unordered: {length:,} elements of this kind take too long to compare; ask for a sorted array"
            raise BadRule(render_path(path), problem)
