from __future__ import annotations

import json
import math
import re
import time
import unicodedata
from decimal import Decimal
from enum import IntEnum
from fractions import Fraction
from types import MappingProxyType
from typing import Any

import pytest

from pytest_core_rollouts.grading.answers import (
    ANSWER_LIMIT,
    REASONS_LIMIT,
    TEXT_LIMIT,
    Answer,
    Grade,
    check_expected,
    grade_answer,
    read_answer,
)
from pytest_core_rollouts.grading.comparing import (
    DEFAULT_TOLERANCE,
    MISSING,
    NOTHING,
    KeyRule,
    Reason,
    Tolerance,
    render_path,
)
from pytest_core_rollouts.strict_json import DEPTH_LIMIT, InvalidJSON, parse_json
from pytest_core_rollouts.tasks.grader_file import as_grade
from tests.support.tables import rows


def reward(expected: dict[str, Any], answer: str | bytes, tolerance: Tolerance | None = None) -> float:
    """The reward of an answer file with this content."""
    read = read_answer(answer.encode() if isinstance(answer, str) else answer)
    return (grade_answer(expected, read, tolerance) if tolerance else grade_answer(expected, read)).reward


# Reading


def test_integers_differ_from_other_numbers() -> None:
    value = parse_json(b'{"i": 3, "f": 3.0, "e": 3e0, "minus": -0}')
    assert [type(number) for number in value.values()] == [int, float, float, int]


def test_a_byte_order_mark_is_ignored() -> None:
    assert parse_json(b'\xef\xbb\xbf{"x": 1}') == {"x": 1}
    assert reward({"x": 1}, b'\xef\xbb\xbf{"x":1}') == 1


@rows(
    ("data", "problem"),
    [
        (b"", "the file is empty (line 1, column 1)"),
        (b" \n", "the file is empty (line 2, column 1)"),
        (b'```json\n{"x":1}\n```', "Expecting value (line 1, column 1)"),
        (b'{"x":1} // done', "Extra data (line 1, column 9)"),
        (b'{"x":1}{"x":2}', "Extra data (line 1, column 8)"),
        (b"{'x':1}", "Expecting property name enclosed in double quotes (line 1, column 2)"),
        (b'{"x": NaN}', "NaN is not a JSON number"),
        (b'{"x": Infinity}', "Infinity is not a JSON number"),
        (b'{"x": -Infinity}', "-Infinity is not a JSON number"),
        (b'{"x": 1, "x": 2}', 'duplicate key "x"'),
        (b'{"a": {"x": 1, "\\u0078": 1}}', 'duplicate key "x"'),
        (b'{"x": "\xff"}', "byte 7 is not UTF-8"),
        (b"\xff\xfe{\0}\0", "byte 0 is not UTF-8"),
        (b'{"x": "\xed\xa0\xb5"}', "byte 7 is not UTF-8"),
        (b'{"x": 1e999}', "a number too large for a float: 1e999"),
        (b'{"x": -1e999}', "a number too large for a float: -1e999"),
        (b'{"x": ' + b"9" * 400 + b"}", "a number too large for a float: 99999999999999999999..."),
        (b'{"x": ' + b"9" * 5000 + b"}", "a number of 5,000 characters (at most 1,000 are read)"),
        (b'{"x": 0.' + b"1" * 1000 + b"}", "a number of 1,002 characters (at most 1,000 are read)"),
        (b"[" * 101 + b"]" * 101, "nested more than 100 levels deep"),
        (b'{"x":' * 100_000 + b"1" + b"}" * 100_000, "nested more than 100 levels deep"),
        (b"[" * 100_000, "nested more than 100 levels deep"),
    ],
)
def test_what_is_not_json_is_refused_with_the_reason(data: bytes, problem: str) -> None:
    with pytest.raises(InvalidJSON) as caught:
        parse_json(data)
    assert str(caught.value) == f"not valid JSON: {problem}"


