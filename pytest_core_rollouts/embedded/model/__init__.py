"""The one way out of a sandbox: to its model, through a proxy that alone holds the key.

Inside, a forwarder (`forwarder.py`) listens on the sandbox's loopback and passes connections on to a unix socket that
is bound in. The socket's host end is a `ModelProxy`, one for each Turn.
"""

from __future__ import annotations

from .failures import ModelFailure
from .inside import DUMMY_KEY, FORWARDER, inside_argv, inside_binds, inside_url
from .params import MissingLabel
from .proxy import CaptureFailed, ModelProxy, ModelSettings, TurnLabels

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
