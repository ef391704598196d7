"""Why a rollout's reward is not 1, in one short line, made from what its row says.

`RolloutRecord.why` holds it. Every report shows that field, so that all of them give one reason for one rollout.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

from pytest_core_rollouts.grading.comparing import MISSING, NOTHING
from pytest_core_rollouts.records.jsonable import jsonable
from pytest_core_rollouts.records.masking import HIDDEN
from pytest_core_rollouts.text import clipped, one_line, reward_text

if TYPE_CHECKING:
    from pytest_core_rollouts.records.record import RolloutRecord

LIMIT: Final = 120
"""Maximum number of characters."""
SEARCHED: Final = 10_000
"""Characters of a value that are searched for secrets; far more than are shown."""
NO_REASON: Final = "no reason given"
LACKING: Final = (MISSING, NOTHING)
"""What a reason has in place of an answered value if there is none."""

_ABOUT_THE_RUN = re.compile(
    r"attempt \d+: |waited \d|adopted a Session |the Core does not say |the Items could |the trajectory is cut "
    r"|outputs: |graded again: |not graded again: "
)
"""How notes begin that say nothing about the grade."""
_COUNT = re.compile(r"([\d,]+) (?:values differ|reasons); the first ")
_NOT_JSON = "the answer is not valid JSON: "
_NO_FILES = "no answer.json: "


def why_text(
    record: RolloutRecord,
    *,
    note: str | None = None,
    masked: Callable[[str], str] = str,
    hide_expected: bool = False,
) -> str | None:
    """Return why the reward is not 1, in one line of at most LIMIT characters; None if it is 1.

    * `note`: the note of the grade. None: the last note of the row that is about the grade.
    * `masked`: removes secrets from a text. It is called before anything is shortened, because half a secret would not
      be found.
    * `hide_expected`: whether expected values are left out.
    """
    if record.reward == 1:
        return None
    if record.reward is None:
        return _sentence(record.error or NO_REASON, masked)
    if record.status == "timeout":
        limit = record.settings.get("timeout")
        return f"over the limit of {limit:g} s" if isinstance(limit, (int, float)) else "over the limit"
    if record.error:
        return _sentence(record.error, masked)
    if record.reasons:
        return _first_difference(record, masked, hide_expected)
    note = note or next((one for one in reversed(record.notes) if not _ABOUT_THE_RUN.match(one)), None)
    return _sentence(_short_note(record, note), masked)


def shown_why(record: RolloutRecord, *, hide_expected: bool) -> str | None:
    """Return the record's `why` for a report; without expected values if they are hidden there."""
    return why_text(record, hide_expected=True) if hide_expected and record.reasons else record.why


def _sentence(text: str, masked: Callable[[str], str]) -> str:
    return clipped(one_line(masked(text[:SEARCHED])), LIMIT)


def _short_note(record: RolloutRecord, note: str | None) -> str:
    if note is None:
        return f"the grader gave {reward_text(record.reward or 0.0)}"
    if note.startswith(_NOT_JSON):
        fenced = (record.answer_text or "").lstrip().startswith("```")
        return f"not JSON: {'code fence' if fenced else note.removeprefix(_NOT_JSON)}"
    return "no answer.json" if note.startswith(_NO_FILES) else note


def _first_difference(record: RolloutRecord, masked: Callable[[str], str], hide_expected: bool) -> str:
    """Return `total: 324 expected, 342 answered (+2 more)`; path and values share the room."""
    first = record.reasons[0]
    if not isinstance(first, dict):  # of a file that something else wrote
        return _sentence(str(first), masked)
    counts = [int(found[1].replace(",", "")) for note in record.notes if (found := _COUNT.search(note))]
    more = max([len(record.reasons), *counts]) - 1
    end = f" (+{more:,} more)" if more else ""
    expected, answered = jsonable(first.get("expected")), jsonable(first.get("answered"))
    values = [str(first.get("path", "")), _value(expected), _value(answered)]
    shape = "{0}: {2} answered, not as expected" if answered != MISSING else "{0}: missing"
    if not (hide_expected or expected == HIDDEN):
        shape = "{0}: {1} expected, {2} answered" if answered != MISSING else "{0}: {1} expected, missing"
    values = [one_line(masked(value)) if f"{{{at}}}" in shape else "" for at, value in enumerate(values)]
    words = len(shape.format("", "", "")) + len(end)
    path, expected, answered = _shortened(values, LIMIT - words)
    return (shape.format(path, expected, answered) if path else shape.format("", expected, answered)[2:]) + end


def _value(value: Any) -> str:
    if value == NOTHING:
        return "nothing"
    return json.dumps(value, ensure_ascii=False)[:SEARCHED]


def _shortened(texts: Sequence[str], room: int) -> list[str]:
    """Return the texts clipped to one length, the greatest with which they fit into `room` together."""
    length = next(length for length in range(room, 2, -1) if sum(min(len(text), length) for text in texts) <= room)
    return [clipped(text, length) for text in texts]
