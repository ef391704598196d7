"""Reads and checks all options, ini keys and environment variables of a run, and returns one frozen `Settings`."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from typing import Any, TypeVar

import pytest

from pytest_core_rollouts.engine.replay import Replay
from pytest_core_rollouts.engine.resume import Resumed
from pytest_core_rollouts.options import values as option_values
from pytest_core_rollouts.options.activation import any_option, roots_of, task_files
from pytest_core_rollouts.options.agents import (
    EMBEDDED,
    OPENAI_SERVICE,
    agents_from_options,
    model_key_names,
    refuse_keys,
    secure_url,
)
from pytest_core_rollouts.options.deciding import read_gates, read_max_cost, read_prices, read_stop
from pytest_core_rollouts.options.declared import BY_NAME
from pytest_core_rollouts.options.values import LayeredSetting, OptionValues
from pytest_core_rollouts.records.record import RecordsError
from pytest_core_rollouts.report.html import HtmlReportError, require_jinja
from pytest_core_rollouts.results.early_stop import StopRule
from pytest_core_rollouts.results.gate import AllowedErrors
from pytest_core_rollouts.results.gate_kinds import Gate
from pytest_core_rollouts.results.prices import Prices
from pytest_core_rollouts.rollout.dialects import OPENAGENTCORE, OPENAI, OPENAI_URL, Dialect, dialect_of
from pytest_core_rollouts.secret_values import is_secret
from pytest_core_rollouts.tasks.folders import find_task
from pytest_core_rollouts.tasks.matrix import Agent, FailedTurns
from pytest_core_rollouts.tasks.task import Task
from pytest_core_rollouts.tasks.task_settings import RUN_KEYS, Network

MAX_LABELS = 8

settings_key = pytest.StashKey["Settings"]()

T = TypeVar("T")


@dataclass(frozen=True)
class Settings:
    """What the command line, the ini file and the environment set. Its repr contains no key."""

    roots: tuple[Path, ...]
    """The folders that hold tasks (ini `rollout_tasks`)."""
    aimed: bool = False
    """Whether an option requested rollouts: then a run without a path collects only tasks."""
    agents: tuple[Agent, ...] = ()
    samples: LayeredSetting[int] = field(default=LayeredSetting(None, None, 1))
    timeout: LayeredSetting[float] = field(default=LayeredSetting(None, None, 900.0))
    network: LayeredSetting[Network] = field(default=LayeredSetting(None, None, Network.disabled()))
    core: str | None = None
    """`embedded`, a base URL (see `require_core`), or None: not configured."""
    dialect: Dialect | None = None
    """What the Core speaks; None: no Core is configured."""
    tasks: frozenset[str] = frozenset()
    """Ids of the only tasks to run; if empty, all."""
    task_env: frozenset[str] | None = None
    """Environment variables that tasks may read; None: all except those that hold a key of the run."""
    concurrency: int | None = None
    out: Path | None = None
    report: Path | None = None
    html: Path | None = None
    html_items: int | None = None
    """Number of Items of each rollout in the HTML report; None: all."""
    gates: tuple[Gate, ...] = ()
    baseline: Path | None = None
    allow_errors: AllowedErrors | None = None
    """How many errors leave the verdict to the gate; None: each is pytest's ERROR."""
    allow_missing: bool = False
    """Whether gates accept what is missing."""
    replay: Replay | None = None
    """Rows to grade again; then no agent runs."""
    resume: Resumed | None = None
    """The run to resume; None in xdist workers, which get it from their controller."""
    run_id: str | None = None
    """The id that the user gave the run."""
    shard: tuple[int, int] | None = None
    """The number of this shard, from 1, and how many there are."""
    plan_from: Path | None = None
    """JSONL of an earlier run, for the durations of rollouts."""
    max_time: float | None = None
    """Seconds after which no further rollout starts."""
    max_tokens: int | None = None
    stop: StopRule | None = None
    """When the run stops early; None: never."""
    max_cost: Fraction | None = None
    """Dollars after which no further rollout starts."""
    allow_unknown_cost: bool = False
    prices: Prices | None = None
    """Dollars per million tokens of models; None: reports show no cost."""
    retries: int = 1
    failed_turns: FailedTurns = "missing"
    labels: Mapping[str, str] = field(default_factory=dict)
    items: str = "inline"
    hide_expected: bool = False
    core_key: str | None = field(default=None, repr=False)
    capture: Path | None = None
    """The folder where the embedded Core saves model requests and replies."""
    model_params: Mapping[str, Any] = field(default_factory=dict)
    capture_tokens: bool = False
    """Parameters that the embedded Core merges into each request to a model."""
    model_keys: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Keys of model providers by environment variable."""

    @property
    def embedded(self) -> bool:
        return self.core == EMBEDDED

    def rollouts_of(self, task: Task) -> Iterator[tuple[Agent, int]]:
        """Yield the agent and the sample number of each rollout of a task."""
        if self.replay is not None:
            yield from self.replay.rollouts_of(task.id)
            return
        for agent in self.agents:
            for sample in range(self.samples.resolve(task.samples)):
                yield agent, sample

    @property
    def soft(self) -> bool:
        """Whether gates decide about rewards, and not an assertion in each rollout."""
        return any(not gate.asserts_each for gate in self.gates)

    @property
    def secrets(self) -> tuple[str, ...]:
        """All keys of the run, which are masked in every output."""
        return tuple(key for key in (self.core_key, *self.model_keys.values()) if key)

    def env_problem(self, task: Task) -> str | None:
        """Return why the task may not read an environment variable that it names, or None."""
        agents_keys = {agent.api_key_env for agent in self.agents}
        keys = {*self.secrets, *(os.environ.get(name) for name in RUN_KEYS)}  # also one that no agent of this run uses
        for variable, source in task.env.items():
            if isinstance(source, str):
                continue
            same = source.value is not None and is_secret(source.value) and source.value in keys
            if same or source.name in agents_keys:
                return (
                    f"env.{variable}: {source.name} holds a key of the run, which no task may read; "
                    "use another variable"
                )
            if self.task_env is not None and source.name not in self.task_env:
                return (
                    f"env.{variable}: tasks may not read {source.name}; "
                    "add it to the ini key rollout_task_env, or remove it here"
                )
        return None


def read_settings(config: pytest.Config) -> Settings:
    """Read and check all settings. Raises `pytest.UsageError` with one line: what is wrong and what to do."""
    values = OptionValues(config)
    roots = roots_of(config)
    refuse_keys(values)
    replay = _replay(values, config)
    core, dialect = _core(values) if replay is None else (None, None)
    agents = agents_from_options(values, core, dialect) if replay is None else replay.agents
    gates = read_gates(values, config)
    return Settings(
        roots=roots,
        aimed=any_option(config),
        agents=agents,
        samples=values.layered("samples", option_values.positive_integer, 1),
        timeout=values.layered("timeout", option_values.positive_seconds, 900.0),
        network=values.layered("network", option_values.network, Network.disabled()),
        core=core,
        dialect=dialect,
        tasks=_tasks(values, roots, config),
        task_env=None if (names := config.getini("rollout_task_env")) is None else frozenset(names),
        concurrency=values.one("concurrency", option_values.positive_integer, None),
        out=values.path("out"),
        report=_report(values),
        html=_html(values),
        html_items=values.one("html-items", option_values.positive_integer, None),
        gates=gates,
        run_id=_run_id(values),
        shard=_shard(values),
        plan_from=_plan_from(values),
        baseline=values.path("baseline"),
        allow_errors=values.one("allow-errors", option_values.allowed_errors, None),
        allow_missing=values.switch("allow-missing"),
        replay=replay,
        resume=None if hasattr(config, "workerinput") else _resume(values, config),
        max_time=values.one("max-time", option_values.duration, None),
        max_tokens=values.one("max-tokens", option_values.positive_integer, None),
        stop=read_stop(values, config, gates, replay),
        prices=(prices := read_prices(values)),
        max_cost=read_max_cost(values, prices, agents),
        allow_unknown_cost=values.switch("allow-unknown-cost"),
        retries=values.one("retries", option_values.count, 1),
        failed_turns=values.one("failed-turns", option_values.failed_turns, "missing"),
        labels=_labels(values),
        items=values.one("items", option_values.one_of("inline", "files", "none"), "inline"),
        hide_expected=values.switch("hide-expected"),
        capture=_require_embedded(values, "capture", values.path("capture"), core, replay),
        model_params=_require_embedded(
            values, "model-params", values.one("model-params", option_values.model_params, {}), core, replay
        ),
        capture_tokens=_capture_tokens(values),
        core_key=os.environ.get("OPENAI_API_KEY") or None,
        model_keys={name: key for name in model_key_names(agents) if (key := os.environ.get(name))},
    )


def _capture_tokens(values: OptionValues) -> bool:
    found = values.switch("capture-tokens")
    if found and values.path("capture") is None:
        raise pytest.UsageError(
            f"{values.shown('capture-tokens')}: requires --rollout-capture DIR, which keeps the ids"
        )
    return found


def _require_embedded(values: OptionValues, name: str, value: T, core: str | None, replay: Replay | None) -> T:
    """Return the value. Raises pytest.UsageError if it is set and the run does not use the embedded Core."""
    if value and core != EMBEDDED and replay is None:
        raise pytest.UsageError(
            f"{values.shown(name)}: requires --core embedded; on another Core set this at the inference server"
        )
    return value


def _core(values: OptionValues) -> tuple[str | None, Dialect | None]:
    """Return the Core and its dialect. A key selects no Core: a rollout on OpenAI's service costs money."""
    text, from_environment = values.text("core"), os.environ.get("OPENAI_BASE_URL") or None
    if text == EMBEDDED:
        return text, OPENAGENTCORE
    if text == OPENAI_SERVICE:
        return secure_url(from_environment or OPENAI_URL, "OPENAI_BASE_URL"), OPENAI
    core = from_environment if text is None else secure_url(text, values.shown("core"))
    return core, None if core is None else dialect_of(core)


