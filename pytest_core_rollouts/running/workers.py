"""Rollouts under xdist: what workers get from the controller, and how a dead worker's rollouts are run again.

By default xdist's own scheduler hands a worker one item at a time. With `--rollout-concurrency M` each worker keeps M
rollouts in flight, so it must know its items before the first one runs: `ShardScheduling` gives worker k of n the items
`i % n == k` at once.

If a worker dies, no result is lost: a row is on disk before pytest gets its report. The worker that replaces it reads
the rows, reports what had finished, and runs the rest with the same idempotency keys, so that the Core returns the
Sessions that exist already. A rollout whose worker died twice is reported as an error.

A worker that waits for a rollout reads no messages of xdist. So the controller writes to a shared folder when workers
must stop, and each worker writes its state there.
"""

from __future__ import annotations

import collections
import functools
import os
import signal
import sys
import threading
import time
from collections.abc import Collection, Container, Generator, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pytest_core_rollouts.collecting.collect import RolloutItem
from pytest_core_rollouts.collecting.explain import explain_fault
from pytest_core_rollouts.collecting.generated import find_generated
from pytest_core_rollouts.collecting.nodeids import NamedRollout, NodeIds
from pytest_core_rollouts.collecting.selection import Collected
from pytest_core_rollouts.report.progress import State
from pytest_core_rollouts.rollout.attempt_state import lost_record
from pytest_core_rollouts.running.display import REDRAW
from pytest_core_rollouts.running.distribution import ShardScheduling, shard_of
from pytest_core_rollouts.running.session_run import SessionRun
from pytest_core_rollouts.running.shared_folder import SharedFolder
from pytest_core_rollouts.running.signals import Signals
from pytest_core_rollouts.tasks.files import TaskError
from pytest_core_rollouts.tasks.loading import load_task
from pytest_core_rollouts.tasks.task import Task

if TYPE_CHECKING:
    from xdist.workermanage import WorkerController

LOOK = 0.5
"""Seconds between two checks whether a test that is not a rollout must be ended."""
CRASHES = 2
"""Deaths of its worker after which a rollout is given up."""


