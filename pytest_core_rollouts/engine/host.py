"""Keeps the rollouts of several runs in flight: for `Engine`, for pytest sessions and for `check`."""

from __future__ import annotations

import threading
from collections.abc import Collection, Container, Iterable, Sequence
from dataclasses import dataclass, replace

from pytest_core_rollouts.embedded.hidden import Places
from pytest_core_rollouts.engine.core_access import LazyClient, run_in_thread
from pytest_core_rollouts.engine.parts import Parts
from pytest_core_rollouts.engine.pool import CANCEL_SECONDS, Pool, PoolStopped, affordable
from pytest_core_rollouts.engine.preparation import Preparation
from pytest_core_rollouts.engine.replay import Replayer
from pytest_core_rollouts.engine.runs import Run, RunEnded
from pytest_core_rollouts.grading.answers import Answer, Grade
from pytest_core_rollouts.records.record import RolloutRecord
from pytest_core_rollouts.records.rows import count_planned
from pytest_core_rollouts.rollout.adaptive_limit import AdaptiveLimit
from pytest_core_rollouts.rollout.attempts import Outcome
from pytest_core_rollouts.rollout.runner import RolloutRunner
from pytest_core_rollouts.rollout.session_deletion import Sweep, sweep
from pytest_core_rollouts.rollout.stopping import Stop
from pytest_core_rollouts.rollout.witnesses import Refusals, Witnesses
from pytest_core_rollouts.tasks.grader_pool import POOL
from pytest_core_rollouts.tasks.matrix import Agent, Rollout, new_run_id, slug
from pytest_core_rollouts.tasks.task import Task


