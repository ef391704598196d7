"""Where rows, table, JUnit's XML and durations go."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree
from datetime import datetime, timedelta, timezone

import pytest

from tests.integration.conftest import RIGHT, WRONG, Project, outcomes, text_of
from tests.support.fake_core import FakeCore, Script


@pytest.mark.parametrize("workers", [(), ("-n", "2")], ids=["one-process", "workers"])
def test_each_run_writes_its_own_jsonl(project: Project, workers: tuple[str, ...]) -> None:
    project.task()
    for _ in range(2):
        result = project.run("tasks", "--samples", "3", *workers)
        assert outcomes(result) == {"passed": 3}
    assert len(project.results) == 2
    for path in project.results:
        assert re.fullmatch(r"\d{8}T\d{6}Z-[0-9a-f]{4}", path.stem)
        assert path.read_bytes().count(b"\n") == 3
    assert {record["run_id"] for record in project.records} == {path.stem for path in project.results}
    assert len({record["rollout_id"] for record in project.records}) == 6
    assert {path.name for path in project.path.iterdir()} <= {"tasks", "runs", ".pytest_cache"}
    (last,) = (path for path in project.results if path.name in text_of(result))
    shown = [line for line in result.outlines if last.name in line]
    assert shown[0] == f"rollouts: run {last.stem}, results in runs/{last.name}"
    assert shown[-1] == f"runs/{last.name}"


@pytest.mark.parametrize("zone", ["Asia/Kolkata", "<-11>11"])
def test_times_are_utc_in_every_time_zone(project: Project, zone: str) -> None:
    project.task()
    before = datetime.now(timezone.utc) - timedelta(seconds=1)
    project.run_apart("tasks", env={"TZ": zone})
    [row] = project.records
    assert row["started_at"].endswith("+00:00")
    assert before < datetime.fromisoformat(row["started_at"]) < datetime.now(timezone.utc)
    named = datetime.strptime(row["run_id"][:16], "%Y%m%dT%H%M%SZ").replace(tzinfo=timezone.utc)
    assert before - timedelta(seconds=1) < named < datetime.now(timezone.utc)


def test_rows_are_appended_and_the_table_only_covers_this_run(project: Project, core: FakeCore) -> None:
    project.task()
    out = project.path / "there/rows.jsonl"
    args = ("tasks", "--rollout-out", str(out), "--rollout-report", "table.md")
    core.script = lambda body: Script(answer=WRONG)
    project.run(*args, "--samples", "3")
    first = out.read_bytes()
    core.script = lambda body: Script(answer=RIGHT)
    result = project.run(*args)
    assert out.read_bytes().startswith(first)
    assert out.read_bytes().count(b"\n") == 4
    assert "1 rollout: 1 task, 1 sample each" in result.outlines
    table = (project.path / "table.md").read_text()
    assert "| sum " in table
    assert "1/1" in table
    assert "0/3" not in table
    assert not (project.path / "runs").exists()


def test_a_report_that_can_not_be_written_loses_no_row(project: Project) -> None:
    project.task()
    project.write("file", "")
    result = project.run("tasks", "--rollout-report", "file/table.md")
    assert "--rollout-report: " in text_of(result)
    assert "Traceback" not in text_of(result)
    assert len(project.records) == 1


@pytest.mark.parametrize(
    "workers", [(), pytest.param(("-n", "2"), marks=pytest.mark.slow)], ids=["one-process", "workers"]
)
def test_junit_shows_the_outcome_and_duration_of_each_rollout(
    project: Project, core: FakeCore, workers: tuple[str, ...]
) -> None:
    project.task("right")
    project.task("wrong")
    project.task("broken")
    scripts = {
        "right": Script(turn_seconds=0.4, answer=RIGHT),
        "wrong": Script(turn_seconds=0.4, answer=WRONG),
        "broken": Script(turn_seconds=0.4, turn_status="failed", error={"code": "internal_error", "message": "no"}),
    }
    core.script = lambda body: scripts[body["metadata"]["task"]]
    result = project.run(
        "tasks", "--rollout-retries", "0", "--junit-xml", "junit.xml", "--durations=0", "-vv", *workers
    )
    assert outcomes(result) == {"passed": 1, "failed": 1, "errors": 1}
    rows = {row["task"]: row for row in project.records}
    cases = ElementTree.parse(project.path / "junit.xml").findall(".//testcase")
    assert len(cases) == 3
    for case in cases:
        task = str(case.get("classname")).split(".")[1]
        row = rows[task]
        assert float(str(case.get("time"))) == pytest.approx(row["duration_s"], abs=0.02)
        properties = {item.get("name"): item.get("value") for item in case.iter("property")}
        expected = {"status": row["status"], "reward": str(row["reward"]), "session_id": row["session_id"]}
        assert expected.items() <= properties.items()
        kinds = {child.tag for child in case} - {"properties"}
        assert kinds == {"right": set(), "wrong": {"failure"}, "broken": {"error"}}[task]
    durations = [line for line in result.outlines if re.match(r"[0-9.]+s (setup|call|teardown) +tasks/", line)]
    slow = sorted(line.split()[1] for line in durations if float(line.split("s")[0]) > 0.3)
    assert slow == ["call", "call", "setup"]
