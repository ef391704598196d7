"""The one way out of a sandbox: to its model, through a proxy that alone holds the key.

Inside, a forwarder (`forwarder.py`) listens on the sandbox's loopback and passes connections on to a unix socket that
is bound in. The socket's host end is a `ModelProxy`, one for each Turn.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from .failures import ModelFailure
from .proxy import CaptureFailed, ModelProxy, ModelSettings, TurnLabels
from .upstream import MissingLabel

__all__ = [
    "DUMMY_KEY",
    "FORWARDER",
    "CaptureFailed",
    "MissingLabel",
    "ModelFailure",
    "ModelProxy",
    "ModelSettings",
    "TurnLabels",
    "inside_argv",
    "inside_binds",
    "inside_url",
]

FORWARDER = Path(__file__).with_name("forwarder.py")
"""The host's file, to be bound."""

DUMMY_KEY = "key-held-by-the-proxy"
"""What stands in a sandbox where a program wants a key."""

_SOCKET = "/run/model.sock"
_FORWARDER = "/run/forwarder.py"
_PORT = 48080  # none that a task's own programs are likely to want


def inside_url() -> str:
    """The model's base URL as a sandbox sees it; what it stands for is in `ModelProvider.base_url`."""
    return f"http://127.0.0.1:{_PORT}"


def inside_binds(socket: Path, forwarder: Path) -> list[tuple[Path, str]]:
    """What `Sandbox.run` has to bind: the proxy's socket, and FORWARDER or a copy of it that bwrap can reach."""
    return [(socket, _SOCKET), (forwarder, _FORWARDER)]


def inside_argv(argv: Sequence[str]) -> list[str]:
    """`argv` with the forwarder before it."""
    return ["python3", "-I", "-S", _FORWARDER, str(_PORT), _SOCKET, *argv]
