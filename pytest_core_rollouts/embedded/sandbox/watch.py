"""Threads that enforce the bounds that the kernel does not: disk space, numbers of files, memory of all processes.

Memory has its own thread, because a walk over the files of a Session may take seconds, in which memory could fill.
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
_URGENT_DISK_BYTES = 32 * MIB
_URGENT_FILES = 5_000
_URGENT_MEMORY_BYTES = 128 * MIB


class Watched(Protocol):
    """What a watcher needs of a run: its limits, its Session's folder, its sandbox's init, and `kill`."""

    session: Path
    limits: Limits
    inotify_bounded: bool
    cgroup: Cgroup | None

    @property
    def pid(self) -> int | None: ...

    def kill(self, reason: str, *, limit_exceeded: bool = False) -> None: ...


class Watcher:
    """Checks each run twice a second, and at once if disk or memory are filling quickly."""

    def __init__(self, helper: NamespaceHelper) -> None:
        self._helper = helper
        self._space = _FreeSpace()
        self._machine = _FreeMemory()
        self._threads = (
            _WatchThread("disk", self._disk_excess, self._space.runs_losing, self._space.reset),
            _WatchThread("memory", self._memory_excess, self._machine.runs_losing, self._machine.reset),
        )

    @contextlib.contextmanager
    def watching(self, run: Watched) -> Iterator[None]:
        with contextlib.ExitStack() as stack:
            for thread in self._threads:
                stack.enter_context(thread.watching(run))
            yield

    def close(self) -> None:
        for thread in self._threads:
            thread.close()

    def _disk_excess(self, run: Watched) -> str | None:
        return disk_excess(run.session, run.pid, run.limits, count_inotify=not run.inotify_bounded)

    def _memory_excess(self, run: Watched) -> str | None:
        if run.cgroup is not None:  # the kernel enforces the bound, but may have killed only one of the processes
            return run.cgroup.excess(run.limits)
        return None if run.pid is None else memory_excess(run.pid, run.limits, self._machine.machine, self._helper)


class _WatchThread:
    """One thread that checks each run for one kind of bounds; it starts with the first run."""

    def __init__(
        self,
        name: str,
        excess: Callable[[Watched], str | None],
        urgent: Callable[[Set[Watched]], Set[Watched]],
        reset: Callable[[], None],
    ) -> None:
        self._name = name
        self._excess = excess
        self._urgent = urgent
        self._reset = reset
        self._next_check: dict[Watched, float] = {}
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._closed = False

    @contextlib.contextmanager
    def watching(self, run: Watched) -> Iterator[None]:
        with self._changed:
            self._next_check[run] = time.monotonic() + _INTERVAL_S / 2
            if self._thread is None:
                self._thread = threading.Thread(target=self._watch, name=f"sandbox-{self._name}", daemon=True)
                self._thread.start()
            self._changed.notify()
        try:
            yield
        finally:
            with self._changed:
                self._next_check.pop(run, None)

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify()

    def _watch(self) -> None:
        with contextlib.suppress(
            PermissionError
        ):  # only root may: hundreds of hostile processes may want the processor
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICE)
        while runs := self._wait_for_runs():
            urgent = self._urgent(runs.keys())
            for run, next_check in runs.items():
                if time.monotonic() >= next_check or run in urgent:
                    self._check(run)
            time.sleep(_TICK_S)

    def _wait_for_runs(self) -> dict[Watched, float]:
        """Wait for runs. Returns each with the time of its next check; none after `close`."""
        with self._changed:
            while not self._next_check and not self._closed:
                self._reset()
                self._changed.wait()
            return {} if self._closed else dict(self._next_check)

    def _check(self, run: Watched) -> None:
        started = time.monotonic()
        try:
            excess = self._excess(run)
        except Exception as error:  # noqa: BLE001  (a run that can't be watched must not continue)
            run.kill(f"its use of {self._name} can't be watched: {error!r}")
        else:
            if excess is not None:
                run.kill(excess, limit_exceeded=True)
        now = time.monotonic()
        with self._changed:
            if run in self._next_check:
                self._next_check[run] = now + max(_INTERVAL_S, 10 * (now - started))


class _FreeSpace:
    """Free space and free inodes of the file systems that Sessions are on."""

    def __init__(self) -> None:
        self._free: dict[int, tuple[int, int]] = {}

    def reset(self) -> None:
        self._free.clear()

    def runs_losing(self, runs: Set[Watched]) -> Set[Watched]:
        """Return the runs on file systems that lost much free space since they were last returned."""
        found: set[Watched] = set()
        seen: dict[int, tuple[int, int]] = {}
        for run in runs:
            with contextlib.suppress(FileNotFoundError):
                device = run.session.stat().st_dev
                if device not in seen:
                    state = os.statvfs(run.session)
                    seen[device] = (state.f_bfree * state.f_frsize, state.f_ffree)
                before, now = self._free.setdefault(device, seen[device]), seen[device]
                if before[0] - now[0] > _URGENT_DISK_BYTES or before[1] - now[1] > _URGENT_FILES:
                    found.add(run)
        for device, now in seen.items():
            before = self._free[device]
            if found or now[0] > before[0] or now[1] > before[1]:
                self._free[device] = now
        return found


class _FreeMemory:
    """The available memory of the machine."""

    def __init__(self) -> None:
        self.machine = Machine()
        self._available = 0

    def reset(self) -> None:
        self._available = 0
        self.machine.reset()

    def runs_losing(self, runs: Set[Watched]) -> Set[Watched]:
        """Return all runs if the machine lost much memory since the last time; it does not show to which of them."""
        self.machine.refresh()
        if self._available - self.machine.available > _URGENT_MEMORY_BYTES:
            self._available = self.machine.available
            return runs
        self._available = max(self._available, self.machine.available)
        return set()
