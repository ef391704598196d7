"""The engine: runs submitted at any time share its places on one Core."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from pytest_core_rollouts.embedded.hidden import find_places, hide, merge_places
from pytest_core_rollouts.engine.pool import CANCEL_SECONDS, Pool, PoolStopped
from pytest_core_rollouts.engine.runs import Run, RunEnded
from pytest_core_rollouts.grading import Answer, Grade, grade_answer
from pytest_core_rollouts.matrix import Agent, FailedTurns, Rollout, check_distinct, new_run_id
from pytest_core_rollouts.records import RolloutRecord, append, check_writable
from pytest_core_rollouts.records.masking import Masker
from pytest_core_rollouts.rollout import Grader, RolloutRunner
from pytest_core_rollouts.rollout.stopping import Stop
from pytest_core_rollouts.rollout.witnesses import Witnesses
from pytest_core_rollouts.tasks import Network, Task

if TYPE_CHECKING:
    from pytest_core_rollouts.agents_api import Client

MODEL_KEY: Final = "MODEL_API_KEY"
"""The environment variable of a model provider's key, where an agent names none."""


class Engine:
    """Keeps up to `concurrency` rollouts in flight on one Core.

    `out`: a JSONL file that gets a row per finished rollout, before anybody hears of it. `grade`: replaces the
    comparison with `Task.expected`; called in a thread of this process, as `grade(task, answer, rollout)`, within
    60 s, which can't stop code that holds the GIL. `max_waiting`: `submit` blocks while more results than this wait to
    be read or to be run. The keys of model providers are taken from the
    environment variables that agents name (default MODEL_API_KEY). `failed_turns`: what a Turn counts as that failed
    for a reason which the Core does not name: "missing" or, so that no policy gains by it, "zero".

    Raises RecordsError when `out` can't be written, ValueError for a bad URL or key.
    """

    def __init__(
        self,
        base_url: str,
        api_key: str,
        *,
        concurrency: int = 4,
        out: Path | None = None,
        grade: Grader | None = None,
        timeout: float = 900.0,
        network: Network | None = None,
        retries: int = 1,
        failed_turns: FailedTurns = "missing",
        max_waiting: int | None = None,
    ) -> None:
        self._base_url, self._api_key = base_url, api_key
        self._connect()  # a bad URL or key is the caller's mistake: raised here, before anything is sent
        if out is not None:
            check_writable(out)
        self._out = out
        self._show_again: list[Callable[[], None]] = []
        """Each ends what a run hides from graders' sandboxes."""
        self._hidden: set[str] = set()
        self._timeout, self._network, self._retries = timeout, network or Network.disabled(), retries
        if failed_turns not in ("missing", "zero"):
            raise ValueError(f"failed_turns: expected 'missing' or 'zero', got {failed_turns!r}")
        self._failed_turns = failed_turns
        self._max_waiting = max_waiting
        self._model_keys: dict[str, str] = {}
        self._masks = Masker([api_key])
        self._runner = RolloutRunner(
            grade=grade or grade_expected,
            save=self._keep,
            model_keys=self._model_keys,
            witnesses=Witnesses(self._task_count),
            halted=lambda: self._pool.fatal,
        )
        self._kept: dict[str, RolloutRecord] = {}
        self._pool: Pool[_Job, Client, None] = Pool(
            self._connect,
            self._run_job,
            concurrency=concurrency,
            keep_results=False,
            admits=self._runner.pressure.admits,
        )
        self._runs: dict[str, Run] = {}
        self._used_ids: set[str] = set()
        self._room = threading.Condition()
        self._closed: str | None = None

    def submit(
        self,
        tasks: Task | Iterable[Task],
        agents: Agent | Iterable[Agent] | None = None,
        *,
        samples: int = 1,
        labels: Mapping[str, str] | None = None,
        timeout: float | None = None,
    ) -> Run:
        """Queue every task × agent × sample as one run. Blocks while there is no room (`max_waiting`).

        What a task says itself (timeout, network) comes before the engine's settings, `timeout` here before both.
        Raises MatrixError for agents no Core could serve, ValueError for an agent whose key is not in the environment,
        RunEnded when the engine is closed.
        """
        run = self._plan(tasks, agents, samples, labels or {}, timeout)
        with self._room:
            self._room.wait_for(lambda: self._has_room or self._closed)
            self._start(run)
        return run

    async def asubmit(
        self,
        tasks: Task | Iterable[Task],
        agents: Agent | Iterable[Agent] | None = None,
        *,
        samples: int = 1,
        labels: Mapping[str, str] | None = None,
        timeout: float | None = None,
    ) -> Run:
        """`submit` for asyncio: waits for room without blocking the loop."""
        run = self._plan(tasks, agents, samples, labels or {}, timeout)
        while True:
            with self._room:
                if self._has_room or self._closed:
                    self._start(run)
                    return run
            await asyncio.sleep(0.05)

    def close(self) -> None:
        """End everything: nothing new starts, what is in flight is cancelled, recorded and its Session deleted."""
        with self._room:
            if self._closed is not None:
                return
            self._closed = "the engine was closed"
            self._room.notify_all()
        for run in list(self._runs.values()):
            run.end(self._closed)
            self._ask(run)
        self._pool.stop(self._closed)
        for show_again in self._show_again:
            show_again()

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    async def __aenter__(self) -> Engine:
        return self

    async def __aexit__(self, *_: object) -> None:
        await asyncio.get_running_loop().run_in_executor(None, self.close)

    # ---- within

    def _plan(
        self,
        tasks: Task | Iterable[Task],
        agents: Agent | Iterable[Agent] | None,
        samples: int,
        labels: Mapping[str, str],
        timeout: float | None,
    ) -> Run:
        if samples < 1:
            raise ValueError("samples is at least 1")
        given = [agents or Agent()] if agents is None or isinstance(agents, Agent) else agents
        columns = [_naming_its_key(agent) for agent in given]
        for agent in columns:
            agent.check()
            _model_key(agent)
        check_distinct(columns)
        run_id = self._new_run_id()
        rollouts = [
            Rollout(
                task=task,
                agent=agent,
                sample=sample,
                run_id=run_id,
                timeout=timeout or task.timeout or self._timeout,
                network=task.network or self._network,
                retries=self._retries,
                failed_turns=self._failed_turns,
                labels=dict(labels),
            )
            for task in ([tasks] if isinstance(tasks, Task) else tasks)
            for agent in columns
            for sample in range(samples)
        ]
        if not rollouts:
            raise ValueError("no task was given")
        if len({rollout.rollout_id for rollout in rollouts}) < len(rollouts):
            raise ValueError("two tasks have the same id; every task of a run needs its own")
        return Run(rollouts, self._taken, self._ask)

    def _new_run_id(self) -> str:
        while (run_id := new_run_id()) in self._used_ids:
            pass
        self._used_ids.add(run_id)
        return run_id

    def _start(self, run: Run) -> None:
        if self._closed is not None:
            raise RunEnded(self._closed)
        for rollout in run.rollouts:
            if (name := rollout.agent.api_key_env) is not None and rollout.agent.base_url is not None:
                self._model_keys[name] = _model_key(rollout.agent) or ""
        self._masks = Masker([self._api_key, *self._model_keys.values()])
        self._hide({path for rollout in run.rollouts if (path := rollout.task.path) is not None})
        self._runs[run.run_id] = run
        try:
            self._pool.submit([_Job(rollout, run) for rollout in run.rollouts])
        except PoolStopped as stopped:
            raise RunEnded(str(stopped)) from None
        if self._pool.fatal is not None:
            self._break(self._pool.fatal)

    def _task_count(self, run_id: str) -> int:
        run = self._runs.get(run_id)
        return 0 if run is None else len({rollout.task.id for rollout in run.rollouts})

    def _hide(self, tasks: Iterable[Path]) -> None:
        """Graders may run code of an agent in sandboxes, which must not show its task or earlier results."""
        places = find_places([], tasks=tasks, files=[self._out] if self._out is not None else [])
        merged = merge_places([*self._hidden, *places.all])  # most tasks are in a folder that is hidden already
        if new := set(merged) - self._hidden:
            self._hidden = set(merged)
            self._show_again.append(hide(new))

    @property
    def _has_room(self) -> bool:
        return self._max_waiting is None or sum(run.unread for run in self._runs.values()) < self._max_waiting

    def _taken(self) -> None:
        """A result was read."""
        with self._room:
            self._runs = {run_id: run for run_id, run in self._runs.items() if run.unread}
            self._room.notify_all()

    def _ask(self, run: Run) -> None:
        """Ask the run's rollouts in flight to end."""
        self._pool.call_soon(lambda: run.stop.ask(CANCEL_SECONDS))
        self._taken()

    def _break(self, reason: str) -> None:
        """Something that every rollout would meet: nothing more starts."""
        self._pool.halt(reason)
        for run in list(self._runs.values()):
            run.end(reason)
        self._taken()

    def _connect(self) -> Client:
        from pytest_core_rollouts.agents_api import Client

        return Client(self._base_url, self._api_key, proven=lambda: self._runner.pressure.has_made)

    async def _run_job(self, client: Client, job: _Job, stop: Stop) -> None:
        if job.run.is_over:
            return
        try:
            outcome = await self._runner.run(client, job.rollout, job.run.stop)
        except Exception as error:  # its record could not be kept, so its Session, if it has an answer, stays
            job.run.warnings.append(f"the Session of {job.rollout_id} may be left behind: {error}")
            self._break(str(error) or repr(error))
            raise
        job.run.warnings += outcome.warnings
        job.run.add(self._kept.pop(job.rollout_id))
        if outcome.fatal is not None:
            self._break(outcome.fatal)

    def _keep(self, record: RolloutRecord) -> None:
        if self._out is not None:
            append(self._out, record, self._masks)
        self._kept[record.rollout_id] = record


@dataclass(frozen=True)
class _Job:
    rollout: Rollout
    run: Run

    @property
    def rollout_id(self) -> str:
        return self.rollout.rollout_id


def grade_expected(task: Task, answer: Answer, rollout: Rollout) -> Grade:
    """Grade by the task's own expected answer. Raises ValueError for a task without one."""
    if task.expected is None:
        raise ValueError(f"task {task.id!r} has no expected answer; give the engine a `grade` function")
    return grade_answer(task.expected, answer, task.tolerance)


def _naming_its_key(agent: Agent) -> Agent:
    """The agent, with the variable of its key named where it has a model endpoint of its own."""
    return agent if agent.base_url is None or agent.api_key_env else replace(agent, api_key_env=MODEL_KEY)


def _model_key(agent: Agent) -> str | None:
    """The key for the agent's own model endpoint; None where it has none."""
    if agent.base_url is None or (name := agent.api_key_env) is None:
        return None
    if not (key := os.environ.get(name)):
        raise ValueError(f"agent {agent.slug}: its key is due in the environment variable {name}, which is not set")
    return key
