"""A run in shards: what each of them runs, and that together they are the whole run."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from zlib import crc32

import httpx
import pytest

from pytest_core_rollouts.cli import main
from tests.integration.conftest import RIGHT, WRONG, Project, outcomes, text_of, usage_error
from tests.support.fake_core import FakeCore, FakeSession, Script

RUN = ("tasks", "--samples", "3", "--harness", "codex", "--harness", "claude_sdk", "--rollout-run", "ci-7")
CORE_MADE = ("session_id", "request_ids", "items", "started_at", "duration_s", "timings", "split")
"""Fields of a row that differ between two runs with the same results, and the digest that only shards have."""


def some_are_wrong(body: dict[str, Any]) -> Script:
    metadata = body["metadata"]
    wrong = crc32(f"{metadata['task']} {metadata['agent']} {metadata['sample']}".encode()) % 3 == 0
    return Script(answer=WRONG if wrong else RIGHT)


@pytest.fixture
def tasks(project: Project, core: FakeCore) -> Project:
    core.script = some_are_wrong
    for name in "abcde":
        project.task(name)
    return project


def rows(file: Path) -> Iterator[dict[str, Any]]:
    return (json.loads(line) for line in file.read_bytes().splitlines())


def without_times(file: Path) -> Path:
    """Write the rows with equal times, so that reports can be compared."""
    same = file.with_name(f"same-{file.name}")
    lines = [{**row, "duration_s": 1.0, "started_at": "2026-11-01T00:00:00.000Z"} for row in rows(file)]
    same.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return same


def report(capfd: pytest.CaptureFixture[str], *files: Path) -> tuple[int, str]:
    capfd.readouterr()
    code = main(["report", *map(str, files), "--gate", "mean>=0.5", "--gate", "none"])
    return code, capfd.readouterr().out


@pytest.mark.slow
def test_shards_together_are_the_whole_run(tasks: Project, capfd: pytest.CaptureFixture[str]) -> None:
    with FakeCore(script=some_are_wrong) as other:
        whole = tasks.run_apart(*RUN, "--rollout-gate", "none", env={"OPENAI_BASE_URL": other.base_url})
    assert whole.ret == 0, text_of(whole)
    files = []
    for shard in ("1/3", "2/3", "3/3"):
        workers = ("-n", "2") if shard == "2/3" else ()
        result = tasks.run_apart(*RUN, "--rollout-shard", shard, *workers)
        assert result.ret == 0, text_of(result)
        files.append(tasks.path / "runs" / f"ci-7.shard-{shard[0]}-of-3.jsonl")
        assert f"shard {shard[0]} of 3: {len(list(rows(files[-1])))} of 30 rollouts" in text_of(result)
        assert "gate" not in text_of(result).replace("gates judge all shards", "").replace("--gate", "")

    def results(*of: Path) -> list[dict[str, Any]]:
        found = [{k: v for k, v in row.items() if k not in CORE_MADE} for file in of for row in rows(file)]
        for row in found:
            del row["settings"]["core"]  # its address
        return sorted(found, key=lambda row: str(row["rollout_id"]))

    file = tasks.path / "runs" / "ci-7.jsonl"
    assert results(*files) == results(file)
    groups = [{row["group_id"] for row in rows(file)} for file in files]
    assert sum(map(len, groups)) == len(set.union(*groups)) == 10
    [digest] = {row["split"] for file in files for row in rows(file)}
    assert len(digest) == 64
    same = [without_times(one) for one in files]
    assert report(capfd, *same) == report(capfd, *reversed(same)) == report(capfd, without_times(file))
    code, text = report(capfd, *same[:2])
    assert code == 1
    assert text.count(": undecided: ") == 4  # two gates, each with two agents


def test_shards_of_different_plans_are_refused_by_name(tasks: Project, capfd: pytest.CaptureFixture[str]) -> None:
    for shard, samples in (("1/2", "3"), ("2/2", "2")):
        assert tasks.run(*RUN, "--rollout-shard", shard, "--samples", samples).ret == 0
    one = tasks.path / "runs" / "ci-7.shard-1-of-2.jsonl"
    two = one.with_name("ci-7.shard-2-of-2.jsonl")
    capfd.readouterr()
    assert main(["report", str(one), str(two)]) == 2
    assert capfd.readouterr().err == (
        f"ERROR: {one} and {two} are shards of run ci-7 that was divided in different ways; run all shards with the "
        "same tasks, agents, samples, number of shards and --rollout-plan-from\n"
    )


def test_a_shard_leaves_the_sessions_of_others_alone_and_finishes_a_lost_run(tasks: Project, core: FakeCore) -> None:
    """A second job with the same run id finds its Sessions deleted, and makes another attempt."""
    shard = ("--rollout-shard", "1/2")
    counts = outcomes(tasks.run(*RUN, *shard))
    file = tasks.path / "runs" / "ci-7.shard-1-of-2.jsonl"
    first = {row["rollout_id"]: row["reward"] for row in rows(file)}
    message = usage_error(tasks.run(*RUN, *shard))
    assert message.startswith(f"--rollout-run: {file} has rows of run ci-7 already; continue that run with --rollout-")
    assert outcomes(tasks.run(*RUN[:-2], *shard, "--rollout-resume", str(file))) == counts
    assert len(list(rows(file))) == len(first) == 15
    file.unlink()
    foreign = foreign_session(core)
    assert outcomes(tasks.run(*RUN, *shard)) == counts
    assert {row["rollout_id"]: row["reward"] for row in rows(file)} == first
    assert {row["attempt"] for row in rows(file)} == {2}
    assert not foreign.deleted
    foreign.deleted = True


def foreign_session(core: FakeCore) -> FakeSession:
    """Create a Session of another shard of the run."""
    metadata = {"run_id": "ci-7", "rollout_id": "ci-7.z.codex-default.0", "task": "z", "agent": "codex", "sample": "0"}
    headers = {"Authorization": f"Bearer {core.api_key}", "OpenAI-Beta": "agents=v1"}
    body = {"environment": {"type": "openai_hosted"}, "metadata": metadata}
    response = httpx.post(f"{core.base_url}/agents/sessions", json=body, headers=headers, trust_env=False)
    return core.sessions[response.json()["id"]]


def test_an_incomplete_shard_fails_and_one_without_rollouts_passes(tasks: Project, core: FakeCore) -> None:
    core.script = lambda body: Script(turn_status="failed", error={"code": "internal_error", "message": "down"})
    result = tasks.run(*RUN, "--rollout-shard", "1/9", "--rollout-retries", "0")
    assert result.ret == 1
    assert "to finish: " in text_of(result)
    assert tasks.run("tasks", "--rollout-run", "x", "--rollout-shard", "9/9").ret == 0
    assert not (tasks.path / "runs" / "x.shard-9-of-9.jsonl").exists()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            ["--rollout-shard", "3/2"],
            "--rollout-shard: expected I/N, such as 2/3 for the second of three, got '3/2'",
        ),
        (["--rollout-shard", "0/2"], "--rollout-shard: expected I/N"),
        (["--rollout-shard", "1/2"], "--rollout-shard: requires --rollout-run ID, the same in all shards"),
        (["--rollout-run", "a b"], "--rollout-run: expected 1 to 40 of A-Z a-z 0-9 -, got 'a b'"),
        (["--rollout-run", "x" * 41], "--rollout-run: expected 1 to 40"),
        (["--rollout-plan-from", "none.jsonl"], "--rollout-plan-from: "),
        (
            ["--rollout-run", "x", "--rollout-shard", "1/2", "--rollout-gate", "mean>=0.5"],
            "--rollout-gate mean>=0.5: a shard judges no gate; remove it, and judge all shards with python -m "
            "pytest_core_rollouts report --gate 'mean>=0.5' FILES",
        ),
        (
            ["--rollout-run", "x", "--rollout-resume", "x.jsonl"],
            "--rollout-run: can't be combined with --rollout-resume",
        ),
    ],
)
def test_invalid_options_are_usage_errors(project: Project, options: list[str], message: str) -> None:
    project.task("a")
    assert usage_error(project.run("tasks", *options)).startswith(message)
