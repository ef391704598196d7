"""Every option and ini key: how they are named and declared.

Canonical names start with `--rollout-`. A few are there under a bare name too (`--harness`), but only where nobody
else took it: pytest dies with a traceback when two add one name. So a bare name is added last, after the project's own
conftests were read, where it is free, and only when it was used, since a conftest that is read later may take it yet.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Final, Literal

import pytest


@dataclass(frozen=True)
class Option:
    """One setting: `--rollout-NAME`, `--BARE` where that is free, and the ini key `rollout_NAME`."""

    name: str
    metavar: str | None
    help: str
    kind: Literal["value", "list", "flag"] = "value"
    bare: str | None = None

    @property
    def flag(self) -> str:
        return f"--rollout-{self.name}"

    @property
    def dest(self) -> str:
        return "rollout_" + self.name.replace("-", "_")

    def argparse(self) -> dict[str, Any]:
        """The arguments of `addoption`; the default None tells what was not said."""
        alias = f" Short: {self.bare}." if self.bare else ""
        common = {"dest": self.dest, "default": None, "help": self.help + alias}
        if self.kind == "flag":
            return {**common, "action": "store_true"}
        return {**common, "action": "append" if self.kind == "list" else "store", "metavar": self.metavar}


def _value(name: str, metavar: str, text: str, *, bare: str | None = None) -> Option:
    return Option(name, metavar, text, "value", bare)


def _list(name: str, metavar: str, text: str, *, bare: str | None = None) -> Option:
    return Option(name, metavar, f"{text} Repeatable.", "list", bare)


OPTIONS: Final = (
    _list(
        "harness",
        "NAME",
        "Agent program to run: default (the deployment's own), codex, claude_sdk, mcode; on the embedded Core codex, "
        "claude_sdk, oracle, nop. Default: default; on the embedded Core oracle.",
        bare="--harness",
    ),
    _list(
        "model",
        "NAME",
        "Model for the harness, as the Core names it; every harness runs with every model. "
        "Default: the deployment's own.",
        bare="--model",
    ),
    _list("agent", "FILE", "YAML file that describes one agent: harness, model, instructions, tools and more."),
    _value("samples", "K", "Rollouts per task and agent. Default: 1.", bare="--samples"),
    _value(
        "core",
        "URL|embedded",
        "The Core to use: its URL, which ends in /v1 (default: $OPENAI_BASE_URL; the key is in $OPENAI_API_KEY), or "
        "`embedded` for one of our own on this machine.",
        bare="--core",
    ),
    _list("task", "ID", "Run only the task with exactly this id: its folder's path below the tasks folder."),
    _value("timeout", "S", "Seconds a rollout may take, sandbox preparation included. Default: 900."),
    _value("concurrency", "N", "Rollouts in flight per process. Default: 4; with -n: 1 in each worker."),
    _value("out", "PATH", "JSONL file that gets a line per finished rollout. Default: runs/<run_id>.jsonl."),
    _value("report", "PATH", "Write the report as Markdown to this file too."),
    _value("html", "PATH", "Write the HTML report, with every trajectory, to this file. Needs the extra `report`."),
    _value("html-items", "N", "Keep N Items of each trajectory in the HTML report, from both ends. Default: all."),
    _list(
        "gate",
        "EXPR",
        "What decides the exit code: each (default: every rollout asserts its reward), none (collect only), "
        "mean>=X, pass@K>=X, pass^K>=X, lost<=N or baseline. Each holds for every agent; all must pass.",
    ),
    _value("baseline", "PATH", "JSONL of an earlier run to compare with; the gates baseline and lost need it."),
    _value(
        "allow-errors",
        "N|N%",
        "Rollouts that infrastructure may spoil: shown as errored, and the gate decides without them if it can.",
    ),
    _value(
        "resume",
        "PATH",
        "Go on with the run of this JSONL (its newest, or PATH::RUN_ID): what has a result is kept, the rest is run.",
    ),
    _value("max-time", "S", "Start nothing more after so long: seconds, or 90m, 2h. Default: no limit."),
    _value("max-tokens", "N", "Start nothing more once so many tokens are spent. Default: no limit."),
    _value("replay", "PATH", "Grade the answers of this JSONL again, by today's tasks; nothing is run."),
    _value("network", "ACCESS", "The sandbox's network where the task does not say: disabled (default) or enabled."),
    _value(
        "retries",
        "N",
        "Further attempts for a rollout that an infrastructure error spoiled, never for a wrong answer. Default: 1.",
    ),
    _value(
        "failed-turns",
        "missing|zero",
        "What a Turn counts as that failed for a reason which the Core does not name: missing (default), or reward 0, "
        "for training. The embedded Core names every reason.",
    ),
    _list("label", "KEY=VALUE", "Label kept in every row of the JSONL and in the Session's metadata."),
    _value(
        "items",
        "WHERE",
        "Where trajectories go: inline (into the JSONL's rows; default), files (beside it) or none.",
    ),
    Option(
        "hide-expected",
        None,
        "Leave expected values out of failure texts and of the JSONL (for public CI logs).",
        "flag",
    ),
    _value(
        "model-base-url",
        "URL",
        "Your own model endpoint; {rollout_id} in it is filled in. Needs a model's name, and a key in $MODEL_API_KEY.",
        bare="--model-base-url",
    ),
    _value(
        "model-protocol",
        "NAME",
        "What the endpoint speaks: anthropic, responses or chat_completions. Default: what the harness speaks.",
        bare="--model-protocol",
    ),
    _list("harness-config", "HARNESS:KEY=JSON", 'Native parameter of a harness: codex:model_reasoning_effort="low".'),
    _value(
        "model-params",
        "JSON",
        "JSON object merged into each request to the model, on the embedded Core; {sample} in a text is filled in: "
        '\'{"temperature": 1, "seed": "{sample}"}\'.',
    ),
    _value("capture", "DIR", "Keep each rollout's model requests and replies, a JSONL each, on the embedded Core."),
    _value("context-window", "TOKENS", "The model's context window (mcode with a model base URL)."),
    _value("max-output-tokens", "TOKENS", "The most tokens a reply may have (mcode with a model base URL)."),
)

BY_NAME: Final = {option.name: option for option in OPTIONS}
BY_BARE: Final = {option.bare: option for option in OPTIONS if option.bare}

_INI_TYPES: Final[dict[str, Literal["args", "bool", "string"]]] = {"list": "args", "flag": "bool", "value": "string"}


def add_options(parser: pytest.Parser) -> None:
    """Declare the canonical names and the ini keys."""
    group = parser.getgroup("rollouts", "agent rollouts (pytest-core-rollouts)")
    for option in OPTIONS:
        group.addoption(option.flag, **option.argparse())
        parser.addini(option.dest, option.help, type=_INI_TYPES[option.kind], default=None)
    parser.addini(
        "rollout_tasks",
        "Folders that hold tasks, relative to the ini file. Default: tasks.",
        type="paths",
        default=None,
    )
    parser.addini(
        "rollout_task_env",
        "Names of environment variables that tasks may take with from_env; with it, no others. Default: any but the "
        "run's own keys.",
        type="args",
        default=None,
    )
    parser.addini(
        "rollout_run",
        "Run tasks wherever they are collected, without being asked to by an option or a path.",
        type="bool",
    )


def add_bare_options(parser: pytest.Parser, args: Sequence[str]) -> None:
    """Add the short names that `args` uses and that the project's conftests and plugins left free."""
    group = parser.getgroup("rollouts")
    for flag in sorted({arg.partition("=")[0] for arg in _unknown(parser, args)} & BY_BARE.keys()):
        group.addoption(flag, **BY_BARE[flag].argparse())


