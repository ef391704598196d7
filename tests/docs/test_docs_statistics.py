"""The report in docs/statistics.md is what a run of two agents on four tasks prints."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.docs.test_docs import missing_lines
from tests.support.fake_core import FakeCore, Script

TEXT = (Path(__file__).parents[2] / "docs" / "statistics.md").read_text(encoding="utf-8")
SOLVED = {
    "codex": {"dedupe": 4, "joins": 4, "report": 3, "trace": 0},
    "claude_sdk": {"dedupe": 4, "joins": 2, "report": 1, "trace": 0},
}
"""How many of four samples each agent solves."""


def answer(body: Mapping[str, Any]) -> Script:
    metadata = body["metadata"]
    [task] = [task for task in SOLVED["codex"] if f".{task}." in metadata["rollout_id"]]
    [harness] = [harness for harness in SOLVED if f".{harness}-" in metadata["rollout_id"]]
    solves = int(metadata["sample"]) < SOLVED[harness][task]
    return Script(answer=b'{"total": 7}' if solves else b'{"total": 8}')


@pytest.mark.slow
def test_first_report_is_what_a_run_prints(tmp_path: Path) -> None:
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    for task in SOLVED["codex"]:
        folder = tmp_path / "tasks" / task
        folder.mkdir(parents=True)
        (folder / "instruction.md").write_text("Write the sum to /workspace/outputs/answer.json.\n")
        (folder / "expected.json").write_text('{"total": 7}')
    [options] = re.findall(r"\(`(--harness codex .*?)`\)", TEXT)
    [report] = re.findall(r"```text\n(32 rollouts.*?)```", TEXT, re.DOTALL)
    env = {key: value for key, value in os.environ.items() if not key.startswith(("PYTEST_", "GITHUB_", "COLUMNS"))}
    with FakeCore(script=answer) as core:
        done = subprocess.run(
            [sys.executable, "-m", "pytest", "tasks", *options.split(), "--rollout-concurrency", "8"],
            cwd=tmp_path,
            env={**env, "OPENAI_BASE_URL": core.base_url, "OPENAI_API_KEY": core.api_key},
            capture_output=True,
            text=True,
            timeout=300,
        )
    assert done.returncode == 0, done.stdout + done.stderr
    assert not missing_lines(report, done.stdout), done.stdout
