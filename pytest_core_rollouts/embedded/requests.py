"""What requests ask for: the creation of a Session, a batch of input, new metadata."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field

from .bodies import Body, at_most, check_body, clip, fault, kind, refuse
from .environment import Environment
from .errors import APIError, invalid, not_found, unsupported
from .harnesses import COMMAND, Command, Harness, InvalidConfig
from .model_provider import ModelProvider, check_base_url
from .trajectory import Message

DEFAULT_MODEL = "default"
METADATA_PAIRS, METADATA_KEY, METADATA_VALUE = 16, 64, 512  # pairs; characters
INPUT_LIMIT = 512 * 1024  # bytes of text in one request's messages
BATCH_LIMIT = 64  # events in a batch; messages in an event


# Metadata


def _check_metadata(metadata: Any) -> Any:
    if not isinstance(metadata, dict):
        return metadata  # pydantic refuses it
    if len(metadata) > METADATA_PAIRS:
        raise fault("invalid", f"has {len(metadata)} pairs; at most {METADATA_PAIRS} are accepted")
    for key, value in metadata.items():
        if not isinstance(value, str):
            raise fault("invalid", f"expected a string, got {kind(value)}", below=f".{clip(key)}")
        if len(key) > METADATA_KEY:
            raise fault(
                "invalid",
                f"a key has {len(key)} characters; at most {METADATA_KEY} are accepted",
                below=f".{clip(key)}",
            )
        if len(value) > METADATA_VALUE:
            what = f"has {len(value)} characters; at most {METADATA_VALUE} are accepted"
            raise fault("invalid", what, below=f".{key}")
    return metadata


_Metadata = Annotated[dict[str, str], BeforeValidator(_check_metadata)]


class _Update(Body):
    metadata: _Metadata = {}


def read_update(body: dict[str, Any]) -> dict[str, str]:
    """Return the new metadata of an update; null removes all of it. Raises APIError (400)."""
    update = check_body(_Update, body)
    if "metadata" not in body:
        raise invalid("metadata: missing; it is the only member that can be updated", "metadata")
    return update.metadata


# Input


class _Part(Body):
    type: Annotated[
        Literal["input_text", "input_image"],
        refuse("the embedded Core only takes text; images are not supported", "input_text", above=True),
    ]
    text: str


def _check_parts(parts: list[_Part]) -> list[_Part]:
    if not any(part.text for part in parts):
        raise fault("empty", "expected a text that is not empty")
    return parts


class _UserMessage(Body):
    role: Literal["user"]
    content: Annotated[list[_Part], Field(fail_fast=True), AfterValidator(_check_parts)]
    type: Literal["message"] = "message"


def _check_messages(messages: list[_UserMessage]) -> list[_UserMessage]:
    if not messages:
        raise fault("empty", "expected at least one message")
    return messages


_Messages = Annotated[list[_UserMessage], at_most(BATCH_LIMIT), AfterValidator(_check_messages)]


class _MessageEvent(Body):
    type: Literal["agent.session.input.message"]
    input: _Messages


class _CancelEvent(Body):
    type: Literal["agent.session.input.cancel"]


class _ToolResultEvent(Body):
    type: Literal["agent.session.input.tool_result"]
    call_id: str
    turn_id: str
    success: bool
    error: Any = None
    output: Any = None


_Event = Annotated[_MessageEvent | _CancelEvent | _ToolResultEvent, Field(discriminator="type")]


class _Events(Body):
    events: Annotated[list[_Event], at_most(BATCH_LIMIT)]


@dataclass(frozen=True)
class Batch:
    """What one POST events asks for: messages, a cancellation or nothing."""

    messages: tuple[Message, ...] = ()
    cancel: bool = False


def read_batch(body: dict[str, Any]) -> Batch:
    """Return what the body of POST events asks for. Raises APIError (400)."""
    events = check_body(_Events, body).events
    if any(isinstance(event, _ToolResultEvent) for event in events):
        raise invalid("No tool call is pending: agents here call no functions of the client.")
    messages = [message for event in events if isinstance(event, _MessageEvent) for message in event.input]
    cancel = any(isinstance(event, _CancelEvent) for event in events)
    if messages and cancel:
        raise invalid("events: a batch with messages must not contain other events", "events")
    return Batch(_as_messages(messages), cancel)


def _as_messages(messages: Iterable[_UserMessage]) -> tuple[Message, ...]:
    result = tuple(Message(tuple(part.text for part in message.content)) for message in messages)
    size = sum(len(part.encode()) for message in result for part in message.parts)
    if size > INPUT_LIMIT:
        raise invalid(f"input: has {size} bytes of text; at most {INPUT_LIMIT} are accepted", "input")
    return result


def _read_text(value: Any) -> Any:
    """Turn an `input` that is a string into the list of messages that it stands for."""
    if not isinstance(value, str):
        return value
    if not value:
        raise fault("empty", "expected a text that is not empty")
    return [{"role": "user", "content": [{"type": "input_text", "text": value}]}]


# Creation


def _check_model(model: str) -> str:
    if not model.strip():
        raise fault("invalid", "must not be blank")
    return model


_NO_REASONING = "not supported; use the harness's own parameters (harness_config)"


class _Reasoning(Body):
    effort: Annotated[
        Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"] | None, refuse(_NO_REASONING)
    ] = None
    summary: Annotated[Literal["concise", "detailed", "auto"] | None, refuse(_NO_REASONING)] = None


class _MultiAgent(Body):
    enabled: Annotated[bool, refuse("the embedded Core runs no subagents")] = False
    max_concurrent_subagents: Annotated[int | None, Field(ge=1)] = None


class _Format(Body):
    type: Annotated[
        Literal["text", "json_schema"], refuse("structured output is not supported", "text", above=True)
    ] = "text"
    json_schema: Any = Field(default=None, alias="schema")


class _Text(Body):
    format: _Format = _Format()
    verbosity: Literal["low", "medium", "high"] = "medium"


class _AgentExtension(Body):
    harness: str | None = None
    harness_config: dict[str, Any] = Field(default={}, repr=False)


class _Agent(Body):
    instructions: str | None = None
    model: Annotated[str, AfterValidator(_check_model)] | None = None
    multi_agent: _MultiAgent = _MultiAgent()
    reasoning: _Reasoning = _Reasoning()
    service_tier: Annotated[
        Literal["auto", "default", "flex", "priority", "fast"], refuse("only 'auto' is supported", "auto")
    ] = "auto"
    text: _Text = _Text()
    tools: Annotated[list[Any], refuse("the embedded Core offers no tools besides the harness's own")] = []
    x_agents_core: _AgentExtension = _AgentExtension()


def _check_api_key(key: str) -> str:
    if not key.strip() or not key.isascii() or not key.isprintable() or len(key) > 16384:
        raise fault("invalid", "empty, too long, or has characters that an HTTP header can't hold")
    return key


def _check_url(url: str) -> str:
    if problem := check_base_url(url):
        raise fault("invalid", problem)
    return url


class _ModelProvider(Body):
    protocol: Literal["responses", "anthropic", "chat_completions"]
    base_url: Annotated[str, AfterValidator(_check_url)]
    api_key: Annotated[str, AfterValidator(_check_api_key)] = Field(repr=False)
    context_window: Annotated[int | None, Field(ge=1)] = None
    max_output_tokens: Annotated[int | None, Field(ge=1)] = None


class _Extension(Body):
    model_provider: _ModelProvider | None = None


class _Creation(Body):
    environment: Environment
    agent: _Agent = _Agent()
    agent_id: str | None = None
    input: Annotated[_Messages | None, BeforeValidator(_read_text)] = None
    metadata: _Metadata = {}
    stream: bool = False
    vault_ids: Annotated[list[Any], refuse("the embedded Core keeps no vaults")] = []
    x_agents_core: _Extension = _Extension()


@dataclass(frozen=True)
class CreateRequest:
    """A checked creation. `digest` identifies the request for retries; it covers everything except `stream`."""

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
    """Return what a creation's body asks for. Raises APIError: 400 that names the member, 404 for a saved Agent."""
    creation = check_body(_Creation, body)
    agent, environment = creation.agent, creation.environment
    messages = _as_messages(creation.input or ())
    if creation.stream and not messages:
        raise invalid('input: missing; a creation with "stream" needs it', "input")
    if creation.agent_id is not None:
        raise not_found()  # the embedded Core saves no Agents
    harness = _find_harness(agent.x_agents_core, harnesses, default_harness)
    if environment.skills and harness.skills_folder is None:
        raise unsupported(f"environment.skills: not supported by harness {harness.name}", "environment.skills")
    provider = _model_provider(creation.x_agents_core.model_provider, harness)
    if harness.protocols:
        _require_model(harness, agent.model, provider)
    return CreateRequest(
        harness=harness,
        environment=environment,
        messages=messages,
        digest=digest({member: value for member, value in body.items() if member != "stream"}),
        model=agent.model or DEFAULT_MODEL,
        instructions=agent.instructions,
        verbosity=agent.text.verbosity,
        harness_config=agent.x_agents_core.harness_config,
        model_provider=provider,
        metadata=creation.metadata,
        stream=creation.stream,
    )


