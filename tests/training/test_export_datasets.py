"""The `datasets` package, in its own environment, loads what was exported: large, and with all that may vary."""

from __future__ import annotations

import dataclasses
import json
import re
import subprocess
import sys
import tempfile
import venv
from pathlib import Path
from typing import Any

import pytest

from tests.support.exporting import Exporter, capture, exchange, write
from tests.support.rows import run
from tests.support.trajectories import agent_message, command, user

pytestmark = pytest.mark.slow

DOCS = Path(__file__).parents[2] / "docs" / "training.md"
LARGE = "x" * 30_000
"""A loader infers types from the first 10 MB: with this many rows what varies comes after them."""


@pytest.fixture(scope="module")
def python() -> Path:
    """A Python that has the package; its environment is kept between runs, in the temporary folder."""
    name = f"pytest-core-rollouts-datasets-py{sys.version_info.major}{sys.version_info.minor}"
    python = Path(tempfile.gettempdir()) / name / "bin" / "python"
    if not python.exists() or subprocess.run([python, "-c", "import datasets"], capture_output=True).returncode:
        venv.create(python.parents[1], with_pip=True, clear=True)
        done = subprocess.run([python, "-m", "pip", "install", "-q", "datasets"], capture_output=True, text=True)
        if done.returncode:
            pytest.skip(f"not installed: {python} -m pip install datasets: {done.stderr.strip()[-300:]}")
    return python


def loaded(python: Path, folder: Path, program: str) -> str:
    done = subprocess.run(
        [python, "-c", program],
        cwd=folder,
        env={"HF_HOME": str(folder / "cache"), "HF_HUB_OFFLINE": "1", "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_what_the_page_says(export: Exporter, python: Path, tmp_path: Path) -> None:
    """The program in the docs, on an export without a label, a call of a tool, an error or a capture."""
    file = write(tmp_path / "a.jsonl", run({"t": [1.0, 0.0]}, items=[user(1, "Do."), agent_message(2, "Done.")]))
    for format in ("groups", "messages"):
        export(file, format=format)
        (tmp_path / f"{format}.jsonl").write_bytes(export.out)
    [program] = re.findall(r"^```python\n(from datasets.*?)^```$", DOCS.read_text(), re.MULTILINE | re.DOTALL)
    advantage, role = loaded(python, tmp_path, program).split()
    assert float(advantage) == pytest.approx(0.5**0.5)
    assert role == "user"


def test_large_files_in_which_things_vary_late(export: Exporter, python: Path, tmp_path: Path) -> None:
    rows = []
    for number in range(400):
        first = number < 380
        labels = {"policy": "1"} if first else {"arm": "b"}
        items = [user(1, LARGE), command(2, "ls", "a", 1)] if first else [agent_message(2, "Done.")]
        rewards: list[float | str | None] = [1.0, 0.0] if first else [0.25, None, "timeout", 0.5]
        for row in run({f"t{number}": rewards}, run_id=f"r{number}", labels=labels, items=items):
            error = None if row.reward is not None else "Core is down"
            rows.append(dataclasses.replace(row, session_id=row.rollout_id, error=error))
            body: dict[str, Any] = {"text": LARGE} if first else {"other": [1]}
            capture(tmp_path / "captures", row.rollout_id, exchange(row.rollout_id, request=body, response=body))
    file = write(tmp_path / "a.jsonl", rows)
    export(file, "--capture", tmp_path / "captures")
    (tmp_path / "groups.jsonl").write_bytes(export.out)
    export(file, format="messages")
    (tmp_path / "messages.jsonl").write_bytes(export.out)
    printed = loaded(
        python,
        tmp_path,
        "import json\nfrom datasets import load_dataset\n"
        "data = [load_dataset('json', data_files=f'{name}.jsonl', split='train') for name in ('groups', 'messages')]\n"
        "print(json.dumps([[len(one), one[0], one[-1]] for one in data]))",
    )
    for kind, (count, *ends) in zip(("groups", "messages"), json.loads(printed), strict=True):
        lines = [json.loads(line) for line in (tmp_path / f"{kind}.jsonl").read_bytes().splitlines()]
        assert count == len(lines)
        assert ends == [lines[0], lines[-1]], "as they were written"
