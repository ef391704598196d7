"""The settings of a task: the rules for them, and `task.yaml`, which says them.

A task made in code is held to the same rules. All settings are optional; what is not said comes from the run.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from pytest_core_rollouts.grading import Tolerance
from pytest_core_rollouts.strict_yaml import (
    Invalid,
    Rule,
    check,
    describe,
    load_yaml,
    mapping,
    positive,
    positive_integer,
    sendable,
    text,
    texts,
)


@dataclass(frozen=True)
class Network:
    """What a sandbox may reach: `access` is `disabled`, `enabled`, or `restricted` to the `allowed_domains`."""

    access: str
    allowed_domains: tuple[str, ...] = ()

    @classmethod
    def disabled(cls) -> Network:
        """Nothing."""
        return cls("disabled")

    @classmethod
    def enabled(cls) -> Network:
        """Everything."""
        return cls("enabled")

    @property
    def is_disabled(self) -> bool:
        """Whether nothing can be reached."""
        return self.access == "disabled"

    def wire(self) -> dict[str, Any]:
        """As the Agents API takes it."""
        domains = {"allowed_domains": list(self.allowed_domains)} if self.allowed_domains else {}
        return {"access": self.access, **domains}


def read_settings(path: Path, content: bytes) -> dict[str, Any]:
    """The settings in a `task.yaml`, by their names in `Task`, checked. Raises YamlError with file, key and line."""
    return load_yaml(path, content).checked(RULES)


def _tags(value: Any) -> tuple[str, ...]:
    tags = texts(value)
    for index, tag in enumerate(tags):
        if not re.fullmatch(r"[a-z][a-z0-9_-]*", tag):
            raise Invalid(f"{tag!r} is no tag; use lower-case letters, digits, - and _, a letter first", (index,))
        if tag in _RESERVED_TAGS:
            raise Invalid(f"{tag!r} is a marker with a meaning of its own; choose another word", (index,))
        if tag in tags[:index]:
            raise Invalid(f"{tag!r} is there twice; remove one", (index,))
    return tags


_RESERVED_TAGS: Final = frozenset(
    ("skip", "skipif", "xfail", "parametrize", "usefixtures", "filterwarnings", "tryfirst", "trylast", "rollout")
)


def _tolerance(value: Any) -> Tolerance:
    if isinstance(value, Tolerance):
        return value
    given = check(mapping(value), {"relative": _relative, "absolute": positive})
    if not given:
        raise Invalid("relative or absolute is due; remove the key for the default")
    return Tolerance(**given)


def _relative(value: Any) -> float:
    if (number := positive(value)) >= 1:
        raise Invalid(f"a number below 1 is due (5 percent is 0.05), not {value!r}")
    return number


def _network(value: Any) -> Network:
    if isinstance(value, Network):
        value = {"allowed_domains": value.allowed_domains} if value.access == "restricted" else value.access
    if value in ("disabled", "enabled"):
        return Network(value)
    if isinstance(value, Mapping):
        domains = check(mapping(value), {"allowed_domains": _domains}).get("allowed_domains", ())
        if domains:
            return Network("restricted", domains)
    raise Invalid(f"disabled, enabled or {{allowed_domains: [...]}} is due, not {describe(value)}")


def _domains(value: Any) -> tuple[str, ...]:
    domains = texts(value)
    if not domains:
        raise Invalid("at least one domain is due; for none, write network: disabled")
    for index, domain in enumerate(domains):
        if not re.fullmatch(r"(\*\.)?[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*", domain):
            raise Invalid(f"{domain!r} is no domain; write it alone (pypi.org), without scheme, port or path", (index,))
    return domains


def _env(value: Any) -> dict[str, str]:
    return check(mapping(value), {name: _variable(name) for name in value})


def _variable(name: str) -> Rule:
    def checked(value: Any) -> str:
        if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
            raise Invalid("no name for a variable; use letters, digits and _, no digit first")
        if not isinstance(value, str):
            raise Invalid(f"a text is due, not {describe(value)}; put it in quotes")
        return sendable(value)

    return checked


def _packages(value: Any) -> dict[str, tuple[str, ...]]:
    return check(mapping(value), {"npm": texts, "python": texts, "system": _no_system_packages})


def _no_system_packages(value: Any) -> Any:
    raise Invalid("OpenAgentCore rejects system packages; use npm or python, or bring the programs in files/")


RULES: Final[Mapping[str, Rule]] = {
    "tags": _tags,
    "timeout": positive,
    "tolerance": _tolerance,
    "network": _network,
    "env": _env,
    "packages": _packages,
    "setup_commands": texts,
    "samples": positive_integer,
    "skip": text,
    "xfail": text,
}
"""The rule of each setting; each takes what YAML gives as well as what the setting is kept as."""
