"""Every option and ini key, checked, in one frozen Settings."""

from __future__ import annotations

import ipaddress
import json
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

import pytest

from pytest_core_rollouts.gate import Gate, GateError, parse_gate
from pytest_core_rollouts.matrix import HARNESS_PROTOCOLS, MODELLESS, Agent, MatrixError, check_distinct
from pytest_core_rollouts.options import BY_NAME, OPTIONS, Layered
from pytest_core_rollouts.tasks import Network, is_task

T = TypeVar("T")

EMBEDDED = "embedded"
EMBEDDED_HARNESSES = ("oracle", "nop")
MODEL_KEY = "MODEL_API_KEY"

settings_key = pytest.StashKey["Settings"]()


@dataclass(frozen=True)
class Settings:
    """What the command line, the ini file and the environment ask for. Keys are held out of every repr."""

    roots: tuple[Path, ...]
    """The folders that hold tasks (ini `rollout_tasks`)."""
    asked: bool = False
    """Whether rollouts may run at all."""
    agents: tuple[Agent, ...] = ()
    samples: Layered[int] = Layered(None, None, 1)
    timeout: Layered[float] = Layered(None, None, 900.0)
    network: Layered[Network] = Layered(None, None, Network.disabled())
    core: str | None = None
    """`embedded`, a base URL, or None: not configured."""
    tasks: frozenset[str] = frozenset()
    concurrency: int | None = None
    out: Path | None = None
    report: Path | None = None
    gates: tuple[Gate, ...] = ()
    retries: int = 1
    labels: Mapping[str, str] = field(default_factory=dict)
    items: str = "inline"
    hide_expected: bool = False
    core_key: str | None = field(default=None, repr=False)
    model_keys: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Environment variable -> key of a model provider."""

    @property
    def embedded(self) -> bool:
        return self.core == EMBEDDED

    @property
    def soft(self) -> bool:
        """Whether a gate, and not each rollout's own assertion, decides about rewards."""
        return any(not gate.asserts_each for gate in self.gates)

    @property
    def secrets(self) -> tuple[str, ...]:
        """Every key we know, to be masked wherever it turns up."""
        return tuple(key for key in (self.core_key, *self.model_keys.values()) if key)


def read_settings(config: pytest.Config) -> Settings:
    """Check everything that was asked for; a `pytest.UsageError` says in one line what is wrong and what to do."""
    reader = _Reader(config)
    roots = roots_of(config)
    if not (reader.any_option() or config.getini("rollout_run") or _names_a_root(config, roots)):
        return Settings(roots=roots)  # nothing else is looked at: a mistake in here must not cost anybody their tests
    core = reader.text("core") or os.environ.get("OPENAI_BASE_URL") or None
    if core is not None and core != EMBEDDED:
        core = _checked_url(core, BY_NAME["core"].shown if reader.text("core") else "OPENAI_BASE_URL")
    agents = _agents(reader, core)
    gates = tuple(_gate(text) for text in reader.texts("gate")) or (parse_gate("each"),)
    return Settings(
        roots=roots,
        asked=True,
        agents=agents,
        samples=reader.layered("samples", _positive_int, 1),
        timeout=reader.layered("timeout", _positive_seconds, 900.0),
        network=reader.layered("network", _network, Network.disabled()),
        core=core,
        tasks=_task_filter(reader.texts("task"), roots),
        concurrency=reader.one("concurrency", _positive_int),
        out=reader.path("out"),
        report=reader.path("report"),
        gates=gates,
        retries=reader.one("retries", _count) if reader.text("retries") is not None else 1,  # type: ignore[arg-type]
        labels=_labels(reader.texts("label")),
        items=reader.one("items", _choice("inline", "none")) or "inline",
        hide_expected=reader.switch("hide-expected"),
        core_key=os.environ.get("OPENAI_API_KEY") or None,
        model_keys=_model_keys(agents),
    )


