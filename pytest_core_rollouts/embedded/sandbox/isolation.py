"""How a sandbox is made on this machine: which bwrap, under which uid, with which view of the host."""

from __future__ import annotations

import contextlib
import grp
import os
import pwd
import random
import secrets
import stat
import subprocess
import sys
import tempfile
import threading
import weakref
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from .bubblewrap import Bubblewrap, SandboxUnavailable, find_bwraps, find_tool, remedy
from .cgroups import CgroupParent, CgroupUnusable
from .files import remove_tree
from .limits import MIB, Limits
from .mounts import MountRefused
from .namespaces import NamespaceHelper
from .programs import Programs, find_programs, is_reachable, share
from .seccomp import filter_program
from .watch import Watcher

INSIDE_UID = 1000
TMP_BYTES = 256 * MIB
SHM_BYTES = 64 * MIB
SPAWNERS = 4
# What /proc tells of the host in spite of namespaces.
_PROC_OF_THE_HOST = [path for path in ("/proc/keys", "/proc/sched_debug", "/proc/timer_list") if Path(path).exists()]


@dataclass(frozen=True)
class Options:
    """Open files for bwrap, for one start: its arguments, and the system calls to refuse."""

    arguments: int
    seccomp: int | None

    @property
    def fds(self) -> tuple[int, ...]:
        return (self.arguments,) if self.seccomp is None else (self.arguments, self.seccomp)


