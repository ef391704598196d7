"""A project next to the system's programs, which sandboxes show: its tasks and results are hidden wherever they are.

Each solution looks at everything below one folder of /usr/share, and answers with the files that it can read.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.integration.conftest import Project, outcomes, text_of

pytestmark = [
    pytest.mark.usefixtures("no_core"),
    pytest.mark.skipif(os.geteuid() != 0, reason="only root can write below /usr"),
]

LIST = """
import json, os, sys
found = []
for folder, _, files in os.walk(sys.argv[1]):
    for name in files:
        try:
            open(os.path.join(folder, name), "rb").read()
        except OSError:
            continue
        if os.path.getsize(os.path.join(folder, name)):
            found.append(os.path.relpath(os.path.join(folder, name), sys.argv[1]))
print(json.dumps({"found": sorted(found)}))
"""
GRADER = """
import json, subprocess, sys
CODE = '''
import sys
from pytest_core_rollouts.grading.sandbox import run_in_sandbox
print(run_in_sandbox(["python3", "list.py", sys.argv[1]], {"list.py": sys.argv[2].encode()}).output.decode())
'''
def grade(task, answer):
    done = subprocess.run([sys.executable, "-c", CODE, BASE, LIST], cwd=OTHER, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return float(json.loads(done.stdout) == answer.value == {"found": ["shown.txt"]})
"""


@pytest.fixture
def base() -> Iterator[Path]:
    """project/: tasks/plain, tasks/linked (a link to elsewhere/linked), and an ini file in ci/."""
    base = Path("/usr/share", f"rollouts-{uuid.uuid4().hex}")
    try:
        (base / "project" / "ci").mkdir(parents=True)
        (base / "project" / "ci" / "pytest.ini").write_text("[pytest]\n")
        (base / "shown.txt").write_text("not hidden: nothing says that it belongs to the project")
        for path in ("project/tasks/plain", "elsewhere/linked"):
            (base / path / "solution").mkdir(parents=True)
            (base / path / "instruction.md").write_text(
                "Write {found: [path, ...]} to /workspace/outputs/answer.json.\n"
            )
            (base / path / "expected.json").write_text('{"found": ["shown.txt"]}')
            script = f"mkdir -p outputs; python3 - {base} > outputs/answer.json <<'END'\n{LIST}\nEND\n"
            (base / path / "solution" / "solve.sh").write_text(script)
        (base / "project" / "tasks" / "linked").symlink_to(base / "elsewhere" / "linked")
        yield base
    finally:
        shutil.rmtree(base)


def rows(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text().splitlines()]


@pytest.mark.slow
def test_no_sandbox_shows_tasks_results_or_baselines_wherever_they_are(
    project: Project, base: Path, tmp_path: Path
) -> None:
    """The root directory is ci/, and the working directory is somewhere else: only the arguments name the tasks."""
    (base / "results").mkdir()
    (base / "results" / "other.jsonl").write_text("rows of somebody else's run")
    other = tmp_path / "other"
    other.mkdir()
    grader = f"BASE, LIST, OTHER = {str(base)!r}, {LIST!r}, {str(other)!r}\n{GRADER}"
    (base / "elsewhere" / "linked" / "grader.py").write_text(grader)
    tasks = [str(base / "project" / "tasks" / name) for name in ("plain", "linked")]
    common = ["-c", str(base / "project" / "ci" / "pytest.ini"), *tasks, "--core", "embedded", "--samples", "2"]
    first = base / "results" / "first.jsonl"
    result = project.run_apart(*common, "--rollout-concurrency", "1", "--rollout-out", str(first))
    assert outcomes(result) == {"passed": 4}, text_of(result)  # the later ones could read the rows of the first
    assert [row["answer"] for row in rows(first)] == [{"found": ["shown.txt"]}] * 4

    second = base / "new" / "folder" / "second.jsonl"
    options = ["--rollout-baseline", str(first), "--rollout-html", str(base / "new" / "report.html"), "-n", "2"]
    result = project.run_apart(*common, "--rollout-out", str(second), *options)
    assert outcomes(result) == {"passed": 4}, text_of(result)
    assert [row["answer"] for row in rows(second)] == [{"found": ["shown.txt"]}] * 4


@pytest.mark.slow
def test_check_and_replay_hide_the_same_paths(project: Project, base: Path, tmp_path: Path) -> None:
    (base / "project" / "ci" / "pytest.ini").rename(base / "project" / "pytest.ini")
    command = [sys.executable, "-m", "pytest_core_rollouts", "check", "--core", "embedded"]
    done = subprocess.run(command, cwd=base / "project", capture_output=True, text=True, timeout=120)
    assert "2 tasks checked: 0 errors" in done.stderr, done.stdout + done.stderr

    out = tmp_path / "rows.jsonl"
    arguments = ["-c", str(base / "project" / "pytest.ini"), str(base / "project" / "tasks" / "linked")]
    result = project.run_apart(*arguments, "--core", "embedded", "--rollout-out", str(out))
    assert outcomes(result) == {"passed": 1}, text_of(result)
    grader = f"BASE, LIST, OTHER = {str(base)!r}, {LIST!r}, {str(tmp_path)!r}\n{GRADER}"
    (base / "elsewhere" / "linked" / "grader.py").write_text(grader)
    result = project.run_apart(*arguments, "--rollout-replay", str(out))
    assert outcomes(result) == {"passed": 1}, text_of(result)


def test_conftest_and_ini_files_outside_the_rootdir_are_hidden(project: Project, base: Path, tmp_path: Path) -> None:
    """The tasks folder is a link next to them, so that what is around a task is somewhere else."""
    (base / "elsewhere" / "tasks").mkdir()
    (base / "project" / "tasks" / "plain").rename(base / "elsewhere" / "tasks" / "plain")
    shutil.rmtree(base / "project" / "tasks")
    (base / "project" / "tasks").symlink_to(base / "elsewhere" / "tasks")
    shutil.rmtree(base / "elsewhere" / "linked")
    ini = (base / "project" / "ci" / "pytest.ini").rename(base / "project" / "pytest.ini")
    ini.write_text("[pytest]\n")
    (base / "project" / "conftest.py").write_text("ANSWERS = 1\n")
    out = tmp_path / "rows.jsonl"
    arguments = ["-c", str(ini), "--rootdir", str(tmp_path), str(base / "project" / "tasks" / "plain")]
    result = project.run_apart(*arguments, "--core", "embedded", "--rollout-out", str(out))
    assert [row["answer"] for row in rows(out)] == [{"found": ["shown.txt"]}], text_of(result)
