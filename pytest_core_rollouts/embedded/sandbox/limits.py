"""What one command in a sandbox may use up."""

from __future__ import annotations

import resource
from dataclasses import dataclass

MIB = 1 << 20
GIB = 1 << 30


@dataclass(frozen=True)
class Limits:
    """Bounds for one run. The kernel keeps the first group, process by process; a watcher kills over the second.

    Bytes and seconds. `processes` counts the threads of the whole sandbox. cgroups would bound memory exactly, but
    they can be written to on few machines and are not used.
    """

    address_space: int = 16 * GIB
    file_size: int = 1 * GIB
    cpu_s: int = 3600
    processes: int = 512
    open_files: int = 1024

    disk: int = 1 * GIB  # home and workspace together, by allocated blocks, deleted files still open included
    entries: int = 200_000  # files and folders in home and workspace
    memory: int = 4 * GIB  # of all processes together

    def prlimit_options(self, *, count_processes: bool) -> list[str]:
        """`prlimit` options; never above this process's own hard limits, which could not be raised."""
        limits = {
            "as": (resource.RLIMIT_AS, self.address_space),
            "fsize": (resource.RLIMIT_FSIZE, self.file_size),
            "cpu": (resource.RLIMIT_CPU, self.cpu_s),
            "nofile": (resource.RLIMIT_NOFILE, self.open_files),
            "core": (resource.RLIMIT_CORE, 0),
        }
        if count_processes:
            limits["nproc"] = (resource.RLIMIT_NPROC, self.processes)
        return [f"--{name}={_clip(kind, value)}" for name, (kind, value) in limits.items()]


def _clip(kind: int, value: int) -> int:
    hard = resource.getrlimit(kind)[1]
    return value if hard == resource.RLIM_INFINITY else min(value, hard)
