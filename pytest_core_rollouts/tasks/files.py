"""The files of a task folder: read safely, checked against the limits, and the same wherever the folder lies.

No symbolic link is followed: a task folder from elsewhere must not send this machine's files to a sandbox. Names are
read as bytes and decoded as UTF-8, so that nothing depends on the locale. Walks are sorted.
"""

from __future__ import annotations

import errno
import hashlib
import os
import stat
import unicodedata
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from pytest_core_rollouts.text import counted, escaped, listed, name_problem

COUNT_LIMIT: Final = 50
FILE_LIMIT: Final = 5 * 1024 * 1024
TOTAL_LIMIT: Final = 10 * 1024 * 1024
"""The limits of one Session: number of files, bytes of one, bytes of all."""
ANSWER_PATH: Final = "outputs/answer.json"
JUNK: Final = frozenset({b".DS_Store", b"__pycache__"})
"""Left behind by tools and not sent, like `*.pyc`. Everything else is: hidden and empty files, `.git`."""


class TaskError(Exception):
    """A task that can't be used. `str()` names the file (with key and line, if any) and says what to do."""

    def __init__(self, message: str) -> None:
        super().__init__(escaped(message))  # paths may hold any bytes


@dataclass(frozen=True)
class InputFile:
    """A file that the sandbox gets: `path` is POSIX, relative to `/workspace`; `size` in bytes; `sha256` in hex."""

    path: str
    size: int
    sha256: str
    source: Path | bytes = field(repr=False)

    @classmethod
    def of(cls, path: str, content: bytes, source: Path | None = None) -> InputFile:
        """A file with this content; a `source` on disk is read again when the content is needed."""
        return cls(path, len(content), hashlib.sha256(content).hexdigest(), content if source is None else source)

    def read(self) -> bytes:
        """The content. Raises TaskError if it has changed since the task was loaded."""
        if isinstance(self.source, bytes):
            return self.source
        content = read_file(self.source, self.size)
        if hashlib.sha256(content).hexdigest() != self.sha256:
            raise TaskError(f"{self.source}: changed since the task was collected; run again")
        return content


def read_file(path: Path, limit: int) -> bytes:
    """The content of a regular file of at most `limit` bytes; raises TaskError for anything else."""
    try:
        # Without O_NONBLOCK, opening a FIFO would wait for a writer for ever.
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise TaskError(f"{path}: is a symbolic link; put a copy of what it points to in its place") from None
        if error.errno == errno.ENXIO:
            raise TaskError(f"{path}: expected a regular file, found a socket; remove it") from None
        raise TaskError(f"{path}: can't be read: {error.strerror}; check that it exists and is readable") from None
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise TaskError(f"{path}: expected a regular file, found {kind(status.st_mode)}; remove it")
        with os.fdopen(descriptor, "rb", closefd=False) as file:
            content = file.read(limit + 1)
    except OSError as error:
        raise TaskError(f"{path}: can't be read: {error.strerror}; check the disk it is on") from None
    finally:
        os.close(descriptor)
    if len(content) > limit:
        size = max(status.st_size, len(content))
        raise TaskError(f"{path}: has {size:,} bytes; at most {limit:,} are allowed, make it smaller")
    return content


def read_text(path: Path, limit: int) -> str:
    """The text of a UTF-8 file of at most `limit` bytes, a byte order mark dropped; raises TaskError."""
    content = read_file(path, limit)
    try:
        return content.decode("utf-8").removeprefix("\ufeff")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise TaskError(f"{path}:{line}: byte {error.start} is not UTF-8; save the file as UTF-8") from None


def exists(path: Path) -> bool:
    """Return True if anything exists at `path`, including a broken link."""
    return os.path.lexists(path)


def read_input_files(folder: Path) -> tuple[tuple[InputFile, ...], tuple[str, ...]]:
    """The files under `folder` (a task's `files/`; none if it isn't there), sorted by path, and warnings.

    Raises TaskError for a link, for anything that is neither a file nor a folder, for names that can't be sent, and
    for more or larger files than a Session takes.
    """
    if not exists(folder):
        return (), ()
    mode = folder.lstat().st_mode
    if not stat.S_ISDIR(mode):
        raise TaskError(f"{folder}: is {kind(mode)}; it must be a folder with the files for /workspace")
    found, empty = _walk(folder)
    if problem := size_problem({file.path: file.size for file in found}):
        raise TaskError(f"{folder}: {problem}")
    files: list[InputFile] = []
    concerned: dict[str, list[str]] = {EMPTY: empty} if empty else {}
    for file in found:
        content = read_file(file.location, FILE_LIMIT)
        files.append(InputFile.of(file.path, content, file.location))
        for concern in _concerns(file, content):
            concerned.setdefault(concern, []).append(file.path)
    warnings = (f"{folder}: {listed(paths, 3)}: {concern}" for concern, paths in concerned.items())
    return tuple(files), tuple(warnings)


def input_path_problem(path: str) -> str | None:
    """Why a task's file can't be sent under this path, relative to /workspace; None if it can."""
    return name_problem(path) or path_problem(path)


def path_problem(path: str) -> str | None:
    """Why a file can't have this path, relative to /workspace; None if it can. Agents may use bidi marks in names."""
    if any(part in ("", ".", "..") for part in path.split("/")):
        return "the path must be relative, without empty, `.` or `..` components"
    if "\\" in path:
        return "a backslash is not allowed in a name; rename it"
    if any(unicodedata.category(character) in ("Cc", "Cs") for character in path):
        return "control characters are not allowed in a name; rename it"
    if path == ANSWER_PATH or path.startswith(f"{ANSWER_PATH}/"):
        return f"the agent's answer goes to {ANSWER_PATH}, so it can't be there before; remove it"
    if path == "outputs":
        return "outputs must be a folder, since the agent's answer goes into it; rename it"
    return None


