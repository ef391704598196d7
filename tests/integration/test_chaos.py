"""Three hundred rollouts through random faults: what is promised holds in every run, by the server's own truth.

More seeds: `CHAOS_SEEDS=20 pytest tests/integration/test_chaos.py -m slow -s`, whose last lines are the counts.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator

import pytest

from pytest_core_rollouts.records.rows import effective_rows, read_records
from tests.integration.conftest import Project
from tests.support.chaos import LIMIT, MARK, Chaos, false_rewards, spoiled_for_nothing, unnamed
from tests.support.fake_core import FakeCore
from tests.support.running import Running

IMPATIENT = """
import functools
from pytest_core_rollouts.rollout import poll_schedule
from pytest_core_rollouts.engine import core_access, host
from pytest_core_rollouts.agents_api import RetryPolicy
from pytest_core_rollouts.rollout.runner import Timeouts

PAUSES = {"first_pause": 0.05, "longest_pause": 0.5}
POLICY = RetryPolicy(patience=20, read_timeout=1.5, try_timeout=3, stream_silence=3, **PAUSES)
CONNECT = core_access.CoreAccess.connect

def connect(*args, **kwargs):
    client = CONNECT(*args, **kwargs)
    client.retry = POLICY
    return client

core_access.CoreAccess.connect = connect
host.RolloutRunner = functools.partial(host.RolloutRunner, timeouts=Timeouts(cancel=2, delete=3, unanswered=3))
host.AdaptiveLimit = functools.partial(host.AdaptiveLimit, first_pause=0.3, longest_pause=1.0)
poll_schedule.UNPROVEN_PAUSE = 0.5
"""
"""A conftest under which faults are waited out in moments."""

SEEDS = range(1, 1 + int(os.environ.get("CHAOS_SEEDS", "3")))
WAYS = {0: ("--rollout-concurrency", "50"), 1: ("-n", "2", "--rollout-concurrency", "25")}
TASKS, SAMPLES = 6, 50


@pytest.fixture
def core() -> Iterator[FakeCore]:
    """A Core on which Sessions may be left, as long as they are named."""
    with FakeCore() as running:
        yield running


@pytest.mark.slow
@pytest.mark.parametrize("seed", SEEDS)
def test_300_rollouts_through_random_faults(
    project: Project, core: FakeCore, seed: int, capsys: pytest.CaptureFixture[str]
) -> None:
    chaos = Chaos(core, seed)
    for number in range(TASKS):
        project.task(f"t{number}", expected={"x": 1, "mark": MARK})
    project.write("conftest.py", IMPATIENT)
    args = ("tasks", "--samples", str(SAMPLES), "--rollout-timeout", str(LIMIT), "--rollout-retries", "3", "-q", "-rA")
    way = WAYS[1 if seed % 3 == 0 else 0]
    with Running(project, *args, *way, "--rollout-report", "report.md") as running:
        outage = threading.Thread(target=_restart, args=(core, 2.0 + seed % 3, 1.5))
        outage.start()
        ended = running.end(600)
        outage.join()
    text = ended.text
    assert ended.code == 1, text[-3000:]
    assert "INTERNALERROR" not in text, text[-3000:]
    assert not core.problems
    [path] = project.results
    rows = [json.loads(line) for line in path.read_bytes().splitlines()]

    lost = TASKS * SAMPLES - len(effective_rows(read_records(path)))  # promises 1 and 5
    left = unnamed(chaos, text)  # 2
    false = false_rewards(chaos, rows)  # 3
    for_nothing = spoiled_for_nothing(chaos, rows)
    graded = sum(row["reward"] is not None for row in rows)
    with capsys.disabled():
        print(
            f"\nchaos, seed {seed}: {len(rows)} rows, {graded} graded, {len(core.sessions)} Sessions, "
            f"{sum(core.counts.values())} requests, {chaos.injected} faults of {len(chaos.met)} kinds; "
            f"rows lost {lost}, Sessions unnamed {len(left)}, false rewards {len(false)}, "
            f"results lost to faults of requests {len(for_nothing)}"
        )
    assert (lost, left, false, for_nothing) == (0, [], [], [])
    assert len({row["rollout_id"] for row in rows}) == len(rows) == TASKS * SAMPLES
    assert chaos.injected > 300
    _nothing_told(project, core, text)
    _one_report(project)


def _restart(core: FakeCore, after: float, seconds: float) -> None:
    time.sleep(after)
    core.go_down()
    time.sleep(seconds)
    core.come_back()


def _nothing_told(project: Project, core: FakeCore, text: str) -> None:
    """Promise 4: what is expected is in no request, the key nowhere but in its header; no agent draws on a terminal."""
    assert all(MARK.encode() not in request.body for request in core.requests)
    files = [path for path in project.path.rglob("*") if path.is_file() and "__pycache__" not in path.parts]
    assert not [path for path in files if core.api_key.encode() in path.read_bytes()]
    assert core.api_key not in text
    assert not {character for character in text if not character.isprintable()} - {"\n"}


def _one_report(project: Project) -> None:
    """Promise 6: the same JSONL, the same report."""
    command = [sys.executable, "-m", "pytest_core_rollouts", "report", str(project.results[0])]
    first, second = (
        subprocess.run(command, capture_output=True, timeout=60, check=True, cwd=project.path).stdout for _ in range(2)
    )
    assert first == second
    table = [line for line in (project.path / "report.md").read_text("utf-8").splitlines() if line.startswith("|")]
    assert table
    assert set(table) <= set(first.decode().splitlines())
