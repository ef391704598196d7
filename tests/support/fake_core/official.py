"""In what OpenAI's own service differs from an OpenAgentCore, as far as a rollout meets it."""

from __future__ import annotations

from typing import Any

MEMBERS = {
    "": "environment agent agent_id input metadata prompt_cache_options review stream stream_options vault_ids",
    "agent": "compaction experimental instructions model multi_agent reasoning service_tier text tools",
    "environment": "type capability_directories container_size desktop env environment_template_id files network "
    "packages plugins setup_commands skills",
    "agent.reasoning": "effort summary",
    "environment.network": "access allowed_domains blocked_domains",
    "environment.packages": "npm python system",
}
CHOICES = {
    "environment.container_size": ("small", "medium", "large"),
    "agent.reasoning.effort": ("none", "minimal", "low", "medium", "high", "xhigh", "max"),
    "agent.service_tier": ("auto", "default", "flex", "priority", "fast", "ultrafast"),
}


def problem(body: dict[str, Any]) -> tuple[str, str] | None:
    """Why the service refuses to create this Session, and the parameter that it names; None if it does not."""
    for where, allowed in MEMBERS.items():
        for unknown in (_at(body, where) or {}).keys() - set(allowed.split()):
            name = f"{where}.{unknown}".lstrip(".")
            return f"Unknown parameter: '{name}'.", name
    if "agent_id" not in body and not _at(body, "agent.model"):
        return "Missing required parameter: 'agent.model'.", "agent.model"
    for where, choices in CHOICES.items():
        if (value := _at(body, where)) is not None and value not in choices:
            return f"Invalid value: {value!r}. Supported values are: {', '.join(choices)}.", where
    return None


def turns_of_subagents(turn: dict[str, Any], count: int) -> list[dict[str, Any]]:
    """The Turns of `count` subagents, which began after the root agent's and are listed with it."""
    used = {"input_tokens": 1, "output_tokens": 1, "total_tokens": 2}
    return [
        {
            **turn,
            "id": f"{turn['id']}_of_subagent_{number}",
            "subagent_id": f"subagent_{number}",
            "status": "completed",
            "completed_at": turn["started_at"],
            "error": None,
            "usage": {
                **used,
                "input_tokens_details": {"cached_tokens": 0},
                "output_tokens_details": {"reasoning_tokens": 0},
            },
        }
        for number in range(count)
    ]


def _at(body: dict[str, Any], where: str) -> Any:
    value: Any = body
    for part in where.split(".") if where else ():
        value = value.get(part) if isinstance(value, dict) else None
    return value
