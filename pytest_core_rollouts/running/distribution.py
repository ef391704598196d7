"""Assigns items to xdist's workers all at once, for workers that keep several rollouts in flight.

Other tests come first in each worker, as they do without workers (see `completion_order`).
"""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from xdist.workermanage import WorkerController


class ShardScheduling:
    """Gives each worker its items at once; xdist's `Scheduling` protocol.

    * `assign(worker, indices)` passes a worker the indices of its items.
    * `reassign(node_ids)` gets what a dead worker had not completed, and returns what must run again.
    * `is_rollout(node_id)`: whether a node id is that of a rollout.
    """

    def __init__(
        self,
        config: pytest.Config,
        shards: int,
        assign: Callable[[str, list[int]], None],
        reassign: Callable[[list[str]], Container[str]],
        is_rollout: Callable[[str], bool],
    ) -> None:
        self.config = config  # not in the protocol, but xdist's schedulers have it, and plugins read it
        self.shards = shards
        self.assign = assign
        self.reassign = reassign
        self.is_rollout = is_rollout
        self.collection: list[str] | None = None
        self._ids: dict[WorkerController, Sequence[str]] = {}
        self._pending: dict[WorkerController, dict[int, None]] = {}
        self._started: set[WorkerController] = set()
        self._unassigned: dict[int, list[int]] = {}
        """By shard, what its next worker gets: all items of the shard, or those that a dead worker did not finish."""

    @property
    def nodes(self) -> list[WorkerController]:
        return list(self._pending)

    @property
    def collection_is_completed(self) -> bool:
        return self.collection is not None or len(self._ids) >= self.shards

    @property
    def tests_finished(self) -> bool:
        if self.collection is None or any(self._unassigned.values()):
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
        """Run a dead worker's test again in the worker that replaces it. Plugins call this."""
        assert self.collection is not None
        index = self.collection.index(item)
        self._unassigned[index % self.shards].insert(0, index)

    def remove_pending_tests_from_node(self, node: WorkerController, indices: Sequence[int]) -> None:
        raise NotImplementedError("items of a shard can't be moved to another")

    def remove_node(self, node: WorkerController) -> str | None:
        """Keep unfinished items for the next worker. Returns the test in which the node died; None for a rollout."""
        self._ids.pop(node, None)
        pending = list(self._pending.pop(node))
        if not pending:
            return None
        assert self.collection is not None
        culprit = self.collection[pending[0]]
        if not self.is_rollout(culprit):  # so no rollout has started
            self._unassigned[shard_of(node)] = pending[1:]
            return culprit
        again = self.reassign([self.collection[index] for index in pending])
        self._unassigned[shard_of(node)] = [index for index in pending if self.collection[index] in again]
        return None

    def schedule(self) -> None:
        if self.collection is None:
            self.collection = list(next(iter(self._ids.values())))
            everything = range(len(self.collection))
            self._unassigned = {shard: list(everything[shard :: self.shards]) for shard in range(self.shards)}
        if any(list(ids) != self.collection for ids in self._ids.values()):
            raise pytest.UsageError("the workers collected different items; is a conftest random or time-dependent?")
        for node in self._ids.keys() - self._started:
            self._start(node)

    def _start(self, node: WorkerController) -> None:
        assert self.collection is not None
        node_ids = self.collection
        indices = self._unassigned.pop(shard_of(node), [])  # empty if the worker before died after its last item
        indices.sort(key=lambda index: self.is_rollout(node_ids[index]))
        self._started.add(node)
        self._pending[node] = dict.fromkeys(indices)
        if indices:
            self.assign(node.workerinput["workerid"], indices)
            with suppress(OSError):  # it has just died, which xdist reports next
                node.send_runtest_some(indices)
        node.shutdown()  # it gets nothing after these


def shard_of(node: WorkerController) -> int:
    """Return the number of the worker's shard."""
    shard: int = node.workerinput["rollouts"]["shard"]
    return shard
