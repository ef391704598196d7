"""Files in a sandbox's folders, written and removed without trusting what an agent left there."""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
from collections.abc import Iterable
from pathlib import Path

_HOST_FAULTS = frozenset(
    (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EROFS, errno.ESTALE)
)

FOLDER_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def write_files(root: Path, files: Iterable[tuple[str, bytes]], *, inside: str, uid: int) -> None:
    """Write files (absolute paths under `inside`, which `root` is), mode 0600, making folders, owned by `uid`.

    Symbolic links are never followed; what a file replaces is removed, unless it is a folder.
    Raises ValueError for a path that is not under `inside`, OSError for what the file system refuses.
    """
    for path, data in files:
        folders, name = _split(path, inside)
        folder = os.open(root, FOLDER_FLAGS)
        try:
            for part in folders:
                folder = _enter(folder, part, uid)
            _write(folder, name, data, uid)
        except OSError as error:
            raise OSError(error.errno, f"{error.strerror}: {path!r} cannot be written") from error
        finally:
            os.close(folder)


def _split(path: str, inside: str) -> tuple[list[str], str]:
    parts = path.removeprefix(inside + "/").split("/")
    if not path.startswith(inside + "/") or "\0" in path or any(part in ("", ".", "..") for part in parts):
        raise ValueError(f"not a plain path under {inside}: {path!r}")
    return parts[:-1], parts[-1]


def _enter(folder: int, name: str, uid: int) -> int:
    """The open folder `name`, made when missing; closes `folder`."""
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
    """Open an entry that its owner, who is us, has closed: it is made readable first.

    Not by name: between two calls an agent could put a link in its place.
    """
    entry = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
    try:
        Path(f"/proc/self/fd/{entry}").chmod(0o700)
        return os.open(name, flags, dir_fd=folder)
    finally:
        os.close(entry)


def is_host_fault(error: OSError) -> bool:
    """Whether the machine is to blame, whatever an agent left on the disk."""
    return error.errno in _HOST_FAULTS


def list_names(folder: int) -> list[str]:
    """The names in an open folder."""
    with os.scandir(folder) as entries:
        return [entry.name for entry in entries]


def remove_tree(root: Path) -> None:
    """Remove a folder and all in it, however deep, unreadable or oddly named; nothing to do when it is gone.

    Nobody else may be writing there any more. Folders found are moved up to the top before they are emptied, so
    neither the length of a path nor the number of open files grows with the depth.
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
    """Remove the entry; False for a folder."""
    try:
        os.unlink(name, dir_fd=folder)
    except FileNotFoundError:
        return True
    except IsADirectoryError:
        return False
    return True


def _open_up(folder: int, name: str) -> None:
    """Give the owner all rights to a folder (no link: those were unlinked)."""
    os.chmod(name, 0o700, dir_fd=folder)
