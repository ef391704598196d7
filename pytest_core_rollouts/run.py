"""One run in this process: its ids, its Core, its engine, its JSONL.

The same class serves a plain run and, under xdist, the controller and each worker. The controller makes run id,
JSONL path and Core once and hands them to its workers; only the process that runs items has an engine, and only the
controller (or the plain run) starts and stops the embedded Core, sweeps leftovers and reports.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pytest_core_rollouts import judging
from pytest_core_rollouts.baseline import Baseline
from pytest_core_rollouts.collect import ResultSource, RolloutItem
from pytest_core_rollouts.display import Display
from pytest_core_rollouts.gate import Identity
from pytest_core_rollouts.grading import Answer, Grade
from pytest_core_rollouts.kept_files import keep_files
from pytest_core_rollouts.masking import Masker
from pytest_core_rollouts.matrix import Agent, Rollout, make_id, new_run_id
from pytest_core_rollouts.own_graders import as_grade
from pytest_core_rollouts.pool import Pool, PoolStopped
from pytest_core_rollouts.records import (
    RecordsError,
    RolloutRecord,
    append,
    check_writable,
    count_planned,
    effective,
    read_records,
)
from pytest_core_rollouts.replay import NoCore, Replay, Replayer
from pytest_core_rollouts.rollout import Outcome, RolloutRunner
from pytest_core_rollouts.settings import Settings
from pytest_core_rollouts.stopping import Stop
from pytest_core_rollouts.tasks import Task

if TYPE_CHECKING:
    from pytest_core_rollouts.agents_api import Client
    from pytest_core_rollouts.embedded.launch import EmbeddedCore

HIDDEN = "(hidden)"
"""Stands in a row for what was expected, under --rollout-hide-expected."""
TICK = 0.2
"""Seconds between two looks at Ctrl-C while waiting for a rollout."""
CONCURRENCY = 4
FIRST_PATIENCE = 5.0
"""Seconds for which a Core that can't be reached at the start of a run is tried again."""


