"""`new-task ID` creates a task folder with every file that a task has; three of them are for the user to edit."""

from __future__ import annotations

import argparse
import re
from pathlib import Path
from typing import Final

from pytest_core_rollouts.cli import CommandError
from pytest_core_rollouts.tasks.task_settings import UNFINISHED

FILES: Final = {
    "instruction.md": f"""\
{UNFINISHED}: say what to find out from `/workspace/data.csv`.

Write the answer to `/workspace/outputs/answer.json`, one JSON object with this key:

- `answer`: {UNFINISHED}: what it is (integer)
""",
    "expected.json": f"""\
{{
  "answer": "{UNFINISHED}"
}}
""",
    "solution/solve.sh": f"""\
# Solves the task as an agent could, in /workspace. {UNFINISHED}: replace the 0 by what works the answer out.
set -eu
answer=0
mkdir -p outputs
printf '{{"answer": %d}}\\n' "$answer" > outputs/answer.json
""",
    "files/data.csv": """\
name,amount
north,3
south,4
""",
    "task.yaml": """\
# tags: [csv]
# timeout: 600
""",
}
"""The files of a new task. The first three are to be edited; a finished task contains nothing of their text."""


NOT_COLLECTED = frozenset(("build", "CVS", "_darcs", "dist", "node_modules", "venv"))
"""Folders that pytest's ini key norecursedirs leaves out by default."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("id", metavar="ID", help="path of its folder below the tasks folder, such as sums or sql/joins")
    parser.add_argument("--tasks", metavar="FOLDER", type=Path, default=Path("tasks"), help="default: tasks")


def run(arguments: argparse.Namespace) -> int:
    """Create the folder and return 0. Raises CommandError if it exists."""
    if not re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_.-]*(/[A-Za-z0-9_][A-Za-z0-9_.-]*)*", arguments.id):
        raise CommandError(
            f"invalid id {arguments.id!r}; use letters, digits, '_', '.' and '-', with '/' between folders"
        )
    for name in arguments.id.split("/"):
        if name in NOT_COLLECTED or name.endswith(".egg"):
            raise CommandError(
                f"invalid id {arguments.id!r}: pytest leaves out folders called {name!r}; choose another"
            )
    folder = arguments.tasks / arguments.id
    try:
        folder.mkdir(parents=True)
        for name, content in FILES.items():
            (folder / name).parent.mkdir(exist_ok=True)
            (folder / name).write_text(content, encoding="utf-8")
    except FileExistsError:
        raise CommandError(f"{folder} already exists; choose another id") from None
    except OSError as error:
        raise CommandError(f"{folder}: {error.strerror or error}") from None
    edits = " ".join(list(FILES)[:3])
    print(f"{folder}: edit {edits}, then: python -m pytest_core_rollouts check {arguments.id}")
    return 0
