"""Captures: the model requests of each rollout, in one file DIR/ROLLOUT_ID.jsonl, filled by `--rollout-capture`."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from pytest_core_rollouts.records.rows import warn

CAPTURE_SCHEMA = 1

Exchange = Mapping[str, Any]
"""One line of a capture: `session_id`, `started_at`, `duration_s`, `model`, `path`, `status`, `error`, `request`,
`response`, `truncated`, `prompt_token_ids`, `token_ids`, `logprobs`, and more."""

_REQUEST_IDS: Final = {
    "chat_completions": "request them with --rollout-capture-tokens",
    "responses": "request them with --rollout-capture-tokens (vLLM returns them on this protocol)",
    "anthropic": "no known server does; use a harness that speaks chat_completions, such as mcode",
}
"""What to do about missing token ids, by protocol."""

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
        protocol = str(exchange.get("protocol") or "")
        on = f" on the protocol {protocol}" if protocol in _REQUEST_IDS else ""
        raise CaptureError(
            f"{where}: the inference server returned no {' and no '.join(missing)}{on}; "
            + _REQUEST_IDS.get(protocol, "docs/training.md says how to request them")
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
