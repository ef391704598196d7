"""One run in this process: its ids, its Core, its engine, its JSONL.

The same class serves a plain run and, under xdist, the controller and each worker. The controller makes run id,
JSONL path and Core once and hands them to its workers; only the process that runs items has an engine, and only the
controller (or the plain run) starts and stops the embedded Core, sweeps leftovers and reports.
"""

from __future__ import annotations

import collections
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pytest_core_rollouts.collecting.collect import ResultSource, RolloutItem
from pytest_core_rollouts.embedded.hidden import Places, hide
from pytest_core_rollouts.engine import engines, resume
from pytest_core_rollouts.engine.caps import Caps
from pytest_core_rollouts.engine.core_access import CoreAccess, places_of_run
from pytest_core_rollouts.engine.pool import CANCEL_SECONDS, Pool, PoolStopped
from pytest_core_rollouts.engine.resume import Plan, Resumed, Verdict
from pytest_core_rollouts.engine.store import Books
from pytest_core_rollouts.options.settings import Settings
from pytest_core_rollouts.records import RecordsError, check_writable, count_planned
from pytest_core_rollouts.records.masking import Masker
from pytest_core_rollouts.results.baseline import Baseline
from pytest_core_rollouts.results.gate import Identity
from pytest_core_rollouts.rollout import Outcome
from pytest_core_rollouts.rollout.pressure import Pressure
from pytest_core_rollouts.running import judging
from pytest_core_rollouts.running.display import Display, State
from pytest_core_rollouts.running.project_grading import ProjectGrading
from pytest_core_rollouts.tasks import Task
from pytest_core_rollouts.tasks.matrix import Agent, Chosen, Rollout, make_id, new_run_id

if TYPE_CHECKING:
    from pytest_core_rollouts.agents_api import Client

TICK = 0.2
"""Seconds between two looks at Ctrl-C while waiting for a rollout."""
CONCURRENCY = 4
RESUMED = "resumed"
"""The file that tells workers the rows of a resumed run."""