def _tasks(values: OptionValues, roots: Sequence[Path], config: pytest.Config) -> frozenset[str]:
    ids = values.texts("task")
    if task_files(config):
        return frozenset(ids)  # tasks made in code are only known after collection
    for task in ids:
        if find_task(task, roots, config.rootpath) is None:
            folders = ", ".join(map(str, roots))
            raise pytest.UsageError(
                f"{values.shown('task')}: unknown task {task!r}; an id is a folder's path below {folders}"
            )
    return frozenset(ids)


def _run_id(values: OptionValues) -> str | None:
    run_id = values.one("run", option_values.run_id, None)
    for name in ("resume", "replay"):
        if run_id is not None and values.path(name) is not None:
            raise pytest.UsageError(
                f"{values.shown('run')}: can't be combined with --rollout-{name}; remove one of them"
            )
    return run_id


def _shard(values: OptionValues) -> tuple[int, int] | None:
    shard = values.one("shard", option_values.shard, None)
    if shard is None:
        return None
    if values.path("replay") is not None:
        raise pytest.UsageError(f"{values.shown('shard')}: can't be combined with --rollout-replay; remove one of them")
    if values.text("run") is None and values.path("resume") is None:
        raise pytest.UsageError(
            f"{values.shown('shard')}: requires --rollout-run ID, the same in all shards, such as the id of the CI run"
        )
    return shard


