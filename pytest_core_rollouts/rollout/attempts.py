"""One attempt at a rollout: one Session, from its creation to its deletion."""

from __future__ import annotations

import asyncio
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pytest_core_rollouts.agents_api import AgentsAPIError, APIStatusError, FaultPolicy
from pytest_core_rollouts.agents_api.errors import short_line
from pytest_core_rollouts.agents_api.fault_policies import LocalFault, SessionFault, response_fault_policy
from pytest_core_rollouts.grading.answers import Grade
from pytest_core_rollouts.grading.failures import GraderFailed
from pytest_core_rollouts.records.record import INTERRUPTED, RolloutRecord, Status
from pytest_core_rollouts.rollout.attempt_state import AttemptState, grade_note
from pytest_core_rollouts.rollout.fetching import fetch_answer, fetch_items, fetch_outputs
from pytest_core_rollouts.rollout.session_adoption import LaterAttempt, SingleSession
from pytest_core_rollouts.rollout.session_creation import (
    SessionCreation,
    adopted_age,
    metadata,
    session_body,
    wait_for_slot,
)
from pytest_core_rollouts.rollout.session_deletion import delete_session
from pytest_core_rollouts.rollout.stopping import Stop, Stopped, wait_uncancelled
from pytest_core_rollouts.rollout.turn_watch import AttemptFailed, TurnWatch, turn_warnings
from pytest_core_rollouts.rollout.witnesses import used_a_tool
from pytest_core_rollouts.tasks.files import TaskError
from pytest_core_rollouts.tasks.matrix import MatrixError, run_began

if TYPE_CHECKING:
    from pytest_core_rollouts.agents_api import Client, Session
    from pytest_core_rollouts.rollout.runner import RolloutRunner

MIN_NOTED_WAIT = 1.0
"""Seconds lost to the Core from which on a record notes them."""


@dataclass(frozen=True)
class Outcome:
    """The result of a rollout: its record, with its trajectory, and what else there is to report."""

    record: RolloutRecord
    warnings: tuple[str, ...] = ()
    fatal: str | None = None
    """Why the run has to stop: a fault that every other rollout would meet too. None if it goes on."""
    reused: bool = False
    """Whether it comes from a row of an earlier session, so that nothing was run."""


@dataclass(frozen=True)
class _Ending:
    """How an attempt ended: what its record says, and what follows from it."""

    status: Status
    reward: float | None
    error: str | None = None
    retry: bool = False
    fatal: str | None = None
    pause: float = 0.0
    """Seconds that the next attempt has to wait."""
    key_taken: bool = False
    """Whether an earlier process used this attempt's key, and its Session is deleted."""

    @classmethod
    def from_policy(cls, policy: FaultPolicy, error: str, **more: Any) -> _Ending:
        """Return what the policy says about a fault."""
        fatal = short_line(error, 1000) if policy.stops and not policy.needs_witness else None
        return cls(policy.status, policy.reward, error, policy.attempt, fatal, **more)


_INTERRUPTED = _Ending("cancelled", None, INTERRUPTED)


