"""Request bodies as strict JSON: what a lenient parser would mend or guess is refused."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, NoReturn

from .errors import APIError, invalid

MALFORMED = (
    "Invalid body: failed to parse JSON value. Please check the value to ensure it is valid JSON. (Common errors "
    "include trailing commas, missing closing brackets, missing quotation marks, a byte order mark, etc.)"
)


class _Repeating(dict[str, Any]):
    """An object in which a key came twice; kept until the whole body is known, to say where."""

    key = ""


def parse_object(raw: bytes) -> dict[str, Any]:
    """The JSON object in `raw`; an empty body or `null` counts as `{}`.

    Raises APIError (400) for invalid UTF-8, malformed JSON, trailing data, a byte order mark, NaN and Infinity, lone
    surrogates, U+0000, a repeated key at any depth, or a root that is no object.
    """
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError:
        raise invalid("Invalid body: a unicode decode error was met; the body must be valid UTF-8.") from None
    if not text:
        return {}
    repeated = False

    def pairs(members: list[tuple[str, Any]]) -> dict[str, Any]:
        nonlocal repeated
        result = dict(members)
        if len(result) == len(members):
            return result
        repeated = True
        marked = _Repeating(result)
        marked.key = _first_repeat(members)
        return marked

    try:
        value = json.loads(text, object_pairs_hook=pairs, parse_constant=_refuse_constant)
    except (ValueError, RecursionError):
        raise invalid(MALFORMED) from None
    if repeated:
        raise _duplicate(value)
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise invalid(f"Invalid type: expected an object, but got {kind(value)} instead.")
    if "\\u" in text:
        _check_escapes(value)
    return value


def kind(value: Any) -> str:
    """A JSON value's kind, as error messages name it."""
    if value is None:
        return "null"
    for type_, name in ((bool, "a boolean"), (str, "a string"), (int, "an integer"), (float, "a decimal")):
        if isinstance(value, type_):
            return name
    return "an array" if isinstance(value, list) else "an object"


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(name)


def _first_repeat(members: list[tuple[str, Any]]) -> str:
    seen: set[str] = set()
    for key, _ in members:
        if key in seen:
            return key
        seen.add(key)
    raise AssertionError("called for an object without a repeated key")


def _duplicate(value: Any) -> APIError:
    path, key = next(_repeats(value, ()))
    where = ".".join((*path, key))
    return invalid(f"Invalid body: duplicate JSON key '{key}' at '{where}'. Duplicate JSON keys are not supported.")


def _repeats(value: Any, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], str]]:
    if isinstance(value, _Repeating):
        yield path, value.key
    if isinstance(value, dict):
        for key, member in value.items():
            yield from _repeats(member, (*path, key))
    elif isinstance(value, list):
        for member in value:
            yield from _repeats(member, path)


def _check_escapes(value: Any) -> None:
    """Escapes can write what UTF-8 text cannot hold (a lone surrogate) and what files and argv cannot (U+0000)."""
    for text in _strings(value):
        if "\x00" in text:
            raise invalid("Request text contains characters this service cannot store, such as U+0000.")
        try:
            text.encode("utf-8")
        except UnicodeEncodeError:
            raise invalid(MALFORMED) from None


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for key, member in value.items():
            yield key
            yield from _strings(member)
    elif isinstance(value, list):
        for member in value:
            yield from _strings(member)
