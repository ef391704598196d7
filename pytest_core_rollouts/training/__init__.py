"""From rows to what a trainer takes: groups of samples with their advantages, conversations, captured tokens.

`advantages` serves a loop that drives the engine; the rest is behind `python -m pytest_core_rollouts export`. The
schema of what is written is in `docs/training.md`.
"""

from __future__ import annotations

from pytest_core_rollouts.training.advantages import METHODS, advantages

__all__ = ["METHODS", "advantages"]
