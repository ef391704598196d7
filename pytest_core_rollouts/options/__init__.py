"""Options and ini keys, checked into one Settings."""

from __future__ import annotations

from pytest_core_rollouts.options.declared import (
    OPTIONS,
)

__all__ = [
    "OPTIONS",
]
