"""A worker process of `tasks.grader_pool`: grades what it is asked to, until its parent closes the connection.

Messages are a length and that many bytes: pickles from the parent, JSON to it. Standard input and output belong to the
graders, and lead nowhere.
"""

from __future__ import annotations

import atexit
import ctypes
import faulthandler
import json
import os
import pickle
import resource
import shutil
import signal
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from pytest_core_rollouts.embedded.hidden import VARIABLE, hide
from pytest_core_rollouts.grading.answers import Answer, Grade
from pytest_core_rollouts.grading.threads import place_of
from pytest_core_rollouts.records.jsonable import jsonable
from pytest_core_rollouts.tasks.files import TaskError
from pytest_core_rollouts.tasks.grader_process import REPLY_LIMIT
from pytest_core_rollouts.tasks.task import Task, load_task

TEXT_LIMIT: Final = 10_000
"""Characters of what a grader raised that are sent."""
EXIT_SECONDS: Final = 5
"""For what graders registered to be done at exit."""
_HEAD: Final = struct.Struct(">Q")
_PR_SET_PDEATHSIG: Final = 1


def main() -> None:
    """Grade until the connection is closed."""
    connection, folder = socket.socket(fileno=int(sys.argv[1])), Path(sys.argv[2])
    connection.set_inheritable(False)
    atexit.register(shutil.rmtree, folder, ignore_errors=True)  # the parent may be gone; the first, so it comes last
    os.register_at_fork(after_in_child=connection.close)  # a child that returns from grade() must not reply as well
    sys.argv = ["grader"]
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")  # rather this process than the run
    faults = (folder / "faults").open("w")
    faulthandler.enable(faults)  # where it crashed or, by SIGABRT, where it is
    worker = _Worker(folder)
    dies = _follow_parent()
    _send(connection, b"")
    while (message := _receive(connection)) is not None:
        dies(True)
        reply = worker.reply(message)
        dies(False)
        _send(connection, reply)
    signal.alarm(EXIT_SECONDS)


class _Worker:
    """What a process keeps from one grade to the next."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._tasks: dict[int, Task] = {}
        self._surroundings: tuple[Any, ...] = ()
        self._hidden: str | None = None
        self._stop_hiding: Callable[[], None] = lambda: None

    def reply(self, message: bytes) -> bytes:
        """The reply to a message, as JSON."""
        try:
            asked = pickle.loads(message)
            self._surroundings = asked.get("surroundings", self._surroundings)
            self._surround(*self._surroundings)
            task = self._task(asked)
            grader = task.grader
            assert grader is not None
        except Exception as error:  # noqa: BLE001 - the classes of what was sent may be of any kind
            problem = f"the grader was not run: {type(error).__name__}: {error}"
            return json.dumps({"failed": problem, "spoiled": True}).encode()
        rollout = replace(asked["rollout"], task=task) if asked.get("with_task") else asked["rollout"]
        return self._graded(task, asked["answer"], rollout)

    def _graded(self, task: Task, answer: Answer, rollout: Any) -> bytes:
        assert task.grader is not None
        try:
            return _encoded(task.grader.grade_here(task, answer, rollout))
        except BaseException as error:  # noqa: BLE001 - sys.exit() or pytest.fail() is a failure like any other
            return _raised(error, task.grader.path)

    def _task(self, asked: dict[str, Any]) -> Task:
        if asked.get("forget"):
            self._tasks.clear()
        if "sent" in asked:
            self._tasks[asked["task"]] = _load(*asked["sent"])
        return self._tasks[asked["task"]]

    def _surround(self, folder: str | None, path: list[str], environment: dict[str, str]) -> None:
        """Have the parent's working directory, import path, environment and hidden places, whatever a grader did."""
        if folder is not None:
            os.chdir(folder)
        sys.path[:] = path
        environment["TMPDIR"] = str(self._folder)  # removed by the parent, in whatever way we end
        if dict(os.environ) != environment:
            os.environ.clear()
            os.environ.update(environment)
        if (hidden := environment.get(VARIABLE)) != self._hidden:
            self._stop_hiding()
            self._hidden, self._stop_hiding = hidden, hide(json.loads(hidden or "[]"))


def _load(pickled: bytes | None, path: Path | None, task_id: str, digest: str) -> Task:
    """The task that was sent; from its folder if it can't be sent."""
    problem = "its objects can't be pickled"
    if pickled is not None:
        try:
            task: Task = pickle.loads(pickled)
        except Exception as error:  # noqa: BLE001 - a class may be importable in the parent only
            problem = str(error)
        else:
            return task
    if path is None:
        raise TaskError(f"task {task_id!r}: can't be sent to the grader's process: {problem}; use plain values")
    task = load_task(path, task_id)
    if task.grading_digest != digest:
        raise TaskError(f"{path}: changed since the task was collected; run again")
    return task


def _encoded(grade: Grade) -> bytes:
    reasons = [[reason.path, jsonable(reason.expected), jsonable(reason.answered)] for reason in grade.reasons]
    reply = json.dumps({"reward": grade.reward, "reasons": reasons, "note": grade.note}).encode()
    if len(reply) <= REPLY_LIMIT:
        return reply
    # A grader may repeat files of an agent, which must not turn its reward into a missing one by their size.
    note = f"the grader's reasons and note have {len(reply):,} bytes and were left out"
    return json.dumps({"reward": grade.reward, "reasons": [], "note": note}).encode()


def _raised(error: BaseException, grader: Path | None) -> bytes:
    try:
        text = str(error)
    except Exception as other:  # noqa: BLE001 - code of theirs
        text = f"(its text can't be had: {type(other).__name__})"
    # After these, the process may lack memory, or its state may be half made.
    spoiled = not isinstance(error, Exception) or isinstance(error, (MemoryError, RecursionError))
    reply = {"raised": type(error).__name__, "text": text[:TEXT_LIMIT], "place": place_of(error, grader)}
    return json.dumps({**reply, "spoiled": spoiled}).encode()


# ---- the parent


def _follow_parent() -> Any:
    """Die with the parent, even amid a grade that holds the GIL. Between grades the closed connection says so."""
    if not sys.platform.startswith("linux"):
        threading.Thread(target=_watch_parent, args=(os.getppid(),), daemon=True).start()
        return lambda active: None
    prctl, parent = ctypes.CDLL(None).prctl, os.getppid()

    def dies(active: bool) -> None:
        prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL) if active else 0, 0, 0, 0)
        if active and os.getppid() != parent:  # it died just before
            os.kill(os.getpid(), signal.SIGKILL)

    return dies


def _watch_parent(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(1)
    os.kill(os.getpid(), signal.SIGKILL)


def _send(connection: socket.socket, message: bytes) -> None:
    with suppress(OSError):  # the parent is gone: the next receive says so
        connection.sendall(_HEAD.pack(len(message)) + message)


def _receive(connection: socket.socket) -> bytes | None:
    """A message; None if the connection is closed."""
    if (head := _exactly(connection, _HEAD.size)) is None:
        return None
    return _exactly(connection, _HEAD.unpack(head)[0])


def _exactly(connection: socket.socket, number: int) -> bytes | None:
    received = bytearray()
    while len(received) < number:
        try:
            part = connection.recv(min(number - len(received), 1 << 20))
        except OSError:
            return None
        if not part:
            return None
        received += part
    return bytes(received)
