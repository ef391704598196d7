"""Harnesses: each runs one kind of agent in a sandbox. A new one is added to `HARNESSES`.

base: the protocol, and whose fault a failed Turn is; native: what harnesses of real programs share.
"""

from __future__ import annotations

from collections.abc import Mapping

from .base import Harness, InvalidConfig, Job, TurnFailed, Usage
from .claude_sdk import ClaudeSDK
from .codex import Codex
from .nop_and_oracle import Nop, Oracle

HARNESSES: Mapping[str, Harness] = {harness.name: harness for harness in (Oracle(), Nop(), Codex(), ClaudeSDK())}

__all__ = ["HARNESSES", "Harness", "InvalidConfig", "Job", "TurnFailed", "Usage"]