class Run(ResultSource):
    """A run as this process sees it."""

    def __init__(self, config: pytest.Config, settings: Settings) -> None:
        given: dict[str, Any] = getattr(config, "workerinput", {}).get("rollouts", {})
        self.config = config
        self.settings = settings
        self.is_worker = hasattr(config, "workerinput")
        self.run_id: str = given.get("run_id") or new_run_id()
        self.out = Path(given["out"]) if given else settings.out or config.rootpath / "runs" / f"{self.run_id}.jsonl"
        self.base_url: str | None = given.get("base_url") or (None if settings.embedded else settings.core)
        self.api_key: str | None = given.get("api_key") or settings.core_key
        self.embedded: EmbeddedCore | None = None
        self.started_at = datetime.now(timezone.utc)
        self._secrets: set[str] = set()
        self._hooks: dict[str, Any] = {}
        """By task, the hooks that see it: those of the conftest files on its way."""
        self._mask()
        self.selected: dict[str, tuple[str, Agent, int]] = {}
        """Task id, agent and sample of every rollout that is to run, by rollout id."""
        self.chosen: dict[Identity, frozenset[str]] = {}
        """The tasks of each agent, also those that are skipped."""
        self.planned: dict[tuple[str, str], dict[str, int]] = {}
        self.baseline: Baseline | None = None
        self.outlook: list[str] = []
        """What there is to say before the first rollout."""
        self.ready = False
        """Whether rollouts were selected and nothing stands in their way."""
        self.reached = False
        """Whether a Core that is not ours answered: Sessions may have been made there."""
        self.engine: Pool[Rollout, Client, Outcome] | None = None
        self._shard: int = given.get("shard", 0)
        self._shards: int = given.get("shards", 0)
        self.stop_wanted: Callable[[], str | None] = lambda: None
        """Asked while waiting: why to stop, or None."""
        self.begun_before: Callable[[], Collection[str]] = tuple
        """Ids of rollouts that a dead worker may have finished."""
        self.given_up: Callable[[], Collection[str]] = tuple
        """Ids of rollouts that have killed their workers often enough."""
        self.display: Display | None = None
        self._submitted: set[str] = set()
        self._ready: dict[str, Outcome] = {}
        self._stopped: str | None = None

    # ---- the Core

    def reserve_core(self) -> None:
        """Fix the embedded Core's address and key, so that workers can be told, without starting it."""
        if self.settings.embedded and self.embedded is None and not self.is_worker:
            from pytest_core_rollouts.embedded.launch import EmbeddedCore

            self.embedded = EmbeddedCore.reserve()
            self.base_url, self.api_key = self.embedded.base_url, self.embedded.api_key
            self._mask()

    def for_workers(self) -> dict[str, str | None]:
        """What every worker has to share with this process."""
        self.reserve_core()
        return {"run_id": self.run_id, "out": str(self.out), "base_url": self.base_url, "api_key": self.api_key}

    def prepare(
        self, selected: Iterable[tuple[str, Agent, int]], chosen: Iterable[tuple[str, Agent, int]] | None = None
    ) -> None:
        """Rollouts were selected, as (task id, agent, sample): make sure of Core, key and JSONL before the first
        Session is paid for. `chosen` holds those that will be skipped too. Raises pytest.UsageError.
        """
        self.selected = {self.rollout_id(*one): one for one in selected}
        for task_id, agent, _ in self.selected.values() if chosen is None else chosen:
            identity = agent.harness, agent.model, agent.name
            self.chosen[identity] = self.chosen.get(identity, frozenset()) | {task_id}
        self.planned = count_planned((agent.slug, task_id) for task_id, agent, _ in self.selected.values())
        if not self.selected:
            return
        if not self.is_worker:
            self.baseline = judging.prepare(self)
            self.outlook = list(judging.outlook(self))
            self._make_ready()
        self.ready = True
        if not self.is_worker and not self.settings.embedded and self.settings.replay is None:
            self._reach_core()

    def _make_ready(self) -> None:
        refuse_unfit(self.config)
        if self.settings.replay is None:
            self.settings.require_core()
        try:
            check_writable(self.out)
        except RecordsError as error:
            raise pytest.UsageError(str(error)) from None
        if self.settings.embedded:
            self._start_embedded()

    def _reach_core(self) -> None:
        """End the run where no Core is there or it refuses the key: every rollout would meet the same."""
        if (problem := asyncio.run(why_unreachable(self.connect))) is not None:
            raise pytest.exit.Exception(problem, returncode=pytest.ExitCode.INTERRUPTED)
        self.reached = True

    def _start_embedded(self) -> None:
        from pytest_core_rollouts.embedded.launch import EmbeddedCoreError, why_missing

        for harness in sorted({agent.harness for _, agent, _ in self.selected.values()}):
            if (problem := why_missing(harness)) is not None:
                raise pytest.UsageError(f"--core embedded, harness {harness}: {problem}")
        self.reserve_core()
        assert self.embedded is not None
        capture, params = self.settings.capture, self.settings.model_params
        try:
            if capture is not None:
                capture.mkdir(parents=True, exist_ok=True)
            hidden = [self.config.rootpath, *self.settings.roots]
            self.embedded.start(hidden=hidden, capture=capture, model_params=params)
        except EmbeddedCoreError as error:
            raise pytest.UsageError(f"--core embedded: {error}") from None
        except OSError as error:
            raise pytest.UsageError(f"--rollout-capture: {capture} can't be made: {error.strerror}") from None

    # ---- rollouts

    def rollout_id(self, task_id: str, agent: Agent, sample: int) -> str:
        """The id of a rollout of this run."""
        return make_id(self.run_id, task_id, agent, sample)

    def plan(self, task: Task, agent: Agent, sample: int, attempt: int = 1) -> Rollout:
        """A rollout with every setting resolved."""
        settings = self.settings
        return Rollout(
            task=task,
            agent=agent,
            sample=sample,
            run_id=self.run_id,
            timeout=settings.timeout.over(task.timeout),
            network=settings.network.over(task.network),
            retries=settings.retries,
            labels=settings.labels,
            model_params=settings.model_params,
            attempt=attempt,
        )

    def id_of(self, item: RolloutItem) -> str:
        """The id of the item's rollout."""
        return self.rollout_id(item.task.id, item.agent, item.sample)

    def shard(self, items: Sequence[pytest.Item]) -> Sequence[pytest.Item]:
        """The items that are this worker's; none where it is told one at a time."""
        return items[self._shard :: self._shards] if self._shards else ()

    def submit(self, items: Iterable[RolloutItem]) -> None:
        """Start the items' rollouts as slots become free; those that a dead worker finished are only read."""
        rollouts = [self._plan_item(item) for item in items]
        known = self._known_rows(rollouts)
        for rollout in rollouts:
            self._submitted.add(rollout.rollout_id)
            if (record := known.get(rollout.rollout_id)) is not None:
                self._ready[rollout.rollout_id] = Outcome(record)
        if self.engine is None:
            self.engine = self._make_engine()
        self.engine.submit([rollout for rollout in rollouts if rollout.rollout_id not in self._ready])

    def _plan_item(self, item: RolloutItem) -> Rollout:
        """The item's rollout, which from now on is graded by the hooks of its folder, its secrets masked."""
        self._hooks[item.task.id] = item.ihook
        if (secrets := set(item.task.secrets)) - self._secrets:
            self._secrets |= secrets
            self._mask()
        planned = self.plan(item.task, item.agent, item.sample, item.next_attempt)
        return replace(planned, xfail=item.expected_failure)

    def _mask(self) -> None:
        self.masks = Masker([*self.settings.secrets, self.api_key, *sorted(self._secrets)])

    def masked(self, text: str) -> str:
        return self.masks.text(text)

    def next_done(self) -> str | None:
        """The id of the next rollout that finished, or None after a tick. PoolStopped: none will."""
        assert self.engine is not None
        self._tick()
        outcome = self.engine.next_done(TICK)
        if outcome is None:
            return None
        self._ready[outcome.record.rollout_id] = outcome
        return outcome.record.rollout_id

    def outcome_of(self, item: RolloutItem) -> Outcome:
        """The item's outcome, waited for. PoolStopped: there will be none."""
        rollout_id = self.id_of(item)
        if rollout_id not in self._submitted or item.next_attempt > 1:
            self.submit([item])
        assert self.engine is not None
        while rollout_id not in self._ready:
            self._tick()
            if (reason := self.stop_wanted()) is not None:
                self.engine.stop(reason)
                self._stopped = reason
            if (outcome := self.engine.wait(rollout_id, TICK)) is not None:
                self._ready[rollout_id] = outcome
        outcome = self._ready.pop(rollout_id)
        if self._stopped is not None and outcome.record.status == "cancelled":
            raise PoolStopped(self._stopped)  # it has its row, and nothing to report
        return outcome

    def await_outcome(self, item: RolloutItem) -> None:
        """Return when the item's outcome is there to be taken. PoolStopped: there will be none."""
        rollout_id = self.id_of(item)
        self._ready[rollout_id] = self.outcome_of(item)

    def _tick(self) -> None:
        if self.display is not None:
            self.display.tick()

    def in_flight(self) -> int | None:
        """How many rollouts this process has under way."""
        return None if self.engine is None else self.engine.in_flight

    def _known_rows(self, rollouts: Iterable[Rollout]) -> dict[str, RolloutRecord]:
        """What a worker that takes over from a dead one finds finished."""
        wanted = {rollout.rollout_id for rollout in rollouts if rollout.attempt == 1}
        wanted.intersection_update(self.begun_before())
        return effective(record for record in self.rows() if record.rollout_id in wanted) if wanted else {}

    def rows(self) -> Iterator[RolloutRecord]:
        """The rows of this run in its file, which may hold other runs too; without their Items."""
        if self.out.exists():
            yield from (record for record in read_records(self.out, items=False) if record.run_id == self.run_id)

    def _make_engine(self) -> Pool[Rollout, Any, Outcome]:
        concurrency = self.settings.concurrency or (1 if self.is_worker else CONCURRENCY)
        if self.settings.replay is not None:
            return Pool(NoCore, self._replay_run(self.settings.replay), concurrency=concurrency)
        runner = RolloutRunner(
            grade=self.grade,
            save=self.save,
            keep_files=self.keep_files,
            model_keys=self.settings.model_keys,
            keep_items=self.settings.items != "none",
        )

        async def run(client: Client, rollout: Rollout, stop: Stop) -> Outcome:
            outcome = await runner.run(client, rollout, stop)
            if outcome.fatal is not None:  # every other rollout would meet it too
                engine.halt(outcome.fatal)
            return outcome

        engine: Pool[Rollout, Client, Outcome] = Pool(self.connect, run, concurrency=concurrency)
        return engine

    def _replay_run(self, replay: Replay) -> Callable[[NoCore, Rollout, Stop], Awaitable[Outcome]]:
        keep_items = self.settings.items != "none"
        replayer = Replayer(replay, self.grade, self.save, self.keep_files, keep_items)

        async def run(client: NoCore, rollout: Rollout, stop: Stop) -> Outcome:
            return await replayer.run(rollout)

        return run

    def connect(self) -> Client:
        """A client of this run's Core."""
        from pytest_core_rollouts.agents_api import Client

        assert self.base_url is not None, "prepare() refuses a run without a Core"
        assert self.api_key is not None, "prepare() refuses a run without a key"
        return Client(self.base_url, self.api_key)

    def save(self, record: RolloutRecord) -> None:
        """Write the row of a finished rollout; what was expected stays out of it where that is not to be shown."""
        planned = self.planned.get((str(record.agent["slug"]), record.task), {})
        reasons = record.reasons
        if self.settings.hide_expected:
            reasons = [{**reason, "expected": HIDDEN} for reason in reasons]
        paid_for = self.settings.replay is None
        append(self.out, replace(record, planned=planned, reasons=reasons), self.masks, sync=paid_for)

    def grade(self, task: Task, answer: Answer, rollout: Rollout) -> Grade:
        """Grade as the project says, else as the task does. Runs in a thread of its own."""
        hooks = self._hooks[task.id]
        given = hooks.pytest_rollout_grade(task=task, answer=answer, rollout=rollout)
        return task.grade(answer, rollout) if given is None else as_grade(given, "pytest_rollout_grade")

    def keep_files(self, rollout: Rollout, attempt: int, artifacts: Mapping[str, bytes]) -> Sequence[Mapping[str, Any]]:
        return keep_files(self.out, rollout.rollout_id, attempt, artifacts, self.masks)

    # ---- the end

    @property
    def last_words(self) -> str:
        """For a process that ends at once."""
        return (
            f"ended at once; Sessions of run {self.run_id} may be left behind. To delete them:\n"
            f"  python -m pytest_core_rollouts reap {self.run_id}"
        )

    def stop(self, reason: str) -> None:
        """Nothing new starts; what is in flight is cancelled and recorded."""
        if self.engine is not None:
            self.engine.stop(reason)

    def close(self) -> None:
        """Stop the embedded Core, if there is one."""
        if self.embedded is not None:
            self.embedded.stop()


def refuse_unfit(config: pytest.Config) -> None:
    """Raises pytest.UsageError for ways of running tests that rollouts can't be run in."""
    if config.getoption("stepwise", False):
        raise pytest.UsageError(
            "--stepwise stops at the first failure and starts from there the next time, in the order of collection; "
            "rollouts finish in an order of their own. Use -x, and then --lf or --ff"
        )
    if config.getoption("dist", "no") == "each":
        raise pytest.UsageError("--dist each runs everything in every worker; a rollout runs once: leave it out")


async def why_unreachable(connect: Callable[[], Client]) -> str | None:
    """What is wrong with the Core or the key, or None. A Core that is only busy or broken right now may mend itself."""
    from pytest_core_rollouts.agents_api import AgentsAPIError, ConnectionFailed, RetryPolicy

    client = connect()
    client.retry = RetryPolicy(patience=FIRST_PATIENCE)
    try:
        await client.check()
    except AgentsAPIError as error:
        return str(error) if error.stops_run or isinstance(error, ConnectionFailed) else None
    finally:
        await client.aclose()
    return None
