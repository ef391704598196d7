"""The engine that training loops use. It plans rollouts and hands them to the host, as sessions and `check` do."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Collection, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from pytest_core_rollouts.agents_api.address import require_secure_url
from pytest_core_rollouts.engine.caps import Caps
from pytest_core_rollouts.engine.core_access import CoreAccess, EmbeddedOptions
from pytest_core_rollouts.engine.host import Host, require_distinct
from pytest_core_rollouts.engine.parts import Defaults, make_parts
from pytest_core_rollouts.engine.preflight import (
    check_agent,
    model_key,
    why_skipped,
)
from pytest_core_rollouts.engine.runs import Run
from pytest_core_rollouts.records.record import RolloutRecord
from pytest_core_rollouts.rollout.dialects import DialectName, dialect_named
from pytest_core_rollouts.rollout.runner import Grader
from pytest_core_rollouts.tasks.matrix import Agent, FailedTurns, Rollout, check_distinct
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
        self._defaults = Defaults(timeout, network or Network.disabled(), retries, failed_turns)
        self._host = Host(parts, max_waiting)
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
        engine = cls.__new__(cls)
        engine._defaults = Defaults(timeout, Network.disabled(), retries, failed_turns=None)
        engine._host = Host(parts, max_waiting)
        return engine

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
        self._host.start(run, rollouts)
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
            self._host.start(run, rollouts, abandoned=abandoned)
            if abandoned.is_set():
                run.cancel()
            return run

        # Not in the loop's executor: submits that wait there for room could keep out the work that makes room.
        thread = ThreadPoolExecutor(1, "rollouts-submit")
        try:
            return await asyncio.get_running_loop().run_in_executor(thread, submit)
        except asyncio.CancelledError:
            abandoned.set()
            self._host.wake()
            raise
        finally:
            thread.shutdown(wait=False)

    def submit_rollouts(self, rollouts: Iterable[Rollout], *, maybe_finished: Collection[str] = ()) -> Run:
        """Queue rollouts with given run id, group and sample. Blocks while there is no room (`max_waiting`).

        * `rollouts`: all with one run id, which may be that of an earlier submit.
        * `maybe_finished`: ids of rollouts that another process may have begun or finished; their rows are looked up
          first, and on OpenAI's service also their Sessions.

        A rollout has every setting resolved: the engine's `timeout`, `network`, `retries` and `failed_turns` don't
        apply to it. On OpenAI's service, the harness `default` becomes `codex`, also in the rollout's id.

        Raises as `submit` does, and ValueError for a task that a pytest session would skip, two rollouts of one id, or
        two run ids.
        """
        return self._host.submit_rollouts(rollouts, maybe_finished=maybe_finished)

    def prepare(self, rollouts: Iterable[tuple[Task | None, Agent]]) -> None:
        """Check everything that every rollout needs, and start or reach the Core, before the first `submit`.

        `rollouts` are pairs of a task (None if it is not known yet) and an agent. `submit` does the same for its own.

        Raises MatrixError, CoreError or RecordsError. Repeating it costs nothing.
        """
        self._host.prepare(rollouts)

    # ---- the end

    def stop(self, reason: str) -> None:
        """Start nothing more. What is in flight is cancelled, recorded and its Session deleted; then return.

        What has finished by then can still be read.
        """
        self._host.stop(reason)

    def close(self) -> None:
        """Stop everything, and the embedded Core with it. What has finished by then can still be read."""
        self._host.close()

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
        return self._host.in_flight

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
        core = self._host.parts.core
        given = [agents or Agent()] if agents is None or isinstance(agents, Agent) else list(agents)
        columns = [core.dialect.resolve(agent) for agent in given]
        check_distinct(columns)
        for agent in columns:
            check_agent(agent, embedded=core.is_ours, dialect=core.dialect)
            model_key(agent)
        run = self._host.new_run()
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
        require_distinct(rollouts)
        return run, rollouts
