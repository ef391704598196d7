"""Sandboxes: one Session's files and processes, shut in by bubblewrap.

`Isolation.probe()` finds out once how a sandbox can be made here, or raises `SandboxUnavailable` with the remedy.
A `Sandbox` is one Session's: write files into it, run commands in it, collect its outputs, destroy it.
"""

from __future__ import annotations

from .bubblewrap import SandboxUnavailable
from .files import CapturedFile, OutputsRejected, remove_tree
from .isolation import Isolation
from .limits import Limits
from .mounts import MountRefused
from .process import Completed, SandboxFailed
from .sandbox import Sandbox

__all__ = [
    "CapturedFile",
    "Completed",
    "Isolation",
    "Limits",
    "MountRefused",
    "OutputsRejected",
    "Sandbox",
    "SandboxFailed",
    "SandboxUnavailable",
    "remove_tree",
]
