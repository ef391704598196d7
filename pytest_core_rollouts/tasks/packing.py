"""A task's files as one archive: for more of them than a Session takes, and for what single files lose on the way.

Modes, empty folders, links that stay inside and a nested `.git` arrive as they are. The archive is the same for the
same files: sorted, with one owner and one time for all. It is a gzipped tar, sent in parts (a Session takes 5 MiB a
file), and the first setup command unpacks and removes it. What the agent sees is known by `Pack.sha256`, over paths,
contents, link targets and executable bits: neither the compressor's version nor the checkout's umask is in it.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import os
import stat
import tarfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

from pytest_core_rollouts.strict_json import InvalidJSON, parse_json
from pytest_core_rollouts.tasks.files import (
    FILE_LIMIT,
    TOTAL_LIMIT,
    InputFile,
    TaskError,
    content_concerns,
    decoded,
    exists,
    input_path_problem,
    is_junk,
    kind,
    mib,
    read_file,
    remedy,
    scan,
)
from pytest_core_rollouts.text import listed

UNPACKED_LIMIT: Final = 512 * 1024 * 1024
"""Bytes of all files before compression: a sandbox must hold them, and so must we, one at a time."""
PART: Final = ".task-files."
"""How the names of the archive's parts begin, in /workspace."""
UNPACK: Final = (
    f"cd /workspace && cat {PART}* | tar --no-same-owner -xpzf - && rm -f {PART}*"  # -p: the umask takes nothing away
)
_TIME: Final = 946_684_800  # 2000-01-01: zip files can't hold the year 1970


@dataclass(frozen=True)
class Entry:
    """A file (content in `source`), a folder (no source) or a link (to `target`); `mode` is its permission bits."""

    path: str
    mode: int
    source: Path | bytes | None = field(default=None, repr=False)
    target: str | None = None

    @property
    def executable(self) -> bool:
        return self.source is not None and bool(self.mode & stat.S_IXUSR)

    def read(self, limit: int = UNPACKED_LIMIT) -> bytes:
        """A file's content, b"" for anything else. Raises TaskError."""
        if isinstance(self.source, bytes):
            return self.source
        return b"" if self.source is None else read_file(self.source, limit)


@dataclass(frozen=True, eq=False)
class Pack:
    """What is packed: `sha256` of what the agent sees, `size` in bytes of what is sent."""

    entries: tuple[Entry, ...]
    sha256: str
    size: int
    warnings: tuple[str, ...] = ()

    @classmethod
    def of_folder(cls, folder: Path) -> Pack | None:
        """All that is in `folder` but junk; None when there is nothing. Raises TaskError for what can't be sent."""
        if not exists(folder):
            return None
        mode = folder.lstat().st_mode
        if not stat.S_ISDIR(mode):
            raise TaskError(f"{folder}: is {kind(mode)}; it must be a folder with the files for /workspace")
        entries = tuple(sorted(_walk(folder), key=lambda entry: entry.path))
        return cls._packed(entries, str(folder)) if entries else None

    @classmethod
    def of_files(cls, files: Sequence[InputFile]) -> Pack:
        """Files made in code, readable for all."""
        entries = tuple(Entry(file.path, 0o644, file.source) for file in sorted(files, key=lambda file: file.path))
        return cls._packed(entries, "files")

    @classmethod
    def _packed(cls, entries: tuple[Entry, ...], where: str) -> Pack:
        for entry in entries:
            if entry.path.startswith(PART):
                raise TaskError(f"{where}/{entry.path}: names that begin with {PART} are taken; rename it")
        concerned: dict[str, list[str]] = {}
        digest, data = _archive(entries, where, concerned)
        warnings = tuple(f"{where}: {listed(paths, 3)}: {concern}" for concern, paths in concerned.items())
        return cls(entries, digest, len(data), warnings)

    def parts(self) -> tuple[InputFile, ...]:
        """The archive as files of a Session. Raises TaskError if something changed since the task was loaded."""
        return _parts(self)


@lru_cache(maxsize=4)
def _parts(pack: Pack) -> tuple[InputFile, ...]:
    """The samples of a task follow each other: the last few archives are kept."""
    digest, data = _archive(pack.entries, "files", {})
    if digest != pack.sha256:
        raise TaskError("the packed files changed since the task was collected; run again")
    cuts = range(0, len(data), FILE_LIMIT)
    return tuple(InputFile.of(f"{PART}{number}", data[at : at + FILE_LIMIT]) for number, at in enumerate(cuts))


def _walk(root: Path) -> Iterator[Entry]:
    pending = [(os.fsencode(root), "")]
    while pending:
        location, prefix = pending.pop()
        for found, status in scan(location):
            if is_junk(found.name):
                continue
            path = prefix + decoded(found.name, root / prefix)
            source, mode = Path(os.fsdecode(found.path)), stat.S_IMODE(status.st_mode) & 0o777
            if stat.S_ISDIR(status.st_mode):
                _check_path(root, path, is_folder=True)
                pending.append((found.path, f"{path}/"))
                yield Entry(path, mode)
                continue
            _check_path(root, path)
            if stat.S_ISLNK(status.st_mode):
                yield Entry(path, 0o777, target=_inner_target(root, path, found.path))
            elif stat.S_ISREG(status.st_mode):
                yield Entry(path, mode, source)
            else:
                raise TaskError(f"{root / path}: is {kind(status.st_mode)}; {remedy(status.st_mode)}")


