"""Moved to `pytest_core_rollouts`."""

from __future__ import annotations

from pytest_core_rollouts._deprecated import moved_names

__getattr__ = moved_names(__name__)
