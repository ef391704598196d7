"""The engine's public interface, over real HTTP, as a training loop uses it."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pytest_core_rollouts.engine.core_access import CoreUnreachable
from pytest_core_rollouts.engine.engine import Engine
from pytest_core_rollouts.engine.runs import Group, RunEnded
from pytest_core_rollouts.grading.answers import Answer, Grade
from pytest_core_rollouts.records.record import RecordsError
from pytest_core_rollouts.records.rows import read_records
from pytest_core_rollouts.tasks.matrix import Agent, MatrixError, Rollout
from pytest_core_rollouts.tasks.task import Task
from tests.support.fake_core import FakeCore, Fault, Script

ITEM = {"type": "message", "id": "said", "role": "assistant", "content": []}


def task(name: str = "sum") -> Task:
    return Task(id=name, instruction=f"Do {name}.", expected={"x": 1})


@pytest.fixture
def core() -> Iterator[FakeCore]:
    """Answers rightly where the sample is even."""

    def script(body: dict[str, Any]) -> Script:
        even = int(body["metadata"]["sample"]) % 2 == 0
        return Script(turn_seconds=0.02, answer=b'{"x": 1}' if even else b'{"x": 2}', items=[ITEM])

    with FakeCore(script=script) as running:
        yield running
        assert all(session.deleted for session in running.sessions.values())


@pytest.fixture
def engine(core: FakeCore) -> Iterator[Engine]:
    with Engine(core.base_url, core.api_key, concurrency=8) as running:
        yield running


def metadata(core: FakeCore, name: str) -> list[str]:
    return [session.body["metadata"][name] for session in core.sessions.values()]


def test_groups_are_complete_and_have_trajectories(engine: Engine) -> None:
    run = engine.submit([task("a"), task("b")], Agent("codex"), samples=4, labels={"policy": "7"})
    groups = list(run.groups())
    assert sorted(group.task.id for group in groups) == ["a", "b"]
    for group in groups:
        assert group.rewards == (1.0, 0.0, 1.0, 0.0)
        assert [record.sample for record in group.records] == [0, 1, 2, 3]
        assert {record.group_id for record in group.records} == {group.group_id}
        assert group.labels == {"policy": "7"} == group.records[0].labels
        assert group.agent == Agent("codex")
        assert all(record.items and record.items[-1]["type"] == "message" for record in group.records)


def test_each_submit_is_its_own_run(engine: Engine, core: FakeCore) -> None:
    runs = [engine.submit(task(), samples=2, labels={"step": str(step)}) for step in range(3)]
    for run in runs:
        assert len(list(run.records())) == 2
    assert len({run.run_id for run in runs}) == 3
    assert len(set(metadata(core, "rollout_id"))) == 6
    assert len(core.by_key) == 6
    assert sorted(metadata(core, "label.step")) == ["0", "0", "1", "1", "2", "2"]


def test_records_come_as_they_finish_and_each_has_a_row(core: FakeCore, tmp_path: Path) -> None:
    out = tmp_path / "deep" / "train.jsonl"
    core.script = lambda body: Script(turn_seconds=0.6 - 0.2 * int(body["metadata"]["sample"]), answer=b'{"x": 1}')
    with Engine(core.base_url, core.api_key, concurrency=3, out=out) as engine:
        order = [record.sample for record in engine.submit(task(), samples=3).records()]
    assert order == [2, 1, 0]
    assert [record.sample for record in read_records(out)] == order


def test_run_does_not_wait_for_an_earlier_one(core: FakeCore, engine: Engine) -> None:
    core.script = lambda body: Script(never_ends=body["metadata"]["task"] == "slow", answer=b'{"x": 1}')
    slow = engine.submit(task("slow"), samples=2)
    quick = engine.submit(task("quick"), samples=2)
    assert [group.task.id for group in quick.groups()] == ["quick"]
    slow.cancel()


def test_reading_groups_does_not_block_the_event_loop(core: FakeCore) -> None:
    async def train() -> list[Group]:
        async with Engine(core.base_url, core.api_key, concurrency=4) as engine:
            runs = [await engine.asubmit(task(name), samples=4) for name in "ab"]
            ticks = 0

            async def tick() -> None:
                nonlocal ticks
                while True:
                    ticks += 1
                    await asyncio.sleep(0.005)

            ticking = asyncio.create_task(tick())
            groups = [group for run in runs async for group in run.agroups()]
            ticking.cancel()
            assert ticks > 3, "the loop was blocked"
            return groups

    assert [group.rewards for group in asyncio.run(train())] == [(1.0, 0.0, 1.0, 0.0)] * 2


def test_cancelling_one_run_does_not_affect_others(core: FakeCore, engine: Engine) -> None:
    core.script = lambda body: Script(never_ends=body["metadata"]["task"] == "stuck", answer=b'{"x": 1}')
    stuck = engine.submit(task("stuck"), samples=4)
    while len(core.sessions) < 4:
        time.sleep(0.01)
    fine = engine.submit(task("fine"), samples=2)
    stuck.cancel()
    with pytest.raises(RunEnded, match=f"the run was cancelled .4 rollouts of run {stuck.run_id} have no result"):
        list(stuck.groups())
    assert [group.rewards for group in fine.groups()] == [(1.0, 1.0)]


def test_cancelled_run_does_not_start_queued_rollouts(core: FakeCore) -> None:
    core.script = lambda body: Script(turn_seconds=0.2, answer=b'{"x": 1}')
    with Engine(core.base_url, core.api_key, concurrency=1) as engine:
        first = engine.submit(task("first"))
        second = engine.submit(task("second"), samples=50)
        second.cancel()
        assert len(list(first.records())) == 1
    assert metadata(core, "task") == ["first"]


def test_submit_waits_until_results_are_read(core: FakeCore) -> None:
    with Engine(core.base_url, core.api_key, concurrency=4, max_waiting=4) as engine:
        first = engine.submit(task("first"), samples=4)
        submitted = threading.Event()

        def submit() -> None:
            engine.submit(task("second"))
            submitted.set()

        thread = threading.Thread(target=submit, daemon=True)
        thread.start()
        assert not submitted.wait(0.5), "results that nobody has read take no further work"
        results = first.records()
        next(results)
        assert submitted.wait(5)
        thread.join()
        assert len(list(results)) == 3


def test_asubmit_waits_without_blocking_the_event_loop(core: FakeCore) -> None:
    async def train() -> int:
        async with Engine(core.base_url, core.api_key, concurrency=2, max_waiting=2) as engine:
            first = await engine.asubmit(task("first"), samples=2)
            later = asyncio.create_task(engine.asubmit(task("second")))
            await asyncio.sleep(0.3)
            assert not later.done()
            read = len([record async for record in first.arecords()])
            return read + len([record async for record in (await later).arecords()])

    assert asyncio.run(train()) == 3


def test_wrong_key_is_reported_before_the_first_session(core: FakeCore) -> None:
    with Engine(core.base_url, "wrong-key-0123456789", concurrency=2) as engine:
        for name in ("sum", "later"):
            with pytest.raises(CoreUnreachable, match="401"):
                engine.submit(task(name), samples=5)
    assert not core.sessions


def test_key_that_is_revoked_ends_every_run_with_the_reason(core: FakeCore) -> None:
    with Engine(core.base_url, core.api_key, concurrency=2) as engine:
        list(engine.submit(task()).records())
        core.fault = lambda request: Fault(status=401)
        run = engine.submit(task("sum"), samples=5)
        with pytest.raises(RunEnded, match="401"):
            list(run.records())
        with pytest.raises(RunEnded, match="401"):
            list(engine.submit(task("later")).records())


def test_fault_of_one_rollout_does_not_affect_others(core: FakeCore) -> None:
    core.script = lambda body: (
        Script(session_failure="no sandbox", prepare_seconds=0.8)
        if body["metadata"]["sample"] == "1"
        else Script(answer=b'{"x": 1}')
    )
    with Engine(core.base_url, core.api_key, concurrency=3, retries=0) as engine:
        [group] = engine.submit(task(), samples=3).groups()
    assert group.rewards == (1.0, None, 1.0)
    assert "no sandbox" in str(group.records[1].error)


def test_row_that_can_not_be_written_ends_the_run(core: FakeCore, tmp_path: Path) -> None:
    out = tmp_path / "train.jsonl"
    with Engine(core.base_url, core.api_key, concurrency=1, out=out) as engine:
        out.mkdir()
        run = engine.submit(task(), samples=3)
        with pytest.raises(RunEnded, match=r"train\.jsonl"):
            list(run.records())
        [left] = core.sessions.values()
        assert any(left.body["metadata"]["rollout_id"] in warning for warning in run.warnings)
        left.deleted = True  # by hand


def test_grade_function_replaces_the_grading_of_tasks(core: FakeCore) -> None:
    def grade(task: Task, answer: Answer, rollout: Rollout) -> Grade:
        return Grade(0.5 if answer.value == {"x": 1} else 0.25)

    with Engine(core.base_url, core.api_key, grade=grade) as engine:
        [group] = engine.submit(Task(id="free", instruction="Anything."), samples=2).groups()
    assert group.rewards == (0.5, 0.25)


def test_close_ends_rollouts_in_flight(core: FakeCore) -> None:
    core.script = lambda body: Script(never_ends=True)
    engine = Engine(core.base_url, core.api_key, concurrency=3)
    run = engine.submit(task(), samples=5)
    while len(core.sessions) < 3:
        time.sleep(0.01)
    engine.close()
    engine.close()
    with pytest.raises(RunEnded, match="the engine was closed"):
        list(run.records())
    with pytest.raises(RunEnded, match="the engine was closed"):
        engine.submit(task())


def test_short_outage_costs_no_rollout(core: FakeCore, engine: Engine) -> None:
    core.fault = lambda request: Fault(status=503) if request.route == "turns" and request.nth in (1, 2) else None
    assert [group.rewards for group in engine.submit(task(), samples=2).groups()] == [(1.0, 0.0)]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"samples": 0}, "samples: expected a positive integer, got 0"),
        ({"tasks": []}, "no task was given"),
        ({"tasks": [task("a"), task("a")]}, "two rollouts have the same id"),
        (
            {"agents": Agent("codex", "m", base_url="https://x.example/v1")},
            "set the environment variable MODEL_API_KEY",
        ),
    ],
)
def test_mistakes_are_reported_before_anything_is_sent(
    engine: Engine, core: FakeCore, monkeypatch: pytest.MonkeyPatch, change: dict[str, Any], message: str
) -> None:
    monkeypatch.delenv("MODEL_API_KEY", raising=False)
    with pytest.raises(ValueError, match=message):
        engine.submit(**{"tasks": task(), **change})
    assert not core.requests


def test_model_key_comes_from_the_environment(engine: Engine, core: FakeCore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MODEL_API_KEY", "key-of-the-policy-server")
    agent = Agent("codex", "policy", base_url="https://infer.example/{rollout_id}/v1")
    [record] = engine.submit(task(), agent).records()
    assert record.reward == 1.0
    [session] = core.sessions.values()
    provider = session.body["x_agents_core"]["model_provider"]
    assert provider["api_key"] == "key-of-the-policy-server"
    assert provider["base_url"] == f"https://infer.example/{record.rollout_id}/v1"


def test_invalid_agents_are_refused(engine: Engine) -> None:
    with pytest.raises(MatrixError, match="unknown harness 'codecks'"):
        engine.submit(task(), Agent("codecks"))
    with pytest.raises(MatrixError, match="named twice"):
        engine.submit(task(), [Agent("codex"), Agent("codex")])


def test_constructor_refuses_invalid_urls_keys_and_files(core: FakeCore, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="api_key: must not be empty"):
        Engine(core.base_url, "")
    with pytest.raises(ValueError, match="nonsense"):
        Engine("nonsense", "key")
    other = tmp_path / "notes.txt"
    other.write_text("hello")
    with pytest.raises(RecordsError, match="not a file of rollout records"):
        Engine(core.base_url, core.api_key, out=other)


def test_keys_in_the_environment_are_masked_also_if_the_run_does_not_use_them(
    core: FakeCore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An agent's program may have its key from elsewhere."""
    monkeypatch.setenv("MODEL_API_KEY", "mk-canary-0123456789")
    core.script = lambda body: Script(answer=b'{"x": "mk-canary-0123456789"}')
    out = tmp_path / "rows.jsonl"
    with Engine(core.base_url, core.api_key, out=out) as engine:
        assert len(list(engine.submit(task()).records())) == 1
    assert b"canary" not in out.read_bytes()
    [row] = read_records(out)
    assert row.masked
