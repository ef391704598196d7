"""What xdist needs: what workers are told, who runs which items, what becomes of a dead worker's rollouts.

By default xdist's own scheduler hands a worker one item at a time. With `--rollout-concurrency M` each worker keeps M
rollouts in flight, so it has to know its queue beforehand: `ShardScheduling` gives worker k of n the items
`i % n == k` at once.

A worker that dies takes no result with it: rows are on disk before anybody hears of them. The worker that takes over
reads them, reports what had finished, and runs the rest under the same idempotency keys, so that Core gives back the
Sessions that exist already. A rollout whose worker died twice is given up as an error.

What the controller has to tell workers that are busy waiting, and hear nothing, it writes into a folder of theirs.
"""

from __future__ import annotations

import collections
import functools
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Container, Generator, Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import pytest

from pytest_core_rollouts.collecting.explain import explain_fault
from pytest_core_rollouts.collecting.generated import find_generated
from pytest_core_rollouts.collecting.nodeids import NamedRollout, NodeIds
from pytest_core_rollouts.rollout import lost_record
from pytest_core_rollouts.running.display import Display
from pytest_core_rollouts.running.run import Run
from pytest_core_rollouts.running.signals import Signals
from pytest_core_rollouts.tasks import Task, TaskError, load_task

if TYPE_CHECKING:
    from xdist.workermanage import WorkerController

CRASHES = 2
"""Deaths of its worker after which a rollout is given up."""


class ShardScheduling:
    """Gives each worker its items at once; xdist's `Scheduling` protocol.

    `deal` tells a worker, by its name, which items are its own. `take_back` is told what a dead one had not reported,
    as node ids, and gives those that are to run again. `is_rollout` tells a rollout's node id from another test's.
    """

    def __init__(
        self,
        shards: int,
        deal: Callable[[str, list[int]], None],
        take_back: Callable[[list[str]], Container[str]],
        is_rollout: Callable[[str], bool],
    ) -> None:
        self.shards = shards
        self.deal = deal
        self.take_back = take_back
        self.is_rollout = is_rollout
        self.collection: list[str] | None = None
        self._ids: dict[WorkerController, Sequence[str]] = {}
        self._pending: dict[WorkerController, dict[int, None]] = {}
        self._started: set[WorkerController] = set()
        self._orphans: dict[int, list[int]] = {}

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
        """Keep what the node had not finished for the one that replaces it; the test that it died in, if it is none of
        ours.
        """
        self._ids.pop(node, None)
        pending = list(self._pending.pop(node))
        if not pending:
            return None
        assert self.collection is not None
        culprit = self.collection[pending[0]]
        if not self.is_rollout(culprit):
            self._orphans[shard_of(node)] = pending[1:]
            return culprit
        again = self.take_back([self.collection[index] for index in pending])
        self._orphans[shard_of(node)] = [index for index in pending if self.collection[index] in again]
        return None

    def schedule(self) -> None:
        if self.collection is None:
            self.collection = list(next(iter(self._ids.values())))
        if any(list(ids) != self.collection for ids in self._ids.values()):
            raise pytest.UsageError("the workers collected different items; is a conftest random or time-dependent?")
        for node in self._ids.keys() - self._started:
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
            self.deal(node.workerinput["workerid"], indices)
            with suppress(OSError):  # it has just died: that it did is the next thing we hear
                node.send_runtest_some(indices)
        node.shutdown()  # after these there is nothing more


def shard_of(node: WorkerController) -> int:
    """The part of the items that is the worker's."""
    shard: int = node.workerinput["rollouts"]["shard"]
    return shard