class Run(ResultSource):
    """A run as this process sees it."""

    def __init__(self, config: pytest.Config, settings: Settings) -> None:
        given: dict[str, Any] = getattr(config, "workerinput", {}).get("rollouts", {})
        self.config = config
        self.settings = settings
        self.is_worker = hasattr(config, "workerinput")
        self.resumed = _resumed(given) if given else settings.resume
        self.run_id: str = given.get("run_id") or (self.resumed.run_id if self.resumed else new_run_id())
        self.out = Path(given["out"]) if given else self._out()
        self.books = Books(self.out, self.run_id, self.resumed, settings.items, settings.hide_expected)
        self.caps = self.books.caps = Caps(settings.max_time, settings.max_tokens)
        if given:
            self.caps.folder = Path(given["folder"])
        self.core = CoreAccess(settings, given.get("base_url"), given.get("api_key"))
        self.started_at, self.started = datetime.now(timezone.utc), time.monotonic()
        self._secrets: set[str] = set()
        self.grading = ProjectGrading(hide_expected=settings.hide_expected)
        self._mask()
        self.selected: dict[str, tuple[str, Agent, int]] = {}
        """Task id, agent and sample of every rollout that is to run, by rollout id."""
        self.chosen: dict[Identity, frozenset[str]] = {}
        """The tasks of each agent, also those that are skipped."""
        self.planned: dict[tuple[str, str], dict[str, int]] = {}
        self.resuming: Plan | None = None
        """What becomes of each rollout of a resumed run."""
        self.baseline: Baseline | None = None
        self.outlook: list[str] = []
        """What there is to say before the first rollout."""
        self.reported: set[str] = set()
        """Ids of the rollouts that pytest has heard of."""
        self.reused: set[str] = set()
        """Those among them whose result an earlier session had."""
        self.ready = False
        """Whether rollouts were selected and nothing stands in their way."""
        self.engine: Pool[Rollout, Client, Outcome] | None = None
        self.pressure = Pressure()
        self.core.proven = lambda: self.pressure.has_made
        self.stop_wanted: Callable[[], str | None] = lambda: None
        """Asked while waiting: why to stop, or None."""
        self.begun_before: Callable[[], Collection[str]] = tuple
        """Ids of rollouts that a dead worker may have finished."""
        self.told: Callable[[], Collection[str]] = tuple
        """Ids of rollouts that pytest has heard of, from a dead worker or, given up, from the controller."""
        self.dealt: Callable[[], Sequence[int]] | None = tuple
        """Which items are this worker's, as the controller dealt them out; none where it is told one at a time."""
        self.tell: Callable[[State], None] = lambda state: None
        """Told now and then how things stand."""
        self.display: Display | None = None
        self._show_again: Callable[[], None] = lambda: None
        """Ends what this run hides from sandboxes."""
        self._submitted: set[str] = set()
        self._ready: dict[str, Outcome] = {}
        self._at_once: collections.deque[str] = collections.deque()
        """Ids of rollouts whose outcome was there when they were submitted."""
        self._stopped: str | None = None
        self.stop_until: float | None = None
        """When (monotonic) all is to be over, once a stop was asked for."""

    def _out(self) -> Path:
        if self.resumed is not None:
            return self.resumed.path
        return self.settings.out or self.config.rootpath / "runs" / f"{self.run_id}.jsonl"

    # ---- before the first rollout

    def for_workers(self, folder: Path) -> dict[str, Any]:
        """What every worker has to share with this process, in part by files in a folder of theirs."""
        self.core.reserve()
        self._mask()
        self.caps.folder = folder
        if self.resumed is not None and not (folder / RESUMED).exists():
            self.resumed.dump(folder / RESUMED)
        return {
            "run_id": self.run_id,
            "out": str(self.out),
            "base_url": self.core.base_url,
            "api_key": self.core.api_key,
            "resumes": self.resumed is not None,
            "folder": str(folder),
        }

    def prepare(
        self,
        selected: Iterable[Chosen],
        chosen: Iterable[Chosen] | None = None,
        task_of: Callable[[str], Task | None] = lambda task_id: None,
    ) -> None:
        """Rollouts were selected: make sure of Core, key and JSONL before the first Session is paid for.

        `chosen` holds those that will be skipped too; `task_of` gives a task by its id, None where it can't be told
        here. Raises pytest.UsageError.
        """
        self.selected = {self.rollout_id(*one): one for one in selected}
        for task_id, agent, _ in self.selected.values() if chosen is None else chosen:
            identity = agent.harness, agent.model, agent.name
            self.chosen[identity] = self.chosen.get(identity, frozenset()) | {task_id}
        self.planned = count_planned((agent.slug, task_id) for task_id, agent, _ in self.selected.values())
        self.books.planned = self.planned
        if not self.selected:
            return
        tasks = self._tasks(task_of)
        places = places_of_run(self.config, self.settings, self.out, tasks)
        self._show_again = hide(places.all)  # graders run code in sandboxes, too
        if self.is_worker:
            self.ready = True
            return
        self.baseline = judging.prepare(self)
        self.outlook = list(judging.outlook(self, task_of))
        if self.resumed is not None:
            verdicts = {rollout_id: self._foretell(*one, task_of) for rollout_id, one in self.selected.items()}
            self.resuming = Plan(self.selected, verdicts)
            self.outlook += [*self.resuming.lines(), *([self.resumed.torn] if self.resumed.torn else [])]
        self._make_ready(tasks, places)
        self.ready = True
        if self.needs_core and not self.settings.embedded:
            self.core.reach()
        self.out.parent.mkdir(parents=True, exist_ok=True)
        self.out.touch()  # a run that is killed before its first row can be resumed all the same

    def _tasks(self, task_of: Callable[[str], Task | None]) -> list[Task]:
        """The selected tasks. None in a controller without a Core of its own: it runs and grades nothing.

        There they would be loaded for this only.
        """
        controls = not self.is_worker and self.config.getoption("dist", "no") != "no"
        if controls and not (self.settings.embedded and self.needs_core):
            return []
        found = map(task_of, sorted({task_id for task_id, _, _ in self.selected.values()}))
        return [task for task in found if task is not None]

    @property
    def needs_core(self) -> bool:
        """Whether there is anything to run that is not known already."""
        return self.settings.replay is None and (self.resuming is None or self.resuming.owed > 0)

    @property
    def may_have_sessions(self) -> bool:
        """Whether Sessions of this run may be on a server; the embedded Core's end with it."""
        if self.settings.embedded:
            return False
        reachable = self.core.base_url is not None and self.core.api_key is not None
        return self.core.reached or (self.resumed is not None and self.ready and reachable)

    def _foretell(self, task_id: str, agent: Agent, sample: int, task_of: Callable[[str], Task | None]) -> Verdict:
        """What will become of a resumed rollout, as far as it can be told before it is this process's to run."""
        assert self.resumed is not None
        task = task_of(task_id)
        return Verdict("run") if task is None else self.resumed.verdict(self.plan(task, agent, sample), marked=False)

    def _make_ready(self, tasks: Sequence[Task], places: Places) -> None:
        refuse_unfit(self.config)
        if self.needs_core:
            self.settings.require_core()
        try:
            check_writable(self.out)
        except RecordsError as error:
            raise pytest.UsageError(str(error)) from None
        if self.settings.embedded and self.needs_core:
            self.out.parent.mkdir(parents=True, exist_ok=True)  # a folder that is not there can't be hidden
            self.core.start(
                {agent.harness for _, agent, _ in self.selected.values()},
                places=places,
                secrets=[*self.settings.secrets, *(secret for task in tasks for secret in task.secrets)],
            )
            self._mask()

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
            failed_turns=None if settings.embedded else settings.failed_turns,
            labels=settings.labels,
            model_params=settings.model_params,
            attempt=attempt,
        )

    def id_of(self, item: RolloutItem) -> str:
        """The id of the item's rollout."""
        return self.rollout_id(item.task.id, item.agent, item.sample)

    def submit_dealt(self, items: Sequence[pytest.Item]) -> None:
        """Start what the controller has dealt to this worker. It has by the time that the first item is to be run."""
        if self.dealt is None:
            return
        dealt, self.dealt = self.dealt(), None
        mine = [items[index] for index in dealt]
        if early := [item for item in mine if isinstance(item, RolloutItem) and item.starts_at_once]:
            self.submit(early)

    def submit(self, items: Iterable[RolloutItem]) -> None:
        """Start the items' rollouts as slots become free; those that a dead worker finished, or an earlier session of
        a resumed run, are only read.
        """
        self.caps.start()
        first = {rollout.rollout_id: rollout for rollout in map(self._plan_item, items)}
        fresh = {rollout_id for rollout_id, rollout in first.items() if rollout.attempt == 1}
        known = {key: Outcome(record) for key, record in self.books.finished(fresh & set(self.begun_before())).items()}
        self._submitted |= first.keys()
        if self.resumed is not None:
            for rollout_id in fresh - known.keys():
                rollout = first[rollout_id]
                verdict = self.resumed.verdict(rollout)
                if verdict.action == "reuse":
                    known[rollout_id] = self._reuse(verdict)
                first[rollout_id] = replace(rollout, attempt=verdict.attempt)
        self._ready.update(known)
        self._at_once.extend(rollout_id for rollout_id in first if rollout_id in known)
        if self.engine is None:
            self.engine = engines.make_pool(self)
        self.engine.submit([rollout for rollout_id, rollout in first.items() if rollout_id not in known])

    def _reuse(self, verdict: Verdict) -> Outcome:
        assert self.resumed is not None
        record = self.resumed.reused(verdict)
        if not verdict.counts:  # rows of other work came after it
            self.books.save(record, ran=False)
        return Outcome(record, reused=True)

    def _plan_item(self, item: RolloutItem) -> Rollout:
        """The item's rollout, which from now on is graded by the hooks of its folder, its secrets masked."""
        self.grading.heed(item)
        if (secrets := set(item.task.secrets)) - self._secrets:
            self._secrets |= secrets
            self._mask()
        planned = self.plan(item.task, item.agent, item.sample, item.next_attempt)
        return replace(planned, xfail=item.expected_failure)

    def _mask(self) -> None:
        self.books.masks = Masker([*self.settings.secrets, self.core.api_key, *sorted(self._secrets)])

    def masked(self, text: str) -> str:
        return self.books.masks.message(text)

    def next_done(self) -> str | None:
        """The id of the next rollout that finished, or None after a tick. PoolStopped: none will."""
        assert self.engine is not None
        if self._at_once:
            return self._at_once.popleft()
        self._tick()
        outcome = self.engine.next_done(TICK)
        if outcome is None or (self._stopped is not None and outcome.record.status == "cancelled"):
            return None  # what a stop cancelled has its row, and nothing to report
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
            self._heed(self.stop_wanted())
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

    def _heed(self, reason: str | None) -> None:
        if reason is not None and self.engine is not None:
            self._stopped = self._stopped or reason
            self.stop(reason)

    def _tick(self) -> None:
        if self.display is not None:
            self.display.tick()
        self.tell(self.state())
        self._heed(self.books.broken)

    @property
    def concurrency(self) -> int:
        """The most rollouts that this process has under way."""
        return self.settings.concurrency or (1 if self.is_worker else CONCURRENCY)

    def state(self) -> State:
        """How things stand in this process."""
        return State(0 if self.engine is None else self.engine.in_flight, str(self.pressure))

    # ---- the end

    @property
    def last_words(self) -> str:
        """For a process that ends at once."""
        return (
            f"ended at once; Sessions of run {self.run_id} may be left behind. To delete them:\n"
            f"  python -m pytest_core_rollouts reap {self.run_id}\n"
            f"To finish, before that:\n  {self.masked(self.resume_command)}"
        )

    @property
    def resume_command(self) -> str:
        """What to type to go on with this run."""
        invocation = self.config.invocation_params
        return resume.command(list(map(str, invocation.args)), self.out, self.run_id, invocation.dir)

    def stop(self, reason: str) -> None:
        """Nothing new starts; what is in flight is cancelled and recorded."""
        self.note_stop()
        if self.engine is not None:
            self.engine.stop(reason)

    def note_stop(self) -> None:
        """The time that a stop may take runs from here; asked again, from the first time."""
        self.stop_until = self.stop_until or time.monotonic() + CANCEL_SECONDS

    def close(self) -> None:
        """Stop the embedded Core, if there is one."""
        self.core.close()
        self._show_again()


def _resumed(given: Mapping[str, Any]) -> Resumed | None:
    """What the controller read, for a worker."""
    if not given["resumes"]:
        return None
    return Resumed.load(Path(given["folder"]) / RESUMED, Path(given["out"]), given["run_id"])


def refuse_unfit(config: pytest.Config) -> None:
    """Raises pytest.UsageError for ways of running tests that rollouts can't be run in."""
    if config.getoption("stepwise", False):
        raise pytest.UsageError(
            "--stepwise stops at the first failure and starts from there the next time, in the order of collection; "
            "rollouts finish in an order of their own. Use -x, and then --lf or --ff"
        )
    if config.getoption("forked", False):
        raise pytest.UsageError(
            "--forked runs each item in a process of its own, where no rollout is in flight; run rollouts without it"
        )
    if config.getoption("dist", "no") == "each":
        raise pytest.UsageError("--dist each runs everything in every worker; a rollout runs once: leave it out")
