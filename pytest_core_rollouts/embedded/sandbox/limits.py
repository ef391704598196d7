"""The bounds of one command in a sandbox."""

from __future__ import annotations

import resource
from dataclasses import dataclass

KIB = 1 << 10
MIB = 1 << 20
GIB = 1 << 30


@dataclass(frozen=True)
class Limits:
    """Bounds of one command, in bytes and seconds.

    The kernel enforces the first group, for each process if no comment says otherwise. A watcher enforces the second:
    it kills a sandbox that is over a bound. `processes` counts all threads of the sandbox. If the run has a cgroup, the
    kernel also enforces `memory` and `processes` there.
    """

    address_space: int = 16 * GIB
    file_size: int = 1 * GIB
    cpu_s: int = 3600
    processes: int = 512
    open_files: int = 1024  # of one process
    pending_signals: int = 1024  # of the whole sandbox, timers included: all processes of a user share some 100,000
    message_queues: int = 128 * KIB  # of the whole sandbox, in bytes: all processes of a user share 800 KiB
    inotify_instances: int = 8  # of the whole sandbox: all processes of a user have 128 on most machines

    disk: int = 1 * GIB  # home and workspace together, by allocated blocks, deleted files still open included
    entries: int = 200_000  # files and folders in home and workspace
    memory: int = 4 * GIB  # of all processes together: own, shared, and the kernel's for sockets, pipes and files
    in_flight: int = 256  # descriptors sent and not received: all processes of a user share one count for each
    descriptors: int = 65_536  # of all processes together
    mappings: int = 500_000  # of all processes together; both bound the kernel's memory and the time to count it

    def prlimit_options(self, *, count_processes: bool) -> list[str]:
        """Return options for `prlimit`, never above this process's own hard limits, which it can't raise."""
        limits = {
            "as": (resource.RLIMIT_AS, self.address_space),
            "fsize": (resource.RLIMIT_FSIZE, self.file_size),
            "cpu": (resource.RLIMIT_CPU, self.cpu_s),
            "nofile": (resource.RLIMIT_NOFILE, self.open_files),
            "core": (resource.RLIMIT_CORE, 0),
            "sigpending": (resource.RLIMIT_SIGPENDING, self.pending_signals),
            "msgqueue": (resource.RLIMIT_MSGQUEUE, self.message_queues),
        }
        if count_processes:
            limits["nproc"] = (resource.RLIMIT_NPROC, self.processes)
        return [f"--{name}={_clip(kind, value)}" for name, (kind, value) in limits.items()]

    def sysctls(self) -> dict[str, str]:
        """Return bounds that the kernel keeps for each user or IPC namespace; see `NamespaceHelper.bound`."""
        return {
            "kernel/sem": "1000 32000 500 128",  # sets of at most 1000 semaphores, 32,000 in all
            "kernel/msgmni": "64",
            "user/max_inotify_instances": str(self.inotify_instances),
            "user/max_user_namespaces": "0",  # for a bubblewrap that can't forbid them itself
        }


def _clip(kind: int, value: int) -> int:
    hard = resource.getrlimit(kind)[1]
    return value if hard == resource.RLIM_INFINITY else min(value, hard)