def restore_conftest_paths(config: pytest.Config, parser: pytest.Parser, args: Sequence[str]) -> None:
    """Let pytest look for conftests where it would without the values of bare options.

    Before a bare name is added, pytest's first pass takes `codex` of `--harness codex` for a path, and no longer reads
    the testpaths' conftests. The value stays a path beside them: the name may be a conftest's, and take no value.
    """
    paths: list[str] = config.known_args_namespace.file_or_dir
    bare = BY_BARE.keys() & set(_unknown(parser, args))
    values = {value for flag, value in pairwise(args) if flag in bare}
    if values and values.issuperset(paths):
        paths += default_paths(config)


def _unknown(parser: pytest.Parser, args: Sequence[str]) -> list[str]:
    try:
        return parser.parse_known_and_unknown_args(args)[1]
    except pytest.UsageError:
        return []  # pytest will say the same about these arguments


def default_paths(config: pytest.Config) -> list[str]:
    """Where pytest collects when no path is given."""
    here = config.invocation_params.dir
    if here == config.rootpath:
        patterns: list[str] = config.getini("testpaths")
        if found := [str(path) for pattern in patterns for path in sorted(_glob(here, pattern))]:
            return found
    return [str(here)]


def _glob(folder: Path, pattern: str) -> list[Path]:
    return [Path(pattern)] if Path(pattern).is_absolute() else list(folder.glob(pattern))
