"""Worker processes for `grader.py`: whatever a grader does with an answer, only its own grade is affected.

A grader may hold the GIL, crash, or call `os._exit`, because of its own faults or because of what an agent answered. So
it runs in a process that can be killed. Processes are started when they are needed, and used again, since starting
one takes longer than most grading.

What goes to a process is a pickle. What comes back is read as JSON, and never unpickled: a grader that handles what an
agent wrote may do what the agent wants.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import signal
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pytest_core_rollouts.grading.answers import Answer, Grade
from pytest_core_rollouts.grading.comparing import Reason
from pytest_core_rollouts.grading.threads import GRADE_SECONDS, GraderFailed, without_limit
from pytest_core_rollouts.tasks.grader_process import GraderProcess, ProcessEnded, ProcessTooSlow

if TYPE_CHECKING:
    from pytest_core_rollouts.tasks.grader_file import OwnGrader

PROCESSES: Final = max(2, min(4, os.cpu_count() or 1))
BUSY: Final = 0.8
"""The share of its time for which a grader had the processor, if no other process can have slowed it down."""
MISSING_ANSWER: Final = Answer(problem="/workspace/outputs/answer.json not found")


class AnswerBrokeGrader(GraderFailed):
    """The answer made its grader crash or hang, twice, and the grader is sound otherwise: the agent earns 0."""

    code = "grader_broken"


class _Broke(Exception):
    """A grader crashed or took too long; `str()` says which, and where.

    `by_itself`: whether what else the machine did can't be the reason: it crashed other than by SIGKILL, which is how
    the kernel gets memory back, or had the processor for most of its time. `by_machine`: whether it must be the reason:
    the grader was killed and had little memory, or waited for the processor for longer than its own limit.
    """

    def __init__(self, problem: str, *, by_itself: bool, by_machine: bool) -> None:
        super().__init__(problem)
        self.by_itself, self.by_machine = by_itself, by_machine


class _Unsure(Exception):
    """A grader failed in a process that other graders have used, so one of these may be the reason."""


class GraderPool:
    """At most `most` processes, each with `seconds` for a grade. Safe to use from any thread."""

    def __init__(self, *, seconds: float | None = None, most: int = PROCESSES) -> None:
        self._seconds = seconds
        self._most = most
        self._changed = threading.Condition()
        self._idle: list[GraderProcess] = []
        self._busy: set[GraderProcess] = set()
        self._running = 0
        self._exclusive = 0
        """How many wait for the pool to be empty, or have it for themselves."""
        self._closed = False
        self._sound: dict[tuple[Path, str], bool] = {}
        """By path and source of a grader, whether it graded a missing answer without fault."""

    @property
    def seconds(self) -> float:
        return GRADE_SECONDS if self._seconds is None else self._seconds

    def grade(self, grader: OwnGrader, task: Any, answer: Answer, rollout: Any) -> Grade:
        """Return what `grade()` of the `grader.py` returns. Raises GraderFailed.

        A grader that breaks is tried again, in a fresh process. If what else the machine did may be the reason, no
        other grader runs beside it then. It is not always so, because that would let an agent hold up all grading for
        a minute.
        """
        with without_limit():
            failures = 0
            alone = fresh = False
            while True:
                try:
                    with self._whole_pool() if alone else self._place():
                        return self._run(task, answer, rollout, fresh=fresh)
                except _Unsure:
                    fresh = True
                except _Broke as broke:
                    failures += 1
                    if self._sound.get((grader.path, grader.sha256)) is False:
                        raise GraderFailed(str(broke)) from None
                    if failures > 1 and (alone or broke.by_itself):
                        failure, by_machine = str(broke), broke.by_machine
                        break
                    fresh, alone = True, not broke.by_itself
            if by_machine:
                advice = "run fewer rollouts at once, then grade again"
                raise GraderFailed(f"{failure}; others used up the machine; {advice}")
            if not self._is_sound(grader, task, rollout):
                raise GraderFailed(failure)
        graded = "a missing answer" if task.expected is None else "a missing answer and the expected one"
        raise AnswerBrokeGrader(f"grader_broken: {failure}, twice; it grades {graded}, so this answer broke it")

    def _is_sound(self, grader: OwnGrader, task: Any, rollout: Any) -> bool:
        """Whether it grades a missing answer, and survives the expected one, which may lack artifacts that it needs."""
        key = grader.path, grader.sha256
        if key not in self._sound:
            try:
                with self._place():
                    self._run(task, MISSING_ANSWER, rollout, fresh=True)
                    if task.expected is not None:
                        with contextlib.suppress(GraderFailed):
                            self._run(task, Answer(value=task.expected), rollout, fresh=True)
            except (_Broke, GraderFailed):
                self._sound[key] = False
            else:
                self._sound[key] = True
        return self._sound[key]

    def close_idle(self) -> None:
        """End the processes that grade nothing; another grade starts a new one."""
        with self._changed:
            idle, self._idle = self._idle, []
        for process in idle:
            process.close()

    def close(self) -> None:
        """End all processes. Nothing is graded any more."""
        with self._changed:
            self._closed = True
            busy = list(self._busy)
        for process in busy:
            process.kill()
        self.close_idle()

    # ---- places

    @contextlib.contextmanager
    def _place(self) -> Iterator[None]:
        with self._changed:
            self._changed.wait_for(lambda: not self._exclusive and self._running < self._most)
            self._running += 1
        try:
            yield
        finally:
            with self._changed:
                self._running -= 1
                self._changed.notify_all()

    @contextlib.contextmanager
    def _whole_pool(self) -> Iterator[None]:
        with self._changed:
            self._exclusive += 1
            self._changed.wait_for(lambda: not self._running)
            self._running += 1
        try:
            yield
        finally:
            with self._changed:
                self._running -= 1
                self._exclusive -= 1
                self._changed.notify_all()

    # ---- one grade

    def _run(self, task: Any, answer: Answer, rollout: Any, *, fresh: bool) -> Grade:
        process = self._take(fresh=fresh)
        keep = False
        try:
            reply = _parse(process.ask(task, answer, rollout, self.seconds))
            keep = not reply.get("spoiled")
            return _grade_of(reply)
        except ProcessTooSlow as slow:
            problem = f"the grader took more than {self.seconds:g} s{_place_text(task, slow.frames)}"
            by_itself = slow.processor_s >= BUSY * self.seconds
            by_machine = not by_itself and slow.delay_s > self.seconds
            raise _Broke(problem, by_itself=by_itself, by_machine=by_machine) from None
        except ProcessEnded as ended:
            problem = f"{_end_text(ended.returncode)}{_place_text(task, ended.frames)}"
            by_itself = ended.returncode != -signal.SIGKILL
            raise _Broke(problem, by_itself=by_itself, by_machine=ended.by_others) from None
        except GraderFailed:
            if process.has_run_others(task):
                keep = False
                raise _Unsure from None
            raise
        finally:
            self._give_back(process, keep)

    def _take(self, *, fresh: bool) -> GraderProcess:
        with self._changed:
            if self._closed:
                raise GraderFailed("the grader was not run: the process is ending")
            idle = self._idle.pop() if self._idle else None
            process = GraderProcess() if fresh or idle is None else idle
            self._busy.add(process)
        if idle is not None and idle is not process:  # so that there are not more processes than places
            idle.kill()
        return process

    def _give_back(self, process: GraderProcess, keep: bool) -> None:
        with self._changed:
            self._busy.discard(process)
            keep = keep and not self._closed
            if keep:
                self._idle.append(process)
        if not keep:
            process.kill()


def _parse(reply: bytes) -> Mapping[str, Any]:
    try:
        parsed = json.loads(reply)
    except (ValueError, RecursionError):
        parsed = None
    if not isinstance(parsed, dict):
        raise GraderFailed("the grader's process sent what is no reply; it may not use descriptors of others")
    return parsed


def _grade_of(reply: Mapping[str, Any]) -> Grade:
    """The Grade that a process sent, checked like any other."""
    if (failed := reply.get("failed")) is not None:
        raise GraderFailed(str(failed))
    if (raised := reply.get("raised")) is not None:
        raise GraderFailed.by(str(raised), str(reply.get("text")), str(reply.get("place") or ""))
    try:
        reasons = tuple(Reason(str(path), expected, answered) for path, expected, answered in reply["reasons"])
        note = reply["note"]
        return Grade(reply["reward"], reasons, None if note is None else str(note))
    except (KeyError, TypeError, ValueError) as error:
        raise GraderFailed(f"the grader's process sent what is no Grade: {error}") from None


def _end_text(returncode: int) -> str:
    if returncode >= 0:
        return f"the grader ended its process with exit code {returncode}"
    with contextlib.suppress(ValueError):
        name = signal.Signals(-returncode).name
        return f"the grader's process was ended by {name}" + (", out of memory?" if name == "SIGKILL" else "")
    return f"the grader's process was ended by signal {-returncode}"


def _place_text(task: Any, frames: list[tuple[str, int]]) -> str:
    """The line of the task's own grader, of the frames with the innermost first."""
    own = next((line for file, line in frames if file == os.fspath(task.grader.path)), None)
    return "" if own is None else f" ({task.grader.path.name}:{own})"


POOL: Final = GraderPool()
atexit.register(POOL.close)
