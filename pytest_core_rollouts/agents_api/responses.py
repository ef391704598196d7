"""What an answer means: JSON of the promised shape, or the error that names the call and the next step."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import NoneType
from typing import Any, NoReturn, TypeGuard
from urllib.parse import urlsplit

from .errors import AgentsAPIError, APIStatusError, InvalidResponse, NotACore, printable
from .retry import retry_after_seconds, unix_time

__all__ = ["Call", "Reply", "checked_id", "invalid", "json_object", "no_core", "page", "refusal"]

_WHICH_URL = "is OPENAI_BASE_URL the URL of an OpenAgentCore, and does it end in /v1?"

ERROR_LIMIT = 64 * 1024  # an error body is read no further


@dataclass(frozen=True)
class Call:
    """One request. `name` is the key of `Client.request_ids`; `path` starts after the base URL."""

    name: str
    method: str
    path: str
    body: bytes | None = field(default=None, repr=False)  # may hold the key of a model provider
    idempotency_key: str | None = None
    accept: str = "application/json"
    max_bytes: int | None = None  # of its answer; None: the client's own limit

    @property
    def is_collection(self) -> bool:
        """Whether it goes to /agents/sessions itself: a 404 there says that no Agents API is served."""
        return self.name in ("create", "sessions")


@dataclass(frozen=True)
class Reply:
    """A whole answer. Names of headers are in lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytes = field(repr=False)

    @property
    def request_id(self) -> str | None:
        value = self.headers.get("x-request-id")
        return printable(value, 100) if value else None

    def server_ahead(self, now: float) -> float:
        """Seconds by which the server's clock, as its Date header tells it, is ahead of `now`, Unix time; 0 unsaid."""
        told = unix_time(self.headers.get("date", ""))
        return 0.0 if told is None else told - now

    @property
    def is_html(self) -> bool:
        return "html" in self.headers.get("content-type", "").lower() or self.body[:100].lstrip()[:1] == b"<"


def json_object(call: Call, reply: Reply) -> dict[str, Any]:
    """The JSON object in a successful reply. Raises InvalidResponse."""
    try:
        value = _JSON.decode(reply.body.decode("utf-8-sig", "surrogatepass"))
    except (ValueError, RecursionError) as error:
        invalid(call, reply, f"the body is {_kind(reply)}, not JSON ({printable(str(error), 120)})")
    if not isinstance(value, dict):
        invalid(call, reply, f"the body is a JSON {type(value).__name__}, not an object")
    return value


def page(call: Call, reply: Reply) -> tuple[list[dict[str, Any]], bool, str | None]:
    """`data`, `has_more` and `last_id` of a list. Raises InvalidResponse."""
    value = json_object(call, reply)
    data, has_more, last_id = value.get("data"), value.get("has_more"), value.get("last_id")
    if not isinstance(data, list) or not all(isinstance(entry, dict) for entry in data):
        invalid(call, reply, "`data` is no list of objects")
    if not all(isinstance(entry.get("id"), (str, NoneType)) for entry in data):
        invalid(call, reply, "`data` holds an id that is no string")
    if not isinstance(has_more, bool):
        invalid(call, reply, "`has_more` is no boolean")
    if last_id is not None and not _fits_a_url(last_id):
        invalid(call, reply, f"`last_id` is no usable string: {printable(repr(last_id), 80)}")
    return data, has_more, last_id


def checked_id(call: Call, reply: Reply, resource: dict[str, Any]) -> str:
    """The id of a Session, Turn or Artifact: a string that can stand in a URL. Raises InvalidResponse."""
    value = resource.get("id")
    if not _fits_a_url(value):
        invalid(call, reply, f"`id` is no usable string: {printable(repr(value), 80)}")
    return value


def _fits_a_url(value: object) -> TypeGuard[str]:
    """Whether an id can be a segment of a path: `.` and `..` would be resolved away, surrogates have no bytes."""
    return isinstance(value, str) and 0 < len(value) <= 1000 and value.isprintable() and value not in (".", "..")


def invalid(call: Call, reply: Reply, problem: str) -> NoReturn:
    raise InvalidResponse(
        f"HTTP {reply.status}, but {problem}", method=call.method, path=call.path, request_id=reply.request_id
    )


