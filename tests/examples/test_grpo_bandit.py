"""The example of a training loop: that it learns, and from what."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest

from pytest_core_rollouts.records.record import RolloutRecord
from pytest_core_rollouts.records.rows import read_records
from tests.support.agents import needs_codex

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture(autouse=True)
def examples(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.syspath_prepend(EXAMPLES)
    monkeypatch.setenv("POLICY_API_KEY", "policy-key-0123456789")
    yield
    for name in ("grpo_bandit", "policy_server", "toy_core"):
        sys.modules.pop(name, None)


def train(out: Path, *arguments: str) -> tuple[Any, list[RolloutRecord]]:
    """The policy's server after training, and the rows."""
    import grpo_bandit

    server = grpo_bandit.train(grpo_bandit.parse_arguments([*arguments, "--out", str(out)]))
    return server, list(read_records(out))


def rewards(rows: list[RolloutRecord]) -> list[dict[str, float | None]]:
    """Of each version of the policy: reward by what the sample is, whatever the run is called."""

    def version(row: RolloutRecord) -> int:
        return int(row.labels["policy"])

    by_version = groupby(sorted(rows, key=version), version)
    return [{f"{row.task} {row.sample}": row.reward for row in some} for _, some in by_version]


def mean(step: dict[str, float | None]) -> float:
    known = [reward for reward in step.values() if reward is not None]
    return sum(known) / len(known)


def test_the_mean_reward_rises(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    server, rows = train(tmp_path / "out.jsonl", "--agent", "toy", "--steps", "8", "--seed", "1")
    means = list(map(mean, rewards(rows)))
    assert len(means) == 8
    assert sum(means[:2]) / 2 < 0.4, "untrained, it guesses"
    assert sum(means[-2:]) / 2 > 0.75
    assert f"policy  7  mean reward {means[7]:.3f}" in capsys.readouterr().out
    check_attribution(server, rows)


def check_attribution(server: Any, rows: list[RolloutRecord]) -> None:
    """Every request names a rollout of the JSONL, and was answered by the version that its row is labelled with."""
    assert {row.status for row in rows} == {"completed"}
    assert set(server.requests) == {row.rollout_id for row in rows} == set(server.policy.sampled)
    for row in rows:
        sampled = server.policy.sampled[row.rollout_id]
        assert row.labels == {"policy": str(sampled.version)}
        assert row.answer == {"answer": sampled.action}
        assert row.settings["protocol"] == "responses"


@pytest.mark.slow
def test_thirty_steps_within_three_minutes(tmp_path: Path) -> None:
    start = time.monotonic()
    _, rows = train(tmp_path / "out.jsonl", "--agent", "toy")
    assert time.monotonic() - start < 180
    means = list(map(mean, rewards(rows)))
    assert len(means) == 30
    assert sum(means[-10:]) / 10 > 0.9


@needs_codex
@pytest.mark.slow
def test_codex_gives_the_same_rewards(tmp_path: Path) -> None:
    """The agent in between changes nothing: the policy decides, by seed, version and sample."""
    server, rows = train(tmp_path / "codex.jsonl", "--agent", "codex", "--steps", "3")
    check_attribution(server, rows)
    assert {row.harness for row in rows} == {"codex"}
    assert all(row.usage and row.items for row in rows)
    assert rewards(rows) == rewards(train(tmp_path / "toy.jsonl", "--agent", "toy", "--steps", "3")[1])


def test_an_update_makes_what_was_good_more_likely() -> None:
    from policy_server import Policy

    policy = Policy(["riddle-a"], ["x", "y"])
    chosen = policy.act("run.riddle-a.agent.0", "riddle-a")
    assert chosen.probabilities == {"x": 0.5, "y": 0.5}
    policy.update({"run.riddle-a.agent.0": 1.0, "a rollout that never asked": -1.0})
    assert policy.probabilities("riddle-a")[chosen.action] == pytest.approx(0.7310586)  # softmax of 0.5 and -0.5
    policy.act("run.riddle-a.agent.0", "riddle-a")
    assert policy.sampled["run.riddle-a.agent.0"].version == policy.version == 1
