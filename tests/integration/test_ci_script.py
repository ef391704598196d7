"""A job of a CI, as a shell script: it goes by exit codes, and runs what an undecided run prints, as it stands."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.integration.conftest import RIGHT, WRONG, Project
from tests.support.fake_core import FakeCore, Script

pytestmark = pytest.mark.slow

JOB = r"""
set -euo pipefail

try() {  # NAME COMMAND...: keeps its output in NAME.txt, and prints its exit code
    name=$1 code=0
    shift
    "$@" >"$name.txt" 2>&1 || code=$?
    echo "$name $code"
}

try main        pytest tasks/a tasks/b --samples 2 --rollout-gate 'pass@2>=0.5' --rollout-out main.jsonl
try low         pytest tasks/a tasks/b --samples 2 --rollout-gate 'pass@2>=0.6'
try each        pytest tasks/a tasks/b
try no-worse    pytest tasks/a tasks/b --samples 2 --rollout-gate baseline --rollout-baseline main.jsonl \
                    --rollout-out no-worse.jsonl
try lost        pytest tasks/a tasks/b --rollout-gate 'lost<=0' --rollout-baseline main.jsonl \
                    --rollout-label worse=yes
try undecided   pytest tasks/shy --samples 2 --rollout-gate 'mean>=0.8' --rollout-retries 0 \
                    --rollout-allow-errors 50% --rollout-out 'a file.jsonl'
try finished    bash -c "$(sed -n 's/^to finish: //p' undecided.txt)"
try again       env -u OPENAI_BASE_URL -u OPENAI_API_KEY bash -c "$(sed -n 's/^to finish: //p' undecided.txt)"
try judged      pytest tasks/a tasks/b --samples 2 --rollout-gate 'pass@2>=0.6' --rollout-resume main.jsonl
try no-key      env OPENAI_API_KEY=wrong pytest tasks --rollout-gate none
try no-gate     pytest tasks --rollout-gate 'mean>0.8'
try few-samples pytest tasks --samples 2 --rollout-gate 'pass@4>=0.5'
try no-tasks    pytest tasks -k nothing --rollout-gate 'mean>=0'
try unit-test   pytest tasks/a tests --rollout-gate 'mean>=0'

try report      python -m pytest_core_rollouts report main.jsonl --gate 'pass@2>=0.5'
try report-low  python -m pytest_core_rollouts report main.jsonl --gate 'pass@2>=0.6'
try report-none python -m pytest_core_rollouts report main.jsonl --gate 'pass@2>0.6'
try compare     python -m pytest_core_rollouts compare main.jsonl no-worse.jsonl
try no-common   python -m pytest_core_rollouts compare main.jsonl 'a file.jsonl'
"""
CODES = {
    "main": 0,
    "low": 1,
    "each": 1,
    "no-worse": 0,
    "lost": 1,
    "undecided": 1,
    "finished": 0,
    "again": 0,
    "judged": 1,
    "no-key": 2,
    "no-gate": 4,
    "few-samples": 4,
    "no-tasks": 5,
    "unit-test": 1,
    "report": 0,
    "report-low": 1,
    "report-none": 4,
    "compare": 0,
    "no-common": 2,
}
VERDICTS = {
    "main": "gate pass@2>=0.5: passed: 0.500 >= 0.5",  # a always solved, b never
    "low": "gate pass@2>=0.6: failed: 0.500 < 0.6",
    "no-worse": (
        "gate baseline: passed: mean reward 0.500 -> 0.500 over 2 tasks, no significant drop (p = 1, one-sided)"
    ),
    "lost": "gate lost<=0: failed: 1 lost that the baseline always solves: a",
    "undecided": (
        "gate mean>=0.8: undecided: 0.500 to 1.000, as those turn out that have no reward (1 without a reward)"
    ),
    "finished": "gate mean>=0.8: passed: 1.000 >= 0.8",
    "again": "gate mean>=0.8: passed: 1.000 >= 0.8",  # nothing was left to run
    "judged": "gate pass@2>=0.6: failed: 0.500 < 0.6",
    "unit-test": "gate mean>=0: passed: 1.000 >= 0",
}


def test_a_shell_script_of_a_ci_job_can_rely_on_exit_codes(project: Project, core: FakeCore) -> None:
    for name in ("a", "b", "shy"):
        project.task(name)
    project.write("tests/test_unit.py", "def test_one():\n    assert False\n")
    shy = [Script(turn_status="failed", error={"code": "internal_error", "message": "not now"})]

    def script(body: dict[str, object]) -> Script:
        task = re.search(r"Do (\w+)\.", repr(body))
        assert task is not None
        if task[1] == "shy" and shy:
            return shy.pop()
        return Script(answer=RIGHT if task[1] != "b" and "worse" not in repr(body) else WRONG)

    core.script = script
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    job = project.write("job.sh", JOB)
    done = subprocess.run(
        ["bash", job], cwd=project.path, env={**os.environ, "PATH": path}, capture_output=True, text=True, check=False
    )
    codes = dict(line.split() for line in done.stdout.splitlines())
    assert {name: int(code) for name, code in codes.items()} == CODES, done.stderr
    outputs = {name: (project.path / f"{name}.txt").read_text() for name in CODES}
    for name, verdict in VERDICTS.items():
        assert verdict in outputs[name].splitlines()
    for name in ("no-gate", "few-samples", "report-none", "no-common"):
        assert sum(line.startswith("ERROR: ") for line in outputs[name].splitlines()) == 1, outputs[name]
    assert "Traceback" not in "".join(outputs.values())
