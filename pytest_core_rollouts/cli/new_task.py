"""`new-task ID`: a folder with all that a task has, three files of which are still to be written."""

from __future__ import annotations

import argparse
import re
from pathlib import Path
from typing import Final

from pytest_core_rollouts.cli import CommandError
from pytest_core_rollouts.tasks.task_settings import UNFINISHED

HELP = "Make the folder of a new task; three files in it are for you to edit."

FILES: Final = {
    "instruction.md": f"""\
{UNFINISHED}: say what is to be found out from `/workspace/data.csv`.

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
"""The first three are the ones to edit; no part of them is left over in a finished task."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("id", metavar="ID", help="name of its folder below the tasks folder: sums, or sql/joins")
    parser.add_argument("--tasks", metavar="FOLDER", type=Path, default=Path("tasks"), help="default: tasks")


def run(arguments: argparse.Namespace) -> int:
    """0; CommandError when there is something already."""
    if not re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_.-]*(/[A-Za-z0-9_][A-Za-z0-9_.-]*)*", arguments.id):
        raise CommandError(
            f"{arguments.id!r} is no id; use letters, digits, `_`, `.` and `-`, with `/` between folders"
        )
    folder = arguments.tasks / arguments.id
    try:
        folder.mkdir(parents=True)
        for name, content in FILES.items():
            (folder / name).parent.mkdir(exist_ok=True)
            (folder / name).write_text(content, encoding="utf-8")
    except FileExistsError:
        raise CommandError(f"{folder} is there already; choose another id") from None
    except OSError as error:
        raise CommandError(f"{folder}: {error.strerror or error}") from None
    edits = " ".join(list(FILES)[:3])
    print(f"{folder}: edit {edits}, then: python -m pytest_core_rollouts check {arguments.id}")
    return 0
