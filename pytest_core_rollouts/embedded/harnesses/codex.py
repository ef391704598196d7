"""Codex: the real program, `codex exec --json`, on a model of the Responses protocol."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from pytest_core_rollouts.embedded.installed import find_codex
from pytest_core_rollouts.embedded.model import DUMMY_KEY, inside_url

from .base import InvalidConfig, Job, Usage
from .native import Event, Malformed, failed, id_of, run_program, text_of, write_settings

if TYPE_CHECKING:
    from pytest_core_rollouts.embedded.sandbox import Sandbox
    from pytest_core_rollouts.embedded.trajectory import Call, Command, Trajectory

_HOME = "/home/agent/.codex"
_EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh")
_KEY = "MODEL_KEY"  # the variable that config.toml names
# Features of the program that need a network, or that outlive a rollout.
_FEATURES_OFF = (
    "apps",
    "browser_use",
    "computer_use",
    "goals",
    "hooks",
    "image_generation",
    "plugin_sharing",
    "plugins",
    "remote_plugin",
    "shell_snapshot",
    "skill_search",
    "tool_suggest",
    "unbounded_connection_retries",
)


class Codex:
    """`harness_config`: {"model_reasoning_effort": "low"}."""

    name = "codex"
    protocols: tuple[str, ...] = ("responses",)
    memory: int | None = None
    skills_folder: str | None = f"{_HOME}/skills"

    def check_config(self, config: Mapping[str, Any]) -> None:
        for member, value in config.items():
            if member != "model_reasoning_effort":
                raise InvalidConfig(
                    f"The codex harness has no parameter '{member}', only 'model_reasoning_effort'.", f".{member}"
                )
            if value not in _EFFORTS:
                raise InvalidConfig(f"'{member}' must be one of: {', '.join(_EFFORTS)}.", f".{member}")

    async def run(self, job: Job, sandbox: Sandbox, trajectory: Trajectory) -> Usage | None:
        await write_settings(job, sandbox, [(f"{_HOME}/config.toml", _configuration(job).encode())])
        thread = job.memory.get("thread")
        arguments = ["exec", *(["resume", thread] if thread else []), "--json", "--skip-git-repo-check"]
        events = _Events(job, trajectory)
        ended = await run_program(
            find_codex,
            [*arguments, "--dangerously-bypass-approvals-and-sandbox", "-"],
            job,
            sandbox,
            env={_KEY: DUMMY_KEY},
            prompt=job.prompt,
            on_event=events.handle,
        )
        if ended.status or not events.completed:
            raise failed(job, events.error, ended)
        assert job.proxy is not None
        return job.proxy.usage  # as the server counts: the agent can print any usage


class _Events:
    """Turns the program's events into Items."""

    def __init__(self, job: Job, trajectory: Trajectory) -> None:
        self.completed = False
        self.error = ""
        self._job = job
        self._trajectory = trajectory
        self._commands: dict[str, Command] = {}
        self._calls: dict[str, Call] = {}

    def handle(self, event: Event) -> None:
        kind = event["type"]
        if kind == "thread.started":
            self._job.memory["thread"] = id_of(event.get("thread_id"), "thread_id")
        elif kind == "turn.completed":
            self.completed = True
        elif kind in ("turn.failed", "error"):
            error = event.get("error", event)
            self.error = text_of(error.get("message") if isinstance(error, dict) else error)
        elif kind in ("item.started", "item.completed"):
            if not isinstance(item := event.get("item"), dict):
                raise Malformed("item: expected an object")
            self._handle_item(item, ended=kind == "item.completed")

    def _handle_item(self, item: Event, *, ended: bool) -> None:
        kind = item.get("type")
        if kind == "command_execution":
            self._handle_command(item, ended=ended)
        elif kind in ("file_change", "mcp_tool_call", "web_search"):
            self._handle_call(str(kind), item, ended=ended)
        elif kind == "agent_message" and ended:
            self._trajectory.assistant(text_of(item.get("text")), phase=None)
        elif kind == "reasoning" and ended:
            self._trajectory.reasoning(text_of(item.get("text")))

    def _handle_command(self, item: Event, *, ended: bool) -> None:
        id, code = id_of(item.get("id"), "item.id"), item.get("exit_code")
        if code is None:
            code = int(item.get("status") != "completed")
        elif isinstance(code, bool) or not isinstance(code, int) or not -(2**31) <= code < 2**31:
            raise Malformed("item.exit_code: expected an exit status")
        command = self._commands.get(id)
        if command is None:
            command = self._commands[id] = self._trajectory.command(text_of(item.get("command")))
        if ended:
            command.finish(text_of(item.get("aggregated_output")).encode("utf-8", "replace"), code)
            del self._commands[id]

    def _handle_call(self, kind: str, item: Event, *, ended: bool) -> None:
        """Report one of the program's own tools as a function call, because the API has no other Item for it."""
        id = id_of(item.get("id"), "item.id")
        call = self._calls.get(id)
        if call is None:
            name = "apply_patch" if kind == "file_change" else text_of(item.get("tool")) or kind
            arguments = {
                key: value for key, value in item.items() if key in ("changes", "arguments", "query", "server")
            }
            call = self._calls[id] = self._trajectory.call(name, arguments)
        if ended:
            well = item.get("status") in (None, "completed")
            result = item.get("result")
            output = text_of(result) if result is not None else None
            call.finish(output if well else None, error=None if well else text_of(item.get("error")) or "failed")
            del self._calls[id]


def _configuration(job: Job) -> str:
    """Return config.toml: the proxy is the only provider, nothing waits for a person, nothing is sent elsewhere."""
    assert job.proxy is not None
    retries = job.proxy.settings.retries
    top: dict[str, Any] = {
        "model": job.model,
        "model_provider": "core",
        "approval_policy": "never",
        "sandbox_mode": "danger-full-access",  # it runs in a sandbox already
        "web_search": "disabled",
        "check_for_update_on_startup": False,
    }
    if job.instructions is not None:
        top["developer_instructions"] = job.instructions
    if (effort := job.config.get("model_reasoning_effort")) is not None:
        top["model_reasoning_effort"] = effort
    tables: dict[str, dict[str, Any]] = {
        "model_providers.core": {
            "name": "core",
            "base_url": inside_url(),
            "env_key": _KEY,
            "wire_api": "responses",
            "request_max_retries": retries,
            "stream_max_retries": retries,
            "stream_idle_timeout_ms": 86_400_000,  # the proxy has its own limit
            "supports_websockets": False,
        },
        "analytics": {"enabled": False},
        "feedback": {"enabled": False},
        "otel": {"exporter": "none", "trace_exporter": "none", "metrics_exporter": "none"},
        "history": {"persistence": "none"},
        "features": dict.fromkeys(_FEATURES_OFF, False),
    }
    return _toml(top) + "".join(f"\n[{name}]\n{_toml(members)}" for name, members in tables.items())


def _toml(members: Mapping[str, Any]) -> str:
    return "".join(f"{name} = {_toml_value(value)}\n" for name, value in members.items())


def _toml_value(value: Any) -> str:
    """Return the value as JSON, which is valid TOML except for U+007F in strings."""
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
