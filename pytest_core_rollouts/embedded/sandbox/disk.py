"""How much of the disk a Session uses."""

from __future__ import annotations

import contextlib
import os
import stat
from pathlib import Path

from .files import FOLDER_FLAGS, open_unreadable
from .limits import Limits
from .memory import temporary_entries
from .proc import inotify_instances, open_files, sandbox_processes

_MAX_DEPTH = 200


def disk_excess(session: Path, init: int | None, limits: Limits, *, count_inotify: bool) -> str | None:
    """Which bound of files a sandbox is over, as a part of a sentence; None if it keeps them all."""
    processes = sandbox_processes(init)
    used = _Usage(limits)
    for name in ("home", "workspace"):
        used.add_tree(session / name)
    used.add_deleted_files(processes, session)
    if used.too_deep:
        return f"disk: folders nested deeper than {_MAX_DEPTH}"
    if used.bytes > limits.disk:
        return f"disk: at least {used.bytes} bytes used, {limits.disk} allowed"
    if (entries := used.entries + temporary_entries(init)) > limits.entries:
        return f"disk: at least {entries} files and folders, {limits.entries} allowed"
    if count_inotify and (instances := inotify_instances(processes)) > limits.inotify_instances:
        return f"inotify: {instances} instances, {limits.inotify_instances} allowed"
    return None


class _Usage:
    """What is on the disk; counting stops once a limit is passed."""

    def __init__(self, limits: Limits) -> None:
        self.bytes = 0
        self.entries = 0
        self.too_deep = False
        self._limits = limits
        self._seen: set[int] = set()

    @property
    def _enough(self) -> bool:
        return self.too_deep or self.bytes > self._limits.disk or self.entries > self._limits.entries

    def add_tree(self, root: Path) -> None:
        with contextlib.suppress(OSError):
            folder = os.open(root, FOLDER_FLAGS)
            try:
                self._add_folder(folder, 0)
            finally:
                os.close(folder)

    def _add_folder(self, folder: int, depth: int) -> None:
        self.too_deep = self.too_deep or depth > _MAX_DEPTH
        names: list[str] = []
        with os.scandir(folder) as entries:
            for entry in entries:
                if self._enough:
                    return
                self.entries += 1
                with contextlib.suppress(FileNotFoundError):
                    self._add(entry.stat(follow_symlinks=False))
                    if entry.is_dir(follow_symlinks=False):
                        names.append(entry.name)
        for name in names:
            with contextlib.suppress(OSError):
                self._add_named(folder, name, depth)

    def _add_named(self, folder: int, name: str, depth: int) -> None:
        try:
            entered = os.open(name, FOLDER_FLAGS, dir_fd=folder)
        except PermissionError:
            entered = open_unreadable(folder, name, FOLDER_FLAGS)  # or an agent could hide anything there
        try:
            self._add_folder(entered, depth + 1)
        finally:
            os.close(entered)

    def _add(self, status: os.stat_result) -> None:
        if status.st_nlink > 1 and not stat.S_ISDIR(status.st_mode):
            if status.st_ino in self._seen:
                return
            self._seen.add(status.st_ino)
        self.bytes += status.st_blocks * 512

    def add_deleted_files(self, processes: list[int], session: Path) -> None:
        """Files without a name that processes still hold open."""
        with contextlib.suppress(OSError):
            device = session.stat().st_dev
            for process in processes:
                for _, status in open_files(process):
                    if status.st_nlink == 0 and status.st_dev == device and status.st_ino not in self._seen:
                        self._seen.add(status.st_ino)
                        self._add(status)
