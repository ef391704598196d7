"""Reads JSON strictly: what one reader accepts and another refuses is refused.

`read_json` is for rows, API responses and options; `parse_json` is for answers, which agents write and graders compare.
"""

from __future__ import annotations

import bisect
import json
import math
import re
from decimal import Decimal
from typing import Any, Final

DEPTH_LIMIT: Final = 100
NUMBER_LIMIT: Final = 1000
"""Maximum number of characters in a number's literal."""


class InvalidJSON(ValueError):
    """A text that is not valid JSON. `str()` is one line with the reason: `not valid JSON: duplicate key "x"`."""

    def __init__(self, problem: str) -> None:
        self.problem = problem
        super().__init__(f"not valid JSON: {problem}")


def read_json(data: bytes, *, lenient: bool = False) -> Any:
    """Return the value of a JSON text in UTF-8. NaN and Infinity are refused.

    `lenient` drops a byte order mark and accepts lone surrogates that are encoded as UTF-8, as some servers send them.
    Raises InvalidJSON and nothing else.
    """
    try:
        text = data.decode("utf-8", "surrogatepass").removeprefix("\ufeff") if lenient else data.decode("utf-8")
        return _PLAIN_DECODER.decode(text)
    except InvalidJSON:
        raise
    except (ValueError, RecursionError) as error:
        raise InvalidJSON(str(error)) from None


def parse_json(data: bytes) -> Any:
    """Return the value of an answer's JSON text. Raises InvalidJSON and nothing else.

    The text is UTF-8; a byte order mark is dropped. Duplicate keys (as decoded), NaN, Infinity, more than 100 levels of
    nesting, numbers of more than 1,000 characters and numbers that a float can't hold are refused.
    An integer's literal becomes an int. Any other number becomes a float, or an int if it is a whole number that a
    float would change. A lone surrogate escape is accepted.
    """
    try:
        text = data.decode("utf-8").removeprefix("\ufeff")
    except UnicodeDecodeError as error:
        raise InvalidJSON(f"byte {error.start} is not UTF-8") from None
    if _is_deeper_than(DEPTH_LIMIT, text):
        raise InvalidJSON(f"nested more than {DEPTH_LIMIT} levels deep")
    try:
        return _ANSWER_DECODER.decode(text)
    except json.JSONDecodeError as error:
        problem = error.msg if text.strip() else "the file is empty"
        raise InvalidJSON(f"{problem} (line {error.lineno}, column {error.colno})") from None


def with_position(error: InvalidJSON, data: bytes) -> str:
    """Return the text of an error of `parse_json` with the line and column of its cause, for files that people write.

    The parser reports a cause at once, so it is where the shortest beginning ends that has the same error.
    """
    if " (line " in error.problem:
        return str(error)
    try:
        text = data.decode("utf-8").removeprefix("\ufeff")
    except UnicodeDecodeError as broken:
        start, text = broken.start, data.decode("latin-1")
    else:
        end = bisect.bisect_left(range(len(text)), True, key=lambda end: _problem(text[:end]) == error.problem)
        start = min(end - 1, len(text[:end].rstrip("+-.0123456789EINaefinty")))
        if error.problem.startswith("duplicate key "):  # reported where its object ends
            key = text[:end].rfind(error.problem.removeprefix("duplicate key "))
            start = key if key >= 0 else start
    line, column = text.count("\n", 0, start) + 1, start - text.rfind("\n", 0, start)
    return f"{error} (line {line}, column {column})"


def _problem(text: str) -> str | None:
    try:
        parse_json(text.encode())
    except InvalidJSON as error:
        return error.problem
    return None


def _is_deeper_than(limit: int, text: str) -> bool:
    """Return True if brackets outside strings nest deeper. Checked before parsing because the parser recurses."""
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
    _number(literal)  # a number that a float can hold is also within Python's limit of digits
    return int(literal)


def _fraction(literal: str) -> float | int:
    """Return a float, or an int for a whole number that a float would change, such as 9007199254740993.0."""
    number = _number(literal)
    if abs(number) < _EXACT_IN_A_FLOAT or (exact := Decimal(literal)) == Decimal(repr(number)):
        return number
    return int(exact) if exact == exact.to_integral_value() else number


_EXACT_IN_A_FLOAT: Final = 2.0**53


def _number(literal: str) -> float:
    if len(literal) > NUMBER_LIMIT:
        raise InvalidJSON(f"a number of {len(literal):,} characters (at most {NUMBER_LIMIT:,} are read)")
    if math.isinf(number := float(literal)):
        raise InvalidJSON(f"a number too large for a float: {literal[:20]}{'...' if len(literal) > 20 else ''}")
    return number


def _refuse_constant(name: str) -> Any:
    raise InvalidJSON(f"{name} is not a JSON number")


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        seen: set[str] = set()
        duplicate = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
        raise InvalidJSON(f"duplicate key {json.dumps(duplicate[:50])}")
    return result


_PLAIN_DECODER: Final = json.JSONDecoder(parse_constant=_refuse_constant)
_ANSWER_DECODER: Final = json.JSONDecoder(
    parse_int=_integer, parse_float=_fraction, parse_constant=_refuse_constant, object_pairs_hook=_object
)
