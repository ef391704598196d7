"""Every option and ini key: names, help texts, and how they are declared to pytest.

Canonical names start with `--rollout-`. A few options also have a bare name (`--harness`), but only if no plugin or
conftest has taken it: pytest ends with a traceback if two add the same name. So a bare name is added last, after the
project's conftests were read, and only if the command line uses it, because a conftest read later may still add it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Final, Literal

import pytest

from pytest_core_rollouts.options import completion


@dataclass(frozen=True)
class Option:
    """One setting: `--rollout-NAME`, the bare name if that is free, and, if `in_ini`, the ini key `rollout_NAME`."""

    name: str
    metavar: str | None
    help: str
    kind: Literal["value", "list", "flag"] = "value"
    bare: str | None = None
    in_ini: bool = True

    @property
    def flag(self) -> str:
        return f"--rollout-{self.name}"

    @property
    def dest(self) -> str:
        return "rollout_" + self.name.replace("-", "_")

    def argparse(self) -> dict[str, Any]:
        """Return the arguments of `addoption`. The default is None, so that an option that was not given is known."""
        alias = f" Short: {self.bare}." if self.bare else ""
        common = {
            "dest": self.dest,
            "default": None,
            "help": (self.help + alias).replace("%", "%%"),
        }  # argparse formats it
        if self.kind == "flag":
            return {**common, "action": "store_true"}
        if completion.REQUESTED and self.name in completion.ACTIONS:
            return {**common, "action": completion.ACTIONS[self.name], "metavar": self.metavar}
        return {**common, "action": "append" if self.kind == "list" else "store", "metavar": self.metavar}


def _value(name: str, metavar: str, text: str, *, bare: str | None = None, in_ini: bool = True) -> Option:
    return Option(name, metavar, text, "value", bare, in_ini)


def _list(name: str, metavar: str, text: str, *, bare: str | None = None) -> Option:
    return Option(name, metavar, f"{text} Repeatable.", "list", bare)


GROUPS: Final[Mapping[str, tuple[Option, ...]]] = {
    "what runs": (
        _list(
            "harness",
            "NAME",
            "Agent program to run: default (the deployment's), codex, claude_sdk, mcode; on the embedded Core codex, "
            "claude_sdk, oracle, nop, or the path of a harness file (./mini.yaml). Default: default; on the embedded "
            "Core "
            "oracle.",
            bare="--harness",
        ),
        _list("agent", "FILE", "YAML file that describes one agent: harness, model, instructions, tools and more."),
        _value(
            "core",
            "URL|embedded|openai",
            "The Core to use: its URL, which ends in /v1, `embedded` to run one on this machine, or `openai` for "
            "OpenAI's "
            "own service, which costs money (at $OPENAI_BASE_URL if that is set, as for a gateway). "
            "Default: $OPENAI_BASE_URL. The key is read from $OPENAI_API_KEY.",
            bare="--core",
        ),
        _list(
            "task", "ID", "Run only the task with exactly this id, which is its folder's path below the tasks folder."
        ),
        _value("timeout", "S", "Seconds that a rollout may take, including sandbox preparation. Default: 900."),
        _value(
            "network",
            "ACCESS",
            "Network access of the sandbox if the task does not set it: disabled or enabled. Default: disabled.",
        ),
        _value(
            "container-size",
            "SIZE",
            "Size of the sandbox on OpenAI's service: small, medium or large. Default: the service's, medium.",
        ),
        _value(
            "retries",
            "N",
            "Retry a rollout up to N times after an infrastructure error, never after a wrong answer. Default: 1.",
        ),
        _value(
            "failed-turns",
            "missing|zero",
            "How to count a Turn that failed for a reason that the Core does not name: missing, or zero (reward 0, "
            "for "
            "training). The embedded Core names every reason. Default: missing.",
        ),
        _value(
            "resume",
            "PATH",
            "Resume the run in this JSONL (the newest one, or PATH::RUN_ID): keep finished rollouts, run the rest.",
        ),
        _value(
            "shard",
            "I/N",
            "Run only shard I of N of a run, such as 2/3. Requires --rollout-run, the same in all shards; "
            "`report shard*.jsonl --gate EXPR` judges them together.",
        ),
        _value("run", "ID", "Id of this run: 1 to 40 of A-Z a-z 0-9 -. Default: made from the time.", in_ini=False),
        _value(
            "replay", "PATH", "Grade the answers in this JSONL again with the current tasks, without running any agent."
        ),
    ),
    "how much": (
        _value("samples", "K", "Rollouts per task and agent. Default: 1.", bare="--samples"),
        _value("concurrency", "N", "Rollouts in flight per process. Default: 4; with -n: 1 in each worker."),
        _value("max-time", "S", "Stop starting rollouts after this time: seconds, 90m or 2h. Default: no limit."),
        _value("max-tokens", "N", "Stop starting rollouts once this many tokens are used. Default: no limit."),
        _value(
            "max-cost",
            "DOLLARS",
            "Stop starting rollouts once they cost this much, by --rollout-prices. Default: no limit.",
        ),
        Option(
            "allow-unknown-cost",
            None,
            "With --rollout-max-cost, run agents whose model has no price or whose usage is never reported.",
            "flag",
        ),
        _value(
            "prices",
            "PATH",
            "YAML or JSON file with the prices of models, in dollars per million tokens: reports then show what "
            "rollouts "
            "cost.",
        ),
        _value(
            "plan-from",
            "PATH",
            "JSONL of an earlier run: tokens, cost and time to expect are printed before the first rollout, and "
            "shards get "
            "the same amount of work. Default: the baseline.",
        ),
    ),
    "what it decides": (
        _list(
            "gate",
            "EXPR",
            "What decides the exit code: each (default: every rollout asserts its reward), none (collect only), "
            "mean>=X, pass@K>=X, pass^K>=X, lost<=N or baseline; for some tasks only, "
            "mean[tag:NAME]>=X or mean[task:ID]>=X. A gate applies to each agent; all gates must pass.",
        ),
        _value(
            "stop",
            "certain|RISK%",
            "Start no rollouts that gates no longer need: `certain` if the rest can't change a verdict, or RISK% if "
            "the "
            "whole run would have another verdict in at most so many runs, such as 5%. Default: run all.",
        ),
        _value("baseline", "PATH", "JSONL of an earlier run to compare with; required by the gates baseline and lost."),
        _value(
            "allow-errors",
            "N|N%",
            "Tolerate up to N (or N%) rollouts with infrastructure errors. The gate decides on the rest if it can.",
        ),
        Option(
            "allow-missing",
            None,
            "Let gates judge what has a row. Planned rollouts that did not run, tasks of the baseline without a row, "
            "and a "
            "baseline that lacks rows are accepted; verdicts name them.",
            "flag",
        ),
    ),
    "what it writes": (
        _value(
            "out",
            "PATH",
            "JSONL file that gets one line per finished rollout. Default: runs/<run_id>.jsonl, "
            "or runs/<run_id>.shard-I-of-N.jsonl.",
        ),
        _value("report", "PATH", "Also write the report as Markdown to this file."),
        _value(
            "html", "PATH", "Write the HTML report, with every trajectory, to this file. Requires the extra `report`."
        ),
        _value("html-items", "N", "Keep N Items of each trajectory in the HTML report, from both ends. Default: all."),
        _list("label", "KEY=VALUE", "Label that is stored in every row of the JSONL and in the Session's metadata."),
        _value(
            "items",
            "WHERE",
            "Where to store trajectories: inline (in the JSONL's rows), files (next to it) or none. Default: inline.",
        ),
        Option(
            "hide-expected",
            None,
            "Leave expected values out of failure messages and the JSONL, for public CI logs.",
            "flag",
        ),
        _value(
            "capture",
            "DIR",
            "Save each rollout's model requests and replies in this folder, one JSONL each (embedded Core only).",
        ),
        Option(
            "capture-tokens",
            None,
            "Request token ids from the model's server, with the parameter of its protocol (with --rollout-capture).",
            "flag",
        ),
    ),
    "models": (
        _list(
            "model",
            "NAME",
            "Model for the harness, as the Core names it; every harness runs with every model. Default: the "
            "deployment's.",
            bare="--model",
        ),
        _value(
            "model-base-url",
            "URL",
            "Base URL of a model endpoint; {rollout_id} in it is replaced. Requires --model and a key in "
            "$MODEL_API_KEY.",
            bare="--model-base-url",
        ),
        _value(
            "model-protocol",
            "NAME",
            "Protocol of the endpoint: anthropic, responses or chat_completions. Default: the harness's protocol.",
            bare="--model-protocol",
        ),
        _list(
            "harness-config",
            "HARNESS:KEY=JSON",
            'Native parameter of a harness, such as codex:model_reasoning_effort="low".',
        ),
        _value(
            "model-params",
            "JSON",
            "JSON object to merge into each request to the model (embedded Core only); {sample} in a string is "
            "replaced: "
            '\'{"temperature": 1, "seed": "{sample}"}\'.',
        ),
        _value("context-window", "TOKENS", "The model's context window (mcode with --model-base-url)."),
        _value("max-output-tokens", "TOKENS", "Maximum number of tokens in a reply (mcode with --model-base-url)."),
    ),
}
"""The options in the groups of `--help`."""

OPTIONS: Final = tuple(option for options in GROUPS.values() for option in options)

BY_NAME: Final = {option.name: option for option in OPTIONS}
BY_BARE: Final = {option.bare: option for option in OPTIONS if option.bare}

_INI_TYPES: Final[dict[str, Literal["args", "bool", "string"]]] = {"list": "args", "flag": "bool", "value": "string"}


def add_options(parser: pytest.Parser) -> None:
    """Add the canonical names and the ini keys to pytest's parser."""
    for name, options in GROUPS.items():
        group = parser.getgroup(f"rollouts: {name}", f"agent rollouts: {name} (pytest-core-rollouts)")
        for option in options:
            group.addoption(option.flag, **option.argparse())
            if option.in_ini:
                parser.addini(option.dest, option.help, type=_INI_TYPES[option.kind], default=None)
    parser.addini(
        "rollout_tasks",
        "Folders with tasks, relative to the ini file. Default: tasks.",
        type="paths",
        default=None,
    )
    parser.addini(
        "rollout_task_env",
        "The only environment variables that tasks may read with from_env. Default: all except the run's keys.",
        type="args",
        default=None,
    )
    parser.addini(
        "rollout_run",
        "Run tasks whenever they are collected, even if no option or path requests it.",
        type="bool",
    )


