"""Sandboxes: bubblewrap isolates the files and processes of one Session.

`Isolation.probe()` finds out once how this machine can make a sandbox, or raises `SandboxUnavailable` with the remedy.
A `Sandbox` belongs to one Session: write files into it, run commands in it, collect its outputs, destroy it.

isolation: which bubblewrap, user and folder all sandboxes use; bubblewrap: finding it; mounts, programs: what of the
host is visible. process: one command from start to end. limits: the bounds; cgroups, namespaces, seccomp: those that
the kernel enforces; watch, usage: those that a thread enforces. files: copying into and out of a Session's folders.
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
