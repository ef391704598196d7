"""Tasks made in code: one for each line of `questions.jsonl`, for example

    {"id": "q00001", "question": "A box holds 12 pens. How many pens do 7 boxes hold?", "answer": 84}

Run all of them with `pytest examples/dataset/conftest.py --core URL`, and one with `-k questions/q00001`.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from pytest_core_rollouts import Task

INSTRUCTION = """\
{question}

Write the answer to `/workspace/outputs/answer.json`, one JSON object with the key `answer` (number).
"""


def pytest_rollout_tasks(config: pytest.Config) -> Iterator[Task]:
    path = Path(os.environ.get("QUESTIONS", Path(__file__).parent / "questions.jsonl"))
    with path.open(encoding="utf-8") as lines:
        for line in lines:
            row = json.loads(line)
            yield Task(
                id=f"questions/{row['id']}",
                instruction=INSTRUCTION.format(question=row["question"]),
                expected={"answer": row["answer"]},
                timeout=300,
            )
