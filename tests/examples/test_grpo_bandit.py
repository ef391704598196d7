"""The example of a training loop learns, and every request belongs to the rollout that it names."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest

from pytest_core_rollouts import CoreError, Engine, RolloutRecord, read_records
from tests.support.agents import needs_codex

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture(autouse=True)
def examples(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.syspath_prepend(EXAMPLES)
    yield
    for name in ("grpo_bandit", "policy_server", "toy_core"):
        sys.modules.pop(name, None)


def train(out: Path, *arguments: str) -> tuple[Any, list[RolloutRecord]]:
    """Train. Returns the policy's server and the rows."""
    import grpo_bandit

    server = grpo_bandit.train(grpo_bandit.parse_arguments([*arguments, "--out", str(out)]))
    return server, list(read_records(out))


def rewards(rows: list[RolloutRecord]) -> list[dict[str, float | None]]:
    """Return the rewards of each version of the policy, by task and sample."""

    def version(row: RolloutRecord) -> int:
        return int(row.labels["policy"])

    by_version = groupby(sorted(rows, key=version), version)
    return [{f"{row.task} {row.sample}": row.reward for row in some} for _, some in by_version]


def mean(step: dict[str, float | None]) -> float:
    known = [reward for reward in step.values() if reward is not None]
    return sum(known) / len(known)


def test_mean_reward_rises(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    server, rows = train(tmp_path / "out.jsonl", "--agent", "toy", "--steps", "8", "--seed", "1")
    means = list(map(mean, rewards(rows)))
    assert len(means) == 8
    assert sum(means[:2]) / 2 < 0.4, "untrained, it guesses"
    assert sum(means[-2:]) / 2 > 0.75
    assert f"policy  7  mean reward {means[7]:.3f}" in capsys.readouterr().out
    check_attribution(server, rows)


def check_attribution(server: Any, rows: list[RolloutRecord]) -> None:
    """Check that every request names a rollout of the JSONL, and was answered by the version in its label."""
    assert {row.status for row in rows} == {"completed"}
    assert set(server.requests) == {row.rollout_id for row in rows} == set(server.policy.sampled)
    for row in rows:
        sampled = server.policy.sampled[row.rollout_id]
        assert row.labels == {"policy": str(sampled.version)}
        assert row.answer == {"answer": sampled.action}
        assert row.settings["protocol"] == "responses"


def test_toy_agent_runs_if_the_embedded_core_can_not(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    prepare = Engine.prepare

    def refuse_embedded(engine: Engine, *arguments: Any) -> None:
        if engine._host.parts.core.is_ours:
            raise CoreError("the codex program is not installed")
        prepare(engine, *arguments)

    monkeypatch.setattr(Engine, "prepare", refuse_embedded)
    _, rows = train(tmp_path / "out.jsonl", "--steps", "1")
    assert "agent: toy (the codex program is not installed)" in capsys.readouterr().out
    assert {row.harness for row in rows} == {"default"}
    with pytest.raises(SystemExit, match="not installed\nTo run without sandboxes, use --agent toy"):
        train(tmp_path / "out.jsonl", "--steps", "1", "--agent", "codex")


def test_capture_needs_a_real_agent(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="--capture: requires a real agent"):
        train(tmp_path / "out.jsonl", "--agent", "toy", "--capture", str(tmp_path / "captures"))


@pytest.mark.slow
def test_thirty_steps_take_at_most_three_minutes(tmp_path: Path) -> None:
    start = time.monotonic()
    _, rows = train(tmp_path / "out.jsonl", "--agent", "toy")
    assert time.monotonic() - start < 180
    means = list(map(mean, rewards(rows)))
    assert len(means) == 30
    assert sum(means[-10:]) / 10 > 0.9


@needs_codex
@pytest.mark.slow
def test_codex_and_the_toy_agent_get_the_same_rewards(tmp_path: Path) -> None:
    """A sample depends only on the seed, the policy's version and the sample number."""
    server, rows = train(tmp_path / "codex.jsonl", "--agent", "codex", "--steps", "3")
    check_attribution(server, rows)
    assert {row.harness for row in rows} == {"codex"}
    assert all(row.usage and row.items for row in rows)
    assert rewards(rows) == rewards(train(tmp_path / "toy.jsonl", "--agent", "toy", "--steps", "3")[1])


def test_update_makes_a_good_answer_more_likely() -> None:
    from policy_server import Policy

    policy = Policy(["riddle-a"], ["x", "y"])
    chosen = policy.act("run.riddle-a.agent.0", "riddle-a")
    assert chosen.probabilities == {"x": 0.5, "y": 0.5}
    policy.update({"run.riddle-a.agent.0": 1.0, "a rollout without a request": -1.0})
    assert policy.probabilities("riddle-a")[chosen.action] == pytest.approx(0.7310586)  # softmax of 0.5 and -0.5
    policy.act("run.riddle-a.agent.0", "riddle-a")
    assert policy.sampled["run.riddle-a.agent.0"].version == policy.version == 1
