"""`check`: are tasks sound, before a token is spent?"""

from __future__ import annotations

from pytest_core_rollouts.checking.checks import (
    UNFINISHED,
    Finding,
    Soundness,
    silenced,
    within,
)

__all__ = [
    "UNFINISHED",
    "Finding",
    "Soundness",
    "silenced",
    "within",
]
