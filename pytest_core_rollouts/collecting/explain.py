"""The text that the terminal shows for a failed or broken rollout: short and escaped."""

from __future__ import annotations

import json
from typing import Any

from pytest_core_rollouts.grading.comparing import MISSING, NOTHING
from pytest_core_rollouts.records.record import RolloutRecord
from pytest_core_rollouts.records.why import shown_why
from pytest_core_rollouts.text import printable, reward_text

REASONS_SHORT = 12
"""The most places that are shown without -vv."""
VALUE_SHORT, VALUE_WHOLE = 160, 10_000
"""Characters of a value shown, without and with -vv."""


def explain_wrong(record: RolloutRecord, *, whole: bool = False, hide_expected: bool = False) -> str:
    """Return why the reward is below 1: each place that differs, with both values, and the notes."""
    width = VALUE_WHOLE if whole else VALUE_SHORT
    why = shown_why(record, hide_expected=hide_expected)
    lines = [f"reward {reward_text(record.reward or 0.0)}: {why}"]
    if record.error and record.error != why:
        lines.append(printable(record.error, width * 4))
    reasons = list(record.reasons)
    shown = reasons if whole else reasons[:REASONS_SHORT]
    for reason in shown:
        lines.append(f"{printable(str(reason['path']), width)}:")
        if not hide_expected:
            lines.append(f"    expected {_value(reason['expected'], width)}")
        lines.append(f"    answered {_value(reason['answered'], width)}")
    if len(reasons) > len(shown):
        lines.append(f"... and {len(reasons) - len(shown)} more; -vv shows all")
    lines += [f"note: {printable(note, width * 4)}" for note in record.notes if note != why]
    if record.answer_text is not None:
        lines.append(f"the agent wrote: {printable(record.answer_text, width * 4)}")
    return "\n".join([*lines, _where(record)])


def explain_fault(record: RolloutRecord) -> str:
    """Return why there is no reward: what failed, and the ids to look it up."""
    lines = [f"{record.status}, no reward: {printable(record.error or 'no reason given', VALUE_WHOLE)}"]
    lines += [f"note: {printable(note, VALUE_WHOLE)}" for note in record.notes]
    return "\n".join([*lines, _where(record)])


def _where(record: RolloutRecord) -> str:
    parts = [record.rollout_id]
    if record.session_id:
        parts.append(f"Session {printable(record.session_id, 100)}")
    if record.request_ids:
        name, request_id = list(record.request_ids.items())[-1]
        parts.append(f"last request {printable(request_id, 100)} ({name})")
    return f"[{', '.join(parts)}]"


def _value(value: Any, width: int) -> str:
    absent = isinstance(value, str) and value in (MISSING, NOTHING)
    return printable(str(value) if absent else json.dumps(value, ensure_ascii=False, default=str), width)
