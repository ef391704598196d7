"""`--rollout-html`, and the verb `report --html`."""

from __future__ import annotations

import base64
import json
import re
import subprocess
import sys
import zlib
from pathlib import Path
from typing import Any

import pytest

from tests.integration.conftest import RIGHT, WRONG, Project, outcomes, text_of
from tests.support.fake_core import FakeCore, Script


def index(path: Path) -> dict[str, Any]:
    """What a report holds of every rollout."""
    [packed] = re.findall(r'<script type="text/plain" id="index">([^<]*)</script>', path.read_text())
    return dict(json.loads(zlib.decompress(base64.b64decode(packed))))


def details(path: Path) -> list[dict[str, Any]]:
    packed = re.findall(r"data-count=\"\d+\">([^<]*)</script>", path.read_text())
    return [detail for piece in packed for detail in json.loads(zlib.decompress(base64.b64decode(piece)))]


@pytest.mark.parametrize(
    "workers", [(), pytest.param(("-n", "2"), marks=pytest.mark.slow)], ids=["one-process", "workers"]
)
def test_a_run_writes_the_report_and_prints_its_size(project: Project, workers: tuple[str, ...]) -> None:
    project.task()
    result = project.run("tasks", "--samples", "2", "--rollout-html", "there/report.html", *workers)
    assert outcomes(result) == {"passed": 2}
    assert index(project.path / "there/report.html")["rollouts"]["reward"] == [1, 1]
    [line] = [line for line in result.outlines if line.startswith("there/report.html")]
    assert re.fullmatch(r"there/report\.html \(\d+\.\d kB, 2 rollouts\)", line)


def test_the_report_covers_this_run_and_compares_it_with_the_baseline(project: Project, core: FakeCore) -> None:
    project.task()
    core.script = lambda body: Script(answer=RIGHT)
    project.run("tasks", "--rollout-out", "all.jsonl")
    core.script = lambda body: Script(answer=WRONG)
    args = ("tasks", "--rollout-out", "all.jsonl", "--rollout-baseline", "all.jsonl", "--rollout-html", "r.html")
    (project.path / "prices.yaml").write_text("default: {input: 1, output: 2}\n")
    project.run(*args, "--rollout-gate", "mean>=0.6", "--rollout-prices", "prices.yaml")
    held = index(project.path / "r.html")
    [gate] = held["gates"]
    assert (gate["gate"], gate["verdict"]) == ("mean>=0.6", "failed")
    assert held["cost"] == "unknown"  # no usage: it is not taken for 0
    [cause] = held["causes"]
    assert cause["text"].startswith("wrong ")
    assert "<title>tasks</title>" in (project.path / "r.html").read_text()
    assert held["rollouts"]["reward"] == [0]
    assert [agent["change"]["text"] for agent in held["baseline"]["agents"]] == ["-1.000"]


def test_expected_values_are_hidden_and_items_are_limited(project: Project, core: FakeCore) -> None:
    project.task()
    items = [{"type": "message", "id": f"i{at}", "role": "assistant", "content": []} for at in range(9)]
    core.script = lambda body: Script(answer=WRONG, items=items)
    html = ("--rollout-html", "r.html", "--rollout-html-items", "3")
    project.run("tasks", "--rollout-hide-expected", *html)
    [detail] = details(project.path / "r.html")
    assert len(detail["items"]) == 3
    assert detail["reasons"]
    assert not any("expected" in reason for reason in detail["reasons"])


def test_a_report_that_can_not_be_written_fails_the_run_and_loses_no_row(project: Project) -> None:
    project.task()
    project.write("file", "")
    result = project.run("tasks", "--rollout-html", "file/r.html")
    assert "--rollout-html: " in text_of(result)
    assert "Traceback" not in text_of(result)
    assert result.ret == 1
    assert len(project.records) == 1


@pytest.mark.parametrize(
    ("args", "problem"),
    [
        (("--rollout-html", "."), " is a folder; add a file name"),
        (("--rollout-html", "r.html", "--rollout-html-items", "0"), "expected a positive integer, got '0'"),
    ],
)
def test_usage_errors_come_before_any_request(
    project: Project, core: FakeCore, args: tuple[str, ...], problem: str
) -> None:
    project.task()
    result = project.run("tasks", *args)
    assert result.ret == 4
    assert problem in text_of(result)
    assert core.requests == []


def report(project: Project, *args: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pytest_core_rollouts", "report", *args]
    return subprocess.run(command, cwd=project.path, capture_output=True, text=True, timeout=60, check=False)


def test_the_verb_report_writes_the_same_file_with_another_title(project: Project) -> None:
    project.task()
    project.run("tasks", "--rollout-out", "rows.jsonl", "--rollout-html", "run.html")
    done = report(project, "rows.jsonl", "--html", "verb.html")
    assert done.returncode == 0, done.stderr
    assert re.fullmatch(r"verb\.html \(\d+\.\d kB, 1 rollout\)\n", done.stderr)
    assert "| sum " in done.stdout
    run, verb = ((project.path / name).read_text() for name in ("run.html", "verb.html"))
    title = re.compile(r"(?<=<title>)[^<]*(?=</title>)|(?<=id=\"brand\">)[^<]*(?=</a>)")
    assert title.sub("", verb) == title.sub("", run)
    assert title.findall(run) == ["tasks", "tasks"]  # a file of rows does not say where the tasks were


def test_the_verb_report_prints_errors_in_one_line(project: Project) -> None:
    project.task()
    project.run("tasks", "--rollout-out", "rows.jsonl")
    done = report(project, "rows.jsonl", "--html", ".")
    assert (done.returncode, done.stderr) == (4, "ERROR: --html: .: is a folder; add a file name\n")
    done = report(project, "rows.jsonl", "--html", "r.html", "--html-items", "-1")
    assert done.returncode == 4
    assert "expected a positive integer, got '-1'" in done.stderr
