"""Writes, collects and removes files in a sandbox's folders, without trusting what an agent left there."""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import stat
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from .limits import MIB

_HOST_FAULTS = frozenset(
    (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EROFS, errno.ESTALE)
)

FOLDER_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def write_files(root: Path, files: Iterable[tuple[str, bytes]], *, inside: str, uid: int) -> None:
    """Write files with mode 0600, owned by `uid`, and create their folders. Paths are absolute and under `inside`.

    `root` is the host's folder that a sandbox shows as `inside`. Symbolic links are never followed. A file that exists
    is replaced. Raises ValueError for a path that is not under `inside`, OSError if the file system refuses.
    """
    for path, data in files:
        folders, name = _split(path, inside)
        folder = os.open(root, FOLDER_FLAGS)
        try:
            for part in folders:
                folder = _enter(folder, part, uid)
            _write(folder, name, data, uid)
        except OSError as error:
            raise OSError(error.errno, f"{error.strerror}: {path!r} can't be written") from error
        finally:
            os.close(folder)


def _split(path: str, inside: str) -> tuple[list[str], str]:
    parts = path.removeprefix(inside + "/").split("/")
    if not path.startswith(inside + "/") or "\0" in path or any(part in ("", ".", "..") for part in parts):
        raise ValueError(f"expected a path under {inside} without '.' and '..', got {path!r}")
    return parts[:-1], parts[-1]


def _enter(folder: int, name: str, uid: int) -> int:
    """Open the folder `name`, created if missing, and close `folder`."""
    with contextlib.suppress(FileExistsError):
        os.mkdir(name, 0o755, dir_fd=folder)
        if uid != os.geteuid():
            os.chown(name, uid, uid, dir_fd=folder, follow_symlinks=False)
    entered = os.open(name, FOLDER_FLAGS, dir_fd=folder)
    os.close(folder)
    return entered


def _write(folder: int, name: str, data: bytes, uid: int) -> None:
    with contextlib.suppress(FileNotFoundError):
        os.unlink(name, dir_fd=folder)
    file = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600, dir_fd=folder)
    with os.fdopen(file, "wb") as stream:
        stream.write(data)
        if uid != os.geteuid():
            os.fchown(file, uid, uid)


def open_unreadable(folder: int, name: str, flags: int) -> int:
    """Open an entry that its owner, this process's user, made unreadable: make it readable first.

    The mode is not changed by name, because an agent could put a link in its place between two calls.
    """
    entry = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
    try:
        Path(f"/proc/self/fd/{entry}").chmod(0o700)
        return os.open(name, flags, dir_fd=folder)
    finally:
        os.close(entry)


def is_host_fault(error: OSError) -> bool:
    """Return True if the machine caused the error, such as a full disk, and not what an agent left there."""
    return error.errno in _HOST_FAULTS


def list_names(folder: int) -> list[str]:
    """List the names in an open folder."""
    with os.scandir(folder) as entries:
        return [entry.name for entry in entries]


def remove_tree(root: Path) -> None:
    """Remove a folder and everything in it, however deep, unreadable or oddly named, if it exists.

    No process may be writing there any more. Folders are moved to the top before they are emptied, so neither the
    length of a path nor the number of open files grows with the depth.
    """
    try:
        top = os.open(root, FOLDER_FLAGS)
    except FileNotFoundError:
        return
    try:
        os.fchmod(top, 0o700)
        prefix = f".removing-{secrets.token_hex(8)}-"
        pending = list_names(top)
        serial = 0
        while pending:
            name = pending.pop()
            if _unlink(top, name):
                continue
            _open_up(top, name)
            folder = os.open(name, FOLDER_FLAGS, dir_fd=top)
            try:
                for entry in list_names(folder):
                    if not _unlink(folder, entry):
                        _open_up(folder, entry)
                        serial += 1
                        os.rename(entry, f"{prefix}{serial}", src_dir_fd=folder, dst_dir_fd=top)
                        pending.append(f"{prefix}{serial}")
            finally:
                os.close(folder)
            os.rmdir(name, dir_fd=top)
    finally:
        os.close(top)
    root.rmdir()


def _unlink(folder: int, name: str) -> bool:
    """Remove an entry that is not a folder. Returns False for a folder."""
    try:
        os.unlink(name, dir_fd=folder)
    except FileNotFoundError:
        return True
    except IsADirectoryError:
        return False
    return True


def _open_up(folder: int, name: str) -> None:
    """Give the owner all rights to a folder. It can't be a link: those were unlinked."""
    os.chmod(name, 0o700, dir_fd=folder)


# ---- outputs


MAX_ENTRIES = 4096
MAX_DEPTH = 64
MAX_FILE_BYTES = 200 * MIB
MAX_TURN_BYTES = 500 * MIB
_CHUNK = 1 * MIB
_OUTPUTS = "/workspace/outputs"
_FILE_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC


class OutputsRejected(Exception):
    """The outputs break a rule, so none of them is captured; str: which path and which rule."""


@dataclass(frozen=True)
class CapturedFile:
    """A copy of an output. `path`: as the agent named it; `size` in bytes; `file`: the copy."""

    path: str
    size: int
    file: Path


