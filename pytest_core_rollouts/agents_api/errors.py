"""What can go wrong between us and a Core.

    AgentsAPIError            any of these; str() is one line: what failed, where, why, and what to do
    ├── APIStatusError        the server answered with an error status (or with a redirect, never followed)
    ├── NotACore              the server answers, but serves no Agents API
    ├── ConnectionFailed      no complete answer: refused, reset, timed out, cut off
    │   └── DeadlinePassed    the call was given up, or never sent, because the client's deadline has passed
    ├── InvalidResponse       a success whose body is not what the API promises
    ├── ShortRead             an Artifact's bytes are not as many as its `size_bytes`
    ├── TooLarge              a body over its cap; it was not read to its end
    └── StreamLost            the event stream broke off or fell silent

Text that a server wrote is shortened and its control characters are escaped before it enters a message. The key
appears in no message: it is cut out where a server repeats it.
"""

from __future__ import annotations

import re

from pytest_core_rollouts.text import escaped

from .taxonomy import CLIENT, Meaning, of_answer

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
    "printable",
]


class AgentsAPIError(Exception):
    """A call to the Core failed.

    `method` and `path` name the call (the path without the base URL), `request_id` is the server's name for it, if
    one came back. `tries` and `elapsed_s` say how often and for how long it was tried; `earlier` is the fault before
    it, where the time ran out on the tries that followed that one.
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
        self.earlier: AgentsAPIError | None = None

    @property
    def meaning(self) -> Meaning:
        """What follows from it."""
        return CLIENT[type(self).__name__]

    @property
    def stops_run(self) -> bool:
        """Whether every other rollout would fail in the same way, so that going on makes no sense."""
        return self.meaning.stops

    def __str__(self) -> str:
        line = f"{self.method} {self.path}: {self.problem}"
        if self.tries > 1:
            line += f" (gave up after {self.tries} tries in {self.elapsed_s:.1f} s)"
        if self.earlier is not None:
            line += f" (before that: {self.earlier.problem})"
        if self.request_id:
            line += f" [request id {self.request_id}]"
        if self.advice:
            line += f"; {self.advice}"
        return line


class APIStatusError(AgentsAPIError):
    """The server answered with status 300 or above.

    `code`, `param` and `message` come from the API's error body and are None or "" where it had none.
    `retry_after` is the server's wish in seconds, if it sent one.
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
    def meaning(self) -> Meaning:
        creating = (self.method, self.path) == ("POST", "/agents/sessions")
        return of_answer(self.status, self.code, creating=creating)


class NotACore(AgentsAPIError):
    """The server answers, but serves no Agents API."""


class ConnectionFailed(AgentsAPIError):
    """No complete answer came: refused, reset, timed out, cut off.

    `permanent` where another try cannot help: a certificate that is not trusted, a server that is gone for good.
    `late` where a server was there and did not answer in time.
    """

    permanent = False
    late = False

    @property
    def meaning(self) -> Meaning:
        return CLIENT["ConnectionFailed, permanent"] if self.permanent else super().meaning


class DeadlinePassed(ConnectionFailed):
    """The call was given up, or never sent, because the client's deadline has passed."""


class InvalidResponse(AgentsAPIError):
    """A success whose body is not what the API promises: no JSON, or JSON of another shape."""


class ShortRead(AgentsAPIError):
    """An Artifact's bytes are not as many as its `size_bytes`, mostly fewer: never grade them."""


class TooLarge(AgentsAPIError):
    """A body over its cap. It was not read to its end."""


class StreamLost(AgentsAPIError):
    """The event stream broke off or fell silent; the Turn list still tells the truth."""


def printable(text: str, limit: int = 300) -> str:
    """`text` on one line, safe for a terminal: at most `limit` characters, nothing that moves a cursor."""
    clipped = text[: limit + 1]
    if len(clipped) > limit:
        clipped = clipped[: limit - 1] + "…"
    return escaped(re.sub(r"[\t\n\r]", " ", clipped))
