"""One rollout's life: create the Session, wait for its Turn, fetch the answer, grade it, keep it, delete the Session.

`RolloutRunner.run` never raises for what can go wrong with one rollout: it returns a record that says so. The record
goes to `save`, in a thread, before the Session is deleted, so that a crash in between leaves a Session to sweep and
never a result to pay for twice. What `save` itself raises (a full disk) ends the run.
"""

from __future__ import annotations

import asyncio
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pytest_core_rollouts.agents_api import AgentsAPIError, APIStatusError, FaultPolicy
from pytest_core_rollouts.agents_api.errors import printable
from pytest_core_rollouts.agents_api.fault_policies import LocalFault, SessionFault
from pytest_core_rollouts.grading.answers import Answer, Grade
from pytest_core_rollouts.grading.threads import GraderFailed, Graders
from pytest_core_rollouts.records.record import INTERRUPTED, RolloutRecord, Status, tokens_of
from pytest_core_rollouts.rollout.adaptive_limit import AdaptiveLimit
from pytest_core_rollouts.rollout.fetching import fetch_answer, fetch_items, fetch_outputs
from pytest_core_rollouts.rollout.progress import Progress, lost_record
from pytest_core_rollouts.rollout.session_creation import SessionCreation, adopted_age, session_body, wait_for_slot
from pytest_core_rollouts.rollout.session_deletion import delete_session
from pytest_core_rollouts.rollout.stopping import Stop, Stopped, end
from pytest_core_rollouts.rollout.waiting import Fault, TurnWatch
from pytest_core_rollouts.rollout.witnesses import Witnesses, used_a_tool
from pytest_core_rollouts.tasks.files import TaskError
from pytest_core_rollouts.tasks.matrix import MatrixError, Rollout
from pytest_core_rollouts.tasks.task import Task

if TYPE_CHECKING:
    from pytest_core_rollouts.agents_api import Client, Session

__all__ = ["Grader", "Limits", "Outcome", "RolloutRunner", "lost_record"]

Grader = Callable[[Task, Answer, Rollout], Grade]
KeepFiles = Callable[[Rollout, int, Mapping[str, bytes]], Sequence[Mapping[str, Any]]]
"""Takes a rollout, its attempt and the files its agent made; gives the row's `outputs`. What it raises ends the run."""

WORTH_TELLING = 1.0
"""Seconds lost on the Core that a record notes."""

TURN_WARNINGS_MOST = 5
"""Warnings of a Turn that a record keeps."""


@dataclass(frozen=True)
class Limits:
    """Seconds that each stage beside the agent's own may take."""

    first_look: float = 0.5
    """From a Session's creation to the first look at its Turn, by when the event stream should be open."""
    cancel: float = 15.0
    """For a Turn to end after it was cancelled."""
    fetch: float = 600.0
    delete: float = 15.0
    """For a busy Session to become deletable."""
    unanswered: float = 10.0
    """For Core to answer, past twice the rollout's own limit."""
    create_stopped: float = 2.0
    """For a Session's creation to end once a stop is asked for: a Session we know of can be deleted."""
    outage: float = 3600.0
    """For a Core that is down for everyone to make a Session; then the run stops."""


@dataclass(frozen=True)
class Outcome:
    """What a rollout came to: its record with its trajectory, and what else there is to report."""

    record: RolloutRecord
    warnings: tuple[str, ...] = ()
    fatal: str | None = None
    """A fault that every other rollout would meet too: the reason to stop the run."""
    reused: bool = False
    """Whether it comes from a row of an earlier session, and nothing was run."""


