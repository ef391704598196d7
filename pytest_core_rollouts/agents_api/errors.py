"""What can go wrong between us and a Core.

    AgentsAPIError            any of these; str() is one line: what failed, where, why, and what to do
    ├── APIStatusError        the server answered with an error status (or with a redirect, which is never followed)
    ├── NotACore              the server answers, but does not serve the Agents API
    ├── ConnectionFailed      no complete answer: refused, reset, timed out, cut off
    │   └── DeadlinePassed    the call was given up, or never sent, because the client's deadline has passed
    ├── InvalidResponse       a success whose body is not what the API promises
    ├── ShortRead             an Artifact has more or fewer bytes than its `size_bytes`
    ├── TooLarge              a body over its limit, which was not read to its end
    └── StreamLost            the event stream broke off or was silent for too long

In messages, text from a server is shortened, its control characters are escaped, and the key is replaced if a server
repeats it.
"""

from __future__ import annotations

import re

from pytest_core_rollouts.text import escaped

from .fault_policies import ClientFault, FaultPolicy, response_fault_policy

__all__ = [
    "APIStatusError",
    "AgentsAPIError",
    "ConnectionFailed",
    "DeadlinePassed",
    "InvalidResponse",
    "NotACore",
    "ShortRead",
    "StreamLost",
    "TooLarge",
    "short_line",
]


class AgentsAPIError(Exception):
    """A call to the Core failed.

    `method` and `path` name the call (the path without the base URL); `request_id` is the server's id of it, if known.
    `tries` and `elapsed_s` say how often and for how long it was tried.
    `previous` is the fault of the try before, if the deadline passed while the call was tried again because of it.
    """

    def __init__(
        self,
        problem: str,
        *,
        method: str,
        path: str,
        request_id: str | None = None,
        advice: str | None = None,
    ) -> None:
        super().__init__(problem)
        self.problem = problem
        self.method = method
        self.path = path
        self.request_id = request_id
        self.advice = advice
        self.tries = 1
        self.elapsed_s = 0.0
        self.previous: AgentsAPIError | None = None

    @property
    def policy(self) -> FaultPolicy:
        """How to handle it: retry, new attempt, stop of the run."""
        return ClientFault(type(self).__name__).policy

    @property
    def stops_run(self) -> bool:
        """Whether all other rollouts would fail in the same way, so that the run ends."""
        return self.policy.stops

    @property
    def may_have_acted(self) -> bool:
        """Whether the server may have done what the call asked for."""
        return True

    def __str__(self) -> str:
        line = f"{self.method} {self.path}: {self.problem}"
        if self.tries > 1:
            line += f" (gave up after {self.tries} tries in {self.elapsed_s:.1f} s)"
        if self.previous is not None:
            line += f" (before that: {self.previous.problem})"
        if self.request_id:
            line += f" [request id {self.request_id}]"
        if self.advice:
            line += f"; {self.advice}"
        return line


class APIStatusError(AgentsAPIError):
    """The server answered with an error status or a redirect.

    `code`, `param` and `message` come from the API's error body; they are None or "" if it had none.
    `retry_after` is what the server asked for in seconds, if it did.
    """

    def __init__(
        self,
        status: int,
        *,
        method: str,
        path: str,
        code: str | None = None,
        param: str | None = None,
        message: str = "",
        request_id: str | None = None,
        retry_after: float | None = None,
        advice: str | None = None,
    ) -> None:
        problem = f"HTTP {status}"
        if code:
            problem += f" {code}"
        if param:
            problem += f" (param {param})"
        if message:
            problem += f": {message}"
        super().__init__(problem, method=method, path=path, request_id=request_id, advice=advice)
        self.status = status
        self.code = code
        self.param = param
        self.message = message
        self.retry_after = retry_after

    @property
    def policy(self) -> FaultPolicy:
        creating = (self.method, self.path) == ("POST", "/agents/sessions")
        return response_fault_policy(self.status, self.code, creating=creating)

    @property
    def may_have_acted(self) -> bool:
        return self.status == 408 or self.status >= 500


class NotACore(AgentsAPIError):
    """The server answers, but does not serve the Agents API."""

    @property
    def may_have_acted(self) -> bool:
        return False


class ConnectionFailed(AgentsAPIError):
    """There was no complete answer: refused, reset, timed out, cut off.

    `permanent`: another try can't help, because the certificate is not trusted or the server's process has ended.
    `late`: the server accepted the connection, but did not answer in time.
    """

    permanent = False
    late = False

    @property
    def policy(self) -> FaultPolicy:
        return ClientFault.CONNECTION_FAILED_FOR_GOOD.policy if self.permanent else super().policy

    @property
    def may_have_acted(self) -> bool:
        return not self.permanent


class DeadlinePassed(ConnectionFailed):
    """The call was given up, or never sent, because the client's deadline has passed."""


class InvalidResponse(AgentsAPIError):
    """A success whose body is not what the API promises: not JSON, or JSON of another shape."""


class ShortRead(AgentsAPIError):
    """An Artifact has more or fewer bytes than its `size_bytes`: never grade them."""


class TooLarge(AgentsAPIError):
    """A body over its limit. It was not read to its end."""


class StreamLost(AgentsAPIError):
    """The event stream broke off or was silent for too long; the Turn list still has the facts."""


def short_line(text: str, limit: int = 300) -> str:
    """Return `text` on one line, safe for a terminal: at most `limit` characters, control characters escaped."""
    clipped = text[: limit + 1]
    if len(clipped) > limit:
        clipped = clipped[: limit - 1] + "…"
    return escaped(re.sub(r"[\t\n\r]", " ", clipped))