class _Reader:
    """Options and ini values by their short name, each converted by a function that raises ValueError."""

    def __init__(self, config: pytest.Config) -> None:
        self.config = config

    def option(self, name: str) -> Any:
        return self.config.getoption(BY_NAME[name].dest)

    def ini(self, name: str) -> Any:
        return self.config.getini(BY_NAME[name].dest)

    def any_option(self) -> bool:
        return any(self.option(option.name) is not None for option in OPTIONS)

    def text(self, name: str) -> str | None:
        value = self.option(name)
        return value if value is not None else self.ini(name) or None

    def texts(self, name: str) -> list[str]:
        value = self.option(name)
        return list(value if value is not None else self.ini(name) or ())

    def switch(self, name: str) -> bool:
        value = self.option(name)
        return bool(value if value is not None else self.ini(name))

    def path(self, name: str) -> Path | None:
        """A path of the command line counts from where pytest was called, one of the ini file from the rootdir."""
        text = self.text(name)
        if text is None:
            return None
        base = self.config.invocation_params.dir if self.option(name) is not None else self.config.rootpath
        return base / text

    def one(self, name: str, convert: Callable[[str], T]) -> T | None:
        return self._convert(name, self.text(name), convert)

    def layered(self, name: str, convert: Callable[[str], T], default: T) -> Layered[T]:
        given, ini = self.option(name), self.ini(name) or None
        return Layered(self._convert(name, given, convert), self._convert(name, ini, convert), default)

    def _convert(self, name: str, text: str | None, convert: Callable[[str], T]) -> T | None:
        if text is None:
            return None
        try:
            return convert(text)
        except ValueError as error:
            shown = BY_NAME[name].shown if self.option(name) is not None else f"ini key {BY_NAME[name].dest}"
            raise pytest.UsageError(f"{shown}: {text!r} {error}") from None


def _positive_int(text: str) -> int:
    if not re.fullmatch(r"[0-9]{1,9}", text) or int(text) < 1:
        raise ValueError("is no whole number of at least 1")
    return int(text)


def _count(text: str) -> int:
    if not re.fullmatch(r"[0-9]{1,3}", text):
        raise ValueError("is no whole number from 0 to 999")
    return int(text)


def _positive_seconds(text: str) -> float:
    if not re.fullmatch(r"[0-9]{1,9}(\.[0-9]{1,9})?", text) or float(text) <= 0:
        raise ValueError("is no number of seconds above 0, such as 900 or 2.5")
    return float(text)


def _network(text: str) -> Network:
    if text not in ("disabled", "enabled"):
        raise ValueError("is neither disabled nor enabled")
    return Network.enabled() if text == "enabled" else Network.disabled()


def _choice(*known: str) -> Callable[[str], str]:
    def convert(text: str) -> str:
        if text not in known:
            raise ValueError(f"is none of {', '.join(known)}")
        return text

    return convert


def _gate(text: str) -> Gate:
    try:
        return parse_gate(text)
    except GateError as error:
        raise pytest.UsageError(f"{BY_NAME['gate'].shown}: {error}") from None


def _labels(texts: Sequence[str]) -> dict[str, str]:
    labels: dict[str, str] = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals or not re.fullmatch(r"[A-Za-z][A-Za-z0-9_.-]{0,31}", key) or len(value) > 256:
            raise pytest.UsageError(
                f"--rollout-label: {text!r} is no KEY=VALUE (KEY: up to 32 letters, digits, '_.-', a letter first; VALUE: up to 256 characters)"
            )
        if key in labels:
            raise pytest.UsageError(f"--rollout-label: {key!r} is given twice")
        labels[key] = value
    if len(labels) > 8:
        raise pytest.UsageError(f"--rollout-label: {len(labels)} labels; a Session's metadata has room for 8")
    return labels


# ---- the tasks roots, and whether rollouts were asked for


def roots_of(config: pytest.Config) -> tuple[Path, ...]:
    given: list[Path] | None = config.getini("rollout_tasks")
    return tuple(dict.fromkeys(Path(os.path.normpath(root)) for root in given or (config.rootpath / "tasks",)))


def _names_a_root(config: pytest.Config, roots: Sequence[Path]) -> bool:
    """Whether an argument is a tasks root or lies in one."""
    if config.args_source is not pytest.Config.ArgsSource.ARGS:
        return False
    paths = (Path(os.path.normpath(config.invocation_params.dir / arg.split("::")[0])) for arg in config.args)
    return any(path.is_relative_to(root) for path in paths for root in roots)


def _task_filter(ids: Sequence[str], roots: Sequence[Path]) -> frozenset[str]:
    for task_id in ids:
        if not any(is_task(root / task_id) for root in roots):
            raise pytest.UsageError(
                f"--rollout-task: no task {task_id!r} in {', '.join(map(str, roots))}; an id is the folder's path in there"
            )
    return frozenset(ids)


# ---- agents


def _agents(reader: _Reader, core: str | None) -> tuple[Agent, ...]:
    files = reader.texts("agent")
    harnesses, models = reader.texts("harness"), reader.texts("model")
    agents = [_agent_file(reader, file) for file in files]
    if harnesses or models or not files:
        default = "oracle" if core == EMBEDDED else "default"
        agents += [
            _agent(reader, harness, model) for harness in harnesses or [default] for model in models or ["default"]
        ]
    configured = _harness_config(reader.texts("harness-config"), agents)
    agents = [
        replace(agent, harness_config={**agent.harness_config, **configured.get(agent.harness, {})}) for agent in agents
    ]
    try:
        for agent in agents:
            agent.check()
        check_distinct(agents)
    except MatrixError as error:
        raise pytest.UsageError(str(error)) from None
    for agent in agents:
        _check_for_core(agent, core)
    return tuple(agents)


