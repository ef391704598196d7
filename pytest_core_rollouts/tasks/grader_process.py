"""A worker process for graders, from the parent's side: starts it, sends it grades, kills it if it takes too long."""

from __future__ import annotations

import contextlib
import os
import pickle
import re
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import is_dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeVar

from pytest_core_rollouts.embedded.hidden import VARIABLE
from pytest_core_rollouts.grading.answers import Answer
from pytest_core_rollouts.grading.failures import GraderFailed

T = TypeVar("T")

START_SECONDS: Final = 60.0
REPLY_LIMIT: Final = 64 * 1024 * 1024
RECEIVE_BYTES: Final = 64 * 1024
"""Python allocates as many for each call, so more makes small messages slow."""
TASKS_KEPT: Final = 256
"""Tasks that a process keeps, so that each is only sent once."""
CLOSE_SECONDS: Final = 2.0
TRACE_SECONDS: Final = 0.2
DELAY_FACTOR: Final = 4
"""How many times its limit a grader may wait for a processor, in addition."""
OWN_MEMORY: Final = 0.25
"""If the kernel killed a grader with at least this share of the machine's memory, the grader may be the reason."""
_HEAD: Final = struct.Struct(">Q")
_FRAME: Final = re.compile(r'^  File "(.*)", line (\d+) in ', re.MULTILINE)
_MAIN: Final = "import sys; sys.path[:] = sys.argv[3:]; from pytest_core_rollouts.grader_worker import main; main()"

# A worker dies with the thread that started it (PR_SET_PDEATHSIG), so this thread is never ended.
_SPAWNER: Final = ThreadPoolExecutor(1, thread_name_prefix="grader-spawner")


class ProcessEnded(Exception):
    """The process ended without a reply. `frames`: files and lines where it was, innermost first; empty: unknown."""

    def __init__(self, returncode: int, frames: list[tuple[str, int]], peak_bytes: int) -> None:
        self.returncode, self.frames, self._peak_bytes = returncode, frames, peak_bytes
        super().__init__(f"ended with {returncode}")

    @property
    def by_others(self) -> bool:
        """True if it was killed by SIGKILL and had little memory, so other processes caused that."""
        return self.returncode == -signal.SIGKILL and self._peak_bytes < OWN_MEMORY * _machine_bytes()


class ProcessTooSlow(ProcessEnded):
    """The process took too long and was killed.

    `processor_s`: seconds of processor time that it had; `delay_s`: seconds that it waited for a processor.
    """

    processor_s = 0.0
    delay_s = 0.0


