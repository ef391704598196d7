"""The engine: the one host of rollouts. Everything that runs, resumes or replays them hands them to it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_core_rollouts.agents_api.address import require_secure_url
from pytest_core_rollouts.embedded.hidden import Places, find_places, hide, merge_places
from pytest_core_rollouts.engine.caps import Caps
from pytest_core_rollouts.engine.core_access import CoreAccess, EmbeddedOptions, LazyClient, run_in_thread
from pytest_core_rollouts.engine.grading import FunctionGrading, Grading, TaskGrading
from pytest_core_rollouts.engine.pool import CANCEL_SECONDS, Pool, PoolStopped
from pytest_core_rollouts.engine.preflight import check_agent, model_key, why_skipped
from pytest_core_rollouts.engine.replay import Replay, Replayer
from pytest_core_rollouts.engine.resume import Resumed
from pytest_core_rollouts.engine.runs import Run, RunEnded
from pytest_core_rollouts.engine.store import RowStore
from pytest_core_rollouts.records.record import RolloutRecord, count_planned
from pytest_core_rollouts.rollout.adaptive_limit import AdaptiveLimit
from pytest_core_rollouts.rollout.attempts import Grader, Outcome, RolloutRunner
from pytest_core_rollouts.rollout.session_deletion import Sweep, sweep
from pytest_core_rollouts.rollout.stopping import Stop
from pytest_core_rollouts.rollout.witnesses import Witnesses
from pytest_core_rollouts.tasks.matrix import Agent, FailedTurns, Rollout, check_distinct, new_run_id, slug
from pytest_core_rollouts.tasks.task import Task
from pytest_core_rollouts.tasks.task_settings import Network

if TYPE_CHECKING:
    pass


@dataclass(frozen=True)
class Parts:
    """What an engine is built of. `Engine(...)` makes them from its arguments; a pytest session makes its own."""

    core: CoreAccess
    store: RowStore
    grading: Grading = field(default_factory=TaskGrading)
    concurrency: int = 4
    keep_items: bool = True
    """Whether trajectories are read from the Core and stored."""
    keep_results: bool = True
    """Whether outcomes carry trajectories to whoever reads them; rows have them in either case."""
    resumed: Resumed | None = None
    """An earlier run to be continued: its results are reused, or its answers graded again."""
    replay: Replay | None = None
    """Recorded rollouts to be graded again: nothing is run."""
    prepares: bool = True
    """Whether each submit prepares what it needs. False: the caller does, with `prepare`, in one of its processes."""


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
    * `max_waiting`: `submit` blocks while more results than this wait to be read or to be run.

    Raises ValueError for a URL that would carry the key unencrypted to another machine, or no key; RecordsError if
    `out` can't be written.
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
    ) -> None:
        if not api_key:
            raise ValueError("api_key: must not be empty")
        core = CoreAccess(require_secure_url(base_url), api_key)
        parts = _parts(core, concurrency, out, save, grade, Caps(max_time, max_tokens))
        parts.store.check_writable()
        self._build(parts, _Defaults(timeout, network or Network.disabled(), retries, failed_turns), max_waiting)
        core.connect()  # refuses a malformed URL or key

    @classmethod
    def embedded(
        cls,
        *,
        capture: Path | str | None = None,
        model_params: Mapping[str, Any] | None = None,
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
        """An engine on its own Core on this machine, which starts with the first rollout and ends with the engine.

        * `capture`: a folder that gets a JSONL of each rollout's requests to its model.
        * `model_params`: merged into each of these requests; `{sample}` and `{rollout_id}` are filled in.

        The rest is as for `Engine`. `submit` raises CoreError if no sandbox can be made or an agent's program is
        missing.
        """
        options = EmbeddedOptions(None if capture is None else Path(capture), dict(model_params or {}))
        core = CoreAccess(None, None, embedded=options)
        parts = _parts(core, concurrency, out, save, grade, Caps(max_time, max_tokens))
        parts.store.check_writable()
        return cls.of(parts, _Defaults(timeout, Network.disabled(), retries, None), max_waiting)

    @classmethod
    def of(cls, parts: Parts, defaults: _Defaults | None = None, max_waiting: int | None = None) -> Engine:
        """An engine built of these parts. Sends nothing yet."""
        engine = cls.__new__(cls)
        engine._build(parts, defaults or _Defaults(), max_waiting)
        return engine

    def _build(self, parts: Parts, defaults: _Defaults, max_waiting: int | None) -> None:
        self.parts = parts
        self.limit = AdaptiveLimit()
        """How many rollouts may be in flight on a Core or a model that throttles."""
        if parts.core.api_key:
            parts.store.mask([parts.core.api_key])
        self._defaults = defaults
        self._max_waiting = max_waiting
        self._keys: dict[tuple[str, str], str] = {}
        """Keys of agents' models, by run id and agent slug."""
        self._runs: dict[str, Run] = {}
        self._used_ids: set[str] = set()
        self._hidden: set[str] = set()
        self._show_again: list[Callable[[], None]] = []
        """Each ends what a run hides from sandboxes."""
        self._room = threading.Condition()
        self._checked: set[str] = set()
        """Slugs of agents that this Core can run."""
        self._prepared: set[str] = set()
        """Harnesses for which the Core is known to be ready."""
        self._closed: str | None = None
        store, grading = parts.store, parts.grading
        self._runner = RolloutRunner(
            grade=grading.grade,
            save=store.save,
            keep_files=store.save_files if store.path is not None else None,
            model_key=lambda rollout: self._keys.get((rollout.run_id, rollout.agent.slug)),
            core_is_ours=parts.core.is_ours,
            keep_items=parts.keep_items,
            adaptive_limit=self.limit,
            witnesses=Witnesses(store.task_count),
            halted=lambda: self._pool.fatal or store.caps.reached(),
            spoiled=store.caps.spend,
        )
        source = parts.replay or parts.resumed
        self._replayer = (
            None
            if source is None
            else Replayer(
                source,
                grading.grade,
                grading.uses_builtin_grading,
                lambda record: store.save(record, ran=False),
                store.save_files,
                keep_items=parts.replay is None and parts.keep_items,  # a replay's trajectories stay where they are
            )
        )
        self._pool: Pool[_Job, LazyClient, Outcome | None] = Pool(
            lambda: LazyClient(lambda: parts.core.connect(lambda: self.limit.ever_created)),
            self._run_job,
            concurrency=parts.concurrency,
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
        """`submit` for asyncio: waits for room, and for the Core, without blocking the loop."""
        run, rollouts = self._plan(tasks, agents, samples, labels or {}, timeout)
        await asyncio.get_running_loop().run_in_executor(None, self._start, run, rollouts)
        return run

    def submit_rollouts(
        self, rollouts: Iterable[Rollout], *, run: Run | None = None, maybe_finished: Collection[str] = ()
    ) -> Run:
        """Queue rollouts with given run id, group and sample. Blocks while there is no room (`max_waiting`).

        * `run`: the run to add them to. None: a new one, for which all rollouts must have one run id.
        * `maybe_finished`: ids of rollouts that another process may have finished; their rows are looked up first.

        Raises as `submit` does, and ValueError for a task that a pytest session would skip.
        """
        given = list(rollouts)
        for rollout in given:
            self._require_runnable(rollout)
        if run is None:
            run_ids = {rollout.run_id for rollout in given}
            if len(run_ids) != 1:
                raise ValueError(f"expected rollouts of one run, got {len(run_ids)}")
            run = self.new_run(run_ids.pop())
        self._start(run, given, maybe_finished)
        return run

    def new_run(self, run_id: str | None = None) -> Run:
        """A run without rollouts, for `submit_rollouts`. Raises ValueError for an id that can't be part of names."""
        if run_id is not None and (run_id != slug(run_id, dots=False) or len(run_id) > 40):
            raise ValueError(f"run_id: expected at most 40 of A-Z a-z 0-9 - _, got {run_id!r}")
        return Run(run_id or self._new_run_id(), self._on_read, self._end_in_flight)

    def prepare(self, rollouts: Iterable[tuple[Task | None, Agent]], places: Places | None = None) -> None:
        """Check everything that every rollout needs, and start or reach the Core, before the first Session.

        `rollouts` are pairs of a task (None if it is not known here) and an agent. `places`: what sandboxes must hide,
        in addition to the tasks and to `out`.

        Raises MatrixError, CoreError or RecordsError. Repeating it costs nothing.
        """
        pairs = list(rollouts)
        core, store = self.parts.core, self.parts.store
        agents = list({agent.slug: agent for _, agent in pairs}.values())
        core.require()
        for agent in agents:
            check_agent(agent, embedded=core.is_ours)
            model_key(agent)
        tasks = list({task.id: task for task, _ in pairs if task is not None}.values())
        store.mask([secret for task in tasks for secret in task.secrets])
        if not core.is_ours:
            core.reach()
            return
        if new := {agent.harness for agent in agents} - self._prepared:
            secrets = [secret for task in tasks for secret in task.secrets]
            keys = [key for agent in agents if (key := model_key(agent)) is not None]
            core.start(new, places=places or self._places(tasks), secrets=[*secrets, *keys])
            store.mask([core.api_key] if core.api_key else [])
            self._prepared |= new

    # ---- the end

    def stop(self, reason: str) -> None:
        """Start nothing more. What is in flight is cancelled, recorded and its Session deleted; then return.

        What has finished by then can still be read.
        """
        for run in list(self._runs.values()):
            run._end(reason)
            self._end_in_flight(run)
        self._pool.stop(reason)

    def close(self) -> None:
        """Stop everything, and the embedded Core with it."""
        with self._room:
            if self._closed is not None:
                return
            self._closed = "the engine was closed"
            self._room.notify_all()
        self.stop(self._closed)
        self.parts.core.close()
        for show_again in self._show_again:
            show_again()

    def sweep(self, run_id: str, *, since: float, seconds: float, spare: str | None = None) -> Sweep:
        """Delete the Sessions that are left of a run. See `rollout.session_deletion.sweep`."""
        return run_in_thread(sweep(self.parts.core.connect, run_id, since=since, seconds=seconds, spare=spare))

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
        columns = [agents or Agent()] if agents is None or isinstance(agents, Agent) else list(agents)
        check_distinct(columns)
        for agent in columns:
            check_agent(agent, embedded=self.parts.core.is_ours)
            model_key(agent)
        run = self.new_run()
        rollouts = []
        for task in [tasks] if isinstance(tasks, Task) else tasks:
            for agent in columns:
                network = task.network or self._defaults.network
                reason = why_skipped(task, agent, embedded=self.parts.core.is_ours, network=network)
                if reason is not None:
                    run.skipped[task.id] = reason
                    continue
                for sample in range(samples or task.samples or 1):
                    rollouts.append(self._defaults.rollout(task, agent, sample, run.run_id, labels, timeout))
        if not rollouts:
            skipped = "; ".join(run.skipped.values())
            raise ValueError(f"no rollouts to run: {skipped or 'no task was given'}")
        if len({rollout.rollout_id for rollout in rollouts}) < len(rollouts):
            raise ValueError("two tasks have the same id; give each task of a run its own")
        return run, rollouts

    def _require_runnable(self, rollout: Rollout) -> None:
        embedded = self.parts.core.is_ours
        if self.parts.replay is not None:
            return
        if rollout.agent.slug not in self._checked:
            check_agent(rollout.agent, embedded=embedded)
            self._checked.add(rollout.agent.slug)
        if (reason := why_skipped(rollout.task, rollout.agent, embedded=embedded, network=rollout.network)) is not None:
            raise ValueError(f"task {rollout.task.id}: {reason}")

    def _new_run_id(self) -> str:
        while (run_id := new_run_id()) in self._used_ids:
            pass
        self._used_ids.add(run_id)
        return run_id

    # ---- starting

    def _start(self, run: Run, rollouts: Sequence[Rollout], maybe_finished: Collection[str] = ()) -> None:
        if self.parts.replay is None and self.parts.prepares:
            self.prepare((rollout.task, rollout.agent) for rollout in rollouts)
        with self._room:
            self._room.wait_for(lambda: self._has_room or self._closed)
            if self._closed is not None:
                raise RunEnded(self._closed)
            self._runs[run.run_id] = run
        self._learn(run, rollouts)
        fresh = {rollout.rollout_id for rollout in rollouts if rollout.attempt == 1}
        known = {
            rollout_id: Outcome(record)
            for rollout_id, record in self.parts.store.finished(run.run_id, fresh & set(maybe_finished)).items()
        }
        to_run: list[Rollout] = []
        for rollout in rollouts:
            if rollout.rollout_id in known or (rollout.attempt > 1 or self.parts.resumed is None):
                to_run += [] if rollout.rollout_id in known else [rollout]
                continue
            verdict = self.parts.resumed.verdict(rollout)
            if verdict.action == "reuse":
                known[rollout.rollout_id] = self._reuse(self.parts.resumed.reused(verdict), counts=verdict.counts)
            else:
                to_run.append(replace(rollout, attempt=verdict.attempt))
        run._expect(rollouts)
        for outcome in known.values():
            run._add(outcome)
        try:
            self._pool.submit([_Job(rollout, run) for rollout in to_run])
        except PoolStopped as stopped:
            raise RunEnded(str(stopped)) from None
        if self._pool.fatal is not None and self._pool.in_flight == 0:
            run._end(self._pool.fatal)

    def _reuse(self, record: RolloutRecord, *, counts: bool) -> Outcome:
        if not counts:  # rows of other work came after it
            self.parts.store.save(record, ran=False)
        return Outcome(record, reused=True)

    def _learn(self, run: Run, rollouts: Sequence[Rollout]) -> None:
        """Note what a new submit brings: keys, secrets, what is planned, what sandboxes must hide."""
        self.parts.store.caps.start()
        secrets: set[str] = set()
        for rollout in rollouts:
            agent = rollout.agent
            known = (rollout.run_id, agent.slug) in self._keys or self.parts.replay is not None
            if not known and (key := model_key(agent)) is not None:
                self._keys[rollout.run_id, agent.slug] = key
                secrets.add(key)
        tasks = {id(rollout.task): rollout.task for rollout in rollouts}.values()
        secrets.update(secret for task in tasks for secret in task.secrets)
        self.parts.store.mask(secrets)
        if self.parts.prepares:
            pairs = ((one.agent.slug, one.task.id) for one in (*run.rollouts, *rollouts))
            self.parts.store.set_plan(run.run_id, count_planned(pairs))
            self.hide(self._places(list(tasks)))

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
            return None
        if self._replayer is not None and self._is_graded_again(rollout):
            outcome = await self._replayer.run(rollout)
            return replace(outcome, reused=self.parts.replay is None)
        try:
            outcome = await self._runner.run(client.connected(), rollout, run._stop)
        except Exception as error:  # its row could not be saved, so its Session stays if it has an answer
            run.warnings.append(f"the Session of {rollout.rollout_id} may be left behind: {error}")
            raise
        run.warnings += outcome.warnings
        if outcome.fatal is not None:  # every other rollout would meet it too
            self._pool.halt(outcome.fatal)
        return outcome

    def _is_graded_again(self, rollout: Rollout) -> bool:
        if self.parts.replay is not None:
            return True
        assert self.parts.resumed is not None, "a replayer has a source"
        return rollout.attempt == 1 and self.parts.resumed.verdict(rollout).action == "grade"

    def _on_result(self, job: _Job, outcome: Outcome | None) -> None:
        if outcome is not None:
            if not self.parts.keep_results:
                outcome = replace(outcome, record=replace(outcome.record, items=None))
            job.run._add(outcome)

    def _on_end(self, reason: str) -> None:
        for run in list(self._runs.values()):
            run._end(reason)
        self._on_read()

    def _on_read(self) -> None:
        """A result was read."""
        with self._room:
            if self._max_waiting is not None or len(self._runs) > 1:
                self._runs = {run_id: run for run_id, run in self._runs.items() if run._unread}
            self._room.notify_all()

    def _end_in_flight(self, run: Run) -> None:
        """Ask the run's rollouts in flight to end."""
        self._pool.call_soon(lambda: run._stop.ask(CANCEL_SECONDS))
        self._on_read()

    @property
    def _has_room(self) -> bool:
        return self._max_waiting is None or sum(run._unread for run in self._runs.values()) < self._max_waiting


@dataclass(frozen=True)
class _Job:
    rollout: Rollout
    run: Run


@dataclass(frozen=True)
class _Defaults:
    """What a rollout gets if neither `submit` nor its task sets it."""

    timeout: float = 900.0
    network: Network = field(default_factory=Network.disabled)
    retries: int = 1
    failed_turns: FailedTurns | None = "missing"

    def __post_init__(self) -> None:
        if self.failed_turns not in ("missing", "zero", None):
            raise ValueError(f"failed_turns: expected 'missing' or 'zero', got {self.failed_turns!r}")

    def rollout(
        self, task: Task, agent: Agent, sample: int, run_id: str, labels: Mapping[str, str], timeout: float | None
    ) -> Rollout:
        xfail = task.xfail
        expected = xfail is not None and xfail.applies_to(agent.harness, agent.model, agent.name)
        return Rollout(
            task=task,
            agent=agent,
            sample=sample,
            run_id=run_id,
            timeout=timeout or task.timeout or self.timeout,
            network=task.network or self.network,
            retries=self.retries,
            failed_turns=self.failed_turns,
            labels=dict(labels),
            xfail=(xfail.reason or "xfail") if expected and xfail is not None else None,
        )


def _parts(
    core: CoreAccess,
    concurrency: int,
    out: Path | str | None,
    save: Callable[[RolloutRecord], None] | None,
    grade: Grader | None,
    caps: Caps,
) -> Parts:
    store = RowStore(None if out is None else Path(out), also_to=save, caps=caps)
    return Parts(core, store, TaskGrading() if grade is None else FunctionGrading(grade), concurrency)