def _agent(reader: _Reader, harness: str, model: str) -> Agent:
    for name, value in (("harness", harness), ("model", model)):
        if not value.strip():
            raise pytest.UsageError(f"{BY_NAME[name].shown}: the name is blank")
    base_url = reader.text("model-base-url")
    return Agent(
        harness=harness,
        model=model,
        protocol=reader.text("model-protocol"),
        base_url=base_url,
        api_key_env=MODEL_KEY if base_url else None,
        context_window=reader.one("context-window", _positive_int),
        max_output_tokens=reader.one("max-output-tokens", _positive_int),
    )


def _agent_file(reader: _Reader, file: str) -> Agent:
    from pytest_core_rollouts.agent_file import AgentError, load_agent  # YAML is loaded only where it is wanted

    base = reader.config.invocation_params.dir if reader.option("agent") is not None else reader.config.rootpath
    try:
        agent = load_agent(base / file)
    except AgentError as error:
        raise pytest.UsageError(str(error)) from None
    if agent.base_url is not None and agent.api_key_env is None:
        agent = replace(agent, api_key_env=MODEL_KEY)
    return agent


def _harness_config(texts: Sequence[str], agents: Sequence[Agent]) -> dict[str, dict[str, Any]]:
    configured: dict[str, dict[str, Any]] = {}
    for text in texts:
        match = re.fullmatch(r"([^:=]+):([^=]+)=(.*)", text, re.DOTALL)
        if match is None:
            raise pytest.UsageError(f"--rollout-harness-config: {text!r} is no HARNESS:KEY=JSON")
        harness, key, value = match.groups()
        if harness not in HARNESS_PROTOCOLS or harness in MODELLESS:
            raise pytest.UsageError(f"--rollout-harness-config: {harness!r} is no harness that takes parameters")
        if not any(agent.harness == harness for agent in agents):
            raise pytest.UsageError(f"--rollout-harness-config: this run has no agent with the harness {harness!r}")
        try:
            configured.setdefault(harness, {})[key] = json.loads(value)
        except ValueError:
            raise pytest.UsageError(
                f"--rollout-harness-config: {value!r} is no JSON (a text needs its quotes: {key}={json.dumps(value)})"
            ) from None
    return configured


def _check_for_core(agent: Agent, core: str | None) -> None:
    where = f"agent {agent.name}" if agent.name is not None else f"harness {agent.harness}"
    if core == EMBEDDED and agent.harness not in EMBEDDED_HARNESSES:
        raise pytest.UsageError(f"{where}: the embedded Core runs {' and '.join(EMBEDDED_HARNESSES)} only")
    if core is not None and core != EMBEDDED and agent.harness in MODELLESS:
        raise pytest.UsageError(
            f"{where}: runs on the embedded Core alone (--core embedded): a solution must not leave this machine"
        )
    if agent.base_url is not None:
        _checked_url(agent.base_url.replace("{rollout_id}", "x"), f"{where}: model base URL")


def _model_keys(agents: Sequence[Agent]) -> dict[str, str]:
    names = {agent.api_key_env for agent in agents if agent.base_url is not None and agent.api_key_env}
    for name in sorted(names):
        if not os.environ.get(name):
            raise pytest.UsageError(f"a model base URL needs its key in the environment variable {name}, which is not set")
    return {name: os.environ[name] for name in names}


def _checked_url(text: str, where: str) -> str:
    """`text` without its trailing slash; https, or http towards this machine."""
    try:
        url = urlsplit(text)
        host, _ = url.hostname, url.port
    except ValueError as error:
        raise pytest.UsageError(f"{where}: {text!r} is no URL: {error}") from None
    if url.username is not None or url.password is not None:
        raise pytest.UsageError(f"{where}: credentials in the URL would end up in logs; give the key in its variable")
    if url.scheme not in ("http", "https") or not host:
        raise pytest.UsageError(f"{where}: {text!r} is no URL that starts with https://")
    if url.query or url.fragment:
        raise pytest.UsageError(f"{where}: {text!r} has a query or fragment, which a base URL can't have")
    if url.scheme == "http" and not is_loopback(host):
        raise pytest.UsageError(f"{where}: http:// would send the key in the clear; use https:// (http only to this machine)")
    return text.rstrip("/")


def is_loopback(host: str) -> bool:
    """Whether the host is this machine's own loopback interface."""
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