class Attempt:
    """One Session, from its creation to its deletion. It starts `pause` seconds after the attempt before, if any."""

    def __init__(
        self,
        runner: RolloutRunner,
        client: Client,
        stop: Stop,
        state: AttemptState,
        *,
        pause: float | None,
        maybe_begun: bool,
    ) -> None:
        self.runner = runner
        self.client = client
        self.stop = stop
        self.state = state
        self.pause = pause
        self.may_retry = self.may_skip_taken_key = False
        self.warnings: list[str] = []
        self.ending = _INTERRUPTED
        self.outcome: Outcome | None = None
        self.saving: asyncio.Future[None] | None = None
        self.adopted: Session | None = None
        """The Session as it was returned, if an earlier request had created it."""
        self.single = None if runner.dialect.idempotent_create else self._single_session(maybe_begun)

    async def run(self, release: Callable[[], None]) -> Outcome | None:
        """Run the attempt. Returns None if it ended in a way that another attempt has to follow."""
        self.client.request_ids.clear()
        self.client.waited_s, self.client.waited_for = 0.0, None
        try:
            self.ending = await self._run_and_classify()
            await self._wait_for_usage(release)
            if not self._will_retry():
                await self._save_record()
            await self._delete()
        except asyncio.CancelledError:  # the time is over: save what is known, without another request
            if self.saving is not None:  # the row is being written already, so this one stays
                await wait_uncancelled(self.saving)
            else:
                self._save(_INTERRUPTED)
            self._warn_of_leftover("the run was interrupted before it was deleted")
        finally:
            self.runner.adaptive_limit.leave(self.client)
        return self.outcome

    def _will_retry(self) -> bool:
        """Return whether another attempt follows."""
        if self.stop.requested or self.runner.halted() is not None:
            return False
        return self.may_skip_taken_key if self.ending.key_taken else self.ending.retry and self.may_retry

    # ---- saving

    async def _save_record(self) -> None:
        """Save the record. If that fails, a Session that has a result is not deleted: a resume adopts it."""
        try:
            # In a thread, because a slow disk must not hold up the other rollouts.
            self.saving = asyncio.ensure_future(asyncio.to_thread(self._save, self.ending))
            await asyncio.shield(self.saving)
        except Exception:
            if self.ending.reward is None:
                await self._delete()
            raise

    def _save(self, ending: _Ending) -> None:
        state, keep_files = self.state, self.runner.keep_files
        waited, cause = state.waited + self.client.waited_s, self.client.waited_for
        if waited >= MIN_NOTED_WAIT and cause is not None:
            state.notes.append(f"waited {waited:.0f} s for the Core, which the limit does not count ({cause.problem})")
        outputs: Sequence[Mapping[str, Any]] = ()
        if keep_files is not None and state.answer.artifacts:
            outputs = keep_files(state.rollout, state.attempt, state.answer.artifacts)
        record = state.record(ending.status, ending.reward, ending.error, self.client.request_ids, outputs)
        note = None if state.grade is None else grade_note(state.rollout.task, state.answer, state.grade)
        record = self.runner.explain(record, note)
        self.runner.save(record)
        self.outcome = Outcome(record, fatal=ending.fatal)

    # ---- how it ended

    async def _run_and_classify(self) -> _Ending:
        """Run the Session and return how the attempt ended, whatever went wrong."""
        try:
            return await self._run_session()
        except AttemptFailed as fault:
            policy, ending = fault.policy, self._classify_turn_fault(fault.policy, str(fault))
        except GraderFailed as failure:
            return _Ending.from_policy(LocalFault(failure.code).policy, str(failure))
        except Stopped:
            return _Ending.from_policy(LocalFault.INTERRUPTED.policy, INTERRUPTED)
        except AgentsAPIError as error:
            return self._classify_call_fault(error)
        except LaterAttempt as error:
            policy = response_fault_policy(409, "idempotency_conflict", creating=True)
            return _Ending.from_policy(policy, str(error), key_taken=True)
        except TaskError as error:
            return _Ending.from_policy(LocalFault.TASK_CHANGED.policy, str(error))
        except MatrixError as error:
            return _Ending.from_policy(LocalFault.INVALID_AGENT.policy, str(error))
        except Exception as error:  # noqa: BLE001 - a bug that one rollout meets must not end the others
            return _Ending.from_policy(LocalFault.INTERNAL_ERROR.policy, f"internal error: {_describe(error)}")
        await self._read_items()
        witnesses, rollout = self.runner.witnesses, self.state.rollout
        if policy.needs_witness and await self._is_witness() and witnesses.confirm(policy, rollout):
            return replace(ending, fatal=short_line(str(ending.error), 1000))
        return ending

    def _classify_call_fault(self, error: AgentsAPIError) -> _Ending:
        """Return how a failed call ends the attempt. Refused Sessions end the run if all others would be refused."""
        if self.state.session_id is not None or not isinstance(error, APIStatusError):
            return _Ending.from_policy(error.policy, str(error))
        ending = _Ending.from_policy(error.policy, str(error), key_taken=error.code == "idempotency_conflict")
        if error.policy.refuses and self.runner.refusals.confirm(error, self.state.rollout):
            reason = f"the Core refuses every Session in the same way: {error}"
            return replace(ending, fatal=short_line(reason, 1000))
        return ending

    async def _is_witness(self) -> bool:
        """Return whether the agent can't have caused the fault of the model's server."""
        items, session_id = self.state.items, self.state.session_id
        if items is None and session_id is not None:
            self._set_deadline(self.runner.timeouts.fetch)
            try:
                items, _ = await fetch_items(self.client, session_id)
            except AgentsAPIError:
                return False
        return items is not None and not used_a_tool(items)

    def _classify_turn_fault(self, policy: FaultPolicy, error: str) -> _Ending:
        """Return how a fault of the Turn or Session ends the attempt. A throttled Turn lowers the shared limit."""
        setting = self.state.rollout.failed_turns
        if policy.unexplained and setting is not None:
            counted = "missing" if setting == "missing" else "reward 0"
            note = f"the Core does not say why the Turn failed; counted as {counted} (--rollout-failed-turns)"
            self.state.notes.append(note)
            if setting == "zero":
                policy = replace(policy, reward=0.0, attempt=False)
        pause = self.runner.adaptive_limit.turn_throttled(self.state.start) if policy.throttles else 0.0
        return _Ending.from_policy(policy, error, pause=pause)

    # ---- the stages

    async def _run_session(self) -> _Ending:
        """Run all stages from the Session's creation to the grade."""
        self.state.session_id = await self._create()
        turn_end = await self._wait_for_turn(self.state.session_id)
        self.runner.adaptive_limit.turn_ok()
        if turn_end == "completed":
            self.runner.witnesses.refute(self.state.rollout)
        self._set_deadline(self.runner.timeouts.fetch)
        if turn_end == "timeout":
            await self._read_items()
            policy = SessionFault.TIMEOUT.policy
            return _Ending(policy.status, policy.reward)
        await self._fetch(self.state.session_id)
        await self._read_items()
        self.state.fetched = time.monotonic()
        self.state.grade = grade = await self._grade()
        return _Ending("completed", grade.reward)

    async def _create(self) -> str:
        """Create the Session and return its id."""
        runner, state, rollout, timeouts = self.runner, self.state, self.state.rollout, self.runner.timeouts
        model_key = runner.model_key(rollout)
        body = session_body(
            rollout,
            attempt=state.attempt,
            model_key=model_key,
            core_is_ours=runner.core_is_ours,
            dialect=runner.dialect,
        )
        if self.pause is not None:
            await wait_for_slot(runner.adaptive_limit, self.stop, pause=self.pause, halted=runner.halted)
            state.start_now()
        runner.adaptive_limit.enter(self.client)
        creation = SessionCreation(
            self.client,
            runner.adaptive_limit,
            self.stop,
            seconds=2 * rollout.timeout + timeouts.unanswered,
            grace=timeouts.create_stopped,
            outage=timeouts.outage,
            unanswered=timeouts.unanswered,
            halted=runner.halted,
            single=self.single,
        )
        session, waited = await creation.create(body, rollout.idempotency_key(state.attempt))
        runner.refusals.refute()
        state.start += waited
        state.waited, self.client.waited_s = waited, 0.0
        state.created = time.monotonic()
        if (age := adopted_age(session, self.client, since=state.start)) is not None:
            state.start_earlier(age)
            state.notes.append(f"adopted a Session that had been created {age:.0f} s before; its limit goes on")
            self.adopted = session
        return session["id"]

    def _single_session(self, maybe_begun: bool) -> SingleSession:
        rollout, timeouts = self.state.rollout, self.runner.timeouts
        began = run_began(rollout.run_id)
        return SingleSession(
            self.client,
            metadata(rollout, self.state.attempt),
            since=None if began is None else began.timestamp(),
            second_look=timeouts.second_look,
            delete_seconds=timeouts.delete,
            maybe_begun=maybe_begun,
        )

    async def _wait_for_turn(self, session_id: str) -> Literal["completed", "timeout"]:
        state, timeouts = self.state, self.runner.timeouts
        limit = state.rollout.timeout
        watch = TurnWatch(
            self.client,
            session_id,
            started_at=state.start,
            limit=limit,
            first_poll=timeouts.first_poll,
            cancel_timeout=timeouts.cancel,
            created_at=None if self.adopted is None else self.adopted["created_at"],
        )
        self._set_deadline(2 * limit + timeouts.unanswered)  # however long the Session took
        usual = self.client.retry
        self.client.retry = replace(usual, patience=max(usual.patience, 2 * limit))  # the deadline ends an outage
        try:
            return await self.stop.unless_stopped(watch.wait_for_end())
        except Stopped:
            return await watch.interrupt(self.stop.seconds_left / 2)  # the rest is for fetching and deleting
        finally:
            self.client.retry = usual
            state.turn, state.turn_seen, state.turn_ended = watch.turn, watch.turn_seen_at, time.monotonic()
            if watch.server_seconds is not None:  # it may have ended long before we saw it
                ended = state.turn_ended = min(state.turn_ended, state.start + watch.server_seconds)
                state.turn_seen = ended if state.turn_seen is None else min(state.turn_seen, ended)
            state.notes += [*watch.notes, *turn_warnings(watch.turn)]

    async def _fetch(self, session_id: str) -> None:
        state = self.state
        state.answer = await fetch_answer(self.client, session_id, state.turn_id)
        if (outputs := state.rollout.task.outputs) is not None:
            artifacts, notes = await fetch_outputs(self.client, session_id, state.turn_id, outputs)
            state.answer = replace(state.answer, artifacts=artifacts)
            state.notes += notes

    async def _read_items(self) -> None:
        """Read the trajectory. If that fails, it is noted and changes nothing about the result."""
        session_id = self.state.session_id
        if session_id is None or not self.runner.keep_items:
            return
        self._set_deadline(self.runner.timeouts.fetch)
        try:
            self.state.items, note = await fetch_items(self.client, session_id)
            self.state.notes += [note] if note is not None else []
        except AgentsAPIError as error:
            self.state.notes.append(f"the Items could not be read: {error}")

    async def _wait_for_usage(self, release: Callable[[], None]) -> None:
        """Read the usage of the Turn if it comes late. If that fails, the usage stays unknown."""
        runner, state = self.runner, self.state
        harness, seconds = state.rollout.agent.harness, runner.timeouts.usage
        if runner.core_is_ours or state.session_id is None or state.turn is None:
            return  # our own Core reports it with the Turn's end, or never
        if not runner.late_usage.is_expected(runner.dialect, harness, state.turn):
            return
        if not self._will_retry():
            release()
        self._set_deadline(seconds)
        reading = runner.late_usage.read(self.client, state.session_id, harness, seconds)
        with suppress(AgentsAPIError, Stopped):
            state.turn["usage"] = await self.stop.unless_stopped(reading)

    async def _grade(self) -> Grade:
        rollout, answer = self.state.rollout, self.state.answer
        grade = await self.runner.graders.call(lambda: self.runner.grade(rollout.task, answer, rollout))
        if not isinstance(grade, Grade):
            raise GraderFailed(f"the grader returned {grade!r:.200}, not a Grade")
        return grade

    async def _delete(self) -> None:
        """Delete the Session. A failure gives a warning that names it, and never changes the result."""
        if self.state.session_id is not None:
            self._set_deadline(self.runner.timeouts.delete)
            try:
                await delete_session(self.client, self.state.session_id)
            except AgentsAPIError as error:
                self._warn_of_leftover(str(error))
        if self.single is not None:
            await self._delete_others(self.single)

    async def _delete_others(self, single: SingleSession) -> None:
        """Delete what a create without an answer may have made, which the list may not have shown at first."""
        rollout_id = self.state.rollout.rollout_id
        if single.doubtful:
            self._set_deadline(self.runner.timeouts.delete)
            try:
                await single.delete_others(self.state.session_id)
            except LaterAttempt:
                pass  # it belongs to the attempt that follows, which looks for itself
            except AgentsAPIError as error:
                self.warnings.append(f"a second Session of {rollout_id} may be left behind: {error}")
        self.warnings += [
            f"Session {session_id} of {rollout_id} is left behind: {reason}"
            for session_id, reason in single.left.items()
        ]

    def _set_deadline(self, seconds: float) -> None:
        """Give the following requests `seconds`, but not more than a stop leaves."""
        deadline = time.monotonic() + seconds
        self.client.deadline = deadline if self.stop.deadline is None else min(deadline, self.stop.deadline)

    def _warn_of_leftover(self, reason: str) -> None:
        rollout_id, session_id = self.state.rollout.rollout_id, self.state.session_id
        if session_id is not None:
            self.warnings.append(f"Session {session_id} of {rollout_id} is left behind: {reason}")


def _describe(error: Exception) -> str:
    """Return an unexpected exception's type, text and place."""
    frames = traceback.extract_tb(error.__traceback__)
    where = f" ({Path(frames[-1].filename).name}:{frames[-1].lineno})" if frames else ""
    return f"{type(error).__name__}: {error}{where}"
