"""What the embedded Core answers when a request can't be served: one exception, one JSON shape."""

from __future__ import annotations

from typing import Any


class APIError(Exception):
    """An error answer: `{"error": {"type", "message", "code", "param"}}` with its HTTP status."""

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
        return {"error": {"type": self.type, "message": self.message, "code": self.code, "param": self.param}}


def invalid(message: str, param: str | None = None) -> APIError:
    """The request breaks the API's own rules."""
    return APIError(400, message, code="invalid_request_error", param=param)


def unsupported(message: str, param: str | None = None) -> APIError:
    """A request that another Core may serve and this one cannot."""
    return APIError(400, message, code="unsupported_or_invalid_configuration", param=param)


def not_found() -> APIError:
    return APIError(404, "Resource not found.", type="not_found_error", code="not_found_error")


def conflict(message: str, code: str = "conflict_error") -> APIError:
    return APIError(409, message, type="conflict_error", code=code)


def no_such_operation() -> APIError:
    return APIError(404, "This API operation is not supported.", code="unsupported_operation")


def method_not_allowed(allow: str) -> APIError:
    message = "This API method is not supported."
    return APIError(405, message, code="unsupported_operation", headers={"Allow": allow})
