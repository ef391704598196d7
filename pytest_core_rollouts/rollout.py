"""One rollout's life: create the Session, wait for its Turn, fetch the answer, grade it, keep it, delete the Session.

`RolloutRunner.run` never raises for what can go wrong with one rollout: it returns a record that says so. The record
goes to `save` before the Session is deleted, so that a crash in between leaves a Session to sweep and never a result
to pay for twice. What `save` itself raises (a full disk) ends the run.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Executor
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

from pytest_core_rollouts import __version__
from pytest_core_rollouts.agents_api import AgentsAPIError, APIStatusError, TooLarge
from pytest_core_rollouts.grading import ANSWER_LIMIT, Answer, Grade, read_answer
from pytest_core_rollouts.matrix import Rollout
from pytest_core_rollouts.records import RolloutRecord
from pytest_core_rollouts.session_request import session_body
from pytest_core_rollouts.tasks import Task, TaskError

if TYPE_CHECKING:
    from pytest_core_rollouts.agents_api import Artifact, Client, Session, Turn

ANSWER_PATH = "/workspace/outputs/answer.json"
GRADE_SECONDS = 60.0
CANCEL_GRACE = 30.0
"""Seconds that a Turn has to end after it was cancelled."""
DELETE_GRACE = 10.0
"""Seconds that a busy Session has to become deletable."""
POLL_FIRST, POLL_MOST = 0.05, 1.0
"""Seconds between two looks at the Turn list: the first, and the most after backing off."""
SESSION_EVERY = 5
"""Every so many looks at the Turn list, one at the Session: it can fail, or want something, while its Turn stands."""

AGENT_FAULTS = frozenset({"context_length_exceeded", "max_output_tokens", "content_filter", "policy_violation", "refusal"})
"""Turn error codes that are the agent's own doing: reward 0. Every other code is infrastructure: no reward."""

Grader = Callable[[Task, Answer, Rollout], Grade]


class Fault(Exception):
    """The rollout could not be run or graded: `status` with a null reward. `retry`: a new attempt may mend it."""

    def __init__(self, message: str, *, status: str = "error", retry: bool = True) -> None:
        super().__init__(message)
        self.status = status
        self.retry = retry


class AgentFailure(Exception):
    """The agent's own doing ended the Turn without an answer: `failed` with reward 0."""


@dataclass(frozen=True)
class Outcome:
    """A record as the caller needs it, its trajectory left on the disk, and what else to tell the user."""

    record: RolloutRecord
    warnings: tuple[str, ...] = ()
    fatal: str | None = None
    """A fault that every other rollout would meet too: the reason to stop the run."""


@dataclass(frozen=True)
class RolloutRunner:
    """What all rollouts of a run share."""

    grade: Grader
    save: Callable[[RolloutRecord], None]
    graders: Executor
    model_keys: Mapping[str, str] = field(default_factory=dict, repr=False)
    keep_items: bool = True

    async def run(self, client: Client, rollout: Rollout) -> Outcome:
        """Run one rollout to its record, with a new attempt where infrastructure spoiled one."""
        attempt, last = rollout.attempt, rollout.attempt + rollout.retries
        notes: list[str] = []
        while True:
            one = _Attempt(self, client, rollout, attempt, tuple(notes))
            outcome, retry = await one.run()
            if not retry or attempt >= last:
                return outcome
            notes.append(f"attempt {attempt}: {outcome.record.error}")
            attempt += 1


