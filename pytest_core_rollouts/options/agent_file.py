"""An agent file: one agent in YAML, with everything that the Agents API lets vary.

All keys are optional: `name` (default: the file's name without its ending), `harness`, `model`, `protocol`,
`base_url`, `api_key_env` (the name of an environment variable; a file never contains the key itself), `instructions`,
`tools` (a list of mappings, sent unchanged), `skills` (a list of folders, or of mappings that are sent unchanged),
`harness_config` (a mapping, sent unchanged),
`context_window` and `max_output_tokens` (tokens). On OpenAI's service: `container_size`, `reasoning` (the effort) and
`service_tier`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from pytest_core_rollouts.options.skill_folder import pack_skill
from pytest_core_rollouts.tasks.folders import fs_name, utf8_name
from pytest_core_rollouts.tasks.harness_file import HarnessError, is_harness_file, load_harness
from pytest_core_rollouts.tasks.matrix import (
    CONTAINER_SIZES,
    EFFORTS,
    HARNESS_PROTOCOLS,
    PROTOCOLS,
    SERVICE_TIERS,
    Agent,
)
from pytest_core_rollouts.tasks.strict_yaml import (
    Invalid,
    Rule,
    YamlError,
    YamlFile,
    describe,
    each,
    load_yaml,
    mapping,
    positive_integer,
    text,
)
from pytest_core_rollouts.text import name_problem


class AgentError(Exception):
    """An agent file that can't be used. `str()` names the file, key and line, and says what to do."""


def load_agent(path: Path, project: Path | None = None) -> Agent:
    """Return the agent that a file describes. `project`: as in `load_harness`. Raises AgentError.

    `Agent.check` checks whether harness, model and provider fit together.
    """
    try:
        content = path.read_bytes()
    except OSError as error:
        raise AgentError(f"{path}: can't be read: {error.strerror}; pass the path of an agent file") from None
    try:
        file = load_yaml(path, content)
        values = {"name": utf8_name(path.stem), **file.checked(_RULES)}
        values["skills"] = tuple(_skill(file, index, one) for index, one in enumerate(values.get("skills", ())))
        if is_harness_file(harness := values.get("harness", "")):
            values["harness_file"] = load_harness(path.parent / fs_name(harness), project)
        agent = Agent(**values)
    except (YamlError, HarnessError) as error:
        raise AgentError(str(error)) from None
    if (problem := name_problem(str(agent.name))) is not None:
        raise AgentError(f'{path}: {problem}, or set "name" in it')
    return agent


def _skill(file: YamlFile, index: int, given: str | dict[str, Any]) -> dict[str, Any]:
    """Return a skill as it is sent; a folder's is packed."""
    try:
        return pack_skill(file.path.parent / fs_name(given)) if isinstance(given, str) else given
    except Invalid as invalid:
        raise file.error(invalid.problem, ("skills", index)) from None


def _name(value: Any) -> str:
    if (problem := name_problem(text(value))) is not None:
        raise Invalid(problem)
    return str(value)


def _one_of(known: Iterable[str]) -> Rule:
    def checked(value: Any) -> str:
        if value not in (names := tuple(known)):
            raise Invalid(f"invalid choice {value!r}; choose from {', '.join(names)}")
        return str(value)

    return checked


def _harness(value: Any) -> str:
    return str(value) if is_harness_file(value) else _one_of((*HARNESS_PROTOCOLS, "the path of a harness file"))(value)


def _base_url(value: Any) -> str:
    try:
        parts = urlsplit(text(value))
    except ValueError as error:
        raise Invalid(f"invalid URL: {error}; write https://host/v1") from None
    if parts.scheme not in ("https", "http") or not parts.hostname:
        raise Invalid(f"invalid URL {value!r}; write https://host/v1")
    if "@" in parts.netloc:
        raise Invalid('the URL contains credentials; remove them and name the key\'s variable in "api_key_env"')
    if parts.query or parts.fragment:
        raise Invalid(f"the URL {value!r} has a query or a fragment; remove it")
    return str(value)


def _api_key_env(value: Any) -> str:
    # A value that is refused may be a key, so the message does not repeat it.
    if not isinstance(value, str) or not re.fullmatch(r"[A-Z_][A-Z0-9_]*", value):
        raise Invalid("expected the name of an environment variable (A-Z, 0-9, _), such as MODEL_API_KEY, never a key")
    return value


def _no_key(value: Any) -> Any:
    raise Invalid('a file must not contain a key; set an environment variable and name it in "api_key_env"')


def _mappings(value: Any) -> tuple[dict[str, Any], ...]:
    if not isinstance(value, list):
        raise Invalid(f"expected a list of mappings, got {describe(value)}")
    return tuple(each(mapping)(value))


def _skills(value: Any) -> tuple[str | dict[str, Any], ...]:
    if not isinstance(value, list):
        raise Invalid(f"expected a list of folders, got {describe(value)}; write it as [skills/one]")
    return tuple(each(lambda one: text(one) if isinstance(one, str) else mapping(one))(value))


_RULES: Final[Mapping[str, Rule]] = {
    "name": _name,
    "harness": _harness,
    "model": _name,
    "protocol": _one_of(PROTOCOLS),
    "base_url": _base_url,
    "api_key_env": _api_key_env,
    "instructions": text,
    "tools": _mappings,
    "skills": _skills,
    "harness_config": mapping,
    "context_window": positive_integer,
    "max_output_tokens": positive_integer,
    "container_size": _one_of(CONTAINER_SIZES),
    "reasoning": _one_of(EFFORTS),
    "service_tier": _one_of(SERVICE_TIERS),
    "api_key": _no_key,
}
