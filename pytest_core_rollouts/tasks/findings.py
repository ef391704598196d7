"""What `check` can find in a task, by code: the one list that messages, docs and `silence:` in task.yaml go by."""

from __future__ import annotations

from typing import Final

UNFINISHED: Final = "TODO(new-task)"
"""Stands in a scaffold where something is still to be written."""

FINDINGS: Final = {
    "load": "the task can't be loaded",
    "unfinished": "a part of the scaffold is still to be written",
    "output-path": "the instruction does not name /workspace/outputs/answer.json",
    "key-not-named": "the instruction does not name a key of the expected answer",
    "nested-key-not-named": "a key further down stands neither in the instruction nor in a file",
    "answer-in-instruction": "the instruction holds every expected value",
    "answer-in-file": "one file holds every expected value, or is a copy of the expected answer",
    "expected-fails": "the expected answer itself does not earn 1",
    "wrong-answer-passes": "an answer that is wrong earns 1",
    "grader-fails": "the grader raises, takes too long, or gives no reward",
    "zero-tolerance": "an expected 0.0 with a relative tolerance: 0 is the only match",
    "env-unlisted": "a variable of this machine that is neither listed in rollout_task_env nor secret",
    "no-solution": "there is no solution/solve.sh, so nothing shows that the task can be solved",
    "solution-fails": "the solution does not earn 1",
    "solution-unstable": "the solution gives another answer each time",
    "nop-passes": "an agent that does nothing earns a reward",
    "warning": "something about the task's files will not arrive as it is",
    "silence-unused": "a finding is silenced that is not there",
}
"""Codes and what they mean."""

WARNINGS: Final = frozenset(
    ("nested-key-not-named", "zero-tolerance", "env-unlisted", "no-solution", "warning", "silence-unused")
)
"""Codes that are worth a look and no reason to fail."""
