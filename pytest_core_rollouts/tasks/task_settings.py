"""Settings of a task that are more than a number or a text."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

from pytest_core_rollouts.tasks.path_patterns import PathPattern

MIB: Final = 1024 * 1024


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


@dataclass(frozen=True)
class FromEnv:
    """A sandbox variable's value that is taken from the variable `name` of this machine, when the Session is created.

    A `secret` one is masked by its value wherever we write anything; None: it is secret if one of its names, here or
    in the sandbox, looks it (a Task decides that when it is made).
    """

    name: str
    secret: bool | None = None

    @property
    def value(self) -> str | None:
        """None where the variable is not set, or empty."""
        return os.environ.get(self.name) or None


RUN_KEYS: Final = ("OPENAI_API_KEY", "MODEL_API_KEY")
"""Variables of this machine with the run's own keys, for the Core and for models; an agent file may name others."""

_SECRET_NAME = re.compile(
    r"(?i)(key|token|secret|password|passwd|passphrase|credentials?|(^|_)(pass|pat)|_pwd)$"  # PWD itself is a folder
)


def looks_secret(variable: str) -> bool:
    """Whether an environment variable of this name holds a secret, as names go."""
    return _SECRET_NAME.search(variable) is not None


@dataclass(frozen=True)
class Outputs:
    """Further files of the agent that are fetched: patterns (`path_patterns`) of paths below `/workspace/outputs`, and
    caps in bytes.
    """

    files: tuple[str, ...]
    max_bytes: int = MIB
    max_total_bytes: int = 10 * MIB

    def pattern_of(self, path: str) -> str | None:
        """Return the first pattern that matches this path."""
        return next((pattern.written for pattern in self._patterns if pattern.matches(path)), None)

    @cached_property
    def _patterns(self) -> list[PathPattern]:
        return list(map(PathPattern, self.files))


@dataclass(frozen=True)
class Xfail:
    """A task that is beyond agents so far, and why. What is named narrows it: all of it must fit an agent."""

    reason: str
    harnesses: tuple[str, ...] = ()
    models: tuple[str, ...] = ()
    agents: tuple[str, ...] = ()
    """Names of agent files."""

    def applies_to(self, harness: str, model: str, agent: str | None) -> bool:
        named = ((self.harnesses, harness), (self.models, model), (self.agents, agent))
        return all(value in wanted for wanted, value in named if wanted)
