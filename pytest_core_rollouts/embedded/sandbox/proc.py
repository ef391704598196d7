"""What /proc says of a sandbox's processes, read from outside of it."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

INOTIFY = "anon_inode:inotify"


def sandbox_processes(init: int | None) -> list[int]:
    """All processes of a sandbox: its init and, transitively, their children."""
    found: list[int] = []
    pending = [] if init is None else [init]
    while pending:
        process = pending.pop()
        found.append(process)
        with contextlib.suppress(OSError), os.scandir(f"/proc/{process}/task") as threads:
            for thread in threads:
                with contextlib.suppress(OSError):
                    pending += [int(child) for child in Path(thread.path, "children").read_text().split()]
    return found


def open_files(process: int) -> Iterator[tuple[str, os.stat_result]]:
    """The descriptors of a process, as paths, with the status of what they lead to."""
    with contextlib.suppress(OSError), os.scandir(f"/proc/{process}/fd") as fds:
        for fd in fds:
            with contextlib.suppress(OSError):
                yield fd.path, os.stat(fd.path)  # noqa: PTH116  (twice as fast as Path.stat, and there may be many)


def inotify_instances(processes: list[int]) -> int:
    """Descriptors of inotify instances; one that several processes share counts for each."""
    found = 0
    for process in processes:
        with contextlib.suppress(OSError), os.scandir(f"/proc/{process}/fd") as fds:
            for fd in fds:
                with contextlib.suppress(OSError):
                    found += os.readlink(fd.path) == INOTIFY  # noqa: PTH115
    return found
