"""Counts what a sandbox uses, from outside: files on the disk, memory, and what the kernel keeps for it.

Counting memory starts with a cheap estimate, which is never too low. If the whole machine uses no more than a sandbox
may, the sandbox does not either. If it uses more, all growth of the machine's shared memory, page tables and kernel
objects counts as the sandbox's. Only if that is over the bound too, the sandbox's own memory is counted exactly.
"""

from __future__ import annotations

import contextlib
import functools
import os
import re
import stat
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from .files import FOLDER_FLAGS, open_unreadable
from .limits import KIB, MIB, Limits
from .namespaces import NamespaceHelper

_PAGE = os.sysconf("SC_PAGE_SIZE")
_TMPFS = ("tmp", "dev/shm")
_FILE_BYTES = 10 * KIB  # of an open file: the kernel's own, and the two pages that every pipe may fill
_PIPES_BYTES = 64 * MIB  # what all of a user's pipes may hold beyond that (fs.pipe-user-pages-soft)
_MAPPING_BYTES = 256
_SHARES_BUDGET_S = 0.5
_FLIGHT_S = 0.02
_OTHER_SOCKETS = 1  # the one that asks for the list
_GROWING = ("Shmem", "PageTables", "SUnreclaim", "VmallocUsed")


@dataclass
class Machine:
    """The machine's memory now, and its smallest values since the first of the sandboxes that run now."""

    available: int = 0
    in_use: int = 0
    _now: Mapping[str, int] = field(default_factory=dict)
    _least: dict[str, int] = field(default_factory=dict)

    def refresh(self) -> None:
        found = {name: int(kb) * KIB for name, kb in re.findall(r"(\w+): +(\d+) kB", _read("/proc/meminfo"))}
        swap = found.get("SwapTotal", 0) - found.get("SwapFree", 0)
        self.available = found.get("MemAvailable", 0)
        self.in_use = found.get("MemTotal", 0) - self.available + swap
        self._now = {**{name: found.get(name, 0) for name in _GROWING}, "swap": swap}
        for name, size in self._now.items():
            self._least[name] = min(size, self._least.get(name, size))

    def reset(self) -> None:
        self._least.clear()

    @property
    def growth(self) -> int:
        return sum(size - self._least[name] for name, size in self._now.items())


def memory_excess(init: int, limits: Limits, machine: Machine, helper: NamespaceHelper) -> str | None:
    """Return the bound of memory that the sandbox exceeds, as part of a message; None if it exceeds none."""
    if machine.in_use <= limits.memory:
        return None
    processes = sandbox_processes(init)
    descriptors = sum(_descriptors(process) for process in processes)
    if descriptors > limits.descriptors:
        return f"open files: {descriptors} in all processes, {limits.descriptors} allowed"
    upper_bound = sum(_anonymous(process) for process in processes) + descriptors * _FILE_BYTES + _PIPES_BYTES
    upper_bound += machine.growth + _temporary_files(init) + _sockets_used(init) * _max_socket_bytes()
    if upper_bound <= limits.memory:
        return None
    counted = helper.count(init)
    shared = _Shared(ignore_sysv=counted is not None)
    for process in processes:
        shared.add(process)
        if shared.mappings > limits.mappings:
            return f"mappings: {shared.mappings} in all processes, {limits.mappings} allowed"
    used = (
        shared.total(limits.file_size)
        + _process_bytes(processes)
        + _temporary_files(init)
        + _kernel_bytes(init, counted)
    )
    return f"memory: {used} bytes used, {limits.memory} allowed" if used > limits.memory else None


def _process_bytes(processes: list[int]) -> int:
    """Return bytes of the processes' pages and page tables; a page that several share after a fork counts once."""
    deadline = time.monotonic() + _SHARES_BUDGET_S
    pages = sum(_proportional(process) if time.monotonic() < deadline else _anonymous(process) for process in processes)
    return pages + sum(_page_tables(process) for process in processes)


def _kernel_bytes(init: int, counted: Mapping[str, int] | None) -> int:
    """Return bytes of System V memory and of buffers of sockets."""
    used = _sockets_used(init)
    if counted is None:
        return used * _max_socket_bytes()
    # The kernel lists no closed socket whose data is still unread; that data may have filled its buffer.
    closed = max(0, used - counted["sockets"] - _OTHER_SOCKETS)
    return counted["sysv_bytes"] + counted["socket_bytes"] + closed * _max_buffer_bytes("w")


def machine_oom_kills() -> int:
    """Return how many processes the kernel has killed because memory was short, since boot; 0 if it has no count.

    The kernel counts before it sends the signal, so a process that died by it is counted when its death is noticed.
    """
    found = re.search(r"^oom_kill (\d+)$", _read("/proc/vmstat"), re.MULTILINE)
    return int(found[1]) if found else 0


def temporary_entries(init: int | None) -> int:
    """Count files on the sandbox's tmpfs mounts, which bound bytes, but not the kernel's memory for names."""
    return sum(state.f_files - state.f_ffree for state in _tmpfs_states(init))


