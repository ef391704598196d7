"""Keys have no place in options: a command line is in the shell's history, in `ps` and in the log of every CI."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping

import pytest

from pytest_core_rollouts.options.declared import OPTIONS
from pytest_core_rollouts.options.values import OptionValues
from pytest_core_rollouts.records.masking import is_credential
from pytest_core_rollouts.secret_values import is_secret
from pytest_core_rollouts.tasks.task_settings import looks_secret

_LOOKS_LIKE_KEY = re.compile(
    r"\bsk-[A-Za-z0-9_-]{20,}|\bgh[pousr]_[A-Za-z0-9]{30,}|\bAKIA[0-9A-Z]{16}\b|\bAIza[0-9A-Za-z_-]{30,}"
    r"|\bxox[a-z]-[A-Za-z0-9-]{10,}|\bhf_[A-Za-z0-9]{30,}"
)


def refuse_keys(values: OptionValues, environ: Mapping[str, str] = os.environ) -> None:
    """Raise pytest.UsageError, which shows no value, where one of our options or ini keys holds a key."""
    keys = {text: name for name, text in environ.items() if looks_secret(name) and is_secret(text)}
    for name, text in _texts(values):
        problem = _problem(name, text, keys)
        if problem is not None:
            raise pytest.UsageError(
                f"{values.shown(name)}: holds {problem}; keys come from the environment only: OPENAI_API_KEY, "
                "MODEL_API_KEY, or the variable that an agent file's `api_key_env` names"
            )


def _texts(values: OptionValues) -> Iterator[tuple[str, str]]:
    for option in OPTIONS:
        if option.kind != "flag":
            for text in values.raw(option.name):
                yield option.name, text


def _problem(name: str, text: str, keys: Mapping[str, str]) -> str | None:
    for key, variable in keys.items():
        if key in text:
            return f"the value of {variable}"
    if _LOOKS_LIKE_KEY.search(text):
        return "what looks like a key"
    if name == "harness-config" and is_credential(text.partition("=")[0].rpartition(":")[2]):
        return "a key, as its name says"
    return None
