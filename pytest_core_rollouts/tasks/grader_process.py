"""One worker process for graders, as its parent sees it: started, asked, and killed when it takes too long."""

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
from concurrent.futures import ThreadPoolExecutor
from dataclasses import is_dataclass, replace
from pathlib import Path
from typing import Any, Final

from pytest_core_rollouts.embedded.hidden import VARIABLE
from pytest_core_rollouts.grading.answers import Answer
from pytest_core_rollouts.grading.threads import GraderFailed

START_SECONDS: Final = 60.0
REPLY_LIMIT: Final = 64 * 1024 * 1024
TASKS_KEPT: Final = 256
"""Tasks that a process keeps, so that each is sent once."""
CLOSE_SECONDS: Final = 2.0
TRACE_SECONDS: Final = 0.2
_HEAD: Final = struct.Struct(">Q")
_FRAME: Final = re.compile(r'^  File "(.*)", line (\d+) in ', re.MULTILINE)
_MAIN: Final = "import sys; sys.path[:] = sys.argv[3:]; from pytest_core_rollouts.grader_worker import main; main()"

# A worker dies with the thread that started it (PR_SET_PDEATHSIG), so this thread lives as long as we do.
_SPAWNER: Final = ThreadPoolExecutor(1, thread_name_prefix="grader-spawner")


class ProcessEnded(Exception):
    """The process ended without a reply. `frames`: file and line where it was, innermost first, if it could say so."""

    def __init__(self, returncode: int, frames: list[tuple[str, int]]) -> None:
        self.returncode, self.frames = returncode, frames
        super().__init__(f"ended with {returncode}")


class ProcessTooSlow(ProcessEnded):
    """The process was killed, because it took too long. `processor_s`: seconds of processor time that it had."""

    processor_s = 0.0


