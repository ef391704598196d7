"""What holds for every answer, tried on generated ones."""

from __future__ import annotations

import copy
import json
import unicodedata
from fractions import Fraction
from typing import Any

from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from pytest_core_rollouts.grading.answers import Answer, check_expected, grade_answer, read_answer
from pytest_core_rollouts.grading.comparing import DEFAULT_TOLERANCE, Tolerance
from pytest_core_rollouts.strict_json import InvalidJSON, parse_json

steady = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])  # the machine may be busy

TEXTS = st.text(max_size=8) | st.sampled_from(["", " ", "x", " x\n", "caf\u00e9", "cafe\u0301", "\ud835", "\u200bx"])
NUMBERS = (
    st.integers(-5, 5)
    | st.integers(-(10**20), 10**20)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.sampled_from([1.0, 1.000001, 1.0000011, 0.0, -0.0, 10**300])
)
LEAVES = st.none() | st.booleans() | NUMBERS | TEXTS
VALUES = st.recursive(
    LEAVES, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXTS, inner, max_size=4), max_leaves=12
)
OBJECTS = st.dictionaries(TEXTS, VALUES, min_size=1, max_size=4).filter(lambda value: _may_be_expected(value))
TOLERANCES = st.sampled_from([DEFAULT_TOLERANCE, Tolerance(), Tolerance(absolute=0.01), Tolerance(0.5, 3.0)])


def _may_be_expected(value: Any) -> bool:
    try:
        check_expected(value)
    except ValueError:
        return False
    return True


def reward(expected: dict[str, Any], answer: Any, tolerance: Tolerance = DEFAULT_TOLERANCE) -> float:
    """The reward after a way through a file, as an answer comes."""
    return grade_answer(expected, read_answer(json.dumps(answer).encode()), tolerance).reward


@steady
@given(OBJECTS, TOLERANCES)
def test_what_is_expected_is_right(expected: dict[str, Any], tolerance: Tolerance) -> None:
    grade = grade_answer(expected, read_answer(json.dumps(expected).encode()), tolerance)
    assert (grade.reward, grade.reasons, grade.note) == (1.0, (), None)


@steady
@given(OBJECTS, st.dictionaries(st.text("#!", min_size=9, max_size=10), VALUES, min_size=1))
def test_extra_keys_change_nothing_at_any_depth(expected: dict[str, Any], extra: dict[str, Any]) -> None:
    def extended(value: Any) -> Any:
        if isinstance(value, dict):
            return {**{key: extended(child) for key, child in value.items()}, **extra}
        return [extended(child) for child in value] if isinstance(value, list) else value

    assert reward(expected, extended(expected)) == 1.0


@steady
@given(OBJECTS, st.data())
def test_a_missing_key_is_wrong_at_any_depth(expected: dict[str, Any], data: st.DataObject) -> None:
    answer = copy.deepcopy(expected)
    objects = [value for value in _all_values(answer) if isinstance(value, dict) and value]
    chosen = data.draw(st.sampled_from(objects))
    del chosen[data.draw(st.sampled_from(sorted(chosen)))]
    assert reward(expected, answer) == 0.0


def _all_values(value: Any) -> list[Any]:
    children = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return [value, *(inner for child in children for inner in _all_values(child))]


@steady
@given(OBJECTS, VALUES, TOLERANCES, st.data())
def test_the_grade_is_that_of_a_slow_and_plain_reference(
    expected: dict[str, Any], other: Any, tolerance: Tolerance, data: st.DataObject
) -> None:
    answer = other
    if data.draw(st.booleans(), "a variation of what is expected"):
        answer = copy.deepcopy(expected)
        places = [(o, k) for o in _all_values(answer) for k in _keys(o)]
        place, key = data.draw(st.sampled_from(places))
        place[key] = other
    as_read = json.loads(json.dumps(answer))
    assert reward(expected, answer, tolerance) == float(
        isinstance(answer, dict) and _same(expected, as_read, tolerance)
    )