def refusal(
    call: Call, reply: Reply, base_url: str, *, proven: bool, via: str = "", secret: str = ""
) -> AgentsAPIError:
    """The error that a reply of status 300 or above stands for.

    `proven`: this server has already answered as a Core does. `via` names the proxy, if there is one. `secret` is cut
    out of everything that the server says.
    """

    def clean(value: object, limit: int) -> str | None:
        if not isinstance(value, (str, int)):
            return None
        return printable(str(value).replace(secret, "***") if secret else str(value), limit)

    request_id = clean(reply.request_id, 100)
    if reply.status < 400:
        where = clean(_host(reply.headers.get("location", "")), 200) or "another path"
        return _redirect(call, reply, where, request_id, proven=proven)
    error = _error_body(reply)
    if error is None and not proven and call.is_collection and reply.status in (404, 405):
        return no_core(call, base_url, f"HTTP {reply.status} with {_kind(reply)}{via}", request_id)
    fault = APIStatusError(
        reply.status,
        method=call.method,
        path=call.path,
        code=clean(error.get("code"), 100) if error else None,
        param=clean(error.get("param"), 200) if error else None,
        message=(clean(error["message"], 500) or "") if error else f"({_kind(reply)}{via}, not the API's error body)",
        request_id=request_id,
        retry_after=retry_after_seconds(reply.headers.get("retry-after"), reply.headers.get("date"), time.time()),
    )
    fault.advice = _advice(fault, call, base_url, from_core=error is not None)
    return fault


def no_core(call: Call, base_url: str, problem: str, request_id: str | None) -> NotACore:
    return NotACore(
        f"{problem}: {base_url} serves no Agents API",
        method=call.method,
        path=call.path,
        request_id=request_id,
        advice=_WHICH_URL,
    )


def _redirect(call: Call, reply: Reply, where: str, request_id: str | None, *, proven: bool) -> AgentsAPIError:
    message = f"the server redirects to {where}; redirects are never followed, to keep the key here"
    advice = "set OPENAI_BASE_URL to the Core's own, final URL"
    if proven:
        return APIStatusError(
            reply.status, method=call.method, path=call.path, message=message, request_id=request_id, advice=advice
        )
    problem = f"HTTP {reply.status}: {message}"
    return NotACore(problem, method=call.method, path=call.path, request_id=request_id, advice=advice)


def _host(location: str) -> str | None:
    """Scheme, host and port that a redirect names; None where it names none."""
    try:
        target = urlsplit(location)
    except ValueError:
        return "a URL that is none"
    return f"{target.scheme}://{target.netloc.rpartition('@')[2]}" if target.netloc else None


def _advice(fault: APIStatusError, call: Call, base_url: str, *, from_core: bool) -> str | None:
    if fault.status == 401:
        return f"check OPENAI_API_KEY: it must be a key of a Project on {base_url}"
    if fault.status == 403:
        return f"OPENAI_API_KEY may not do this on {base_url}"
    if fault.status == 404 and call.is_collection:
        return _WHICH_URL
    if fault.status == 400 and call.name == "create":
        if "network" in f"{fault.param} {fault.message}".lower():
            return "does this deployment refuse the network policy? Choose another with --rollout-network"
        if fault.code == "model_provider_required":
            return "give --model and --model-base-url, with the key in MODEL_API_KEY"
    if fault.status == 413:
        return "the task's files or its instruction are too large for this server"
    if fault.status in (502, 503, 504) and not from_core:
        return "a proxy in front of the Core cannot reach it"
    return None


def _error_body(reply: Reply) -> dict[str, Any] | None:
    """`error` of the API's error body; None where the body is not one."""
    try:
        value = json.loads(reply.body)
    except (ValueError, RecursionError):
        return None
    error = value.get("error") if isinstance(value, dict) else None
    return error if isinstance(error, dict) and isinstance(error.get("message"), str) else None


def _kind(reply: Reply) -> str:
    if not reply.body:
        return "empty"
    if reply.is_html:
        return "an HTML page"
    return f"{len(reply.body)} bytes of {printable(reply.headers.get('content-type', 'no stated type'), 60)}"


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


_JSON = json.JSONDecoder(parse_constant=_refuse_constant)
