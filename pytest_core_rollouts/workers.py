"""What xdist needs: what workers are told, who runs which items, what becomes of a dead worker's rollouts.

By default xdist's own scheduler hands a worker one item at a time. With `--rollout-concurrency M` each worker keeps M
rollouts in flight, so it has to know its queue beforehand: `ShardScheduling` gives worker k of n the items
`i % n == k` at once.

A worker that dies takes no result with it: rows are on disk before anybody hears of them. The worker that takes over
reads them, reports what had finished, and runs the rest under the same idempotency keys, so that Core gives back the
Sessions that exist already. A rollout whose worker died twice is given up as an error.
"""

from __future__ import annotations

import collections
import os
import shutil
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pytest_core_rollouts.display import Display
from pytest_core_rollouts.explain import explain_fault
from pytest_core_rollouts.nodeids import NodeIds
from pytest_core_rollouts.rollout import lost_record
from pytest_core_rollouts.run import Run
from pytest_core_rollouts.signals import Signals
from pytest_core_rollouts.tasks import load_task

if TYPE_CHECKING:
    from xdist.workermanage import WorkerController

CRASHES = 2
"""Deaths of its worker after which a rollout is given up."""


class ShardScheduling:
    """Gives each worker its items at once; xdist's `Scheduling` protocol.

    Of some node ids `unfinished` tells the rollouts that have no result yet; `give_up` reports one whose workers died
    too often.
    """

    def __init__(
        self,
        shards: int,
        in_flight: int,
        unfinished: Callable[[list[str]], set[str]],
        give_up: Callable[[str], None],
    ) -> None:
        self.shards = shards
        self.in_flight = in_flight
        self.unfinished = unfinished
        self.give_up = give_up
        self.collection: list[str] | None = None
        self._ids: dict[WorkerController, Sequence[str]] = {}
        self._pending: dict[WorkerController, dict[int, None]] = {}
        self._started: set[WorkerController] = set()
        self._orphans: dict[int, list[int]] = {}
        self._crashes: collections.Counter[int] = collections.Counter()

    @property
    def nodes(self) -> list[WorkerController]:
        return list(self._pending)

    @property
    def collection_is_completed(self) -> bool:
        return self.collection is not None or len(self._ids) >= self.shards

    @property
    def tests_finished(self) -> bool:
        if self.collection is None or self._orphans:
            return False
        return all(len(pending) < 2 for pending in self._pending.values())

    @property
    def has_pending(self) -> bool:
        return any(self._pending.values())

    def add_node(self, node: WorkerController) -> None:
        self._pending[node] = {}

    def add_node_collection(self, node: WorkerController, collection: Sequence[str]) -> None:
        self._ids[node] = collection

    def mark_test_complete(self, node: WorkerController, item_index: int, duration: float = 0) -> None:
        self._pending[node].pop(item_index, None)

    def mark_test_pending(self, item: str) -> None:
        raise NotImplementedError("a dead worker's items go to the worker that replaces it")

    def remove_pending_tests_from_node(self, node: WorkerController, indices: Sequence[int]) -> None:
        raise NotImplementedError("nothing is stolen from a shard")

    def remove_node(self, node: WorkerController) -> str | None:
        """Keep what the node had not finished for the one that replaces it. None: nothing counts as crashed yet."""
        self._ids.pop(node, None)
        pending = list(self._pending.pop(node))
        if not pending:
            return None
        assert self.collection is not None
        unfinished = self.unfinished([self.collection[index] for index in pending])
        in_flight = [index for index in pending if self.collection[index] in unfinished][: self.in_flight]
        self._crashes.update(in_flight)
        given_up = {index for index in in_flight if self._crashes[index] >= CRASHES}
        for index in sorted(given_up):
            self.give_up(self.collection[index])
        self._orphans[shard_of(node)] = [index for index in pending if index not in given_up]
        return None

    def schedule(self) -> None:
        if self.collection is None:
            self.collection = list(next(iter(self._ids.values())))
        for node, ids in self._ids.items():
            if node in self._started:
                continue
            if list(ids) != self.collection:
                raise pytest.UsageError("the workers collected different items; is a conftest random or time-dependent?")
            self._start(node)

    def _start(self, node: WorkerController) -> None:
        assert self.collection is not None
        shard = shard_of(node)
        indices = self._orphans.pop(shard, None)
        if indices is None:
            indices = list(range(shard, len(self.collection), self.shards))
        self._started.add(node)
        self._pending[node] = dict.fromkeys(indices)
        if indices:
            node.send_runtest_some(indices)
        node.shutdown()  # after these there is nothing more


def shard_of(node: WorkerController) -> int:
    """The part of the items that is the worker's."""
    shard: int = node.workerinput["rollouts"]["shard"]
    return shard