@dataclass(frozen=True)
class RolloutRunner:
    """What all rollouts of a run share."""

    grade: Grader
    save: Callable[[RolloutRecord], None]
    """Called in a thread of its own, several at a time."""
    graders: Graders = field(default_factory=Graders)
    model_key: Callable[[Rollout], str | None] = field(default=lambda rollout: None, repr=False)
    """The key for the rollout's own model endpoint."""
    core_is_ours: bool = False
    """Whether we started the Core, so that it may get solutions."""
    keep_items: bool = True
    keep_files: KeepFiles | None = None
    limits: Limits = Limits()
    adaptive_limit: AdaptiveLimit = field(default_factory=AdaptiveLimit)
    witnesses: Witnesses = field(default_factory=lambda: Witnesses(task_count=lambda run_id: 0))
    halted: Callable[[], str | None] = lambda: None
    """Why no further attempt may start, or None."""
    spoiled: Callable[[int | None], None] = lambda tokens: None
    """Told of an attempt that made way for another what its Turn took: no record has it. None: that is unknown."""

    async def run(self, client: Client, rollout: Rollout, stop: Stop | None = None) -> Outcome:
        """Run one rollout to its record, with a new attempt where infrastructure spoiled one.

        Once a stop is asked for, it is over by the stop's deadline: with the result of a Turn that completed before,
        else with a `cancelled` record. A run that is cancelled itself keeps a `cancelled` record too.
        """
        stop = stop or Stop()
        work = asyncio.ensure_future(self._attempts(client, rollout, stop))
        try:
            if not await stop.before(work):
                assert stop.deadline is not None
                client.deadline = stop.deadline if client.deadline is None else min(client.deadline, stop.deadline)
                await asyncio.wait({work}, timeout=stop.left)
        finally:
            await end(work)
            client.deadline = None
        return work.result()

    async def _attempts(self, client: Client, rollout: Rollout, stop: Stop) -> Outcome:
        notes: list[str] = []
        warnings: list[str] = []
        number, last = rollout.attempt, rollout.attempt + rollout.retries
        pause: float | None = None
        taken = rollout.retries + 1  # attempts that an earlier process may have spent on this rollout
        while True:
            progress = Progress(rollout, number, list(notes))
            attempt = _Attempt(self, client, stop, progress, pause=pause)
            attempt.may_retry, attempt.may_be_taken = number < last, taken > 0
            outcome = await attempt.run()
            warnings += attempt.warnings
            if outcome is not None:
                return replace(outcome, warnings=tuple(warnings))
            notes.append(f"attempt {number}: {attempt.ending.error}")
            if progress.turn is not None:
                self.spoiled(tokens_of(progress.turn.get("usage")))
            pause = attempt.ending.pause
            if attempt.ending.taken:
                last, taken = last + 1, taken - 1
            number += 1


@dataclass(frozen=True)
class _End:
    """How an attempt ended: what its record says, and what follows from it."""

    status: Status
    reward: float | None
    error: str | None = None
    retry: bool = False
    fatal: str | None = None
    pause: float = 0.0
    """Seconds that the next attempt has to wait."""
    taken: bool = False
    """Whether an attempt of an earlier process had this one's key, and its Session is deleted."""

    @classmethod
    def by(cls, policy: FaultPolicy, error: str, **more: Any) -> _End:
        """End the attempt as the policy says."""
        fatal = printable(error, 1000) if policy.stops and not policy.needs_witness else None
        return cls(policy.status, policy.reward, error, policy.attempt, fatal, **more)