@rows("data", [b'{"x":1,}', b'{"x":01}', b'{"x":.5}', b'{"x":+1}', b'{"x":"\t"}', b'{"x":True}', b"{x:1}"])
def test_near_json_is_refused(data: bytes) -> None:
    with pytest.raises(InvalidJSON):
        parse_json(data)


def test_nesting_up_to_the_limit_is_read() -> None:
    value = parse_json(b"[" * DEPTH_LIMIT + b"]" * (DEPTH_LIMIT - 1) + b",[]]")
    for _ in range(DEPTH_LIMIT - 1):
        value = value[0]
    assert value == []


def test_brackets_in_strings_are_no_nesting() -> None:
    text = '{["\\\\' * 200
    assert parse_json(json.dumps({text: [text, '"' * 300]}).encode()) == {text: [text, '"' * 300]}


def test_nesting_behind_an_escaped_quote_is_seen() -> None:
    with pytest.raises(InvalidJSON, match="levels deep"):
        parse_json(b'{"a\\"": "\\\\", "b": ' + b"[" * 5000 + b"]" * 5000 + b"}")


def test_a_lone_surrogate_is_read_and_graded() -> None:
    answer = read_answer(rb'{"s": "\ud835"}')
    assert answer.value == {"s": "\ud835"}
    assert grade_answer({"s": "x"}, answer).reasons == (Reason("s", "x", "\ud835"),)
    assert grade_answer({"s": "\ud835"}, answer).reward == 1


def test_an_answer_over_the_limit_is_not_read() -> None:
    answer = read_answer(b'{"x": 1}' + b" " * ANSWER_LIMIT)
    assert answer == Answer(problem="the answer is too large: 1,048,584 bytes; at most 1,048,576 are read")
    assert read_answer(b'{"x": 1}'.ljust(ANSWER_LIMIT)).value == {"x": 1}


