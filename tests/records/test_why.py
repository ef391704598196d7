"""Every reward that is not 1 has a reason: one short line, in rows of every kind and age, without secrets."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from pytest_core_rollouts.grading.answers import Answer, grade_answer
from pytest_core_rollouts.grading.comparing import MISSING, NOTHING
from pytest_core_rollouts.records.masking import HIDDEN, Masker
from pytest_core_rollouts.records.record import RolloutRecord
from pytest_core_rollouts.records.why import LIMIT, why_text
from tests.support.tables import rows

SECRET = "db-password-canary-77"


def record(reward: float | None = 0.0, status: str = "completed", **fields: Any) -> RolloutRecord:
    identity = {"rollout_id": "r", "task": "t", "harness": "h", "model": "m", "sample": 0}
    return RolloutRecord(**{**identity, "run_id": "r", "group_id": "g", "status": status, "reward": reward, **fields})


def reasons(*triples: tuple[str, Any, Any]) -> list[dict[str, Any]]:
    return [{"path": path, "expected": expected, "answered": answered} for path, expected, answered in triples]


THREE = reasons(("total", 324, 342), ("names", ["Ada"], []), ("x", 1, MISSING))
NO_FILES = "no answer.json: the agent left no files in /workspace/outputs"
BROKEN = "the answer is not valid JSON: Expecting value (line 1, column 1)"
EARLIER = "attempt 1: POST /agents/sessions: HTTP 500"

LINES: dict[str, tuple[RolloutRecord, str | None]] = {
    "solved": (record(1.0, notes=["well done"]), None),
    "several differences": (record(reasons=THREE), "total: 324 expected, 342 answered (+2 more)"),
    "more than are listed": (
        record(reasons=THREE, notes=["1,234 values differ; the first 100 are listed"]),
        "total: 324 expected, 342 answered (+1,233 more)",
    ),
    "a missing key": (record(reasons=reasons(("a.b", "x", MISSING))), 'a.b: "x" expected, missing'),
    "an extra element": (record(reasons=reasons(("a[3]", NOTHING, 5))), "a[3]: nothing expected, 5 answered"),
    "no path": (record(reasons=reasons(("", 1, 2))), "1 expected, 2 answered"),
    "hidden": (
        record(reasons=[{**one, "expected": HIDDEN} for one in THREE]),
        "total: 342 answered, not as expected (+2 more)",
    ),
    "hidden and missing": (record(reasons=reasons(("total", HIDDEN, MISSING))), "total: missing"),
    "no file": (record(notes=[EARLIER, NO_FILES]), "no answer.json"),
    "another file": (record(notes=["no answer.json; files found: /x"]), "no answer.json; files found: /x"),
    "a code fence": (record(notes=[BROKEN], answer_text="\n```json\n{}\n```"), "not JSON: code fence"),
    "not JSON": (record(notes=[BROKEN], answer_text="hello"), "not JSON: Expecting value (line 1, column 1)"),
    "a limit": (record(status="timeout", settings={"timeout": 6.0}), "over the limit of 6 s"),
    "a grader's note": (record(0.5, notes=["half of the topics", "outputs: no file matches a"]), "half of the topics"),
    "a bare reward": (record(0.3, notes=["waited 5 s for the Core, which the limit"]), "the grader gave 0.3"),
    "the agent's failure": (record(status="failed", error="the Turn failed: x\ny"), "the Turn failed: x y"),
    "missing": (record(None, "error", error="create: HTTP 500", notes=[EARLIER]), "create: HTTP 500"),
    "missing without an error": (record(None, "cancelled"), "no reason given"),
}


def test_one_line_for_each_kind_of_row() -> None:
    assert {name: row.why for name, (row, _) in LINES.items()} == {name: line for name, (_, line) in LINES.items()}


def test_a_row_has_it_and_rows_of_earlier_versions_get_it_when_they_are_read() -> None:
    for name, (row, line) in LINES.items():
        written = json.loads(row.to_line())
        assert written["why"] == line, name
        del written["why"]
        assert RolloutRecord.from_line(json.dumps(written).encode()).why == line, name


def test_a_row_keeps_what_its_grade_said() -> None:
    assert RolloutRecord.from_line(record(0.3, why="grader.py gave 0.3").to_line()).why == "grader.py gave 0.3"


@rows("length", range(80, 130))
def test_secrets_are_masked_before_anything_is_shortened(length: int) -> None:
    masked = Masker([SECRET]).message
    text = "x" * length + SECRET
    for row in (
        record(None, "error", error=text),
        record(notes=[text]),
        record(reasons=reasons((text, "e", "a"))),
        record(reasons=reasons(("a", text, text[-60:]))),
    ):
        why = why_text(row, masked=masked)
        assert why is not None
        assert len(why) <= LIMIT
        assert SECRET[:5] not in why


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary(),
    lambda inner: (
        st.lists(inner) | st.dictionaries(st.text(), inner) | st.dictionaries(st.tuples(st.integers()), inner)
    ),
    max_leaves=8,
)


@given(st.text(max_size=200), VALUES, VALUES, st.booleans())
def test_whatever_a_grader_compares_it_is_one_short_line(path: str, expected: Any, answered: Any, hide: bool) -> None:
    row = record(reasons=reasons((path, expected, answered), ("b", 1, 2)))
    why = why_text(row, hide_expected=hide)
    assert why is not None
    assert why.endswith(" (+1 more)")
    assert len(why) <= LIMIT
    assert why.isprintable()


@given(st.dictionaries(st.text(max_size=5), st.text(max_size=90) | st.integers(), max_size=4))
def test_both_values_are_shown_however_long_one_is(answer: dict[str, Any]) -> None:
    expected = {"total": "e" * 500, "found": [1, 2]}
    grade = grade_answer(expected, Answer(answer))
    row = record(grade.reward, reasons=[dict(vars(reason)) for reason in grade.reasons])
    assert row.why is not None
    assert "expected" in row.why
    assert "missing" in row.why or "answered" in row.why
