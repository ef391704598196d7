"""The program of `tasks.grader_pool`'s worker processes: grades answers until the parent closes the connection.

A message is a length and that many bytes: a pickle from the parent, JSON to it. Standard input and output are for the
graders, and are connected to nothing.
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
from pytest_core_rollouts.grading.failures import place_of
from pytest_core_rollouts.records.jsonable import jsonable
from pytest_core_rollouts.tasks.files import TaskError
from pytest_core_rollouts.tasks.grader_process import RECEIVE_BYTES, REPLY_LIMIT, environment
from pytest_core_rollouts.tasks.loading import load_task
from pytest_core_rollouts.tasks.task import Task

TEXT_LIMIT: Final = 10_000
"""Characters of the text of a grader's exception that are sent."""
EXIT_SECONDS: Final = 5
"""Seconds for functions that graders registered with atexit."""
_HEAD: Final = struct.Struct(">Q")
_PR_SET_PDEATHSIG: Final = 1


def main() -> None:
    """Grade until the connection is closed."""
    connection, folder = socket.socket(fileno=int(sys.argv[1])), Path(sys.argv[2])
    connection.set_inheritable(False)
    atexit.register(
        shutil.rmtree, folder, ignore_errors=True
    )  # the parent may be gone; registered first, so it runs last
    os.register_at_fork(after_in_child=connection.close)  # a child that returns from grade() must not reply too
    sys.argv = ["grader"]
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text(
            "1000"
        )  # short of memory, the kernel should kill this process before the run
    faults = (folder / "faults").open("w")
    faulthandler.enable(faults)  # the line of a crash or, on SIGABRT, the current line
    worker = _Worker(folder)
    set_active = _die_with_parent()
    _send(connection, b"")
    while (message := _receive(connection)) is not None:
        set_active(True)
        reply = worker.reply(message)
        set_active(False)
        _send(connection, reply)
    signal.alarm(EXIT_SECONDS)


class _Worker:
    """What this process keeps from one grade to the next: tasks, and the parent's environment."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._tasks: dict[int, Task] = {}
        self._surroundings: tuple[Any, ...] = ()
        self._hidden: str | None = None
        self._stop_hiding: Callable[[], None] = lambda: None

    def reply(self, message: bytes) -> bytes:
        """Return the reply to a message, as JSON."""
        try:
            request = pickle.loads(message)
            self._surroundings = request.get("surroundings", self._surroundings)
            self._apply_surroundings(*self._surroundings)
            task = self._task(request)
            grader = task.grader
            assert grader is not None
        except Exception as error:  # noqa: BLE001 - pickle.loads runs code of any class
            problem = f"the grader was not run: {type(error).__name__}: {error}"
            return json.dumps({"failed": problem, "spoiled": True}).encode()
        rollout = replace(request["rollout"], task=task) if request.get("with_task") else request["rollout"]
        value, text, problem, artifacts = request["answer"]
        return self._grade(task, Answer(value=value, text=text, problem=problem, artifacts=artifacts), rollout)

    def _grade(self, task: Task, answer: Answer, rollout: Any) -> bytes:
        assert task.grader is not None
        try:
            return _encode(task.grader.grade_here(task, answer, rollout), task.grader.takes("rollout"))
        except BaseException as error:  # noqa: BLE001 - sys.exit() and pytest.fail() are failures too
            return _encode_error(error, task.grader.path)

    def _task(self, request: dict[str, Any]) -> Task:
        if request.get("forget"):
            self._tasks.clear()
        if "sent" in request:
            self._tasks[request["task"]] = _load(*request["sent"])
        return self._tasks[request["task"]]

    def _apply_surroundings(self, folder: str | None, path: list[str], variables: dict[bytes, bytes]) -> None:
        """Set the parent's working directory, import path, environment and hidden places, which graders may change."""
        if folder is not None:
            os.chdir(folder)
        sys.path[:] = path
        variables[b"TMPDIR"] = os.fsencode(self._folder)  # the parent removes it, however this process ends
        if environment() != variables:
            os.environb.clear()
            os.environb.update(variables)
        if (hidden := os.environ.get(VARIABLE)) != self._hidden:
            self._stop_hiding()
            self._hidden, self._stop_hiding = hidden, hide(json.loads(hidden or "[]"))


def _load(pickled: bytes | None, path: Path | None, task_id: str, digest: str) -> Task:
    """Return the task from its pickle, or from its folder if it has no pickle."""
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


def _encode(grade: Grade, takes_rollout: bool) -> bytes:
    reasons = [[reason.path, jsonable(reason.expected), jsonable(reason.answered)] for reason in grade.reasons]
    known = {"reward": grade.reward, "metrics": dict(grade.metrics), "takes_rollout": takes_rollout}
    reply = json.dumps({**known, "reasons": reasons, "note": grade.note}).encode()
    if len(reply) <= REPLY_LIMIT:
        return reply
    # A grader may quote files of an agent. Their size must not turn its reward into a missing one.
    note = f"the grader's reasons and note have {len(reply):,} bytes and were left out"
    return json.dumps({**known, "reasons": [], "note": note}).encode()


def _encode_error(error: BaseException, grader: Path | None) -> bytes:
    try:
        text = str(error)
    except Exception as other:  # noqa: BLE001 - __str__ is code of the grader
        text = f"(its text can't be read: {type(other).__name__})"
    # After these, memory may be short, or the state of the process may be inconsistent.
    spoiled = not isinstance(error, Exception) or isinstance(error, (MemoryError, RecursionError))
    reply = {"raised": type(error).__name__, "text": text[:TEXT_LIMIT], "place": place_of(error, grader)}
    return json.dumps({**reply, "spoiled": spoiled}).encode()


# ---- the parent


def _die_with_parent() -> Callable[[bool], None]:
    """Make this process die with its parent during a grade, even one that holds the GIL.

    Returns a function to call with True before a grade and False after it: between grades the closed connection is
    enough, and functions registered with atexit can run.
    """
    if not sys.platform.startswith("linux"):
        threading.Thread(target=_watch_parent, args=(os.getppid(),), daemon=True).start()
        return lambda active: None
    prctl, parent = ctypes.CDLL(None).prctl, os.getppid()

    def set_active(active: bool) -> None:
        prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL) if active else 0, 0, 0, 0)
        if active and os.getppid() != parent:  # it died before the call
            os.kill(os.getpid(), signal.SIGKILL)

    return set_active


def _watch_parent(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(1)
    os.kill(os.getpid(), signal.SIGKILL)


def _send(connection: socket.socket, message: bytes) -> None:
    with suppress(OSError):  # the parent is gone; the next receive returns None
        connection.sendall(_HEAD.pack(len(message)) + message)


def _receive(connection: socket.socket) -> bytes | None:
    """Return a message; None if the connection is closed. The parent sends none before it has the reply."""
    received = bytearray()
    size = _HEAD.size
    while len(received) < size:
        try:
            part = connection.recv(RECEIVE_BYTES)
        except OSError:
            return None
        if not part:
            return None
        received += part
        if size == _HEAD.size and len(received) >= size:
            size += _HEAD.unpack_from(received)[0]
    return bytes(received[_HEAD.size :])