class GraderProcess:
    """A fresh interpreter, since a fork of a process with threads may never get on. Used by one thread at a time."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._folder: Path | None = None
        self._socket = socket.socket()
        self._surroundings: tuple[Any, ...] = ()
        self._tasks: dict[int, Any] = {}
        """The tasks that it has, by their numbers; kept so that no other object gets one of these numbers."""

    def ask(self, task: Any, answer: Answer, rollout: Any, seconds: float) -> bytes:
        """Send a grade to be done, and return the reply.

        Raises ProcessTooSlow or ProcessEnded, after which nothing is left of the process; GraderFailed if it can't be
        asked.
        """
        message = self._message(task, answer, rollout)
        before = 0.0
        try:
            if self._process is None:
                self._start()
            before = self._processor_s()
            deadline = time.monotonic() + seconds
            self._send(message, deadline)
            return self._receive(deadline)
        except TimeoutError:
            used = self._processor_s() - before
            slow = ProcessTooSlow(*self._end(signal.SIGABRT))
            slow.processor_s = used
            raise slow from None
        except (OSError, EOFError):
            raise ProcessEnded(*self._end(None)) from None

    def close(self) -> None:
        """Let an idle process end by itself, and kill it if it does not."""
        if self._process is not None:
            self._socket.close()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(CLOSE_SECONDS)
        self.kill()

    def kill(self) -> None:
        """Kill the process and what it started; may be called from another thread than that which asks."""
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
        self._socket.close()

    # ---- starting and ending

    def _start(self) -> None:
        try:
            self._folder = Path(tempfile.mkdtemp(prefix="rollout-grader-"))
            self._folder.chmod(0o711)  # sandboxes that a grader makes lie in it, and may belong to another user
            self._socket, other = socket.socketpair()
            with other:
                self._process = _SPAWNER.submit(self._spawn, other.fileno()).result()
            self._receive(time.monotonic() + START_SECONDS)
        except (OSError, EOFError, RuntimeError) as error:  # RuntimeError: the interpreter is ending
            self.kill()
            raise GraderFailed(f"the grader was not run: no process can be started: {error}") from None

    def _spawn(self, descriptor: int) -> subprocess.Popen[bytes]:
        flags = ["-X", "utf8"] if sys.flags.utf8_mode else []
        return subprocess.Popen(
            [sys.executable, *flags, "-c", _MAIN, str(descriptor), str(self._folder), *sys.path],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,  # what a grader prints may be an agent's, or a secret
            stderr=subprocess.DEVNULL,
            env={name: value for name, value in os.environ.items() if name != VARIABLE},  # each message says it
            pass_fds=[descriptor],
            start_new_session=True,  # Ctrl-C is not for it, and it is killed with all that it started
        )

    def _end(self, hint: signal.Signals | None) -> tuple[int, list[tuple[str, int]]]:
        """Kill the process. Returns its exit code, and where it was: SIGABRT makes it write that down."""
        process, folder = self._process, self._folder
        assert process is not None and folder is not None
        if hint is not None:
            process.send_signal(hint)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(TRACE_SECONDS)
        try:
            written = (folder / "faults").read_text("utf-8", "replace")[:10_000]
        except OSError:
            written = ""
        self.kill()
        return process.returncode, [(file, int(line)) for file, line in _FRAME.findall(written)]

    def _processor_s(self) -> float:
        """Processor time that the process has had, in seconds; 0 where the system does not say."""
        assert self._process is not None
        try:
            return time.clock_gettime(~self._process.pid << 3 | 2)  # as clock_getcpuclockid(3) makes it, which Python lacks
        except OSError:
            return 0.0

    # ---- messages

    def _message(self, task: Any, answer: Answer, rollout: Any) -> bytes:
        message: dict[str, Any] = {
            "task": id(task),
            "answer": answer,
            "rollout": rollout,
        }
        surroundings = (_working_directory(), list(sys.path), _environment())
        if surroundings != self._surroundings:
            message["surroundings"] = self._surroundings = surroundings
        if id(task) not in self._tasks:
            if len(self._tasks) >= TASKS_KEPT:
                self._tasks.clear()
                message["forget"] = True
            self._tasks[id(task)] = task
            message["sent"] = (_pickled(task), task.path, task.id, task.grading_digest)
        if is_dataclass(rollout) and not isinstance(rollout, type) and getattr(rollout, "task", None) is task:
            message["rollout"] = replace(rollout, task=None)  # it gets the task that the process has
            message["with_task"] = True
        try:
            return pickle.dumps(message)
        except Exception as error:  # noqa: BLE001 - pickling runs code of the objects
            raise GraderFailed(f"the grader was not run: the rollout can't be sent to its process: {error}") from None

    def _send(self, message: bytes, deadline: float) -> None:
        self._socket.settimeout(max(deadline - time.monotonic(), 0.001))
        self._socket.sendall(_HEAD.pack(len(message)) + message)

    def _receive(self, deadline: float) -> bytes:
        (length,) = _HEAD.unpack(self._exactly(_HEAD.size, deadline))
        if length > REPLY_LIMIT:
            raise GraderFailed(f"the grader's Grade has {length:,} bytes; {REPLY_LIMIT:,} are read at most")
        return self._exactly(length, deadline)

    def _exactly(self, number: int, deadline: float) -> bytes:
        received = bytearray()
        while len(received) < number:
            left = deadline - time.monotonic()
            if left <= 0:
                raise TimeoutError
            self._socket.settimeout(left)
            if not (part := self._socket.recv(min(number - len(received), 1 << 20))):
                raise EOFError("it ended")
            received += part
        return bytes(received)


def _pickled(task: Any) -> bytes | None:
    """The task; None if it can't be sent, so that the process has to load it from its folder."""
    try:
        return pickle.dumps(task)
    except Exception:  # noqa: BLE001 - pickling runs code of the objects
        return None


def _environment() -> dict[str, str]:
    """The environment, with the places to hide (`embedded.hidden`), without what changes with each of pytest's items."""
    return {name: value for name, value in os.environ.items() if name != "PYTEST_CURRENT_TEST"}


def _working_directory() -> str | None:
    try:
        return os.getcwd()
    except FileNotFoundError:
        return None