def collect_outputs(workspace: Path, into: Path) -> list[CapturedFile]:
    """Copy the regular files under `workspace`/outputs into the empty folder `into`, created if missing.

    Returns the copies, sorted by path. Symbolic links are skipped. The outputs may be missing.
    Raises OutputsRejected if the agent left what the API's Artifact rules exclude, OSError for a fault of this machine.
    """
    into.mkdir(parents=True, exist_ok=True)
    parent = os.open(workspace.parent, FOLDER_FLAGS)
    try:
        with _open_entry(parent, workspace.name, "/workspace", FOLDER_FLAGS) as root:
            return _collect(root, into)
    finally:
        os.close(parent)


def _collect(root: int, into: Path) -> list[CapturedFile]:
    try:
        mode = os.stat("outputs", dir_fd=root, follow_symlinks=False).st_mode
    except FileNotFoundError:
        return []
    if not stat.S_ISDIR(mode):
        raise OutputsRejected(f"{_OUTPUTS} is {_kind(mode)}, not a directory")
    with _open_entry(root, "outputs", _OUTPUTS, FOLDER_FLAGS) as folder:
        _Walk(None).visit(folder, _OUTPUTS, depth=0)  # checks all rules first
        walk = _Walk(into)
        walk.visit(folder, _OUTPUTS, depth=0)
    return sorted(walk.files, key=lambda file: file.path)


class _Walk:
    """One walk through the outputs: checks every rule, and copies files unless `into` is None."""

    def __init__(self, into: Path | None) -> None:
        self.files: list[CapturedFile] = []
        self._into = into
        self._entries = 0
        self._bytes = 0

    def visit(self, folder: int, path: str, *, depth: int) -> None:
        with os.scandir(folder) as found:
            for entry in found:
                self._entries += 1
                if self._entries > MAX_ENTRIES:
                    raise OutputsRejected(f"{_OUTPUTS} holds more than {MAX_ENTRIES} entries")
                self._entry(folder, entry.name, f"{path}/{entry.name}", depth + 1)

    def _entry(self, folder: int, name: str, path: str, depth: int) -> None:
        if depth > MAX_DEPTH:
            raise OutputsRejected(f"{_shown(path)} is nested deeper than {MAX_DEPTH} levels")
        try:
            path.encode()
        except UnicodeEncodeError:
            raise OutputsRejected(f"{_shown(path)}: the name is not UTF-8") from None
        try:
            mode = os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode
        except OSError as error:
            raise _open_error(path, error) from None
        if stat.S_ISLNK(mode):
            return
        if stat.S_ISDIR(mode):
            with _open_entry(folder, name, path, FOLDER_FLAGS) as entered:
                self.visit(entered, path, depth=depth)
        elif stat.S_ISREG(mode):
            with _open_entry(folder, name, path, _FILE_FLAGS) as file:
                self._file(file, path)
        else:
            raise OutputsRejected(f"{_shown(path)} is {_kind(mode)}: only files and directories can be captured")

    def _file(self, file: int, path: str) -> None:
        before = os.fstat(file)
        if not stat.S_ISREG(before.st_mode):
            raise _changed(path)
        if before.st_size > MAX_FILE_BYTES:
            raise OutputsRejected(f"{_shown(path)} has {before.st_size} bytes; at most {MAX_FILE_BYTES} are kept")
        self._bytes += before.st_size
        if self._bytes > MAX_TURN_BYTES:
            message = f"{_OUTPUTS} has {self._bytes} bytes up to {_shown(path)}; at most {MAX_TURN_BYTES} are kept"
            raise OutputsRejected(message)
        if self._into is None:
            return
        target = self._into / str(len(self.files))
        copied = 0
        with target.open("xb") as copy:
            while chunk := os.read(file, _CHUNK):
                copied += len(chunk)
                if copied > before.st_size:
                    raise _changed(path)
                copy.write(chunk)
        after = os.fstat(file)
        if copied != before.st_size or _version(before) != _version(after):
            raise _changed(path)
        self.files.append(CapturedFile(path, copied, target))


@contextlib.contextmanager
def _open_entry(folder: int, name: str, path: str, flags: int) -> Iterator[int]:
    """Open an entry whatever its mode is, as a Core that is root can."""
    try:
        try:
            fd = os.open(name, flags, dir_fd=folder)
        except PermissionError:
            fd = open_unreadable(folder, name, flags)
    except OSError as error:
        raise _open_error(path, error) from None
    try:
        yield fd
    finally:
        os.close(fd)


def _version(status: os.stat_result) -> tuple[int, ...]:
    return (status.st_size, status.st_mtime_ns, status.st_ctime_ns)


def _changed(path: str) -> OutputsRejected:
    return OutputsRejected(f"{_shown(path)} changed while it was copied")


def _open_error(path: str, error: OSError) -> Exception:
    """Return what to raise if `path` can't be opened: OutputsRejected, or the error of the machine itself."""
    return error if is_host_fault(error) else OutputsRejected(f"{_shown(path)} can't be opened: {error.strerror}")


def _kind(mode: int) -> str:
    kinds = {
        stat.S_IFLNK: "a symbolic link",
        stat.S_IFIFO: "a FIFO",
        stat.S_IFSOCK: "a socket",
        stat.S_IFCHR: "a device",
        stat.S_IFBLK: "a device",
        stat.S_IFREG: "a file",
    }
    return kinds.get(stat.S_IFMT(mode), "of an unknown kind")


def _shown(path: str) -> str:
    text = path.encode("utf-8", "backslashreplace").decode()
    return repr(text if len(text) <= 200 else text[:200] + "…")
