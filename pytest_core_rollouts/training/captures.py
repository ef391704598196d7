"""What was asked of the model in a rollout, from the folder that `--rollout-capture` filled: DIR/ROLLOUT_ID.jsonl.

Each line of such a file is one exchange. Requests that failed (and were sent again, or ended the Turn) are not among
what is given: no token of theirs is part of the trajectory.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from pytest_core_rollouts.records.errors import warn

SCHEMA = 1

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
    if value["schema"] > SCHEMA:
        raise CaptureError(f"{where}: schema {value['schema']} is newer than {SCHEMA}: upgrade pytest-core-rollouts")
    return value


def _succeeded(exchange: Exchange) -> bool:
    status = exchange.get("status")
    return exchange.get("error") is None and isinstance(status, int) and status < 300
