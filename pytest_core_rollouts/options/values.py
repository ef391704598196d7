"""Values of options and ini keys: where they are found, and the functions that convert them.

A function that converts raises ValueError with a text that follows the option's name: `invalid choice 'x'; ...`."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any, Generic, TypeVar

import pytest

from pytest_core_rollouts.options.declared import BY_NAME
from pytest_core_rollouts.results.early_stop import StopRule
from pytest_core_rollouts.results.gate import AllowedErrors
from pytest_core_rollouts.results.gate_forms import parse_gate
from pytest_core_rollouts.results.gate_kinds import Gate
from pytest_core_rollouts.strict_json import InvalidJSON, parse_json
from pytest_core_rollouts.tasks.folders import fs_name
from pytest_core_rollouts.tasks.matrix import FailedTurns
from pytest_core_rollouts.tasks.task_settings import Network

T = TypeVar("T")


@dataclass(frozen=True)
class LayeredSetting(Generic[T]):
    """A value that can be set in several places: the command line wins over task.yaml, then ini, then the default."""

    option: T | None
    ini: T | None
    default: T

    def resolve(self, task_value: T | None = None) -> T:
        """Return the value that holds for a task whose own setting is `task_value` (None: not set)."""
        for value in (self.option, task_value, self.ini):
            if value is not None:
                return value
        return self.default


class OptionValues:
    """Options and ini values by their short name. Every method raises `pytest.UsageError` for an invalid value."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config

    def shown(self, name: str) -> str:
        """Return the setting as the user wrote it: `--samples`, `--rollout-samples` or `ini key rollout_samples`."""
        option = BY_NAME[name]
        if self._option(name) is None:
            return f"ini key {option.dest}"
        used = {os.fspath(arg).partition("=")[0] for arg in self._config.invocation_params.args}
        return option.bare if option.bare in used and option.bare else option.flag

    def text(self, name: str) -> str | None:
        """Return the value of the command line, else of the ini file, else None."""
        given = self._option(name)
        if given is None:
            return self._ini(name) or None
        return self._read(name, given)

    def texts(self, name: str) -> list[str]:
        """Return the values of a list: those of the command line, else those of the ini file."""
        given = self._option(name)
        return [self._read(name, text) for text in (self._ini(name) or () if given is None else given)]

    def raw(self, name: str) -> list[str]:
        """Return the texts that were given, unchecked."""
        given = self._option(name)
        raw = self._ini(name) if given is None else given
        return [raw] if isinstance(raw, str) else list(raw or ())

    def switch(self, name: str) -> bool:
        """Return whether a flag is set."""
        given = self._option(name)
        return bool(self._ini(name) if given is None else given)

    def path(self, name: str) -> Path | None:
        """Return a path: the command line's is relative to the working directory, the ini file's to the rootdir."""
        text: str | None = self._ini(name) or None if self._option(name) is None else self._option(name)
        if text is not None and not text.strip():
            raise pytest.UsageError(f"{self.shown(name)}: must not be blank; give a path or remove it")
        return None if text is None else self.base(name) / fs_name(text)

    @property
    def project(self) -> Path:
        """The project's folder."""
        return self._config.rootpath

    def base(self, name: str) -> Path:
        """Return the folder that the setting's relative paths are relative to."""
        return self._config.rootpath if self._option(name) is None else self._config.invocation_params.dir

    def one(self, name: str, convert: Callable[[str], T], default: T) -> T:
        """Return the value, converted."""
        text = self.text(name)
        return default if text is None else self._convert(name, self.shown(name), text, convert)

    def each(self, name: str, convert: Callable[[str], T]) -> list[T]:
        """Return the list's values, converted."""
        return [self._convert(name, self.shown(name), text, convert) for text in self.texts(name)]

    def layered(self, name: str, convert: Callable[[str], T], default: T) -> LayeredSetting[T]:
        """Return the value of each layer; a task's setting comes between them."""
        given, ini = self._option(name), self._ini(name) or None
        return LayeredSetting(
            None if given is None else self._convert(name, self.shown(name), given, convert),
            None if ini is None else self._convert(name, f"ini key {BY_NAME[name].dest}", ini, convert),
            default,
        )

    def _option(self, name: str) -> Any:
        return self._config.getoption(BY_NAME[name].dest)

    def _ini(self, name: str) -> Any:
        option = BY_NAME[name]
        return self._config.getini(option.dest) if option.in_ini else None

    def _read(self, name: str, text: str) -> str:
        """Return the text as UTF-8, even if the locale made Python decode it as ASCII."""
        try:
            text = text.encode("utf-8", "surrogateescape").decode("utf-8")
        except UnicodeError:
            raise pytest.UsageError(f"{self.shown(name)}: {text!a} is not UTF-8") from None
        if not text.strip():
            raise pytest.UsageError(f"{self.shown(name)}: must not be blank; give a value or remove it")
        return text

    def _convert(self, name: str, shown: str, text: str, convert: Callable[[str], T]) -> T:
        try:
            return convert(text)
        except ValueError as error:
            raise pytest.UsageError(f"{shown}: {error}") from None


