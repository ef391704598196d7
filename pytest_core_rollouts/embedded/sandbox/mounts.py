"""Which files of the host a sandbox shows and never shows: computed and checked in this module only.

Two kinds of places are hidden. A part of a *hidden* one (the root directory, the working directory) may be shown if the
user names it as a mount. No part of a *private* one (tasks, results, captures, keys) is ever shown.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pytest_core_rollouts.embedded.hidden import PROGRAM_FOLDERS, holds_programs

_SOURCES: Final = ("/usr/src", "/usr/local/src")
"""Where Docker images put projects. No program needs them."""
_KEYS_AT_HOME: Final = (
    *(".ssh", ".gnupg", ".aws", ".azure", ".kube", ".config/gcloud", ".config/gh", ".docker/config.json"),
    *(".codex/auth.json", ".claude/.credentials.json", ".claude.json", ".cache/huggingface/token"),
    *(".netrc", ".git-credentials", ".npmrc", ".pypirc", ".pgpass"),
)
_KEYS: Final = ("/etc/shadow", "/etc/gshadow", "/etc/ssh", "/etc/ssl/private", "/etc/pki/tls/private", "/run/secrets")


class MountRefused(Exception):
    """A path that a sandbox should show must stay hidden, or can't be hidden; str: which path, and what to do."""


@dataclass(frozen=True)
class Hidden:
    """Real paths that no sandbox may show, with every other name that bind mounts give them."""

    places: frozenset[str]
    private: frozenset[str]
    """Those of `places` that may not be shown even in part."""

    @classmethod
    def find(cls, hidden: Iterable[Path], private: Iterable[Path], shown: Collection[str]) -> Hidden:
        """Resolve the paths. `shown`: real paths of the folders with programs.

        A path below one of `shown` that does not exist yet may be created later, so the nearest existing folder above
        it is hidden. Elsewhere a path that does not exist is ignored.
        """
        always = [Path(path) for path in _SOURCES if Path(path).exists()]
        secret = {*real_names([*private, *_keys()], shown)}
        return cls(frozenset({*real_names([*hidden, *always], shown), *secret}), frozenset(secret))

    def check(self, binds: Iterable[tuple[Path, str]], allowed: Path | None = None) -> list[tuple[str, str]]:
        """Return the binds with their real sources. What is in `allowed` is not checked. Raises MountRefused."""
        checked = []
        for source, target in binds:
            real = os.path.realpath(source)
            if allowed is None or not is_under(real, str(allowed)):
                self._check(source, real)
            checked.append((real, target))
        return checked

    def around(self, targets: Iterable[str]) -> set[str]:
        """Return the hidden folders among the system's programs that hold these paths.

        An empty folder covers each, in which no path can be created to show something.
        """
        places = [place for place in self.places if is_under(place, "/usr") and not holds_programs(place)]
        found = ([place for place in places if place != target and is_under(target, place)] for target in targets)
        return {min(above, key=len) for above in found if above}

    def _check(self, source: Path, real: str) -> None:
        for place in sorted(self.private):
            if is_under(real, place):
                raise MountRefused(
                    f"{source}: a sandbox can't show it, because it lies in {place}, among tasks, results, captures "
                    "or keys; move it out of there"
                )
        for place in sorted(self.places):
            if is_under(place, real):
                raise MountRefused(
                    f"{source}: a sandbox can't show it, because it holds {place}, which must stay hidden; "
                    "name a smaller folder"
                )


@dataclass(frozen=True)
class Root:
    """A folder like /usr: programs are in its `bin`. `source` is a real path, `target` is where a sandbox shows it."""

    source: str
    target: str


def show_programs(
    roots: Sequence[Root], others: Sequence[str], hidden: Hidden, blank: tuple[Path, Path]
) -> tuple[str, ...]:
    """Return bwrap's options that show the roots and other host paths, and cover hidden places.

    Of a root that is hidden or in a hidden place, only the program folders are shown. `blank`: an empty file and an
    empty folder. Raises MountRefused if a hidden place is a folder of programs.
    """
    for folder in _program_folders(roots, others):
        refuse_hidden(folder, hidden)
    binds: list[tuple[str, str]] = []
    options: list[str] = []
    emptied: dict[str, str] = {}
    """Hidden places that hold a root and are in another root that is shown, and where they would show."""
    for root in roots:
        within = next((bind for bind in binds if is_under(root.source, bind[0])), None)
        around = min((place for place in hidden.places if is_under(root.source, place)), key=len, default=None)
        if around is None:
            if within is None:
                _bind(root.source, root.target, binds, options)
            continue
        if within is not None and around not in emptied:
            emptied[around] = _moved(around, *within)
            options += ("--tmpfs", emptied[around])
        for name in PROGRAM_FOLDERS:
            _bind(f"{root.source}/{name}", f"{root.target}/{name}", binds, options)
    for path in others:
        options += ("--ro-bind", path, path)
        binds.append((path, path))
    for mask, path in find_masks(binds, hidden.places - emptied.keys()).items():
        options += ("--ro-bind", str(blank[Path(path).is_dir()]), mask)
    for folder in emptied.values():
        options += ("--remount-ro", folder)
    return tuple(options)