class _Attempt:
    """One Session from its creation to its deletion; `pause` seconds after the attempt before it, if there was one."""

    def __init__(
        self, runner: RolloutRunner, client: Client, stop: Stop, progress: Progress, *, pause: float | None
    ) -> None:
        self.runner = runner
        self.client = client
        self.stop = stop
        self.progress = progress
        self.pause = pause
        self.may_retry = self.may_be_taken = False
        self.warnings: list[str] = []
        self.ending = _End("cancelled", None, INTERRUPTED)
        self.outcome: Outcome | None = None
        self.keeping: asyncio.Future[None] | None = None
        self.adopted: Session | None = None
        """The Session as it was returned, if an earlier request had created it."""

    async def run(self) -> Outcome | None:
        """The outcome; None where another attempt is to be made instead, because of how this one ended."""
        self.client.request_ids.clear()
        self.client.waited_s, self.client.waited_for = 0.0, None
        try:
            self.ending = await self._judged()
            if not self._makes_way():
                await self._keep_or_tell()
            await self._delete()
        except asyncio.CancelledError:  # the time is over: what is known is kept, without another request
            if self.keeping is not None:  # it came too late: the row is being written, and there is one
                await _settled(self.keeping)
            else:
                self._keep(_End("cancelled", None, INTERRUPTED))
            self._left_behind("the run was interrupted before it was deleted")
        finally:
            self.runner.adaptive_limit.leave(self.client)
        return self.outcome

    def _makes_way(self) -> bool:
        """Whether another attempt follows."""
        if self.stop.asked or self.runner.halted() is not None:
            return False
        return self.may_be_taken if self.ending.taken else self.ending.retry and self.may_retry

    async def _keep_or_tell(self) -> None:
        """Keep the record. Where it can't be, a Session that has a result stays: whoever resumes finds it there."""
        try:
            await self._keep_aside(self.ending)
        except Exception:
            if self.ending.reward is None:
                await self._delete()
            raise

    async def _keep_aside(self, ending: _End) -> None:
        """Keep the record, in a thread: what a slow disk takes its time for is not to hold up the other rollouts."""
        self.keeping = asyncio.ensure_future(asyncio.to_thread(self._keep, ending))
        await asyncio.shield(self.keeping)

    def _keep(self, ending: _End) -> None:
        progress, keep_files = self.progress, self.runner.keep_files
        waited, cause = progress.waited + self.client.waited_s, self.client.waited_for
        if waited >= WORTH_TELLING and cause is not None:
            progress.notes.append(f"waited {waited:.0f} s for the Core, beside its limit ({cause.problem})")
        outputs: Sequence[Mapping[str, Any]] = ()
        if keep_files is not None and progress.answer.artifacts:
            outputs = keep_files(progress.rollout, progress.attempt, progress.answer.artifacts)
        record = progress.record(ending.status, ending.reward, ending.error, self.client.request_ids, outputs)
        self.runner.save(record)
        self.outcome = Outcome(record, fatal=ending.fatal)

    async def _judged(self) -> _End:
        """How it ended, whatever went wrong."""
        try:
            return await self._lived()
        except Fault as fault:
            policy, ending = fault.policy, self._pressed(fault.policy, str(fault))
        except GraderFailed as failure:
            return _End.by(LocalFault(failure.code).policy, str(failure))
        except Stopped:
            return _End.by(LocalFault.INTERRUPTED.policy, INTERRUPTED)
        except AgentsAPIError as error:
            taken = isinstance(error, APIStatusError) and error.code == "idempotency_conflict"
            return _End.by(error.policy, str(error), taken=taken and self.progress.session_id is None)
        except TaskError as error:
            return _End.by(LocalFault.TASK_CHANGED.policy, str(error))
        except MatrixError as error:
            return _End.by(LocalFault.INVALID_AGENT.policy, str(error))
        except Exception as error:  # noqa: BLE001 - one rollout's oddity must not end the others; it is in its record
            return _End.by(LocalFault.INTERNAL_ERROR.policy, f"internal error: {_located(error)}")
        await self._read_items()
        witnesses, rollout = self.runner.witnesses, self.progress.rollout
        if policy.needs_witness and await self._is_witness() and witnesses.confirm(policy, rollout):
            return replace(ending, fatal=printable(str(ending.error), 1000))
        return ending

    async def _is_witness(self) -> bool:
        """Whether the fault of the model's server can't be the agent's own doing."""
        items, session_id = self.progress.items, self.progress.session_id
        if items is None and session_id is not None:
            self._allow(self.runner.limits.fetch)
            try:
                items, _ = await fetch_items(self.client, session_id)
            except AgentsAPIError:
                return False
        return items is not None and not used_a_tool(items)

    def _pressed(self, policy: FaultPolicy, error: str) -> _End:
        """The end by a fault of the Turn or the Session; a throttled Turn slows down what follows."""
        setting = self.progress.rollout.failed_turns
        if policy.unexplained and setting is not None:
            counted = "missing" if setting == "missing" else "reward 0"
            note = f"the Core does not say why the Turn failed; counted as {counted} (--rollout-failed-turns)"
            self.progress.notes.append(note)
            if setting == "zero":
                policy = replace(policy, reward=0.0, attempt=False)
        pause = self.runner.adaptive_limit.turn_throttled(self.progress.start) if policy.throttles else 0.0
        return _End.by(policy, error, pause=pause)

    async def _lived(self) -> _End:
        self.progress.session_id = await self._create()
        how = await self._wait()
        self.runner.adaptive_limit.turn_ok()
        if how == "completed":
            self.runner.witnesses.refute(self.progress.rollout)
        self._allow(self.runner.limits.fetch)
        if how == "timeout":
            await self._read_items()
            policy = SessionFault.TIMEOUT.policy
            return _End(policy.status, policy.reward)
        await self._fetch(self.progress.session_id)
        await self._read_items()
        self.progress.fetched = time.monotonic()
        grade = await self._grade()
        self.progress.grade = grade
        return _End("completed", grade.reward)

    # ---- the stages

    async def _create(self) -> str:
        rollout, limits, progress = self.progress.rollout, self.runner.limits, self.progress
        body = session_body(
            rollout,
            attempt=progress.attempt,
            model_key=self.runner.model_key(rollout),
            core_is_ours=self.runner.core_is_ours,
        )
        if self.pause is not None:
            await wait_for_slot(self.runner.adaptive_limit, self.stop, pause=self.pause, halted=self.runner.halted)
            progress.begin()
        self.runner.adaptive_limit.enter(self.client)
        creation = SessionCreation(
            self.client,
            self.runner.adaptive_limit,
            self.stop,
            seconds=2 * rollout.timeout + limits.unanswered,
            grace=limits.create_stopped,
            outage=limits.outage,
            unanswered=limits.unanswered,
            halted=self.runner.halted,
        )
        session, waited = await creation.create(body, rollout.idempotency_key(progress.attempt))
        progress.start += waited
        progress.waited, self.client.waited_s = waited, 0.0
        progress.created = time.monotonic()
        if (age := adopted_age(session, self.client, since=progress.start)) is not None:
            progress.begin_earlier(age)
            progress.notes.append(f"adopted a Session that had been created {age:.0f} s before; its limit goes on")
            self.adopted = session
        return session["id"]

    async def _wait(self) -> Literal["completed", "timeout"]:
        progress, limits = self.progress, self.runner.limits
        assert progress.session_id is not None
        limit = progress.rollout.timeout
        watch = TurnWatch(
            self.client,
            progress.session_id,
            start=progress.start,
            limit=limit,
            first_look=limits.first_look,
            cancel_grace=limits.cancel,
            created_at=None if self.adopted is None else self.adopted["created_at"],
        )
        usual = self.client.retry
        self.client.retry = replace(usual, patience=max(usual.patience, 2 * limit))  # the deadline ends an outage
        try:
            return await self.stop.unless_stopped(watch.until_end())
        except Stopped:
            return await watch.interrupt(self.stop.left / 2)  # the other half is for the rest
        finally:
            self.client.retry = usual
            progress.turn, progress.began, progress.ended = watch.turn, watch.began, time.monotonic()
            if watch.server_seconds is not None:  # it may have ended long before we saw it
                progress.ended = min(progress.ended, progress.start + watch.server_seconds)
                progress.began = progress.ended if progress.began is None else min(progress.began, progress.ended)
            progress.notes += [*watch.notes, *_turn_warnings(watch.turn)]

    async def _fetch(self, session_id: str) -> None:
        progress = self.progress
        progress.answer = await fetch_answer(self.client, session_id, progress.turn_id)
        if (outputs := progress.rollout.task.outputs) is not None:
            artifacts, notes = await fetch_outputs(self.client, session_id, progress.turn_id, outputs)
            progress.answer = replace(progress.answer, artifacts=artifacts)
            progress.notes += notes

    async def _read_items(self) -> None:
        """The trajectory. Where it can't be read, that is noted: it takes nothing from the result."""
        session_id = self.progress.session_id
        if session_id is None or not self.runner.keep_items:
            return
        self._allow(self.runner.limits.fetch)
        try:
            self.progress.items, note = await fetch_items(self.client, session_id)
            self.progress.notes += [note] if note is not None else []
        except AgentsAPIError as error:
            self.progress.notes.append(f"the Items could not be read: {error}")

    async def _grade(self) -> Grade:
        rollout, answer = self.progress.rollout, self.progress.answer
        grade = await self.runner.graders.call(lambda: self.runner.grade(rollout.task, answer, rollout))
        if not isinstance(grade, Grade):
            raise GraderFailed(f"the grader returned {grade!r:.200}, not a Grade")
        return grade

    async def _delete(self) -> None:
        """Delete the Session; a failure is a warning that names it, and never changes the result."""
        if self.progress.session_id is None:
            return
        self._allow(self.runner.limits.delete)
        try:
            await delete_session(self.client, self.progress.session_id)
        except AgentsAPIError as error:
            self._left_behind(str(error))

    # ---- what they share

    def _allow(self, seconds: float) -> None:
        """The requests that follow have so many seconds, and no more than a stop leaves."""
        until = time.monotonic() + seconds
        self.client.deadline = until if self.stop.deadline is None else min(until, self.stop.deadline)

    def _left_behind(self, why: str) -> None:
        rollout_id, session_id = self.progress.rollout.rollout_id, self.progress.session_id
        if session_id is not None:
            self.warnings.append(f"Session {session_id} of {rollout_id} is left behind: {why}")


def _turn_warnings(turn: Mapping[str, Any] | None) -> list[str]:
    """What the Core wants users to know about a Turn although it decides nothing: an extension of the wire."""
    warnings = turn.get("warnings") if turn is not None else None
    texts = [text for text in warnings if isinstance(text, str)] if isinstance(warnings, list) else []
    return [printable(text, 500) for text in texts[:TURN_WARNINGS_MOST]]


async def _settled(work: asyncio.Future[None]) -> None:
    """Wait for what must come to its end, however often this task is cancelled. Raises what it raised."""
    while not work.done():
        with suppress(asyncio.CancelledError):
            await asyncio.wait({work})
    work.result()


def _located(error: Exception) -> str:
    """An unexpected exception with the place that it came from."""
    frames = traceback.extract_tb(error.__traceback__)
    where = f" ({Path(frames[-1].filename).name}:{frames[-1].lineno})" if frames else ""
    return f"{type(error).__name__}: {error}{where}"
