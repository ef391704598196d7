"""Usage that the server reports after the Turn's end is in the row, and keeps no other rollout waiting."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pytest_core_rollouts.engine.engine import Engine
from pytest_core_rollouts.rollout.attempts import Outcome
from pytest_core_rollouts.rollout.dialects import OPENAGENTCORE, OPENAI, Dialect
from pytest_core_rollouts.rollout.late_usage import LateUsage
from pytest_core_rollouts.rollout.stopping import Stop
from pytest_core_rollouts.tasks.matrix import Agent
from tests.support.fake_core import FakeCore, Script
from tests.support.rollouts import RIGHT, TASK, only_session, plan, run

CODEX = plan(agent=Agent(harness="codex", model="m"))
NEVER = 10**9


@pytest.mark.parametrize("dialect", [OPENAGENTCORE, OPENAI], ids=lambda dialect: dialect.name)
def test_usage_that_comes_one_read_late_is_in_the_row(dialect: Dialect) -> None:
    with FakeCore(script=lambda body: Script(answer=RIGHT, usage_late=1), official=dialect is OPENAI) as core:
        ran = run(core, CODEX, dialect=dialect)
        assert ran.verdict == ("completed", 1.0)
        assert ran.record.usage is not None
        assert (ran.record.usage["total_tokens"], ran.record.spent) == (1000, 1000)
        assert only_session(core).reads == 2
        assert only_session(core).deleted


def test_a_turn_that_failed_costs_tokens_too() -> None:
    with FakeCore(script=lambda body: Script(turn_status="failed", usage_late=1), official=True) as core:
        ran = run(core, plan(agent=CODEX.agent, retries=1), dialect=OPENAI)
        assert ran.verdict == ("failed", None)
        assert ran.record.spent == 2000


def test_a_harness_that_never_reports_usage_is_waited_for_once() -> None:
    with FakeCore() as core:
        core.script = lambda body: Script(answer=RIGHT, usage_late=late[body["metadata"]["sample"]])
        late = {"0": NEVER, "1": NEVER, "2": 0, "3": 1}
        late_usage = LateUsage()
        known = [
            run(core, replace(CODEX, sample=sample), late_usage=late_usage).record.usage is not None
            for sample in range(4)
        ]
        assert known == [False, False, True, True]
        reads = [session.reads for session in core.sessions.values()]
        assert reads[0] > 1
        assert reads[1:] == [1, 1, 2], "it is waited for again when it has reported any"


def test_a_harness_that_is_not_known_to_report_usage_is_not_waited_for() -> None:
    with FakeCore(script=lambda body: Script(answer=RIGHT)) as core:
        assert run(core).record.usage is None
        assert only_session(core).reads == 1


def test_a_stop_ends_the_wait_and_keeps_the_result() -> None:
    waiting = threading.Event()

    async def drive(stop: Stop, task: asyncio.Task[Outcome]) -> None:
        assert await asyncio.to_thread(waiting.wait, 20)
        stop.request(5)

    with FakeCore(script=lambda body: Script(answer=RIGHT, usage_late=NEVER), official=True) as core:
        core.fault = lambda request: waiting.set() if request.route == "turns" and only_session(core).reads else None
        ran = run(core, CODEX, dialect=OPENAI, drive=drive)
        assert ran.verdict == ("completed", 1.0)
        assert ran.record.usage is None
        assert only_session(core).deleted


def test_the_next_rollout_starts_while_one_waits_for_its_usage(tmp_path: Path) -> None:
    def script(body: dict[str, Any]) -> Script:
        return Script(answer=RIGHT, usage_late=NEVER if body["metadata"]["sample"] == "0" else 0)

    with FakeCore(script=script, official=True) as core:
        with Engine(core.base_url, core.api_key, concurrency=1, out=tmp_path / "r.jsonl", dialect="openai") as engine:
            submitted = engine.submit(TASK, Agent(model="m"), samples=3)
            records = {record.sample: record for record in submitted.records()}
        first, *others = core.sessions.values()
        deleted = first.history[-1][0]
        assert [session.history[0][0] < deleted for session in others] == [True, True]
        assert [records[sample].spent for sample in range(3)] == [None, 1000, 1000]
        assert {record.harness for record in records.values()} == {"codex"}