class Host:
    """Runs the rollouts that it is given on one Core, a limited number at a time, and hands out their outcomes.

    Sends nothing before the first rollout. Safe to use from several threads.
    """

    def __init__(self, parts: Parts, max_waiting: int | None = None) -> None:
        if max_waiting is not None and max_waiting < 1:
            raise ValueError(f"max_waiting: expected a positive integer, got {max_waiting}")
        self.parts = parts
        self.preparation = Preparation(parts)
        self.limit = AdaptiveLimit()
        """How many rollouts may be in flight on a Core or a model that throttles."""
        self._max_waiting = max_waiting
        self._runs: set[Run] = set()
        """Runs with results that are still to come, or that `max_waiting` counts."""
        self._used_ids: set[str] = set()
        self._room = threading.Condition()
        """Guards `_runs` and their plans; notified when there may be room for more. Taken before a run's own lock."""
        self._closed: str | None = None
        store, grading = parts.store, parts.grading

        def grade(task: Task, answer: Answer, rollout: Rollout) -> Grade:
            return grading.grade(task, answer, _without_key(rollout))

        self._runner = RolloutRunner(
            grade=grade,
            save=store.save,
            explain=store.explain,
            keep_files=store.save_files if store.path is not None else None,
            model_key=lambda rollout: self.preparation.keys.get(rollout.rollout_id),
            core_is_ours=parts.core.is_ours,
            dialect=parts.core.dialect,
            keep_items=parts.keep_items,
            adaptive_limit=self.limit,
            witnesses=Witnesses(store.task_count),
            refusals=Refusals(store.task_counts),
            halted=lambda: self._pool.fatal or store.caps.reached(),
            on_retry=lambda rollout, usage: store.caps.spend_attempt(
                rollout.agent.slug, rollout.agent.harness, rollout.agent.model, rollout.agent.base_url, usage
            ),
        )
        source = parts.replay or parts.resumed
        self._replayer = (
            None
            if source is None
            else Replayer(
                source,
                grade,
                grading.uses_builtin_grading,
                lambda record: store.save(record, ran=False),
                store.explain,
                store.save_files,
                keep_items=parts.replay is None and parts.keep_items,  # a replay's trajectories stay where they are
            )
        )
        self._pool: Pool[_Job, LazyClient, Outcome | None] = Pool(
            lambda: LazyClient(lambda: parts.core.connect(lambda: self.limit.ever_created)),
            self._run_job,
            concurrency=affordable(parts.concurrency),
            on_result=self._on_result,
            on_end=self._on_end,
            spent=store.caps.reached if parts.replay is None else lambda: None,
            admits=self.limit.admits if parts.replay is None else lambda in_flight: True,
        )

    # ---- submitting

    def submit_rollouts(
        self, rollouts: Iterable[Rollout], *, run: Run | None = None, maybe_finished: Collection[str] = ()
    ) -> Run:
        """Queue rollouts, and return their run. Blocks while there is no room (`max_waiting`).

        * `run`: the run to add them to. None: a new one, for which all rollouts must have one run id.
        * `maybe_finished`: ids of rollouts that another process may have begun or finished.

        See `Engine.submit_rollouts`.
        """
        given = [self.preparation.resolve(rollout) for rollout in rollouts]
        require_distinct(given)
        for rollout in given:
            self.preparation.require_runnable(rollout)
        run_ids = {rollout.run_id for rollout in given}
        if run is None:
            if len(run_ids) != 1:
                raise ValueError(f"rollouts: expected one run id, got {len(run_ids)}")
            run = self.new_run(run_ids.pop())
        elif wrong := run_ids - {run.run_id}:
            raise ValueError(f"rollouts: expected run id {run.run_id!r}, got {wrong.pop()!r}")
        self.start(run, given, maybe_finished)
        return run

    def new_run(self, run_id: str | None = None) -> Run:
        """Make a run without rollouts, for `submit_rollouts`. Raises ValueError for an invalid id."""
        if run_id is not None and (run_id != slug(run_id, dots=False) or len(run_id) > 40):
            raise ValueError(f"run_id: expected at most 40 of A-Z a-z 0-9 - _, got {run_id!r}")
        embedded = self.parts.core.embedded
        captures = None if embedded is None else embedded.capture
        return Run(run_id or self._new_run_id(), self._on_read, self._end_in_flight, captures)

    def prepare(self, pairs: Iterable[tuple[Task | None, Agent]], places: Places | None = None) -> None:
        """Check everything that every rollout needs, and start or reach the Core. See `Preparation.prepare`."""
        self.preparation.prepare(list(pairs), places)

    def start(
        self,
        run: Run,
        rollouts: Sequence[Rollout],
        maybe_finished: Collection[str] = (),
        abandoned: threading.Event | None = None,
    ) -> None:
        """Start the rollouts as part of the run. Nothing is started if `abandoned` is set while there is no room."""
        if self.parts.replay is None and self.parts.prepares:
            self.prepare((rollout.task, rollout.agent) for rollout in rollouts)
        self.preparation.learn(rollouts)
        with self._room:
            self._room.wait_for(lambda: self._has_room or self._closed or (abandoned and abandoned.is_set()))
            if self._closed is not None:
                raise RunEnded(self._closed)
            if abandoned is not None and abandoned.is_set():
                return
            run._expect(rollouts)
            self._runs.add(run)
            self._set_plan(run)
        self.parts.store.caps.start()
        try:
            known, to_run = self._split(run, rollouts, maybe_finished)
            for outcome in known:
                run._add(outcome)
            self._on_read(run)
            resumes = self.parts.resumed is not None
            self._pool.submit(
                [_Job(rollout, run, resumes or rollout.rollout_id in maybe_finished) for rollout in to_run]
            )
        except PoolStopped as stopped:
            run._end(str(stopped))
            raise RunEnded(str(stopped)) from None
        except BaseException as error:
            run._end(str(error) or repr(error))
            raise
        if self._pool.fatal is not None and self._pool.in_flight == 0:
            run._end(self._pool.fatal)

    def wake(self) -> None:
        """Let each submit that waits for room look whether it was abandoned."""
        with self._room:
            self._room.notify_all()

    # ---- the end

    def stop(self, reason: str) -> None:
        """Start nothing more. What is in flight is cancelled, recorded and its Session deleted; then return.

        What has finished by then can still be read.
        """
        with self._room:
            runs = list(self._runs)
        for run in runs:
            run._end(reason)
            self._end_in_flight(run)
        self._pool.stop(reason)

    def close(self) -> None:
        """Stop everything, and the embedded Core with it. What has finished by then can still be read."""
        with self._room:
            if self._closed is not None:
                return
            self._closed = "the engine was closed"
            self._room.notify_all()
        try:
            self.stop(self._closed)
        finally:
            self.parts.core.close()
            POOL.close_idle()
            self.preparation.show_again()

    def sweep(
        self,
        run_id: str,
        *,
        since: float,
        seconds: float,
        spare: str | None = None,
        rollouts: Container[str] | None = None,
    ) -> Sweep:
        """Delete the Sessions that are left of a run. See `rollout.session_deletion.sweep`."""
        connect = self.parts.core.connect
        return run_in_thread(sweep(connect, run_id, since=since, seconds=seconds, spare=spare, rollouts=rollouts))

    def __enter__(self) -> Host:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def in_flight(self) -> int:
        """Rollouts that are under way right now."""
        return self._pool.in_flight

    @property
    def oldest(self) -> tuple[Rollout, float] | None:
        """The rollout that has been in flight for the longest time, and when it started, in seconds since 1970."""
        found = self._pool.oldest
        return None if found is None else (found[0].rollout, found[1])

    # ---- planning

    def _new_run_id(self) -> str:
        while (run_id := new_run_id()) in self._used_ids:
            pass
        self._used_ids.add(run_id)
        return run_id

    def _split(
        self, run: Run, rollouts: Sequence[Rollout], maybe_finished: Collection[str]
    ) -> tuple[list[Outcome], list[Rollout]]:
        """Return the outcomes that are known already, and the rollouts that have to run or be graded again."""
        fresh = {rollout.rollout_id for rollout in rollouts if rollout.attempt == 1}
        finished = self.parts.store.finished(run.run_id, fresh & set(maybe_finished))
        resumed = self.parts.resumed
        known: list[Outcome] = []
        to_run: list[Rollout] = []
        for rollout in rollouts:
            if rollout.rollout_id in finished:
                known.append(Outcome(finished[rollout.rollout_id]))
            elif resumed is None or rollout.attempt > 1:
                to_run.append(rollout)
            elif (verdict := resumed.verdict(rollout)).action == "reuse":
                known.append(self._reuse(resumed.reused(verdict), counts=verdict.counts))
            else:
                to_run.append(replace(rollout, attempt=verdict.attempt))
        return known, to_run

    def _reuse(self, record: RolloutRecord, *, counts: bool) -> Outcome:
        if not counts:  # rows of other work came after it
            self.parts.store.save(replace(record, planned={}), ran=False)
        return Outcome(record, reused=True)

    def _set_plan(self, run: Run) -> None:
        """Set what rows of this run record in `planned`. A pytest session sets it itself, for all its processes."""
        if self.parts.prepares:
            same_id = [one for one in self._runs if one.run_id == run.run_id]
            pairs = ((rollout.agent.slug, rollout.task.id) for one in same_id for rollout in one.rollouts)
            self.parts.store.set_plan(run.run_id, count_planned(pairs))

    def _forget(self, run: Run) -> None:
        """Drop a run that needs nothing more, and its plan: an engine may live for days. `_room` is held."""
        if run in self._runs and not (run._unread if self._max_waiting is not None else run._awaited):
            self._runs.discard(run)
            if self.parts.prepares and all(other.run_id != run.run_id for other in self._runs):
                self.parts.store.set_plan(run.run_id, {})

    # ---- running

    async def _run_job(self, client: LazyClient, job: _Job, stop: Stop) -> Outcome | None:
        run, rollout = job.run, job.rollout
        if run._ended is not None:
            self.preparation.keys.pop(rollout.rollout_id, None)
            return None
        if self._replayer is not None and self._is_graded_again(rollout):
            outcome = await self._replayer.run(rollout)
            return outcome if self.parts.replay is not None else replace(outcome, reused=True)
        try:
            outcome = await self._runner.run(
                client.connected(),
                rollout,
                run._stop,
                maybe_begun=job.maybe_begun,
                release=lambda: self._pool.release(client),
            )
        except Exception as error:  # its row could not be saved, so its Session stays if it has an answer
            self._warn(run, f"the Session of {rollout.rollout_id} may be left behind: {error}")
            raise
        finally:
            self.preparation.keys.pop(rollout.rollout_id, None)
        for text in outcome.warnings:
            self._warn(run, text)
        if outcome.fatal is not None:  # every other rollout would meet it too
            self._pool.halt(outcome.fatal)
        return outcome

    def _warn(self, run: Run, text: str) -> None:
        run.warnings.append(text)
        self.parts.on_left_behind(text)

    def _is_graded_again(self, rollout: Rollout) -> bool:
        if self.parts.replay is not None:
            return True
        assert self.parts.resumed is not None, "a replayer has a source"
        return rollout.attempt == 1 and self.parts.resumed.verdict(rollout).action == "grade"

    def _on_result(self, job: _Job, outcome: Outcome | None) -> None:
        if outcome is not None:
            if not self.parts.keep_results and outcome.record.items is not None:
                outcome = replace(outcome, record=replace(outcome.record, items=None))
            job.run._add(outcome)
            self._on_read(job.run)

    def _on_end(self, reason: str) -> None:
        with self._room:
            runs = list(self._runs)
        for run in runs:
            run._end(reason)
            self._on_read(run)

    def _on_read(self, run: Run) -> None:
        """A result of the run was read, or came, or none will come: there may be room."""
        with self._room:
            self._forget(run)
            self._room.notify_all()

    def _end_in_flight(self, run: Run) -> None:
        """Ask the run's rollouts in flight to end."""
        self._pool.call_soon(lambda: run._stop.request(CANCEL_SECONDS))
        self._on_read(run)

    @property
    def _has_room(self) -> bool:
        return self._max_waiting is None or sum(run._unread for run in self._runs) < self._max_waiting


@dataclass(frozen=True)
class _Job:
    rollout: Rollout
    run: Run
    maybe_begun: bool
    """Whether another process may have begun it."""


def require_distinct(rollouts: Sequence[Rollout]) -> None:
    """Raise ValueError if two rollouts have one id."""
    if len({rollout.rollout_id for rollout in rollouts}) < len(rollouts):
        raise ValueError("two rollouts have the same id; give each task of a run its own id")


def _without_key(rollout: Rollout) -> Rollout:
    """The rollout as graders see it: they may run in other processes, or run an agent's code."""
    if rollout.agent.api_key is None:
        return rollout
    return replace(rollout, agent=replace(rollout.agent, api_key=None))