def add_bare_options(parser: pytest.Parser, args: Sequence[str]) -> None:
    """Add the bare names that `args` uses and that no conftest or plugin of the project has taken."""
    groups = {option.bare: name for name, options in GROUPS.items() for option in options}
    asked = BY_BARE if completion.REQUESTED else {arg.partition("=")[0] for arg in _unknown(parser, args)}
    for flag in sorted(asked & BY_BARE.keys()):
        parser.getgroup(f"rollouts: {groups[flag]}").addoption(flag, **BY_BARE[flag].argparse())


def restore_conftest_paths(config: pytest.Config, parser: pytest.Parser, args: Sequence[str]) -> None:
    """Let pytest look for conftests where it would look without the values of bare options.

    Before a bare name is added, pytest's first pass takes `codex` in `--harness codex` for a path, so it does not read
    the conftests of testpaths. The value is kept as a path too: the option may be a conftest's that takes no value.
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
        return []  # pytest reports the same error for these arguments


def default_paths(config: pytest.Config) -> list[str]:
    """Return the paths where pytest collects if none is given."""
    here = config.invocation_params.dir
    if here == config.rootpath:
        patterns: list[str] = config.getini("testpaths")
        if found := [str(path) for pattern in patterns for path in sorted(_glob(here, pattern))]:
            return found
    return [str(here)]


def _glob(folder: Path, pattern: str) -> list[Path]:
    return [Path(pattern)] if Path(pattern).is_absolute() else list(folder.glob(pattern))
