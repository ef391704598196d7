"""Runs that stop early: what is saved was never started, and the file gives the same verdict as the run."""

from __future__ import annotations

import json
import random
import re
from pathlib import Path
from typing import Any
from zlib import crc32

import pytest

from pytest_core_rollouts.cli import main
from tests.integration.conftest import RIGHT, WRONG, Project, outcomes, text_of, usage_error
from tests.integration.test_gates import BROKEN, gate_lines
from tests.support.fake_core import FakeCore, Script

TASKS = 12
RUN = ("tasks", "--samples", "4", "--rollout-concurrency", "5")


@pytest.fixture
def twelve(project: Project) -> Project:
    for number in range(TASKS):
        project.task(f"t{number:02}", yaml="tags: [even]" if number % 2 == 0 else "")
    return project


def started(core: FakeCore) -> int:
    return len(core.sessions)


def rows(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_bytes().splitlines()]


def report(capfd: pytest.CaptureFixture[str], *args: str | Path) -> tuple[int, str]:
    capfd.readouterr()
    code = main(["report", *map(str, args)])
    return code, capfd.readouterr().out.replace("&gt;", ">").replace("&lt;", "<").replace("\\", "")


def test_a_mean_that_is_far_from_its_threshold_needs_one_round(
    twelve: Project, core: FakeCore, capfd: pytest.CaptureFixture[str]
) -> None:
    core.script = lambda body: Script(answer=RIGHT, usage={"total_tokens": 1000})
    gate = "mean>=0.6"
    result = twelve.run(
        *RUN, "--rollout-gate", gate, "--rollout-stop", "5%", "--junitxml=j.xml", "--rollout-report", "r.md"
    )
    assert result.ret == 0, text_of(result)
    assert started(core) == TASKS
    assert outcomes(result) == {"solved": 12, "skipped": 36}
    verdict = (
        "gate mean>=0.6: passed: after round 1 of 4: 1.000 from 12 of 48 rollouts; "
        "the whole run would say otherwise in at most 5% of runs"
    )
    assert gate_lines(result) == [verdict]
    text = text_of(result)
    assert "not needed: 36 of 48 rollouts, the gates are decided; about 36.0k tokens not spent" in text
    assert "12 rollouts: 12 tasks, 1 sample each, from 1 of 4 rounds" in text
    assert "not run" not in text
    assert '<property name="rounds" value="from 1 of 4 rounds" />' in (twelve.path / "j.xml").read_text()
    assert "from 1 of 4 rounds" in (twelve.path / "r.md").read_text()
    [file] = twelve.results
    assert {row["settings"]["stop"] for row in rows(file)} == {"5%"}
    code, printed = report(capfd, file, "--gate", gate)
    assert code == 0
    assert f"- {verdict}\n" in printed
    assert "from 1 of 4 rounds" in printed

    copy = twelve.path / "copy.jsonl"
    copy.write_bytes(file.read_bytes())
    assert main(["compare", str(file), str(copy), "--allow-missing"]) == 0
    compared = f"copy.jsonl (from 1 of 4 rounds) compared with {file.name} (from 1 of 4 rounds): "
    assert compared in " ".join(capfd.readouterr().out.split())
    assert main(["history", str(file)]) == 0
    assert "stopped early, from 1 of 4 rounds" in capfd.readouterr().out

    # a resume with the same setting starts nothing, one without it completes the run
    again = twelve.run(*RUN, "--rollout-gate", gate, "--rollout-stop", "5%", "--rollout-resume", str(file))
    assert again.ret == 0, text_of(again)
    assert gate_lines(again) == [verdict]
    assert started(core) == TASKS
    refused = twelve.run(*RUN, "--rollout-gate", "baseline", "--rollout-baseline", str(file))
    assert "stopped early (--rollout-stop)" in usage_error(refused)
    core.script = lambda body: Script(answer=WRONG)
    whole = twelve.run(*RUN, "--rollout-gate", gate, "--rollout-resume", str(file))
    assert whole.ret == 1, text_of(whole)
    assert started(core) == 4 * TASKS
    assert gate_lines(whole) == ["gate mean>=0.6: failed: 0.250 < 0.6"]
    assert report(capfd, file, "--gate", gate)[0] == 1