def digest(value: Any) -> str:
    """Return a hash of a JSON value that does not depend on the order of keys."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def _find_harness(extension: _AgentExtension, harnesses: Mapping[str, Harness], default: str | None) -> Harness:
    path = "agent.x_agents_core"
    name = extension.harness or default
    choices = ", ".join(f"'{choice}'" for choice in harnesses)
    if name is None:
        raise unsupported(f"{path}.harness: missing, and this Core has no default; choose from {choices}", path)
    if name not in harnesses and name != COMMAND:
        raise invalid(f"{path}.harness: unknown '{clip(name)}'; choose from {choices}", f"{path}.harness")
    try:
        harness = Command.of(extension.harness_config) if name == COMMAND else harnesses[name]
        harness.check_config(extension.harness_config)
    except InvalidConfig as problem:
        raise unsupported(str(problem), f"{path}.harness_config{problem.member}") from None
    return harness


def _model_provider(provider: _ModelProvider | None, harness: Harness) -> ModelProvider | None:
    if provider is None:
        return None
    if harness.protocols and provider.protocol not in harness.protocols:
        path = "x_agents_core.model_provider.protocol"
        choices = " or ".join(f"'{protocol}'" for protocol in harness.protocols)
        raise invalid(f"{path}: harness {harness.name} only speaks {choices}", path)
    return ModelProvider(**provider.model_dump())


def _require_model(harness: Harness, model: str | None, provider: ModelProvider | None) -> None:
    """Raise APIError without a model and a provider: no key may go to a server that the request does not name."""
    if provider is None:
        message = (
            f"The embedded Core has no default model: harness {harness.name} needs a model provider "
            f"(protocol {' or '.join(harness.protocols)}, base_url and api_key) and the model's name."
        )
        raise APIError(400, message, code="model_provider_required", param="x_agents_core.model_provider")
    if model is None:
        raise unsupported(f"agent.model: missing; harness {harness.name} needs the model's name", "agent.model")
