"""A pool whose results can be waited for in a test, as the engine's runs do."""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import Any

from pytest_core_rollouts.engine.pool import ClientT, JobT, Pool, PoolStopped, ResultT


class CollectingPool(Pool[JobT, ClientT, ResultT]):
    """Collects results by the `rollout_id` of their jobs."""

    def __init__(self, connect: Any, run: Any, **settings: Any) -> None:
        super().__init__(connect, run, on_result=self._collect, on_end=self._end, **settings)
        self._collected: OrderedDict[str, ResultT] = OrderedDict()
        self._changed = threading.Condition()
        self._ended: str | None = None

    def next_done(self, timeout: float | None = None) -> ResultT | None:
        """The next result in completion order; None after `timeout` seconds. Raises PoolStopped if none will come."""
        with self._changed:
            self._changed.wait_for(lambda: self._collected or self._ended, timeout)
            if self._collected:
                return self._collected.popitem(last=False)[1]
            if self._ended is not None:
                raise PoolStopped(self._ended)
            return None

    def wait(self, rollout_id: str, timeout: float | None = None) -> ResultT | None:
        """The result of one job; None after `timeout` seconds. Raises PoolStopped if it will not come."""
        with self._changed:
            self._changed.wait_for(lambda: rollout_id in self._collected or self._ended, timeout)
            if rollout_id in self._collected:
                return self._collected.pop(rollout_id)
            if self._ended is not None:
                raise PoolStopped(self._ended)
            return None

    def _collect(self, job: Any, result: ResultT) -> None:
        with self._changed:
            self._collected[job.rollout_id] = result
            self._changed.notify_all()

    def _end(self, reason: str) -> None:
        with self._changed:
            self._ended = reason
            self._changed.notify_all()
