"""A trajectory's Items as a conversation in the form of chat templates.

What it is: what the user and the agent said and did. What it is not: the prompt that the harness made of it. Its system
prompt, its tools' schemas and its own cuts stand in no Item; whoever needs the tokens as they were sampled takes what
the inference server recorded.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from pytest_core_rollouts.records.record import RolloutRecord, warn
from pytest_core_rollouts.training.groups import Group, Sample

Message = dict[str, Any]
Item = Mapping[str, Any]

SHELL: Final = "shell"
"""The name under which a command execution stands as a tool call; its arguments are {"command": ...}."""

_COMMON: Final = frozenset(("id", "type", "turn_id", "status", "call_id"))


def conversation(items: Iterable[Any]) -> list[Message]:
    """The messages, each with the members `role`, `content`, `reasoning_content`, `tool_calls`, `tool_call_id`.

    What is not there is "" or [], so that every member has one type throughout. Reasoning, what is said after it and
    the calls after that are one message of the assistant. A call of a kind that is unknown here bears its kind as the
    name of the tool.
    """
    writer = _Writer()
    for number, item in enumerate(items):
        if isinstance(item, Mapping):
            writer.add(item, f"call_{number}")
    return writer.messages


class _Writer:
    def __init__(self) -> None:
        self.messages: list[Message] = []
        self._open: Message | None = None  # the assistant's, as long as what follows may belong to it

    def add(self, item: Item, spare_id: str) -> None:
        kind = item.get("type")
        call_id = str(item.get("call_id") or item.get("id") or spare_id)
        if kind == "message" and item.get("role") == "assistant":
            self._part("content", _text(item.get("content")))
        elif kind == "message":
            role = {"developer": "system"}.get(str(item.get("role")), str(item.get("role")))
            self._append(role, _text(item.get("content")))
        elif kind == "reasoning":
            self._part("reasoning_content", _text(item.get("summary"), "\n\n"))
        elif kind == "function_call_output":
            self._append("tool", _outcome(item), call_id)
        else:
            self._call(item, call_id)

    def _part(self, member: str, text: str) -> None:
        """Reasoning comes before what is said, and both come before calls; else a new message begins."""
        message = self._open
        if message is None or message["content"] or message["tool_calls"]:
            message = self._begin()
        message[member] = "\n\n".join(filter(None, (message[member], text)))

    def _call(self, item: Item, call_id: str) -> None:
        name, arguments = _called(item)
        function = {"name": name, "arguments": _json(arguments)}
        message = self._open or self._begin()
        message["tool_calls"].append({"id": call_id, "type": "function", "function": function})
        if item.get("type") != "function_call":  # its output is an Item of its own
            self._append("tool", _outcome(item), call_id)

    def _begin(self) -> Message:
        self._open = self._append("assistant", "")
        return self._open

    def _append(self, role: str, content: str, call_id: str = "") -> Message:
        self._open = None
        message: Message = {"role": role, "content": content, "reasoning_content": ""}
        self.messages.append({**message, "tool_calls": [], "tool_call_id": call_id})
        return self.messages[-1]


def _called(item: Item) -> tuple[str, Any]:
    """The tool and its arguments."""
    kind = str(item.get("type"))
    if kind == "command_execution":
        return SHELL, {"command": item.get("command")}
    if kind in ("function_call", "mcp_call"):
        return str(item.get("name")), item.get("arguments")
    return kind, {name: value for name, value in item.items() if name not in _COMMON}


def _outcome(item: Item) -> str:
    """What a tool returned: its output, and what went wrong."""
    lines = [_text(item.get("output"))]
    if (error := item.get("error")) is not None:
        lines.append(f"[error: {_text(error)}]")
    if item.get("type") == "command_execution" and item.get("exit_code") not in (0, None):
        lines.append(f"[exit code {item['exit_code']}]")
    return "\n".join(filter(None, lines))


def _text(value: Any, joined_by: str = "") -> str:
    """Of a text, of a list of parts with `text` (others stand as `[their type]`), or of anything else as JSON."""
    if value is None:
        return ""
    if isinstance(value, str):
        return value
    if isinstance(value, list) and all(isinstance(part, Mapping) for part in value):
        return joined_by.join(
            part["text"] if isinstance(part.get("text"), str) else f"[{part.get('type')}]" for part in value
        )
    return _json(value)


def _json(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


# Captures


CAPTURE_SCHEMA = 1

Exchange = Mapping[str, Any]
"""One line: `session_id`, `started_at`, `duration_s`, `model`, `path`, `status`, `error`, `request`, `response`,
`truncated`, `prompt_token_ids`, `token_ids`, `logprobs`, and more."""

_FILE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")


class CaptureError(Exception):
    """A capture that is not there, can't be read, or lacks what was asked for; the text names the file."""


def exchanges(folder: Path, rollout_id: str, session_id: str | None) -> Iterator[Exchange]:
    """The exchanges of one rollout in their order, those of its counted Session alone; none without a file.

    A rollout that was tried again has the requests of its earlier Sessions in the same file. A half line at the very
    end, whose writer died, is passed over with a RecordsWarning. Raises CaptureError for any other line that is no
    exchange.
    """
    if not _FILE_NAME.fullmatch(rollout_id):
        return
    path = folder / f"{rollout_id}.jsonl"
    try:
        with path.open("rb") as file:
            for number, line in enumerate(file, 1):
                exchange = _parse(line, f"{path}:{number}")
                if exchange is not None and exchange.get("session_id") == session_id and _succeeded(exchange):
                    yield exchange
    except FileNotFoundError:
        return
    except OSError as error:
        raise CaptureError(f"{path}: cannot be read: {error.strerror or error}") from error


