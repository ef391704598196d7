"""What of the host a sandbox sees: programs, read-only, with everything private masked."""

from __future__ import annotations

import os
import re
import shutil
import stat
import sys
import sysconfig
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

_ETC = {
    "passwd": "root:x:0:0:root:/:/usr/sbin/nologin\nagent:x:1000:1000:agent:/home/agent:/bin/bash\n",
    "group": "root:x:0:\nagent:x:1000:\n",
    "hosts": "127.0.0.1 localhost sandbox\n::1 localhost\n",
    "nsswitch.conf": "passwd: files\ngroup: files\nhosts: files\n",
}
# Host files under /etc without secrets: certificates, and where the loader and the alternatives system look.
_ETC_SHOWN = (
    "/etc/alternatives",
    "/etc/ld.so.cache",
    "/etc/ssl/certs",
    "/etc/ssl/openssl.cnf",
    "/etc/pki/tls/certs",
    "/etc/pki/ca-trust/extracted",
)
_OWN_PLACES = ("/workspace", "/home/agent", "/tmp", "/run", "/proc", "/dev", "/etc", "/sys")
_USR_LINKS = ("bin", "sbin", "lib", "lib32", "lib64", "libx32")
_UNSHARED = {"site-packages", "dist-packages", "test", "idlelib", "ensurepip", "lib2to3", "turtledemo"}


class ProgramsHidden(Exception):
    """A path to hide holds the programs a sandbox needs; str: which, and what to do."""


@dataclass(frozen=True)
class Programs:
    """bwrap's options that show the programs, and the `PATH` that finds them."""

    options: tuple[str, ...]
    path: str


def find_programs(folder: Path, *, hidden: Sequence[Path], unprivileged: bool) -> Programs:
    """Choose what to show. `folder`: ours, for files made here; `unprivileged`: the sandbox's uid is not ours.

    Raises ProgramsHidden.
    """
    binds = [("/usr", "/usr")]
    options: list[str] = []
    for name in _USR_LINKS:
        top = Path("/", name)
        if top.is_symlink():
            options += ["--symlink", str(top.readlink()), str(top)]
        elif top.is_dir():
            binds.append((str(top), str(top)))
    binds += [(path, path) for path in _ETC_SHOWN if Path(path).exists()]

    search = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
    extra_hidden: list[Path] = []
    prefix = Path(os.path.realpath(sys.base_prefix))
    if not _is_under(str(prefix), "/usr"):
        target = "/opt/python" if any(_is_under(str(prefix), place) for place in _OWN_PLACES) else str(prefix)
        source = prefix
        if unprivileged and not is_reachable(prefix):
            source = _copy_python(prefix, folder / "python", {os.path.realpath(path) for path in hidden})
        else:
            extra_hidden.append(Path(sysconfig.get_path("purelib", vars={"base": str(prefix)})))
        binds.append((str(source), target))
        search = f"{target}/bin:{search}"

    masks = find_masks(binds, [*hidden, *extra_hidden])
    bound = [part for source, target in binds for part in ("--ro-bind", source, target)]
    own = [part for name in _ETC for part in ("--ro-bind", str(folder / "etc" / name), f"/etc/{name}")]
    _write_etc(folder / "etc")
    return Programs((*bound, *options, *own, *_mask_options(masks, folder)), search)


def is_reachable(path: Path) -> bool:
    """Whether any user may enter the folder and all folders above it."""
    return all(folder.stat().st_mode & stat.S_IXOTH for folder in (path, *path.parents))


def find_masks(binds: Sequence[tuple[str, str]], hidden: Iterable[Path]) -> dict[str, str]:
    """Where, inside, hidden paths would show (the outermost alone), and which they are. Raises ProgramsHidden."""
    masks: dict[str, str] = {}
    for path in _all_names(hidden):
        for source, target in binds:
            real = os.path.realpath(source)
            if path == real:
                raise ProgramsHidden(
                    f"{path} is to be hidden from sandboxes, but they need its programs; keep the project elsewhere"
                )
            if _is_under(path, real):
                masks[_moved(path, real, target)] = path
    return {
        mask: masks[mask]
        for mask in sorted(masks)
        if not any(mask != other and _is_under(mask, other) for other in masks)
    }


