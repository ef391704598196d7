"""What a list shows and a search finds of one rollout: why it has its reward, what it answered, and its cause.

A cause is what rollouts that went wrong have in common: a wrong place of the answer and the value there, or the kind of
an error. The overview counts causes, and a click on one shows its rollouts.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from pytest_core_rollouts.records.masking import HIDDEN
from pytest_core_rollouts.records.record import RolloutRecord
from pytest_core_rollouts.records.why import LACKING, NO_REASON, shown_why
from pytest_core_rollouts.results.health import fault_kind, without_specifics
from pytest_core_rollouts.text import clipped, one_line

VALUE = 60
"""Characters of an answered value in a cause."""
FOUND = 400
"""Characters that a search finds besides the reason."""
ANSWER = 120
"""Characters of an answer that a list shows."""
_INDEX = re.compile(r"\[\d+\]")
_ESCAPES = re.compile(r"\x1b(?:\[[0-9;:?<=>]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?)")


@dataclass(frozen=True)
class Cause:
    """`text` is the same for all rollouts of one cause; `value` is what this one answered there, if it did."""

    text: str
    value: str | None = None
    expected: str | None = None


@dataclass(frozen=True)
class Brief:
    """What the index says about one rollout besides its numbers."""

    items: int
    why: str
    answer: str
    found: str
    """More text that a search finds: the other reasons, and the last lines of commands that failed."""
    cause: Cause | None

    @classmethod
    def of(cls, record: RolloutRecord, *, hide_expected: bool) -> Brief:
        answer = "" if record.answer is None else _value(record.answer, ANSWER)
        found = [*_other_reasons(record, hide_expected=hide_expected), *_last_lines(record.items or ())]
        return cls(
            len(record.items or ()),
            shown_why(record, hide_expected=hide_expected) or "",
            answer or _clean(record.answer_text or "", ANSWER),
            _clean("\n".join(found), FOUND),
            cause_of(record, hide_expected=hide_expected),
        )


def cause_of(record: RolloutRecord, *, hide_expected: bool = False) -> Cause | None:
    """Return the cause of a rollout that went wrong; None for one that did not, did not run, or was meant to fail."""
    if record.solved or record.interrupted or (record.xfail and record.status == "completed"):
        return None
    if record.status != "completed":
        return Cause(_clean(fault_kind(record).removeprefix(f"{record.status}: "), 120))
    first = record.reasons[0] if record.reasons else None
    if not isinstance(first, dict):
        return Cause(without_specifics(record.why or NO_REASON))
    path = _INDEX.sub("[*]", _clean(str(first.get("path", "")), 80))
    if first.get("answered") in LACKING:
        return Cause(f"{path or 'the answer'}: missing")
    value = _value(first.get("answered"), VALUE)
    expected = None if hide_expected or first.get("expected", HIDDEN) == HIDDEN else _value(first["expected"], VALUE)
    return Cause(f"wrong {path}" if path else "wrong answer", value, expected)


def causes(
    rows: Sequence[RolloutRecord], briefs: Sequence[Brief]
) -> tuple[list[dict[str, Any]], list[tuple[int, int]]]:
    """Return the causes, the most frequent first, and for each row the positions of its cause and of its value there.

    Rows of one status and one cause are counted together. `values` are what they answered, the most frequent first.
    A position is -1 if there is none.
    """
    groups: dict[tuple[str, str], list[int]] = {}
    for at, (row, brief) in enumerate(zip(rows, briefs, strict=True)):
        if brief.cause is not None:
            groups.setdefault((_group(row), brief.cause.text), []).append(at)
    ordered = sorted(groups.items(), key=lambda one: (-len(one[1]), one[0]))
    positions = [(-1, -1)] * len(rows)
    found = []
    for number, ((_, text), places) in enumerate(ordered):
        own = [brief.cause for brief in map(briefs.__getitem__, places) if brief.cause is not None]
        values = sorted(Counter(one.value for one in own if one.value is not None).items(), key=lambda v: (-v[1], v[0]))
        at_value = {value: at for at, (value, _) in enumerate(values)}
        for at, one in zip(places, own, strict=True):
            positions[at] = number, -1 if one.value is None else at_value[one.value]
        expected = {one.expected for one in own}
        found.append(
            {
                "text": text,
                "count": len(places),
                "first": places[0],
                "values": values,
                "expected": expected.pop() if len(expected) == 1 else None,
            }
        )
    return found, positions


def _group(row: RolloutRecord) -> str:
    return "wrong" if row.status == "completed" else row.status


def _other_reasons(record: RolloutRecord, *, hide_expected: bool) -> Iterable[str]:
    for reason in record.reasons[:20]:
        if isinstance(reason, dict):
            keys = ("path", "answered") if hide_expected else ("path", "answered", "expected")
            yield " ".join(_value(reason[key], VALUE) for key in keys if key in reason)
        else:
            yield str(reason)[:VALUE]


def _last_lines(items: Sequence[Any]) -> Iterable[str]:
    """Yield the last line of each failed command's output: it names the exception."""
    for item in items:
        if isinstance(item, dict) and item.get("exit_code") and isinstance(output := item.get("output"), str):
            lines = _ESCAPES.sub("", output[-2000:]).strip().splitlines()
            yield from (line[:VALUE] for line in lines[-1:])


def _value(value: Any, limit: int) -> str:
    if isinstance(value, str):
        return json.dumps(clipped(value, limit), ensure_ascii=False)
    return _clean(json.dumps(value, ensure_ascii=False, default=str), limit)


def _clean(text: str, limit: int) -> str:
    return clipped(one_line(text[: 10 * limit]), limit)
