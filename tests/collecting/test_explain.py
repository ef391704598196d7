"""The text of a failed or broken rollout."""

from __future__ import annotations

from typing import Any

from pytest_core_rollouts.collecting.explain import VALUE_SHORT, explain_fault, explain_wrong
from pytest_core_rollouts.grading.comparing import MISSING, NOTHING
from pytest_core_rollouts.records.record import RolloutRecord
from pytest_core_rollouts.text import printable
from tests.support.tables import rows


def record(**given: Any) -> RolloutRecord:
    fields: dict[str, Any] = {
        "rollout_id": "R.sum.codex-default.0",
        "task": "sum",
        "harness": "codex",
        "model": "default",
        "sample": 0,
        "status": "completed",
        "reward": 0.0,
        "run_id": "R",
        "group_id": "R.sum.codex-default",
    }
    return RolloutRecord(**{**fields, **given})


def reason(path: str, expected: Any, answered: Any) -> dict[str, Any]:
    return {"path": path, "expected": expected, "answered": answered}


def test_a_wrong_answer_is_explained_by_each_difference() -> None:
    reasons = [
        reason("total", 3, "3"),
        reason("rows[1]", {"a": None}, MISSING),
        reason("rows[2]", NOTHING, [True, 1.5]),
    ]
    text = explain_wrong(record(reasons=reasons, session_id="sess_1", request_ids={"create": "r1", "items": "r2"}))
    assert text.splitlines() == [
        'reward 0: total: 3 expected, "3" answered (+2 more)',
        "total:",
        "    expected 3",
        '    answered "3"',
        "rows[1]:",
        '    expected {"a": null}',
        "    answered (missing)",
        "rows[2]:",
        "    expected (nothing)",
        "    answered [true, 1.5]",
        "[R.sum.codex-default.0, Session sess_1, last request r2 (items)]",
    ]


def test_an_answered_text_is_quoted() -> None:
    assert 'answered "(a)"' in explain_wrong(record(reasons=[reason("x", "(b)", "(a)")]))


def test_expected_values_can_be_hidden() -> None:
    text = explain_wrong(record(reasons=[reason("x", "canary", "other")]), hide_expected=True, whole=True)
    assert "canary" not in text
    assert 'x:\n    answered "other"' in text


def test_partial_rewards_timeouts_and_failures_of_the_agent_are_explained() -> None:
    assert explain_wrong(record(reward=0.25)).startswith("reward 0.25: the grader gave 0.25\n[")
    timeout = explain_wrong(record(status="timeout", settings={"timeout": 900.0}))
    assert timeout.startswith("reward 0: over the limit of 900 s\n[")
    failed = explain_wrong(record(status="failed", error="the Turn failed: context_length_exceeded"))
    assert failed.startswith("reward 0: the Turn failed: context_length_exceeded\n[")


def test_notes_and_an_invalid_answer_are_shown() -> None:
    text = explain_wrong(record(notes=["not valid JSON: line 1"], answer_text="```json\n{}"))
    assert text.startswith("reward 0: not valid JSON: line 1\nthe agent wrote: ```json\\n{}\n[")


def test_long_texts_are_cut_unless_whole_is_set() -> None:
    long = record(reasons=[reason(f"k{number}", "e" * 500, number) for number in range(50)])
    short, whole = explain_wrong(long), explain_wrong(long, whole=True)
    assert "... and 38 more; -vv shows all" in short
    assert "... (502 characters)" in short
    assert max(map(len, short.splitlines())) < VALUE_SHORT + 50
    assert "k49:" in whole
    assert "more; -vv" not in whole
    assert "e" * 500 in whole


def test_an_infrastructure_error_is_explained_with_ids() -> None:
    text = explain_fault(
        record(status="error", reward=None, error="POST /agents/sessions: HTTP 500\x07", notes=["attempt 1: HTTP 500"])
    )
    assert text.splitlines() == [
        "error, no reward: POST /agents/sessions: HTTP 500\\x07",
        "note: attempt 1: HTTP 500",
        "[R.sum.codex-default.0]",
    ]
    assert explain_fault(record(status="error", reward=None)).startswith("error, no reward: no reason given")


@rows(
    ("text", "shown"),
    [
        ("plain é 模型 🎉", "plain é 模型 🎉"),
        ("a\nb\tc\r", "a\\nb\\tc\\r"),
        ("\x1b[31m\x00\x7f\x9b", "\\x1b[31m\\x00\\x7f\\x9b"),
        ("\ud835 \udfff", "\\ud835 \\udfff"),
        ("\u2028\u2029\u202e\u200b\ufeff\u00a0", "\\u2028\\u2029\\u202e\\u200b\\ufeff\\xa0"),
        ("\U000e0041\ue000", "\\U000e0041\\ue000"),
        ("e\u0301", "e\u0301"),
    ],
)
def test_printable_escapes_what_a_terminal_must_not_get(text: str, shown: str) -> None:
    assert printable(text, 100) == shown
    printable(text, 100).encode("utf-8")


def test_printable_cuts_long_texts() -> None:
    assert printable("x" * 1000, 1000) == "x" * 1000
    assert printable("x" * 1001, 1000) == "x" * 1000 + "... (1,001 characters)"
