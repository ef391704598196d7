"""`check`: are tasks sound, before a token is spent?"""

from __future__ import annotations

from pytest_core_rollouts.checking.checks import Finding, Soundness, silenced

__all__ = ["Finding", "Soundness", "silenced"]