class Controller:
    """The controller's side, registered only there."""

    def __init__(self, run: Run, signals: Signals) -> None:
        self.run = run
        self.signals = signals
        self.node_ids = NodeIds(run.config, run.settings)
        self.folder = Path(tempfile.mkdtemp(prefix="rollouts-"))
        self.workers = len(run.config.getoption("tx"))
        self._free_shards = list(range(self.workers))
        self._crashes: collections.Counter[str] = collections.Counter()
        self._failures = 0

    @property
    def _sharded(self) -> bool:
        """Whether workers keep several rollouts in flight, and so have to know their items beforehand."""
        return self.run.settings.concurrency not in (None, 1)

    # ---- telling workers

    @pytest.hookimpl(optionalhook=True)
    def pytest_configure_node(self, node: WorkerController) -> None:
        told: dict[str, Any] = {
            **self.run.for_workers(),
            "shard": self._free_shards.pop(0) if self._free_shards else 0,
            "shards": self.workers if self._sharded else 0,
            "takes_over": bool(self._crashes),
            "stop_file": str(self.folder / "stop"),
        }
        node.workerinput["rollouts"] = told

    def stop_workers(self, reason: str) -> None:
        """Make every worker cancel what it has in flight and start nothing more."""
        partial = self.folder / "stop.part"
        partial.write_text(reason, encoding="utf-8")
        partial.replace(self.folder / "stop")

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """With -x a worker hears nothing while it waits for a rollout: tell it what xdist is about to decide."""
        self._failures += report.failed
        most = self.run.config.getoption("maxfail")
        if most and self._failures >= most:
            self.stop_workers(f"stopping after {self._failures} failures")

    # ---- scheduling

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self, ids: Sequence[str]) -> None:
        if self.run.selected:
            return
        self.run.prepare([(named.task_id, named.agent, named.sample) for named in self.node_ids.read_all(ids)])
        if self.run.ready:
            self.signals.ask(self._stop, self.run.last_words)
            self.run.display = Display(self.run.config, len(self.run.selected), lambda: None)
            self.run.display.tick_by_itself()

    def _stop(self, reason: str) -> None:
        """Let the workers end in order, and xdist after them."""
        self.stop_workers(reason)
        distributed: Any = self.run.config.pluginmanager.get_plugin("dsession")
        distributed.shouldstop = reason

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_make_scheduler(self) -> ShardScheduling | None:
        if not self._sharded:
            return None
        return ShardScheduling(self.workers, self.run.settings.concurrency or 1, self._unfinished, self._give_up)

    # ---- dead workers

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: WorkerController, error: object | None) -> None:
        if error is not None:
            self._free_shards.append(shard_of(node))
            self._crashes["*"] += 1

    @pytest.hookimpl(optionalhook=True)
    def pytest_handlecrashitem(self, crashitem: str, report: pytest.TestReport, sched: Any) -> None:
        """xdist's own schedulers: queue a crashed worker's rollout again, once."""
        if self.node_ids.read(crashitem) is None:
            return
        self._crashes[crashitem] += 1
        if self._crashes[crashitem] < CRASHES:
            try:
                sched.mark_test_pending(crashitem)
            except NotImplementedError:  # loadscope and its kin
                pass
            else:
                report.outcome = "rerun"  # type: ignore[assignment]
                return
        report.when = "setup"  # an ERROR: the rollout has no reward
        report.longrepr = self._record_loss(crashitem)

    def pytest_report_teststatus(self, report: pytest.TestReport) -> tuple[str, str, str] | None:
        return ("", "", "") if str(report.outcome) == "rerun" and report.nodeid in self._crashes else None

    def _give_up(self, node_id: str) -> None:
        location = (node_id.split("::")[0], 0, node_id)
        loss = self._record_loss(node_id)
        report = pytest.TestReport(node_id, location, {}, "failed", loss, "setup")
        self.run.config.hook.pytest_runtest_logreport(report=report)

    def _record_loss(self, node_id: str) -> str:
        """Write the row that the rollout's worker could not; the text for the report."""
        named = self.node_ids.read(node_id)
        assert named is not None, "only rollouts are given up"
        rollout = self.run.plan(load_task(named.folder, named.task_id), named.agent, named.sample)
        record = lost_record(rollout, f"its worker died {self._crashes[node_id] or CRASHES} times")
        self.run.save(record)
        return explain_fault(record)

    def _unfinished(self, node_ids: list[str]) -> set[str]:
        """Those of rollouts that have no row yet."""
        done = {record.rollout_id for record in self.run.rows()}
        named = self.node_ids.read_all(node_ids)
        return {one.node_id for one in named if self.run.rollout_id(one.task_id, one.agent, one.sample) not in done}

    def pytest_unconfigure(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)


class WorkerStop:
    """How a worker learns that it should stop: the controller says so in a file, or is gone."""

    def __init__(self, told: dict[str, Any]) -> None:
        self._file = Path(told["stop_file"])
        self._parent = os.getppid()
        self._terminated: str | None = None

    def terminate(self, reason: str) -> None:
        """Stop for a reason of this process's own: a signal."""
        self._terminated = reason

    def reason(self) -> str | None:
        """Why to stop, or None."""
        if self._terminated is not None:
            return self._terminated
        if self._file.exists():
            return self._file.read_text(encoding="utf-8")
        if os.getppid() != self._parent:
            return "the controller is gone"
        return None