def _mask_options(masks: Mapping[str, str], folder: Path) -> Iterator[str]:
    nothing = folder / "nothing"
    nothing.touch(mode=0o444)
    (folder / "empty").mkdir(mode=0o555, exist_ok=True)
    for mask, path in masks.items():
        yield from ("--ro-bind", str(folder / "empty" if Path(path).is_dir() else nothing), mask)


def _all_names(paths: Iterable[Path]) -> set[str]:
    """Real paths of those that exist, and where bind mounts show the same files once more."""
    mounts = list(_mounts())
    names: set[str] = set()
    for path in {os.path.realpath(path) for path in paths if Path(path).exists()}:
        names.add(path)
        if path == "/":
            continue
        holders = [mount for mount in mounts if _is_under(path, mount.point)]
        if not holders:
            continue
        holder = max(holders, key=lambda mount: len(mount.point))
        inside = _moved(path, holder.point, holder.root)
        for mount in mounts:
            if mount.device == holder.device and _is_under(inside, mount.root):
                names.add(_moved(inside, mount.root, mount.point))
            elif mount.device == holder.device and _is_under(mount.root, inside):
                names.add(mount.point)
    return names


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


def _is_under(path: str, folder: str) -> bool:
    return path == folder or path.startswith(folder.rstrip("/") + "/")


def _moved(path: str, folder: str, target: str) -> str:
    """The path's name when `folder`, which it is under, goes by the name `target`."""
    rest = path[len(folder.rstrip("/")) :]
    return (target.rstrip("/") + rest) or "/"


def _write_etc(folder: Path) -> None:
    folder.mkdir(mode=0o755)
    for name, text in _ETC.items():
        file = folder / name
        file.write_text(text)
        file.chmod(0o644)


def _copy_python(prefix: Path, folder: Path, hidden: set[str]) -> Path:
    """The interpreter and its standard library, for a prefix below a folder closed to others (root's home).

    Hard links where the file system and the file's mode allow it, so this takes tens of milliseconds.
    """
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    executable = Path(sys._base_executable).resolve()  # type: ignore[attr-defined]
    (folder / "bin").mkdir(parents=True)
    _share(executable, folder / "bin" / version)
    for name in ("python3", "python"):
        (folder / "bin" / name).symlink_to(version)
    _share_tree(prefix / "lib" / version, folder / "lib" / version, hidden)
    for library in (prefix / "lib").glob("*.so*"):
        _share(library, folder / "lib" / library.name)
    for parent, folders, _ in os.walk(folder):
        for name in (".", *folders):
            os.chmod(os.path.join(parent, name), 0o755)  # noqa: PTH101, PTH118
    return folder


def share(source: Path, target: Path) -> None:
    """The file or folder `source` once more at `target`, where any user may read and run it."""
    target.parent.mkdir(parents=True, exist_ok=True)
    if source.is_dir():
        _share_tree(source, target, set())
        for parent, folders, _ in os.walk(target):
            for name in (".", *folders):
                os.chmod(os.path.join(parent, name), 0o755)  # noqa: PTH101, PTH118
    else:
        _share(source, target)


def _share_tree(source: Path, target: Path, hidden: set[str]) -> None:
    target.mkdir(parents=True)
    with os.scandir(source) as entries:
        for entry in entries:
            if entry.name in _UNSHARED or entry.name.startswith("config-") or entry.path in hidden:
                continue
            if entry.is_dir(follow_symlinks=False):
                _share_tree(Path(entry.path), target / entry.name, hidden)
            else:
                _share(Path(entry.path), target / entry.name)


def _share(source: Path, target: Path) -> None:
    if source.is_symlink():
        target.symlink_to(source.readlink())
        return
    mode = source.stat().st_mode
    if mode & stat.S_IROTH and (mode & stat.S_IXOTH or not mode & stat.S_IXUSR):
        try:
            os.link(source, target)
        except OSError:
            pass  # another file system, or a link limit: copy
        else:
            return
    shutil.copy2(source, target)
    mode = target.stat().st_mode
    target.chmod(mode | 0o444 | (0o111 if mode & stat.S_IXUSR else 0))