@pytest.mark.parametrize(
    ("gate", "wrong", "most", "code"),
    [
        ("mean>=0.6", lambda task, sample: sample > 0, 4 * TASKS, 1),
        ("mean>=0.9", lambda task, sample: True, 5 + 5, 1),  # a tenth may fail
        ("each", lambda task, sample: task == "t03", 5 + 4, 1),
        ("pass@4>=1", lambda task, sample: task == "t03" and sample < 3, TASKS + 3 + 5, 0),
        ("pass^4>=0.9", lambda task, sample: task in ("t03", "t04"), TASKS, 1),
        ("mean[tag:even]>=0.9", lambda task, sample: int(task[1:]) % 2 == 1, 4 * 6 + 6 + 5, 0),
    ],
)
def test_nothing_starts_once_the_verdict_is_certain(
    twelve: Project, core: FakeCore, gate: str, wrong: Any, most: int, code: int, capfd: pytest.CaptureFixture[str]
) -> None:
    def script(body: dict[str, Any]) -> Script:
        metadata = body["metadata"]
        return Script(answer=WRONG if wrong(metadata["task"], int(metadata["sample"])) else RIGHT)

    core.script = script
    result = twelve.run(*RUN, "--rollout-gate", gate, "--rollout-stop", "certain")
    assert result.ret == code, text_of(result)
    assert started(core) <= most
    skipped = outcomes(result).get("skipped", 0)
    assert started(core) + skipped == 4 * TASKS
    [file] = twelve.results
    assert len(rows(file)) == started(core)
    if gate != "each":
        verdicts = [line.removeprefix("gate ") for line in gate_lines(result)]
        printed_code, printed = report(capfd, file, "--gate", gate)
        assert printed_code == code
        assert all(f"- gate {verdict}" in printed for verdict in verdicts), printed


def test_rounds_wait_for_their_look_errors_count_both_ways_and_agents_stop_alone(
    twelve: Project, core: FakeCore
) -> None:
    """codex fails, claude_sdk passes after a round, and no round begins before the one before it is complete."""
    order: list[tuple[str, int]] = []

    def script(body: dict[str, Any]) -> Script:
        metadata = body["metadata"]
        agent, sample = metadata["agent"].partition("-")[0], int(metadata["sample"])
        order.append((agent, sample))
        if metadata["task"] == "t00" and sample == 0:
            return BROKEN
        slow = 0.4 if metadata["task"] == "t11" else 0.0
        if agent == "codex":
            return Script(answer=RIGHT if int(metadata["task"][1:]) % 2 else WRONG, turn_seconds=slow)
        return Script(answer=RIGHT, turn_seconds=slow)

    core.script = script
    result = twelve.run(
        *RUN, "--harness", "codex", "--harness", "claude_sdk", "--rollout-retries", "0", "--rollout-allow-errors", "9",
        "--rollout-gate", "mean>=0.6", "--rollout-stop", "10%",
    )  # fmt: skip
    assert result.ret == 1, text_of(result)
    for agent in ("codex", "claude_sdk"):
        samples = [sample for name, sample in order if name == agent]
        assert samples == sorted(samples)
    assert sum(agent == "claude_sdk" for agent, _ in order) == TASKS
    codex = sum(agent == "codex" for agent, _ in order)
    assert TASKS < codex <= 4 * TASKS
    lines = gate_lines(result)
    assert re.match(
        r"gate mean>=0.6 \[claude_sdk\]: passed: after round 1 of 4: 1.000 from 12 of 48 rollouts", lines[0]
    )
    assert lines[1].startswith("gate mean>=0.6 [codex]: failed: ")


@pytest.mark.slow
def test_fast_successes_and_fast_failures_give_the_same_verdict(twelve: Project, core: FakeCore) -> None:
    def script(body: dict[str, Any]) -> Script:
        metadata = body["metadata"]
        right = crc32(f"{metadata['task']}{metadata['sample']}".encode()) % 4 > 0
        return Script(answer=RIGHT if right else WRONG, turn_seconds=delays[right])

    core.script = script
    seen = []
    for fast in (True, False):
        delays = {fast: 0.0, not fast: 0.3}
        before = len(core.sessions)
        result = twelve.run(*RUN, "--rollout-gate", "mean>=0.7", "--rollout-stop", "10%")
        seen.append((gate_lines(result), result.ret, len(core.sessions) - before))
    assert seen[0] == seen[1]


