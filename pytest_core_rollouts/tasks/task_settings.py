"""Settings of a task that are more than a number or a text."""

from __future__ import annotations

import os
import re
from collections import defaultdict
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

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


# Findings of `check` that `silence` can name

UNFINISHED: Final = "TODO(new-task)"
"""Marks the parts of a scaffold that its author must write."""

FINDINGS: Final = {
    "load": "the task can't be loaded",
    "unfinished": "a part of the scaffold is unfinished",
    "output-path": "the instruction does not name /workspace/outputs/answer.json",
    "key-not-named": "the instruction does not name a key of the expected answer",
    "nested-key-not-named": "a nested key is neither in the instruction nor in a file",
    "answer-in-instruction": "the instruction contains every expected value",
    "answer-in-file": "one file contains every expected value, or is a copy of the expected answer",
    "expected-fails": "the expected answer does not earn 1",
    "wrong-answer-passes": "a wrong answer earns 1",
    "grader-fails": "the grader raises, takes too long, or gives no reward",
    "grader-unstable": "the grader gives one answer two rewards",
    "constrains-nothing": "an expected empty object, which every object matches",
    "zero-tolerance": "an expected 0.0 with a relative tolerance: 0 is the only match",
    "env-unlisted": "a variable of this machine that is neither listed in rollout_task_env nor secret",
    "no-solution": "solution/solve.sh is missing, so nothing shows that the task can be solved",
    "solution-fails": "the solution does not earn 1",
    "solution-unstable": "the solution gives another answer each time",
    "nop-passes": "an agent that does nothing earns a reward",
    "warning": "a file of the task reaches the sandbox changed, or not at all",
    "silence-unused": "the task silences a finding that was not found",
}
"""Codes and what they mean."""

WARNINGS: Final = frozenset(
    (
        "nested-key-not-named",
        "constrains-nothing",
        "zero-tolerance",
        "env-unlisted",
        "no-solution",
        "warning",
        "silence-unused",
    )
)
"""Codes that are worth a look and no reason to fail."""


# Patterns of paths

_TOKEN = re.compile(r"\*\*/|\*\*|.", re.DOTALL)


class PathPattern:
    """A pattern: `*` and `?` stand for characters of one name, `**` for any characters, `**/` for any folders."""

    def __init__(self, written: str) -> None:
        self.written = written
        self._next: dict[str, int] = defaultdict(int)
        """By character, the places that it leads on from."""
        self._one_of_name = self._loops_in_name = self._loops = self._folder = self._in_folder = 0
        self._skip_one = self._skip_two = 0
        """Places that may be left without a character."""
        place = 1
        for token in _TOKEN.findall(written):
            place = self._add(token, place)
        self._end = place

    def _add(self, token: str, place: int) -> int:
        """Add a token at this place. Returns the place behind it."""
        if token == "**/":  # two places: where a folder begins, and within its name
            self._folder |= place
            self._in_folder |= place << 1
            self._skip_two |= place
            return place << 2
        if token in ("*", "**"):
            self._loops_in_name |= place
            self._loops |= place if token == "**" else 0
            self._skip_one |= place
        elif token == "?":
            self._one_of_name |= place
        else:
            self._next[token] |= place
        return place << 1

    def matches(self, path: str) -> bool:
        """Return whether the whole path matches."""
        places = self._skipped(1)
        for character in path:
            on = places & self._next.get(character, 0)
            if character == "/":
                stay = (places & self._loops) | (places & self._in_folder) >> 1
            else:
                on |= places & (self._one_of_name | self._folder)
                stay = places & (self._loops_in_name | self._in_folder)
            places = on << 1 | stay
            if not places:
                return False
            places = self._skipped(places)
        return bool(places & self._end)

    def _skipped(self, places: int) -> int:
        """These places, and those that can be reached from them without a character."""
        while (more := places | (places & self._skip_one) << 1 | (places & self._skip_two) << 2) != places:
            places = more
        return places