class _Attempt:
    """One Session from its creation to its deletion."""

    def __init__(self, runner: RolloutRunner, client: Client, rollout: Rollout, number: int, notes: tuple[str, ...]) -> None:
        self.runner = runner
        self.client = client
        self.rollout = rollout
        self.number = number
        self.notes = list(notes)
        self.warnings: list[str] = []
        self.session_id: str | None = None
        self.turn: Turn | None = None
        self.items: list[dict[str, Any]] | None = None
        self.answer = Answer()
        self.grade: Grade | None = None
        self.timings: dict[str, float] = {}
        self.started_at = datetime.now(timezone.utc)
        self.start = time.monotonic()
        self.ended: float | None = None

    async def run(self) -> tuple[Outcome, bool]:
        """The outcome, and whether a new attempt may be made instead of it."""
        self.client.request_ids.clear()
        self.client.waited_s = 0.0
        retry, fatal = False, None
        try:
            record = await self._finish_line()
        except AgentFailure as failure:
            record = await self._ended("failed", 0.0, str(failure))
        except Fault as fault:
            record, retry = await self._ended(fault.status, None, str(fault)), fault.retry
        except AgentsAPIError as error:
            record, retry = self._record("error", None, str(error)), not error.stops_run
            fatal = str(error) if error.stops_run else None
        except TaskError as error:
            record = self._record("error", None, str(error))
        except asyncio.CancelledError:
            return await self._interrupted(), False
        if retry and self.number < self.rollout.attempt + self.rollout.retries:
            await self._delete()
            return Outcome(replace(record, items=None), tuple(self.warnings), fatal), True
        self.runner.save(record)
        await self._delete()
        return Outcome(replace(record, items=None), tuple(self.warnings), fatal), False

    async def _finish_line(self) -> RolloutRecord:
        await self._create()
        status = await self._wait()
        self._lap("turn")
        self.ended = time.monotonic()
        if status == "completed":
            self.answer = await self._fetch_answer()
            await self._fetch_items()
            self._lap("fetch")
            await self._grade()
            assert self.grade is not None
            return self._record("completed", self.grade.reward, None)
        return await self._ended("timeout", 0.0, None)

    # ---- create

    async def _create(self) -> None:
        key = self.rollout.agent.api_key_env
        body = session_body(self.rollout, model_key=self.runner.model_keys.get(key) if key else None)
        session = await self.client.create_session(body, idempotency_key=self.rollout.idempotency_key(self.number))
        self.session_id = session["id"]
        self._lap("create")

    # ---- wait

    @property
    def _left(self) -> float:
        """Seconds left of the limit; waiting for Core itself is not counted, up to as much again."""
        limit = self.rollout.timeout
        return limit + min(self.client.waited_s, limit) - (time.monotonic() - self.start)

    async def _wait(self) -> str:
        """`completed` or `timeout`; every other end of the Turn is raised."""
        assert self.session_id is not None
        pause, looks = POLL_FIRST, 0
        while True:
            self.turn = await self.client.latest_turn(self.session_id)
            status = None if self.turn is None else self.turn["status"]
            if status is not None and "prepare" not in self.timings:
                self._lap("prepare")
            if self._ended_well():
                return "completed"
            if self.turn is None or status == "waiting" or looks % SESSION_EVERY == SESSION_EVERY - 1:
                await self._check_session(await self.client.get_session(self.session_id))
            if self._left <= 0:
                return await self._time_is_up()
            await asyncio.sleep(max(0.0, min(pause, self._left)))
            pause, looks = min(pause * 1.4, POLL_MOST), looks + 1

    def _ended_well(self) -> bool:
        """Whether the Turn completed; False while it goes on. Raises for every other end."""
        if self.turn is None:
            return False
        status = self.turn["status"]
        if status in ("queued", "in_progress", "waiting"):
            return False
        if status == "completed":
            return True
        self.ended = time.monotonic()
        if status == "failed":
            raise self._turn_failure()
        if status == "cancelled":
            raise Fault("the Turn was cancelled by someone else", status="cancelled", retry=False)
        note = f"the Turn's status reads {status!r}, which this version does not know"
        if note not in self.notes:
            self.notes.append(note)
        return False

    def _turn_failure(self) -> Exception:
        error = (self.turn or {}).get("error") or {}
        code = error.get("code") or "unknown"
        text = f"the Turn failed: {code}: {error.get('message') or 'no message'}"
        if code in AGENT_FAULTS:
            return AgentFailure(text)
        return Fault(text, status="failed")

    async def _check_session(self, session: Session) -> None:
        status = session.get("status")
        if status == "failed" and (self.turn is None or self.turn["status"] in ("queued", "in_progress", "waiting")):
            without = "without a Turn" if self.turn is None else "while its Turn was in progress"
            raise Fault(f"the Session failed {without}: {session.get('error') or 'no reason given'}")
        if status == "requires_action":
            await self._cannot_act(session)

    async def _cannot_act(self, session: Session) -> None:
        actions = session.get("required_actions") or []
        kinds = sorted({str(action.get("type")) for action in actions if isinstance(action, Mapping)}) or ["unknown"]
        await self._cancel_turn()
        text = f"the Session waits for what a rollout can't give: {', '.join(kinds)} ({actions!r:.500})"
        if kinds == ["environment_connection"]:
            raise Fault(text, retry=False)
        raise AgentFailure(text)

    async def _time_is_up(self) -> str:
        if self.turn is None:
            raise Fault(
                f"no Turn began within {self.rollout.timeout:g} s: the sandbox was not ready; see --rollout-timeout",
            )
        if self.turn["status"] not in ("queued", "in_progress", "waiting"):
            raise Fault(f"the Turn's status still read {self.turn['status']!r} at the limit of {self.rollout.timeout:g} s")
        await self._cancel_turn()
        if self.turn is not None and self.turn["status"] == "completed":
            return "completed"
        if self.turn is not None and self.turn["status"] == "failed":
            raise self._turn_failure()
        return "timeout"

    async def _cancel_turn(self) -> None:
        """Cancel, and wait until the Turn has ended or the grace is over. The Turn's final state decides."""
        assert self.session_id is not None
        until = time.monotonic() + CANCEL_GRACE
        try:
            await self.client.cancel(self.session_id)
        except APIStatusError as error:
            if error.status != 409:  # it ended, or waits for its sandbox: the Turn list tells
                raise
        pause = POLL_FIRST
        while True:
            self.turn = await self.client.latest_turn(self.session_id)
            if self.turn is None or self.turn["status"] in ("completed", "failed", "cancelled"):
                return
            if time.monotonic() > until:
                self.notes.append(f"the Turn had not ended {CANCEL_GRACE:g} s after it was cancelled")
                return
            await asyncio.sleep(pause)
            pause = min(pause * 1.4, POLL_MOST)

    # ---- fetch and grade

    async def _fetch_answer(self) -> Answer:
        assert self.session_id is not None
        seen = [artifact async for artifact in self.client.list_artifacts(self.session_id)]
        answers = [artifact for artifact in seen if artifact["path"] == ANSWER_PATH]
        if not answers:
            paths = sorted({artifact["path"] for artifact in seen})
            return Answer(problem=f"{ANSWER_PATH} not found; Artifacts seen: {paths!r:.1000}")
        newest = self._newest(answers)
        if newest["size_bytes"] > ANSWER_LIMIT:
            return Answer(problem=f"{ANSWER_PATH} has {newest['size_bytes']:,} bytes; at most {ANSWER_LIMIT:,} are read")
        try:
            data = await self.client.artifact_content(self.session_id, newest, max_bytes=ANSWER_LIMIT)
        except TooLarge as error:
            return Answer(problem=str(error))
        return read_answer(data)

    def _newest(self, artifacts: list[Artifact]) -> Artifact:
        """The one that the last Turn published; of several, the latest."""
        last = (self.turn or {}).get("id")
        return max(artifacts, key=lambda artifact: (artifact.get("turn_id") == last, artifact.get("created_at") or 0))

    async def _fetch_items(self) -> None:
        assert self.session_id is not None
        if self.runner.keep_items:
            self.items = [dict(item) async for item in self.client.list_items(self.session_id)]

    async def _grade(self) -> None:
        loop = asyncio.get_running_loop()
        call = loop.run_in_executor(self.runner.graders, self.runner.grade, self.rollout.task, self.answer, self.rollout)
        try:
            self.grade = await asyncio.wait_for(call, GRADE_SECONDS)
        except (asyncio.TimeoutError, TimeoutError):
            raise Fault(f"the grader took more than {GRADE_SECONDS:g} s", retry=False) from None
        except Exception as error:  # a grader is the user's own code: whatever it raises is a fault of grading
            raise Fault(f"the grader raised {type(error).__name__}: {error}", retry=False) from error

    # ---- the record

    def _lap(self, name: str) -> None:
        """Seconds since the previous lap."""
        passed = time.monotonic() - self.start - sum(self.timings.values())
        self.timings[name] = round(max(0.0, passed), 4)

    async def _ended(self, status: str, reward: float | None, error: str | None) -> RolloutRecord:
        """The record of a rollout that ended without an answer; its trajectory is read as far as Core gives it."""
        self.ended = self.ended or time.monotonic()
        if self.session_id is not None and self.items is None:
            try:
                await self._fetch_items()
            except AgentsAPIError as fault:
                self.notes.append(f"the Items could not be read: {fault}")
        return self._record(status, reward, error)

    def _record(self, status: str, reward: float | None, error: str | None) -> RolloutRecord:
        rollout, grade = self.rollout, self.grade
        notes = [*self.notes, *((grade.note,) if grade is not None and grade.note else ())]
        return RolloutRecord(
            rollout_id=rollout.rollout_id,
            task=rollout.task.id,
            harness=rollout.agent.harness,
            model=rollout.agent.model,
            sample=rollout.sample,
            session_id=self.session_id,
            status=status,
            reward=reward,
            answer=self.answer.value,
            duration_s=round((self.ended or time.monotonic()) - self.start, 4),
            usage=(self.turn or {}).get("usage"),
            items=self.items,
            error=error,
            run_id=rollout.run_id,
            group_id=rollout.group_id,
            agent={"name": rollout.agent.name, "slug": rollout.agent.slug, "digest": rollout.agent.digest},
            labels=dict(rollout.labels),
            attempt=self.number,
            started_at=self.started_at.isoformat(timespec="milliseconds"),
            timings=dict(self.timings),
            settings=self._settings(),
            input_digest=rollout.task.input_digest,
            grading_digest=rollout.task.grading_digest,
            reasons=[] if grade is None else [vars(reason) for reason in grade.reasons],
            answer_text=self.answer.text,
            notes=notes,
            request_ids=dict(self.client.request_ids),
        )

    def _settings(self) -> dict[str, Any]:
        tolerance = self.rollout.task.tolerance
        return {
            "timeout": self.rollout.timeout,
            "network": self.rollout.network.wire(),
            "protocol": self.rollout.agent.effective_protocol,
            "base_url": self.rollout.agent.base_url,
            "tolerance": {"relative": tolerance.relative, "absolute": tolerance.absolute},
            "versions": {"pytest-core-rollouts": __version__},
        }

    # ---- the end

    async def _interrupted(self) -> Outcome:
        """The run was interrupted: end the Turn, keep what is known, delete the Session; the client's deadline holds."""
        try:
            if self.session_id is not None and self.ended is None:
                await self._cancel_turn()
        except AgentsAPIError as error:
            self.notes.append(f"the Turn could not be cancelled: {error}")
        record = self._record("cancelled", None, "the run was interrupted")
        self.runner.save(record)
        await self._delete()
        return Outcome(replace(record, items=None), tuple(self.warnings))

    async def _delete(self) -> None:
        """Delete the Session; a failure is a warning that names it, and never changes the result."""
        if self.session_id is None:
            return
        until = time.monotonic() + DELETE_GRACE
        cancelled, pause = False, POLL_FIRST
        while True:
            try:
                await self.client.delete_session(self.session_id)
            except APIStatusError as error:
                if error.status == 409 and time.monotonic() < until:
                    if not cancelled:
                        cancelled = await self._try_cancel()
                    await asyncio.sleep(pause)
                    pause = min(pause * 1.4, POLL_MOST)
                    continue
                self._not_deleted(error)
            except AgentsAPIError as error:
                self._not_deleted(error)
            return

    async def _try_cancel(self) -> bool:
        assert self.session_id is not None
        try:
            await self.client.cancel(self.session_id)
        except AgentsAPIError:
            return False  # the deletion is tried again anyway, and says what is wrong
        return True

    def _not_deleted(self, error: AgentsAPIError) -> None:
        self.warnings.append(f"Session {self.session_id} of {self.rollout.rollout_id} is left behind: {error}")


def lost_record(rollout: Rollout, error: str) -> RolloutRecord:
    """The record of a rollout whose own process could not write one."""
    return RolloutRecord(
        rollout_id=rollout.rollout_id,
        task=rollout.task.id,
        harness=rollout.agent.harness,
        model=rollout.agent.model,
        sample=rollout.sample,
        status="error",
        reward=None,
        error=error,
        run_id=rollout.run_id,
        group_id=rollout.group_id,
        agent={"name": rollout.agent.name, "slug": rollout.agent.slug, "digest": rollout.agent.digest},
        labels=dict(rollout.labels),
        attempt=rollout.attempt,
        input_digest=rollout.task.input_digest,
        grading_digest=rollout.task.grading_digest,
    )
