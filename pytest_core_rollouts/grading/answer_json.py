"""JSON read strictly, whoever wrote it: what one reader takes and another refuses is refused."""

from __future__ import annotations

import json
import math
import re
from decimal import Decimal
from typing import Any, Final

DEPTH_LIMIT: Final = 100
NUMBER_LIMIT: Final = 1000
"""Characters of a number's literal."""


class InvalidJSON(ValueError):
    """Not JSON as we take it. `str()` is one line that says why: `not valid JSON: duplicate key "x"`."""

    def __init__(self, problem: str) -> None:
        super().__init__(f"not valid JSON: {problem}")


def parse_json(data: bytes) -> Any:
    """The value of a JSON text, strictly; raises InvalidJSON and nothing else.

    UTF-8, with a byte order mark dropped. No duplicate keys (as decoded), no NaN or Infinity, at most 100 levels of
    nesting, no number of more than 1,000 characters or beyond a float. An integer's literal becomes an int, any other
    number a float, unless it is a whole number that a float would change. A lone surrogate escape is taken as it is.
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


def _fraction(literal: str) -> float | int:
    """Return a float; an int for a whole number that a float would change, such as 9007199254740993.0."""
    number = _number(literal)
    if abs(number) < _EXACT_IN_A_FLOAT or (exact := Decimal(literal)) == Decimal(repr(number)):
        return number
    return int(exact) if exact == exact.to_integral_value() else number


_EXACT_IN_A_FLOAT: Final = 2.0**53


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
    parse_int=_integer, parse_float=_fraction, parse_constant=_constant, object_pairs_hook=_object
)
