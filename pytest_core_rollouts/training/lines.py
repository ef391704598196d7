"""The JSON lines that `export` writes. `docs/training.md` has their schema.

Loaders infer a column's type from the first lines of a file, so each column has one type in every line: a missing
string is "", a missing list [], labels always have the same members, and a model request, which may be any JSON, is
stored as JSON text. Only an unknown number is null.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from pytest_core_rollouts.records.record import RolloutRecord
from pytest_core_rollouts.training.captures import Exchange
from pytest_core_rollouts.training.conversations import conversation
from pytest_core_rollouts.training.groups import Group, Sample
from pytest_core_rollouts.training.sequences import sequences

LINE_SCHEMA = 1

Exchanges = Callable[[Sample], Iterable[Exchange]]
"""Returns the exchanges of a sample."""


def group_lines(groups: Sequence[Group], exchanges: Exchanges | None = None, *, text: bool = True) -> Iterator[bytes]:
    """Yield a JSON line per group. With `exchanges`, samples that are not masked include theirs.

    `text`: whether exchanges include their request and response. Raises CaptureError.
    """
    labels, metrics = _label_names(groups), _metric_names(groups)
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
                "samples": [_sample(sample, exchanges, metrics, text=text) for sample in group.samples],
            }
        )


def conversation_lines(groups: Sequence[Group]) -> Iterator[bytes]:
    """Yield a JSON line per rollout that is not masked, with its trajectory as a conversation.

    Every row must have its Items. Raises RecordsError.
    """
    labels, metrics = _label_names(groups), _metric_names(groups)
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
                    **_metrics(record, metrics),
                }
            )


def sequence_lines(groups: Sequence[Group], exchanges: Exchanges, counts: Counter[str]) -> Iterator[bytes]:
    """Yield a JSON line per token sequence of the samples that are not masked.

    Adds to `counts`: `rollouts` with a line, their `requests` and `sequences`, and `silent` rollouts, which made no
    request. Raises CaptureError.
    """
    labels, metrics = _label_names(groups), _metric_names(groups)
    for group in groups:
        for sample in group.samples:
            if sample.masked:
                continue
            requests = list(exchanges(sample))
            found = sequences(requests)
            counts.update(requests=len(requests), sequences=len(found), rollouts=bool(found), silent=not found)
            for number, sequence in enumerate(found):
                yield _line(
                    {
                        "input_ids": sequence.input_ids,
                        "loss_mask": sequence.loss_mask,
                        "logprobs": sequence.logprobs,
                        "advantage": sample.advantage,
                        "reward": _float(sample.record.reward),
                        "group_id": sample.record.group_id,
                        "rollout_id": sample.record.rollout_id,
                        "sequence": number,
                        "sequences": len(found),
                        "labels": _labels(sample.record, labels),
                        "complete": group.complete,
                        **_metrics(sample.record, metrics),
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
        "labels": _labels(record, labels),
    }


def _labels(record: RolloutRecord, names: Sequence[str]) -> dict[str, str]:
    return {name: str(record.labels.get(name, "")) for name in names}


def _sample(sample: Sample, exchanges: Exchanges | None, metrics: Sequence[str], *, text: bool) -> dict[str, Any]:
    record = sample.record
    line: dict[str, Any] = {
        "rollout_id": record.rollout_id,
        "sample": record.sample,
        "status": record.status,
        "reward": _float(record.reward),
        "advantage": sample.advantage,
        "masked": sample.masked,
        "error": record.error or "",
        **_metrics(record, metrics),
    }
    if exchanges is not None:
        line["exchanges"] = [] if sample.masked else [_exchange(one, text=text) for one in exchanges(sample)]
    return line


def _exchange(exchange: Exchange, *, text: bool) -> dict[str, Any]:
    return {
        "started_at": str(exchange.get("started_at") or ""),
        "duration_s": _float(exchange.get("duration_s")),
        "model": str(exchange.get("model") or ""),
        "request": _json_text(exchange.get("request")) if text else "",
        "response": _json_text(exchange.get("response")) if text else "",
        "truncated": bool(exchange.get("truncated")),
        "prompt_token_ids": exchange.get("prompt_token_ids") or [],
        "token_ids": exchange.get("token_ids") or [],
        "logprobs": list(map(float, exchange.get("logprobs") or ())),
    }


def _label_names(groups: Iterable[Group]) -> list[str]:
    return sorted({name for group in groups for name in group.first.labels})


def _metrics(record: RolloutRecord, names: Sequence[str]) -> dict[str, dict[str, float | None]]:
    """Return the member `metrics`, with null for those that the row does not have; nothing if no row has one."""
    return {"metrics": {name: _float(record.metrics.get(name)) for name in names}} if names else {}


def _metric_names(groups: Iterable[Group]) -> list[str]:
    """Return the metrics of all samples: each line has the same columns."""
    return sorted({name for group in groups for sample in group.samples for name in sample.record.metrics})


def _float(value: Any) -> float | None:
    """Return a number as a float: a loader takes a column that begins with integers for an integer column."""
    return float(value) if isinstance(value, (int, float)) else None


def _json_text(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"))


def _line(value: Mapping[str, Any]) -> bytes:
    return json.dumps(value, allow_nan=False, separators=(",", ":")).encode("ascii") + b"\n"
