"""The run of a pytest session as one process sees it: which rollouts it has, and what it asks the engine for.

The same class is used in a plain run and, under xdist, in the controller and in each worker. The controller sets run
id, JSONL path and Core and passes them to its workers. Only the process that runs items submits rollouts, and only the
controller (or the plain run) starts and stops the embedded Core, sweeps leftovers and reports.
"""

from __future__ import annotations

import shlex
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest

from pytest_core_rollouts.collecting.collect import ResultSource, RolloutItem
from pytest_core_rollouts.collecting.selection import NOTHING_LEFT_OUT, Collected
from pytest_core_rollouts.collecting.shards import split_key
from pytest_core_rollouts.embedded.hidden import Places
from pytest_core_rollouts.engine.core_access import CoreError, CoreUnreachable, core_of_environment
from pytest_core_rollouts.engine.host import Host
from pytest_core_rollouts.engine.parts import Parts
from pytest_core_rollouts.engine.pool import CANCEL_SECONDS, affordable
from pytest_core_rollouts.engine.preflight import searches_web
from pytest_core_rollouts.engine.resume import Plan, Verdict, mark_run, resume_command
from pytest_core_rollouts.options.settings import Settings
from pytest_core_rollouts.records.record import RecordsError
from pytest_core_rollouts.records.rows import count_planned
from pytest_core_rollouts.report.progress import State
from pytest_core_rollouts.results.comparison import Baseline
from pytest_core_rollouts.results.gate import Identity
from pytest_core_rollouts.rollout.attempts import Outcome
from pytest_core_rollouts.running import gates
from pytest_core_rollouts.running.display import Display
from pytest_core_rollouts.running.plan import plan_lines
from pytest_core_rollouts.running.project import ProjectGrading, places_of_run
from pytest_core_rollouts.running.session_parts import (
    RESUMED_ROWS,
    check_pytest_options,
    default_out,
    make_core,
    make_store,
    refuse_known_rows,
    resumed_rows,
)
from pytest_core_rollouts.running.shared_folder import NoLink, WorkerLink
from pytest_core_rollouts.tasks.matrix import Agent, Chosen, MatrixError, Rollout, make_id, new_run_id
from pytest_core_rollouts.tasks.task import Task
from pytest_core_rollouts.text import counted

TICK = 0.2
"""Seconds between two checks for Ctrl-C while waiting for a rollout."""
CONCURRENCY = 4


