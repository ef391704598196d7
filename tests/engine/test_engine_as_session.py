"""The engine treats tasks, keys and Cores as a pytest session does."""

from __future__ import annotations

import asyncio
import pickle
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pytest_core_rollouts import (
    Agent,
    Engine,
    MatrixError,
    Rollout,
    RolloutRecord,
    Run,
    RunEnded,
    Task,
    TaskError,
    load_task,
    load_tasks,
    read_records,
)
from pytest_core_rollouts.agents_api import Client
from pytest_core_rollouts.rollout.session_creation import session_body
from tests.support.fake_core import FakeCore, Script

SECRET = "token-of-the-task-8f1c"
KEY = "key-of-the-policy-5b2e"
GRADER = """
def grade(answer, rollout):
    key = rollout.agent.api_key
    return 0.0 if key else float(answer.value == {"n": "one"})
"""


@pytest.fixture
def core() -> Iterator[FakeCore]:
    with FakeCore(script=lambda body: Script(answer=b'{"n": "one"}')) as running:
        yield running
        assert all(session.deleted for session in running.sessions.values())


def write_task(root: Path, name: str, *, yaml: str = "", expected: str | None = '{"n": 1}', grader: str = "") -> Path:
    folder = root / name
    folder.mkdir(parents=True)
    (folder / "instruction.md").write_text(f"Do {name}; answer in answer.json.")
    if expected is not None:
        (folder / "expected.json").write_text(expected)
    if yaml:
        (folder / "task.yaml").write_text(yaml)
    if grader:
        (folder / "grader.py").write_text(grader)
    return folder


# ---- grading


def test_engine_grades_by_the_rules_of_the_task(core: FakeCore, tmp_path: Path) -> None:
    """Earlier, a task with `grading:` rules got reward 0 where a session gave 1."""
    folder = write_task(tmp_path, "rules", expected='{"n": "ONE"}', yaml="grading: {n: {ignore_case: true}}\n")
    with Engine(core.base_url, core.api_key) as engine:
        [record] = engine.submit(load_task(folder, folder.name)).records()
    assert record.reward == 1.0


def test_engine_grades_by_a_grader_file(core: FakeCore, tmp_path: Path) -> None:
    """Earlier, a task with only grader.py was an error. The grader never sees a model key."""
    task = load_task(write_task(tmp_path, "own", expected=None, grader=GRADER), "own")
    agent = Agent("codex", "policy", base_url="http://127.0.0.1:9/v1", api_key=KEY)
    with Engine(core.base_url, core.api_key) as engine:
        [record] = engine.submit(task, agent).records()
    assert record.reward == 1.0


def test_task_with_a_grader_file_can_be_pickled(core: FakeCore, tmp_path: Path) -> None:
    """Earlier, this was a TypeError, because the grader held a lock."""
    task = load_task(write_task(tmp_path, "own", expected=None, grader=GRADER), "own")
    with Engine(core.base_url, core.api_key) as engine:
        [record] = engine.submit(pickle.loads(pickle.dumps(task))).records()
    assert record.reward == 1.0


# ---- masking and `planned`