def _temporary_files(init: int) -> int:
    return sum((state.f_blocks - state.f_bfree) * state.f_frsize for state in _tmpfs_states(init))


def _tmpfs_states(init: int | None) -> Iterator[os.statvfs_result]:
    """Yield the state of each of the sandbox's tmpfs mounts.

    While a sandbox is being made, its init still sees the machine's own folders. What these hold is not the sandbox's.
    """
    for name in _TMPFS:
        with contextlib.suppress(OSError):
            descriptor = os.open(f"/proc/{init}/root/{name}", os.O_PATH | os.O_DIRECTORY)
            try:
                if os.fstat(descriptor).st_dev != _device(f"/{name}"):
                    yield os.fstatvfs(descriptor)
            finally:
                os.close(descriptor)


def _device(path: str) -> int | None:
    try:
        return Path(path).stat().st_dev
    except OSError:
        return None


def _read(path: str) -> str:
    """Read a file of /proc; empty if it does not exist."""
    try:
        return Path(path).read_text("utf-8", "replace")
    except OSError:
        return ""


def _sysctl(name: str) -> int:
    fields = _read(f"/proc/sys/{name}").split()
    return int(fields[-1]) if fields else 0


def _anonymous(process: int) -> int:
    """Return bytes of a process's own pages in memory; those shared after a fork count in each process."""
    fields = _read(f"/proc/{process}/statm").split()
    return (int(fields[1]) - int(fields[2])) * _PAGE if fields else 0


def _proportional(process: int) -> int:
    """Return a process's share of its own pages, in memory and in swap. Mapped files are counted elsewhere."""
    text = _read(f"/proc/{process}/smaps_rollup")
    found = dict(re.findall(r"^(Pss_Anon|SwapPss): +(\d+) kB$", text, re.MULTILINE))
    if "Pss_Anon" not in found:  # before Linux 5.4
        return _anonymous(process)
    return sum(int(kb) for kb in found.values()) * KIB


def _page_tables(process: int) -> int:
    found = re.search(r"^VmPTE:\s+(\d+) kB$", _read(f"/proc/{process}/status"), re.MULTILINE)
    return int(found[1]) * KIB if found else 0


def _descriptors(process: int) -> int:
    """Return how many descriptors a process has; before Linux 6.2, an upper bound."""
    try:
        size = Path(f"/proc/{process}/fd").stat().st_size
    except OSError:
        return 0
    if size:
        return size
    found = re.search(r"^FDSize:\s+(\d+)$", _read(f"/proc/{process}/status"), re.MULTILINE)
    return int(found[1]) if found else 0


class _Shared:
    """Shared memory, each object once: open memfds, and what processes map after they closed it."""

    def __init__(self, *, ignore_sysv: bool) -> None:
        self.mappings = 0
        self._ignore_sysv = ignore_sysv  # counted elsewhere, whether it is mapped or not
        self._device = _shared_memory_device()
        self._objects: dict[int, int] = {}
        self._shares: dict[int, int] = {}  # of objects that only root may inspect
        self._files: set[int] = set()
        self._in_flight: dict[str, int] = {}

    def add(self, process: int) -> None:
        for path, status in open_files(process):
            self._files.add(status.st_ino)
            if status.st_dev == self._device:
                self._objects[status.st_ino] = status.st_blocks * 512
            elif stat.S_ISSOCK(status.st_mode) and (sent := _in_flight(path)):
                self._in_flight[path] = sent
        maps = _read(f"/proc/{process}/maps")
        self.mappings += maps.count("\n")
        self._add_mapped(process, maps)

    def _add_mapped(self, process: int, maps: str) -> None:
        device = f" {os.major(self._device):02x}:{os.minor(self._device):02x} "
        visible = True
        for line in maps.splitlines():
            if device not in line or (self._ignore_sysv and " /SYSV" in line):
                continue
            addresses, _, _, _, inode, *_ = line.split()
            if int(inode) not in self._objects:
                try:
                    blocks = Path(f"/proc/{process}/map_files/{addresses}").stat().st_blocks
                    self._objects[int(inode)] = blocks * 512
                except OSError:
                    visible = False
        if not visible:
            entry = rf"^\S+ \S+ \S+{device}(\d+)[^\n]*\n(?:\w+: [^\n]*\n)*?Pss: +(\d+) kB$"
            for inode, kb in re.findall(entry, _read(f"/proc/{process}/smaps"), re.MULTILINE):
                self._shares[int(inode)] = self._shares.get(int(inode), 0) + int(kb) * KIB

    def total(self, file_size: int) -> int:
        """Return bytes, with the kernel's own for files and mappings.

        The size of a file in flight can't be read, so each counts as the largest possible, if it stays in flight for a
        moment.
        """
        in_flight = 0
        if self._in_flight:
            time.sleep(_FLIGHT_S)
            in_flight = sum(min(sent, _in_flight(path)) for path, sent in self._in_flight.items())
        shares = sum(size for inode, size in self._shares.items() if inode not in self._objects)
        kernel = len(self._files) * _FILE_BYTES + self.mappings * _MAPPING_BYTES
        return sum(self._objects.values()) + shares + kernel + in_flight * file_size


