"""The body of POST /agents/sessions, checked into a CreateRequest."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from .checked import Checked
from .environment import Environment, read_environment
from .errors import APIError, invalid, not_found, unsupported
from .harnesses import Harness, InvalidConfig
from .inputs import Message, read_initial
from .model_provider import ModelProvider, read_model_provider

DEFAULT_MODEL = "default"
METADATA_PAIRS, METADATA_KEY, METADATA_VALUE = 16, 64, 512  # pairs; characters


@dataclass(frozen=True)
class CreateRequest:
    """A checked creation. `digest` identifies the request for retries; it covers all but `stream`."""

    harness: Harness
    environment: Environment
    messages: tuple[Message, ...]
    digest: str
    model: str = DEFAULT_MODEL
    instructions: str | None = None
    verbosity: str = "medium"
    harness_config: Mapping[str, Any] = field(default_factory=dict, repr=False)
    model_provider: ModelProvider | None = None
    metadata: Mapping[str, str] = field(default_factory=dict)
    stream: bool = False


def read_creation(
    body: dict[str, Any], harnesses: Mapping[str, Harness], default_harness: str | None = None
) -> CreateRequest:
    """Check a creation's body. Raises APIError: 400 that names the member, 404 for a saved Agent."""
    known = ("environment", "agent", "agent_id", "input", "metadata", "stream", "vault_ids", "x_agents_core")
    checked = Checked(body, "", known)
    metadata = read_metadata(checked)
    messages = read_initial(checked.get("input"))
    stream = checked.flag("stream") or False
    if stream and not messages:
        raise invalid("streaming session creation requires initial input", "input")
    if checked.array("vault_ids"):
        raise unsupported("The embedded Core keeps no vaults.", "vault_ids")
    environment = read_environment(checked)
    agent = checked.object("agent", _AGENT_MEMBERS)
    if checked.text("agent_id") is not None:
        raise not_found()  # no Agent is ever saved here
    harness, config = _read_harness(agent, harnesses, default_harness)
    if environment.skills and harness.skills_folder is None:
        raise unsupported(f"The {harness.name} harness takes no skills.", "environment.skills")
    extension = checked.object("x_agents_core", ("model_provider",))
    provider = read_model_provider(extension, harness.protocols)
    model = _read_model(agent)
    if harness.protocols:
        _require_model(harness, model, provider)
    return CreateRequest(
        harness=harness,
        environment=environment,
        messages=messages,
        digest=digest({member: value for member, value in body.items() if member != "stream"}),
        model=model or DEFAULT_MODEL,
        instructions=agent.text("instructions"),
        verbosity=_read_text_format(agent),
        harness_config=config,
        model_provider=provider,
        metadata=metadata,
        stream=stream,
    )


def digest(value: Any) -> str:
    """Identifies a JSON value, whatever the order of its keys."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def read_metadata(checked: Checked) -> dict[str, str]:
    """`metadata` of a creation or an update, within the API's limits."""
    metadata = checked.mapping("metadata")
    for key, value in metadata.items():
        if not isinstance(value, str):
            checked.object("metadata", tuple(metadata)).required_text(key)
    if len(metadata) > METADATA_PAIRS:
        raise invalid(f"'metadata' holds {len(metadata)} pairs; at most {METADATA_PAIRS} are accepted.", "metadata")
    for key in sorted(metadata):
        for what, length, limit in (("key", len(key), METADATA_KEY), ("value", len(metadata[key]), METADATA_VALUE)):
            if length > limit:
                message = f"A {what} of 'metadata' has {length} characters; at most {limit} are accepted."
                raise invalid(message, f"metadata.{key}" if len(key) <= 256 else "metadata")
    return metadata


_AGENT_MEMBERS = (
    "instructions",
    "model",
    "multi_agent",
    "reasoning",
    "service_tier",
    "text",
    "tools",
    "x_agents_core",
)


def _read_harness(
    agent: Checked, harnesses: Mapping[str, Harness], default: str | None
) -> tuple[Harness, Mapping[str, Any]]:
    extension = agent.object("x_agents_core", ("harness", "harness_config"))
    name = extension.text("harness") or default
    if name is None:
        choices = ", ".join(harnesses)
        raise unsupported(f"No harness is named, and none is the default here; name one of: {choices}.", extension.path)
    if name not in harnesses:
        extension.choice("harness", tuple(harnesses))
        raise unsupported(f"The default harness '{name}' is not served here.", extension.at("harness"))
    config = extension.mapping("harness_config")
    try:
        harnesses[name].check_config(config)
    except InvalidConfig as problem:
        raise unsupported(str(problem), f"{extension.at('harness_config')}{problem.member}") from None
    return harnesses[name], config


def _require_model(harness: Harness, model: str | None, provider: ModelProvider | None) -> None:
    """There is no default model here, nor a key for one: who pays for it says so."""
    if provider is None:
        message = (
            f"The embedded Core has no model of its own: the {harness.name} harness needs a model provider "
            f"(protocol {' or '.join(harness.protocols)}, base_url and api_key) and the model's name."
        )
        raise APIError(400, message, code="model_provider_required", param="x_agents_core.model_provider")
    if model is None:
        raise unsupported(f"The {harness.name} harness needs the model's name.", "agent.model")


def _read_model(agent: Checked) -> str | None:
    model = agent.text("model")
    if model is not None and not model.strip():
        raise APIError(400, "'agent.model' must not be blank.", code="invalid_request_error", param="agent.model")
    if agent.choice("service_tier", ("auto", "default", "flex", "priority", "fast")) not in (None, "auto"):
        raise unsupported("Execution supports service_tier=auto only.", "agent.service_tier")
    reasoning = agent.object("reasoning", ("effort", "summary"))
    reasoning.choice("effort", ("none", "minimal", "low", "medium", "high", "xhigh", "max"))
    reasoning.choice("summary", ("concise", "detailed", "auto"))
    for member in ("effort", "summary"):
        if reasoning.get(member) is not None:
            message = "Explicit reasoning options are not supported: use the harness's own parameters (harness_config)."
            raise unsupported(message, reasoning.at(member))
    multi_agent = agent.object("multi_agent", ("enabled", "max_concurrent_subagents"))
    multi_agent.positive("max_concurrent_subagents")
    if multi_agent.flag("enabled"):
        raise unsupported("The embedded Core runs no subagents.", multi_agent.at("enabled"))
    if agent.array("tools"):
        raise unsupported("The embedded Core offers no tools beyond the harness's own.", "agent.tools")
    return model


def _read_text_format(agent: Checked) -> str:
    text = agent.object("text", ("format", "verbosity"))
    if text.object("format", ("type", "schema")).choice("type", ("text", "json_schema")) == "json_schema":
        raise unsupported("Structured output is not supported.", "agent.text.format")
    return text.choice("verbosity", ("low", "medium", "high")) or "medium"
