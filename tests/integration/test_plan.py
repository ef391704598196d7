"""What a run will take and what its gate sees, printed before the first rollout and by --collect-only."""

from __future__ import annotations

import re
from typing import Any
from zlib import crc32

import pytest

from tests.integration.conftest import RIGHT, WRONG, Project, text_of, usage_error
from tests.support.fake_core import FakeCore, Script

RUN = ("tasks", "--harness", "codex", "--model", "m", "--rollout-prices", "prices.yaml")


@pytest.fixture
def measured(project: Project, core: FakeCore) -> Project:
    """Ten tasks, and `old.jsonl` with four samples of nine of them: a dollar and 100,000 tokens each."""

    def script(body: dict[str, Any]) -> Script:
        metadata = body["metadata"]
        wrong = crc32(f"{metadata['task']}{metadata['sample']}".encode()) % 4 == 0
        usage = {"input_tokens": 100_000, "output_tokens": 0, "total_tokens": 100_000}
        return Script(answer=WRONG if wrong else RIGHT, usage=usage, turn_seconds=0.0)

    core.script = script
    project.write("prices.yaml", "m: {input: 10, output: 100}\n")
    for number in range(9):
        project.task(f"t{number}")
    done = project.run(*RUN, "--samples", "4", "--rollout-gate", "none", "--rollout-out", "old.jsonl")
    assert done.ret == 0, text_of(done)
    project.task("new")
    return project


def lines(result: pytest.RunResult) -> list[str]:
    return [line for line in result.outlines if line.startswith(("40 rollouts", "by old", "gate baseline sees"))]


@pytest.mark.slow
def test_the_plan_is_printed_before_anything_is_paid_for(measured: Project, core: FakeCore) -> None:
    before = len(core.sessions)
    dry = measured.run(*RUN, "--samples", "4", "--collect-only", "-q", "--rollout-plan-from", "old.jsonl")
    size, forecast = lines(dry)
    assert size == "40 rollouts: 10 tasks, 1 agent"
    assert forecast.startswith(
        "by old.jsonl: about 3.6M tokens (3.6M to 3.6M), about $36.00 ($36.00 to $36.00), about 5 s with 4 in flight, "
        "without 1 task that it does not have"
    )
    assert len(core.sessions) == before

    gate = ("--rollout-gate", "baseline", "--rollout-baseline", "old.jsonl", "--samples", "4")
    again = measured.run(*RUN, *gate, "--collect-only")
    assert lines(again)[:2] == [size, forecast]
    [sight] = lines(again)[2:]
    assert sight.startswith("gate baseline sees a drop of ")
    assert " points 4 times in 5, of " in sight
    assert " points half of the time; " in sight
    stops = measured.run(*RUN, *gate, "--collect-only", "--rollout-stop", "5%")
    assert re.search(
        r"^with --rollout-stop 5%: about \d\d% of that, if the agents are as they were$", text_of(stops), re.M
    )
    real = measured.run(*RUN, *gate, "--rollout-concurrency", "4")
    assert lines(real)[:3] == [size, forecast, sight]
    assert len(core.sessions) == before + 40


def test_a_file_that_can_not_be_read_is_a_usage_error(project: Project) -> None:
    project.task("a")
    project.write("bad.jsonl", "{not json}\n{}\n")
    message = usage_error(project.run("tasks", "--rollout-plan-from", "bad.jsonl"))
    assert message.startswith("--rollout-plan-from: ")