def refuse_hidden(folder: str, hidden: Hidden) -> None:
    """Raises MountRefused if the folder, whose programs sandboxes need, must be hidden itself."""
    if folder in hidden.places:
        raise MountRefused(
            f"{folder}: it must be hidden from sandboxes, but they need the programs in it; "
            "move the project, its tasks and its results to another folder"
        )


def _bind(source: str, target: str, binds: list[tuple[str, str]], options: list[str]) -> None:
    """Add options that show a link as a link, and a folder or file read-only. A missing path is skipped."""
    path = Path(source)
    if path.is_symlink():
        options += ("--symlink", str(path.readlink()), target)
    elif path.exists():
        options += ("--ro-bind", source, target)
        binds.append((source, target))


def _program_folders(roots: Sequence[Root], others: Sequence[str]) -> list[str]:
    """List the folders that can't be hidden."""
    folders = [f"{root.source}/{name}" for root in roots for name in PROGRAM_FOLDERS]
    return [os.path.realpath(path) for path in (*folders, *others)]


def find_masks(binds: Sequence[tuple[str, str]], hidden: Iterable[str]) -> dict[str, str]:
    """Map where hidden places would show in the sandbox (only the outermost) to their real paths."""
    masks: dict[str, str] = {}
    for source, target in binds:
        real = os.path.realpath(source)
        for path in hidden:
            if path != real and is_under(path, real):
                masks[_moved(path, real, target)] = path
    return {mask: masks[mask] for mask in sorted(masks) if not any(str(above) in masks for above in Path(mask).parents)}


def real_names(paths: Iterable[Path], shown: Collection[str] = ()) -> set[str]:
    """Return the paths' real names, and the names that bind mounts give them. See `Hidden.find` for `shown`."""
    mounts = list(_mounts())
    names: set[str] = set()
    for path in {found for path in paths if (found := _existing(path, shown)) is not None}:
        names.add(path)
        if path == "/":
            continue
        holders = [mount for mount in mounts if is_under(path, mount.point)]
        if not holders:
            continue
        holder = max(holders, key=lambda mount: len(mount.point))
        inside = _moved(path, holder.point, holder.root)
        for mount in mounts:
            if mount.device == holder.device and is_under(inside, mount.root):
                names.add(_moved(inside, mount.root, mount.point))
            elif mount.device == holder.device and is_under(mount.root, inside):
                names.add(mount.point)
    return names


def _existing(path: Path, shown: Collection[str]) -> str | None:
    """Return the real path. If it does not exist: the nearest existing folder above it if sandboxes see it, or None."""
    real = os.path.realpath(path)
    if os.path.lexists(real):
        return real
    if not any(is_under(real, place) for place in shown):
        return None
    return next(str(above) for above in Path(real).parents if os.path.lexists(above))


def _keys() -> Iterator[Path]:
    """Yield the usual places of keys that exist on this machine."""
    home = Path(os.path.expanduser("~"))  # noqa: PTH111  (Path.home raises if there is no home)
    paths = (*(home / name for name in _KEYS_AT_HOME), *map(Path, _KEYS))
    return (path for path in paths if os.path.lexists(path))


@dataclass(frozen=True)
class _Mount:
    device: str
    root: str  # the part of the file system that is mounted
    point: str


def _mounts() -> Iterator[_Mount]:
    for line in Path("/proc/self/mountinfo").read_text(errors="surrogateescape").splitlines():
        _, _, device, root, point = line.split(" ")[:5]
        yield _Mount(device, _unescape(root), _unescape(point))


def _unescape(text: str) -> str:
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), text)


def is_under(path: str, folder: str) -> bool:
    """Return True if the path is the folder or in it."""
    return path == folder or path.startswith(folder.rstrip("/") + "/")


def _moved(path: str, folder: str, target: str) -> str:
    """Return the path with `folder`, which it is under, replaced by `target`."""
    rest = path[len(folder.rstrip("/")) :]
    return (target.rstrip("/") + rest) or "/"
