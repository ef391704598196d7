"""Grading: what an answer is worth, and why."""

from __future__ import annotations

from pytest_core_rollouts.grading.answers import (
    ANSWER_LIMIT,
    DEFAULT_TOLERANCE,
    DEPTH_LIMIT,
    MISSING,
    NOTHING,
    REASONS_LIMIT,
    TEXT_LIMIT,
    Answer,
    Grade,
    InvalidJSON,
    KeyRule,
    Reason,
    Tolerance,
    check_expected,
    grade_answer,
    parse_json,
    read_answer,
    render_path,
)

__all__ = [
    "ANSWER_LIMIT",
    "DEFAULT_TOLERANCE",
    "DEPTH_LIMIT",
    "MISSING",
    "NOTHING",
    "REASONS_LIMIT",
    "TEXT_LIMIT",
    "Answer",
    "Grade",
    "InvalidJSON",
    "KeyRule",
    "Reason",
    "Tolerance",
    "check_expected",
    "grade_answer",
    "parse_json",
    "read_answer",
    "render_path",
]
