"""A run on OpenAI's own service, as a user starts it: what is sent, and what rows say."""

from __future__ import annotations

import functools
import json
import re
import signal
from collections.abc import Iterator

import pytest

from pytest_core_rollouts.cli import main
from tests.integration.conftest import RIGHT, Project, outcomes, text_of, usage_error
from tests.support.fake_core import FakeCore, Fault, Script
from tests.support.running import Running, descendants, kill, rows, until

RUN = ("tasks", "--core", "openai", "--model", "gpt-6-astra")


@pytest.fixture
def core() -> Iterator[FakeCore]:
    """OpenAI's service: each create makes a Session, and in the end none is left."""
    with FakeCore(script=lambda body: Script(answer=RIGHT), official=True) as running:
        yield running
        assert not [session.id for session in running.sessions.values() if not session.deleted]


def test_a_run_sends_what_the_service_takes(project: Project, core: FakeCore) -> None:
    project.task("a", yaml="packages: {python: [rich]}\nsetup_commands: [make]\n", files={"in.txt": "1"})
    project.task("b")
    project.write("careful.yaml", "model: gpt-6-nova\nreasoning: high\nservice_tier: flex\ncontainer_size: large\n")
    result = project.run(
        *RUN, "--harness", "codex", "--rollout-agent", "careful.yaml", "--rollout-container-size=small"
    )
    assert outcomes(result) == {"passed": 4}, text_of(result)
    assert {row["harness"] for row in project.records} == {"codex"}
    bodies = [json.dumps(session.body) for session in core.sessions.values()]
    assert not any("x_agents_core" in body for body in bodies)
    sizes = {
        session.body["agent"]["model"]: session.body["environment"]["container_size"]
        for session in core.sessions.values()
    }
    assert sizes == {"gpt-6-astra": "small", "gpt-6-nova": "large"}
    assert {row["model"]: row["settings"]["container_size"] for row in project.records} == sizes
    assert len({row["agent"]["digest"] for row in project.records}) == 2