def test_expected_failures_run_as_planned_and_decide_nothing(project: Project, core: FakeCore) -> None:
    """Also if one of them is the first to finish, when no gate has anything to judge yet."""
    project.task("a", yaml="xfail: known")
    for name in "bcdefg":
        project.task(name)
    core.script = lambda body: Script(
        answer=WRONG if body["metadata"]["task"] == "a" else RIGHT,
        turn_seconds=0.0 if body["metadata"]["task"] == "a" else 0.4,
    )
    result = project.run(*RUN, "--rollout-gate", "mean>=0.5", "--rollout-stop", "certain")
    assert result.ret == 0, text_of(result)
    assert outcomes(result)["xfailed"] == 4
    assert outcomes(result)["solved"] >= 12
    assert gate_lines(result)[0].startswith("gate mean>=0.5: passed: ")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--rollout-stop", "60%"], "--rollout-stop: expected `certain` or a risk above 0% and at most 50%"),
        (["--rollout-stop", "0%"], "--rollout-stop: expected `certain` or a risk"),
        (["--rollout-stop", "5%"], "--rollout-stop: requires a gate"),
        (
            ["--rollout-stop", "5%", "--rollout-gate", "mean>=0.5", "--rollout-allow-missing"],
            "--rollout-stop: can't be combined with --rollout-allow-missing",
        ),
        (["--rollout-stop", "5%", "--rollout-gate", "none"], "--rollout-stop: the gate none needs every rollout"),
        (
            ["--rollout-stop", "5%", "--rollout-gate", "mean>=0.5", "-n", "2"],
            "--rollout-stop: does not work with -n; use --rollout-concurrency N",
        ),
    ],
)
def test_invalid_options_are_usage_errors(project: Project, options: list[str], message: str) -> None:
    project.task("a")
    assert usage_error(project.run("tasks", *options)).startswith(message)


ALL_GATES = [
    "mean>=0.7", "mean[tag:even]>=0.8", "mean[task:t0*]>=0.5", "pass@2>=0.6", "pass^2>=0.5", "pass@1>=0.6", "lost<=0",
    "baseline",
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(20))
def test_random_runs_have_the_verdict_of_their_file_and_a_resume_starts_nothing(
    project: Project, core: FakeCore, seed: int, capfd: pytest.CaptureFixture[str]
) -> None:
    source = random.Random(seed)
    number = source.choice([3, 6, 9])
    for at in range(number):
        settings = ["tags: [even]"] * (at % 2 == 0) + ["samples: 2"] * (source.random() < 0.2)
        project.task(f"t{at:02}", yaml="\n".join([*settings, *["xfail: known"] * (source.random() < 0.2)]))
    rates = [source.choice([0.0, 0.3, 0.8, 1.0]) for _ in range(number)]

    def script(body: dict[str, Any]) -> Script:
        metadata = body["metadata"]
        chance = random.Random(json.dumps([seed, *sorted((key, metadata[key]) for key in ("task", "agent", "sample"))]))
        right = chance.random() < rates[int(metadata["task"][1:])]
        return Script(answer=RIGHT if right else WRONG, turn_seconds=chance.random() / 5)

    core.script = script
    every = ("tasks", "--samples", "4", "--harness", "codex")
    project.run(*every, "--rollout-gate", "none", "--rollout-out", "base.jsonl", "--rollout-concurrency", "20")
    gates = [word for gate in source.sample(ALL_GATES, source.choice([1, 2, 3])) for word in ("--rollout-gate", gate)]
    places, rule = source.choice(["1", "4", "12"]), source.choice(["certain", "5%", "30%"])
    args = (*every, *gates, "--rollout-baseline", "base.jsonl", "--rollout-concurrency", places, "--rollout-stop", rule)
    result = project.run(*args)
    if result.ret == pytest.ExitCode.USAGE_ERROR:
        pytest.skip("no task can be compared, or none has so many samples")
    verdicts = [line for line in gate_lines(result) if re.search(": (passed|failed|undecided): ", line)]
    assert len(verdicts) == len(gates) // 2
    [file] = project.path.glob("runs/*.jsonl")
    words = [word.removeprefix("--rollout-") if word == "--rollout-gate" else word for word in gates]
    _, printed = report(
        capfd, file, "--baseline", project.path / "base.jsonl", *("--gate" if w == "gate" else w for w in words)
    )
    assert [line.removeprefix("- ") for line in printed.splitlines() if line.startswith("- gate ")] == verdicts
    before = len(core.sessions)
    again = project.run(*args, "--rollout-resume", str(file))
    assert len(core.sessions) == before
    assert [line for line in gate_lines(again) if re.search(": (passed|failed|undecided): ", line)] == verdicts
