"""The parts of the API's Session that its creation settles."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .creation import CreateRequest
from .skills import Skill


def agent_wire(agent_id: str, request: CreateRequest) -> dict[str, Any]:
    """A Session's `agent`. `harness_config` and the model's endpoint are write-only."""
    return {
        "id": agent_id,
        "name": None,
        "model": request.model,
        "instructions": request.instructions,
        "multi_agent": {"enabled": False, "max_concurrent_subagents": None},
        "reasoning": {"effort": None, "summary": None},
        "service_tier": "auto",
        "text": {"format": {"type": "text"}, "verbosity": request.verbosity},
        "tools": [],
        "x_agents_core": {"harness": request.harness.name},
    }


def environment_wire(
    environment_id: str, files: Sequence[tuple[str, str, int]], skills: Sequence[Skill] = ()
) -> dict[str, Any]:
    """A Session's `environment`; `files`: (id, path, bytes)."""
    return {
        "id": environment_id,
        "type": "openai_hosted",
        "capability_directories": [],
        "files": [{"id": id, "type": "inline", "path": path, "size_bytes": size} for id, path, size in files],
        "network": {"access": "disabled", "allowed_domains": []},
        "packages": {"npm": [], "python": [], "system": []},
        "plugins": [],
        "skills": [skill.wire() for skill in skills],
    }
