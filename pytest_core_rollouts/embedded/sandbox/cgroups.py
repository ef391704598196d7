"""A cgroup for each sandbox, if the run has one: the kernel then enforces the bounds of memory and processes.

Root may write to every cgroup, but each belongs to systemd or a container's runtime, which counts and kills by it. So
only two are used: the one that the variable CORE_ROLLOUTS_CGROUP names, or this process's own if systemd delegated it
(`systemd-run --user --scope -p Delegate=yes pytest ...`).
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import time
from pathlib import Path

from .limits import Limits
from .usage import sandbox_processes

VARIABLE = "CORE_ROLLOUTS_CGROUP"
_PREFIX = "core-rollouts-"
_MOUNT = Path("/sys/fs/cgroup")
_REMOVE_TIMEOUT_S = 5.0
_HELPERS = 8  # processes of bubblewrap and the gate, in addition to those of the command


class CgroupUnusable(Exception):
    """The cgroup that the variable names can't be used; str: why, and what to change."""


class CgroupParent:
    """A cgroup in which one for each sandbox is created: of version 2, or of the controller `memory` of version 1."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._remove_leftovers()

    @classmethod
    def find(cls) -> CgroupParent | None:
        """Return None if the run has no cgroup. Raises CgroupUnusable if one was named and can't be used."""
        if named := os.environ.get(VARIABLE):
            try:
                return cls._try(Path(named))
            except OSError as error:
                raise CgroupUnusable(
                    f"{VARIABLE}: {named!r} can't be used ({error}); name a cgroup folder in which this user may make "
                    "others, with the controllers memory and pids enabled for them, or unset the variable"
                ) from None
        with contextlib.suppress(OSError):
            if (own := _delegated()) is not None:
                _make_room(own)
                return cls._try(own)
        return None

    @classmethod
    def _try(cls, folder: Path) -> CgroupParent:
        parent = cls(folder)
        parent.make(Limits()).remove()
        return parent

    def make(self, limits: Limits) -> Cgroup:
        """Create a cgroup with the bounds. Raises OSError if a controller is missing."""
        folder = self.folder / f"{_PREFIX}{os.getpid()}-{secrets.token_hex(4)}"
        folder.mkdir()
        cgroup = Cgroup(folder)
        try:
            cgroup.set_bounds(limits)
        except OSError:
            folder.rmdir()
            raise
        return cgroup

    def _remove_leftovers(self) -> None:
        """Remove cgroups of runs that were killed. The kernel refuses to remove one that is in use."""
        for left in self.folder.glob(f"{_PREFIX}*-*"):
            pid = left.name.removeprefix(_PREFIX).partition("-")[0]
            if not Path("/proc", pid).exists():
                with contextlib.suppress(OSError):
                    left.rmdir()


class Cgroup:
    """The cgroup of one sandbox."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._unified = (folder / "cgroup.type").exists()

    def set_bounds(self, limits: Limits) -> None:
        """Raises OSError if a controller is missing."""
        if self._unified:
            self._write("memory.max", limits.memory)
            self._write("memory.oom.group", 1)
            self._write("pids.max", limits.processes + _HELPERS)
            optional = {"memory.swap.max": 0}
        else:
            self._write("memory.limit_in_bytes", limits.memory)
            optional = {"memory.memsw.limit_in_bytes": limits.memory}
        for name, value in optional.items():
            with contextlib.suppress(OSError):  # the kernel may count no swap
                self._write(name, value)

    def add(self, init: int) -> None:
        """Move a sandbox's processes into it, the init first: none of the others may fork before that."""
        self._write("cgroup.procs", init)
        for process in sandbox_processes(init)[1:]:
            with contextlib.suppress(ProcessLookupError):
                self._write("cgroup.procs", process)

    def excess(self, limits: Limits) -> str | None:
        """Return the exceeded bound, as part of a message, if the kernel killed for it; else None."""
        found = re.search(
            r"^oom_kill (\d+)$", self._read("memory.events" if self._unified else "memory.oom_control"), re.MULTILINE
        )
        if found is None or found[1] == "0":
            return None
        peak = self._read("memory.peak" if self._unified else "memory.max_usage_in_bytes").strip()
        return f"memory: {peak or limits.memory} bytes used, {limits.memory} allowed"

    def _read(self, name: str) -> str:
        """Read a file; empty if the cgroup is gone or this kernel has no such file (memory.peak before Linux 5.19)."""
        try:
            return (self.folder / name).read_text()
        except OSError:
            return ""

    def remove(self) -> None:
        """Remove it after all processes have ended, which the kernel may notice later. Blocks. May be repeated."""
        deadline = time.monotonic() + _REMOVE_TIMEOUT_S
        while time.monotonic() < deadline:
            try:
                self.folder.rmdir()
            except FileNotFoundError:
                return
            except OSError:
                time.sleep(0.005)
            else:
                return

    def _write(self, name: str, value: int) -> None:
        fd = os.open(
            self.folder / name, os.O_WRONLY | os.O_CLOEXEC
        )  # without O_CREAT: the root of version 1 is a tmpfs
        try:
            os.write(fd, str(value).encode())
        finally:
            os.close(fd)


def _delegated() -> Path | None:
    """Return this process's own cgroup of version 2 if systemd delegated it, else None."""
    found = re.search(r"^0::/(.*)$", Path("/proc/self/cgroup").read_text(), re.MULTILINE)
    if found is None:
        return None
    own = _MOUNT / found[1]
    if own.name == _MAIN:
        own = own.parent
    for mark in ("user.delegate", "trusted.delegate"):
        with contextlib.suppress(OSError):
            if os.getxattr(own, mark) == b"1" and os.access(own, os.W_OK):
                return own
    return None


_MAIN = f"{_PREFIX}main"


def _make_room(own: Path) -> None:
    """Move the processes of a delegated cgroup into a child: one that has processes can't bound children."""
    main = own / _MAIN
    main.mkdir(exist_ok=True)
    for pid in (own / "cgroup.procs").read_text().split():
        with contextlib.suppress(ProcessLookupError):
            (main / "cgroup.procs").write_text(pid)
    (own / "cgroup.subtree_control").write_text("+memory +pids")