@steady
@given(
    st.integers(-(10**20), 10**20) | st.integers(-(10**300), 10**300),
    st.integers(-3, 3) | st.integers(),
    st.integers(0, 400),
    TOLERANCES,
)
def test_another_whole_number_is_wrong_however_it_is_written(
    expected: int, off: int, zeros: int, tolerance: Tolerance
) -> None:
    whole = expected + off
    mantissa = str(abs(whole))
    sign = "-" if whole < 0 else ""
    ways = [f"{whole}.{'0' * (zeros + 1)}", f"{whole}e0", f"{sign}{mantissa[0]}.{mantissa[1:]}0E+{len(mantissa) - 1}"]
    for written in ways:
        answer = read_answer(f'{{"x":{written}}}'.encode())
        assert grade_answer({"x": expected}, answer, tolerance).reward == float(off == 0), written


def _keys(value: Any) -> list[Any]:
    return list(value) if isinstance(value, dict) else list(range(len(value))) if isinstance(value, list) else []


def _same(expected: Any, answered: Any, tolerance: Tolerance) -> bool:
    """The rules of grading, with nothing in mind but to be plainly right."""
    kinds = _kind(expected), _kind(answered)
    if kinds == ("object", "object"):
        return all(
            any(
                _nfc(key) == _nfc(name) and _same(value, answered[_literal(key, answered, name)], tolerance)
                for name in answered
            )
            for key, value in expected.items()
        )
    if kinds == ("array", "array"):
        return len(expected) == len(answered) and all(
            _same(e, a, tolerance) for e, a in zip(expected, answered, strict=True)
        )
    if kinds == ("string", "string"):
        return _nfc(expected.strip()) == _nfc(answered.strip())
    if kinds == ("integer", "integer"):
        return bool(expected == answered)
    if set(kinds) <= {"integer", "float"}:
        e, a, relative, absolute = (
            Fraction(repr(number)) for number in (expected, answered, tolerance.relative, tolerance.absolute)
        )
        if kinds[0] == "integer" and e != a:
            if a.denominator == 1:
                return False
            if tolerance == DEFAULT_TOLERANCE and abs(e - a) >= Fraction(1, 2):
                return False
        return abs(e - a) <= abs(e) * relative or abs(e - a) <= absolute
    return kinds[0] == kinds[1] and bool(expected == answered)


def _kind(value: Any) -> str:
    names = {dict: "object", list: "array", str: "string", bool: "boolean", int: "integer", float: "float"}
    return names.get(type(value), "null")


def _nfc(text: str) -> str:
    return unicodedata.normalize("NFC", text)


def _literal(key: str, answered: dict[str, Any], otherwise: str) -> str:
    return key if key in answered else otherwise


FRAGMENTS = st.sampled_from(
    [
        *(b"{", b"}", b"[", b"]", b'"', b"\\", b":", b",", b"1", b"e9", b"-", b".5", b"NaN", b"true", b" ", b"\0"),
        *(b"\xff", b"\xef\xbb\xbf", b'"x"', b'{"x":', b"\\ud835", b"9" * 1500, b"[" * 150, "é".encode()),
    ]
)
BYTES = st.binary(max_size=200) | st.lists(FRAGMENTS, max_size=30).map(b"".join)


@steady
@given(BYTES, OBJECTS)
@example(b"[" * 100_000, {"x": 1})
@example(b'{"x":' + b"9" * 5000 + b"}", {"x": 1})
@example(b'{"x":NaN}', {"x": 1.0})
def test_any_bytes_get_a_grade(data: bytes, expected: dict[str, Any]) -> None:
    answer = read_answer(data)
    grade = grade_answer(expected, answer)
    assert grade.reward in (0.0, 1.0)
    assert (grade.reward == 1.0) == (not grade.reasons and grade.note is None)
    if answer.problem is not None:
        assert grade.reward == 0.0
        assert "\n" not in answer.problem


@steady
@given(BYTES)
def test_what_is_read_is_what_python_reads(data: bytes) -> None:
    try:
        value = parse_json(data)
    except InvalidJSON:
        return
    assert value == json.loads(data.removeprefix(b"\xef\xbb\xbf").decode())


@steady
@given(VALUES)
def test_every_json_value_is_read_as_it_was_written(value: Any) -> None:
    read = parse_json(json.dumps(value).encode())
    assert repr(read) == repr(value)


@steady
@given(OBJECTS, VALUES)
def test_grading_changes_neither_side(expected: dict[str, Any], value: Any) -> None:
    before = repr((expected, value))
    grade_answer(expected, Answer(value=value))
    assert repr((expected, value)) == before