class SharedFolder:
    """A folder in which a controller tells its workers what they have to know while they wait."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def stop(self, reason: str) -> None:
        """Every worker is to cancel what it has in flight and to start nothing more."""
        partial = self.path / "stop.part"
        partial.write_text(reason, encoding="utf-8")
        partial.replace(self.path / "stop")

    def break_off(self, reason: str) -> None:
        """The same, from a worker that can't write its rows any more."""
        (self.path / "broken").write_text(reason, encoding="utf-8")
        self.stop(reason)

    @property
    def broken(self) -> str | None:
        """Why a worker broke off."""
        file = self.path / "broken"
        return file.read_text(encoding="utf-8") if file.exists() else None

    @property
    def stop_reason(self) -> str | None:
        file = self.path / "stop"
        return file.read_text(encoding="utf-8") if file.exists() else None

    def deal(self, worker: str, indices: Iterable[int]) -> None:
        """These items are the worker's."""
        (self.path / f"{worker}.items").write_text(" ".join(map(str, indices)), encoding="ascii")

    def dealt_to(self, worker: str) -> list[int]:
        file = self.path / f"{worker}.items"
        return [int(index) for index in file.read_text(encoding="ascii").split()] if file.exists() else []

    def add(self, kind: Literal["again", "given-up"], rollout_ids: Iterable[str]) -> None:
        """`again`: begun by a worker that died, to be looked for among the rows first. `given-up`: not to be run."""
        with (self.path / kind).open("a", encoding="ascii") as file:
            file.writelines(f"{rollout_id}\n" for rollout_id in rollout_ids)

    def listed(self, kind: Literal["again", "given-up"]) -> frozenset[str]:
        file = self.path / kind
        return frozenset(file.read_text(encoding="ascii").split()) if file.exists() else frozenset()


