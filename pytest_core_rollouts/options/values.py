"""Values of options and ini keys: found, and converted by functions that raise ValueError."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

import pytest

from pytest_core_rollouts.options.declared import BY_NAME
from pytest_core_rollouts.results.gate import AllowedErrors, Gate, GateError, parse_gate
from pytest_core_rollouts.strict_json import InvalidJSON, parse_json
from pytest_core_rollouts.tasks.folders import fs_name
from pytest_core_rollouts.tasks.matrix import FailedTurns
from pytest_core_rollouts.tasks.task_settings import Network

T = TypeVar("T")


@dataclass(frozen=True)
class LayeredSetting(Generic[T]):
    """A value that can be said in several places: command line > task.yaml > ini > default."""

    option: T | None
    ini: T | None
    default: T

    def resolve(self, task: T | None = None) -> T:
        """The value in force for a task that says `task` (None: says nothing)."""
        for value in (self.option, task, self.ini):
            if value is not None:
                return value
        return self.default


class OptionValues:
    """Options and ini values by their short name. What is wrong with one is a `pytest.UsageError` of one line."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config

    def shown(self, name: str) -> str:
        """The setting as whoever made it wrote it: `--samples`, `--rollout-samples` or `ini key rollout_samples`."""
        option = BY_NAME[name]
        if self._option(name) is None:
            return f"ini key {option.dest}"
        used = {os.fspath(arg).partition("=")[0] for arg in self._config.invocation_params.args}
        return option.bare if option.bare in used and option.bare else option.flag

    def text(self, name: str) -> str | None:
        """The command line's value, else the ini file's; None: neither says."""
        given = self._option(name)
        if given is None:
            return self._ini(name) or None
        return self._read(name, given)

    def texts(self, name: str) -> list[str]:
        """The same for a list."""
        given = self._option(name)
        return [self._read(name, text) for text in (self._ini(name) or () if given is None else given)]

    def raw(self, name: str) -> list[str]:
        """What was said, in one text or several, unchecked."""
        given = self._option(name)
        said = self._ini(name) if given is None else given
        return [said] if isinstance(said, str) else list(said or ())

    def switch(self, name: str) -> bool:
        """The same for a flag."""
        given = self._option(name)
        return bool(self._ini(name) if given is None else given)

    def path(self, name: str) -> Path | None:
        """A path of the command line counts from where pytest was called, one of the ini file from the rootdir."""
        text: str | None = self._ini(name) or None if self._option(name) is None else self._option(name)
        if text is not None and not text.strip():
            raise pytest.UsageError(f"{self.shown(name)}: is blank; give a path or leave it out")
        return None if text is None else self.base(name) / fs_name(text)

    def base(self, name: str) -> Path:
        """The folder that the setting's relative paths count from."""
        return self._config.rootpath if self._option(name) is None else self._config.invocation_params.dir

    def one(self, name: str, convert: Callable[[str], T], default: T) -> T:
        """The value, converted."""
        text = self.text(name)
        return default if text is None else self._convert(name, self.shown(name), text, convert)

    def each(self, name: str, convert: Callable[[str], T]) -> list[T]:
        """The list's values, converted."""
        return [self._convert(name, self.shown(name), text, convert) for text in self.texts(name)]

    def layered(self, name: str, convert: Callable[[str], T], default: T) -> LayeredSetting[T]:
        """The value of each layer: a task's own comes between them."""
        given, ini = self._option(name), self._ini(name) or None
        return LayeredSetting(
            None if given is None else self._convert(name, self.shown(name), given, convert),
            None if ini is None else self._convert(name, f"ini key {BY_NAME[name].dest}", ini, convert),
            default,
        )

    def _option(self, name: str) -> Any:
        return self._config.getoption(BY_NAME[name].dest)

    def _ini(self, name: str) -> Any:
        return self._config.getini(BY_NAME[name].dest)

    def _read(self, name: str, text: str) -> str:
        """The text as the UTF-8 it is, also where the locale made Python read it as ASCII."""
        try:
            text = text.encode("utf-8", "surrogateescape").decode("utf-8")
        except UnicodeError:
            raise pytest.UsageError(f"{self.shown(name)}: {text!a} is not UTF-8") from None
        if not text.strip():
            raise pytest.UsageError(f"{self.shown(name)}: is blank; give a value or leave it out")
        return text

    def _convert(self, name: str, shown: str, text: str, convert: Callable[[str], T]) -> T:
        try:
            return convert(text)
        except ValueError as error:
            raise pytest.UsageError(f"{shown}: {text!r} {error}") from None


def name(text: str) -> str:
    """The name of a harness or model: one line that is printed and goes over the wire as it is."""
    if not text.isprintable():
        raise ValueError("holds a control character, which no name does")
    return text


def positive_integer(text: str) -> int:
    if not re.fullmatch(r"[0-9]{1,9}", text) or int(text) < 1:
        raise ValueError("is no whole number of at least 1")
    return int(text)


def count(text: str) -> int:
    if not re.fullmatch(r"[0-9]{1,3}", text):
        raise ValueError("is no whole number from 0 to 999")
    return int(text)


def positive_seconds(text: str) -> float:
    if not re.fullmatch(r"[0-9]{1,9}(\.[0-9]{1,9})?", text) or float(text) <= 0:
        raise ValueError("is no number of seconds above 0, such as 900 or 2.5")
    return float(text)


def duration(text: str) -> float:
    """Seconds."""
    match = re.fullmatch(r"([0-9]{1,9}(?:\.[0-9]{1,9})?)([smhd]?)", text)
    if match is None or float(match[1]) <= 0:
        raise ValueError("is no time above 0, such as 900, 90m or 2h")
    return float(match[1]) * {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86400}[match[2]]


def network(text: str) -> Network:
    if text not in ("disabled", "enabled"):
        raise ValueError("is neither disabled nor enabled")
    return Network.enabled() if text == "enabled" else Network.disabled()


def failed_turns(text: str) -> FailedTurns:
    one_of("missing", "zero")(text)
    return "zero" if text == "zero" else "missing"


def one_of(*known: str) -> Callable[[str], str]:
    def convert(text: str) -> str:
        if text not in known:
            raise ValueError(f"is none of {', '.join(known)}")
        return text

    return convert


def gate(text: str) -> Gate:
    try:
        return parse_gate(text)
    except GateError as error:
        raise ValueError(f"is no gate: {error}") from None


def allowed_errors(text: str) -> AllowedErrors:
    return AllowedErrors.parse(text)


_OF_THE_HARNESS = ("input", "messages", "model", "prompt", "stream", "system", "tools")


def model_params(text: str) -> dict[str, Any]:
    try:
        params = parse_json(text.encode())
    except InvalidJSON as error:
        raise ValueError(f"is {error}") from None
    if not isinstance(params, dict):
        raise ValueError('is no JSON object, such as {"temperature": 0.7}')
    for name in params:
        if name in _OF_THE_HARNESS:
            raise ValueError(f"sets {name!r}, which is the harness's own to say")
    return params


def label(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not equals or not re.fullmatch(r"[A-Za-z][A-Za-z0-9_.-]{0,31}", key):
        raise ValueError("is no KEY=VALUE with a key of up to 32 letters, digits and '_.-', a letter first")
    if not value.isprintable():
        raise ValueError("has a control character in its value")
    if len(value) > 256:
        raise ValueError(f"has a value of {len(value)} characters; there is room for 256")
    return key, value
