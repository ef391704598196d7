"""`--rollout-max-cost`: nothing starts once the limit is reached; unknown costs are counted, or refused."""

from __future__ import annotations

from typing import Any

import pytest

from tests.integration.conftest import RIGHT, Project, outcomes, text_of, usage_error
from tests.integration.test_gates import BROKEN
from tests.support.fake_core import FakeCore, Script

USAGE = {"input_tokens": 100_000, "output_tokens": 0, "total_tokens": 100_000}
CAP = ("tasks", "--harness", "claude_sdk", "--model", "m", "--samples", "30", "--rollout-prices", "prices.yaml")


@pytest.fixture
def priced(project: Project) -> Project:
    project.task("a")
    project.write("prices.yaml", "m: {input: 10, output: 100}\n")  # a rollout costs a dollar
    return project


@pytest.mark.parametrize(
    "workers", [(), pytest.param(("-n", "2"), marks=pytest.mark.slow)], ids=["one-process", "workers"]
)
def test_nothing_starts_once_the_limit_is_reached(priced: Project, core: FakeCore, workers: tuple[str, ...]) -> None:
    """A fifth of the rollouts has no usage, and counts as much as the mean of the others."""
    core.script = lambda body: Script(
        answer=RIGHT, usage=None if int(body["metadata"]["sample"]) % 5 == 4 else USAGE, turn_seconds=0.1
    )
    places = workers or ("--rollout-concurrency", "2")
    result = priced.run_apart(*CAP, *places, "--rollout-max-cost", "9.50")
    text = text_of(result)
    assert result.ret == 1, text
    ran = len(core.sessions)
    assert 10 <= ran <= 13, text
    assert outcomes(result) == {"passed": ran}
    assert "stopped: --rollout-max-cost $9.50 is reached: $" in text
    assert "--rollout-max-cost counted 2 attempts of unknown cost as their agent's mean" in text


def test_attempts_that_failed_count(priced: Project, core: FakeCore) -> None:
    broken = Script(turn_status=BROKEN.turn_status, error=BROKEN.error, usage=USAGE)
    core.script = lambda body: broken if body["metadata"]["attempt"] == "1" else Script(answer=RIGHT, usage=USAGE)
    result = priced.run_apart(*CAP, "--rollout-concurrency", "1", "--rollout-max-cost", "4")
    assert "stopped: --rollout-max-cost $4.00 is reached: $4.00 spent" in text_of(result)
    assert len(core.sessions) == 4
    assert outcomes(result) == {"passed": 2}


@pytest.mark.slow
def test_an_agent_that_never_reports_its_usage_starts_no_more(priced: Project, core: FakeCore) -> None:
    def silent(body: dict[str, Any]) -> Script:
        return Script(answer=RIGHT)

    core.script = silent
    cap = (*CAP, "--rollout-max-cost", "5", "--rollout-concurrency", "1")
    text = text_of(priced.run_apart(*cap))
    assert (
        "--rollout-max-cost $5.00 can't be kept: the cost of the first 10 attempts of claude_sdk-m is unknown" in text
    )
    assert len(core.sessions) == 10
    accepted = priced.run_apart(*cap, "--rollout-allow-unknown-cost")
    assert accepted.ret == 0, text_of(accepted)
    assert len(core.sessions) == 40


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--rollout-max-cost", "5"), "--rollout-max-cost: requires prices; add --rollout-prices PATH"),
        (
            ("--rollout-prices", "prices.yaml", "--rollout-max-cost", "5"),
            "prices.yaml has no price of the model 'x'; add it, or accept unknown costs with "
            "--rollout-allow-unknown-cost",
        ),
        (
            ("--rollout-prices", "prices.yaml", "--rollout-max-cost", "-1"),
            "--rollout-max-cost: expected an amount in dollars above 0, such as 25 or 2.50, got '-1'",
        ),
    ],
)
def test_invalid_limits_are_usage_errors(priced: Project, options: tuple[str, ...], message: str) -> None:
    assert message in usage_error(priced.run("tasks", "--harness", "codex", "--model", "x", *options))
