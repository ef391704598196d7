"""Harnesses: what turns a user's input into work in a sandbox. One module each; a new one is added to `HARNESSES`."""

from __future__ import annotations

from collections.abc import Mapping

from .base import Harness, InvalidConfig, Job, TurnFailed, Usage
from .claude_sdk import ClaudeSDK
from .codex import Codex
from .nop_and_oracle import Nop, Oracle

HARNESSES: Mapping[str, Harness] = {harness.name: harness for harness in (Oracle(), Nop(), Codex(), ClaudeSDK())}

__all__ = ["HARNESSES", "Harness", "InvalidConfig", "Job", "TurnFailed", "Usage"]
