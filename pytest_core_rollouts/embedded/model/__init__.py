"""The only way out of a sandbox: to its model, through a proxy that holds the key.

In the sandbox, a forwarder (`forwarder.py`) listens on loopback and passes connections on to a unix socket. The other
end of the socket is a `ModelProxy` on the host, one for each Turn.

proxy: serves one Turn; channel: HTTP/1.1 over a stream; upstream: what a request becomes; reply_mask: keys in replies.
exchange: one request and its reply, with the capture; streams, tokens: reading replies; failures: Turn errors.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from .exchange import Exchange
from .failures import ModelFailure
from .proxy import CaptureFailed, ModelProxy, ModelSettings, TurnLabels
from .tokens import sum_of, usage_of
from .upstream import MissingLabel

__all__ = [
    "DUMMY_KEY",
    "FORWARDER",
    "CaptureFailed",
    "Exchange",
    "MissingLabel",
    "ModelFailure",
    "ModelProxy",
    "ModelSettings",
    "TurnLabels",
    "inside_argv",
    "inside_binds",
    "inside_url",
    "sum_of",
    "usage_of",
]

FORWARDER = Path(__file__).with_name("forwarder.py")
"""The program's file on the host, for `inside_binds`."""

DUMMY_KEY = "key-held-by-the-proxy"
"""What a program in a sandbox gets as its model key."""

_SOCKET = "/run/model.sock"
_FORWARDER = "/run/forwarder.py"
_PORT = 48080  # unlikely to be used by a task's own programs


def inside_url() -> str:
    """Return the model's base URL in a sandbox. It stands for `ModelProvider.base_url`."""
    return f"http://127.0.0.1:{_PORT}"


def inside_binds(socket: Path, forwarder: Path) -> list[tuple[Path, str]]:
    """Return the `binds` for `Sandbox.run`. `forwarder`: FORWARDER, or a copy of it that bwrap can reach."""
    return [(socket, _SOCKET), (forwarder, _FORWARDER)]


def inside_argv(argv: Sequence[str]) -> list[str]:
    """Return the command line that runs `argv` under the forwarder."""
    return ["python3", "-I", "-S", _FORWARDER, str(_PORT), _SOCKET, *argv]