class Controller:
    """The controller's side, registered only there."""

    def __init__(self, run: SessionRun, signals: Signals) -> None:
        self.run = run
        self.signals = signals
        self.node_ids = NodeIds(run.config, run.settings)
        self.shared = SharedFolder.make()
        run.read_leftovers_from(self.shared.left_behind)
        self.workers = 0
        self._free_shards: list[int] = []
        self._crashes: collections.Counter[str] = collections.Counter()
        self._failures = 0

    @property
    def _in_flight(self) -> int:
        return self.run.settings.concurrency or 1

    @property
    def _sharded(self) -> bool:
        """Whether workers keep several rollouts in flight, and so must know their items before the first one runs."""
        return self._in_flight > 1

    # ---- what workers get

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_setupnodes(self, specs: Sequence[object]) -> None:
        self.workers = len(specs)
        self._free_shards = list(range(self.workers))

    @pytest.hookimpl(optionalhook=True)
    def pytest_configure_node(self, node: WorkerController) -> None:
        given: dict[str, Any] = {
            **self.run.for_workers(self.shared.path),
            "shard": self._free_shards.pop(0) if self._free_shards else 0,
        }
        node.workerinput["rollouts"] = given

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Stop workers at --maxfail: one that waits for a rollout does not get xdist's message."""
        self._failures += report.failed
        most = self.run.config.getoption("maxfail")
        if most and self._failures >= most:
            self.shared.stop(f"stopping after {self._failures} failures")

    # ---- scheduling

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self, ids: Sequence[str]) -> None:
        if self.run.selected:
            return
        rollouts = self.node_ids.read_all(ids)
        by_task = {named.task_id: named for named in rollouts}
        task_of = functools.lru_cache(None)(lambda task_id: self._task(by_task[task_id]))
        selected = [(named.task_id, named.agent, named.sample) for named in rollouts]
        self.run.prepare(selected, task_of=task_of, found=Collected.load(self.shared.path))
        if self.run.ready:
            self.signals.stop_on_first(self._stop, self.run.abort_message)
            self._print(self.run.preflight_lines)
            places = self.workers * self._in_flight
            self.run.start_display(places, self.shared.state).tick_by_itself()

    def _print(self, lines: Sequence[str]) -> None:
        reporter: pytest.TerminalReporter | None = self.run.config.pluginmanager.get_plugin("terminalreporter")
        if not lines or reporter is None:  # with -p no:terminal
            return
        if self.run.config.get_terminal_writer().width_of_current_line:
            reporter.line("")  # ends the line that xdist redraws
        for line in lines:
            reporter.write_line(line)

    def _stop(self, reason: str) -> None:
        """Stop the workers, and xdist after them."""
        self.run.note_stop()
        self.shared.stop(reason, urgent=True)
        distributed: Any = self.run.config.pluginmanager.get_plugin("dsession")
        distributed.shouldstop = reason

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_make_scheduler(self, config: pytest.Config) -> ShardScheduling | None:
        if not self._sharded:
            return None
        return ShardScheduling(config, self.workers, self.shared.assign, self._reassign, self._is_rollout)

    def _is_rollout(self, node_id: str) -> bool:
        return self.node_ids.read(node_id) is not None

    # ---- dead workers

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: WorkerController, error: object | None) -> None:
        if (display := self.run.display) is not None:
            display.hold(1.0)  # xdist is about to print
        self.shared.forget(node.workerinput["workerid"])
        if error is not None:
            self._free_shards.append(shard_of(node))

    def _reassign(self, node_ids: list[str]) -> Container[str]:
        """Return which of a dead worker's rollouts must run again: all that were not reported and are not given up."""
        waiting = {
            named.node_id: rollout_id
            for named in self.node_ids.read_all(node_ids)
            if not self._is_reported(rollout_id := self._rollout_id(named))
        }
        self.shared.add("again", waiting.values())
        done = self.run.store.finished(self.run.run_id, set(waiting.values()))
        unfinished = [node_id for node_id, rollout_id in waiting.items() if rollout_id not in done]
        in_flight = unfinished[: self._in_flight]
        self._crashes.update(in_flight)
        given_up = {node_id for node_id in in_flight if self._crashes[node_id] >= CRASHES}
        for node_id in sorted(given_up):
            location = (node_id.split("::")[0], 0, node_id)
            report = pytest.TestReport(node_id, location, {}, "failed", self._give_up(node_id), "setup")
            self.run.config.hook.pytest_runtest_logreport(report=report)
        return waiting.keys() - given_up

    @pytest.hookimpl(optionalhook=True, trylast=True)
    def pytest_handlecrashitem(self, crashitem: str, report: pytest.TestReport, sched: Any) -> None:
        """xdist's own schedulers: queue a crashed worker's rollout again, once."""
        named = self.node_ids.read(crashitem)
        if named is None:
            return
        queued = str(report.outcome) == "rerun"  # by pytest-rerunfailures
        report.outcome = "rerun"  # type: ignore[assignment]
        rollout_id = self._rollout_id(named)
        self._crashes[crashitem] += 1
        if self._is_reported(rollout_id):
            self.shared.add("reported", [rollout_id])
        elif self._crashes[crashitem] >= CRASHES:
            report.when, report.outcome = "setup", "failed"  # an ERROR: the rollout has no reward
            report.longrepr = self._give_up(crashitem)
        else:
            self.shared.add("again", [rollout_id])
            if not queued:
                with suppress(NotImplementedError):  # loadscope and similar schedulers have queued it themselves
                    sched.mark_test_pending(crashitem)

    def _is_reported(self, rollout_id: str) -> bool:
        """Whether the rollout was reported to pytest, so that a later crash does not concern it."""
        return rollout_id in self.run.reported or rollout_id not in self.run.selected

    def pytest_report_teststatus(self, report: pytest.TestReport) -> tuple[str, str, str] | None:
        return ("", "", "") if str(report.outcome) == "rerun" and report.nodeid in self._crashes else None

    def _give_up(self, node_id: str) -> str:
        """Write the row that the rollout's worker could not write. Returns the text for the report."""
        named = self.node_ids.read(node_id)
        assert named is not None, "only rollouts are given up"
        task = self._task(named)
        rollout = self.run.plan(task or Task(id=named.task_id, instruction="unknown"), named.agent, named.sample)
        self.shared.add("reported", [rollout.rollout_id])
        if self.run.store.finished(self.run.run_id, {rollout.rollout_id}):
            return f"its worker died {CRASHES} times while it reported the result, which is in {self.run.out}"
        record = lost_record(rollout, f"its worker died {CRASHES} times")
        if task is None:
            record = replace(record, input_digest="", grading_digest="")
        self.run.store.save(record)
        return explain_fault(record)

    def _task(self, named: NamedRollout) -> Task | None:
        """Return the task; None if it isn't known here: it changed, or a file that only workers read makes it."""
        try:
            if named.folder.is_dir():
                return load_task(named.folder, named.task_id)
            return find_generated(self.run.config, named.folder, named.task_id)
        except TaskError:
            return None

    def _rollout_id(self, named: NamedRollout) -> str:
        return self.run.rollout_id(named.task_id, named.agent, named.sample)

    @pytest.hookimpl(wrapper=True, trylast=True)
    def pytest_runtestloop(self) -> Generator[None, object, object]:
        try:
            result = yield
        finally:
            self.signals.disarm()  # an interrupt in what follows, such as xdist's teardown, would be an internal error
        if self.run.display is not None:
            self.run.display.conclude()
        return result

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self) -> None:
        """Stop the workers before xdist disconnects from them."""
        self.shared.stop("the session ended")
        if (reason := self.shared.failure) is not None:
            self.run.store.mark_failed(reason)

    def pytest_unconfigure(self) -> None:
        self.shared.remove()


