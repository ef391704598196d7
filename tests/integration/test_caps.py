"""Caps on time and tokens: nothing more starts, what is in flight finishes, the rest is named, nothing is decided."""

from __future__ import annotations

import re
from typing import Any

import pytest

from tests.integration.conftest import RIGHT, Project, outcomes, text_of, usage_error
from tests.support.fake_core import FakeCore, Fault, Script

pytestmark = pytest.mark.slow

WORKERS = [(), ("-n", "2"), ("-n", "2", "--rollout-concurrency", "2")]


def spending(core: FakeCore, tokens: int | None, seconds: float = 0.0) -> None:
    usage = None if tokens is None else {"input_tokens": tokens - 5, "output_tokens": 5, "total_tokens": tokens}
    core.script = lambda body: Script(answer=RIGHT, usage=usage, turn_seconds=seconds)


def not_run(text: str) -> int:
    """How many rollouts are named as not run."""
    count = 0
    for line in re.findall(r"^not run: a default-default (.*)$", text, re.MULTILINE):
        for part in line.split(", "):
            first, _, last = part.partition("-")
            count += int(last or first) - int(first) + 1
    return count


@pytest.mark.parametrize("workers", WORKERS, ids=len)
def test_no_rollout_starts_after_the_limit_of_tokens(
    project: Project, core: FakeCore, workers: tuple[str, ...]
) -> None:
    project.task("a")
    spending(core, 100, 0.2)
    cap = ("--samples", "20", "--rollout-max-tokens", "500")
    result = project.run_apart("tasks", *(workers or ("--rollout-concurrency", "2")), *cap)
    text = text_of(result)
    assert result.ret == 1, text
    ran = len(core.sessions)
    assert 5 <= ran <= 8, "what was in flight finished, and nothing else started"
    assert outcomes(result) == {"passed": ran}
    assert not_run(text) == 20 - ran
    assert "stopped: --rollout-max-tokens 500 is reached" in text
    assert {row["status"] for row in project.records} == {"completed"}
    [path] = project.results
    assert f"--rollout-resume {path.relative_to(project.path)}" in text

    again = project.run_apart("tasks", *workers, "--samples", "20", "--rollout-resume", str(path))
    assert again.ret == 0, text_of(again)
    assert outcomes(again) == {"passed": 20}
    assert len(core.sessions) == 20


@pytest.mark.parametrize("workers", WORKERS, ids=len)
def test_no_rollout_starts_after_the_limit_of_time(project: Project, core: FakeCore, workers: tuple[str, ...]) -> None:
    project.task("a")
    spending(core, None, 1.5)
    result = project.run_apart(
        "tasks", *(workers or ("--rollout-concurrency", "2")), "--samples", "30", "--rollout-max-time", "6s"
    )
    text = text_of(result)
    assert result.ret == 1, text
    ran = len(core.sessions)
    assert 1 <= ran < 30
    assert outcomes(result) == {"passed": ran}
    assert not_run(text) == 30 - ran
    assert "stopped: --rollout-max-time 6 (seconds) is reached" in text


def test_a_gate_is_undecided_after_a_limit_is_reached(project: Project, core: FakeCore) -> None:
    project.task("a")
    spending(core, 100)
    result = project.run(
        "tasks", "--samples", "9", "--rollout-max-tokens", "300", "--rollout-gate", "pass@9>=0.5",
        "--rollout-concurrency", "1",
    )  # fmt: skip
    assert result.ret == 1
    assert len(core.sessions) == 3
    assert "undecided" in text_of(result)


def test_a_limit_that_is_reached_by_the_last_rollout_changes_nothing(project: Project, core: FakeCore) -> None:
    project.task("a")
    spending(core, 100)
    result = project.run("tasks", "--samples", "3", "--rollout-max-tokens", "300", "--rollout-concurrency", "3")
    assert result.ret == 0
    assert "stopped:" not in text_of(result)


def test_attempts_with_unknown_usage_are_counted_and_reported(project: Project, core: FakeCore) -> None:
    project.task("a")
    spending(core, None)
    result = project.run("tasks", "--samples", "3", "--rollout-max-tokens", "10")
    assert result.ret == 0
    assert "--rollout-max-tokens counted without 3 attempts whose usage is unknown" in text_of(result)
    assert "usage is unknown" not in text_of(project.run("tasks"))


@pytest.mark.parametrize("workers", WORKERS, ids=len)
def test_tokens_of_failed_attempts_count(project: Project, core: FakeCore, workers: tuple[str, ...]) -> None:
    """Each rollout takes two attempts, and its row only has the tokens of the second one."""
    project.task("a")
    usage = {"input_tokens": 95, "output_tokens": 5, "total_tokens": 100}

    def script(body: dict[str, Any]) -> Script:
        spoiled = [one.metadata["sample"] for one in core.sessions.values()].count(body["metadata"]["sample"]) == 0
        return Script(answer=RIGHT, usage=usage, turn_status="failed" if spoiled else "completed")

    core.script = script
    way = workers or ("--rollout-concurrency", "1")
    result = project.run_apart("tasks", *way, "--samples", "20", "--rollout-max-tokens", "1200")
    assert result.ret == 1, text_of(result)
    assert 12 <= len(core.sessions) <= 16, "what was in flight finished, and nothing else started"
    assert len(project.records) <= 10, "the tokens in the rows would not have reached it"


def test_a_rollout_without_a_session_has_no_unknown_usage(project: Project, core: FakeCore) -> None:
    project.task("a")
    core.fault = lambda request: Fault(status=400) if request.route == "create" else None
    result = project.run("tasks", "--rollout-max-tokens", "10")
    assert outcomes(result) == {"errors": 1}, text_of(result)
    assert "usage is unknown" not in text_of(result)


def test_a_resumed_run_has_the_whole_limit_again(project: Project, core: FakeCore) -> None:
    project.task("a")
    spending(core, 100)
    args = ("tasks", "--samples", "6", "--rollout-max-tokens", "300", "--rollout-concurrency", "1")
    first = project.run(*args)
    [path] = project.results
    assert len(core.sessions) == 3
    second = project.run(*args, "--rollout-resume", str(path))
    assert (first.ret, second.ret) == (1, 0), text_of(second)
    assert len(core.sessions) == 6


def test_rollouts_with_a_skip_condition_are_named_as_not_run(project: Project, core: FakeCore) -> None:
    project.task("a")
    project.task("b")
    spending(core, 100)
    project.write(
        "conftest.py",
        "import pytest\n\n"
        "def pytest_collection_modifyitems(items):\n"
        "    for item in items:\n"
        "        item.add_marker(pytest.mark.skipif(False, reason='never'))\n",
    )
    result = project.run("tasks", "--samples", "2", "--rollout-max-tokens", "100", "--rollout-concurrency", "1", "-v")
    text = text_of(result)
    assert result.ret == 1, text
    assert len(core.sessions) == 1
    assert "Traceback" not in text
    assert "not run: b default-default 0-1" in text


@pytest.mark.parametrize(
    ("args", "error"),
    [
        (("--rollout-max-time", "soon"), "--rollout-max-time: invalid duration 'soon'; use seconds, 90m or 2h"),
        (("--rollout-max-time", "0"), "invalid duration '0'"),
        (("--rollout-max-tokens", "0"), "--rollout-max-tokens: expected a positive integer, got '0'"),
    ],
)
def test_an_invalid_limit_is_a_usage_error(project: Project, args: tuple[str, ...], error: str) -> None:
    project.task("a")
    assert error in usage_error(project.run("tasks", *args))