def test_a_key_is_not_enough_to_run_on_the_service(
    project: Project, core: FakeCore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OPENAI_BASE_URL")
    project.task()
    assert usage_error(project.run("tasks", "--model", "gpt-6-astra")).startswith("no Core configured")


def test_an_agent_that_searches_the_web_is_not_sealed(project: Project, core: FakeCore) -> None:
    project.task("a")
    project.task("b")
    project.task("open", yaml="network: enabled\n")
    project.write("search.yaml", "model: gpt-6-astra\ntools: [{type: web_search}]\n")
    warning = (
        "warning: agent search: its tool web_search reaches the web although the network is disabled (2 tasks); "
        "remove it, or enable the network"
    )
    result = project.run(*RUN, "--rollout-agent", "search.yaml")
    assert [line for line in result.outlines if line.startswith("warning: ")] == [warning], text_of(result)
    assert "warning: " not in text_of(project.run(*RUN))
    assert "warning: " not in text_of(project.run(*RUN, "--rollout-agent", "search.yaml", "-k", "open"))


def test_tokens_that_are_reported_late_count(project: Project, core: FakeCore) -> None:
    project.task()
    core.script = lambda body: Script(answer=RIGHT, usage_late=1)
    cap = ("--rollout-max-tokens", "1500", "--rollout-concurrency", "1", "--samples", "9")
    result = project.run(*RUN, *cap)
    assert "--rollout-max-tokens 1500 is reached: " in text_of(result)
    assert len(project.records) < 9
    assert {row["usage"]["total_tokens"] for row in project.records} == {1000}
    assert "usage is unknown" not in text_of(result)


def test_the_command_that_deletes_leftovers_names_a_core_that_the_environment_does_not(
    project: Project, core: FakeCore, monkeypatch: pytest.MonkeyPatch
) -> None:
    project.task()
    core.fault = lambda request: Fault(status=403) if request.route == "delete" else None
    [line] = [line for line in project.run(*RUN).outlines if line.startswith("to delete them: ")]
    assert re.fullmatch(r"to delete them: python -m pytest_core_rollouts reap \S+", line)
    monkeypatch.delenv("OPENAI_BASE_URL")
    elsewhere = project.run("tasks", "--core", core.base_url, "--model", "gpt-6-astra")
    [line] = [line for line in elsewhere.outlines if line.startswith("to delete them: ")]
    assert line.endswith(f" --core {core.base_url}")
    core.fault = lambda request: None
    assert main(["reap", project.records[0]["run_id"], "--core", core.base_url]) == 0
    assert main(["reap", project.records[1]["run_id"], "--core", core.base_url]) == 0


def has_rows(project: Project, count: int) -> bool:
    return sum(path.read_bytes().count(b"\n") for path in project.results) >= count


def hang_once(core: FakeCore) -> None:
    """The first create takes effect and is never answered; the list shows its Session only on the second look."""
    core.unlisted = 1
    core.fault = lambda request: (
        Fault(processed=True, hang=True) if request.route == "create" and request.nth == 1 else None
    )


@pytest.mark.slow
@pytest.mark.parametrize("workers", [("-n", "1"), ("-n", "1", "--rollout-concurrency", "2")], ids=len)
def test_a_worker_that_dies_before_its_create_is_answered_costs_no_second_session(
    project: Project, core: FakeCore, workers: tuple[str, ...]
) -> None:
    project.task()
    hang_once(core)
    with Running(project, *RUN, *workers) as running:
        until(lambda: core.sessions, "a Session")
        kill(running.workers[0])
        ended = running.end()
    assert ended.code == 0, ended.text
    assert [row["session_id"] for row in rows(project)] == list(core.sessions)
    assert core.counts["create"] == 1


@pytest.mark.slow
def test_a_run_that_is_killed_before_its_create_is_answered_resumes_with_that_session(
    project: Project, core: FakeCore
) -> None:
    project.task()
    hang_once(core)
    with Running(project, *RUN) as running:
        until(lambda: core.sessions, "a Session")
        for pid in [running.pid, *descendants(running.pid)]:
            kill(pid)
        running.process.wait()
    [path] = project.results
    result = project.run_apart(*RUN, "--rollout-resume", str(path))
    assert outcomes(result) == {"passed": 1}, text_of(result)
    assert [row["session_id"] for row in rows(project)] == list(core.sessions)
    assert core.counts["create"] == 1


@pytest.mark.slow
def test_an_interrupt_before_a_create_is_answered_leaves_no_session(project: Project, core: FakeCore) -> None:
    project.task()
    core.script = lambda body: Script(never_ends=True)
    hang_once(core)
    with Running(project, *RUN) as running:
        until(lambda: core.sessions, "a Session")
        running.signal(signal.SIGINT)
        ended = running.end()
    assert ended.code == 2, ended.text
    assert [session.deleted for session in core.sessions.values()] == [True], ended.text


@pytest.mark.slow
def test_a_named_run_that_lost_its_rows_adopts_its_session(project: Project, core: FakeCore) -> None:
    project.task()
    hang_once(core)
    named = (*RUN, "--rollout-run", "nightly-7")
    with Running(project, *named) as running:
        until(lambda: core.sessions, "a Session")
        kill(running.pid)
        running.process.wait()
    for path in project.results:
        path.unlink()
    result = project.run_apart(*named)
    assert outcomes(result) == {"passed": 1}, text_of(result)
    assert core.counts["create"] == 1


@pytest.mark.slow
@pytest.mark.parametrize("options", [(), ("-n", "2")], ids=len)
def test_a_run_that_is_killed_twice_pays_for_each_rollout_once(
    project: Project, core: FakeCore, options: tuple[str, ...]
) -> None:
    """Every third create loses its answer."""
    project.task()
    core.script = lambda body: Script(answer=RIGHT, turn_seconds=0.4)
    core.fault = lambda request: (
        Fault(processed=request.nth % 2 == 0, reset=True)
        if request.route == "create" and request.nth % 3 == 0
        else None
    )
    run = (*RUN, "--samples", "8", *(options or ("--rollout-concurrency", "2")))
    resume: tuple[str, ...] = ()
    for enough in (2, 4):
        with Running(project, *run, *resume) as running:
            until(functools.partial(has_rows, project, enough), f"{enough} rows")
            for pid in [running.pid, *descendants(running.pid)]:
                kill(pid)
            running.process.wait()
        resume = ("--rollout-resume", str(project.results[0]))
    result = project.run_apart(*run, *resume)
    assert outcomes(result) == {"passed": 8}, text_of(result)
    assert len(rows(project)) == 8
    assert len(core.sessions) == 8
