"""SIGKILL for the controller, a worker or the embedded Core at any moment, and a resume: nothing lost, or paid twice.

More seeds: `CRASH_SEEDS=20 pytest tests/integration/test_crashes.py -m slow -s`, whose lines are the counts.
"""

from __future__ import annotations

import json
import os
import random
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from pytest_core_rollouts.records.rows import effective_rows, read_records
from tests.integration.conftest import RIGHT, WRONG, Project
from tests.support.fake_core import FakeCore, Script
from tests.support.running import Running, alive, descendants, kill, until

pytestmark = pytest.mark.slow

SEEDS = range(1, 1 + int(os.environ.get("CRASH_SEEDS", "2")))
WAYS = {
    "one process": ("--rollout-concurrency", "5"),
    "workers": ("-n", "2"),
    "workers, several in flight": ("-n", "2", "--rollout-concurrency", "3"),
}
TASKS, SAMPLES, KILLS = 3, 8, 3


def rows(project: Project) -> list[dict[str, Any]]:
    """All whole rows there are; the last may be torn."""
    return [
        json.loads(line)
        for path in project.results
        for line in path.read_bytes().split(b"\n")[:-1]  # what follows the last newline is half a row, or nothing
    ]


def graded(project: Project) -> dict[str, float]:
    """Rewards by rollout."""
    return {row["rollout_id"]: row["reward"] for row in rows(project) if row["reward"] is not None}


def end_of(pids: list[int]) -> None:
    until(lambda: not any(alive(pid) for pid in pids), f"the end of {pids}")


def script(dice: random.Random) -> Any:
    """Agents that take a while; every fourth is wrong."""

    def of(body: dict[str, Any]) -> Script:
        answer = WRONG if int(body["metadata"]["sample"]) % 4 == 3 else RIGHT
        return Script(answer=answer, turn_seconds=dice.uniform(0.05, 1.0), prepare_seconds=dice.uniform(0, 0.3))

    return of


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("way", WAYS)
def test_runs_killed_at_any_moment_lose_nothing(
    project: Project, core: FakeCore, way: str, seed: int, capsys: pytest.CaptureFixture[str]
) -> None:
    dice = random.Random(f"{way}/{seed}")
    core.script = script(dice)
    for number in range(TASKS):
        project.task(f"t{number}")
    args = ["tasks", "--samples", str(SAMPLES), "-q", *WAYS[way]]
    kills: Counter[str] = Counter()
    for _ in range(KILLS):
        before, made = graded(project), set(core.sessions)
        with Running(project, *args) as running:
            seen = len(core.sessions)
            until(lambda: len(core.sessions) > seen or running.process.poll() is not None, "a Session")  # noqa: B023
            time.sleep(dice.uniform(0, 1.5))
            kills[_strike(running, dice)] += 1
        assert before.items() <= graded(project).items(), "a row once written stays"
        assert not _again(core, made, before), "what had finished is not run again"
        args = _resumed(project, args)
    before, made = graded(project), set(core.sessions)
    with Running(project, *args) as running:
        ended = running.end()
    assert ended.code == 1, ended.text  # every fourth agent is wrong
    assert "INTERNALERROR" not in ended.text, ended.text
    assert not _again(core, made, before)

    [path] = project.results
    counted = {key: row.record for key, row in effective_rows(read_records(path)).items()}
    lost = TASKS * SAMPLES - len(counted)
    false = [one for one in counted.values() if one.reward != (0.0 if one.sample % 4 == 3 else 1.0)]
    left = [one.id for one in core.sessions.values() if not one.deleted and one.id not in ended.text]
    with capsys.disabled():
        print(
            f"\ncrashes, {way}, seed {seed}: killed {dict(kills)}; {len(rows(project))} rows, {len(core.sessions)} "
            f"Sessions; rows lost {lost}, Sessions unnamed {len(left)}, false rewards {len(false)}"
        )
    assert (lost, left, false) == (0, [], [])
    assert set(Counter(row["rollout_id"] for row in rows(project) if row["reward"] is not None).values()) == {1}
    # one that an orphaned worker cancelled is made again; every other Session was found by its key
    cancelled = sum(row["status"] == "cancelled" and row["session_id"] is not None for row in rows(project))
    assert len(core.sessions) <= TASKS * SAMPLES + cancelled


def _strike(running: Running, dice: random.Random) -> str:
    """Kill the controller, or a worker and then the controller; when all that is theirs has ended, say which."""
    whole, workers = descendants(running.pid), running.workers
    if running.process.poll() is not None:
        return "nothing: it had ended"
    if workers and dice.random() < 0.5:
        kill(dice.choice(workers))
        time.sleep(dice.uniform(0, 1.5))
        whole += descendants(running.pid)
        victim = "a worker and the controller"
    else:
        victim = "the controller"
    kill(running.pid)
    running.process.wait()
    end_of(whole)
    return victim


def _again(core: FakeCore, made: set[str], finished: dict[str, float]) -> list[str]:
    """Sessions made since for rollouts that had their result."""
    return [one.id for one in core.sessions.values() if one.id not in made and one.metadata["rollout_id"] in finished]


def _resumed(project: Project, args: list[str]) -> list[str]:
    if "--rollout-resume" in args or not project.results:
        return args
    [path] = project.results
    return [*args, "--rollout-resume", str(path.relative_to(project.path))]


# ---- the embedded Core


@pytest.mark.usefixtures("no_core")
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("workers", [(), ("-n", "2")], ids=["one process", "workers"])
def test_a_killed_embedded_core_stops_the_run_and_loses_no_row(
    project: Project, workers: tuple[str, ...], seed: int, capsys: pytest.CaptureFixture[str]
) -> None:
    dice = random.Random(seed)
    solution = "sleep 0.3; mkdir -p outputs; echo '{\"x\": 1}' > outputs/answer.json"
    for number in range(TASKS):
        project.task(f"t{number}")
        project.write(f"tasks/t{number}/solution/solve.sh", solution)
    args = ["tasks", "--core", "embedded", "--samples", str(SAMPLES), "-q", *workers]
    with Running(project, *args) as running:
        until(lambda: graded(project), "the first row")
        time.sleep(dice.uniform(0, 1.0))
        [embedded] = [pid for pid in descendants(running.pid) if _is_core(pid)]
        sandboxes = descendants(embedded)
        kill(embedded)
        ended = running.end()
    before = graded(project)
    assert ended.code in (1, 2), ended.text
    assert "INTERNALERROR" not in ended.text, ended.text
    assert "its process has ended" in ended.text, ended.text
    assert "not run:" in ended.text
    end_of(sandboxes)
    assert {row["reward"] for row in rows(project)} <= {None, 1.0}
    with Running(project, *_resumed(project, args)) as running:
        ended = running.end()
    assert ended.code == 0, ended.text
    [path] = project.results
    counted = {key: row.record for key, row in effective_rows(read_records(path)).items()}
    assert len(counted) == TASKS * SAMPLES
    assert {one.reward for one in counted.values()} == {1.0}
    assert Counter(row["rollout_id"] for row in rows(project) if row["rollout_id"] in before) == Counter(
        dict.fromkeys(before, 1)
    )
    with capsys.disabled():
        print(
            f"\ncrashes, embedded Core, seed {seed}: killed once, {len(before)} rows kept; rows lost 0, false rewards 0"
        )


def _is_core(pid: int) -> bool:
    return b"pytest_core_rollouts.embedded" in Path(f"/proc/{pid}/cmdline").read_bytes()
