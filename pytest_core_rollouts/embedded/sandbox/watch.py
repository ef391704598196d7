"""Threads that look after what the kernel does not bound: disk space, numbers of files, memory of many processes.

Memory has its own thread: a walk over a Session's files may take seconds, in which memory could fill.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterator, Set
from pathlib import Path
from typing import Protocol

from .cgroups import Cgroup
from .limits import MIB, Limits
from .namespaces import NamespaceHelper
from .usage import Machine, disk_excess, memory_excess

_TICK_S = 0.05
_NICE = -10
_INTERVAL_S = 0.5
_HURRY_DISK_BYTES = 32 * MIB
_HURRY_FILES = 5_000
_HURRY_MEMORY_BYTES = 128 * MIB


class Watched(Protocol):
    """A run: its limits, its Session's folder, its sandbox's init, and how to end it."""

    session: Path
    limits: Limits
    inotify_bounded: bool
    cgroup: Cgroup | None

    @property
    def pid(self) -> int | None: ...

    def kill(self, reason: str, *, limit_exceeded: bool = False) -> None: ...


class Watcher:
    """Checks each run twice a second, and all that it may concern at once when disk or memory are filling quickly."""

    def __init__(self, helper: NamespaceHelper) -> None:
        self._helper = helper
        self._space = _FreeSpace()
        self._machine = _FreeMemory()
        self._patrols = (
            _Patrol("disk", self._disk_excess, self._space.shrinking, self._space.reset),
            _Patrol("memory", self._memory_excess, self._machine.shrinking, self._machine.reset),
        )

    @contextlib.contextmanager
    def watching(self, run: Watched) -> Iterator[None]:
        with contextlib.ExitStack() as stack:
            for patrol in self._patrols:
                stack.enter_context(patrol.watching(run))
            yield

    def close(self) -> None:
        for patrol in self._patrols:
            patrol.close()

    def _disk_excess(self, run: Watched) -> str | None:
        return disk_excess(run.session, run.pid, run.limits, count_inotify=not run.inotify_bounded)

    def _memory_excess(self, run: Watched) -> str | None:
        if run.cgroup is not None:  # the kernel keeps the bound, but may have killed only one of the processes
            return run.cgroup.excess(run.limits)
        return None if run.pid is None else memory_excess(run.pid, run.limits, self._machine.machine, self._helper)


class _Patrol:
    """One thread that looks at each run for one kind of bounds; it exists from the first run on."""

    def __init__(
        self,
        name: str,
        excess: Callable[[Watched], str | None],
        hurried: Callable[[Set[Watched]], Set[Watched]],
        reset: Callable[[], None],
    ) -> None:
        self._name = name
        self._excess = excess
        self._hurried = hurried
        self._reset = reset
        self._due: dict[Watched, float] = {}
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._closed = False

    @contextlib.contextmanager
    def watching(self, run: Watched) -> Iterator[None]:
        with self._changed:
            self._due[run] = time.monotonic() + _INTERVAL_S / 2
            if self._thread is None:
                self._thread = threading.Thread(target=self._watch, name=f"sandbox-{self._name}", daemon=True)
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
        with contextlib.suppress(PermissionError):  # as root only: hundreds of hostile processes may want the processor
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICE)
        while runs := self._next():
            hurried = self._hurried(runs.keys())
            for run, due in runs.items():
                if time.monotonic() >= due or run in hurried:
                    self._check(run)
            time.sleep(_TICK_S)

    def _next(self) -> dict[Watched, float]:
        """The runs there are and when each is due; waits for some. None are left once closed."""
        with self._changed:
            while not self._due and not self._closed:
                self._reset()
                self._changed.wait()
            return {} if self._closed else dict(self._due)

    def _check(self, run: Watched) -> None:
        started = time.monotonic()
        try:
            excess = self._excess(run)
        except Exception as error:  # noqa: BLE001  (what cannot be watched must not run on)
            run.kill(f"its use of {self._name} cannot be watched: {error!r}")
        else:
            if excess is not None:
                run.kill(excess, limit_exceeded=True)
        now = time.monotonic()
        with self._changed:
            if run in self._due:
                self._due[run] = now + max(_INTERVAL_S, 10 * (now - started))


class _FreeSpace:
    """Free space and free inodes of the Sessions' file systems."""

    def __init__(self) -> None:
        self._free: dict[int, tuple[int, int]] = {}

    def reset(self) -> None:
        self._free.clear()

    def shrinking(self, runs: Set[Watched]) -> Set[Watched]:
        """The runs on file systems with notably less free space than when they last were found so."""
        found: set[Watched] = set()
        seen: dict[int, tuple[int, int]] = {}
        for run in runs:
            with contextlib.suppress(FileNotFoundError):
                device = run.session.stat().st_dev
                if device not in seen:
                    state = os.statvfs(run.session)
                    seen[device] = (state.f_bfree * state.f_frsize, state.f_ffree)
                before, now = self._free.setdefault(device, seen[device]), seen[device]
                if before[0] - now[0] > _HURRY_DISK_BYTES or before[1] - now[1] > _HURRY_FILES:
                    found.add(run)
        for device, now in seen.items():
            before = self._free[device]
            if found or now[0] > before[0] or now[1] > before[1]:
                self._free[device] = now
        return found


class _FreeMemory:
    """The machine's available memory."""

    def __init__(self) -> None:
        self.machine = Machine()
        self._available = 0

    def reset(self) -> None:
        self._available = 0
        self.machine.reset()

    def shrinking(self, runs: Set[Watched]) -> Set[Watched]:
        """All runs, if notably less is available than when it last was found so; nobody knows whose doing it is."""
        self.machine.refresh()
        if self._available - self.machine.available > _HURRY_MEMORY_BYTES:
            self._available = self.machine.available
            return runs
        self._available = max(self._available, self.machine.available)
        return set()
