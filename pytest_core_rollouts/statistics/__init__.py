"""Figures over tasks, with their sources: pure functions."""

from __future__ import annotations

from pytest_core_rollouts.statistics.passing import (
    PassRate,
    bounds,
    difference_interval,
    interval,
    mean,
    pass_at_k,
    pass_hat_k,
    student_t,
)

__all__ = [
    "PassRate",
    "bounds",
    "difference_interval",
    "interval",
    "mean",
    "pass_at_k",
    "pass_hat_k",
    "student_t",
]
