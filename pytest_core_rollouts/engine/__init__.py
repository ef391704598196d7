"""The engine: the one host of rollouts, and what it owns. Private; public names are in `pytest_core_rollouts`."""

from __future__ import annotations

from pytest_core_rollouts._deprecated import moved_names

__getattr__ = moved_names(__name__)
