"""Harnesses: each runs one kind of agent in a sandbox. A new one is added to `HARNESSES`.

base: the protocol, and whose fault a failed Turn is; native: what harnesses of real programs share. command: any other
agent, with a description in the request instead of an entry in `HARNESSES`; traffic: its Items.
"""

from __future__ import annotations

from collections.abc import Mapping

from .base import Harness, InvalidConfig, Job, TurnFailed, Usage
from .claude_sdk import ClaudeSDK
from .codex import Codex
from .command import NAME as COMMAND
from .command import Command
from .nop_and_oracle import Nop, Oracle

HARNESSES: Mapping[str, Harness] = {harness.name: harness for harness in (Oracle(), Nop(), Codex(), ClaudeSDK())}

__all__ = ["COMMAND", "HARNESSES", "Command", "Harness", "InvalidConfig", "Job", "TurnFailed", "Usage"]
