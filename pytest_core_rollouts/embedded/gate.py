"""What every request passes and every answer carries: request ids, the beta header, the key."""

from __future__ import annotations

import hmac
import json
import time
from collections.abc import Iterable, Mapping
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from .errors import APIError, no_such_operation
from .ids import new_id

BETA = b"agents=v1"


class Gate:
    """ASGI middleware around the routes: checks first the path, then `OpenAI-Beta`, then the bearer key."""

    def __init__(self, app: ASGIApp, api_key: str) -> None:
        self._app = app
        self._key = api_key.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            raise RuntimeError(f"the embedded Core speaks HTTP alone, not {scope['type']}")
        started = time.monotonic()

        async def send_stamped(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", ()), *_stamps(started)]
            await send(message)

        try:
            self._check(scope)
        except APIError as error:
            await _send_error(send_stamped, error)
            return
        await self._app(scope, receive, send_stamped)

    def _check(self, scope: Scope) -> None:
        if not scope["path"].startswith("/v1/"):
            raise no_such_operation()
        headers: list[tuple[bytes, bytes]] = scope["headers"]
        if [value for name, value in headers if name == b"openai-beta"] != [BETA]:
            message = "To access the Agents API, set the 'OpenAI-Beta' header to 'agents=v1'."
            raise APIError(400, message, type="invalid_beta", code="invalid_beta")
        if not self.has_key(headers):
            message = "A valid Agents API bearer key is required."
            raise APIError(401, message, headers={"WWW-Authenticate": "Bearer"})

    def has_key(self, headers: Iterable[tuple[bytes, bytes]]) -> bool:
        """Whether a request's headers (names in lower case) hold the key, once."""
        credentials = [value for name, value in headers if name == b"authorization"]
        if len(credentials) != 1:
            return False
        scheme, _, key = credentials[0].partition(b" ")
        return scheme.lower() == b"bearer" and hmac.compare_digest(key.strip(), self._key)


def _stamps(started: float) -> list[tuple[bytes, bytes]]:
    return [
        (b"x-request-id", new_id("req").encode()),
        (b"openai-version", b"2020-10-01"),
        (b"openai-processing-ms", str(round((time.monotonic() - started) * 1000)).encode()),
        (b"x-content-type-options", b"nosniff"),
    ]


async def _send_error(send: Send, error: APIError) -> None:
    body = to_json(error.body())
    own = [(name.lower().encode(), value.encode()) for name, value in error.headers.items()]
    headers = [*JSON_HEADERS, (b"content-length", str(len(body)).encode()), *own]
    await send({"type": "http.response.start", "status": error.status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


JSON_HEADERS = ((b"content-type", b"application/json"), (b"cache-control", b"no-store"))


def to_json(value: Mapping[str, Any]) -> bytes:
    return json.dumps(value, separators=(",", ":"), allow_nan=False).encode()
