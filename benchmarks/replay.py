"""How long `--rollout-replay` takes: 10,000 recorded rollouts graded again, as a user would run it.

    python benchmarks/replay.py [rows] [-n WORKERS] [--grader]

Makes a project of 100 tasks and a JSONL of that many rows in a temporary folder, with a trajectory of 20 Items each.
With `--grader` each task has a `grader.py`, which runs in worker processes.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from pytest_core_rollouts.records.record import RolloutRecord

TASKS = 100
EXPECTED = {"rows": [{"region": f"r{i}", "total": i * 1.25} for i in range(20)]}
ITEMS = [{"type": "message", "id": f"item_{i}", "content": [{"type": "text", "text": "word " * 40}]} for i in range(20)]


GRADER = "def grade(task, answer):\n    return answer.value == task.expected\n"


def make_project(folder: Path, rows: int, *, grader: bool) -> Path:
    """Tasks and a file of results; its path."""
    for number in range(TASKS):
        task = folder / "tasks" / f"t{number:03}"
        task.mkdir(parents=True)
        (task / "instruction.md").write_text("Add up.\n")
        (task / "expected.json").write_text(json.dumps(EXPECTED))
        if grader:
            (task / "grader.py").write_text(GRADER)
    path = folder / "recorded.jsonl"
    with path.open("wb") as file:
        for index in range(rows):
            sample, number = divmod(index, TASKS)
            file.write(record(f"t{number:03}", sample).to_line())
    return path


def record(task: str, sample: int) -> RolloutRecord:
    answer = EXPECTED if sample % 3 else {"rows": []}
    return RolloutRecord(
        rollout_id=f"20261129T000000Z-0000.{task}.codex-default.{sample}",
        task=task,
        harness="codex",
        model="default",
        sample=sample,
        status="completed",
        reward=0.0,
        answer=answer,
        duration_s=12.5,
        items=ITEMS,
        run_id="20261129T000000Z-0000",
        group_id=f"20261129T000000Z-0000.{task}.codex-default",
        agent={"name": None, "slug": "codex-default", "digest": ""},
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("rows", nargs="?", type=int, default=10_000)
    parser.add_argument("-n", default="0", help="xdist workers")
    parser.add_argument("--grader", action="store_true", help="grade by a grader.py")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        path = make_project(folder, arguments.rows, grader=arguments.grader)
        print(f"{arguments.rows} rows, {path.stat().st_size / 1e6:.0f} MB")
        command = [sys.executable, "-m", "pytest", "-q", "-n", arguments.n]
        command += ["-p", "no:cacheprovider", "-p", "no:hypothesispytest"]
        command += ["--rollout-replay", str(path), "--rollout-gate", "none"]
        start = time.monotonic()
        others = ("OPENAI_", "PYTEST_", "PYTHONDONTWRITEBYTECODE")  # the last would compile every module each time
        environment = {key: value for key, value in os.environ.items() if not key.startswith(others)}
        done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
        taken = time.monotonic() - start
        print("\n".join(done.stdout.splitlines()[-8:]))
        print(done.stderr, end="")
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        print(f"{taken:.1f} s, {arguments.rows / taken:.0f} rows/s, exit code {done.returncode}")
        print(f"CPU {used.ru_utime + used.ru_stime:.1f} s, memory {used.ru_maxrss / 1024:.0f} MB")


if __name__ == "__main__":
    main()
