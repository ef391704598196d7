"""Every option and ini key: how they are named, declared and read.

Canonical names start with `--rollout-`. A few are there under a bare name too (`--harness`), but only where nobody
else took it: pytest dies with a traceback when two plugins add one name, so bare names are added last, after the
project's own conftests were read, and only where they are free.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Generic, Literal, TypeVar

import pytest

T = TypeVar("T")


@dataclass(frozen=True)
class Option:
    """One setting: `--rollout-NAME`, `--BARE` where that is free, and the ini key `rollout_NAME`."""

    name: str
    help: str
    metavar: str | None = None
    kind: Literal["value", "list", "flag"] = "value"
    bare: str | None = None

    @property
    def flag(self) -> str:
        return f"--rollout-{self.name}"

    @property
    def dest(self) -> str:
        return "rollout_" + self.name.replace("-", "_")

    @property
    def shown(self) -> str:
        """The name to use in messages: the short one, where there is one."""
        return self.bare or self.flag

    def argparse(self) -> dict[str, Any]:
        if self.kind == "flag":
            return {"dest": self.dest, "action": "store_true", "default": None, "help": self.help}
        action = "append" if self.kind == "list" else "store"
        return {"dest": self.dest, "action": action, "default": None, "metavar": self.metavar, "help": self.help}


OPTIONS = (
    Option("harness", "Agent program to run: default, codex, claude_sdk, mcode; oracle and nop on the embedded Core. Repeatable; default: default.", "NAME", "list", "--harness"),
    Option("model", "Model for the harness, as the Core names it. Repeatable; every harness runs with every model. Default: the deployment's own.", "NAME", "list", "--model"),
    Option("agent", "YAML file that describes one agent: harness, model, instructions, tools and more. Repeatable.", "FILE", "list"),
    Option("samples", "Rollouts per task and agent. Default: 1.", "K", bare="--samples"),
    Option("core", "The Core to use: its URL (ends in /v1; default: $OPENAI_BASE_URL, with the key in $OPENAI_API_KEY), or `embedded` for one of our own on this machine.", "URL|embedded", bare="--core"),
    Option("task", "Run only the task with exactly this id. Repeatable.", "ID", "list"),
    Option("timeout", "Seconds a rollout may take, sandbox preparation included. Default: 900.", "S"),
    Option("concurrency", "Rollouts in flight per process. Default: 4; with -n: 1 in each worker.", "N"),
    Option("out", "JSONL file that gets a line per finished rollout; an existing one is appended to. Default: runs/<run_id>.jsonl.", "PATH"),
    Option("report", "Write the table as Markdown to this file too.", "PATH"),
    Option("gate", "What decides the exit code: `each` (default: every rollout asserts its reward) or `none` (collect only). Repeatable.", "EXPR", "list"),
    Option("network", "Network access of the sandbox, where the task does not say: disabled (default) or enabled.", "ACCESS"),
    Option("retries", "Further attempts for a rollout that an infrastructure error spoiled; never for a wrong answer. Default: 1.", "N"),
    Option("label", "Label kept in every record and in the Session's metadata. Repeatable.", "KEY=VALUE", "list"),
    Option("items", "Where the trajectory goes: inline (in the JSONL's rows; default) or none.", "WHERE"),
    Option("hide-expected", "Leave expected values out of failure texts and reports, for public CI logs.", kind="flag"),
    Option("model-base-url", "Your own model endpoint; {rollout_id} in it is filled in. Needs a model name, and its key in $MODEL_API_KEY.", "URL", bare="--model-base-url"),
    Option("model-protocol", "What the endpoint speaks: anthropic, responses or chat_completions. Default: what the harness speaks.", "NAME", bare="--model-protocol"),
    Option("harness-config", "Native parameter of a harness, such as codex:model_reasoning_effort=\"low\". Repeatable.", "HARNESS:KEY=JSON", "list"),
    Option("context-window", "The model's context window in tokens (mcode with a model base URL).", "TOKENS"),
    Option("max-output-tokens", "The most tokens a reply may have (mcode with a model base URL).", "TOKENS"),
)  # fmt: skip

BY_NAME = {option.name: option for option in OPTIONS}


def add_options(parser: pytest.Parser) -> None:
    """Declare the canonical names and the ini keys."""
    group = parser.getgroup("rollouts", "agent rollouts (pytest-core-rollouts)")
    for option in OPTIONS:
        group.addoption(option.flag, **option.argparse())
        types: dict[str, Literal["args", "bool", "string"]] = {"list": "args", "flag": "bool", "value": "string"}
        parser.addini(option.dest, option.help, type=types[option.kind], default=None)
    parser.addini("rollout_tasks", "Folders that hold tasks. Default: tasks.", type="paths", default=None)
    parser.addini("rollout_run", "Run the tasks whenever they are collected, without being asked by an option or a path.", type="bool")


def is_free(parser: pytest.Parser, flag: str) -> bool:
    """Whether nobody has added `flag` yet."""
    try:
        _, unknown = parser.parse_known_and_unknown_args([f"{flag}=0"])
    except pytest.UsageError:  # somebody's own option, that takes no such value
        return False
    return f"{flag}=0" in unknown


def add_bare_options(parser: pytest.Parser) -> None:
    """Add the short names that the project's conftests and plugins left free."""
    group = parser.getgroup("rollouts")
    for option in OPTIONS:
        if option.bare and is_free(parser, option.bare):
            group.addoption(option.bare, **{**option.argparse(), "help": f"Short for {option.flag}."})


def take_bare_values(config: pytest.Config, parser: pytest.Parser, args: list[str]) -> None:
    """Take the values of bare options out of the paths that conftests are looked for in.

    Before a bare name is added, pytest's first pass takes `codex` of `--harness codex` for a path; with a folder of
    that name there, the testpaths' own conftests would not be read.
    """
    bare = {option.bare for option in OPTIONS if option.bare and is_free(parser, option.bare)}
    paths: list[str] = config.known_args_namespace.file_or_dir
    for flag, value in zip(args, args[1:], strict=False):
        if flag in bare and value in paths:
            paths.remove(value)


@dataclass(frozen=True)
class Layered(Generic[T]):
    """A value that can be said in several places: command line > task.yaml > ini > default."""

    option: T | None
    ini: T | None
    default: T

    def over(self, task: T | None = None) -> T:
        """The value in force for a task that says `task` (None: says nothing)."""
        for value in (self.option, task, self.ini):
            if value is not None:
                return value
        return self.default