def test_engine_masks_secrets_and_counts_what_it_planned(
    core: FakeCore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Earlier, the secret of a task was in the rows, and `planned` was empty."""
    monkeypatch.setenv("TASK_TOKEN", SECRET)
    folder = write_task(tmp_path, "secret", yaml="env: {T: {from_env: TASK_TOKEN, secret: true}}\n")
    core.script = lambda body: Script(answer=f'{{"n": "{SECRET}"}}'.encode())
    out = tmp_path / "runs" / "out.jsonl"
    saved: list[RolloutRecord] = []
    tasks = [load_task(folder, folder.name), load_task(write_task(tmp_path, "plain"), "plain")]
    with Engine(core.base_url, core.api_key, out=out, save=saved.append) as engine:
        list(engine.submit(tasks, samples=2).records())
    assert SECRET not in out.read_text() + "".join(record.to_line().decode() for record in saved)
    rows = list(read_records(out))
    assert len(rows) == len(saved) == 4
    assert {(row.planned["group"], row.planned["agent"], row.planned["run"]) for row in rows} == {(2, 4, 4)}


# ---- what never leaves


def test_key_and_solution_are_refused_where_the_request_is_built(core: FakeCore, tmp_path: Path) -> None:
    """Earlier, solve.sh and the key were sent when the caller did not look."""
    with pytest.raises(ValueError, match="refusing to send the API key"):
        Client("http://core.example/v1", "key")
    with pytest.raises(ValueError, match="refusing to send the API key"):
        Engine("http://core.example/v1", "key")
    folder = write_task(tmp_path, "solved")
    (folder / "solution").mkdir()
    (folder / "solution" / "solve.sh").write_text("echo '{}' > /workspace/outputs/answer.json\n")
    task = load_task(folder, folder.name)
    with pytest.raises(MatrixError, match="never sent to another"):
        session_body(Rollout(task, Agent("oracle"), 0, "run"))
    with Engine(core.base_url, core.api_key) as engine:
        with pytest.raises(MatrixError, match="requires --core embedded"):
            engine.submit(task, Agent("oracle"))
        with pytest.raises(MatrixError, match="requires --core embedded"):
            engine.submit_rollouts([Rollout(task, Agent("oracle"), 0, "run")])
        with pytest.raises(MatrixError, match="refusing to send the API key"):
            engine.submit(task, Agent("codex", "m", base_url="http://policy.example/v1", api_key=KEY))
    assert not core.requests


# ---- event loops


def test_engine_runs_under_the_policy_of_uvloop(core: FakeCore) -> None:
    """Earlier, with uvloop's policy, every rollout was an error (`happy_eyeballs_delay`)."""
    uvloop = pytest.importorskip("uvloop", reason="pip install uvloop")
    before = asyncio.get_event_loop_policy()
    asyncio.set_event_loop_policy(uvloop.EventLoopPolicy())
    try:

        async def train() -> list[float | None]:
            async with Engine(core.base_url, core.api_key) as engine:
                run = await engine.asubmit(Task("sum", "Add.", expected={"n": "one"}), samples=3)
                return [record.reward async for record in run.arecords()]

        assert asyncio.run(train()) == [1.0, 1.0, 1.0]
    finally:
        asyncio.set_event_loop_policy(before)


# ---- settings of tasks


def test_settings_of_tasks_apply_as_in_a_session(
    core: FakeCore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Earlier, skip ran, samples and xfail were ignored, unset variables were error rows."""
    monkeypatch.delenv("NOT_SET", raising=False)
    write_task(tmp_path, "skipped", yaml="skip: not today\n")
    write_task(tmp_path, "twice", yaml="samples: 2\n")
    write_task(tmp_path, "hard", yaml="xfail: too hard\n")
    write_task(tmp_path, "unset", yaml="env: {T: {from_env: NOT_SET}}\n")
    with Engine(core.base_url, core.api_key) as engine:
        run = engine.submit(load_tasks(tmp_path))
        records = list(run.records())
        with pytest.raises(ValueError, match="no rollouts to run: not today"):
            engine.submit(load_task(tmp_path / "skipped", "skipped"))
        with pytest.raises(ValueError, match="task skipped: not today"):
            engine.submit_rollouts([Rollout(load_task(tmp_path / "skipped", "skipped"), Agent(), 0, "run")])
    assert sorted(record.task for record in records) == ["hard", "twice", "twice"]
    assert [record.settings.get("xfail") for record in records if record.task == "hard"] == ["too hard"]
    assert run.skipped == {"skipped": "not today", "unset": "task unset needs NOT_SET in the environment"}


def test_packages_are_refused_on_the_embedded_core(tmp_path: Path) -> None:
    """Earlier, such a task was an error row."""
    task = load_task(write_task(tmp_path, "packed", yaml="packages: {python: [numpy]}\n"), "packed")
    with Engine.embedded() as engine, pytest.raises(ValueError, match="installs no packages"):
        engine.submit(task, Agent("nop"))


# ---- load_tasks


def test_load_tasks_finds_what_a_session_finds(tmp_path: Path) -> None:
    """Earlier, a loop over the folder failed on stray files, and named nested tasks otherwise."""
    write_task(tmp_path, "a")
    write_task(tmp_path, "sql/joins")
    (tmp_path / ".gitkeep").touch()
    (tmp_path / "notes").mkdir()
    assert [task.id for task in load_tasks(tmp_path)] == ["a", "sql/joins"]
    with pytest.raises(TaskError, match="holds no tasks"):
        load_tasks(tmp_path / "notes")


# ---- keys by value


def test_key_by_value_is_only_in_the_request(core: FakeCore, tmp_path: Path) -> None:
    core.script = lambda body: Script(answer=f'{{"n": "{KEY}"}}'.encode())
    agent = Agent("codex", "policy", base_url="https://policy.example/{rollout_id}/{attempt}/v1", api_key=KEY)
    out = tmp_path / "out.jsonl"
    with Engine(core.base_url, core.api_key, out=out) as engine:
        run = engine.submit(Task("sum", "Add.", expected={"n": 1}), agent)
        [group] = run.groups()
        shown = f"{agent} {run.rollouts} {group.agent} {group.task} {engine._host.parts} {run}"
    assert KEY not in shown + out.read_text()
    assert core.api_key not in shown
    assert agent.digest == replace(agent, api_key=None).digest
    [session] = core.sessions.values()
    provider = session.body["x_agents_core"]["model_provider"]
    assert provider["api_key"] == KEY
    assert provider["base_url"] == f"https://policy.example/{group.records[0].rollout_id}/1/v1"


# ---- rollouts with given ids, `save`


def given(sample: int, **changes: Any) -> Rollout:
    return Rollout(Task("sum", "Add.", expected={"n": "one"}), Agent(), sample, "step-7", group="prompt-3", **changes)


def test_rollouts_keep_their_run_id_and_group(core: FakeCore, tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    with Engine(core.base_url, core.api_key, out=out) as engine:
        runs = [engine.submit_rollouts([given(sample)]) for sample in range(3)]
        groups = [group for run in runs for group in run.groups()]
    assert {group.group_id for group in groups} == {"prompt-3"}
    assert sorted(record.sample for record in read_records(out)) == [0, 1, 2]
    assert {record.run_id for record in read_records(out)} == {"step-7"}


@pytest.mark.parametrize(
    ("rollouts", "message"),
    [
        ([], "expected one run id, got 0"),
        ([given(0), replace(given(1), run_id="step-8")], "expected one run id, got 2"),
        ([given(0), given(0)], "two rollouts have the same id"),
        ([replace(given(0), run_id="../step")], "run_id: expected"),
    ],
)
def test_invalid_rollouts_are_refused(core: FakeCore, rollouts: list[Rollout], message: str) -> None:
    with Engine(core.base_url, core.api_key) as engine, pytest.raises(ValueError, match=message):
        engine.submit_rollouts(rollouts)


def test_runs_of_one_id_all_end_with_the_engine(core: FakeCore) -> None:
    """The second submit with a run id replaced the first, whose reader then waited forever."""
    core.script = lambda body: Script(never_ends=True)
    engine = Engine(core.base_url, core.api_key, concurrency=1)
    runs = [engine.submit_rollouts([given(sample)]) for sample in range(3)]
    engine.close()
    for run in runs:
        with pytest.raises(RunEnded, match="the engine was closed"):
            list(run.records())


def test_save_that_raises_ends_the_run(core: FakeCore) -> None:
    def save(record: RolloutRecord) -> None:
        raise OSError("no space left")

    with Engine(core.base_url, core.api_key, concurrency=1, save=save) as engine:
        run = engine.submit(Task("sum", "Add.", expected={"n": "one"}), samples=3)
        with pytest.raises(RunEnded, match="save: OSError: no space left"):
            list(run.records())
    [session] = core.sessions.values()
    assert not session.deleted, "its result is nowhere else"
    session.deleted = True  # by hand


# ---- long-lived engines


def test_engine_keeps_nothing_of_finished_runs(core: FakeCore) -> None:
    agent = Agent("codex", "policy", base_url="https://policy.example/v1", api_key=KEY)
    with Engine(core.base_url, core.api_key, concurrency=4) as engine:
        for _ in range(5):
            list(engine.submit(Task("sum", "Add.", expected={"n": "one"}), agent, samples=2).records())
        host = engine._host
        assert (host._runs, host.preparation.keys, host.parts.store._plans) == (set(), {}, {})


def test_max_waiting_below_one_is_refused(core: FakeCore) -> None:
    """It would block every submit forever."""
    with pytest.raises(ValueError, match="max_waiting: expected a positive integer, got 0"):
        Engine(core.base_url, core.api_key, max_waiting=0)


def wait_for_submit() -> None:
    """Return when an `asubmit` waits for room in its thread."""
    while not any(thread.name.startswith("rollouts-submit") for thread in threading.enumerate()):
        time.sleep(0.01)


def test_cancelled_asubmit_runs_nothing(core: FakeCore) -> None:
    async def train() -> list[Run]:
        async with Engine(core.base_url, core.api_key, max_waiting=1) as engine:
            first = await engine.asubmit(Task("first", "Add.", expected={"n": "one"}))
            waiting = asyncio.create_task(engine.asubmit(Task("second", "Add.", expected={"n": "one"})))
            await asyncio.to_thread(wait_for_submit)
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
            assert len([record async for record in first.arecords()]) == 1
            third = await engine.asubmit(Task("third", "Add.", expected={"n": "one"}))
            assert len([record async for record in third.arecords()]) == 1
            return [first, third]

    asyncio.run(train())
    assert [session.body["metadata"]["task"] for session in core.sessions.values()] == ["first", "third"]