def _plan_from(values: OptionValues) -> Path | None:
    path = values.path("plan-from")
    if path is not None and not path.is_file():
        raise pytest.UsageError(f"{values.shown('plan-from')}: {path} does not exist")
    return path


def _replay(values: OptionValues, config: pytest.Config) -> Replay | None:
    path = values.path("replay")
    if path is None:
        return None
    for name in ("harness", "model", "agent", "samples", "core"):
        if config.getoption(BY_NAME[name].dest) is not None:
            raise pytest.UsageError(
                f"{values.shown(name)}: can't be combined with a replay, which has the rollouts of its file; "
                "select among them with -k, -m or --rollout-task"
            )
    out = values.path("out")
    if out is not None and out.exists() and out.samefile(path):
        raise pytest.UsageError(f"{values.shown('out')}: {out} is the file being replayed; choose another")
    try:
        return Replay.open(path)
    except RecordsError as error:
        raise pytest.UsageError(f"{values.shown('replay')}: {error}") from None


def _report(values: OptionValues, name: str = "report") -> Path | None:
    path = values.path(name)
    if path is not None and path.is_dir():
        raise pytest.UsageError(f"{values.shown(name)}: {path} is a folder; add a file name")
    return path


def _html(values: OptionValues) -> Path | None:
    path = _report(values, "html")
    if path is not None:
        try:
            require_jinja()
        except HtmlReportError as error:
            raise pytest.UsageError(f"{values.shown('html')}: {error}") from None
    return path


def _resume(values: OptionValues, config: pytest.Config) -> Resumed | None:
    path, run_id = values.path("resume"), None
    if path is None:
        return None
    shown = values.shown("resume")
    if values.path("replay") is not None:
        raise pytest.UsageError(f"{shown}: can't be combined with --rollout-replay; remove one of them")
    if (
        config.inipath is None
        and config.rootpath != config.invocation_params.dir
        and config.getoption("rootdir") is None
    ):
        here = config.invocation_params.dir
        if here.is_relative_to(config.rootpath) and not path.is_relative_to(
            here
        ):  # task ids are relative to the rootdir
            raise pytest.UsageError(
                f"{shown}: without an ini file pytest's rootdir is {config.rootpath}, so task ids would not match this "
                f"run's; add --rootdir {here}"
            )
    if not path.exists() and (named := re.fullmatch(r"(.+)::([A-Za-z0-9-]+)", path.name)):
        path, run_id = path.with_name(named[1]), named[2]
    out = values.path("out")
    # An `out` of the ini file is overridden by a `resume` of the command line, and the other way round.
    same_source = (config.getoption(BY_NAME["out"].dest) is None) == (config.getoption(BY_NAME["resume"].dest) is None)
    if out is not None and same_source and out.resolve() != path.resolve():
        raise pytest.UsageError(f"{values.shown('out')}: a resumed run continues in {path}; remove this option")
    try:
        return Resumed.open(path, run_id)
    except RecordsError as error:
        raise pytest.UsageError(f"{shown}: {error}") from None


def _labels(values: OptionValues) -> dict[str, str]:
    pairs = values.each("label", option_values.label)
    labels = dict(pairs)
    if len(labels) < len(pairs):
        twice = next(key for index, (key, _) in enumerate(pairs) if key in dict(pairs[:index]))
        raise pytest.UsageError(f"{values.shown('label')}: {twice!r} was given twice; remove one of them")
    if len(labels) > MAX_LABELS:
        raise pytest.UsageError(
            f"{values.shown('label')}: got {len(labels)} labels; a Session can have at most {MAX_LABELS}"
        )
    return labels
