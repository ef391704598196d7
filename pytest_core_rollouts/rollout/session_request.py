"""What a rollout asks of Core: the body that creates its Session.

Everything the sandbox gets is put together here and nowhere else. What grades the answer is not among it; the
solution goes out under the harness `oracle` alone, which only a Core that we started ourselves runs.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping
from typing import Any

from pytest_core_rollouts.tasks.matrix import DEFAULT, Agent, MatrixError, Rollout

PAIRS_LIMIT = 16
KEY_LIMIT = 64
VALUE_LIMIT = 512
"""Pairs of metadata, and characters of a key and a value, that the API takes."""


def session_body(
    rollout: Rollout, *, attempt: int = 1, model_key: str | None = None, core_is_ours: bool = False
) -> dict[str, Any]:
    """The JSON body for `POST /agents/sessions`. The same attempt at a rollout always gives the same body.

    `core_is_ours`: whether we started the Core; no other one gets a solution.

    Raises TaskError if an input file changed since collection, MatrixError for a model provider without a key or for
    the harness `oracle` on another Core.
    """
    if rollout.agent.harness == "oracle" and not core_is_ours:
        raise MatrixError("harness oracle: requires our own Core; the reference solution is never sent to another one")
    body: dict[str, Any] = {
        "environment": _environment(rollout),
        "input": rollout.task.instruction,
        "metadata": metadata(rollout),
    }
    if agent := _agent(rollout):
        body["agent"] = agent
    if (base_url := rollout.model_base_url(attempt)) is not None:
        body["x_agents_core"] = {"model_provider": _model_provider(rollout.agent, base_url, model_key)}
    return body


def metadata(rollout: Rollout) -> dict[str, str]:
    """What a Session says about itself, so that a run finds its own leftovers; cut to the API's limits.

    Labels beyond the pairs that the API takes are left out; the record has them all.
    """
    said = {
        "run_id": rollout.run_id,
        "rollout_id": rollout.rollout_id,
        "task": rollout.task.id,
        "agent": rollout.agent.slug,
        "sample": str(rollout.sample),
        **{f"label.{key}": value for key, value in rollout.labels.items()},
    }
    pairs = list(said.items())[:PAIRS_LIMIT]
    return {_cut(key, KEY_LIMIT): _cut(value, VALUE_LIMIT) for key, value in pairs}


def _cut(text: str, limit: int) -> str:
    """`text` in at most `limit` characters that UTF-8 can hold; a longer one ends in a digest of the whole."""
    encoded = text.encode("utf-8", "backslashreplace")
    whole = encoded.decode("utf-8")
    if len(whole) <= limit:
        return whole
    return f"{whole[: limit - 13]}-{hashlib.sha256(encoded).hexdigest()[:12]}"


def _environment(rollout: Rollout) -> dict[str, Any]:
    task = rollout.task
    environment: dict[str, Any] = {"type": "openai_hosted", "network": rollout.network.wire()}
    if files := task.uploads:
        environment["files"] = [
            {"type": "inline", "path": f"/workspace/{file.path}", "data": base64.b64encode(file.read()).decode("ascii")}
            for file in files
        ]
    if task.env:
        environment["env"] = task.variables()
    if task.packages:
        environment["packages"] = {manager: list(names) for manager, names in task.packages.items()}
    if commands := task.preparation:
        environment["setup_commands"] = [{"command": command} for command in commands]
    if rollout.agent.skills:
        environment["skills"] = list(rollout.agent.skills)
    return environment


def _model_provider(agent: Agent, base_url: str, model_key: str | None) -> dict[str, Any]:
    """Complete, as the API wants it: protocol, URL and key, and the limits that a harness like mcode needs."""
    if not model_key:
        raise MatrixError(f"agent {agent.slug}: no key for the model at {base_url}; set {agent.api_key_env or 'one'}")
    limits = {"context_window": agent.context_window, "max_output_tokens": agent.max_output_tokens}
    given = {key: value for key, value in limits.items() if value is not None}
    return {"protocol": agent.effective_protocol, "base_url": base_url, "api_key": model_key, **given}


def _agent(rollout: Rollout) -> dict[str, Any]:
    agent = rollout.agent
    block: dict[str, Any] = {}
    if agent.model != DEFAULT:
        block["model"] = agent.model
    if agent.instructions is not None:
        block["instructions"] = agent.instructions
    if agent.tools:
        block["tools"] = list(agent.tools)
    extension: dict[str, Any] = {}
    if agent.harness != DEFAULT:
        extension["harness"] = agent.harness
    if config := _harness_config(agent, rollout):
        extension["harness_config"] = config
    if extension:
        block["x_agents_core"] = extension
    return block


def _harness_config(agent: Agent, rollout: Rollout) -> Mapping[str, Any]:
    if agent.harness == "oracle":
        solution = rollout.task.solution
        assert solution is not None, "a task without a solution is skipped under oracle"
        return {"solution": solution.decode("utf-8")}
    return dict(agent.harness_config)
