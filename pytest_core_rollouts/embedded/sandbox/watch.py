"""A thread that looks after what the kernel does not bound: disk space, numbers of files, memory of many processes."""

from __future__ import annotations

import contextlib
import os
import stat
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

from .files import FOLDER_FLAGS, open_unreadable
from .limits import MIB, Limits

_TICK_S = 0.05
_INTERVAL_S = 0.5
_HURRY_BYTES = 32 * MIB
_HURRY_FILES = 5_000
_MAX_DEPTH = 200
_TMPFS = ("tmp", "dev/shm")
_PAGE = os.sysconf("SC_PAGE_SIZE")


class Watched(Protocol):
    """A run: its limits, its Session's folder, its sandbox's init, and how to end it."""

    session: Path
    limits: Limits

    @property
    def pid(self) -> int | None: ...

    def kill(self, reason: str, *, limit_exceeded: bool = False) -> None: ...


class Watcher:
    """Checks each run twice a second, and all of them at once when the disk is filling quickly."""

    def __init__(self) -> None:
        self._due: dict[Watched, float] = {}
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._closed = False

    @contextlib.contextmanager
    def watching(self, run: Watched) -> Iterator[None]:
        with self._changed:
            self._due[run] = time.monotonic() + _INTERVAL_S / 2
            if self._thread is None:
                self._thread = threading.Thread(target=self._watch, name="sandbox-watcher", daemon=True)
                self._thread.start()
            self._changed.notify()
        try:
            yield
        finally:
            with self._changed:
                self._due.pop(run, None)

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify()

    def _watch(self) -> None:
        free: dict[int, tuple[int, int]] = {}
        while runs := self._next(free):
            hurried = _shrinking({run.session for run in runs}, free)
            for run, due in runs.items():
                if time.monotonic() >= due or run.session in hurried:
                    self._check(run)
            time.sleep(_TICK_S)

    def _next(self, free: dict[int, tuple[int, int]]) -> dict[Watched, float]:
        """The runs there are and when each is due; waits for some. None are left once closed."""
        with self._changed:
            while not self._due and not self._closed:
                free.clear()
                self._changed.wait()
            return {} if self._closed else dict(self._due)

    def _check(self, run: Watched) -> None:
        started = time.monotonic()
        try:
            excess = _excess(run)
        except Exception as error:  # noqa: BLE001  (what cannot be watched must not run on)
            run.kill(f"its use of disk and memory cannot be watched: {error!r}")
        else:
            if excess is not None:
                run.kill(excess, limit_exceeded=True)
        now = time.monotonic()
        with self._changed:
            if run in self._due:
                self._due[run] = now + max(_INTERVAL_S, 10 * (now - started))


def _shrinking(sessions: set[Path], free: dict[int, tuple[int, int]]) -> set[Path]:
    """The Sessions on file systems with notably less free space than when they last were found so."""
    found: set[Path] = set()
    seen: dict[int, tuple[int, int]] = {}
    for session in sessions:
        with contextlib.suppress(FileNotFoundError):
            device = session.stat().st_dev
            if device not in seen:
                state = os.statvfs(session)
                seen[device] = (state.f_bfree * state.f_frsize, state.f_ffree)
            before, now = free.setdefault(device, seen[device]), seen[device]
            if before[0] - now[0] > _HURRY_BYTES or before[1] - now[1] > _HURRY_FILES:
                found.add(session)
    for device, now in seen.items():
        before = free[device]
        if found or now[0] > before[0] or now[1] > before[1]:
            free[device] = now
    return found


def _excess(run: Watched) -> str | None:
    """Which limit is passed, as a sentence's part; None while all are kept."""
    limits = run.limits
    processes = list(_processes(run.pid)) if run.pid is not None else []
    used = _Usage(limits)
    for name in ("home", "workspace"):
        used.add_tree(run.session / name)
    used.add_deleted_files(processes, run.session)
    if used.too_deep:
        return f"disk: folders nested deeper than {_MAX_DEPTH}"
    if used.bytes > limits.disk:
        return f"disk: more than {limits.disk} bytes used"
    if used.entries + _tmpfs_entries(run.pid) > limits.entries:
        return f"disk: more than {limits.entries} files and folders"
    if _memory(processes) > limits.memory:
        return f"memory: more than {limits.memory} bytes used"
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
                with contextlib.suppress(OSError), os.scandir(f"/proc/{process}/fd") as fds:
                    for fd in fds:
                        with contextlib.suppress(OSError):
                            status = Path(fd.path).stat()
                            if status.st_nlink == 0 and status.st_dev == device and status.st_ino not in self._seen:
                                self._seen.add(status.st_ino)
                                self._add(status)


def _processes(init: int) -> Iterator[int]:
    """All processes of a sandbox: its init and, transitively, their children."""
    pending = [init]
    while pending:
        process = pending.pop()
        yield process
        with contextlib.suppress(OSError):
            for thread in Path(f"/proc/{process}/task").iterdir():
                with contextlib.suppress(OSError):
                    pending += [int(child) for child in (thread / "children").read_text().split()]


def _tmpfs_entries(init: int | None) -> int:
    """Files on the sandbox's own tmpfs, which bound bytes but not the kernel memory that names take."""
    total = 0
    for name in _TMPFS:
        with contextlib.suppress(OSError):
            state = os.statvfs(f"/proc/{init}/root/{name}")
            total += state.f_files - state.f_ffree
    return total


def _memory(processes: list[int]) -> int:
    """Bytes of the processes' own memory; pages shared after a fork are counted once for each process."""
    total = 0
    for process in processes:
        with contextlib.suppress(OSError):
            _, resident, shared, *_ = Path(f"/proc/{process}/statm").read_text().split()
            total += (int(resident) - int(shared)) * _PAGE
    return total
