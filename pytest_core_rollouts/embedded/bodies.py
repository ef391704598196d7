"""A request's body: read within its limit, parsed as strict JSON, and checked by a pydantic model."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn, TypeVar

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, ValidationError, model_validator
from pydantic_core import PydanticCustomError
from starlette.requests import Request

from .errors import APIError, invalid, unsupported

CREATE_LIMIT = 16 * 1024 * 1024  # bytes
BODY_LIMIT = 1024 * 1024  # bytes, of every other body
KEY_LIMIT = 128  # bytes

_JSON_TYPE = re.compile(r"application/(json|[a-z0-9!#$&^_.+-]+\+json)\s*(;.*)?", re.IGNORECASE)
_DRAIN_LIMIT = 64 * 1024 * 1024  # bytes read past a limit, so that the client gets the response and no reset
_SHOWN = 200  # characters of a request that an error message may repeat
_MEMBERS = 64  # of one object; no model has that many fields
_MALFORMED = "The body is not valid JSON."


# Reading


async def read_body(request: Request, limit: int = BODY_LIMIT) -> dict[str, Any]:
    """Return the JSON object in a request's body. Raises APIError: 400, or 413 if it has more than `limit` bytes."""
    types = request.headers.getlist("content-type")
    if len(types) != 1 or not _JSON_TYPE.fullmatch(types[0].strip()):
        raise invalid("expected one Content-Type header with application/json")
    return parse_object(await _read(request, limit))


async def _read(request: Request, limit: int) -> bytes:
    chunks: list[bytes] = []
    size = 0
    async for chunk in request.stream():
        size += len(chunk)
        if size <= limit:
            chunks.append(chunk)
        else:
            chunks.clear()
            if size > _DRAIN_LIMIT:
                break
    if size > limit:
        raise APIError(413, f"The body is larger than {limit} bytes.", code="request_too_large")
    return b"".join(chunks)


def read_key(request: Request) -> str | None:
    """Return the request's `Idempotency-Key`; None if it is absent or empty. Raises APIError (400)."""
    keys = [key for key in request.headers.getlist("idempotency-key") if key]
    if not keys:
        return None
    if len(keys) > 1 or len(keys[0].encode("latin-1")) > KEY_LIMIT:
        raise APIError(400, f"Idempotency-Key: expected 1 to {KEY_LIMIT} bytes, sent once", code="invalid_request")
    return keys[0]


# Strict JSON


def parse_object(raw: bytes) -> dict[str, Any]:
    """Return the JSON object in `raw`; an empty body or `null` counts as `{}`.

    Raises APIError (400) for invalid UTF-8, malformed JSON, trailing data, a byte order mark, NaN and Infinity, lone
    surrogates, U+0000, a duplicate key at any depth, or a root that is not an object.
    """
    if not raw:
        return {}
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError:
        raise invalid("The body is not valid UTF-8.") from None
    try:
        value = json.loads(text, object_pairs_hook=_unique, parse_constant=_refuse_constant)
    except (ValueError, RecursionError):
        raise invalid(_MALFORMED) from None
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise invalid(f"The body must be an object, but is {kind(value)}.")
    if "\\u" in text:
        _check_escapes(value)
    return value


def kind(value: Any) -> str:
    """Return what a JSON value is, as error messages name it."""
    if value is None:
        return "null"
    for type_, name in ((bool, "a boolean"), (str, "a string"), (int, "an integer"), (float, "a decimal")):
        if isinstance(value, type_):
            return name
    return "an array" if isinstance(value, list) else "an object"


def clip(text: str) -> str:
    """Return a part of a request as an error message may repeat it: short and printable."""
    shown = text if text.isprintable() else ascii(text[:_SHOWN])[1:-1]
    return shown if len(shown) <= _SHOWN else f"{shown[:_SHOWN]}..."