class GraderProcess:
    """A new interpreter, because a fork of a process with threads may hang. Used by one thread at a time."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._folder: Path | None = None
        self._socket = socket.socket()
        self._schedstat: int | None = None
        """A descriptor of the kernel's page on the process's waits; it is read twice for each grade."""
        self._surroundings: tuple[Any, ...] = ()
        self._graders: set[tuple[Path, str]] = set()
        self._need_no_rollout: set[tuple[Path, str]] = set()
        """Graders that do not take the rollout, which is half of a message."""
        self._tasks: dict[int, Any] = {}
        """The tasks that the process has, by id(); kept here so that no other object gets the same id()."""

    def has_run_others(self, task: Any) -> bool:
        """Return True if it ran the grader of another task, which may have changed the process."""
        return bool(self._graders - {_key(task)})

    def leave_out_rollout(self, task: Any) -> None:
        """Send no more rollouts to the task's grader, because it does not take them."""
        self._need_no_rollout.add(_key(task))

    def grade(self, task: Any, answer: Answer, rollout: Any, seconds: float) -> bytes:
        """Grade an answer in the process and return its reply. Time that it waits for a processor does not count.

        Raises ProcessTooSlow or ProcessEnded, after which nothing is left of the process; GraderFailed if no process
        can be started or the rollout can't be sent.
        """
        message = self._message(task, answer, rollout)
        self._graders.add(_key(task))
        before, limit = 0.0, None
        try:
            if self._process is None:
                self._start(seconds)
            before = self._processor_s()
            limit = _Limit(seconds, self._delay_s)
            self._send(message, limit)
            return self._receive(limit)
        except TimeoutError:
            used, delay = self._processor_s() - before, 0.0 if limit is None else limit.delay_s
            slow = ProcessTooSlow(*self._end(signal.SIGABRT))
            slow.processor_s, slow.delay_s = used, delay
            raise slow from None
        except (OSError, EOFError):
            raise ProcessEnded(*self._end(None)) from None

    def close(self) -> None:
        """Let an idle process end by itself; kill it if it takes too long."""
        if self._process is not None:
            self._socket.close()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(CLOSE_SECONDS)
        self.kill()

    def kill(self) -> None:
        """Kill the process and what it started. May be called from any thread, also during `grade`."""
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
        self._socket.close()
        if self._schedstat is not None:
            descriptor, self._schedstat = self._schedstat, None
            os.close(descriptor)

    # ---- starting and ending

    def _start(self, seconds: float) -> None:
        try:
            self._folder = Path(tempfile.mkdtemp(prefix="rollout-grader-"))
            self._folder.chmod(0o711)  # sandboxes that a grader makes are in it, and may belong to another user
            self._socket, other = socket.socketpair()
            _set_tick(self._socket, seconds)
            with other:
                self._process = _SPAWNER.submit(self._spawn, other.fileno()).result()
            self._schedstat = _open_schedstat(self._process.pid)
            self._receive(_Limit(START_SECONDS, self._delay_s))
        except (OSError, EOFError, RuntimeError) as error:  # RuntimeError: the interpreter is ending
            self.kill()
            raise GraderFailed(f"the grader was not run: no process can be started: {error}") from None

    def _spawn(self, descriptor: int) -> subprocess.Popen[bytes]:
        flags = ["-X", "utf8"] if sys.flags.utf8_mode else []
        return subprocess.Popen(
            [sys.executable, *flags, "-c", _MAIN, str(descriptor), str(self._folder), *sys.path],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,  # a grader may print an agent's text, or a secret
            stderr=subprocess.DEVNULL,
            env=environment(without=VARIABLE),  # it is sent with each grade
            pass_fds=[descriptor],
            start_new_session=True,  # Ctrl-C must not end it; killing the group kills all that it started
        )

    def _end(self, hint: signal.Signals | None) -> tuple[int, list[tuple[str, int]], int]:
        """Kill the process. Returns its exit code, where it was (SIGABRT makes it write that), and its peak memory."""
        process, folder = self._process, self._folder
        assert process is not None
        assert folder is not None
        if hint is not None:
            process.send_signal(hint)
        peak_bytes = _reap(process, TRACE_SECONDS)
        try:
            written = (folder / "faults").read_text("utf-8", "replace")[:10_000]
        except OSError:
            written = ""
        self.kill()
        return process.returncode, [(file, int(line)) for file, line in _FRAME.findall(written)], peak_bytes

    def _processor_s(self) -> float:
        """Return the processor time of the process, in seconds; 0 if unknown."""
        assert self._process is not None
        try:
            # clock_getcpuclockid(3), which Python lacks
            return time.clock_gettime(~self._process.pid << 3 | 2)
        except OSError:
            return 0.0

    def _delay_s(self) -> float:
        """Return how long its main thread was ready and waited for a processor, in seconds; 0 if unknown."""
        if self._schedstat is None:
            return 0.0
        try:
            return int(os.pread(self._schedstat, 100, 0).split()[1]) / 1e9
        except (OSError, IndexError, ValueError):  # ValueError: another thread closed it, and the number is reused
            return 0.0

    # ---- messages

    def _message(self, task: Any, answer: Answer, rollout: Any) -> bytes:
        if _key(task) in self._need_no_rollout:
            rollout = None
        # The parts of an answer take half as long as the answer itself.
        parts = (answer.value, answer.text, answer.problem, answer.artifacts)
        message: dict[str, Any] = {"task": id(task), "answer": parts, "rollout": rollout}
        surroundings = (_working_directory(), list(sys.path), environment(without="PYTEST_CURRENT_TEST"))
        if surroundings != self._surroundings:
            message["surroundings"] = self._surroundings = surroundings
        if id(task) not in self._tasks:
            if len(self._tasks) >= TASKS_KEPT:
                self._tasks.clear()
                message["forget"] = True
            self._tasks[id(task)] = task
            message["sent"] = (_pickle_or_none(task), task.path, task.id, task.grading_digest)
        if is_dataclass(rollout) and not isinstance(rollout, type) and getattr(rollout, "task", None) is task:
            message["rollout"] = replace(rollout, task=None)  # the process uses its own copy of the task
            message["with_task"] = True
        try:
            return pickle.dumps(message)
        except Exception as error:  # noqa: BLE001 - pickling runs code of the objects
            raise GraderFailed(f"the grader was not run: the rollout can't be sent to its process: {error}") from None

    def _send(self, message: bytes, limit: _Limit) -> None:
        unsent = memoryview(_HEAD.pack(len(message)) + message)
        while unsent:
            unsent = unsent[limit.wait(partial(self._socket.send, unsent)) :]

    def _receive(self, limit: _Limit) -> bytes:
        received = bytearray()
        size = _HEAD.size
        while len(received) < size:
            part = limit.wait(partial(self._socket.recv, RECEIVE_BYTES))
            if not part:
                raise EOFError("the process ended")
            received += part
            if size == _HEAD.size and len(received) >= size:
                (length,) = _HEAD.unpack_from(received)
                if length > REPLY_LIMIT:
                    raise GraderFailed(f"the grader's Grade has {length:,} bytes; at most {REPLY_LIMIT:,} are read")
                size += length
        return bytes(received[_HEAD.size : size])


