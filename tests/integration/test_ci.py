"""What a CI gets to see of a run: the page of a GitHub Actions job, JUnit's properties."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

import pytest

from tests.integration.conftest import RIGHT, WRONG, Project, outcomes, text_of
from tests.support.fake_core import FakeCore, Script


@pytest.fixture
def page(project: Project, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = project.write("summary.md", "of an earlier step\n")
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(path))
    return path


@pytest.mark.parametrize(
    "workers", [(), pytest.param(("-n", "2"), marks=pytest.mark.slow)], ids=["one-process", "workers"]
)
def test_the_report_is_appended_once_to_the_page_of_a_github_job(
    project: Project, page: Path, workers: tuple[str, ...]
) -> None:
    project.task()
    args = ("--samples", "2", "--rollout-gate", "mean>=0.5", "--rollout-report", "report.md", *workers)
    assert project.run("tasks", *args).ret == 0
    report = (project.path / "report.md").read_text()
    assert page.read_text() == "of an earlier step\n" + report
    assert report.count("gate mean") == 1


def test_the_page_is_written_without_an_option_for_a_report(project: Project, page: Path, core: FakeCore) -> None:
    core.script = lambda body: Script(answer=WRONG)
    project.task()
    assert project.run("tasks").ret == 1
    assert " 0.000 |" in page.read_text()


def test_the_page_is_unchanged_if_no_rollout_ran(project: Project, page: Path) -> None:
    project.task()
    project.unit_tests()
    assert outcomes(project.run("tests")) == {"passed": 2}
    project.run("tasks", "--collect-only")
    assert page.read_text() == "of an earlier step\n"


def test_a_page_that_can_not_be_written_fails_the_run_and_loses_no_row(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(project.path / "missing" / "summary.md"))
    project.task()
    result = project.run("tasks", "--rollout-report", "report.md")
    assert result.ret == 1
    assert f"GITHUB_STEP_SUMMARY: {project.path}/missing/summary.md: No such file or directory" in result.outlines
    assert "Traceback" not in text_of(result)
    assert len(project.records) == 1
    assert (project.path / "report.md").exists()


@pytest.mark.parametrize("workers", [(), ("-n", "2")], ids=["one-process", "workers"])
def test_junit_has_the_properties_of_each_rollout(project: Project, core: FakeCore, workers: tuple[str, ...]) -> None:
    usage = {"input_tokens": 100, "output_tokens": 20, "total_tokens": 120}
    answers = {"0": Script(answer=RIGHT, usage=usage), "1": Script(answer=WRONG), "2": Script(turn_status="failed")}
    core.script = lambda body: answers[body["metadata"]["sample"]]
    project.task()
    project.run("tasks", "--samples", "3", "--rollout-retries", "0", "--junitxml", "junit.xml", *workers)
    found = {}
    for case in ElementTree.parse(project.path / "junit.xml").iter("testcase"):
        properties = {one.attrib["name"]: one.attrib["value"] for one in case.iter("property")}
        found[case.attrib["name"].rpartition("-")[2]] = properties
    sessions = {record["sample"]: record["session_id"] for record in project.records}
    assert {properties.pop("session_id") for properties in found.values()} == set(sessions.values())
    assert found["0"] == {"status": "completed", "reward": "1.0", "solved": "True", "tokens": "120"}
    assert found["1"]["reward"] == "0.0"
    assert (found["2"]["status"], found["2"]["reward"]) == ("failed", "None")


def test_the_output_ends_with_the_table_and_the_paths(project: Project, core: FakeCore) -> None:
    core.script = lambda body: Script(answer=WRONG)
    project.task()
    lines = project.run("tasks", "--samples", "2", "-rA", "--rollout-report", "report.md").outlines
    table = next(at for at, line in enumerate(lines) if "= rollouts =" in line)
    assert sum("short summary of rollouts" in line for line in lines[:table]) == 1
    assert not any("FAILED" in line for line in lines[table:])
    assert lines[-3] == "report.md"
    assert lines[-2].startswith("runs/")
