"""Runs `grader.py` in worker processes, so that what a grader does with an answer only affects its own grade.

A grader may hold the GIL, crash, or call `os._exit`, because of its own faults or because of an agent's answer. So it
runs in a process that can be killed. Processes are started when they are needed and used again, because a start takes
longer than most grades.

Requests are pickles. Replies are JSON and never unpickled: an agent's answer may have taken over its grader.
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

from pytest_core_rollouts.grading.answers import NO_FILES, Answer, Grade
from pytest_core_rollouts.grading.comparing import Reason
from pytest_core_rollouts.grading.failures import GraderFailed
from pytest_core_rollouts.grading.threads import GRADE_SECONDS, without_limit
from pytest_core_rollouts.tasks.grader_process import GraderProcess, ProcessEnded, ProcessTooSlow

if TYPE_CHECKING:
    from pytest_core_rollouts.tasks.grader_file import OwnGrader

PROCESSES: Final = 4
BUSY: Final = 0.8
"""If a grader had the processor for this share of its limit, no other process can have slowed it down."""
MISSING_ANSWER: Final = Answer(problem=NO_FILES)


class AnswerBrokeGrader(GraderFailed):
    """The answer made its grader crash or hang, twice, and the grader works on other answers: reward 0."""

    code = "grader_broken"


class _Broke(Exception):
    """A grader crashed or took too long; str: which, and at which line.

    `by_itself`: other processes can't be the reason. It crashed other than by SIGKILL, which the kernel sends if memory
    is short, or it had the processor for most of its time.
    `by_machine`: other processes must be the reason. It was killed and had little memory, or it waited for a processor
    longer than its limit.
    """

    def __init__(self, problem: str, *, by_itself: bool, by_machine: bool) -> None:
        super().__init__(problem)
        self.by_itself, self.by_machine = by_itself, by_machine


class _Unsure(Exception):
    """A grader failed in a process that ran other graders before, so one of these may be the reason."""


class GraderPool:
    """At most `max_processes` processes, with a limit of `seconds` for a grade. Thread-safe."""

    def __init__(self, *, seconds: float | None = None, max_processes: int = PROCESSES) -> None:
        self._seconds = seconds
        self._max_processes = max_processes
        self._changed = threading.Condition()
        self._idle: list[GraderProcess] = []
        self._busy: set[GraderProcess] = set()
        self._running = 0
        self._exclusive = 0
        """How many threads wait for the whole pool or have it."""
        self._closed = False
        self._sound: dict[tuple[Path, str], bool] = {}
        """Whether a grader, by path and digest, graded a missing answer without a failure."""

    @property
    def seconds(self) -> float:
        """The limit of a grade."""
        return GRADE_SECONDS if self._seconds is None else self._seconds

    def grade(self, grader: OwnGrader, task: Any, answer: Answer, rollout: Any) -> Grade:
        """Return what `grade()` of the `grader.py` returns. Raises GraderFailed.

        A grader that breaks is tried again, in a new process. If other processes may be the reason, no other grader
        runs at the same time; only then, because otherwise an agent could delay all grading for a minute.
        """
        with without_limit():
            failures = 0
            exclusive = fresh = False
            while True:
                try:
                    with self._place(whole_pool=exclusive):
                        return self._run(task, answer, rollout, fresh=fresh)
                except _Unsure:
                    fresh = True
                except _Broke as broke:
                    failures += 1
                    if self._sound.get((grader.path, grader.sha256)) is False:
                        raise GraderFailed(str(broke)) from None
                    if failures > 1 and (exclusive or broke.by_itself):
                        failure, by_machine = str(broke), broke.by_machine
                        break
                    fresh, exclusive = True, not broke.by_itself
            if by_machine:
                advice = "run fewer rollouts at once, then grade again"
                raise GraderFailed(f"{failure}; other processes used up the machine; {advice}")
            if not self._is_sound(grader, task, rollout):
                raise GraderFailed(failure)
        graded = "a missing answer" if task.expected is None else "a missing answer and the expected one"
        raise AnswerBrokeGrader(f"grader_broken: {failure}, twice; it grades {graded}, so this answer broke it")

    def _is_sound(self, grader: OwnGrader, task: Any, rollout: Any) -> bool:
        """Return True if it grades a missing answer, and does not break on the expected one.

        It may raise on the expected one, which may lack artifacts.
        """
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
        """End the processes that are idle. The next grade starts one again."""
        with self._changed:
            idle, self._idle = self._idle, []
        for process in idle:
            process.close()

    def close(self) -> None:
        """End all processes. Later grades raise GraderFailed."""
        with self._changed:
            self._closed = True
            busy = list(self._busy)
        for process in busy:
            process.kill()
        self.close_idle()

    # ---- places

    @contextlib.contextmanager
    def _place(self, *, whole_pool: bool = False) -> Iterator[None]:
        """Wait for one place, or until no other grader runs; then no other starts."""
        with self._changed:
            self._exclusive += whole_pool
            self._changed.wait_for(lambda: self._is_free(whole_pool=whole_pool))
            self._running += 1
        try:
            yield
        finally:
            with self._changed:
                self._running -= 1
                if self._exclusive:
                    self._exclusive -= whole_pool
                    self._changed.notify_all()
                else:  # all that wait want one place, so the others need not wake up
                    self._changed.notify()

    def _is_free(self, *, whole_pool: bool) -> bool:
        return not self._running if whole_pool else not self._exclusive and self._running < self._max_processes

    # ---- one grade

    def _run(self, task: Any, answer: Answer, rollout: Any, *, fresh: bool) -> Grade:
        process = self._take(fresh=fresh)
        keep = False
        try:
            reply = _parse(process.grade(task, answer, rollout, self.seconds))
            keep = not reply.get("spoiled")
            if reply.get("takes_rollout") is False:
                process.leave_out_rollout(task)
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
        if idle is not None and idle is not process:  # a new process replaces it
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
        raise GraderFailed(
            "the grader's process sent an invalid reply; a grader must not write to descriptors that it did not open"
        )
    return parsed


def _grade_of(reply: Mapping[str, Any]) -> Grade:
    """Return the Grade in a reply, checked like any other. Raises GraderFailed."""
    if (failed := reply.get("failed")) is not None:
        raise GraderFailed(str(failed))
    if (raised := reply.get("raised")) is not None:
        raise GraderFailed.by(str(raised), str(reply.get("text")), str(reply.get("place") or ""))
    try:
        reasons = tuple(Reason(str(path), expected, answered) for path, expected, answered in reply["reasons"])
        note = reply["note"]
        return Grade(reply["reward"], reasons, None if note is None else str(note), reply["metrics"])
    except (KeyError, TypeError, ValueError) as error:
        raise GraderFailed(f"the grader's process sent an invalid Grade: {error}") from None


def _end_text(returncode: int) -> str:
    if returncode >= 0:
        return f"the grader ended its process with exit code {returncode}"
    with contextlib.suppress(ValueError):
        name = signal.Signals(-returncode).name
        return f"the grader's process was ended by {name}" + (", out of memory?" if name == "SIGKILL" else "")
    return f"the grader's process was ended by signal {-returncode}"


def _place_text(task: Any, frames: list[tuple[str, int]]) -> str:
    """Return the innermost line in the task's grader.py, in brackets; "" if it is in none of the frames."""
    own = next((line for file, line in frames if file == os.fspath(task.grader.path)), None)
    return "" if own is None else f" ({task.grader.path.name}:{own})"


POOL: Final = GraderPool()
atexit.register(POOL.close)
