"""Tab completion of a `pytest` command line, as a shell asks for it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest


def completions(project: Path, line: str) -> list[str]:
    """Return what the shell would offer at the end of the line."""
    pytest.importorskip("argcomplete", reason="requires argcomplete: pip install argcomplete")
    found = project / "completions"
    environment = {
        **os.environ,
        "_ARGCOMPLETE": "1",
        "_ARGCOMPLETE_IFS": "\n",
        "_ARGCOMPLETE_STDOUT_FILENAME": str(found),
        "COMP_LINE": line,
        "COMP_POINT": str(len(line)),
    }
    program = Path(sys.executable).with_name("pytest")
    subprocess.run([program], cwd=project, env=environment, capture_output=True, check=True, timeout=60)
    return sorted(found.read_text(encoding="utf-8").split())


def test_a_shell_completes_harnesses_tasks_and_options(tmp_path: Path) -> None:
    (tmp_path / "pytest.ini").write_text("[pytest]\nrollout_tasks = exam\n", encoding="utf-8")
    for name in ("sql/joins", "sql/unions", "web"):
        task = tmp_path / "exam" / name
        task.mkdir(parents=True)
        (task / "instruction.md").write_text("Do it.", encoding="utf-8")
    (tmp_path / "mini.yaml").touch()
    (tmp_path / "mini.txt").touch()
    assert completions(tmp_path, "pytest --harness c") == ["claude_sdk", "codex"]
    assert completions(tmp_path, "pytest --rollout-harness mini") == ["mini.yaml"]
    assert completions(tmp_path, "pytest --samples 2 --rollout-task sql/") == ["sql/joins", "sql/unions"]
    assert completions(tmp_path, "pytest --rollout-conc") == ["--rollout-concurrency"]
