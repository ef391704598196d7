"""A scripted Core on loopback: real HTTP, strict about requests, and it remembers the truth.

    with FakeCore() as core:
        core.script = lambda body: Script(turn_seconds=0.1, answer=b'{"total": 3}')
        core.fault = lambda request: Fault(status=502) if request.route == "turns" and request.nth == 2 else None
        ...  # a client against core.base_url and core.api_key
        assert all(session.deleted for session in core.sessions.values())

It runs in its own thread. `script` and `fault` are called there.
"""

from __future__ import annotations

from .core import FakeCore
from .http import Fault, Request
from .sessions import FakeSession, Script

__all__ = ["FakeCore", "FakeSession", "Fault", "Request", "Script"]
