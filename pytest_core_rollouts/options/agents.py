"""The agents of a run: `--harness` x `--model`, and agent files, each checked against the run's Core.

Also checks that no option holds a key: a command line is in the shell's history, in `ps` and in the log of every CI.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import pytest

from pytest_core_rollouts.agents_api.address import require_secure_url
from pytest_core_rollouts.engine.preflight import MODEL_KEY, check_agent, check_token_ids
from pytest_core_rollouts.options import values as option_values
from pytest_core_rollouts.options.declared import OPTIONS
from pytest_core_rollouts.options.values import OptionValues
from pytest_core_rollouts.records.masking import is_credential
from pytest_core_rollouts.rollout.dialects import Dialect
from pytest_core_rollouts.secret_values import is_secret
from pytest_core_rollouts.strict_json import InvalidJSON, read_json
from pytest_core_rollouts.tasks.folders import fs_name
from pytest_core_rollouts.tasks.harness_file import HarnessError, HarnessFile, is_harness_file, load_harness
from pytest_core_rollouts.tasks.matrix import (
    CONTAINER_SIZES,
    DEFAULT,
    HARNESS_PROTOCOLS,
    MODELLESS,
    Agent,
    MatrixError,
    check_distinct,
)
from pytest_core_rollouts.tasks.task_settings import looks_secret

EMBEDDED: Final = "embedded"
OPENAI_SERVICE: Final = "openai"


def agents_from_options(values: OptionValues, core: str | None, dialect: Dialect | None) -> tuple[Agent, ...]:
    """Return every agent that was named, or the default one.

    `core`: its URL, `embedded`, or None (unknown). `dialect`: what it speaks, or None (unknown).

    Raises pytest.UsageError, in one line, if an agent is invalid or two have the same name.
    """
    files = values.texts("agent")
    agents = [_from_file(values, file) for file in files]
    harnesses, models = _harnesses(values), values.each("model", option_values.name)
    if harnesses or models or not files:
        default = Agent("oracle" if core == EMBEDDED else DEFAULT)
        agents += [
            _agent(values, harness, model) for harness in harnesses or [default] for model in models or [DEFAULT]
        ]
    size = values.one("container-size", option_values.one_of(*CONTAINER_SIZES), None)
    agents = [agent if agent.container_size else replace(agent, container_size=size) for agent in agents]
    agents = [agent if dialect is None else dialect.resolve(agent) for agent in agents]
    for agent in agents:
        if agent.harness_file is not None:
            _refuse_key_in(agent.harness_file)
    agents = _with_harness_config(values, agents)
    try:
        for agent in agents:
            check_agent(agent, embedded=None if core is None else core == EMBEDDED, dialect=dialect)
            if values.switch("capture-tokens"):
                check_token_ids(agent)
        check_distinct(agents)
    except MatrixError as error:
        raise pytest.UsageError(str(error)) from None
    return tuple(agents)


def model_key_names(agents: Iterable[Agent]) -> list[str]:
    """Return the environment variables that hold the keys of the agents' model providers."""
    return sorted({agent.api_key_env for agent in agents if agent.base_url is not None and agent.api_key_env})


def secure_url(text: str, where: str) -> str:
    """Return the normalized base URL. Raises pytest.UsageError if it would send a key over plain http elsewhere."""
    try:
        return require_secure_url(text)
    except ValueError as error:
        raise pytest.UsageError(f"{where}: {error}") from None


def _harnesses(values: OptionValues) -> list[Agent]:
    """Return an agent for each harness that was named, by its name or by a harness file."""
    agents = []
    for name in values.each("harness", option_values.name):
        if is_harness_file(name):
            agents.append(Agent(harness_file=read_harness(values, values.base("harness") / fs_name(name))))
        else:
            agents.append(Agent(name))
    return agents


def read_harness(values: OptionValues, path: Path) -> HarnessFile:
    """Return the harness of a file. Raises pytest.UsageError, also if the file holds a key."""
    try:
        return load_harness(path, values.project)
    except HarnessError as error:
        raise pytest.UsageError(str(error)) from None


def _agent(values: OptionValues, harness: Agent, model: str) -> Agent:
    base_url = values.text("model-base-url")
    return replace(
        harness,
        model=model,
        protocol=values.text("model-protocol"),
        base_url=base_url,
        api_key_env=MODEL_KEY if base_url else None,
        context_window=values.one("context-window", option_values.positive_integer, None),
        max_output_tokens=values.one("max-output-tokens", option_values.positive_integer, None),
    )