def _unique(members: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(members)
    if len(result) < len(members):
        seen: set[str] = set()
        repeated = next(key for key, _ in members if key in seen or seen.add(key))  # type: ignore[func-returns-value]
        raise invalid(f"The body has an object with the duplicate key '{clip(repeated)}'.")
    return result


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(name)


def _check_escapes(value: Any) -> None:
    """Escapes can write what UTF-8 can't hold (a lone surrogate) and what files and argv can't (U+0000)."""
    values = [value]
    while values:
        value = values.pop()
        if isinstance(value, dict):
            values += value.keys()
            values += value.values()
        elif isinstance(value, list):
            values += value
        elif isinstance(value, str):
            if "\x00" in value:
                raise invalid("The body has a string with U+0000, which can't be stored.")
            try:
                value.encode("utf-8")
            except UnicodeEncodeError:
                raise invalid(_MALFORMED) from None


# Checking


class Body(BaseModel):
    """One JSON object of a request: nothing is converted, unknown members are errors, null counts as absent."""

    model_config = ConfigDict(
        strict=True, extra="forbid", frozen=True, hide_input_in_errors=True, protected_namespaces=()
    )

    @model_validator(mode="before")
    @classmethod
    def _drop_nulls(cls, value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        if len(value) > _MEMBERS:  # pydantic would make an error for each of a million members
            raise fault("invalid", f"has {len(value)} members; at most {_MEMBERS} are accepted")
        known = cls.model_fields
        return {name: member for name, member in value.items() if member is not None or name not in known}


B = TypeVar("B", bound=Body)
T = TypeVar("T")


def check_body(model: type[B], body: Mapping[str, Any]) -> B:
    """Return `body` as a `model`. Raises APIError (400) that names one faulty member in `param`.

    A member that another Core would serve is named before other faults.
    """
    try:
        return model.model_validate(body)
    except ValidationError as error:
        errors = error.errors(include_url=False)
    raise _api_error(next((one for one in errors if one["type"] == "unsupported"), errors[0]))


def fault(type: str, what: str, *, below: str = "", above: bool = False) -> PydanticCustomError:
    """Return an error for a validator to raise; `what` follows the member's path in the message.

    `type`: "invalid", "unsupported" (another Core may serve it) or "empty". `below` is added to the path of the member
    that is validated; with `above` the error names the object around it.
    """
    return PydanticCustomError(type, "{what}", {"what": what, "below": below, "above": above})


def refuse(what: str, *allowed: object, above: bool = False) -> AfterValidator:
    """Return a validator that accepts only empty values and those `allowed`; all others are unsupported."""

    def check(value: T) -> T:
        if value and value not in allowed:
            raise fault("unsupported", what, above=above)
        return value

    return AfterValidator(check)


def at_most(limit: int) -> BeforeValidator:
    """Return a validator that refuses longer arrays before their members are looked at."""

    def check(value: T) -> T:
        if isinstance(value, list) and len(value) > limit:
            raise fault("invalid", f"has {len(value)} members; at most {limit} are accepted")
        return value

    return BeforeValidator(check)


_EXPECTED = {
    "string_type": "a string",
    "bool_type": "a boolean",
    "int_type": "an integer",
    "float_type": "a number",
    "list_type": "an array",
    "tuple_type": "an array",
    "dict_type": "an object",
    "model_type": "an object",
    "model_attributes_type": "an object",
}
"""What is expected, for each type of error that pydantic reports for a value of another type."""


def _api_error(error: Any) -> APIError:
    type_, context = error["type"], error.get("ctx", {})
    steps = [*error["loc"]]
    if type_.startswith("union_tag"):
        steps.append("type")
    path = _path(steps[:-1] if context.get("above") else steps) + context.get("below", "")
    if type_ in _EXPECTED:
        what = f"expected {_EXPECTED[type_]}, got {kind(error['input'])}"
    elif type_ in ("missing", "union_tag_not_found"):
        what = "missing"
    elif type_ == "extra_forbidden":
        what = "unknown member"
    elif type_ in ("literal_error", "union_tag_invalid"):
        what = f"expected {context.get('expected') or context['expected_tags']}"
    else:
        what = context.get("what") or error["msg"]
    message = f"{path}: {what}" if path else what
    if type_ == "unsupported":
        return unsupported(message, path)
    return APIError(400, message, code="invalid_request" if type_ == "empty" else "invalid_request_error", param=path)


def _path(steps: Sequence[str | int]) -> str:
    path = ""
    for step in steps:
        if isinstance(step, int):
            path += f"[{step}]"
        elif not step.startswith("agent.session.input."):  # pydantic names the kind of an event as a step
            path += f".{clip(step)}" if path else clip(step)
    return path