def _check_path(root: Path, path: str, *, is_folder: bool = False) -> None:
    if (problem := input_path_problem(path)) and not (is_folder and path == "outputs"):
        raise TaskError(f"{root}/{path!r}: {problem}")


def _inner_target(root: Path, path: str, link: bytes) -> str:
    """Where a link points, if that is inside of `root`, taken as written and with every link on the way followed."""
    target = os.readlink(link)  # noqa: PTH115 - bytes: nothing depends on the locale
    written = decoded(target, root / path)
    lexical = os.path.normpath(os.path.join(os.path.dirname(path), written))  # noqa: PTH118, PTH120 - `..` counts
    inside = not written.startswith("/") and lexical.split("/")[0] != ".."
    real_root = os.path.realpath(os.fsencode(root))
    if not inside or not (os.path.realpath(link) + b"/").startswith(real_root + b"/"):
        problem = "is a symbolic link that leads out of files/; put a copy of what it points to in its place"
        raise TaskError(f"{root / path}: {problem}")
    return written


def _archive(entries: Iterable[Entry], where: str, concerned: dict[str, list[str]]) -> tuple[str, bytes]:
    """The digest of what the agent sees and the gzipped tar. Raises TaskError over a limit, which is named."""
    sink, digest, left = io.BytesIO(), hashlib.sha256(), UNPACKED_LIMIT
    with (
        gzip.GzipFile(filename="", fileobj=sink, mode="wb", compresslevel=6, mtime=0) as packer,
        tarfile.open(fileobj=packer, mode="w", format=tarfile.GNU_FORMAT, encoding="utf-8") as tar,
    ):
        for entry in entries:
            content = entry.read(left)
            left -= len(content)
            for concern in content_concerns(content):
                concerned.setdefault(concern, []).append(entry.path)
            tar.addfile(_header(entry, len(content)), io.BytesIO(content))
            for part in (_kind_of(entry), entry.path, entry.target or "", hashlib.sha256(content).hexdigest()):
                digest.update(part.encode() + b"\0")
            _check_size(sink.tell(), where)
    _check_size(sink.tell(), where)
    return digest.hexdigest(), sink.getvalue()


def _check_size(size: int, where: str) -> None:
    if size > TOTAL_LIMIT:
        raise TaskError(
            f"{where}: more than {mib(TOTAL_LIMIT)} even when compressed, which is all that a Session takes; remove "
            "what the agent does not need, or fetch it in setup_commands"
        )


def _kind_of(entry: Entry) -> str:
    if entry.target is not None:
        return "link"
    if entry.source is None:
        return "folder"
    return "program" if entry.executable else "file"


def _header(entry: Entry, size: int) -> tarfile.TarInfo:
    header = tarfile.TarInfo(entry.path)
    header.mode, header.mtime, header.size = entry.mode, _TIME, size
    if entry.target is not None:
        header.type, header.linkname = tarfile.SYMTYPE, entry.target
    elif entry.source is None:
        header.type = tarfile.DIRTYPE
    return header


# Files that are the expected answer

_FACTOR: Final = 8
"""How many times longer than without white space and escapes a JSON text may be; indented lists of digits are."""
_MARGIN: Final = 1024


def answer_copies(
    expected: Mapping[str, Any], files: Sequence[InputFile], packed: Pack | None, folder: Path | None
) -> Iterator[str]:
    """The paths of files that equal the expected answer, as bytes or as JSON. `folder` is that of the task."""
    entries: list[InputFile | Entry] = [*files, *(packed.entries if packed is not None else ())]
    if not entries:
        return
    limit = _MARGIN + _FACTOR * len(json.dumps(expected, separators=(",", ":")))
    if folder is not None and exists(own := folder / "expected.json"):
        limit = max(limit, own.stat().st_size)
    for entry in entries:
        if entry.source is None or _size(entry) > limit:
            continue
        content = entry.source if isinstance(entry.source, bytes) else read_file(entry.source, limit)
        if content.removeprefix(b"\xef\xbb\xbf").lstrip()[:1] == b"{" and _is(content, expected):
            yield entry.path


def _size(entry: InputFile | Entry) -> int:
    if isinstance(entry, InputFile):
        return entry.size
    return entry.source.lstat().st_size if isinstance(entry.source, Path) else len(entry.source or b"")


def _is(content: bytes, expected: Mapping[str, Any]) -> bool:
    try:
        return _same(parse_json(content), expected)
    except InvalidJSON:
        return False


def _same(one: Any, other: Any) -> bool:
    """Whether two JSON values are equal; 7 and 7.0 are, 1 and true are not."""
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        return one.keys() == other.keys() and all(_same(one[key], other[key]) for key in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(_same, one, other))
    return isinstance(one, bool) == isinstance(other, bool) and bool(one == other)
