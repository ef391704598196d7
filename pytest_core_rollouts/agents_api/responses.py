"""What an answer means: JSON of the promised shape, or an error that names the call and what to do."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import NoneType
from typing import Any, Final, NoReturn, TypeGuard, TypeVar
from urllib.parse import urlsplit

from pytest_core_rollouts.strict_json import InvalidJSON, read_json

from .errors import AgentsAPIError, APIStatusError, InvalidResponse, NotACore, short_line
from .retry import retry_after_seconds, unix_time

__all__ = ["ERROR_LIMIT", "Call", "Reply", "checked_id", "invalid", "json_object", "not_a_core", "page", "refusal"]

E = TypeVar("E", bound=AgentsAPIError)

ERROR_LIMIT = 64 * 1024
"""Bytes that are read of an error's body."""

_CHECK_URL = "check that OPENAI_BASE_URL is the URL of an OpenAgentCore and ends in /v1"


@dataclass(frozen=True)
class Call:
    """One request.

    `name` is its key in `Client.request_ids`; `path` starts after the base URL.
    An answer over `max_bytes` is not read (None: the client's own limit).
    """

    name: str
    method: str
    path: str
    body: bytes | None = field(default=None, repr=False)  # may hold the key of a model provider
    idempotency_key: str | None = None
    accept: str = "application/json"
    max_bytes: int | None = None

    @property
    def is_collection(self) -> bool:
        """Whether it goes to /agents/sessions itself: a 404 there means that no Agents API is served."""
        return self.name in ("create", "sessions")

    def fault(self, kind: type[E], problem: str, request_id: str | None = None, *, advice: str | None = None) -> E:
        """Make the error that says what went wrong with this call."""
        return kind(problem, method=self.method, path=self.path, request_id=request_id, advice=advice)


@dataclass(frozen=True)
class Reply:
    """A complete answer. `headers` are looked up by lower-case names."""

    status: int
    headers: Mapping[str, str]
    body: bytes = field(repr=False)

    @property
    def failed(self) -> bool:
        """Whether the status is not one of success."""
        return not 200 <= self.status < 300

    @property
    def request_id(self) -> str | None:
        """The server's id of the request, safe to print."""
        value = self.headers.get("x-request-id")
        return short_line(value, 100) if value else None

    def server_ahead(self, now: float) -> float | None:
        """Seconds by which the server's clock (its Date header) is ahead of `now`, in Unix time; None if unknown."""
        date = unix_time(self.headers.get("date", ""))
        return None if date is None else date - now

    @property
    def is_html(self) -> bool:
        """Whether the body is a web page, whatever its type says."""
        return "html" in self.headers.get("content-type", "").lower() or self.body[:100].lstrip()[:1] == b"<"

    @property
    def shape(self) -> str:
        """What the body is, for messages."""
        if not self.body:
            return "an empty body"
        if self.is_html:
            return "an HTML page"
        return f"{len(self.body)} bytes of {short_line(self.headers.get('content-type', 'no content type'), 60)}"


# Successful answers


def json_object(call: Call, reply: Reply) -> dict[str, Any]:
    """Return the JSON object in a successful reply. Raises InvalidResponse."""
    try:
        value = read_json(reply.body, lenient=True)
    except InvalidJSON as error:
        invalid(call, reply, f"expected JSON, got {reply.shape} ({short_line(error.problem, 120)})")
    if not isinstance(value, dict):
        invalid(call, reply, f"expected a JSON object, got a {type(value).__name__}")
    return value


def page(call: Call, reply: Reply) -> tuple[list[dict[str, Any]], bool, str | None]:
    """Return `data`, `has_more` and `last_id` of a list. Raises InvalidResponse."""
    value = json_object(call, reply)
    data, has_more, last_id = value.get("data"), value.get("has_more"), value.get("last_id")
    if not isinstance(data, list) or not all(isinstance(entry, dict) for entry in data):
        invalid(call, reply, '"data" is not a list of objects')
    if not all(isinstance(entry.get("id"), (str, NoneType)) for entry in data):
        invalid(call, reply, '"data" contains an id that is not a string')
    if not isinstance(has_more, bool):
        invalid(call, reply, '"has_more" is not a boolean')
    if last_id is not None and not _fits_a_url(last_id):
        invalid(call, reply, f'"last_id" is not a usable string: {short_line(repr(last_id), 80)}')
    return data, has_more, last_id


def checked_id(call: Call, reply: Reply, resource: dict[str, Any]) -> str:
    """Return the id of a Session, Turn or Artifact: a string that fits into a URL. Raises InvalidResponse."""
    value = resource.get("id")
    if not _fits_a_url(value):
        invalid(call, reply, f'"id" is not a usable string: {short_line(repr(value), 80)}')
    return value


def invalid(call: Call, reply: Reply, problem: str) -> NoReturn:
    """Raise InvalidResponse: the status says success, and the body has a problem."""
    raise call.fault(InvalidResponse, f"HTTP {reply.status}, but {problem}", reply.request_id)


def _fits_a_url(value: object) -> TypeGuard[str]:
    """Whether an id can be a segment of a path: `.` and `..` would be resolved away, surrogates have no bytes."""
    return isinstance(value, str) and 0 < len(value) <= 1000 and value.isprintable() and value not in (".", "..")


# Error statuses


