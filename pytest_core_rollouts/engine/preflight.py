"""What is checked before the first Session, for every caller of the engine: agents, their keys, and tasks."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Final

from pytest_core_rollouts.agents_api.address import require_secure_url
from pytest_core_rollouts.rollout.dialects import Dialect
from pytest_core_rollouts.tasks.harness_file import ARGUMENT_LIMIT
from pytest_core_rollouts.tasks.matrix import MODELLESS, Agent, MatrixError
from pytest_core_rollouts.tasks.task import Task
from pytest_core_rollouts.tasks.task_settings import Network

MODEL_KEY: Final = "MODEL_API_KEY"
"""The environment variable of a model provider's key, for an agent that names none."""
MODEL_URLS: Final = {
    "responses": "https://api.openai.com/v1",
    "chat_completions": "https://api.openai.com/v1",
    "anthropic": "https://api.anthropic.com",
}
"""Examples for messages: a model is only ever paid for on request."""


def check_agent(agent: Agent, *, embedded: bool | None, dialect: Dialect | None) -> None:
    """Raise MatrixError if the agent can't run on this Core.

    `embedded`: whether we started it. `dialect`: what it speaks. None: not known yet.
    """
    agent.check()
    if embedded is False and agent.harness_file is not None:
        raise MatrixError(f"{agent.where}: requires --core embedded; a harness file runs a program of this machine")
    if embedded is False and agent.harness in MODELLESS:
        raise MatrixError(
            f"{agent.where}: requires --core embedded; the reference solution is never sent to another Core"
        )
    if dialect is not None:
        dialect.check(agent)
    if embedded:
        _check_embedded(agent)
    if agent.base_url is not None:
        filled = agent.base_url.replace("{rollout_id}", "rollout").replace("{attempt}", "1")
        try:
            require_secure_url(filled)
        except ValueError as error:
            raise MatrixError(f"{agent.where}: model base URL: {error}") from None


def check_token_ids(agent: Agent) -> None:
    """Raise MatrixError if no known server returns token ids on the protocol of the agent's model."""
    if agent.effective_protocol == "anthropic":
        raise MatrixError(
            f"{agent.where}: --rollout-capture-tokens: no known server returns token ids on the protocol anthropic; "
            "use a harness that speaks responses (codex) or chat_completions"
        )


def _check_embedded(agent: Agent) -> None:
    from pytest_core_rollouts.embedded.launch import HARNESSES  # brings modules that few runs need

    if agent.harness_file is None and agent.harness not in HARNESSES:
        raise MatrixError(
            f"{agent.where}: the embedded Core runs {', '.join(HARNESSES)}; {agent.harness} needs another Core"
        )
    if agent.protocols and agent.base_url is None:
        url = MODEL_URLS[agent.protocols[0]]
        raise MatrixError(
            f"{agent.where}: the embedded Core has no default model; pass --model NAME --model-base-url {url} and "
            f"put the key in {MODEL_KEY} (or set model, base_url and api_key_env in an agent file)"
        )


def check_instruction(task: Task, agent: Agent) -> None:
    """Raise MatrixError if the agent's program can't be given the task's instruction."""
    harness = agent.harness_file
    size = len(task.instruction.encode()) + len((agent.instructions or "").encode())
    if harness is not None and harness.passes_argument and size > ARGUMENT_LIMIT:
        raise MatrixError(
            f"{harness.path}: the instruction of task {task.id} has {size:,} bytes, more than an argument may have "
            "(128 KiB); use stdin or {instruction_file} instead of {instruction}"
        )


def searches_web(agent: Agent) -> bool:
    """Return whether the agent has a tool that searches the web, which its server does and not its sandbox."""
    return any(str(tool.get("type")).startswith("web_search") for tool in agent.tools)


def model_key(agent: Agent, environ: Mapping[str, str] = os.environ) -> str | None:
    """Return the key for the agent's model endpoint; None without one. Raises MatrixError if the key is missing."""
    if agent.base_url is None or agent.api_key is not None:
        return agent.api_key
    name = agent.api_key_env or MODEL_KEY
    if not (key := environ.get(name)):
        raise MatrixError(f"{agent.where}: a model base URL needs its key; set the environment variable {name}")
    return key


def why_skipped(task: Task, agent: Agent, *, embedded: bool, network: Network) -> str | None:
    """Return why the agent can't run this task here; None if it can. `network`: the network of the rollout."""
    if task.skip is not None:
        return task.skip
    if agent.harness == "oracle" and task.solution is None:
        return f"task {task.id} has no solution/solve.sh for oracle to run"
    if embedded and not network.is_disabled:
        return "the embedded Core gives its sandboxes no network"
    if embedded and task.packages:
        return "the embedded Core installs no packages"
    if unset := task.unset_variables:
        return f"task {task.id} needs {', '.join(unset)} in the environment"
    return None