class SessionRun(ResultSource):
    """A pytest session's run in this process: a thin layer that turns items into rollouts and outcomes into results."""

    def __init__(self, config: pytest.Config, settings: Settings, link: WorkerLink | None = None) -> None:
        given: dict[str, Any] = getattr(config, "workerinput", {}).get("rollouts", {})
        self.config = config
        self.settings = settings
        self.is_worker = hasattr(config, "workerinput")
        self.resumed = resumed_rows(given) if given else settings.resume
        self.run_id: str = given.get("run_id") or (
            self.resumed.run_id if self.resumed else settings.run_id or new_run_id()
        )
        self.out = Path(given["out"]) if given else default_out(config, settings, self.resumed, self.run_id)
        self.started_at, self.started = datetime.now(timezone.utc), time.monotonic()
        self._link: WorkerLink = link or NoLink()
        self.grading = ProjectGrading(hide_expected=settings.hide_expected)
        folder = Path(given["folder"]) if given else None
        self.store = make_store(settings, self.out, self.resumed, folder, self._link.mark_failed)
        self.store.mask(settings.secrets)
        self.core = make_core(settings, given)
        parts = Parts(
            self.core,
            self.store,
            self.grading,
            self.concurrency,
            keep_items=settings.items != "none",
            keep_results=False,
            resumed=self.resumed,
            replay=settings.replay,
            on_left_behind=lambda text: self._link.name_left_behind(self.masked(text)),
            prepares=False,
        )
        self.host = Host(parts)
        self._results = self.host.new_run(self.run_id)
        self.selected: dict[str, tuple[str, Agent, int]] = {}
        """Task id, agent and sample of every selected rollout, by rollout id."""
        self.agent_tasks: dict[Identity, frozenset[str]] = {}
        """The task ids of each agent, including those of skipped rollouts."""
        self.tags: dict[str, tuple[str, ...]] = {}
        """The tags of these tasks, if a gate judges some tasks only."""
        self.planned: dict[tuple[str, str], dict[str, int]] = {}
        self.not_needed = 0
        """Rollouts that did not start, because the gates were decided without them."""
        self.found = NOTHING_LEFT_OUT
        self.resume_plan: Plan | None = None
        self.baseline: Baseline | None = None
        self.preflight_lines: list[str] = []
        """Lines printed before the first rollout."""
        self.reported: set[str] = set()
        """Ids of the rollouts that were reported to pytest."""
        self.reused: set[str] = set()
        """Ids of those among them whose result comes from an earlier session."""
        self.ready = False
        """Whether rollouts were selected and nothing prevents them from running."""
        self.display: Display | None = None
        self.stop_deadline: float | None = None
        """When (monotonic) the run must have ended; None if no stop was requested."""
        self._worker_leftovers: Callable[[], Sequence[str]] = list
        self._submitted: set[str] = set()
        self._assigned = False
        self._stopped: str | None = None

    # ---- before the first rollout

    def for_workers(self, folder: Path) -> dict[str, Any]:
        """Return what every worker shares with this process, and write the larger parts to files in `folder`."""
        self.core.reserve()
        self.store.mask([self.core.api_key] if self.core.api_key else [])
        self.store.caps.share(folder)
        if self.resumed is not None and not (folder / RESUMED_ROWS).exists():
            self.resumed.dump(folder / RESUMED_ROWS)
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
        found: Collected = NOTHING_LEFT_OUT,
    ) -> None:
        """Check everything that the selected rollouts need, such as Core, keys and JSONL, before the first Session.

        `chosen` also contains those that will be skipped. `task_of` returns a task by its id, None if it isn't known
        in this process. `found` says what the collection left out. Raises pytest.UsageError.
        """
        self.selected = {self.rollout_id(*one): one for one in selected}
        agents = {agent.slug: agent for agent in self.settings.agents}
        taken_out = [(task_id, agents[slug], sample) for task_id, slug, sample in found.taken_out]
        planned = [*self.selected.values(), *taken_out]
        self.found = found
        for task_id, agent, _ in (*(self.selected.values() if chosen is None else chosen), *taken_out):
            identity = agent.harness, agent.model, agent.name
            self.agent_tasks[identity] = self.agent_tasks.get(identity, frozenset()) | {task_id}
        pairs = [(agent.slug, task_id) for task_id, agent, _ in planned]
        if self.settings.replay is not None:
            pairs += self.settings.replay.missing((task, agent.slug, n) for task, agent, n in self.selected.values())
        self.planned = count_planned(pairs)
        split = self.config.stash.get(split_key, None)
        self.store.set_plan(self.run_id, self.planned, None if split is None else split.digest)
        if not self.selected:
            return
        tasks = self._load_tasks(task_of)
        places = places_of_run(self.config, self.settings, self.out, tasks.values())
        self.host.preparation.hide(places)
        if self.is_worker:
            self.ready = True
            return
        if self.settings.run_id is not None:
            refuse_known_rows(self.store, self.run_id)
        self.baseline = gates.load_and_check(self, task_of)
        to_run = self.selected.values() if self.settings.replay is None and self.resumed is None else ()
        self.preflight_lines = list(plan_lines(self.settings, to_run, self.places))
        self.preflight_lines += gates.preflight_lines(self, task_of)
        if self.needs_core and (fewer := affordable(self.concurrency)) < self.concurrency:
            self.preflight_lines.append(
                f"in flight: at most {counted(fewer, 'rollout')} instead of {self.concurrency}, because this process "
                "can't have enough open files; raise the hard limit (ulimit -Hn)"
            )
        if self.resumed is not None:
            verdicts = {rollout_id: self._predict(*one, task_of) for rollout_id, one in self.selected.items()}
            self.resume_plan = Plan(self.selected, verdicts, self.core.name)
            self.preflight_lines += self.resume_plan.lines()
            self.preflight_lines += [self.resumed.truncated_tail] if self.resumed.truncated_tail else []
        if self.needs_core:
            self.preflight_lines += self._unsealed(task_of)
        self._prepare_engine(tasks, places)
        try:
            self.out.parent.mkdir(parents=True, exist_ok=True)
            self.out.touch()
            mark_run(self.out, self.run_id)  # a run that is killed before its first row can still be resumed
        except OSError as error:
            raise pytest.UsageError(f"{self.out}: can't be created: {error.strerror or error}") from None

    def _unsealed(self, task_of: Callable[[str], Task | None]) -> list[str]:
        """Warn of agents that can search the web although the network is disabled: the search runs elsewhere."""
        found: dict[str, set[str]] = {}
        for task_id, agent, _ in self.selected.values():
            if searches_web(agent):
                task = task_of(task_id)
                if self.settings.network.resolve(None if task is None else task.network).access == "disabled":
                    found.setdefault(agent.where, set()).add(task_id)
        return [
            f"warning: {agent}: its tool web_search reaches the web although the network is disabled "
            f"({counted(len(task_ids), 'task')}); remove it, or enable the network"
            for agent, task_ids in found.items()
        ]

    def _load_tasks(self, task_of: Callable[[str], Task | None]) -> dict[str, Task]:
        """Return the selected tasks by id; none in a controller that does not start a Core.

        Such a controller runs and grades nothing, so it would load tasks only for this.
        """
        controls = not self.is_worker and self.config.getoption("dist", "no") != "no"
        if controls and not (self.settings.embedded and self.needs_core):
            return {}
        task_ids = sorted({task_id for task_id, _, _ in self.selected.values()})
        return {task_id: task for task_id in task_ids if (task := task_of(task_id)) is not None}

    def _prepare_engine(self, tasks: dict[str, Task], places: Places) -> None:
        check_pytest_options(self.config)
        try:
            self.store.check_writable()
            if self.needs_core:
                if self.settings.embedded:
                    self.out.parent.mkdir(parents=True, exist_ok=True)  # a folder that doesn't exist can't be hidden
                pairs = {(task_id, agent.slug): (task_id, agent) for task_id, agent, _ in self.selected.values()}
                self.host.prepare(
                    ((tasks.get(task_id), agent) for task_id, agent in pairs.values()),
                    places,
                )
        except CoreUnreachable as error:
            self.ready = True
            raise pytest.exit.Exception(str(error), returncode=pytest.ExitCode.INTERRUPTED) from None
        except (CoreError, MatrixError, RecordsError) as error:
            raise pytest.UsageError(str(error)) from None
        self.ready = True

    def require_core(self) -> None:
        """Raise pytest.UsageError if no Core is configured and every run with these options needs one."""
        if self.settings.replay is None and self.settings.resume is None:
            try:
                self.core.require()
            except CoreError as error:
                raise pytest.UsageError(str(error)) from None

    @property
    def planned_rollouts(self) -> int:
        """The number of rollouts that the run was to have: those that were selected, and those that were taken out."""
        return len(self.selected) + len(self.found.taken_out)

    @property
    def needs_core(self) -> bool:
        """Whether a rollout must run on a Core: its result isn't known already."""
        return self.settings.replay is None and (self.resume_plan is None or self.resume_plan.to_run > 0)

    @property
    def may_have_sessions(self) -> bool:
        """Whether Sessions of this run may be on a server. The embedded Core's end with it."""
        if self.settings.embedded:
            return False
        reachable = self.core.base_url is not None and self.core.api_key is not None
        return self.core.reached or (self.resumed is not None and self.ready and reachable)

    def _predict(self, task_id: str, agent: Agent, sample: int, task_of: Callable[[str], Task | None]) -> Verdict:
        """Return whether a resumed rollout will run again. The process that runs it may know more."""
        assert self.resumed is not None
        task = task_of(task_id)
        return Verdict("run") if task is None else self.resumed.verdict(self.plan(task, agent, sample), marked=False)

    def start_display(self, places: int, state: Callable[[], State] | None = None) -> Display:
        """Show the run's progress. `places`: the most rollouts that can be in flight."""
        self.display = Display(self.config, len(self.selected), state or self.state, places=places)
        return self.display

    # ---- rollouts

    def rollout_id(self, task_id: str, agent: Agent, sample: int) -> str:
        """Return the id of a rollout of this run."""
        return make_id(self.run_id, task_id, agent, sample)

    def id_of(self, item: RolloutItem) -> str:
        """Return the id of the item's rollout."""
        return self.rollout_id(item.task.id, item.agent, item.sample)

    def plan(self, task: Task, agent: Agent, sample: int, attempt: int = 1) -> Rollout:
        """Return a rollout with every setting resolved."""
        settings = self.settings
        return Rollout(
            task=task,
            agent=agent,
            sample=sample,
            run_id=self.run_id,
            timeout=settings.timeout.resolve(task.timeout),
            network=settings.network.resolve(task.network),
            retries=settings.retries,
            failed_turns=None if settings.embedded else settings.failed_turns,
            stop=None if settings.stop is None else settings.stop.text,
            labels=settings.labels,
            model_params=settings.model_params,
            attempt=attempt,
        )

    def submit_assigned(self, items: Sequence[pytest.Item]) -> None:
        """Start all that the controller assigned to this worker, which it did before the first item runs."""
        if self._assigned:
            return
        self._assigned = True
        mine = [items[index] for index in self._link.assigned_items()]
        if early := [item for item in mine if isinstance(item, RolloutItem) and item.starts_at_once]:
            self.submit(early)

    def submit(self, items: Iterable[RolloutItem]) -> None:
        """Start the items' rollouts as places become free."""
        rollouts = [self._plan_item(item) for item in items]
        self._submitted |= {rollout.rollout_id for rollout in rollouts}
        # A run that was given its id may be a second try at one whose rows went with its machine.
        all_ids = {rollout.rollout_id for rollout in rollouts} if self.settings.run_id is not None else set()
        maybe_finished = all_ids.union(self._link.maybe_finished())
        self.host.submit_rollouts(rollouts, run=self._results, maybe_finished=maybe_finished)

    def _plan_item(self, item: RolloutItem) -> Rollout:
        """Return the item's rollout, and grade its task by the hooks of its folder from now on."""
        self.grading.register(item)
        planned = self.plan(item.task, item.agent, item.sample, item.next_attempt)
        return replace(planned, xfail=item.expected_failure)

    def masked(self, text: str) -> str:
        return self.store.masked(text)

    def next_done(self) -> Outcome | None:
        """Return the next outcome, or None after a tick. Raises RunEnded if there will be none."""
        self._tick()
        return self._results.next_outcome(TICK)

    def outcome_of(self, item: RolloutItem) -> Outcome:
        """Wait for the item's outcome. Raises RunEnded if it will never come."""
        rollout_id = self.id_of(item)
        if rollout_id not in self._submitted or item.next_attempt > 1:
            self.submit([item])
        while True:
            self._tick()
            self._stop_if(self._link.stop_reason())
            if (outcome := self._results.wait(rollout_id, TICK)) is not None:
                return outcome

    def is_reported_elsewhere(self, item: RolloutItem) -> bool:
        """Whether pytest got the item's report from another process."""
        return self.id_of(item) in self._link.reported_elsewhere()

    @property
    def must_stop(self) -> bool:
        """Whether the controller wants this worker to stop."""
        return self._link.stop_reason() is not None

    def _tick(self) -> None:
        if self.display is not None:
            self.display.tick()
        self._link.publish(self.state())
        self._stop_if(self.store.failure)

    def _stop_if(self, reason: str | None) -> None:
        if reason is not None and self._stopped is None:
            self._stopped = reason
            self.stop(reason)

    @property
    def concurrency(self) -> int:
        """The most rollouts that this process has in flight."""
        return self.settings.concurrency or (1 if self.is_worker else CONCURRENCY)

    def is_known(self, item: RolloutItem) -> bool:
        """Whether a resumed run has the item's result: it need not run."""
        return (
            self.resumed is not None
            and self._predict(item.task.id, item.agent, item.sample, {item.task.id: item.task}.get).action != "run"
        )

    @property
    def places(self) -> int:
        """The most rollouts that the session has in flight, in all processes."""
        return self.concurrency * max(1, self.config.getoption("numprocesses", None) or 1)

    def state(self) -> State:
        """Return the current state of this process."""
        oldest = self.host.oldest
        task, since = ("", 0.0) if oldest is None else (oldest[0].task.id, oldest[1])
        return State(self.host.in_flight, str(self.host.limit), task, since)

    # ---- the end

    @property
    def abort_message(self) -> str:
        """The message of a process that ends at once."""
        return (
            f"ended at once; Sessions of run {self.run_id} may be left behind. To delete them:\n"
            f"  {self.reap_command}\n"
            f"To finish, before that:\n  {self.masked(self.resume_command)}"
        )

    @property
    def reap_command(self) -> str:
        """The command that deletes what this run left on its Core, which it names if the environment does not."""
        url = None if self.settings.embedded else self.core.name
        core = f" --core {shlex.quote(url)}" if url not in (None, core_of_environment()) else ""
        return f"python -m pytest_core_rollouts reap {self.run_id}{core}"

    @property
    def resume_command(self) -> str:
        """The command that continues this run."""
        invocation = self.config.invocation_params
        return resume_command(list(map(str, invocation.args)), self.out, self.run_id, invocation.dir)

    def stop(self, reason: str) -> None:
        """Start nothing more. What is in flight is cancelled and recorded."""
        self.note_stop()
        self.host.stop(reason)

    def read_leftovers_from(self, source: Callable[[], Sequence[str]]) -> None:
        """In a controller: set where its workers name the Sessions that they could not delete."""
        self._worker_leftovers = source

    def left_behind(self) -> list[str]:
        """Return the names of Sessions that could not be deleted when their rollouts ended, with the reasons."""
        return [self.masked(text) for text in (*self._results.warnings, *self._worker_leftovers())]

    def note_stop(self) -> None:
        """Start the time that a stop may take. A second call changes nothing."""
        self.stop_deadline = self.stop_deadline or time.monotonic() + CANCEL_SECONDS

    def close(self) -> None:
        """Stop the engine, and the embedded Core with it."""
        self.host.close()