class Isolation:
    """Found once by `probe`; makes the command lines of all sandboxes and holds what they share.

    `folder` is private to this process and removed by `close` (at the latest when the interpreter ends); `sessions`
    in it is where Sessions' folders belong. `uid` owns what is in sandboxes: a free one when we are root, else ours.
    """

    def __init__(
        self, bubblewrap: Bubblewrap, programs: Programs, folder: Path, uid: int, tools: Mapping[str, str]
    ) -> None:
        self.cgroups = CgroupParent.find()
        self.bubblewrap = bubblewrap
        self.folder = folder
        self.uid = uid
        self.sessions = folder / "sessions"
        self.drops_uid = uid != os.geteuid()
        self._programs = programs
        self._tools = tools
        # A sandbox dies with the thread that started it (PR_SET_PDEATHSIG), so these threads live as long as we do.
        self.spawner = ThreadPoolExecutor(SPAWNERS, thread_name_prefix="sandbox-spawner")
        self.namespaces = NamespaceHelper()
        self.watcher = Watcher(self.namespaces)
        setpriv = [tools["setpriv"], f"--reuid={uid}", f"--regid={uid}", "--clear-groups", "--"]
        self.drop = setpriv if self.drops_uid else []  # before a command, to run it under `uid`
        self.token = f"sandbox-{secrets.token_hex(8)}"  # on the command line of every sandbox
        self._seccomp = filter_program()
        self._guard = _Guard(self.token, self.drop)
        self._shared: dict[Path, Path] = {}
        self._sharing = threading.Lock()
        self._cleanup = weakref.finalize(self, remove_tree, folder)

    @classmethod
    def probe(
        cls, *, hidden: Sequence[Path] = (), private: Sequence[Path] = (), scratch: Path | None = None
    ) -> Isolation:
        """Make one real sandbox with each bwrap there is, the system's first, and keep the first that works.

        `hidden`: paths whose content no sandbox may see, except a part that is bound into a run on purpose.
        `private`: paths of which not even that is allowed. `scratch`: a private folder to make our own in, instead of a
        temporary one; as root it is opened to be passed through (mode 0711). Raises SandboxUnavailable.
        """
        if not sys.platform.startswith("linux"):
            raise SandboxUnavailable(
                f"sandboxes need Linux namespaces and this is {sys.platform}; give the URL of a Core on another machine"
            )
        uid = _choose_uid()
        folder = _make_folder(scratch, drops_uid=uid != os.geteuid())
        try:
            tools = {name: find_tool(name) for name in ("prlimit", "setpriv")}
            try:
                programs = find_programs(
                    folder, hidden=[*hidden, folder], private=private, unprivileged=uid != os.geteuid()
                )
            except MountRefused as error:
                raise SandboxUnavailable(str(error)) from None
            refusals: list[str] = []
            for file in find_bwraps(folder):
                isolation, refusal = cls._try(file, programs, folder, uid, tools)
                if isolation is not None:
                    return isolation
                refusals.append(f"{file}: {refusal}")
            raise SandboxUnavailable(remedy(refusals))
        except CgroupUnusable as error:
            remove_tree(folder)
            raise SandboxUnavailable(str(error)) from None
        except BaseException:
            remove_tree(folder)
            raise

    @classmethod
    def _try(
        cls, file: Path, programs: Programs, folder: Path, uid: int, tools: Mapping[str, str]
    ) -> tuple[Isolation | None, str]:
        try:
            usage = subprocess.run([file, "--help"], capture_output=True, text=True, timeout=10, errors="replace")
        except (OSError, subprocess.TimeoutExpired) as error:
            return None, str(error)
        bubblewrap = Bubblewrap(file, "--disable-userns" in usage.stdout + usage.stderr)
        isolation = cls(bubblewrap, programs, folder, uid, tools)
        refusal = isolation._refusal()
        if refusal is None:
            return isolation, ""
        isolation._cleanup.detach()
        isolation.close()
        return None, refusal

    def _refusal(self) -> str | None:
        """Run one sandbox; why it failed, or None."""
        session = self.sessions / "probe"
        self.make_session(session)
        script = "touch /workspace/x /home/agent/x /tmp/x && exec python3 -c 'import json, zlib'"
        try:
            with self.options(session, {}) as options:
                done = subprocess.run(
                    self.command(options, ["/bin/sh", "-c", script]),
                    cwd=self.bubblewrap.file.parent,
                    env={},
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT,
                    pass_fds=options.fds,
                    timeout=30,
                )
        except (OSError, subprocess.TimeoutExpired) as error:
            return str(error)
        finally:
            remove_tree(session)
        said = done.stdout.decode("utf-8", "replace").strip()
        return (said or f"exit status {done.returncode}") if done.returncode else None

    def make_session(self, session: Path) -> None:
        """Make the two folders that a sandbox sees. Raises ValueError where the sandbox's uid could not reach them."""
        session.mkdir(mode=0o711, exist_ok=True)
        if self.drops_uid:
            session.chmod(0o711)
            if not is_reachable(session):
                raise ValueError(
                    f"{session} lies below a folder closed to uid {self.uid}: make it in Isolation.sessions"
                )
        for name in ("home", "workspace"):
            (session / name).mkdir(mode=0o700)
            if self.drops_uid:
                os.chown(session / name, self.uid, self.uid)

    def reachable(self, path: Path) -> Path:
        """A program or a folder of programs, to be bound: `path`, or a copy where our uid alone can reach that one.

        Blocks; a copy (hard links, where the file system allows them) is made once.
        """
        path = path.resolve()
        readable = path.stat().st_mode & stat.S_IROTH
        if not self.drops_uid or (readable and is_reachable(path if path.is_dir() else path.parent)):
            return path
        with self._sharing:
            if path not in self._shared:
                copy = self.folder / "shared" / str(len(self._shared)) / path.name
                share(path, copy)
                for folder in (copy.parent, copy.parent.parent):
                    folder.chmod(0o711)
                self._shared[path] = copy
            return self._shared[path]

    def command(self, options: Options, argv: Sequence[str], *, status: int | None = None) -> list[str]:
        """The host's command line for `argv` in a sandbox; to be started in bwrap's folder.

        So bwrap needs no path that its uid might not reach, and shows none of the host's in the sandbox's /proc/1:
        everything else that names host paths comes through the file `options`.
        """
        report = [] if status is None else ["--json-status-fd", str(status)]
        refuse = [] if options.seccomp is None else ["--seccomp", str(options.seccomp)]
        bwrap = f"./{self.bubblewrap.file.name}"
        return [*self.drop, bwrap, *report, *refuse, "--args", str(options.arguments), "--", *argv]

    def limited(self, argv: Sequence[str], limits: Limits) -> list[str]:
        """`argv` under the limits; for use inside, where the kernel counts processes per sandbox (from 5.14 on).

        Before that it counts all of a user's processes together, so a limit would hit an ordinary user's desktop.
        """
        count = self.drops_uid or _kernel() >= (5, 14)
        return [self._tools["prlimit"], *limits.prlimit_options(count_processes=count), "--", *argv]

    @contextlib.contextmanager
    def options(
        self, session: Path, env: Mapping[str, str], binds: Sequence[tuple[Path, str]] = ()
    ) -> Iterator[Options]:
        """What bwrap reads from files.

        Raises ValueError for what cannot stand in an environment, MountRefused for a bind that shows a hidden place.
        """
        arguments = b"".join(os.fsencode(option) + b"\0" for option in self._options(session, env, binds))
        with contextlib.ExitStack() as stack:
            seccomp = None if self._seccomp is None else stack.enter_context(_file(self._seccomp))
            yield Options(stack.enter_context(_file(arguments)), seccomp)

    def _options(self, session: Path, env: Mapping[str, str], binds: Sequence[tuple[Path, str]]) -> Iterator[str]:
        yield from ("--unshare-user", "--unshare-all", "--uid", str(INSIDE_UID), "--gid", str(INSIDE_UID))
        if self.bubblewrap.disables_userns:
            yield "--disable-userns"
        yield from ("--cap-drop", "ALL", "--die-with-parent", "--new-session", "--clearenv", "--hostname", "sandbox")
        yield from self._programs.options
        yield from ("--proc", "/proc", "--dev", "/dev", "--size", str(SHM_BYTES), "--tmpfs", "/dev/shm")
        # Sysctls of a namespace can be written by its user, whose uid the sandbox has: they would lift our bounds.
        yield from ("--ro-bind", "/proc/sys", "/proc/sys")
        for path in _PROC_OF_THE_HOST:
            yield from ("--ro-bind", str(self.folder / "nothing"), path)
        yield from ("--perms", "1777", "--size", str(TMP_BYTES), "--tmpfs", "/tmp")
        yield from ("--dir", "/run")
        yield from ("--bind", str(session / "home"), "/home/agent", "--bind", str(session / "workspace"), "/workspace")
        for source, target in self._programs.hidden.check(binds, self.folder):
            yield from ("--ro-bind", source, target)
        yield from ("--remount-ro", "/", "--remount-ro", "/dev", "--chdir", "/workspace")
        own = {"HOME": "/home/agent", "USER": "agent", "LANG": "C.UTF-8", "PATH": self._programs.path}
        for name, value in {**own, **env}.items():
            if not name or "=" in name or "\0" in name + value:
                raise ValueError(f"not an environment variable: {name!r}")
            yield from ("--setenv", name, value)

    def close(self) -> None:
        """Let go of threads and files; sandboxes that still run end with the threads."""
        self.watcher.close()
        self.spawner.shutdown()
        self.namespaces.close()
        self._guard.close()
        self._cleanup()


