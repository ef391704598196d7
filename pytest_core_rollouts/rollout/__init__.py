"""One rollout's life, from its Session's creation to its deletion."""

from __future__ import annotations

from pytest_core_rollouts.rollout.attempts import (
    Grader,
    KeepFiles,
    Limits,
    Outcome,
    RolloutRunner,
    lost_record,
)

__all__ = [
    "Grader",
    "KeepFiles",
    "Limits",
    "Outcome",
    "RolloutRunner",
    "lost_record",
]
