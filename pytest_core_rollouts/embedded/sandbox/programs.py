"""The programs that a sandbox sees: the system's, the running Python, and the few files under /etc that they need."""

from __future__ import annotations

import os
import shutil
import stat
import sys
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from .mounts import Hidden, Root, is_under, refuse_hidden, show_programs

_ETC = {
    "passwd": "root:x:0:0:root:/:/usr/sbin/nologin\nagent:x:1000:1000:agent:/home/agent:/bin/bash\n",
    "group": "root:x:0:\nagent:x:1000:\n",
    "hosts": "127.0.0.1 localhost sandbox\n::1 localhost\n",
    "nsswitch.conf": "passwd: files\ngroup: files\nhosts: files\n",
}
# Files of the host under /etc without secrets: certificates, and those of the loader and of update-alternatives.
_ETC_SHOWN = (
    "/etc/alternatives",
    "/etc/ld.so.cache",
    "/etc/ssl/certs",
    "/etc/ssl/openssl.cnf",
    "/etc/pki/tls/certs",
    "/etc/pki/ca-trust/extracted",
)
_SANDBOX_PLACES = ("/workspace", "/home/agent", "/tmp", "/run", "/proc", "/dev", "/etc", "/sys")
_USR_LINKS = ("bin", "sbin", "lib", "lib32", "lib64", "libx32")
_PACKAGES = ("site-packages", "dist-packages")
_UNSHARED = {*_PACKAGES, "test", "idlelib", "ensurepip", "lib2to3", "turtledemo"}


@dataclass(frozen=True)
class Programs:
    """bwrap's options that show the programs, the `PATH` that finds them, and the hidden places."""

    options: tuple[str, ...]
    path: str
    hidden: Hidden


def find_programs(folder: Path, *, hidden: Sequence[Path], private: Sequence[Path], unprivileged: bool) -> Programs:
    """Choose which programs to show. `folder`: where files can be created. Raises MountRefused.

    `unprivileged`: sandboxes run under another uid than this process.
    """
    prefix = os.path.realpath(sys.base_prefix)
    python = Root(prefix, prefix)
    roots = _system_roots()
    found = find_hidden(hidden, private)
    search = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
    if not is_under(prefix, "/usr"):
        if any(is_under(prefix, place) for place in _SANDBOX_PLACES):
            python = Root(prefix, "/opt/python")
        if unprivileged and not is_reachable(Path(prefix)):
            copy = _copy_python(Path(prefix), folder / "python", found)
            python = Root(os.path.realpath(copy), python.target)
        search = f"{python.target}/bin:{search}"
    if python not in roots:
        roots.append(python)
    tops = [Path("/", name) for name in _USR_LINKS]
    links = [part for top in tops if top.is_symlink() for part in ("--symlink", str(top.readlink()), str(top))]
    others = [str(top) for top in tops if top.is_dir() and not top.is_symlink()]
    others += [path for path in _ETC_SHOWN if Path(path).exists()]
    shown = show_programs(roots, others, found, _blank(folder))
    _write_etc(folder / "etc")
    own = [part for name in _ETC for part in ("--ro-bind", str(folder / "etc" / name), f"/etc/{name}")]
    return Programs((*shown, *links, *own), search, found)


def find_hidden(hidden: Iterable[Path], private: Iterable[Path]) -> Hidden:
    """Return what no sandbox may show: these places and those that are always hidden."""
    shown = [os.path.realpath(sys.base_prefix), *(root.source for root in _system_roots())]
    return Hidden.find([*hidden, *own_packages()], private, shown)


def _system_roots() -> list[Root]:
    return [Root(path, path) for path in ("/usr", "/usr/local") if os.path.realpath(path) == path]


def own_packages() -> list[Path]:
    """List the folders of packages of the running Python, among them those of the project: no agent needs them."""
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    found = [
        Path(prefix, library, name, packages)
        for prefix in {sys.prefix, sys.exec_prefix, sys.base_prefix, sys.base_exec_prefix}
        for library in ("lib", "lib64", "local/lib")
        for name in (version, "python3")
        for packages in _PACKAGES
    ]
    found += [
        path for path in map(Path, sys.path) if path.name in _PACKAGES
    ]  # also that of the user, and those of .pth files
    return [path for path in dict.fromkeys(found) if path.is_dir()]


def is_reachable(path: Path) -> bool:
    """Return True if any user may enter the folder and all folders above it."""
    return all(folder.stat().st_mode & stat.S_IXOTH for folder in (path, *path.parents))


def _blank(folder: Path) -> tuple[Path, Path]:
    """Create an empty file and an empty folder that any user may read, whatever the umask is."""
    nothing, empty = folder / "nothing", folder / "empty"
    nothing.touch()
    nothing.chmod(0o444)
    empty.mkdir(exist_ok=True)
    empty.chmod(0o555)
    return nothing, empty


def _write_etc(folder: Path) -> None:
    folder.mkdir()
    folder.chmod(0o755)  # the umask restricts the mode of mkdir, and the sandbox's uid must pass
    for name, text in _ETC.items():
        file = folder / name
        file.write_text(text)
        file.chmod(0o644)


def _copy_python(prefix: Path, folder: Path, hidden: Hidden) -> Path:
    """Copy the interpreter and its standard library, for a prefix in a folder that others can't enter (root's home).

    It makes hard links if the file system and the file's mode allow it, so this takes tens of milliseconds. Raises
    MountRefused if the standard library itself must be hidden.
    """
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    for needed in (prefix / "bin", prefix / "lib", prefix / "lib" / version):
        refuse_hidden(os.path.realpath(needed), hidden)
    executable = Path(sys._base_executable).resolve()  # type: ignore[attr-defined]
    (folder / "bin").mkdir(parents=True)
    _share(executable, folder / "bin" / version)
    for name in ("python3", "python"):
        (folder / "bin" / name).symlink_to(version)
    library = prefix / "lib" / version
    left_out = {*_UNSHARED, *(path.name for path in library.glob("config-*"))}
    _share_tree(library, folder / "lib" / version, left_out, hidden.places)
    for shared in (prefix / "lib").glob("*.so*"):
        _share(shared, folder / "lib" / shared.name)
    for parent, folders, _ in os.walk(folder):
        for name in (".", *folders):
            os.chmod(os.path.join(parent, name), 0o755)  # noqa: PTH101, PTH118
    return folder


def share(source: Path, target: Path) -> None:
    """Copy the file or folder `source` to `target`, where any user may read and run it."""
    target.parent.mkdir(parents=True, exist_ok=True)
    if source.is_dir():
        _share_tree(source, target)
        for parent, folders, _ in os.walk(target):
            for name in (".", *folders):
                os.chmod(os.path.join(parent, name), 0o755)  # noqa: PTH101, PTH118
    else:
        _share(source, target)


def _share_tree(
    source: Path, target: Path, left_out: Collection[str] = (), hidden: Collection[str] = frozenset()
) -> None:
    target.mkdir(parents=True)
    with os.scandir(source) as entries:
        for entry in entries:
            if entry.name in left_out or entry.path in hidden:
                continue
            if entry.is_dir(follow_symlinks=False):
                _share_tree(Path(entry.path), target / entry.name, left_out, hidden)
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
            pass  # another file system, or too many links: copy
        else:
            return
    shutil.copy2(source, target)
    mode = target.stat().st_mode
    target.chmod(mode | 0o444 | (0o111 if mode & stat.S_IXUSR else 0))