class Controller:
    """The controller's side, registered only there."""

    def __init__(self, run: Run, signals: Signals) -> None:
        self.run = run
        self.signals = signals
        self.node_ids = NodeIds(run.config, run.settings)
        self.shared = SharedFolder(Path(tempfile.mkdtemp(prefix="rollouts-")))
        self.workers = len(run.config.getoption("tx"))
        self._free_shards = list(range(self.workers))
        self._crashes: collections.Counter[str] = collections.Counter()
        self._failures = 0

    @property
    def _in_flight(self) -> int:
        return self.run.settings.concurrency or 1

    @property
    def _sharded(self) -> bool:
        """Whether workers keep several rollouts in flight, and so have to know their items beforehand."""
        return self._in_flight > 1

    # ---- telling workers

    @pytest.hookimpl(optionalhook=True)
    def pytest_configure_node(self, node: WorkerController) -> None:
        told: dict[str, Any] = {
            **self.run.for_workers(self.shared.path),
            "shard": self._free_shards.pop(0) if self._free_shards else 0,
        }
        node.workerinput["rollouts"] = told

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """With -x a worker hears nothing while it waits for a rollout: tell it what xdist is about to decide."""
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
        self.run.prepare([(named.task_id, named.agent, named.sample) for named in rollouts], task_of=task_of)
        if self.run.ready:
            self.signals.ask(self._stop, self.run.last_words)
            self._tell(self.run.outlook)
            places = self.workers * self._in_flight
            self.run.display = Display(self.run.config, len(self.run.selected), lambda: None, places=places)
            self.run.display.tick_by_itself()

    def _tell(self, lines: Sequence[str]) -> None:
        reporter: pytest.TerminalReporter | None = self.run.config.pluginmanager.get_plugin("terminalreporter")
        for line in lines:
            assert reporter is not None
            reporter.ensure_newline()
            reporter.write_line(line)

    def _stop(self, reason: str) -> None:
        """Let the workers end in order, and xdist after them."""
        self.shared.stop(reason)
        distributed: Any = self.run.config.pluginmanager.get_plugin("dsession")
        distributed.shouldstop = reason

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_make_scheduler(self) -> ShardScheduling | None:
        if not self._sharded:
            return None
        return ShardScheduling(
            self.workers, self.shared.deal, self._take_back, lambda node_id: self.node_ids.read(node_id) is not None
        )

    # ---- dead workers

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: WorkerController, error: object | None) -> None:
        if (display := self.run.display) is not None:
            display.hold(1.0)  # xdist is about to say something
        if error is not None:
            self._free_shards.append(shard_of(node))

    def _take_back(self, node_ids: list[str]) -> Container[str]:
        """Of what a dead worker of ours had before it, in its order: all but the rollouts that are given up now."""
        rollout_ids = {named.node_id: self._rollout_id(named) for named in self.node_ids.read_all(node_ids)}
        self.shared.add("again", rollout_ids.values())
        done = self.run.books.finished(set(rollout_ids.values()))
        unfinished = [node_id for node_id, rollout_id in rollout_ids.items() if rollout_id not in done]
        in_flight = unfinished[: self._in_flight]
        self._crashes.update(in_flight)
        given_up = {node_id for node_id in in_flight if self._crashes[node_id] >= CRASHES}
        for node_id in sorted(given_up):
            location = (node_id.split("::")[0], 0, node_id)
            report = pytest.TestReport(node_id, location, {}, "failed", self._give_up(node_id), "setup")
            self.run.config.hook.pytest_runtest_logreport(report=report)
        return set(node_ids) - given_up

    @pytest.hookimpl(optionalhook=True)
    def pytest_handlecrashitem(self, crashitem: str, report: pytest.TestReport, sched: Any) -> None:
        """xdist's own schedulers: queue a crashed worker's rollout again, once."""
        named = self.node_ids.read(crashitem)
        if named is None:
            return
        self._crashes[crashitem] += 1
        if self._crashes[crashitem] >= CRASHES:
            report.when = "setup"  # an ERROR: the rollout has no reward
            report.longrepr = self._give_up(crashitem)
            return
        self.shared.add("again", [self._rollout_id(named)])
        with suppress(NotImplementedError):  # loadscope and its kin have queued it themselves
            sched.mark_test_pending(crashitem)
        report.outcome = "rerun"  # type: ignore[assignment]

    def pytest_report_teststatus(self, report: pytest.TestReport) -> tuple[str, str, str] | None:
        return ("", "", "") if str(report.outcome) == "rerun" and report.nodeid in self._crashes else None

    def _give_up(self, node_id: str) -> str:
        """Write the row that the rollout's worker could not; the text for the report."""
        named = self.node_ids.read(node_id)
        assert named is not None, "only rollouts are given up"
        task = self._task(named)
        rollout = self.run.plan(task or Task(id=named.task_id, instruction="unknown"), named.agent, named.sample)
        self.shared.add("given-up", [rollout.rollout_id])
        if self.run.books.finished({rollout.rollout_id}):
            return f"its worker died {CRASHES} times while it told the result, which is in {self.run.out}"
        record = lost_record(rollout, f"its worker died {CRASHES} times")
        if task is None:
            record = replace(record, input_digest="", grading_digest="")
        self.run.save(record)
        return explain_fault(record)

    def _task(self, named: NamedRollout) -> Task | None:
        """None where it can't be told: it changed, or a file that only workers have read makes it."""
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
        result = yield
        if self.run.display is not None:
            self.run.display.close()  # pytest is about to write the last percentage
        return result

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self) -> None:
        """However it ends, workers have to know before xdist lets go of them."""
        self.shared.stop("the session ended")
        self.run.books.broken = self.run.books.broken or self.shared.broken

    def pytest_unconfigure(self) -> None:
        shutil.rmtree(self.shared.path, ignore_errors=True)


class Worker:
    """A worker's side: how it learns what its controller decides, or that there is none any more."""

    def __init__(self, workerinput: dict[str, Any]) -> None:
        self.name: str = workerinput["workerid"]
        self.shared = SharedFolder(Path(workerinput["rollouts"]["folder"]))
        self._controller = os.getppid()
        self._terminated: str | None = None

    def terminate(self, reason: str) -> None:
        """Stop for a reason of this process's own: a signal."""
        self._terminated = reason

    @property
    def is_orphan(self) -> bool:
        """Whether the controller is gone."""
        return os.getppid() != self._controller

    @property
    def stop_reason(self) -> str | None:
        """Why to stop, or None."""
        if self._terminated is not None:
            return self._terminated
        if self.is_orphan:
            fall_silent()
            return "the controller is gone"
        return self.shared.stop_reason


def fall_silent() -> None:
    """Nobody is there to hear what xdist has to say about a connection that is gone, and pytest's capturing turns up
    again what was turned down: to be called whenever there may be something.
    """
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for descriptor in (1, 2):
        os.dup2(nowhere, descriptor)
    os.close(nowhere)