def check_tokens(exchange: Exchange, where: str) -> None:
    """Raise CaptureError unless the exchange has the token ids of its prompt and its reply, and logprobs that fit."""
    if exchange.get("truncated"):
        raise CaptureError(f"{where}: too large, kept in part only")
    lacking = [name for name in ("prompt_token_ids", "token_ids") if not exchange.get(name)]
    if lacking:
        raise CaptureError(
            f"{where}: the inference server returned no {' and no '.join(lacking)}; have it asked for them with "
            "--rollout-model-params, or leave --require-token-ids out"
        )
    logprobs, token_ids = exchange.get("logprobs"), exchange["token_ids"]
    if logprobs and len(logprobs) != len(token_ids):
        raise CaptureError(
            f"{where}: {len(token_ids)} token_ids and {len(logprobs)} logprobs; they do not belong together"
        )


def _parse(line: bytes, where: str) -> Exchange | None:
    """The exchange; None for a half line at the end."""
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        if not line.endswith(b"\n"):
            warn(f"{where}: passed over: the exchange was cut off")
            return None
        raise CaptureError(f"{where}: not JSON; remove the line, its writer died in it") from None
    if not isinstance(value, dict) or type(value.get("schema")) is not int:
        raise CaptureError(f"{where}: no exchange with a model; is this the folder of --rollout-capture?")
    if value["schema"] > CAPTURE_SCHEMA:
        raise CaptureError(
            f"{where}: schema {value['schema']} is newer than {CAPTURE_SCHEMA}: upgrade pytest-core-rollouts"
        )
    return value


def _succeeded(exchange: Exchange) -> bool:
    status = exchange.get("status")
    return exchange.get("error") is None and isinstance(status, int) and status < 300


# Lines


LINE_SCHEMA = 1

Exchanges = Callable[[Sample], Iterable[Exchange]]
"""Gives what was captured of a rollout."""


def group_lines(groups: Sequence[Group], exchanges: Exchanges | None = None) -> Iterator[bytes]:
    """A line a group. With `exchanges` each sample that is not masked carries its own. Raises CaptureError."""
    labels = _label_names(groups)
    for group in groups:
        yield _line(
            {
                **_common(group.first, labels),
                "planned": group.planned,
                "used": group.used,
                "complete": group.complete,
                "signal": group.signal,
                "mean": group.mean,
                "std": group.std,
                "samples": [_sample(sample, exchanges) for sample in group.samples],
            }
        )


def conversation_lines(groups: Sequence[Group]) -> Iterator[bytes]:
    """A line a rollout that is not masked, with its trajectory as a conversation. Raises RecordsError.

    Every row must have its Items.
    """
    labels = _label_names(groups)
    for group in groups:
        for sample in group.samples:
            if sample.masked:
                continue
            record = sample.row.whole()
            yield _line(
                {
                    **_common(record, labels),
                    "rollout_id": record.rollout_id,
                    "sample": record.sample,
                    "status": record.status,
                    "reward": _float(record.reward),
                    "advantage": sample.advantage,
                    "messages": conversation(record.items or ()),
                }
            )


def _common(record: RolloutRecord, labels: Sequence[str]) -> dict[str, Any]:
    return {
        "schema": LINE_SCHEMA,
        "group_id": record.group_id,
        "run_id": record.run_id,
        "task": record.task,
        "harness": record.harness,
        "model": record.model,
        "agent": str(record.agent.get("name") or record.agent.get("slug") or ""),
        "agent_digest": str(record.agent.get("digest") or ""),
        "labels": {name: str(record.labels.get(name, "")) for name in labels},
    }


def _sample(sample: Sample, exchanges: Exchanges | None) -> dict[str, Any]:
    record = sample.record
    said = {
        "rollout_id": record.rollout_id,
        "sample": record.sample,
        "status": record.status,
        "reward": _float(record.reward),
        "advantage": sample.advantage,
        "masked": sample.masked,
        "error": record.error or "",
    }
    if exchanges is not None:
        said["exchanges"] = [] if sample.masked else list(map(_exchange, exchanges(sample)))
    return said


def _exchange(exchange: Exchange) -> dict[str, Any]:
    return {
        "started_at": str(exchange.get("started_at") or ""),
        "duration_s": _float(exchange.get("duration_s")),
        "model": str(exchange.get("model") or ""),
        "request": _json_text(exchange.get("request")),
        "response": _json_text(exchange.get("response")),
        "truncated": bool(exchange.get("truncated")),
        "prompt_token_ids": exchange.get("prompt_token_ids") or [],
        "token_ids": exchange.get("token_ids") or [],
        "logprobs": list(map(float, exchange.get("logprobs") or ())),
    }


def _label_names(groups: Iterable[Group]) -> list[str]:
    return sorted({name for group in groups for name in group.first.labels})


def _float(value: Any) -> float | None:
    """Numbers as floats, 1.0 and not 1: a loader would take a column that begins with integers for one of these."""
    return float(value) if isinstance(value, (int, float)) else None


def _json_text(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"))


def _line(value: Mapping[str, Any]) -> bytes:
    return json.dumps(value, allow_nan=False, separators=(",", ":")).encode("ascii") + b"\n"