class Worker:
    """The worker's side: it reads what its controller decides, and notices if the controller has ended.

    While it waits for rollouts, it reads the shared folder itself. Another test may take long: a thread watches then,
    and ends that test by a signal to this process if a signal ends the run.
    """

    def __init__(self, workerinput: dict[str, Any]) -> None:
        self.name: str = workerinput["workerid"]
        self.shared = SharedFolder(Path(workerinput["rollouts"]["folder"]))
        with suppress(OSError):  # the controller has ended and removed its folder
            self.shared.hold()
        self._controller = os.getppid()
        self._terminated: str | None = None
        self._busy: pytest.Session | None = None
        """The session, while a test that is not a rollout may be ended."""
        self._over = threading.Event()
        self._published = State()
        self._next = 0.0

    # ---- for the run (see `shared_folder.WorkerLink`)

    def stop_reason(self) -> str | None:
        if self._terminated is not None:
            return self._terminated
        if self.is_orphan:
            mute_output()
            return "the controller has ended"
        return self.shared.stop_reason

    def maybe_finished(self) -> Collection[str]:
        return self.shared.listed("again")

    def reported_elsewhere(self) -> Collection[str]:
        return self.shared.listed("reported")

    def assigned_items(self) -> Sequence[int]:
        return self.shared.assigned_to(self.name)

    def mark_failed(self, reason: str) -> None:
        self.shared.fail(reason)

    def name_left_behind(self, text: str) -> None:
        self.shared.name_left_behind(text)

    def publish(self, state: State) -> None:
        """Publish the state of this worker, now and then."""
        if state != self._published and time.monotonic() >= self._next:
            self._published, self._next = state, time.monotonic() + REDRAW
            with suppress(OSError):  # the controller has ended and removed its folder
                self.shared.publish(self.name, state)

    def terminate(self, reason: str) -> None:
        """Stop because of a signal to this process. A test that is not a rollout is ended at once."""
        first, self._terminated = self._terminated is None, reason
        if first:
            self._end_test()

    def _end_test(self) -> None:
        if self._busy is not None and self._terminated is not None:
            self._busy.shouldstop = self._terminated  # else xdist would report that the test crashed its worker
            raise pytest.exit.Exception(self._terminated, pytest.ExitCode.TESTS_FAILED)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtestloop(self) -> Generator[None, object, object]:
        """Watch in a thread while tests run.

        The thread must not run when pytest-cov starts or ends: coverage would trace it together with the main thread,
        and crash.
        """
        if threading.current_thread() is not threading.main_thread():  # signals are only handled there
            return (yield)
        thread = threading.Thread(target=self._watch, name="rollouts-stop", daemon=True)
        thread.start()
        try:
            return (yield)
        finally:
            self._over.set()
            thread.join()

    def _watch(self) -> None:
        while not self._over.wait(LOOK):
            if self._busy is not None and self._terminated is None and (self.shared.urgent or self.is_orphan):
                os.kill(os.getpid(), signal.SIGTERM)  # wakes the test; the handler calls `terminate`

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> Generator[None, object, object]:
        with self._may_end(item):
            return (yield)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Generator[None, object, object]:
        with self._may_end(item):
            return (yield)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_teardown(self, item: pytest.Item) -> Generator[None, object, object]:
        with self._may_end(item):
            return (yield)

    @contextmanager
    def _may_end(self, item: pytest.Item) -> Iterator[None]:
        self._busy = None if isinstance(item, RolloutItem) else item.session
        try:
            self._end_test()
            yield
        finally:
            self._busy = None

    def close(self) -> None:
        """Leave the shared folder at the end of the session."""
        if self.is_orphan:
            self.shared.leave()

    @property
    def is_orphan(self) -> bool:
        """Whether the controller has ended."""
        return os.getppid() != self._controller


def mute_output() -> None:
    """Discard all output: xdist prints to a connection that is closed.

    pytest's capturing restores the streams, so call it again whenever something may be printed.
    """
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for descriptor in (1, 2):
        os.dup2(nowhere, descriptor)
    os.close(nowhere)
