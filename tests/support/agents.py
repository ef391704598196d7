"""What tests with real agent programs share: whether the programs are there, and what a Session of one needs."""

from __future__ import annotations

from typing import Any

import pytest

from pytest_core_rollouts.embedded.launch import why_missing
from tests.support.wire import HOSTED

PROTOCOLS = {"codex": "responses", "claude_sdk": "anthropic"}
KEY = "sk-the-real-key-0123456789"


def _if_installed(harness: str) -> Any:
    problem = why_missing(harness)
    return pytest.param(harness, marks=pytest.mark.skipif(problem is not None, reason=str(problem)))


HARNESSES = [_if_installed(harness) for harness in PROTOCOLS]
"""Parameters: each harness, skipped with the line that installs it."""

both = pytest.mark.parametrize("harness", HARNESSES)
needs_codex = pytest.mark.skipif(why_missing("codex") is not None, reason=str(why_missing("codex")))
needs_claude = pytest.mark.skipif(why_missing("claude_sdk") is not None, reason=str(why_missing("claude_sdk")))


def creation(harness: str, url: str, **members: Any) -> dict[str, Any]:
    """A creation's body; `agent`, `config` and others add to it."""
    extension = {"harness": harness, **({"harness_config": members.pop("config")} if "config" in members else {})}
    provider = {"protocol": PROTOCOLS[harness], "base_url": url, "api_key": KEY}
    return {
        "environment": {**HOSTED, **members.pop("environment", {})},
        "agent": {"model": "scripted-1", **members.pop("agent", {}), "x_agents_core": extension},
        "input": "Do as the script says.",
        "x_agents_core": {"model_provider": provider},
        **members,
    }
