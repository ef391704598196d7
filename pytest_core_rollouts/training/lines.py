"""What is written: a JSON line a group, or a line a conversation. The schema is in `docs/training.md`.

Columns have one type each in every line, since loaders infer types from the first lines of a file: a text that is not
there is "", a list [], labels have the same members throughout, and what may be any JSON (a request to a model) stands
as JSON text. Only a number that is not known is null.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from pytest_core_rollouts.records.record import RolloutRecord
from pytest_core_rollouts.training.captures import Exchange
from pytest_core_rollouts.training.conversations import conversation
from pytest_core_rollouts.training.groups import Group, Sample

SCHEMA = 1

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
        "schema": SCHEMA,
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
        "request": _json(exchange.get("request")),
        "response": _json(exchange.get("response")),
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


def _json(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"))


def _line(value: Mapping[str, Any]) -> bytes:
    return json.dumps(value, allow_nan=False, separators=(",", ":")).encode("ascii") + b"\n"
