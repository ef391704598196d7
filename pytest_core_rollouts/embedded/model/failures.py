"""Failures of a model's server, as error codes of a Turn.

They are read from the server's replies, because what agent programs print about them differs from version to version.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

TEXT_LIMIT = 500  # characters of a server's message


@dataclass(frozen=True)
class ModelFailure:
    """Why a request for a reply failed. `code`: a Turn error code of the API; `message`: for the user.

    `sampled`: there is a reply, but it is incomplete. `request_can_cause`: an agent can cause the failure by a request
    that it makes by hand, even if the server works.
    """

    code: str
    message: str
    sampled: bool = False
    request_can_cause: bool = False


_CONTEXT = ("context_length_exceeded", "context window", "context length", "prompt is too long", "input is too long")
_QUOTA = ("insufficient_quota", "usage_limit", "billing", "credit balance")
# The same in a 400. Such a message may repeat parts of the request, so only its beginning counts.
_QUOTA_IN_400 = ("invalid_request_error: your credit balance", "insufficient_quota:", "billing_")
_BY_REQUEST = ("invalid_request", "resource_not_found")
_STATUS = {
    401: "authentication_error",
    402: "usage_limit_exceeded",
    403: "authentication_error",
    404: "resource_not_found",
    408: "request_timeout",
    429: "rate_limit_exceeded",
    503: "server_overloaded",
    504: "request_timeout",
    529: "server_overloaded",
}
_EVENT_CODES = {
    "rate_limit": "rate_limit_exceeded",
    "overloaded": "server_overloaded",
    "authentication": "authentication_error",
    "permission": "authentication_error",
    "not_found": "resource_not_found",
    "invalid_request": "invalid_request",
    "invalid_prompt": "invalid_request",
    "badrequest": "invalid_request",
    "bad_request": "invalid_request",
    "notfound": "resource_not_found",
    "policy": "cyber_policy",
}
# Why a reply is incomplete: the protocols' reasons, with code and text.
_STOPS = {
    "max_output_tokens": ("max_output_tokens", "the reply reached its limit of tokens"),
    "max_tokens": ("max_output_tokens", "the reply reached its limit of tokens"),
    "length": ("max_output_tokens", "the reply reached its limit of tokens"),
    "model_context_window_exceeded": ("context_length_exceeded", "the model's context window is full"),
    "refusal": ("cyber_policy", "the model refused"),
    "content_filter": ("cyber_policy", "the server's content filter stopped the reply"),
}


def of_status(status: int, body: bytes) -> ModelFailure | None:
    """Return the failure that an HTTP status means; None for a status below 300."""
    if status < 300:
        return None
    text = _error_text(body)
    lowered = text.lower()
    if status in (400, 413, 422) and any(mark in lowered for mark in _CONTEXT):
        code = "context_length_exceeded"
    elif lowered.startswith(_QUOTA_IN_400) if status == 400 else _is_quota(status, lowered):
        code = "usage_limit_exceeded"
    elif status in _STATUS:
        code = _STATUS[status]
    else:
        code = "server_error" if status >= 500 else "invalid_request"
    hint = " (redirects are not followed; set the final base URL)" if status < 400 else ""
    message = f"The model's server answered {status}{hint}{': ' + text if text else ''}"
    return ModelFailure(code, message, request_can_cause=code in _BY_REQUEST or status == 408)


def _is_quota(status: int, text: str) -> bool:
    return status in (402, 403, 429) and any(mark in text for mark in _QUOTA)


def of_event(event: Mapping[str, Any]) -> ModelFailure | None:
    """Return the failure that an event of a stream, or a complete reply, reports; None: it reports none."""
    if isinstance(error := _error_in(event), Mapping):
        text = _clip(str(error.get("message") or ""))
        kind = str(error.get("code") or error.get("type") or "error")
        code = _code_of(kind, text)
        message = f"The model's server reported in its stream: {kind}: {text}"
        return ModelFailure(code, message, request_can_cause=code in _BY_REQUEST)
    if isinstance(stop := _stop_in(event), str) and stop in _STOPS:
        code, message = _STOPS[stop]
        return ModelFailure(code, f"The model did not finish: {message} ({stop}).", sampled=True)
    return None


def unreachable(where: str, error: Exception) -> ModelFailure:
    """No connection to the server could be made."""
    why = str(error) or "no connection in time"
    return ModelFailure("connection_failed", f"The model's server at {where} can't be reached: {why}.")


def cut() -> ModelFailure:
    """The server closed the connection within a reply."""
    return ModelFailure("connection_failed", "The model's server ended the connection in the middle of a reply.")


def not_taken(why: str) -> ModelFailure:
    """The server did not read the whole request, for example because it is too large."""
    message = f"The model's server did not read the whole request: {why}."
    return ModelFailure("connection_failed", message, request_can_cause=True)


def refused(why: str) -> ModelFailure:
    """The proxy refused the request."""
    return ModelFailure("invalid_request", f"Refused by the proxy: {why}.", request_can_cause=True)


def compressed(coding: str) -> ModelFailure:
    """The reply has a compression that the proxy can't undo."""
    message = f"The model's server sent a reply compressed as {coding}, although the request allowed no compression."
    return ModelFailure("server_error", message)


def silent(seconds: float) -> ModelFailure:
    """The server sent nothing for too long."""
    return ModelFailure("request_timeout", f"The model's server sent nothing for {seconds:g} seconds.")


def _error_in(event: Mapping[str, Any]) -> Any:
    response = event.get("response")
    if isinstance(response, Mapping) and response.get("error"):
        return response["error"]
    if event.get("type") == "error" and not event.get("error"):
        return event  # the Responses protocol: code and message are in the event itself
    return event.get("error")


def _stop_in(event: Mapping[str, Any]) -> Any:
    response = event.get("response", event)
    if isinstance(response, Mapping) and isinstance(details := response.get("incomplete_details"), Mapping):
        return details.get("reason")
    delta = event.get("delta", event)
    return delta.get("stop_reason") if isinstance(delta, Mapping) else None


def _code_of(kind: str, message: str) -> str:
    text = f"{kind}: {message}".lower()
    if any(part in text for part in _CONTEXT):
        return "context_length_exceeded"
    if any(part in kind.lower() for part in _QUOTA) or text.startswith(_QUOTA_IN_400):
        return "usage_limit_exceeded"
    if kind.isascii() and kind.isdigit() and len(kind) == 3:  # vLLM names a status
        return _STATUS.get(int(kind), "server_error" if kind >= "500" else "invalid_request")
    return next((code for part, code in _EVENT_CODES.items() if part in kind.lower()), "server_error")


def _error_text(body: bytes) -> str:
    """Return the message of an error's body in one line: `error.message` with code or type, or the whole text."""
    text = body.decode("utf-8", "replace")
    try:
        error = json.loads(text)["error"]
        if isinstance(error, str):
            return _clip(error)
        kind = error.get("code") or error.get("type")
        return _clip(f"{kind}: {error['message']}" if kind else str(error["message"]))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return _clip(text)


def _clip(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= TEXT_LIMIT else f"{line[:TEXT_LIMIT]}..."