def size_problem(sizes: Mapping[str, int]) -> str | None:
    """Why files with these paths and sizes (bytes) are too many or too large for a Session; None if they are not."""
    total = sum(sizes.values())
    largest = sorted(sizes, key=lambda path: (-sizes[path], path))[:3]
    if len(sizes) <= COUNT_LIMIT and total <= TOTAL_LIMIT and all(sizes[path] <= FILE_LIMIT for path in largest):
        return None
    over = [
        f"{path} has {counted(sizes[path] - FILE_LIMIT, 'byte')} too many"
        for path in largest
        if sizes[path] > FILE_LIMIT
    ]
    if len(sizes) > COUNT_LIMIT:
        over.append(f"{len(sizes) - COUNT_LIMIT:,} of {len(sizes):,} files are too many")
    if total > TOTAL_LIMIT:
        named = ", ".join(f"{path} ({sizes[path]:,})" for path in largest)
        over.append(f"together they have {counted(total - TOTAL_LIMIT, 'byte')} too many, the largest are {named}")
    return (
        f"{'; '.join(over)}; a Session takes at most {COUNT_LIMIT} files, {mib(FILE_LIMIT)} each and "
        f"{mib(TOTAL_LIMIT)} in all, so remove some, make them smaller, or set `pack: true` in task.yaml"
    )


@dataclass(frozen=True)
class _Found:
    path: str
    location: Path
    size: int
    executable: bool


def _walk(root: Path) -> tuple[list[_Found], list[str]]:
    """What is under a folder, unread: the files, and the topmost folders with nothing to send; both sorted."""
    found: list[_Found] = []
    folders: list[str] = []
    pending = [(os.fsencode(root), "")]
    while pending:
        location, prefix = pending.pop()
        for entry, status in scan(location):
            if is_junk(entry.name):
                continue
            path = prefix + decoded(entry.name, root / prefix)
            if stat.S_ISDIR(status.st_mode):
                folders.append(f"{path}/")
                pending.append((entry.path, f"{path}/"))
            elif not stat.S_ISREG(status.st_mode):
                raise TaskError(f"{root / path}: is {kind(status.st_mode)}; {remedy(status.st_mode)}")
            elif problem := input_path_problem(path):
                raise TaskError(f"{root}/{path!r}: {problem}")
            else:
                executable = bool(status.st_mode & stat.S_IXUSR)
                found.append(_Found(path, Path(os.fsdecode(entry.path)), status.st_size, executable))
    empty: list[str] = []
    for folder in sorted(folders):
        if not any(file.path.startswith(folder) for file in found) and not folder.startswith(tuple(empty)):
            empty.append(folder)
    return sorted(found, key=lambda file: file.path), empty


def scan(location: bytes) -> list[tuple[os.DirEntry[bytes], os.stat_result]]:
    """Return the entries of a folder, sorted by name, each with its status. Raises TaskError."""
    try:
        with os.scandir(location) as entries:
            return [(entry, entry.stat(follow_symlinks=False)) for entry in sorted(entries, key=lambda each: each.name)]
    except OSError as error:
        raise TaskError(f"{os.fsdecode(location)}: can't be read: {error.strerror}; check its permissions") from None


def is_junk(name: bytes) -> bool:
    return name in JUNK or name.endswith(b".pyc")


def decoded(name: bytes, folder: Path) -> str:
    try:
        return name.decode("utf-8")
    except UnicodeDecodeError:
        raise TaskError(f"{folder}: the name {name!r} in it is not UTF-8; rename it") from None


# Warnings: each is about all files it concerns

EMPTY: Final = "empty, so it will not arrive; put a file into it, or set `pack: true` in task.yaml"
EXECUTABLE: Final = (
    "arrives without its executable bit; start it with its interpreter, or set `pack: true` in task.yaml"
)
LINE_ENDINGS: Final = "a script with Windows line endings, which fails on Linux; convert it to LF"
_POINTER: Final = "a Git LFS pointer, not the data; run `git lfs pull`"


def _concerns(file: _Found, content: bytes) -> Iterator[str]:
    if file.executable:
        yield EXECUTABLE
    yield from content_concerns(content)


def content_concerns(content: bytes) -> Iterator[str]:
    """What is odd about a file's content, however it is sent."""
    if content.startswith(b"#!") and b"\r\n" in content:
        yield LINE_ENDINGS
    if len(content) < 1024 and content.startswith(b"version https://git-lfs.github.com/spec/"):
        yield _POINTER


def kind(mode: int) -> str:
    kinds = {
        stat.S_IFREG: "a regular file",
        stat.S_IFDIR: "a folder",
        stat.S_IFLNK: "a symbolic link",
        stat.S_IFIFO: "a FIFO",
        stat.S_IFSOCK: "a socket",
    }
    return kinds.get(stat.S_IFMT(mode), "a device")


def remedy(mode: int) -> str:
    return (
        "put a copy of what it points to in its place, or set `pack: true` in task.yaml"
        if stat.S_ISLNK(mode)
        else "only files can be sent; remove it"
    )


def mib(size: int) -> str:
    return f"{size / 2**20:.1f} MiB" if size >= 2**20 / 10 else f"{size:,} bytes"