@contextlib.contextmanager
def _file(data: bytes) -> Iterator[int]:
    fd = os.memfd_create("options")
    try:
        os.write(fd, data)
        os.lseek(fd, 0, os.SEEK_SET)
        yield fd
    finally:
        os.close(fd)


def _choose_uid() -> int:
    """A uid for the sandboxes: our own, or a free one when we are root.

    Root's own would do as well inside a user namespace whose root is an ordinary user outside.
    """
    if os.geteuid() != 0:
        return os.geteuid()
    maps = [[int(field) for field in line.split()] for line in Path("/proc/self/uid_map").read_text().splitlines()]
    if all(count == 1 and outside != 0 for _, outside, count in maps):
        return 0
    running = set(_running_uids())
    mapped = [uid for start, _, count in maps for uid in range(max(start, 50_000), min(start + count, 60_000))]
    free = (uid for uid in random.sample(mapped, len(mapped)) if uid not in running and not _has_name(uid))
    uid = next(free, None)
    if uid is None:
        raise SandboxUnavailable("root drops its uid for sandboxes, and none from 50000 to 59999 is mapped and free")
    return uid


def _has_name(number: int) -> bool:
    """Whether the number is some user's or group's, also one that only a directory service knows."""
    for look_up in (pwd.getpwuid, grp.getgrgid):
        with contextlib.suppress(KeyError):
            look_up(number)
            return True
    return False


