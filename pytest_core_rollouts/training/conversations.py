"""What `export` writes: trajectories as conversations, captured model requests, and the JSON lines with both.

A conversation has the form of chat templates: what the user and the agent said and did. It is not the prompt that the
harness sent: its system prompt, tool schemas and truncation are in no Item. The tokens as they were sampled are only in
captures, which the inference server's replies fill. The schema of the lines is in `docs/training.md`.
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
"""The tool name of a command execution; its arguments are {"command": ...}."""

_COMMON: Final = frozenset(("id", "type", "turn_id", "status", "call_id"))


def conversation(items: Iterable[Any]) -> list[Message]:
    """Return the messages, each with `role`, `content`, `reasoning_content`, `tool_calls` and `tool_call_id`.

    A missing value is "" or [], so that every member always has the same type. Reasoning, the text after it and the
    calls after that are one assistant message. A call of an unknown kind has its kind as the tool name.
    """
    writer = _Writer()
    for number, item in enumerate(items):
        if isinstance(item, Mapping):
            writer.add(item, f"call_{number}")
    return writer.messages


class _Writer:
    def __init__(self) -> None:
        self.messages: list[Message] = []
        self._open: Message | None = None  # the assistant message that the next Item may continue

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
        """Add reasoning or text to the open message. Begin a new one if the open one has text or calls already."""
        message = self._open
        if message is None or message["content"] or message["tool_calls"]:
            message = self._begin()
        message[member] = "\n\n".join(filter(None, (message[member], text)))

    def _call(self, item: Item, call_id: str) -> None:
        name, arguments = _called(item)
        function = {"name": name, "arguments": _json(arguments)}
        message = self._open or self._begin()
        message["tool_calls"].append({"id": call_id, "type": "function", "function": function})
        if item.get("type") != "function_call":  # the output of a function call is a separate Item
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
    """Return the tool's name and its arguments."""
    kind = str(item.get("type"))
    if kind == "command_execution":
        return SHELL, {"command": item.get("command")}
    if kind in ("function_call", "mcp_call"):
        return str(item.get("name")), item.get("arguments")
    return kind, {name: value for name, value in item.items() if name not in _COMMON}


def _outcome(item: Item) -> str:
    """Return a tool's output, followed by its error and its exit code if it failed."""
    lines = [_text(item.get("output"))]
    if (error := item.get("error")) is not None:
        lines.append(f"[error: {_text(error)}]")
    if item.get("type") == "command_execution" and item.get("exit_code") not in (0, None):
        lines.append(f"[exit code {item['exit_code']}]")
    return "\n".join(filter(None, lines))


def _text(value: Any, joined_by: str = "") -> str:
    """Return a string, the joined texts of a list of parts (`[type]` for parts without text), or JSON."""
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


# Captures: one file DIR/ROLLOUT_ID.jsonl per rollout, filled by `--rollout-capture`


CAPTURE_SCHEMA = 1

Exchange = Mapping[str, Any]
"""One line of a capture: `session_id`, `started_at`, `duration_s`, `model`, `path`, `status`, `error`, `request`,
`response`, `truncated`, `prompt_token_ids`, `token_ids`, `logprobs`, and more."""

_FILE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")


class CaptureError(Exception):
    """A capture that is missing, unreadable or lacks required data. `str()` names the file."""


def exchanges(folder: Path, rollout_id: str, session_id: str | None) -> Iterator[Exchange]:
    """Yield the successful exchanges of a rollout's final Session, in order. Without a file yield none.

    The file also has the requests of earlier Sessions of a rollout that was retried, and failed requests, which no
    token of the trajectory comes from. An incomplete last line (its writer was killed) is skipped with a
    RecordsWarning. Raises CaptureError for any other invalid line.
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
        raise CaptureError(f"{where}: too large, only saved in part")
    missing = [name for name in ("prompt_token_ids", "token_ids") if not exchange.get(name)]
    if missing:
        raise CaptureError(
            f"{where}: the inference server returned no {' and no '.join(missing)}; request them with "
            "--rollout-model-params, or remove --require-token-ids"
        )
    logprobs, token_ids = exchange.get("logprobs"), exchange["token_ids"]
    if logprobs and len(logprobs) != len(token_ids):
        raise CaptureError(f"{where}: got {len(token_ids)} token_ids but {len(logprobs)} logprobs")


def _parse(line: bytes, where: str) -> Exchange | None:
    """Return the exchange, or None for an incomplete last line."""
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        if not line.endswith(b"\n"):
            warn(f"{where}: skipped an incomplete exchange")
            return None
        raise CaptureError(f"{where}: not valid JSON; remove this line, which was not written completely") from None
    if not isinstance(value, dict) or type(value.get("schema")) is not int:
        raise CaptureError(f"{where}: not a model request; check that this is the folder of --rollout-capture")
    if value["schema"] > CAPTURE_SCHEMA:
        raise CaptureError(
            f"{where}: schema {value['schema']} is newer than {CAPTURE_SCHEMA}; upgrade pytest-core-rollouts"
        )
    return value


def _succeeded(exchange: Exchange) -> bool:
    status = exchange.get("status")
    return exchange.get("error") is None and isinstance(status, int) and status < 300


# Lines
#
# Loaders infer a column's type from the first lines of a file, so each column has one type in every line: a missing
# string is "", a missing list [], labels always have the same members, and a model request, which may be any JSON, is
# stored as JSON text. Only an unknown number is null.


LINE_SCHEMA = 1

Exchanges = Callable[[Sample], Iterable[Exchange]]
"""Returns the exchanges of a sample."""


def group_lines(groups: Sequence[Group], exchanges: Exchanges | None = None) -> Iterator[bytes]:
    """Yield a JSON line per group. With `exchanges`, samples that are not masked include theirs.

    Raises CaptureError.
    """
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
    """Yield a JSON line per rollout that is not masked, with its trajectory as a conversation.

    Every row must have its Items. Raises RecordsError.
    """
    labels = _label_names(groups)
    for group in groups:
        for sample in group.samples:
            if sample.masked:
                continue
            record = sample.row.load()
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
    line = {
        "rollout_id": record.rollout_id,
        "sample": record.sample,
        "status": record.status,
        "reward": _float(record.reward),
        "advantage": sample.advantage,
        "masked": sample.masked,
        "error": record.error or "",
    }
    if exchanges is not None:
        line["exchanges"] = [] if sample.masked else list(map(_exchange, exchanges(sample)))
    return line


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
    """Return a number as a float: a loader takes a column that begins with integers for an integer column."""
    return float(value) if isinstance(value, (int, float)) else None


def _json_text(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"))


def _line(value: Mapping[str, Any]) -> bytes:
    return json.dumps(value, allow_nan=False, separators=(",", ":")).encode("ascii") + b"\n"
