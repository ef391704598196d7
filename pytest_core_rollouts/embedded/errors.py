"""Error responses of the embedded Core: one exception, one JSON shape."""

from __future__ import annotations

from typing import Any


class APIError(Exception):
    """An error response: `{"error": {"type", "message", "code", "param"}}` with its HTTP status."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        type: str = "invalid_request_error",
        code: str | None = None,
        param: str | None = None,
        headers: dict[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.type = type
        self.code = code
        self.param = param
        self.headers = headers or {}

    def body(self) -> dict[str, Any]:
        """Return the response's JSON."""
        return {"error": {"type": self.type, "message": self.message, "code": self.code, "param": self.param}}


def invalid(message: str, param: str | None = None) -> APIError:
    """Return the error of a request that breaks the API's rules."""
    return APIError(400, message, code="invalid_request_error", param=param)


def unsupported(message: str, param: str | None = None) -> APIError:
    """Return the error of a request that another Core may serve, but this one can't."""
    return APIError(400, message, code="unsupported_or_invalid_configuration", param=param)


def not_found() -> APIError:
    """Return the 404 error of an unknown id."""
    return APIError(404, "Not found.", type="not_found_error", code="not_found_error")


def conflict(message: str, code: str = "conflict_error") -> APIError:
    """Return the 409 error of a request that does not fit the present state."""
    return APIError(409, message, type="conflict_error", code=code)


def no_such_operation() -> APIError:
    """Return the 404 error of an unknown path."""
    return APIError(404, "No such operation of the Agents API.", code="unsupported_operation")


def method_not_allowed(allow: str) -> APIError:
    """Return the 405 error; `allow` lists the methods that the path has."""
    message = "This method is not supported here; the Allow header names those that are."
    return APIError(405, message, code="unsupported_operation", headers={"Allow": allow})
