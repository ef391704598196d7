"""Runs one command in one sandbox, from its start to the death of everything it started.

Nothing may outlive this process, not even if it is killed with SIGKILL while it starts a sandbox. bwrap ties its
processes to their parent only at the end of its setup. So the command first waits at a gate: a shell that writes MARK,
which shows that the setup is done, and then reads a line. If this process died before it wrote the line, the shell
reads the end of the pipe instead, and ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import select
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass
from pathlib import Path

from .cgroups import Cgroup
from .isolation import Isolation
from .limits import Limits
from .usage import machine_oom_kills, sandbox_processes

MARK = b"\x1e"
_GATE = 'printf "\\036"; read -r go && exec "$@"'
_GATE_WITHOUT_STDIN = _GATE + " </dev/null"
_OOM_SCORE = "800"
_CHUNK = 1 << 16
_SETUP_TIMEOUT_S = 30.0
_DEATH_TIMEOUT_S = 30.0


class SandboxFailed(Exception):
    """A sandbox could not be started or ended; str: the message of bwrap or the kernel."""


@dataclass(frozen=True)
class Completed:
    """How a command ended.

    `output`: stdout and stderr in the order they came, up to the limit. `killed`: why the sandbox was killed; None if
    it ended by itself. `limit_exceeded`: `killed` names a bound that the command exceeded. `machine_oom`: during the
    command the kernel was short of memory and killed some process on this machine, so a SIGKILL may be its doing.
    """

    returncode: int
    output: bytes
    truncated: bool = False
    timed_out: bool = False
    killed: str | None = None
    limit_exceeded: bool = False
    machine_oom: bool = False


class Process:
    """A started bwrap. `pid` is the sandbox's init: if it dies, the kernel kills everything in the sandbox."""

    def __init__(self, popen: subprocess.Popen[bytes], status: int, stdin: int, output: int) -> None:
        self.status, self.stdin, self.output = status, stdin, output
        self._popen = popen
        self._lock = threading.Lock()
        self._ending = threading.Lock()
        self._dead = False
        self._outcome: int | SandboxFailed | None = None
        self.pid = self._read_pid()
        self._pidfd = _pidfd_open(self.pid)

    def _read_pid(self) -> int | None:
        """Read the init's pid from bwrap's first report, some 2 ms after its start. None if bwrap failed earlier."""
        line = b""
        while b"\n" not in line:
            if not _is_readable(self.status, _SETUP_TIMEOUT_S):
                self._popen.kill()
                break
            chunk = os.read(self.status, 4096)
            if not chunk:
                break
            line += chunk
        found = re.search(rb'"child-pid": (\d+)', line)
        return int(found[1]) if found else None

    def kill(self) -> None:
        """Kill everything in the sandbox; bwrap then ends by itself. May be called from any thread."""
        with self._lock, contextlib.suppress(ProcessLookupError):
            if self._dead:
                return
            if self._pidfd is not None:
                signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)
            elif self.pid is not None:
                os.kill(self.pid, signal.SIGKILL)
            else:
                self._popen.kill()

    def close_stdin(self) -> None:
        os.close(self.stdin)
        self.stdin = -1

    def end(self) -> int:
        """Kill what is left of the sandbox and wait for its end. Returns the exit status. Blocks some milliseconds.

        Raises SandboxFailed if processes don't end after SIGKILL, because they hang in the kernel.
        """
        with self._ending:
            if self._outcome is None:
                self.kill()
                self._outcome = self._wait()
        if isinstance(self._outcome, SandboxFailed):
            raise self._outcome
        return self._outcome

    def _wait(self) -> int | SandboxFailed:
        deadline = time.monotonic() + _DEATH_TIMEOUT_S
        try:
            code = self._popen.wait(_DEATH_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            return SandboxFailed(f"bwrap (pid {self._popen.pid}) does not end after SIGKILL")
        while not self._init_is_gone():
            if time.monotonic() > deadline:
                return SandboxFailed(f"the sandbox's processes (its init has pid {self.pid}) do not end after SIGKILL")
            time.sleep(0.001)
        with self._lock:
            self._dead = True
        return code if code >= 0 else 128 - code

    def _init_is_gone(self) -> bool:
        if self._pidfd is not None:
            return _is_readable(self._pidfd, 1.0)
        if self.pid is None:
            return True
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return True
        return False

    def close(self) -> None:
        with self._lock:
            self._dead = True
            for fd in (self.status, self.stdin, self.output, self._pidfd):
                if fd is not None and fd >= 0:
                    os.close(fd)
            self.status = self.stdin = self.output = -1
            self._pidfd = None


def _pidfd_open(pid: int | None) -> int | None:
    """Open a pidfd. None if the kernel (before 5.3) or this Python has none."""
    if pid is None or not hasattr(os, "pidfd_open"):
        return None
    try:
        return os.pidfd_open(pid)
    except OSError:
        return None


def _is_readable(fd: int, timeout: float) -> bool:
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    return bool(poll.poll(timeout * 1000))


class Run:
    """One command's run. Await `complete` once; `kill` may be called from any thread at any time."""

    def __init__(
        self,
        isolation: Isolation,
        session: Path,
        argv: Sequence[str],
        *,
        env: Mapping[str, str],
        binds: Sequence[tuple[Path, str]],
        stdin: bytes | None,
        timeout: float | None,
        on_output: Callable[[bytes], None] | None,
        output_limit: int,
        limits: Limits,
    ) -> None:
        self.session = session
        self.limits = limits
        self.process: Process | None = None
        self.killed: str | None = None
        self.limit_exceeded = False
        self.inotify_bounded = False
        self.cgroup: Cgroup | None = None
        self._isolation = isolation
        gate = _GATE_WITHOUT_STDIN if stdin is None else _GATE
        self._argv = ["/bin/sh", "-c", gate, isolation.token, *isolation.with_limits(argv, limits)]
        self._env, self._binds = env, binds
        self._timeout = timeout
        self._on_output = on_output
        self._output_limit = output_limit
        self._to_write = memoryview(b"\n" + (stdin or b""))
        self._output = bytearray()
        self._truncated = False
        self._begun = False
        self._opening: asyncio.Future[None] | None = None
        self._error: Exception | None = None
        self._lock = threading.Lock()

    @property
    def pid(self) -> int | None:
        """The pid of the sandbox's init; None before it has started."""
        return self.process.pid if self.process is not None else None

    def wait_dead(self) -> None:
        """Block until a killed run has no processes. One that has not started yet never opens its gate."""
        if self.process is not None:
            self.process.end()

    def kill(self, reason: str, *, limit_exceeded: bool = False) -> None:
        """End the run; the first reason counts. `limit_exceeded`: the reason is a bound that the command exceeded."""
        with self._lock:
            if self.killed is None:
                self.killed, self.limit_exceeded = reason, limit_exceeded
            process = self.process
        if process is not None:
            process.kill()

    async def complete(self) -> Completed:
        """Start the command and wait for its end. Raises SandboxFailed, and what `on_output` raises."""
        spawner = self._isolation.spawner
        oom_kills = machine_oom_kills()
        starting = spawner.submit(self._start)
        try:
            process = await asyncio.wrap_future(starting)
            with self._isolation.watcher.watching(self):
                await self._follow(process)
            code = await asyncio.get_running_loop().run_in_executor(spawner, self._end, process)
            self._drain(process)
        except asyncio.CancelledError:
            self.kill("cancelled")
            raise
        finally:
            self._clean_up(starting)
        if self._error is not None:
            raise self._error
        if not self._begun and self.killed is None:
            printed = self._output.decode("utf-8", "replace").strip()
            raise SandboxFailed(f"the sandbox did not start: {printed or f'exit status {code}'}")
        output = bytes(self._output) if self._begun else b""
        return Completed(
            code,
            output,
            self._truncated,
            timed_out=self.killed == "timeout",
            killed=self.killed,
            limit_exceeded=self.limit_exceeded,
            machine_oom=machine_oom_kills() > oom_kills,
        )

    def _clean_up(self, starting: Future[Process]) -> None:
        """End the process and close its descriptors. Blocks only if the event loop was ended during the run."""
        if not starting.cancelled():
            wait([starting])
        if self.process is not None:
            try:
                self._end(self.process)
            finally:
                self.process.close()

    def _start(self) -> Process:
        isolation = self._isolation
        with contextlib.ExitStack() as closing:
            kept: list[int] = []
            stdin_read, stdin_write = _pipe(closing, kept, keep=1)
            output_read, output_write = _pipe(closing, kept, keep=0)
            status_read, status_write = _pipe(closing, kept, keep=0)
            try:
                # Open for reading too, the pipe never breaks. If it broke when this process dies, bwrap would die at
                # its report, and its child would wait forever.
                status_write = os.open(f"/proc/self/fd/{status_write}", os.O_RDWR | os.O_CLOEXEC)
                closing.callback(os.close, status_write)
                if isolation.drops_uid:
                    for pipe in (stdin_read, output_write):
                        os.fchown(pipe, isolation.uid, isolation.uid)  # so that /dev/stdout can be opened by name
                options = closing.enter_context(isolation.options(self.session, self._env, self._binds))
                popen = subprocess.Popen(
                    isolation.command(options, self._argv, status=status_write),
                    cwd=isolation.bubblewrap.file.parent,
                    env={},
                    stdin=stdin_read,
                    stdout=output_write,
                    stderr=output_write,
                    pass_fds=(*options.fds, status_write),
                )
            except BaseException:
                for fd in kept:
                    os.close(fd)
                raise
        process = Process(popen, status_read, stdin_write, output_read)
        with self._lock:
            self.process = process
            killed = self.killed
        if killed is not None:
            process.kill()
        return process

    async def _open_gate(self, process: Process) -> None:
        """Set the bounds, then let the command start. If set earlier, bwrap's own setup would exceed them."""
        try:
            if process.pid is not None:
                await asyncio.get_running_loop().run_in_executor(self._isolation.spawner, self._bound, process.pid)
        except Exception as error:  # noqa: BLE001  (`complete` raises it)
            self._error = error
            self.kill("failed")
        else:
            self._feed(process)

    def _bound(self, init: int) -> None:
        """Set the bounds that the kernel enforces for the sandbox as a whole."""
        for pid in sandbox_processes(init):  # short of memory, the kernel kills these first
            with contextlib.suppress(OSError):
                Path(f"/proc/{pid}/oom_score_adj").write_text(_OOM_SCORE)
        bounded = self._isolation.namespaces.bound(init, self.limits.sysctls())
        self.inotify_bounded = "user/max_inotify_instances" in bounded
        if self._isolation.cgroups is not None:
            try:
                self.cgroup = self._isolation.cgroups.make(self.limits)
                self.cgroup.add(init)
            except ProcessLookupError:
                pass  # it has ended already; `complete` reports how
            except OSError as error:
                raise SandboxFailed(f"can't move the sandbox into a cgroup: {error}") from error

    def _end(self, process: Process) -> int:
        code = process.end()
        if self.cgroup is not None:
            if (excess := self.cgroup.excess(self.limits)) is not None:
                self.kill(excess, limit_exceeded=True)  # it is dead already; this records why
            self.cgroup.remove()
        return code

    async def _follow(self, process: Process) -> None:
        """Pass on input and output until bwrap has ended: only that closes its status pipe for certain."""
        loop = asyncio.get_running_loop()
        ended: asyncio.Future[None] = loop.create_future()

        def read_status() -> None:
            if not os.read(process.status, 4096) and not ended.done():
                ended.set_result(None)

        def read_output() -> None:
            if not self._read(process):
                loop.remove_reader(process.output)

        for fd in (process.stdin, process.output):
            os.set_blocking(fd, False)
        loop.add_reader(process.status, read_status)
        loop.add_reader(process.output, read_output)
        timer = None if self._timeout is None else loop.call_later(self._timeout, self.kill, "timeout")
        try:
            await ended
            if self._opening is not None:
                await self._opening
        finally:
            if self._opening is not None:
                self._opening.cancel()
            if timer is not None:
                timer.cancel()
            loop.remove_reader(process.status)
            loop.remove_reader(process.output)
            if process.stdin >= 0:
                loop.remove_writer(process.stdin)

    def _drain(self, process: Process) -> None:
        while self._read(process):
            pass

    def _read(self, process: Process) -> bool:
        """Read a chunk of output. Returns False at the pipe's end, or if it is empty now."""
        try:
            chunk = os.read(process.output, _CHUNK)
        except BlockingIOError:
            return False
        if self._begun:
            self._take(chunk)
        elif chunk:
            before, mark, after = (bytes(self._output) + chunk).partition(MARK)
            self._output[:] = before  # printed by bwrap itself
            if mark:
                self._begun = True
                self._output.clear()
                self._opening = asyncio.ensure_future(self._open_gate(process))
                self._take(after)
        return bool(chunk)

    def _take(self, chunk: bytes) -> None:
        room = self._output_limit - len(self._output)
        self._output += chunk[: max(room, 0)]
        self._truncated = self._truncated or len(chunk) > room
        if chunk and self._on_output is not None and self._error is None:
            try:
                self._on_output(chunk)
            except Exception as error:  # noqa: BLE001  (`complete` raises it)
                self._error = error
                self.kill("failed")

    def _feed(self, process: Process) -> None:
        """Write the line that opens the gate, then the command's stdin, as far as the pipe has room."""
        loop = asyncio.get_running_loop()
        try:
            written = os.write(process.stdin, self._to_write)
        except BlockingIOError:
            written = 0
        except BrokenPipeError:
            written = len(self._to_write)
        self._to_write = self._to_write[written:]
        if self._to_write:
            loop.add_writer(process.stdin, self._feed, process)
        else:
            loop.remove_writer(process.stdin)
            process.close_stdin()


def _pipe(closing: contextlib.ExitStack, kept: list[int], *, keep: int) -> tuple[int, int]:
    """Make a pipe. Its end `keep` (0: read, 1: write) is added to `kept`; `closing` closes the other one."""
    ends = os.pipe()
    kept.append(ends[keep])
    closing.callback(os.close, ends[1 - keep])
    return ends