class _Limit:
    """The time limit of a grade. Time that the process waits for a processor is added, up to DELAY_FACTOR times.

    What the process has waited is first read after a tick, because reading it takes longer than most grades.
    """

    def __init__(self, seconds: float, delay_s: Callable[[], float]) -> None:
        self._end, self._max_delay = time.monotonic() + seconds, DELAY_FACTOR * seconds
        self._delay_s = delay_s
        self._delay_before: float | None = None

    @property
    def delay_s(self) -> float:
        """Return the seconds that the process waited for a processor since the first tick; 0 before it."""
        return 0.0 if self._delay_before is None else self._delay_s() - self._delay_before

    def wait(self, call: Callable[[], T]) -> T:
        """Return what `call` returns, which raises BlockingIOError at each tick. Raises TimeoutError at the limit."""
        while (left := self._end - time.monotonic()) > 0 or left + min(self.delay_s, self._max_delay) > 0:
            try:
                return call()
            except BlockingIOError:
                if self._delay_before is None:
                    self._delay_before = self._delay_s()
        raise TimeoutError


def _key(task: Any) -> tuple[Path, str]:
    return task.grader.path, task.grader.sha256


def _open_schedstat(pid: int) -> int | None:
    """Return a descriptor of the kernel's page on how long a process ran and waited; None if there is no such page."""
    with contextlib.suppress(FileNotFoundError):
        return os.open(f"/proc/{pid}/schedstat", os.O_RDONLY)
    return None


def _set_tick(connection: socket.socket, seconds: float) -> None:
    """Make each call of a blocking socket return after a tick.

    The kernel does it: with `settimeout` each call is two system calls, and after each of them this thread waits for
    the GIL.
    """
    tick = struct.pack("@ll", *divmod(int(min(1.0, seconds / 20) * 1_000_000), 1_000_000))
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, tick)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, tick)


def _reap(process: subprocess.Popen[bytes], seconds: float) -> int:
    """Wait at most `seconds` until the process ends. Returns its peak memory in bytes; 0 if unknown."""
    deadline = time.monotonic() + seconds
    while process.returncode is None and time.monotonic() < deadline:
        try:
            pid, status, usage = os.wait4(process.pid, os.WNOHANG)
        except ChildProcessError:  # another thread closed the pool
            break
        if pid:
            process.returncode = os.waitstatus_to_exitcode(status)
            return usage.ru_maxrss * (1 if sys.platform == "darwin" else 1024)
        time.sleep(0.002)
    return 0


def _machine_bytes() -> int:
    """Return the bytes of memory of this machine, or of this container if it may use less."""
    sizes = [os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")]
    for path in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        with contextlib.suppress(OSError, ValueError):  # ValueError: "max"
            sizes.append(int(Path(path).read_text()))
    return min(sizes)


def _pickle_or_none(task: Any) -> bytes | None:
    """Return the task's pickle; None if it has none, so that the process loads the task from its folder."""
    try:
        return pickle.dumps(task)
    except Exception:  # noqa: BLE001 - pickling runs code of the objects
        return None


def environment(without: str = "") -> dict[bytes, bytes]:
    """Return a copy of the environment, without one variable.

    It is made in one step of the interpreter, because another thread may change the environment, as pytest does with
    each item. `dict(os.environb)` fails then, and takes as long as the rest of a message.
    """
    variables: dict[bytes, bytes] = vars(os.environb)["_data"].copy()
    variables.pop(os.fsencode(without), None)
    return variables


def _working_directory() -> str | None:
    try:
        return os.getcwd()  # noqa: PTH109 - a Path takes ten times as long
    except FileNotFoundError:
        return None
