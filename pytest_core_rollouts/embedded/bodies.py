"""Reading a request's JSON body within its limit, and its idempotency key."""

from __future__ import annotations

import re
from typing import Any

from starlette.requests import Request

from .errors import APIError, invalid
from .strict_json import parse_object

CREATE_LIMIT = 16 * 1024 * 1024  # bytes
BODY_LIMIT = 1024 * 1024  # bytes, of every other body
KEY_LIMIT = 128  # bytes

_JSON_TYPE = re.compile(r"application/(json|[a-z0-9!#$&^_.+-]+\+json)\s*(;.*)?", re.IGNORECASE)
_DRAIN_LIMIT = 64 * 1024 * 1024  # what is read past a limit, so that the client hears the answer and not a reset


async def read_body(request: Request, limit: int = BODY_LIMIT) -> dict[str, Any]:
    """The JSON object in a request's body. Raises APIError: 400, or 413 when it is larger than `limit` bytes."""
    types = request.headers.getlist("content-type")
    if len(types) != 1 or not _JSON_TYPE.fullmatch(types[0].strip()):
        raise invalid("expected request with Content-Type: application/json")
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
        message = f"The request's body is larger than {limit} bytes."
        raise APIError(413, message, code="request_too_large")
    return b"".join(chunks)


def read_key(request: Request) -> str | None:
    """The request's `Idempotency-Key`; an empty one counts as none. Raises APIError (400)."""
    keys = [key for key in request.headers.getlist("idempotency-key") if key]
    if not keys:
        return None
    if len(keys) > 1 or len(keys[0].encode("latin-1")) > KEY_LIMIT:
        message = f"An Idempotency-Key has 1 to {KEY_LIMIT} bytes and comes once."
        raise APIError(400, message, code="invalid_request")
    return keys[0]
