"""The engine: the one host of rollouts. Everything that runs, resumes or replays them hands them to it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Collection, Container, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pytest_core_rollouts.agents_api.address import require_secure_url
from pytest_core_rollouts.embedded.hidden import Places, find_places, hide, merge_places
from pytest_core_rollouts.engine.caps import Caps
from pytest_core_rollouts.engine.core_access import (
    CoreAccess,
    CoreError,
    EmbeddedOptions,
    LazyClient,
    check_mounts,
    run_in_thread,
)
from pytest_core_rollouts.engine.parts import Defaults, Parts, make_parts
from pytest_core_rollouts.engine.pool import CANCEL_SECONDS, Pool, PoolStopped, affordable
from pytest_core_rollouts.engine.preflight import (
    check_agent,
    check_instruction,
    check_token_ids,
    model_key,
    why_skipped,
)
from pytest_core_rollouts.engine.replay import Replayer
from pytest_core_rollouts.engine.runs import Run, RunEnded
from pytest_core_rollouts.grading.answers import Answer, Grade
from pytest_core_rollouts.records.record import RolloutRecord, count_planned
from pytest_core_rollouts.rollout.adaptive_limit import AdaptiveLimit
from pytest_core_rollouts.rollout.attempts import Grader, Outcome, RolloutRunner
from pytest_core_rollouts.rollout.dialects import DialectName, dialect_named
from pytest_core_rollouts.rollout.session_deletion import Sweep, sweep
from pytest_core_rollouts.rollout.stopping import Stop
from pytest_core_rollouts.rollout.witnesses import Refusals, Witnesses
from pytest_core_rollouts.tasks.grader_pool import POOL
from pytest_core_rollouts.tasks.harness_file import HarnessFile
from pytest_core_rollouts.tasks.matrix import Agent, FailedTurns, Rollout, check_distinct, new_run_id, slug
from pytest_core_rollouts.tasks.task import Task
from pytest_core_rollouts.tasks.task_settings import Network


class Engine:
    """Keeps up to `concurrency` rollouts in flight on one Core.

    * `base_url`, `api_key`: of the Core. `Engine.embedded(...)` starts one on this machine.
    * `out`: a JSONL file that gets a row for each finished rollout, before its result is handed out.
    * `save`: is called with each row, in addition to `out` or in place of it, before the Session is deleted. What it
      raises ends all runs, as a full disk does.
    * `grade`: grades instead of the tasks themselves. Called in a thread of this process, as
      `grade(task, answer, rollout)`, within 60 s; that limit can't stop code that holds the GIL.
    * `timeout`: seconds for a task that sets none. `network`: for a task that sets none; default: disabled.
    * `retries`: further attempts that an infrastructure error may cost.
    * `failed_turns`: what a Turn counts as that failed for a reason which the Core does not name: "missing" or, so
      that no policy gains by it, "zero".
    * `max_time`, `max_tokens`: nothing starts any more after so many seconds or tokens.
    * `max_waiting`: `submit` blocks while this many rollouts, or more, wait to be run or to be read.
    * `dialect`: what the Core speaks, "openagentcore" or "openai" (OpenAI's own service, or a gateway in front of it).
      None: "openai" for the host api.openai.com.

    Raises ValueError for a URL that would carry the key unencrypted to another machine, for no key, for an unknown
    dialect, and for a number below 1; RecordsError if `out` can't be written.

    Safe to use from several threads. Close it, or use it in a `with` statement.
    """

    def __init__(
        self,
        base_url: str,
        api_key: str,
        *,
        concurrency: int = 4,
        out: Path | str | None = None,
        save: Callable[[RolloutRecord], None] | None = None,
        grade: Grader | None = None,
        timeout: float = 900.0,
        network: Network | None = None,
        retries: int = 1,
        failed_turns: FailedTurns = "missing",
        max_time: float | None = None,
        max_tokens: int | None = None,
        max_waiting: int | None = None,
        dialect: DialectName | None = None,
    ) -> None:
        if not api_key:
            raise ValueError("api_key: must not be empty")
        speaks = None if dialect is None else dialect_named(dialect)
        core = CoreAccess(require_secure_url(base_url), api_key, dialect=speaks)
        parts = make_parts(core, concurrency, out, save, grade, Caps(max_time, max_tokens))
        parts.store.check_writable()
        self._build(parts, Defaults(timeout, network or Network.disabled(), retries, failed_turns), max_waiting)
        core.connect()  # refuses a malformed URL or key

    @classmethod
    def embedded(
        cls,
        *,
        capture: Path | str | None = None,
        model_params: Mapping[str, Any] | None = None,
        capture_tokens: bool = False,
        concurrency: int = 4,
        out: Path | str | None = None,
        save: Callable[[RolloutRecord], None] | None = None,
        grade: Grader | None = None,
        timeout: float = 900.0,
        retries: int = 1,
        max_time: float | None = None,
        max_tokens: int | None = None,
        max_waiting: int | None = None,
    ) -> Engine:
        """Make an engine with its own Core on this machine, started with the first rollout, ended by `close`.

        * `capture`: a folder that gets a JSONL of each rollout's requests to its model.
        * `model_params`: merged into each of these requests; `{sample}` and `{rollout_id}` are filled in.
        * `capture_tokens`: whether each request asks for token ids, in the way of its protocol.

        The rest is as for `Engine`. `submit` raises CoreError if no sandbox can be made or an agent's program is
        missing.
        """
        options = EmbeddedOptions(
            None if capture is None else Path(capture), dict(model_params or {}), capture_tokens=capture_tokens
        )
        core = CoreAccess(None, None, embedded=options)
        parts = make_parts(core, concurrency, out, save, grade, Caps(max_time, max_tokens))
        parts.store.check_writable()
        return cls.of(parts, Defaults(timeout, Network.disabled(), retries, None), max_waiting)

    @classmethod
    def of(cls, parts: Parts, defaults: Defaults | None = None, max_waiting: int | None = None) -> Engine:
        """Make an engine of these parts, for pytest sessions and `check`. Sends nothing yet."""
        engine = cls.__new__(cls)
        engine._build(parts, defaults or Defaults(), max_waiting)
        return engine

    def _build(self, parts: Parts, defaults: Defaults, max_waiting: int | None) -> None:
        self.parts = parts
        self.limit = AdaptiveLimit()
        """How many rollouts may be in flight on a Core or a model that throttles."""
        if parts.core.api_key:
            parts.store.mask([parts.core.api_key])
        if max_waiting is not None and max_waiting < 1:
            raise ValueError(f"max_waiting: expected a positive integer, got {max_waiting}")
        self._defaults = defaults
        self._max_waiting = max_waiting
        self._keys: dict[str, str] = {}
        """Keys of agents' models, by the id of each rollout that has not finished."""
        self._runs: set[Run] = set()
        """Runs with results that are still to come, or that `max_waiting` counts."""
        self._used_ids: set[str] = set()
        self._hidden: set[str] = set()
        self._show_again: list[Callable[[], None]] = []
        """Each ends what a run hides from sandboxes."""
        self._room = threading.Condition()
        """Guards `_runs` and their plans; notified when there may be room for more. Taken before a run's own lock."""
        self._preparing = threading.RLock()
        self._checked: set[str] = set()
        """Slugs of agents that this Core can run."""
        self._prepared: set[str] = set()
        self._harnesses: dict[str, HarnessFile] = {}
        self._private: set[str] = set()
        """Harnesses for which the Core is known to be ready."""
        self._captured_without: set[str] = set()
        """Secrets that captures don't show."""
        self._closed: str | None = None
        store, grading = parts.store, parts.grading

        def grade(task: Task, answer: Answer, rollout: Rollout) -> Grade:
            return grading.grade(task, answer, _without_key(rollout))

        self._runner = RolloutRunner(
            grade=grade,
            save=store.save,
            explain=store.explain,
            keep_files=store.save_files if store.path is not None else None,
            model_key=lambda rollout: self._keys.get(rollout.rollout_id),
            core_is_ours=parts.core.is_ours,
            dialect=parts.core.dialect,
            keep_items=parts.keep_items,
            adaptive_limit=self.limit,
            witnesses=Witnesses(store.task_count),
            refusals=Refusals(store.task_counts),
            halted=lambda: self._pool.fatal or store.caps.reached(),
            on_retry=store.caps.spend,
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

    def submit(
        self,
        tasks: Task | Iterable[Task],
        agents: Agent | Iterable[Agent] | None = None,
        *,
        samples: int | None = None,
        labels: Mapping[str, str] | None = None,
        timeout: float | None = None,
    ) -> Run:
        """Queue every task × agent × sample as one run. Blocks while there is no room (`max_waiting`).

        What a task sets itself (timeout, network, samples) comes before the engine's settings; `timeout` and `samples`
        here come before both. A task that a pytest session would skip is left out and named in `Run.skipped`.

        Raises MatrixError for an agent that this Core can't run or whose model key is missing; CoreError (or its
        CoreUnreachable) if there is no Core to run on; ValueError if nothing is left to run; RunEnded if the engine is
        closed.
        """
        run, rollouts = self._plan(tasks, agents, samples, labels or {}, timeout)
        self._start(run, rollouts)
        return run

    async def asubmit(
        self,
        tasks: Task | Iterable[Task],
        agents: Agent | Iterable[Agent] | None = None,
        *,
        samples: int | None = None,
        labels: Mapping[str, str] | None = None,
        timeout: float | None = None,
    ) -> Run:
        """`submit` for asyncio: waits for room, and for the Core, in its own thread. If cancelled, nothing is run."""
        abandoned = threading.Event()

        def submit() -> Run:
            run, rollouts = self._plan(tasks, agents, samples, labels or {}, timeout)
            self._start(run, rollouts, abandoned=abandoned)
            if abandoned.is_set():
                run.cancel()
            return run

        # Not in the loop's executor: submits that wait there for room could keep out the work that makes room.
        thread = ThreadPoolExecutor(1, "rollouts-submit")
        try:
            return await asyncio.get_running_loop().run_in_executor(thread, submit)
        except asyncio.CancelledError:
            abandoned.set()
            with self._room:
                self._room.notify_all()
            raise
        finally:
            thread.shutdown(wait=False)

    def submit_rollouts(
        self, rollouts: Iterable[Rollout], *, run: Run | None = None, maybe_finished: Collection[str] = ()
    ) -> Run:
        """Queue rollouts with given run id, group and sample. Blocks while there is no room (`max_waiting`).

        * `run`: the run to add them to. None: a new one, for which all rollouts must have one run id.
        * `maybe_finished`: ids of rollouts that another process may have begun or finished; their rows are looked up
          first, and on OpenAI's service also their Sessions.

        A rollout has every setting resolved: the engine's `timeout`, `network`, `retries` and `failed_turns` don't
        apply to it. On OpenAI's service, the harness `default` becomes `codex`, also in the rollout's id.

        Raises as `submit` does, and ValueError for a task that a pytest session would skip, two rollouts of one id, or
        a wrong run id.
        """
        given = [self._resolve(rollout) for rollout in rollouts]
        _require_distinct(given)
        for rollout in given:
            self._require_runnable(rollout)
        run_ids = {rollout.run_id for rollout in given}
        if run is None:
            if len(run_ids) != 1:
                raise ValueError(f"rollouts: expected one run id, got {len(run_ids)}")
            run = self.new_run(run_ids.pop())
        elif wrong := run_ids - {run.run_id}:
            raise ValueError(f"rollouts: expected run id {run.run_id!r}, got {wrong.pop()!r}")
        self._start(run, given, maybe_finished)
        return run

    def new_run(self, run_id: str | None = None) -> Run:
        """Make a run without rollouts, for `submit_rollouts`. Raises ValueError for an invalid id."""
        if run_id is not None and (run_id != slug(run_id, dots=False) or len(run_id) > 40):
            raise ValueError(f"run_id: expected at most 40 of A-Z a-z 0-9 - _, got {run_id!r}")
        embedded = self.parts.core.embedded
        captures = None if embedded is None else embedded.capture
        return Run(run_id or self._new_run_id(), self._on_read, self._end_in_flight, captures)

    def prepare(self, rollouts: Iterable[tuple[Task | None, Agent]], places: Places | None = None) -> None:
        """Check everything that every rollout needs, and start or reach the Core, before the first Session.

        `rollouts` are pairs of a task (None if it is not known here) and an agent. `places`: what sandboxes must hide,
        in addition to the tasks and to `out`.

        Raises MatrixError, CoreError or RecordsError. Repeating it costs nothing.
        """
        with self._preparing:
            self._prepare(list(rollouts), places)

    def _prepare(self, pairs: Sequence[tuple[Task | None, Agent]], places: Places | None) -> None:
        core, store = self.parts.core, self.parts.store
        agents = list({agent.slug: agent for _, agent in pairs}.values())
        core.require()
        for agent in agents:
            check_agent(agent, embedded=core.is_ours, dialect=core.dialect)
            if core.embedded is not None and core.embedded.capture_tokens:
                check_token_ids(agent)
            model_key(agent)
        for task, agent in pairs:
            if task is not None:
                check_instruction(task, agent)
        tasks = list({task.id: task for task, _ in pairs if task is not None}.values())
        secrets = {secret for task in tasks for secret in task.secrets}
        store.mask(secrets)
        if not core.is_ours:
            core.reach()
            return
        keys = {key for agent in agents if (key := model_key(agent)) is not None}
        if core.started and core.embedded is not None and core.embedded.capture and secrets - self._captured_without:
            # The Core's process has the secrets that it masks in captures from its start.
            raise CoreError(
                "capture: the secrets of these tasks were not known when the Core started, so captures would show "
                "them; submit these tasks first, or leave out `capture`"
            )
        places = places or self._places(tasks)
        self._check_mounts(agents, places)
        if new := [agent for agent in agents if agent.digest not in self._prepared]:
            core.start(new, places=places, secrets=[*secrets, *keys])
            store.mask([core.api_key] if core.api_key else [])
            self._captured_without |= secrets
            self._prepared.update(agent.digest for agent in new)

    def _check_mounts(self, agents: Sequence[Agent], places: Places) -> None:
        """Raise CoreError if a harness, of these agents or of earlier ones, mounts one of the places, or earlier ones.

        The Core only knows what was private when it started, and an engine may get further tasks.
        """
        self._harnesses |= {agent.digest: agent.harness_file for agent in agents if agent.harness_file is not None}
        self._private.update(places.private)
        if self._harnesses:
            check_mounts(self._harnesses.values(), Places(places.hidden, tuple(self._private)))

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
            for show_again in self._show_again:
                show_again()

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

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    async def __aenter__(self) -> Engine:
        return self

    async def __aexit__(self, *_: object) -> None:
        await asyncio.get_running_loop().run_in_executor(None, self.close)

    @property
    def in_flight(self) -> int:
        """Rollouts that are under way right now."""
        return self._pool.in_flight

    # ---- planning

    def _plan(
        self,
        tasks: Task | Iterable[Task],
        agents: Agent | Iterable[Agent] | None,
        samples: int | None,
        labels: Mapping[str, str],
        timeout: float | None,
    ) -> tuple[Run, list[Rollout]]:
        if samples is not None and samples < 1:
            raise ValueError(f"samples: expected a positive integer, got {samples}")
        core = self.parts.core
        given = [agents or Agent()] if agents is None or isinstance(agents, Agent) else list(agents)
        columns = [core.dialect.resolve(agent) for agent in given]
        check_distinct(columns)
        for agent in columns:
            check_agent(agent, embedded=core.is_ours, dialect=core.dialect)
            model_key(agent)
        run = self.new_run()
        rollouts = []
        for task in [tasks] if isinstance(tasks, Task) else tasks:
            for agent in columns:
                network = task.network or self._defaults.network
                reason = why_skipped(task, agent, embedded=core.is_ours, network=network)
                if reason is not None:
                    run.skipped[task.id] = reason
                    continue
                for sample in range(samples or task.samples or 1):
                    rollouts.append(self._defaults.rollout(task, agent, sample, run.run_id, labels, timeout))
        if not rollouts:
            skipped = "; ".join(run.skipped.values())
            raise ValueError(f"no rollouts to run: {skipped or 'no task was given'}")
        _require_distinct(rollouts)
        return run, rollouts

    def _resolve(self, rollout: Rollout) -> Rollout:
        """The rollout with its agent as the Core runs it."""
        agent = rollout.agent if self.parts.replay is not None else self.parts.core.dialect.resolve(rollout.agent)
        return rollout if agent is rollout.agent else replace(rollout, agent=agent)

    def _require_runnable(self, rollout: Rollout) -> None:
        embedded = self.parts.core.is_ours
        if self.parts.replay is not None:
            return
        if rollout.agent.slug not in self._checked:
            check_agent(rollout.agent, embedded=embedded, dialect=self.parts.core.dialect)
            self._checked.add(rollout.agent.slug)
        if (reason := why_skipped(rollout.task, rollout.agent, embedded=embedded, network=rollout.network)) is not None:
            raise ValueError(f"task {rollout.task.id}: {reason}")

    def _new_run_id(self) -> str:
        while (run_id := new_run_id()) in self._used_ids:
            pass
        self._used_ids.add(run_id)
        return run_id

    # ---- starting

    def _start(
        self,
        run: Run,
        rollouts: Sequence[Rollout],
        maybe_finished: Collection[str] = (),
        abandoned: threading.Event | None = None,
    ) -> None:
        if self.parts.replay is None and self.parts.prepares:
            self.prepare((rollout.task, rollout.agent) for rollout in rollouts)
        self._learn(rollouts)
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

    def _learn(self, rollouts: Sequence[Rollout]) -> None:
        """Note what new rollouts bring: keys, secrets, and what sandboxes must hide."""
        secrets: set[str] = set()
        if self.parts.replay is None:
            for rollout in rollouts:
                if (key := model_key(rollout.agent)) is not None:
                    self._keys[rollout.rollout_id] = key
                    secrets.add(key)
        tasks = list({id(rollout.task): rollout.task for rollout in rollouts}.values())
        secrets.update(secret for task in tasks for secret in task.secrets)
        self.parts.store.mask(secrets)
        if self.parts.prepares:
            self.hide(self._places(tasks))

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

    def _places(self, tasks: Sequence[Task]) -> Places:
        out = self.parts.store.path
        embedded = self.parts.core.embedded
        folders = [embedded.capture] if embedded is not None and embedded.capture is not None else []
        paths = [task.path for task in tasks if task.path is not None]
        return find_places([], tasks=paths, files=[out] if out is not None else [], folders=folders)

    def hide(self, places: Places) -> None:
        """Hide these places from all sandboxes until the engine is closed: graders may run an agent's code in one."""
        merged = merge_places([*self._hidden, *places.all])  # most tasks are in a folder that is hidden already
        if new := set(merged) - self._hidden:
            self._hidden = set(merged)
            self._show_again.append(hide(new))

    # ---- running

    async def _run_job(self, client: LazyClient, job: _Job, stop: Stop) -> Outcome | None:
        run, rollout = job.run, job.rollout
        if run._ended is not None:
            self._keys.pop(rollout.rollout_id, None)
            return None
        if self._replayer is not None and self._is_graded_again(rollout):
            outcome = await self._replayer.run(rollout)
            return replace(outcome, reused=self.parts.replay is None)
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
            self._keys.pop(rollout.rollout_id, None)
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


def _require_distinct(rollouts: Sequence[Rollout]) -> None:
    if len({rollout.rollout_id for rollout in rollouts}) < len(rollouts):
        raise ValueError("two rollouts have the same id; give each task of a run its own id")


def _without_key(rollout: Rollout) -> Rollout:
    """The rollout as graders see it: they may run in other processes, or run an agent's code."""
    if rollout.agent.api_key is None:
        return rollout
    return replace(rollout, agent=replace(rollout.agent, api_key=None))
