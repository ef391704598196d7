"""Command line > task.yaml > ini file > default; each value is seen where it takes effect."""

from __future__ import annotations

from typing import Any

import pytest

from tests.integration.conftest import Project, outcomes
from tests.support.fake_core import FakeCore

YAML = "timeout: 31\nsamples: 3\nnetwork: enabled\n"
INI = ("rollout_timeout = 32", "rollout_samples = 2", "rollout_network = {allowed}")

CASES = [
    # (on the command line, task.yaml, ini) -> seconds, samples, network access
    ((True, True, True), (30.5, 4, "disabled")),
    ((True, False, True), (30.5, 4, "disabled")),
    ((False, True, True), (31.0, 3, "enabled")),
    ((False, False, True), (32.0, 2, "enabled")),
    ((False, False, False), (900.0, 1, "disabled")),
]


@pytest.mark.parametrize(("places", "expected"), CASES)
def test_the_command_line_wins_over_task_yaml_then_ini_then_default(
    project: Project, core: FakeCore, places: tuple[bool, bool, bool], expected: tuple[float, int, str]
) -> None:
    line, yaml, ini = places
    project.task(yaml=YAML if yaml else None)
    project.ini(*(("rollout_timeout = 32", "rollout_samples = 2", "rollout_network = enabled") if ini else ()))
    args = ("--rollout-timeout", "30.5", "--samples", "4", "--rollout-network", "disabled") if line else ()
    timeout, samples, access = expected
    assert outcomes(project.run("tasks", *args)) == {"passed": samples}
    networks: list[Any] = [session.body["environment"]["network"] for session in core.sessions.values()]
    assert networks == [{"access": access}] * samples
    assert {record["settings"]["timeout"] for record in project.records} == {timeout}


def test_allowed_domains_of_a_task_are_sent(project: Project, core: FakeCore) -> None:
    project.task(yaml="network: {allowed_domains: [data.example.com]}")
    project.run("tasks")
    (session,) = core.sessions.values()
    assert session.body["environment"]["network"] == {"access": "restricted", "allowed_domains": ["data.example.com"]}


def test_the_ini_file_can_set_lists_and_flags(project: Project, core: FakeCore) -> None:
    project.task()
    project.ini(
        "rollout_harness = codex claude_sdk",
        'rollout_model = "my model"',
        "rollout_label = team=a lane=b",
        "rollout_hide_expected = true",
        "rollout_out = there/rows.jsonl",
    )
    assert outcomes(project.run("tasks")) == {"passed": 2}
    asked = {
        (session.body["agent"]["x_agents_core"]["harness"], session.body["agent"]["model"])
        for session in core.sessions.values()
    }
    assert asked == {("codex", "my model"), ("claude_sdk", "my model")}
    assert {session.metadata["label.team"] for session in core.sessions.values()} == {"a"}
    assert (project.path / "there/rows.jsonl").read_bytes().count(b"\n") == 2


def test_a_list_on_the_command_line_replaces_the_ini_files(project: Project, core: FakeCore) -> None:
    project.task()
    project.ini("rollout_harness = codex claude_sdk")
    project.run("tasks", "--harness", "mcode")
    assert [session.body["agent"]["x_agents_core"]["harness"] for session in core.sessions.values()] == ["mcode"]


@pytest.mark.slow
def test_paths_in_the_ini_file_are_relative_to_the_rootdir(project: Project) -> None:
    project.task()
    project.write("agents/one.yaml", "harness: codex")
    project.ini("rollout_agent = agents/one.yaml", "rollout_report = table.md")
    (project.path / "sub").mkdir()
    assert outcomes(project.run_apart("../tasks", cwd=project.path / "sub")) == {"passed": 1}
    assert "one" in (project.path / "table.md").read_text()
    result = project.run_apart(
        "../tasks", "--rollout-agent", "../agents/one.yaml", "--rollout-report", "here.md", cwd=project.path / "sub"
    )
    assert outcomes(result) == {"passed": 1}
    assert (project.path / "sub/here.md").exists()
