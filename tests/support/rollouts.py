"""What the tests of rollouts share: a task, limits that a test can wait for, and a run against a fake Core."""

from __future__ import annotations

import asyncio
import gc
import json
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from pytest_core_rollouts.agents_api import Client, RetryPolicy
from pytest_core_rollouts.grading.answers import Answer, Grade, grade_answer
from pytest_core_rollouts.records.record import RolloutRecord
from pytest_core_rollouts.rollout.attempts import Outcome
from pytest_core_rollouts.rollout.runner import RolloutRunner, Timeouts
from pytest_core_rollouts.rollout.stopping import Stop
from pytest_core_rollouts.tasks.matrix import Agent, Rollout
from pytest_core_rollouts.tasks.task import Task
from pytest_core_rollouts.tasks.task_settings import Network
from tests.support.api import QUICK
from tests.support.fake_core import FakeCore, FakeSession, Fault, Request, Script

RUN_ID = "20261129T120000Z-1f0c"
TASK = Task(id="sum", instruction="Add the numbers.", expected={"n": 1})
RIGHT = b'{"n": 1}'
WRONG = b'{"n": 2}'
TIMEOUTS = Timeouts(
    first_poll=0.1,
    cancel=0.5,
    fetch=10.0,
    delete=0.5,
    unanswered=0.4,
    second_look=0.05,
    create_stopped=0.5,
    usage=0.7,
    outage=2.0,
)


def plan(task: Task = TASK, agent: Agent | None = None, **changes: Any) -> Rollout:
    """One rollout; `changes` replace its limit of 10 s, and whatever else."""
    settings = {"sample": 0, "run_id": RUN_ID, "timeout": 10.0, "network": Network("disabled")}
    return Rollout(**{"task": task, "agent": agent or Agent(), **settings, **changes})


def grade(task: Task, answer: Answer, rollout: Rollout) -> Grade:
    assert task.expected is not None
    return grade_answer(task.expected, answer, task.tolerance)


@dataclass
class Ran:
    """What came of a rollout: the outcome, and the record as it was saved, Items included."""

    outcome: Outcome
    record: RolloutRecord

    @property
    def warnings(self) -> tuple[str, ...]:
        return self.outcome.warnings

    @property
    def verdict(self) -> tuple[str, float | None]:
        return self.record.status, self.record.reward


class Keeper:
    """A `save` that keeps records in memory, and checks that each is kept before its Session is deleted."""

    def __init__(self, core: FakeCore) -> None:
        self.core = core
        self.records: list[RolloutRecord] = []

    def __call__(self, record: RolloutRecord) -> None:
        assert record.session_id is None or not self.core.sessions[record.session_id].deleted
        record.to_line()  # what can't be written is found here
        self.records.append(record)


def run(
    core: FakeCore,
    rollout: Rollout | None = None,
    *,
    retry: RetryPolicy = QUICK,
    drive: Callable[[Stop, asyncio.Task[Outcome]], Any] | None = None,
    maybe_begun: bool = False,
    **runner: Any,
) -> Ran:
    """Run one rollout to its end. `drive` may be a coroutine function that acts while it runs."""
    keeper = Keeper(core)
    settings = {"grade": grade, "save": keeper, "timeouts": TIMEOUTS, **runner}

    async def main() -> Outcome:
        stop = Stop()
        async with Client(core.base_url, core.api_key, retry=retry) as client:
            running = RolloutRunner(**settings).run(client, rollout or plan(), stop, maybe_begun=maybe_begun)
            task = asyncio.ensure_future(running)
            if drive is not None:
                await drive(stop, task)
            return await task

    outcome = asyncio.run(main())
    assert len(keeper.records) == 1, "one rollout, one row"
    record = keeper.records[0]
    assert outcome.record == record
    return Ran(outcome, record)


@contextmanager
def nothing_open() -> Iterator[None]:
    """Checks that no thread of an engine is left, and no socket that nobody closed."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", ResourceWarning)
        yield
        gc.collect()
    assert [str(one.message) for one in caught if issubclass(one.category, ResourceWarning)] == []
    assert [thread for thread in threading.enumerate() if thread.name == "rollouts"] == []


def scripted(core: FakeCore, *scripts: Script) -> None:
    """The first Session follows the first script, and so on; the last script goes on."""
    waiting = list(scripts)
    core.script = lambda body: waiting.pop(0) if len(waiting) > 1 else waiting[0]


def on(route: str, fault: Fault | Callable[[Request], Fault | None], *, first: int = 1, last: int = 10**9) -> Any:
    """A fault hook: the requests number `first` to `last` of a route meet `fault`."""

    def hook(request: Request) -> Fault | None:
        if request.route != route or not first <= request.nth <= last:
            return None
        return fault(request) if callable(fault) else fault

    return hook


def json_reply(value: Any, status: int = 200) -> Fault:
    """An answer of the test's own in place of the regular one."""
    return Fault(status=status, body=json.dumps(value).encode(), headers={"X-Request-Id": "req_of_the_test"})


def refused(status: int, message: str, code: str | None = None, param: str | None = None) -> Fault:
    """An error of the API."""
    return json_reply({"error": {"type": "x", "message": message, "code": code, "param": param}}, status)


def only_session(core: FakeCore) -> FakeSession:
    (session,) = core.sessions.values()
    return session
