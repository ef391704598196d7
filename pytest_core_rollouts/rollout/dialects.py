"""The two kinds of server that speak the Agents API, and everything in which they differ.

Nothing else asks which kind a server is. Error codes are not here: each has one meaning, whichever server reports it
(`agents_api/fault_policies.py`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, Literal
from urllib.parse import urlsplit

from pytest_core_rollouts.tasks.harness_file import CORE_HARNESS
from pytest_core_rollouts.tasks.matrix import DEFAULT, Agent, MatrixError

DialectName = Literal["openagentcore", "openai"]

OPENAI_URL: Final = "https://api.openai.com/v1"
OPENAI_HOST: Final = "api.openai.com"
CODEX: Final = "codex"
DEFAULT_SIZE: Final = "medium"
"""The container that OpenAI's service gives a Session that asks for no size: it is named, so that rows can say it."""


class Dialect(ABC):
    """What one kind of server takes, and what it promises.

    * `idempotent_create`: whether a create with the Idempotency-Key of an earlier one returns the same Session. If
      not, a create that ended without an answer is looked up in the list of Sessions before it is sent again.
    * `always_reports_usage`: whether every Turn gets usage, also one that failed, although perhaps late.
    * `permissions`: what a key must be allowed to do, for messages; empty if the server has no names for it.
    """

    name: DialectName
    idempotent_create: bool
    always_reports_usage: bool
    permissions: Sequence[str] = ()

    @abstractmethod
    def resolve(self, agent: Agent) -> Agent:
        """Return the agent as this server runs it, so that rows name what ran."""

    @abstractmethod
    def check(self, agent: Agent) -> None:
        """Raise MatrixError, in one line, if this server can't run the agent."""

    @abstractmethod
    def agent_block(self, agent: Agent, harness_config: Mapping[str, Any]) -> dict[str, Any]:
        """Return the member `agent` of a create body; {} if the server decides everything."""

    @abstractmethod
    def environment_members(self, agent: Agent) -> dict[str, Any]:
        """Return the members of `environment` that come from the agent."""

    @abstractmethod
    def may_report_usage(self, harness: str) -> bool:
        """Whether this harness is known to report usage, perhaps only after its Turn has ended."""


class _OpenAgentCore(Dialect):
    """An OpenAgentCore, or our embedded Core: several harnesses, chosen by the extension `x_agents_core`."""

    name = "openagentcore"
    idempotent_create = True
    always_reports_usage = False

    def resolve(self, agent: Agent) -> Agent:
        return agent

    def check(self, agent: Agent) -> None:
        effort = "set the effort in harness_config, such as {model_reasoning_effort: low} for codex"
        for key, value, instead in (
            ("container_size", agent.container_size, "remove it"),
            ("reasoning", agent.reasoning, effort),
            ("service_tier", agent.service_tier, "remove it"),
        ):
            if value is not None:
                raise MatrixError(f"{agent.where}: {key} requires OpenAI's service (--core openai); {instead}")

    def agent_block(self, agent: Agent, harness_config: Mapping[str, Any]) -> dict[str, Any]:
        block = _common_members(agent)
        extension: dict[str, Any] = {}
        if agent.harness_file is not None:
            extension["harness"] = CORE_HARNESS
        elif agent.harness != DEFAULT:
            extension["harness"] = agent.harness
        if harness_config:
            extension["harness_config"] = dict(harness_config)
        return {**block, "x_agents_core": extension} if extension else block

    def environment_members(self, agent: Agent) -> dict[str, Any]:
        return _skills(agent)

    def may_report_usage(self, harness: str) -> bool:
        return harness == CODEX


class _OpenAI(Dialect):
    """OpenAI's own service: it runs codex with OpenAI's models, and takes no extension."""

    name = "openai"
    idempotent_create = False
    always_reports_usage = True
    permissions = ("api.agents.read", "api.agents.write", "api.responses.write")

    def resolve(self, agent: Agent) -> Agent:
        harness = CODEX if agent.harness == DEFAULT else agent.harness
        resolved = replace(agent, harness=harness, container_size=agent.container_size or DEFAULT_SIZE)
        return agent if resolved == agent else resolved

    def check(self, agent: Agent) -> None:
        if agent.harness not in (DEFAULT, CODEX):
            raise MatrixError(f"{agent.where}: OpenAI's service only runs codex; choose codex or leave out the harness")
        if agent.base_url is not None:
            raise MatrixError(
                f"{agent.where}: OpenAI's service only uses its own models; remove the model base URL "
                "(--model-base-url, or base_url in the agent file)"
            )
        if agent.model == DEFAULT:
            raise MatrixError(
                f"{agent.where}: OpenAI's service has no default model; add --model NAME (or set model in the agent "
                "file)"
            )
        if agent.harness_config:
            raise MatrixError(
                f"{agent.where}: OpenAI's service takes no harness config; remove it, and set the effort with "
                "`reasoning` in an agent file"
            )

    def agent_block(self, agent: Agent, harness_config: Mapping[str, Any]) -> dict[str, Any]:
        block = _common_members(agent)
        if agent.reasoning is not None:
            block["reasoning"] = {"effort": agent.reasoning}
        if agent.service_tier is not None:
            block["service_tier"] = agent.service_tier
        return block

    def environment_members(self, agent: Agent) -> dict[str, Any]:
        size = {} if agent.container_size is None else {"container_size": agent.container_size}
        return {**size, **_skills(agent)}

    def may_report_usage(self, harness: str) -> bool:
        return True


OPENAGENTCORE: Final[Dialect] = _OpenAgentCore()
OPENAI: Final[Dialect] = _OpenAI()


def dialect_of(base_url: str | None) -> Dialect:
    """Return the dialect of the server at this URL, by its host. A gateway has to be named as OpenAI's service."""
    try:
        host = urlsplit((base_url or "").strip()).hostname
    except ValueError:  # it is reported as invalid where it is used
        host = None
    named = f".{host or ''}".rstrip(".")  # a region has its own name below the host
    return OPENAI if named.endswith(f".{OPENAI_HOST}") else OPENAGENTCORE


def dialect_named(name: DialectName) -> Dialect:
    """Return the dialect of this name. Raises ValueError for an unknown one."""
    for dialect in (OPENAGENTCORE, OPENAI):
        if dialect.name == name:
            return dialect
    raise ValueError(f"dialect: expected 'openagentcore' or 'openai', got {name!r}")


def _common_members(agent: Agent) -> dict[str, Any]:
    block: dict[str, Any] = {}
    if agent.model != DEFAULT:
        block["model"] = agent.model
    if agent.instructions is not None:
        block["instructions"] = agent.instructions
    if agent.tools:
        block["tools"] = list(agent.tools)
    return block


def _skills(agent: Agent) -> dict[str, Any]:
    return {"skills": list(agent.skills)} if agent.skills else {}