def name(text: str) -> str:
    """Return the name of a harness or model unchanged: it is printed, and sent to the Core."""
    if not text.isprintable():
        raise ValueError(f"must not contain control characters, got {text!r}")
    return text


def positive_integer(text: str) -> int:
    if not re.fullmatch(r"[0-9]{1,9}", text) or int(text) < 1:
        raise ValueError(f"expected a positive integer, got {text!r}")
    return int(text)


def count(text: str) -> int:
    if not re.fullmatch(r"[0-9]{1,3}", text):
        raise ValueError(f"expected an integer from 0 to 999, got {text!r}")
    return int(text)


def positive_seconds(text: str) -> float:
    if not re.fullmatch(r"[0-9]{1,9}(\.[0-9]{1,9})?", text) or float(text) <= 0:
        raise ValueError(f"expected a number of seconds above 0, such as 900 or 2.5, got {text!r}")
    return float(text)


def duration(text: str) -> float:
    """Return the seconds of `900`, `90s`, `90m`, `2h` or `1d`."""
    match = re.fullmatch(r"([0-9]{1,9}(?:\.[0-9]{1,9})?)([smhd]?)", text)
    if match is None or float(match[1]) <= 0:
        raise ValueError(f"invalid duration {text!r}; use seconds, 90m or 2h")
    return float(match[1]) * {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86400}[match[2]]


def stop_rule(text: str) -> StopRule:
    return StopRule.parse(text)


def dollars(text: str) -> Fraction:
    """Return the amount of `25` or `2.50`."""
    if not re.fullmatch(r"[0-9]{1,9}(\.[0-9]{1,6})?", text) or not Fraction(text):
        raise ValueError(f"expected an amount in dollars above 0, such as 25 or 2.50, got {text!r}")
    return Fraction(text)


def network(text: str) -> Network:
    one_of("disabled", "enabled")(text)
    return Network.enabled() if text == "enabled" else Network.disabled()


def failed_turns(text: str) -> FailedTurns:
    one_of("missing", "zero")(text)
    return "zero" if text == "zero" else "missing"


def one_of(*known: str) -> Callable[[str], str]:
    def convert(text: str) -> str:
        if text not in known:
            raise ValueError(f"invalid choice {text!r}; choose from {', '.join(known)}")
        return text

    return convert


def gate(text: str) -> Gate:
    return parse_gate(text)


def allowed_errors(text: str) -> AllowedErrors:
    return AllowedErrors.parse(text)


_SET_BY_HARNESS = ("input", "messages", "model", "prompt", "stream", "system", "tools")


def model_params(text: str) -> dict[str, Any]:
    try:
        params = parse_json(text.encode())
    except InvalidJSON as error:
        raise ValueError(f"invalid JSON {text!r}: {str(error).removeprefix('not valid JSON: ')}") from None
    if not isinstance(params, dict):
        raise ValueError(f'expected a JSON object such as {{"temperature": 0.7}}, got {text}')
    for name in params:
        if name in _SET_BY_HARNESS:
            raise ValueError(f'"{name}" can\'t be set here; the harness sets it')
    return params


def shard(text: str) -> tuple[int, int]:
    """Return the number of the shard, from 1, and how many there are."""
    match = re.fullmatch(r"([1-9]\d{0,3})/([1-9]\d{0,3})", text, re.ASCII)
    if match is None or int(match[1]) > int(match[2]):
        raise ValueError(f"expected I/N, such as 2/3 for the second of three, got {text!r}")
    return int(match[1]), int(match[2])


def run_id(text: str) -> str:
    if re.fullmatch(r"[A-Za-z0-9-]{1,40}", text, re.ASCII) is None:
        raise ValueError(f"expected 1 to 40 of A-Z a-z 0-9 -, got {text!r}")
    return text


def label(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not equals or not re.fullmatch(r"[A-Za-z][A-Za-z0-9_.-]{0,31}", key):
        raise ValueError(
            f"invalid label {text!r}; use KEY=VALUE, where KEY has up to 32 letters, digits and '_.-' and starts with "
            "a letter"
        )
    if not value.isprintable():
        raise ValueError(f"the value of {key!r} must not contain control characters, got {value!r}")
    if len(value) > 256:
        raise ValueError(f"the value of {key!r} has {len(value)} characters; at most 256 are allowed")
    return key, value