def _from_file(values: OptionValues, file: str) -> Agent:
    from pytest_core_rollouts.options.agent_file import (  # it loads YAML, which few runs need here
        AgentError,
        load_agent,
    )

    try:
        agent = load_agent(values.base("agent") / fs_name(file), values.project)
    except AgentError as error:
        raise pytest.UsageError(str(error)) from None
    if agent.base_url is not None and agent.api_key_env is None:
        agent = replace(agent, api_key_env=MODEL_KEY)
    return agent


def _with_harness_config(values: OptionValues, agents: Sequence[Agent]) -> list[Agent]:
    given: dict[str, dict[str, Any]] = {}
    for harness, key, value in values.each("harness-config", _harness_config):
        where = values.shown("harness-config")
        if not any(agent.harness == harness for agent in agents):
            raise pytest.UsageError(f"{where}: no agent of this run uses the harness {harness!r}")
        if key in given.setdefault(harness, {}):
            raise pytest.UsageError(f"{where}: {harness}:{key} was given twice; remove one of them")
        given[harness][key] = value
    return [_configured(agent, given.get(agent.harness, {})) for agent in agents]


def _configured(agent: Agent, given: Mapping[str, Any]) -> Agent:
    return replace(agent, harness_config={**agent.harness_config, **given}) if given else agent


def _harness_config(text: str) -> tuple[str, str, Any]:
    match = re.fullmatch(r"([^:=]+):([^=]+)=(.*)", text, re.DOTALL)
    if match is None:
        raise ValueError(f"expected HARNESS:KEY=JSON, got {text!r}")
    harness, key, value = match.groups()
    if harness not in HARNESS_PROTOCOLS or harness in MODELLESS:
        raise ValueError(f"harness {harness!r} is unknown or has no parameters")
    try:
        return harness, key, read_json(value.encode("utf-8", "surrogatepass"), lenient=True)
    except InvalidJSON:
        raise ValueError(
            f"expected JSON after the '=', got {value!r}; write a string in quotes: {key}={json.dumps(value)}"
        ) from None


# Keys


_LOOKS_LIKE_KEY = re.compile(
    r"\bsk-[A-Za-z0-9_-]{20,}|\bgh[pousr]_[A-Za-z0-9]{30,}|\bAKIA[0-9A-Z]{16}\b|\bAIza[0-9A-Za-z_-]{30,}"
    r"|\bxox[a-z]-[A-Za-z0-9-]{10,}|\bhf_[A-Za-z0-9]{30,}"
)


def refuse_keys(values: OptionValues, environ: Mapping[str, str] = os.environ) -> None:
    """Raise pytest.UsageError if an option or ini key holds a key. The message does not show the value."""
    keys = _keys(environ)
    for name, text in _texts(values):
        problem = _problem(name, text, keys)
        if problem is not None:
            raise pytest.UsageError(
                f"{values.shown(name)}: {problem}; set keys only in the environment (OPENAI_API_KEY, MODEL_API_KEY, "
                'or the variable named by "api_key_env" in the agent file)'
            )


def _refuse_key_in(harness: HarnessFile, environ: Mapping[str, str] = os.environ) -> None:
    """Raise pytest.UsageError if a harness file holds a key: agents can read what is in it."""
    problem = _problem("harness", harness.path.read_text("utf-8"), _keys(environ))
    if problem is not None:
        raise pytest.UsageError(f"{harness.path}: {problem}, and agents can read it; write {{api_key}}")


def _keys(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the keys in the environment, with the name of each one's variable."""
    return {text: name for name, text in environ.items() if looks_secret(name) and is_secret(text)}


def _texts(values: OptionValues) -> Iterator[tuple[str, str]]:
    for option in OPTIONS:
        if option.kind != "flag":
            for text in values.raw(option.name):
                yield option.name, text


def _problem(name: str, text: str, keys: Mapping[str, str]) -> str | None:
    for key, variable in keys.items():
        if key in text:
            return f"contains the value of {variable}"
    if _LOOKS_LIKE_KEY.search(text):
        return "looks like an API key"
    if name == "harness-config" and is_credential(text.partition("=")[0].rpartition(":")[2]):
        return "sets an API key, by its name"
    return None
