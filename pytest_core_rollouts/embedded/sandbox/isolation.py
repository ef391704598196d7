"""How this machine makes sandboxes: with which bwrap, under which uid, and what they see of the host."""

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

from pytest_core_rollouts.embedded.descriptors import open_standard_descriptors

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
# Files of /proc that show the host in spite of namespaces.
_PROC_OF_THE_HOST = [path for path in ("/proc/keys", "/proc/sched_debug", "/proc/timer_list") if Path(path).exists()]


@dataclass(frozen=True)
class Options:
    """Descriptors of the files that bwrap reads at one start: its arguments, and the seccomp filter."""

    arguments: int
    seccomp: int | None

    @property
    def fds(self) -> tuple[int, ...]:
        return (self.arguments,) if self.seccomp is None else (self.arguments, self.seccomp)


class Isolation:
    """Makes the command lines of all sandboxes and holds what they share. `probe` creates it, once.

    `folder` belongs to this process; `close` removes it, or the interpreter's exit does. `sessions` is where folders of
    Sessions belong. `uid` owns the files in sandboxes: an unused uid if this process is root, else this process's own.
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
        # A sandbox dies with the thread that started it (PR_SET_PDEATHSIG), so these threads are never ended.
        self.spawner = ThreadPoolExecutor(SPAWNERS, thread_name_prefix="sandbox-spawner")
        self.namespaces = NamespaceHelper()
        self.watcher = Watcher(self.namespaces)
        setpriv = [tools["setpriv"], f"--reuid={uid}", f"--regid={uid}", "--clear-groups", "--"]
        self.drop = setpriv if self.drops_uid else []  # prefix of a command that runs it under `uid`
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
        """Run a command in a sandbox with each bwrap that is installed, the system's first; keep the first that works.

        `hidden`: paths that no sandbox may see, except for parts that are passed to a run in `binds`. `private`: paths
        of which not even parts may be passed. `scratch`: a folder to create `folder` in, in place of a temporary one;
        if this process is root, it gets mode 0711, so that the sandboxes' uid can pass through it.
        Raises SandboxUnavailable.
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
        refusal = isolation._try_sandbox()
        if refusal is None:
            return isolation, ""
        isolation._cleanup.detach()
        isolation.close()
        return None, refusal

    def _try_sandbox(self) -> str | None:
        """Run one sandbox. Returns why it failed; None if it worked."""
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
        output = done.stdout.decode("utf-8", "replace").strip()
        return (output or f"exit status {done.returncode}") if done.returncode else None

    def make_session(self, session: Path) -> None:
        """Create the two folders that a sandbox sees. Raises ValueError if the sandbox's uid can't reach them."""
        session.mkdir(mode=0o711, exist_ok=True)
        if self.drops_uid:
            session.chmod(0o711)
            if not is_reachable(session):
                raise ValueError(
                    f"{session}: uid {self.uid} can't enter a folder above it; create it in Isolation.sessions"
                )
        for name in ("home", "workspace"):
            (session / name).mkdir(mode=0o700)
            if self.drops_uid:
                os.chown(session / name, self.uid, self.uid)

    def reachable(self, path: Path) -> Path:
        """Return `path`, a program or a folder of programs, or a copy that the sandboxes' uid can reach.

        Blocks. Each copy is made once, with hard links if the file system allows them. Raises MountRefused if a sandbox
        may not show it.
        """
        self._programs.hidden.check([(path, "")], self.folder)
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
        """Return the host's command line that runs `argv` in a sandbox. It has to be started in bwrap's folder.

        bwrap then needs no path that its uid may be unable to reach, and /proc/1 of the sandbox shows no path of the
        host: all other arguments that name host paths are in the file `options`.
        """
        report = [] if status is None else ["--json-status-fd", str(status)]
        refuse = [] if options.seccomp is None else ["--seccomp", str(options.seccomp)]
        bwrap = f"./{self.bubblewrap.file.name}"
        return [*self.drop, bwrap, *report, *refuse, "--args", str(options.arguments), "--", *argv]

    def with_limits(self, argv: Sequence[str], limits: Limits) -> list[str]:
        """Return `argv` under the limits, for use in the sandbox: there the kernel counts processes per sandbox.

        Kernels before 5.14 count all processes of the user, so a limit would apply to an ordinary user's desktop too.
        """
        count = self.drops_uid or _kernel() >= (5, 14)
        return [self._tools["prlimit"], *limits.prlimit_options(count_processes=count), "--", *argv]

    @contextlib.contextmanager
    def options(
        self, session: Path, env: Mapping[str, str], binds: Sequence[tuple[Path, str]] = ()
    ) -> Iterator[Options]:
        """Open the files that bwrap reads at one start.

        Raises ValueError if `env` has an invalid name or value, MountRefused if a bind would show a hidden place.
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
        shown = self._programs.hidden.check(binds, self.folder)
        emptied = self._programs.hidden.around(target for _, target in shown)
        yield from (part for folder in emptied for part in ("--tmpfs", folder))
        for source, target in shown:
            yield from ("--ro-bind", source, target)
        yield from (part for folder in emptied for part in ("--remount-ro", folder))
        yield from ("--remount-ro", "/", "--remount-ro", "/dev", "--chdir", "/workspace")
        own = {"HOME": "/home/agent", "USER": "agent", "LANG": "C.UTF-8", "PATH": self._programs.path}
        for name, value in {**own, **env}.items():
            if not name or "=" in name or "\0" in name + value:
                raise ValueError(f"invalid environment variable: {name!r}")
            yield from ("--setenv", name, value)

    def close(self) -> None:
        """End the threads and helpers, and remove the folder. Sandboxes that still run die with the threads."""
        self.watcher.close()
        self.spawner.shutdown()
        self.namespaces.close()
        self._guard.close()
        self._cleanup()


@contextlib.contextmanager
def _file(data: bytes) -> Iterator[int]:
    open_standard_descriptors()
    fd = os.memfd_create("options")
    try:
        os.write(fd, data)
        os.lseek(fd, 0, os.SEEK_SET)
        yield fd
    finally:
        os.close(fd)


def _choose_uid() -> int:
    """Return the uid for sandboxes: this process's own, or an unused one if it is root.

    In a user namespace whose root is an ordinary user outside, 0 is such a uid.
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
        raise SandboxUnavailable(
            "sandboxes of root need an unused uid from 50000 to 59999, and none is mapped; run as an ordinary user"
        )
    return uid


def _has_name(number: int) -> bool:
    """Return True if a user or a group has this number, also one that only a directory service knows."""
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
    """Create the folder of an Isolation: files in it can be executed, and the sandboxes' uid can pass through it."""
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
        f"{tried} can't hold the files of sandboxes; set TMPDIR to a folder that is writable, not mounted noexec, "
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
    """A shell that waits for the end of this process, then kills all processes with `token` on their command line.

    bwrap's processes die with this one, each tied to its parent. But at its start there are some microseconds in which
    the outer process is tied already and its child is not: if the outer one is killed then, the child waits for it
    forever. `prefix` makes the shell run under the sandboxes' uid, so that it can't kill anything else.
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
                start_new_session=True,  # neither Ctrl-C nor a signal to this process group may end it
            )
        finally:
            os.close(read_end)

    def close(self) -> None:
        """End the shell: no sandbox is left. May be called repeatedly."""
        if self._shell.poll() is None:
            self._shell.kill()
            self._shell.wait()
        if self._lifeline >= 0:
            os.close(self._lifeline)
            self._lifeline = -1