def test_text_that_is_not_json_is_kept_up_to_its_limit() -> None:
    assert read_answer(b"no idea \xff").text == "no idea \ufffd"
    for data in (b"\xff" * ANSWER_LIMIT, "é".encode() * (ANSWER_LIMIT // 2), b"x" * ANSWER_LIMIT):
        text = read_answer(data).text
        assert text is not None
        assert TEXT_LIMIT - 3 <= len(text.encode()) <= TEXT_LIMIT


def test_an_answer_with_a_problem_gets_zero_and_the_problem() -> None:
    assert grade_answer({"x": 1}, Answer(problem="answer.json not found")) == Grade(0.0, (), "answer.json not found")
    grade = grade_answer({"x": 1}, read_answer(b'{"x":1,}'))
    assert grade.reward == 0
    assert grade.note is not None
    assert grade.note.startswith("the answer is not valid JSON: ")


@rows(
    ("answer", "kind"),
    [
        ('[{"x":1}]', "an array"),
        ('"x"', "a string"),
        ("42", "a number"),
        ("1.5", "a number"),
        ("null", "null"),
        ("true", "true"),
    ],
)
def test_an_answer_that_is_not_an_object_is_kept_and_gets_zero(answer: str, kind: str) -> None:
    read = read_answer(answer.encode())
    assert read == Answer(value=json.loads(answer))
    assert grade_answer({"x": 1}, read) == Grade(0.0, (), f"expected a JSON object, got {kind}")


# Comparing: kinds of values


@rows(
    "answer",
    [
        '{"n":true,"ok":true,"z":[0,1]}',
        '{"n":1,"ok":1,"z":[0,1]}',
        '{"n":1,"ok":true,"z":[false,true]}',
        '{"n":1,"ok":true,"z":[0,true]}',
        '{"n":1.0,"ok":1.0,"z":[0,1]}',
    ],
)
def test_a_boolean_is_not_a_number(answer: str) -> None:
    expected = {"n": 1, "ok": True, "z": [0, 1]}
    assert reward(expected, answer) == 0
    assert reward(expected, json.dumps(expected)) == 1


@rows(
    ("expected", "answer"),
    [
        (True, '"true"'),
        (True, '"false"'),
        (True, "1"),
        (False, '"false"'),
        (False, "0"),
        (False, "null"),
        (False, '""'),
    ],
)
def test_only_a_boolean_matches_a_boolean(expected: bool, answer: str) -> None:
    assert reward({"ok": expected}, f'{{"ok":{answer}}}') == 0
    assert reward({"ok": expected}, "{}") == 0


@rows(("answer", "score"), [("{}", 0), ('{"n":null}', 1), ('{"n":""}', 0), ('{"n":0}', 0), ('{"n":false}', 0)])
def test_null_must_be_there(answer: str, score: int) -> None:
    assert reward({"n": None}, answer) == score


@rows("answer", ["null", "[]", "{}", '""', "0", "false"])
def test_nothing_empty_matches_a_value(answer: str) -> None:
    for value in (1, 1.5, "x", True, [1], {"a": 1}):
        assert reward({"x": value}, f'{{"x":{answer}}}') == 0


def test_a_value_in_a_list_is_not_the_value() -> None:
    assert reward({"genre": "sci-fi"}, '{"genre":["sci-fi"]}') == 0
    assert reward({"genre": ["sci-fi"]}, '{"genre":"sci-fi"}') == 0
    assert reward({"genre": {"0": "x"}}, '{"genre":["x"]}') == 0


# Comparing: numbers


@rows("key", ["date", "id", "rows"])
def test_integers_match_exactly(key: str) -> None:
    expected = {"date": 20240101, "id": 9007199254740993, "rows": 1000001}
    answer = {**expected, key: expected[key] + (-1 if key == "id" else 1)}
    assert reward(expected, json.dumps(answer)) == 0
    assert reward(expected, json.dumps(answer), Tolerance(relative=0.5, absolute=10)) == 0
    assert reward(expected, json.dumps(expected)) == 1


@rows(
    ("expected", "answer", "score"),
    [
        (3, "3.0", 1),
        (3, "3.0000001", 1),
        (3, "3.00001", 0),
        (3.0, "3", 1),
        (1000, "1e3", 1),
        (1000000.0, "1000001", 1),  # a fraction on one side is enough
        (1000000.0, "1000002", 0),
        (1.0, "1.000001", 1),
        (1.0, "1.0000011", 0),
        (-2.5, "-2.5000001", 1),
        (2.5, "-2.5", 0),
        (0, "-0.0", 1),
        (0.0, "0", 1),
        (0.0, "1e-300", 0),
        (0.1 + 0.2, "0.3", 1),
        (5e-324, "0", 0),
        (1.7976931348623157e308, "-1.7976931348623157e308", 0),
        (10**308, "1e308", 1),
        (10**300, "1.0000001e300", 0),  # another integer
        (1e300, "1.0000001e300", 1),
    ],
)
def test_other_numbers_match_within_a_millionth(expected: float, answer: str, score: int) -> None:
    assert reward({"x": expected}, f'{{"x":{answer}}}') == score


@rows(
    ("tolerance", "expected", "answer", "score"),
    [
        (Tolerance(), 1.1, "1.1000000001", 0),
        (Tolerance(), 1.1, "1.1", 1),
        (Tolerance(absolute=0.01), 1.1, "1.11", 1),  # 1.11 - 1.1 is more than 0.01 in binary floats
        (Tolerance(absolute=0.01), 1.1, "1.1100001", 0),
        (Tolerance(absolute=0.01), 123456789.0, "123456789.02", 0),  # the default is replaced, not added to
        (Tolerance(relative=0.05), 200.0, "190", 1),
        (Tolerance(relative=0.05), 190.0, "200", 0),  # relative to what is expected
        (Tolerance(relative=0.05), -200.0, "-210.0", 1),
        (Tolerance(relative=0.001, absolute=1), 10.0, "11.0", 1),
        (Tolerance(absolute=0.5), 0.0, "-0.5", 1),
    ],
)
def test_a_task_may_have_its_own_tolerance(tolerance: Tolerance, expected: float, answer: str, score: int) -> None:
    assert reward({"x": expected}, f'{{"x":{answer}}}', tolerance) == score


@rows("number", [math.inf, -math.inf, math.nan])
def test_what_is_not_finite_matches_nothing(number: float) -> None:
    assert grade_answer({"x": number}, Answer(value={"x": number})).reward == 0
    assert grade_answer({"x": 1.0}, Answer(value={"x": number})).reward == 0


@rows(("relative", "absolute"), [(-1.0, 0.0), (math.nan, 0.0), (0.0, math.inf), (1.0, 0.0), (5.0, 0.0)])
def test_a_tolerance_must_make_sense(relative: float, absolute: float) -> None:
    with pytest.raises(ValueError, match=r"tolerance: (relative|absolute) must be"):
        Tolerance(relative, absolute)


def test_a_tolerance_is_made_of_numbers() -> None:
    with pytest.raises(TypeError, match=r"relative must be a number, not '0.1'"):
        Tolerance("0.1")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="absolute must be a number, not True"):
        Tolerance(absolute=True)


@rows(
    ("expected", "answer", "score"),
    [
        (48213377, "48213340.0", 0),
        (48213377, "48213377.0", 1),
        (48213377, "4.8213377e7", 1),
        (48213377, "48213376.0", 0),
        (48213377, "48213376.6", 1),
        (48213377, "48213377.5", 0),
        (5000, "4999.9999999", 1),
        (100, "100.00005", 1),
        (100, "100.0002", 0),
        (-5000, "-4999.9999999", 1),
        (0, "1e-9", 0),
        (9007199254740993, "9007199254740993.0", 1),  # a float would make it the even neighbour
        (9007199254740993, "9007199254740992.0", 0),
        (9007199254740992, "9007199254740993.0", 0),
        (9007199254740992, "9007199254740.993e3", 0),
        (15 * 10**299, "1.5e300", 1),
        (15 * 10**299 + 1, "1.5e300", 0),
    ],
)
def test_another_integer_is_never_right_however_it_is_written(expected: int, answer: str, score: int) -> None:
    assert reward({"x": expected}, f'{{"x":{answer}}}') == score
    assert reward({"x": [{"y": expected}]}, f'{{"x":[{{"y":{answer}}}]}}') == score


@rows(
    ("tolerance", "expected", "answer", "score"),
    [
        (Tolerance(relative=0.01), 100, "101.0", 0),
        (Tolerance(relative=0.01), 100, "101", 0),
        (Tolerance(relative=0.01), 100, "1.01e2", 0),
        (Tolerance(relative=0.01), 100, "100.0", 1),
        (Tolerance(relative=0.01), 100, "100.9", 1),
        (Tolerance(relative=0.01), 100, "101.1", 0),
        (Tolerance(absolute=3), 100, "102.5", 1),
        (Tolerance(absolute=3), 100, "102.0", 0),
        (Tolerance(), 100, "100.0", 1),
        (Tolerance(), 100, "99.9999999", 0),
        (Tolerance(relative=0.01), 100.0, "101", 1),  # expected.json says that it is not a count
    ],
)
def test_a_tolerance_of_the_task_is_for_fractions(
    tolerance: Tolerance, expected: float, answer: str, score: int
) -> None:
    assert reward({"x": expected}, f'{{"x":{answer}}}', tolerance) == score


@rows("digits", [400, 5000, 100_000])
def test_an_answer_made_in_code_may_hold_any_integer(digits: int) -> None:
    for expected in (1, 1.5, 10**300):
        assert grade_answer({"x": expected}, Answer(value={"x": 10**digits})).reward == 0


# Comparing: texts


@rows(
    ("answer", "score"),
    [
        ("x", 1),
        (" x\n", 1),
        ("\u00a0x", 1),
        ("\u2028x", 1),
        ("x\r\n", 1),
        ("\u200bx", 0),
        ("\ufeffx", 0),
        ("X", 0),
        ("x x", 0),
        ("", 0),
        (" ", 0),
    ],
)
def test_texts_match_trimmed(answer: str, score: int) -> None:
    assert reward({"s": "x"}, json.dumps({"s": answer})) == score
    assert reward({"s": "\tx\r\n"}, json.dumps({"s": answer})) == score


def test_inner_space_counts_and_a_blank_matches_only_a_blank() -> None:
    assert reward({"s": "x y"}, '{"s":"x  y"}') == 0
    assert reward({"s": " "}, '{"s":""}') == 1
    assert reward({"s": ""}, '{"s":"0"}') == 0


@rows(
    ("expected", "answer", "score"),
    [
        ("caf\u00e9", "cafe\u0301", 1),
        ("cafe\u0301", "caf\u00e9", 1),
        ("\u1f82", "\u03b1\u0313\u0300\u0345", 1),
        ("\u03b1\u0313\u0300\u0345" * 10, "\u1f82" * 10, 1),
        ("\U0001d160" * 20, "\U0001d158\U0001d165\U0001d16e" * 20, 1),  # NFC makes these longer
        ("Paris", "paris", 0),
        ("\ufb01", "fi", 0),
        ("5", "\uff15", 0),
        ("caf\u00e9", "cafe", 0),
    ],
)
def test_texts_match_in_nfc_and_no_looser(expected: str, answer: str, score: int) -> None:
    assert reward({"s": expected}, json.dumps({"s": answer})) == score


def test_more_than_thirty_marks_in_a_row_are_compared_as_they_are() -> None:
    for number, score in ((15, 1), (16, 0)):
        ordered, swapped = "a" + "\u0316" * number + "\u0301" * number, "a" + "\u0316\u0301" * number
        assert reward({"s": ordered}, json.dumps({"s": swapped})) == score
        assert reward({"s": ordered}, json.dumps({"s": f" {ordered}"})) == 1
        assert reward({ordered: 1}, json.dumps({swapped: 1})) == score


@rows("marks", ["\u0301\u0316", "\u0f73", "\u0344"])
def test_no_run_of_marks_stalls_the_comparison(marks: str) -> None:
    """Sorting it takes minutes. U+0F73 is not a mark itself, but consists of two."""
    run = marks * (300_000 // len(marks))
    start = time.process_time()
    assert reward({"s": "x" * 8000, "k\u00e9": 1}, json.dumps({"s": run, run: 1}, ensure_ascii=False)) == 0
    assert time.process_time() - start < 10


@rows(
    ("expected", "answer", "score"),
    [
        (0.2, '"20%"', 0),
        (0.2, "20", 0),
        (0.2, '"0.2"', 0),
        (4183, '"4,183"', 0),
        (4183, '"$4183"', 0),
        ("4183", "4183", 0),
        ("20%", '" 20% "', 1),
    ],
)
def test_no_unit_is_guessed(expected: Any, answer: str, score: int) -> None:
    assert reward({"r": expected}, f'{{"r":{answer}}}') == score


def test_keys_match_in_nfc_but_are_not_trimmed() -> None:
    assert reward({"caf\u00e9": 1}, json.dumps({"cafe\u0301": 1})) == 1
    assert reward({"cafe\u0301": 1}, json.dumps({"caf\u00e9": 1})) == 1
    assert reward({"K": 1}, json.dumps({"\u212a": 1})) == 1  # the Kelvin sign
    assert reward({"x": 1}, '{" x":1}') == 0
    assert reward({"x": 1}, '{"X":1}') == 0
    both = {"cafe\u0301": 2, "caf\u00e9": 1}
    assert reward({"caf\u00e9": 1}, json.dumps(both)) == 1
    assert reward({"cafe\u0301": 2}, json.dumps(both)) == 1


# Comparing: objects and arrays


def test_extra_keys_are_ignored_at_every_depth() -> None:
    expected = {"a": {"b": [{"c": 1}]}, "empty": {}}
    assert reward(expected, '{"a":{"b":[{"c":1,"x":0}],"x":0},"empty":{"x":0},"x":0}') == 1


@rows(
    ("answer", "score"),
    [
        ("[1,2,3]", 1),
        ("[3,2,1]", 0),
        ("[1,2]", 0),
        ("[1,2,3,4]", 0),
        ("[1,2,3.0000001]", 1),
        ('["1",2,3]', 0),
        ("[]", 0),
    ],
)
def test_arrays_match_by_order_and_length(answer: str, score: int) -> None:
    assert reward({"a": [1, 2, 3]}, f'{{"a":{answer}}}') == score


def test_an_empty_array_only_matches_an_empty_array() -> None:
    assert reward({"a": []}, '{"a":[]}') == 1
    assert reward({"a": []}, '{"a":[null]}') == 0
    assert reward({"a": [None]}, '{"a":[]}') == 0


# Reasons


def test_each_difference_has_a_reason_with_its_path() -> None:
    expected = {"regions": {"north": [1, 2, 3], "South East": {"n": 1}}, "total": 5, "gone": None, "same": 1}
    answer = {"regions": {"north": [1, 2, 4], "South East": {"n": True}}, "total": "5", "same": 1, "extra": 0}
    grade = grade_answer(expected, Answer(value=answer))
    assert grade == Grade(
        0.0,
        (
            Reason("regions.north[2]", 3, 4),
            Reason('regions["South East"].n', 1, True),
            Reason("total", 5, "5"),
            Reason("gone", None, MISSING),
        ),
    )
    assert grade.reasons[1].answered is True


def test_arrays_of_other_lengths_name_what_is_missing_or_too_much() -> None:
    assert grade_answer({"a": [1, 2]}, Answer(value={"a": [1]})).reasons == (Reason("a[1]", 2, MISSING),)
    assert grade_answer({"a": [1]}, Answer(value={"a": [1, [2]]})).reasons == (Reason("a[1]", NOTHING, [2]),)


def test_a_missing_object_is_one_reason() -> None:
    expected = {"a": {"b": 1, "c": 2}}
    assert grade_answer(expected, Answer(value={})).reasons == (Reason("a", {"b": 1, "c": 2}, MISSING),)


def test_reasons_are_capped_and_counted() -> None:
    grade = grade_answer({"a": [0] * 1500}, Answer(value={"a": [1] * 1500}))
    assert len(grade.reasons) == REASONS_LIMIT
    assert grade.note == "1,500 values differ; the first 100 are listed"
    assert grade_answer({"a": [0] * 100}, Answer(value={"a": [1] * 100})).note is None


def test_the_deepest_difference_is_found() -> None:
    expected = parse_json(b'{"a":' * (DEPTH_LIMIT - 1) + b'{"x":1}' + b"}" * (DEPTH_LIMIT - 1))
    answer = parse_json(b'{"a":' * (DEPTH_LIMIT - 1) + b'{"x":2}' + b"}" * (DEPTH_LIMIT - 1))
    assert grade_answer(expected, Answer(value=answer)).reasons == (Reason("a." * (DEPTH_LIMIT - 1) + "x", 1, 2),)


@rows(
    ("path", "text"),
    [
        ((), ""),
        (("a",), "a"),
        (("a", "b-c", 0, 1, "d"), "a.b-c[0][1].d"),
        (("Zürich", "New York"), 'Zürich["New York"]'),
        (("", "a.b", "1st", 'say "x"'), '[""]["a.b"]["1st"]["say \\"x\\""]'),
        (("a\nb", "\ud835", "Zürich Nord"), '["a\\nb"]["\\ud835"]["Zürich Nord"]'),
    ],
)
def test_paths_can_be_read(path: tuple[str | int, ...], text: str) -> None:
    assert render_path(path) == text


@rows("value", [-0.1, 1.1, math.nan, math.inf])
def test_a_reward_is_from_zero_to_one(value: float) -> None:
    with pytest.raises(ValueError, match="a reward must be from 0 to 1"):
        Grade(value)


@rows("value", ["1", "false", None, True, [1]])
def test_a_reward_is_a_number(value: Any) -> None:
    with pytest.raises(TypeError, match="a reward must be a number"):
        Grade(value)


def test_metrics_are_finite_numbers_by_printable_names() -> None:
    metrics = {"style": 0.7, "tests": 11, "a delta": Decimal("-0.5")}
    assert Grade(1, metrics=metrics).metrics == {"style": 0.7, "tests": 11.0, "a delta": -0.5}  # type: ignore[arg-type]
    assert Grade(1).metrics == {}
    bad: list[tuple[Any, type[Exception], str]] = [
        ([("a", 1)], TypeError, "metrics must be a mapping of names to numbers"),
        ({"a": True}, TypeError, "the metric a must be a number, not True"),
        ({"a": "1"}, TypeError, "the metric a must be a number, not '1'"),
        ({"a": float("nan")}, ValueError, "the metric a must be finite, not nan"),
        ({"a": 1e999}, ValueError, "the metric a must be finite, not inf"),
        ({"": 1}, ValueError, "a metric's name must be 1 to 64 printable characters, not ''"),
        ({1: 1}, ValueError, "a metric's name must be 1 to 64 printable characters, not 1"),
        ({"a\n": 1}, ValueError, "a metric's name must be"),
        ({"a" * 65: 1}, ValueError, "a metric's name must be"),
        ({str(n): n for n in range(33)}, ValueError, "a grade can have at most 32 metrics, not 33"),
    ]
    for given, kind, words in bad:
        with pytest.raises(kind, match=re.escape(words)):
            Grade(1.0, metrics=given)


def test_a_whole_reward_becomes_a_float() -> None:
    assert type(Grade(1).reward) is float


# What may be expected


class _Color(IntEnum):
    RED = 1


def _endless() -> dict[str, Any]:
    value: dict[str, Any] = {}
    value["again"] = value
    return value


@rows(
    ("expected", "problem"),
    [
        ({}, "must be an object with at least one key"),
        ([1], "must be an object with at least one key"),
        (None, "must be an object with at least one key"),
        ({"a": {1: 2}}, "a key that is not a string (at a)"),
        ({"a": (1, 2)}, "the expected answer has a value of type tuple, which JSON can't hold (at a)"),
        ({"a": [0, {1}]}, "the expected answer has a value of type set, which JSON can't hold (at a[1])"),
        ({"a": b"x"}, "a value of type bytes"),
        ({"a": _Color.RED}, "a value of type _Color"),
        ({"a": MappingProxyType({})}, "a value of type mappingproxy"),
        ({"a": math.nan}, "the expected answer has a number that is too large for a float (at a)"),
        ({"a": -math.inf}, "a number that is too large for a float"),
        ({"a": 10**400}, "a number that is too large for a float"),
        ({"a": 10**5000}, "a number that is too large for a float"),
        ({"a": {"e\u0301": 1, "\u00e9": 2}}, "two keys that only differ in Unicode form (at a)"),
        (_endless(), "nested more than 100 levels deep"),
    ],
)
def test_what_no_answer_can_match_may_not_be_expected(expected: Any, problem: str) -> None:
    with pytest.raises(ValueError, match="expected") as caught:
        check_expected(expected)
    assert problem in str(caught.value)


def test_what_json_can_hold_may_be_expected() -> None:
    check_expected({"a": [1, 1.5, "x", True, None, {"b": {}}, []], "": -(10**308), "\ud835": "\ud835"})


# Speed


HOSTILE = {
    "brackets": b"[" * ANSWER_LIMIT,
    "shallow brackets": b'{"s":[' + b"[]," * 340_000 + b"[]]}",
    "quotes": b'"' * ANSWER_LIMIT,
    "escaped quotes": b'"' + b'\\"' * 520_000,
    "backslashes": b'"' + b"\\" * 1_000_000,
    "digits": b'{"s":' + b"9" * 1_000_000 + b"}",
    "combining marks": b'{"s":"a' + "\u0301\u0316".encode() * 250_000 + b'"}',
    "combining marks in a key": b'{"a' + "\u0301\u0316".encode() * 250_000 + b'":1}',
    "many unusual keys": ("{" + ",".join(f'"é{n}":0' for n in range(80_000)) + "}").encode(),
    "white space": b'{"s":"' + b" " * 1_000_000 + b'"}',
}


@rows("name", HOSTILE)
def test_no_answer_can_stall_the_grader(name: str) -> None:
    expected: dict[str, Any] = {"s": "é", **{f"ü{n}": 0 for n in range(500)}}
    start = time.process_time()
    assert grade_answer(expected, read_answer(HOSTILE[name])).reward == 0
    assert time.process_time() - start < 5  # a quadratic step takes minutes


def test_equal_credit_is_one_reward_in_whatever_order_it_is_added_up() -> None:
    assert Grade(0.1 + 0.2).reward == Grade(0.3).reward == Grade(0.2 + 0.1).reward
    assert Grade(0.9999999999999999).reward == Grade(1.0000000000000002).reward == 1.0
    assert [str(Grade(reward).reward) for reward in (-0.0, -1e-17)] == ["0.0", "0.0"]
    with pytest.raises(ValueError, match="from 0 to 1"):
        Grade(1.000001)


def test_numbers_of_other_libraries_are_rewards() -> None:
    assert Grade(Fraction(1, 4)).reward == Grade(Decimal("0.25")).reward == 0.25  # type: ignore[arg-type]
    for value in ("1", [1], None, True):
        with pytest.raises(TypeError, match="a reward must be a number"):
            Grade(value)  # type: ignore[arg-type]
    numpy = pytest.importorskip("numpy", reason="pip install numpy")
    assert Grade(numpy.float32(0.5)).reward == 0.5
    assert as_grade(numpy.bool_(True), "grade()").reward == 1.0
    with pytest.raises(TypeError, match="a reward must be a number"):
        Grade(numpy.ones(1))


UNORDERED = KeyRule(unordered=True)


@rows(
    ("expected", "answered", "rule", "tolerance"),
    [
        ([10, 20], [20.1, 10.2], UNORDERED, Tolerance(absolute=0.5)),
        ([10, "x", None], ["x", None, 10.0000001], UNORDERED, DEFAULT_TOLERANCE),
        ([[1, 2], [3, 4]], [[3.0000001, 4], [1, 2]], UNORDERED, DEFAULT_TOLERANCE),
        (["Ab", "c"], ["C", "aB"], KeyRule(unordered=True, ignore_case=True), DEFAULT_TOLERANCE),
        ([5, 6], [2, 1], KeyRule(unordered=True, one_of=([1, 2], "none")), DEFAULT_TOLERANCE),
        ([5, 6], "none", KeyRule(unordered=True, one_of=([1, 2], "none")), DEFAULT_TOLERANCE),
        (["none"], [6, 5], KeyRule(unordered=True, one_of=([5, 6],)), DEFAULT_TOLERANCE),
    ],
)
def test_unordered_changes_only_the_order(
    expected: object, answered: object, rule: KeyRule, tolerance: Tolerance
) -> None:
    """What matches in order matches in any order, by the same tolerance, case rule and alternatives."""
    assert grade_answer({"a": expected}, Answer(value={"a": answered}), tolerance, {("a",): rule}).reward == 1.0


def test_keys_in_another_unicode_form_are_found_in_any_order() -> None:
    key = "\u00e9" * 13
    answered = [{unicodedata.normalize("NFD", key): 2}, {"a": 1}]
    assert grade_answer({"l": [{"a": 1}, {key: 2}]}, Answer(value={"l": answered}), rules={("l",): UNORDERED}).reward