def refusal(
    call: Call,
    reply: Reply,
    base_url: str,
    *,
    proven: bool,
    via: str,
    secret: str,
    permissions: Sequence[str] = (),
) -> AgentsAPIError:
    """Return the error for a reply whose status is not one of success.

    `proven`: this server has answered as a Core does before. `via` names the proxy, if there is one.
    `secret` is removed from everything that the server says. `permissions`: see `Client`.
    """

    def clean(value: object, limit: int) -> str | None:
        if not isinstance(value, (str, int)):
            return None
        return short_line(str(value).replace(secret, "***"), limit)

    request_id = clean(reply.request_id, 100)
    if 300 <= reply.status < 400:
        target = clean(_origin(reply.headers.get("location", "")), 200) or "another path"
        return _redirect(call, reply.status, target, request_id, proven=proven)
    error = _error_body(reply) or {}
    if not error and not proven and call.is_collection and reply.status in (404, 405):
        return not_a_core(call, base_url, f"HTTP {reply.status} with {reply.shape}{via}", request_id)
    message = clean(error["message"], 500) if error else f"({reply.shape}{via}, not the API's error body)"
    fault = APIStatusError(
        reply.status,
        method=call.method,
        path=call.path,
        code=clean(error.get("code"), 100),
        param=clean(error.get("param"), 200),
        message=message or "",
        request_id=request_id,
        retry_after=retry_after_seconds(reply.headers.get("retry-after"), reply.headers.get("date"), time.time()),
    )
    fault.advice = _advice(fault, call, base_url, from_core=bool(error), permissions=permissions)
    return fault


def not_a_core(call: Call, base_url: str, problem: str, request_id: str | None) -> NotACore:
    """Return the error for a server that does not serve the Agents API."""
    return call.fault(NotACore, f"{problem}: no Agents API at {base_url}", request_id, advice=_CHECK_URL)


def _redirect(call: Call, status: int, target: str, request_id: str | None, *, proven: bool) -> AgentsAPIError:
    message = f"the server redirects to {target}; redirects are never followed because they could leak the key"
    advice = "set OPENAI_BASE_URL to the Core's final URL"
    if not proven:
        return call.fault(NotACore, f"HTTP {status}: {message}", request_id, advice=advice)
    return APIStatusError(
        status, method=call.method, path=call.path, message=message, request_id=request_id, advice=advice
    )


def _origin(location: str) -> str | None:
    """Scheme, host and port of a redirect's target; None if it names no host."""
    try:
        target = urlsplit(location)
    except ValueError:
        return "an invalid URL"
    return f"{target.scheme}://{target.netloc.rpartition('@')[2]}" if target.netloc else None


def _advice(
    fault: APIStatusError, call: Call, base_url: str, *, from_core: bool, permissions: Sequence[str]
) -> str | None:
    if fault.status == 401:
        return f"check OPENAI_API_KEY: it must be a key of a Project on {base_url}"
    if fault.status == 403:
        needed = f"the permissions {', '.join(permissions)}" if permissions else "this permission"
        return f"check that OPENAI_API_KEY has {needed} on {base_url}"
    if fault.code == "model_not_found":
        return f"check the model's name ({_model_of(call)}), and that the key's project may use it"
    if fault.status == 429 and fault.policy.stops:
        return "add credit or raise the limit of the key's account"
    if call.name == "create" and fault.status in (400, 404, 422) and (advice := _setting_of(fault)) is not None:
        return advice
    if fault.status == 404 and call.is_collection:
        return _CHECK_URL
    if fault.status == 413:
        return "the task's files or its instruction are too large for this server; make them smaller"
    if fault.status in (502, 503, 504) and not from_core:
        return "a proxy in front of the Core can't reach it"
    return None


def _model_of(call: Call) -> str:
    """Return the model that a create asked for, for a message."""
    agent = json.loads(call.body or b"{}").get("agent") or {}
    return short_line(repr(agent["model"]), 200) if "model" in agent else "the server's default"


_SETTINGS: Final = {
    "agent.x_agents_core.harness_config": "change --rollout-harness-config",
    "agent.x_agents_core.harness": "choose another with --harness",
    "agent.model": "choose another with --model",
    "x_agents_core.model_provider": "check --model-base-url and --model-protocol",
    "environment.packages": "change `packages` in task.yaml",
    "environment.env": "change `env` in task.yaml",
    "environment.setup_commands": "change `setup_commands` in task.yaml",
    "environment.files": "change the task's files",
}
"""What to do about a refused parameter of a Session."""


def _setting_of(fault: APIStatusError) -> str | None:
    """Return which option or setting to change if a Session was refused; None if that is unknown."""
    if fault.status == 400 and "network" in f"{fault.param} {fault.message}".lower():
        return (
            "if this deployment does not support the network policy, choose another, such as --rollout-network enabled"
        )
    if fault.code == "model_provider_required":
        return "add --model and --model-base-url, and set MODEL_API_KEY"
    return next((what for param, what in _SETTINGS.items() if (fault.param or "").startswith(param)), None)


def _error_body(reply: Reply) -> dict[str, Any] | None:
    """Return `error` of the API's error body; None if the body is something else."""
    try:
        value = json.loads(reply.body)
    except (ValueError, RecursionError):
        return None
    error = value.get("error") if isinstance(value, dict) else None
    return error if isinstance(error, dict) and isinstance(error.get("message"), str) else None