def _shared_memory_device() -> int:
    """Return the device number of memfds, shared anonymous mappings and System V segments, all on one device."""
    fd = os.memfd_create("device")
    try:
        return os.fstat(fd).st_dev
    finally:
        os.close(fd)


def _steadily_in_flight(sockets: list[str], bound: int) -> int:
    """Count descriptors that were sent to sockets and not received: the lesser of two looks, if the first is over."""
    count = sum(map(_in_flight, sockets))
    if count > bound:  # a receiver may be about to take them
        time.sleep(_FLIGHT_S)
        count = min(count, sum(map(_in_flight, sockets)))
    return count


def _in_flight(path: str) -> int:
    """Count descriptors that were sent to a socket and not received."""
    found = re.search(r"^scm_fds:\s+(\d+)$", _read(path.replace("/fd/", "/fdinfo/")), re.MULTILINE)
    return int(found[1]) if found else 0


def _sockets_used(init: int) -> int:
    found = re.search(r"^sockets: used (\d+)$", _read(f"/proc/{init}/net/sockstat"), re.MULTILINE)
    return int(found[1]) if found else 0


@functools.cache
def _max_buffer_bytes(way: str) -> int:
    """Return the bytes that a socket's buffer may hold (`w`: sent, `r`: received). The kernel doubles the setting."""
    return max(2 * _sysctl(f"net/core/{way}mem_max"), _sysctl(f"net/ipv4/tcp_{way}mem"))


def _max_socket_bytes() -> int:
    return _max_buffer_bytes("w") + _max_buffer_bytes("r")


# ---- files on the disk


_MAX_DEPTH = 200


def disk_excess(session: Path, init: int | None, limits: Limits, *, count_inotify: bool) -> str | None:
    """Return the bound of files or descriptors that a sandbox exceeds, as part of a message; None if none."""
    processes = sandbox_processes(init)
    used = _Usage(limits)
    for name in ("home", "workspace"):
        used.add_tree(session / name)
    sockets = used.add_open_files(processes, session)
    if used.too_deep:
        return f"disk: folders nested deeper than {_MAX_DEPTH}"
    if used.bytes > limits.disk:
        return f"disk: at least {used.bytes} bytes used, {limits.disk} allowed"
    if (entries := used.entries + temporary_entries(init)) > limits.entries:
        return f"disk: at least {entries} files and folders, {limits.entries} allowed"
    if (in_flight := _steadily_in_flight(sockets, limits.in_flight)) > limits.in_flight:
        return f"descriptors in flight: {in_flight} sent and not received, {limits.in_flight} allowed"
    if count_inotify and (instances := inotify_instances(processes)) > limits.inotify_instances:
        return f"inotify: {instances} instances, {limits.inotify_instances} allowed"
    return None


class _Usage:
    """Counts what a Session has on the disk; counting stops when a limit is exceeded."""

    def __init__(self, limits: Limits) -> None:
        self.bytes = 0
        self.entries = 0
        self.too_deep = False
        self._limits = limits
        self._seen: set[int] = set()

    @property
    def _over_limit(self) -> bool:
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
                if self._over_limit:
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
            entered = open_unreadable(folder, name, FOLDER_FLAGS)  # otherwise an agent could hide anything there
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

    def add_open_files(self, processes: list[int], session: Path) -> list[str]:
        """Add files without a name that processes still hold open. Returns a path in /proc for each open socket."""
        sockets: dict[int, str] = {}
        with contextlib.suppress(OSError):
            device = session.stat().st_dev
            for process in processes:
                for path, status in open_files(process):
                    if status.st_nlink == 0 and status.st_dev == device and status.st_ino not in self._seen:
                        self._seen.add(status.st_ino)
                        self._add(status)
                    elif stat.S_ISSOCK(status.st_mode):
                        sockets.setdefault(status.st_ino, path)
        return list(sockets.values())


# ---- processes and their descriptors, in /proc


INOTIFY = "anon_inode:inotify"


def sandbox_processes(init: int | None) -> list[int]:
    """List all processes of a sandbox: its init, its children, their children and so on."""
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
    """Yield the descriptors of a process, as paths, each with the status of its file."""
    with contextlib.suppress(OSError), os.scandir(f"/proc/{process}/fd") as fds:
        for fd in fds:
            with contextlib.suppress(OSError):
                yield fd.path, os.stat(fd.path)  # noqa: PTH116  (twice as fast as Path.stat, and there may be many)


def inotify_instances(processes: list[int]) -> int:
    """Count descriptors of inotify instances; one that several processes share counts for each."""
    found = 0
    for process in processes:
        with contextlib.suppress(OSError), os.scandir(f"/proc/{process}/fd") as fds:
            for fd in fds:
                with contextlib.suppress(OSError):
                    found += os.readlink(fd.path) == INOTIFY  # noqa: PTH115
    return found