def _running_uids() -> Iterator[int]:
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            yield process.stat().st_uid


def _make_folder(scratch: Path | None, *, drops_uid: bool) -> Path:
    """Our own folder: files in it can be executed, and the sandbox's uid can reach what is made for it."""
    mode = 0o711 if drops_uid else 0o700
    places = [scratch] if scratch else [Path(place) for place in (tempfile.gettempdir(), "/tmp", "/var/tmp")]
    for place in dict.fromkeys(path.resolve() for path in places):
        if scratch:
            place.chmod(mode)
        executable = place.is_dir() and os.access(place, os.W_OK) and not os.statvfs(place).f_flag & os.ST_NOEXEC
        if executable and (is_reachable(place) or not drops_uid):
            folder = place / "isolation" if scratch else Path(tempfile.mkdtemp(prefix=".core-rollouts-", dir=place))
            for made in (folder, folder / "sessions"):
                made.mkdir(exist_ok=made == folder and not scratch)
                made.chmod(mode)
            return folder
    tried = " nor ".join(str(place) for place in dict.fromkeys(places))
    raise SandboxUnavailable(
        f"{tried} does not suit sandboxes' files: set TMPDIR to a folder that is writable, not mounted noexec, "
        "and that other users may enter (chmod o+x on it and on all folders above it)"
    )


def _kernel() -> tuple[int, int]:
    major, minor = os.uname().release.split(".")[:2]
    return int(major), int("".join(digit for digit in minor if digit.isdigit()) or 0)


_GUARD_SCRIPT = """
read -r _
for round in 1 2 3 4 5; do
    for file in $(grep -lsF -e "$TOKEN" /proc/[0-9]*/cmdline); do
        process=${file#/proc/}
        kill -9 "${process%/cmdline}"
    done
    sleep 0.1
done
"""


class _Guard:
    """A shell that waits for our end and then kills what is left with `token` on its command line.

    bwrap's parts die with us, each tied to its parent, but between its first moments there are some microseconds in
    which its outer process is tied already and its child not yet: killed then, the outer one leaves a child that waits
    for it for ever. `prefix` makes the shell run under the sandboxes' uid, so that it can kill nothing else.
    """

    def __init__(self, token: str, prefix: Sequence[str] = ()) -> None:
        read_end, self._lifeline = os.pipe()
        try:
            self._shell = subprocess.Popen(
                [*prefix, "/bin/sh", "-c", _GUARD_SCRIPT],
                env={"TOKEN": token, "PATH": "/usr/bin:/bin"},
                stdin=read_end,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                cwd="/",
                start_new_session=True,  # not reached by Ctrl-C, nor by what kills our process group
            )
        finally:
            os.close(read_end)

    def close(self) -> None:
        """Dismiss it: nothing is left. Repeatable."""
        if self._shell.poll() is None:
            self._shell.kill()
            self._shell.wait()
        if self._lifeline >= 0:
            os.close(self._lifeline)
            self._lifeline = -1
