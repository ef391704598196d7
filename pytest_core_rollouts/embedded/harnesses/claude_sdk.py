"""Claude Code: the real program, `claude -p`, on a model of the Messages protocol."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from pytest_core_rollouts.embedded.installed import find_claude
from pytest_core_rollouts.embedded.model import DUMMY_KEY, inside_url

from .base import InvalidConfig, Job, Usage
from .native import Event, Malformed, failed, id_of, run_program, text_of, write_settings

if TYPE_CHECKING:
    from pytest_core_rollouts.embedded.sandbox import Sandbox
    from pytest_core_rollouts.embedded.trajectory import Call, Command, Trajectory

_HOME = "/home/agent/.claude"
_INSTRUCTIONS = f"{_HOME}/instructions.md"
_EFFORTS = ("low", "medium", "high", "xhigh", "max")
_THINKING = ("adaptive", "enabled", "disabled")
_NETWORK_TOOLS = ("WebFetch", "WebSearch")
_SYNTHETIC = "<synthetic>"  # the "model" of messages in which the program itself reports a failure


class ClaudeSDK:
    """`harness_config`: {"effort": "low", "thinking": {"type": "enabled", "budget_tokens": 4096}}."""

    name = "claude_sdk"
    protocols: tuple[str, ...] = ("anthropic",)
    memory: int | None = None
    skills_folder: str | None = f"{_HOME}/skills"

    def check_config(self, config: Mapping[str, Any]) -> None:
        for member, value in config.items():
            if member == "effort":
                if value not in _EFFORTS:
                    raise InvalidConfig(f"'effort' must be one of: {', '.join(_EFFORTS)}.", ".effort")
            elif member == "thinking":
                _check_thinking(value)
            else:
                raise InvalidConfig(
                    f"The claude_sdk harness has no parameter '{member}', only 'effort' and 'thinking'.", f".{member}"
                )

    async def run(self, job: Job, sandbox: Sandbox, trajectory: Trajectory) -> Usage | None:
        assert job.proxy is not None
        arguments = ["-p", "--output-format", "stream-json", "--verbose", "--permission-mode", "bypassPermissions"]
        arguments += ["--model", job.model, "--disallowedTools", *_NETWORK_TOOLS, *_parameters(job.config)]
        if job.instructions is not None:
            await write_settings(job, sandbox, [(_INSTRUCTIONS, job.instructions.encode())])
            arguments += ["--append-system-prompt-file", _INSTRUCTIONS]
        if (session := job.memory.get("session")) is not None:
            arguments += ["--resume", session]
        env = {
            "ANTHROPIC_BASE_URL": inside_url(),
            "ANTHROPIC_API_KEY": DUMMY_KEY,
            "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
            "CLAUDE_CODE_MAX_RETRIES": str(job.proxy.settings.retries),
            "API_TIMEOUT_MS": "86400000",  # the proxy has its own limit
            "DISABLE_AUTOUPDATER": "1",
        }
        events = _Events(job, trajectory)
        ended = await run_program(
            find_claude, arguments, job, sandbox, env=env, prompt=job.prompt, on_event=events.handle
        )
        if ended.status or not events.completed:
            raise failed(job, events.error, ended)
        return None  # as on any Core, which does not report what the program counts


def _check_thinking(value: Any) -> None:
    if not isinstance(value, dict) or value.get("type") not in _THINKING:
        kinds = ", ".join(_THINKING)
        raise InvalidConfig(f"'thinking' must be an object whose 'type' is one of: {kinds}.", ".thinking")
    budget = value.get("budget_tokens")
    for member in value:
        if member != "type" and (member != "budget_tokens" or value["type"] != "enabled"):
            raise InvalidConfig(f"'thinking' of this type has no member '{member}'.", f".thinking.{member}")
    if value["type"] == "enabled" and (isinstance(budget, bool) or not isinstance(budget, int) or budget < 1024):
        message = "'thinking' of the type enabled needs 'budget_tokens', an integer of at least 1024."
        raise InvalidConfig(message, ".thinking.budget_tokens")


def _parameters(config: Mapping[str, Any]) -> list[str]:
    arguments = ["--effort", config["effort"]] if "effort" in config else []
    if (thinking := config.get("thinking")) is not None:
        if thinking["type"] == "enabled":
            arguments += ["--max-thinking-tokens", str(thinking["budget_tokens"])]
        else:
            arguments += ["--thinking", thinking["type"]]
    return arguments


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
        if kind == "result":
            self.completed = event.get("is_error") is False  # `subtype` is "success" even if an API call failed
            self.error = text_of(event.get("result")) or text_of(event.get("subtype"))
            return
        if kind not in ("assistant", "user"):
            return
        message = event.get("message")
        if not isinstance(message, dict):
            raise Malformed("message: expected an object")
        if not isinstance(content := message.get("content"), list):
            return  # a message of the user
        if kind == "assistant" and message.get("model") != _SYNTHETIC:
            self._job.memory["session"] = id_of(event.get("session_id"), "session_id")
        for block in content:
            if not isinstance(block, dict) or message.get("model") == _SYNTHETIC:
                continue
            if kind == "assistant":
                self._handle_block(block, of_subagent=event.get("parent_tool_use_id") is not None)
            elif kind == "user" and block.get("type") == "tool_result":
                self._handle_result(block)

    def _handle_block(self, block: Event, *, of_subagent: bool) -> None:
        kind = block.get("type")
        if kind == "text" and not of_subagent:
            self._trajectory.assistant(text_of(block.get("text")), phase=None)
        elif kind == "thinking" and not of_subagent and block.get("thinking"):
            self._trajectory.reasoning(text_of(block["thinking"]))
        elif kind == "tool_use":
            id, given = id_of(block.get("id"), "id"), block.get("input")
            if block.get("name") == "Bash" and isinstance(given, dict) and isinstance(given.get("command"), str):
                self._commands[id] = self._trajectory.command(given["command"])
            else:
                self._calls[id] = self._trajectory.call(text_of(block.get("name")), given, call_id=id)

    def _handle_result(self, block: Event) -> None:
        id, output = id_of(block.get("tool_use_id"), "tool_use_id"), _text_in(block.get("content"))
        is_error = block.get("is_error") is True
        if (command := self._commands.pop(id, None)) is not None:
            status, output = _exit_status(output, is_error)
            command.finish(output.encode("utf-8", "replace"), status)
        elif (call := self._calls.pop(id, None)) is not None:
            call.finish(None if is_error else output, error=output or "failed" if is_error else None)


def _text_in(content: Any) -> str:
    """Return the text of a tool's result, which is a string or a list of blocks."""
    if not isinstance(content, list):
        return text_of(content)
    return "\n".join(text_of(block.get("text")) for block in content if isinstance(block, dict) and "text" in block)


def _exit_status(output: str, is_error: bool) -> tuple[int, str]:
    """Return the exit status and the output without it: the program prints it in the first line of a failure."""
    if not is_error:
        return 0, output
    found = re.match(r"Exit code (\d{1,3})\b\n?", output)
    return (int(found[1]), output[found.end() :]) if found else (1, output)
