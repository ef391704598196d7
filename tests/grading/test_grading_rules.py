"""Grading by key: paths, what each rule allows, what is an error, and work that stays bounded."""

from __future__ import annotations

import itertools
import json
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_core_rollouts.grading.answers import Answer, Grade, grade_answer, read_answer
from pytest_core_rollouts.grading.comparing import DEFAULT_TOLERANCE, UNORDERED_LIMIT, KeyRule, Reason, Tolerance
from pytest_core_rollouts.grading.rules import BadRule, Every, parse_path, rules_by_path
from pytest_core_rollouts.tasks.files import TaskError
from pytest_core_rollouts.tasks.loading import load_task
from pytest_core_rollouts.tasks.task import Task
from tests.support.tables import rows

WITHIN_1 = KeyRule(Tolerance(absolute=1))
UNORDERED = KeyRule(unordered=True)


def graded(expected: dict[str, Any], rules: dict[str, KeyRule], answer: Any) -> Grade:
    read = read_answer(json.dumps(answer).encode())
    return grade_answer(expected, read, rules=rules_by_path(expected, rules))


# Paths


@rows(
    ("written", "steps"),
    [
        ("total", ("total",)),
        ("totals.north", ("totals", "north")),
        ("rows[2].price", ("rows", 2, "price")),
        ('totals["North East"].x', ("totals", "North East", "x")),
        ('["a.b"]', ("a.b",)),
        ('["*"]', ("*",)),
        ('a["say \\"hi\\""][0][1]', ("a", 'say "hi"', 0, 1)),
        ("rows[*].price", ("rows", Every.ELEMENT, "price")),
        ("*.net", (Every.KEY, "net")),
        ("regions.*", ("regions", Every.KEY)),
        ("été-1", ("été-1",)),
    ],
)
def test_a_path_is_read(written: str, steps: tuple[Any, ...]) -> None:
    assert parse_path(written) == steps


@rows("written", ["", ".a", "a.", "a..b", "a[", "a[-1]", "a[01]", "a['b']", "a b", "1a", "[x]", 'a["\\x"]'])
def test_the_error_for_an_invalid_path_says_how_to_write_one(written: str) -> None:
    with pytest.raises(ValueError, match="write it as totals"):
        parse_path(written)


@rows(
    ("rules", "problem"),
    [
        ({"totl": UNORDERED}, "totl: the expected answer has no such value; correct the path"),
        ({"n.deeper": WITHIN_1}, "n.deeper: the expected answer has no such value"),
        ({"rows[3]": WITHIN_1}, "rows[3]: the expected answer has no such value"),
        ({"n[0]": WITHIN_1}, "n[0]: the expected answer has no such value"),
        ({"n": UNORDERED}, "n: unordered needs an array"),
        ({"s": WITHIN_1}, "s: relative and absolute need a number"),
        ({"n": KeyRule(ignore_case=True)}, "n: ignore_case needs a string"),
        ({"b": KeyRule(exact=True)}, "b: exact needs a number or a string"),
        ({"n": WITHIN_1, '["n"]': WITHIN_1}, '["n"]: n is the same path; remove one of the two'),
        ({"a b": WITHIN_1}, "a b: invalid path into the answer; write it as"),
    ],
)
def test_a_rule_that_cannot_hold_is_an_error(rules: dict[str, KeyRule], problem: str) -> None:
    with pytest.raises(BadRule) as caught:
        rules_by_path({"n": 1, "s": "x", "b": True, "rows": [1, 2]}, rules)
    assert str(caught.value).startswith(problem)


def test_of_two_rules_for_a_value_the_more_exact_path_holds() -> None:
    rules = {"rows[1]": KeyRule(exact=True), "rows[*]": WITHIN_1}
    assert graded({"rows": [1.0, 1.0]}, rules, {"rows": [2.0, 1.0]}).reward == 1
    assert graded({"rows": [1.0, 1.0]}, rules, {"rows": [1.0, 2.0]}).reward == 0


# What each rule allows


@rows(
    ("rule", "expected", "right", "wrong"),
    [
        (KeyRule(Tolerance(relative=0.1)), 100.0, [90.0, 110, 100], [89.9, 111, "100", True]),
        (KeyRule(Tolerance(relative=0.1)), 100, [90, 110.0], [89, 111]),  # named, so integers have it too
        (KeyRule(Tolerance(absolute=2)), 100, [98, 102, 99.5], [97, 103]),
        (KeyRule(exact=True), 1.0, [1.0, 1], [1.0000001]),
        (KeyRule(exact=True), "x", ["x"], [" x", "x\n", "X"]),
        (KeyRule(exact=True), "caf\u00e9", ["caf\u00e9"], ["cafe\u0301"]),
        (KeyRule(ignore_case=True), "Stra\u00dfe", ["strasse", " STRASSE ", "Stra\u00dfe"], ["strase", 1]),
        (KeyRule(ignore_case=True), "\u00c9t\u00e9", ["e\u0301t\u00e9", "\u00c9T\u00c9"], ["ete"]),
        (KeyRule(one_of=("b", 3)), "a", ["a", "b", 3, " a "], ["c", 3.1, True, None]),
        (KeyRule(one_of=({"k": 1},)), None, [None, {"k": 1, "more": 2}], [{"k": 2}, {}]),
        (KeyRule(ignore_case=True, one_of=("Red",)), "Blue", ["blue", "RED"], ["green"]),
        (KeyRule(Tolerance(absolute=1), one_of=(10,)), 1, [2, 9], [5]),
        (UNORDERED, [1, 2, 2], [[2, 1, 2], [2, 2, 1.0]], [[1, 1, 2], [1, 2], [1, 2, 2, 2], {"0": 1}, "122"]),
        (UNORDERED, ["a", None, True], [[True, " a", None]], [[1, "a", None], ["a", None, None]]),
        (UNORDERED, [0, False], [[False, 0]], [[0, 0], [False, False]]),
        (UNORDERED, [{"k": 1}, {"k": 2}], [[{"k": 2, "x": 9}, {"k": 1}]], [[{"k": 1}, {"k": 1}]]),
        (UNORDERED, [[1, 2], [3]], [[[3], [1, 2]]], [[[3], [2, 1]]]),
        (UNORDERED, [1.0, 2.0], [[2.0000001, 1.0]], [[1.0, 1.0]]),
        (KeyRule(ignore_case=True, unordered=True), ["A", "b"], [["B", "a"]], [["B", "B"]]),
        (KeyRule(exact=True, unordered=True), ["A", "b"], [["b", "A"]], [["b", "A "]]),
        (UNORDERED, [], [[]], [[1]]),
    ],
)
def test_what_a_rule_allows(rule: KeyRule, expected: Any, right: list[Any], wrong: list[Any]) -> None:
    if expected == []:
        rule = UNORDERED
    for value in right:
        assert graded({"v": expected, "w": 1}, {"v": rule}, {"v": value, "w": 1}).reward == 1, value
        assert graded({"v": expected, "w": 1}, {"v": rule}, {"v": value, "w": 2}).reward == 0, "a rule is for its key"
    for value in wrong:
        assert graded({"v": expected, "w": 1}, {"v": rule}, {"v": value, "w": 1}).reward == 0, value
    assert graded({"v": expected, "w": 1}, {"v": rule}, {"w": 1}).reward == 0, "a missing key is wrong under any rule"


def test_a_rule_holds_for_all_that_is_below_its_place() -> None:
    expected = {"totals": {"a": 10, "b": [20.0, {"c": 30}]}, "other": 10}
    rules = {"totals": WITHIN_1, "totals.b[1].c": KeyRule(exact=True)}
    assert graded(expected, rules, {"totals": {"a": 11, "b": [19.0, {"c": 30}]}, "other": 10}).reward == 1
    assert graded(expected, rules, {"totals": {"a": 11, "b": [19.0, {"c": 31}]}, "other": 10}).reward == 0
    assert graded(expected, rules, {"totals": {"a": 11, "b": [19.0, {"c": 30}]}, "other": 11}).reward == 0


def test_tolerances_that_overlap_do_not_spoil_a_pairing() -> None:
    """10 goes with 9 and with 10, but 11 only with 10: taking equal ones first would leave 11 without a partner."""
    rules = {"v": KeyRule(Tolerance(absolute=1), unordered=True)}
    for answer in itertools.permutations([10.0, 9.0]):
        assert graded({"v": [10.0, 11.0]}, rules, {"v": answer}).reward == 1


@rows("whole", [11.0, 11])
def test_a_whole_number_that_matches_no_integer_does_not_spoil_a_pairing(whole: float) -> None:
    """10 goes with 11.5 and 11 with 11.0 only, however that is written."""
    expected, rules = {"v": [10, 11]}, rules_by_path({"v": [10, 11]}, {"v": UNORDERED})
    for answer in itertools.permutations([whole, 11.5]):
        assert grade_answer(expected, Answer(value={"v": list(answer)}), Tolerance(absolute=2), rules).reward == 1
    wrong = grade_answer(expected, Answer(value={"v": [12.0, 11.5]}), Tolerance(absolute=2), rules)
    assert wrong.reasons == (Reason("v[1]", 11, 12.0),)


def test_an_element_too_many_is_wrong_whatever_rule_is_at_its_place() -> None:
    expected = {"v": [9, 2]}
    rules = {"v": KeyRule(one_of=([1],)), "v[1]": KeyRule(one_of=(3,))}
    rewards = [graded(expected, rules, {"v": value}).reward for value in ([9, 2], [9, 3], [1], [1, 3], [9, 2, 3])]
    assert rewards == [1, 1, 1, 0, 0]
    assert graded({"v": [1]}, {"v[0]": KeyRule(one_of=(2,))}, {"v": [1, 2]}).reasons == (
        Reason("v[1]", "(nothing)", 2),
    )


def test_what_is_left_over_is_named() -> None:
    grade = graded({"v": ["a", "b", "c"]}, {"v": UNORDERED}, {"v": ["c", "x", "a", "y"]})
    assert grade.reasons == (Reason("v[1]", "b", "x"), Reason("v[3]", "(nothing)", "y"))
    assert graded({"v": ["a", "b"]}, {"v": UNORDERED}, {"v": ["b"]}).reasons == (Reason("v[0]", "a", "(missing)"),)
    assert graded({"v": 1}, {"v": KeyRule(one_of=(2,))}, {}).reasons == (Reason("v", {"one of": [1, 2]}, "(missing)"),)


WHOLE, FRACTIONS = st.integers(0, 6), st.floats(0, 6) | st.integers(0, 6).map(float)
LISTS = [st.lists(numbers, max_size=6) for numbers in (WHOLE, FRACTIONS, WHOLE | FRACTIONS)]


@settings(deadline=None)
@given(
    LISTS[0] | LISTS[1] | LISTS[2],
    LISTS[2],
    st.sampled_from([None, Tolerance(absolute=1.5)]),
    st.sampled_from([DEFAULT_TOLERANCE, Tolerance(absolute=1.5), Tolerance()]),
)
def test_a_pairing_is_found_exactly_when_there_is_one(
    expected: list[Any], answered: list[Any], named: Tolerance | None, usual: Tolerance
) -> None:
    """Held against all permutations of the answer, each compared in order."""
    if not expected:
        named = None  # a rule on numbers needs some

    def matches(values: list[Any], unordered: bool) -> bool:
        rules = rules_by_path({"v": expected}, {"v": KeyRule(named, unordered=unordered)})
        return grade_answer({"v": expected}, Answer(value={"v": values}), usual, rules).reward == 1

    among_all = len(expected) == len(answered) and any(
        matches(list(order), False) for order in itertools.permutations(answered)
    )
    assert matches(answered, True) == among_all


# Bounded work


def test_a_hundred_thousand_plain_elements_are_counted_off() -> None:
    expected = {"v": [f"i{number}" for number in range(100_000)]}
    start = time.process_time()
    assert graded(expected, {"v": UNORDERED}, {"v": expected["v"][::-1]}).reward == 1
    assert time.process_time() - start < 5


@pytest.mark.slow
@rows("rule", [UNORDERED, KeyRule(Tolerance(absolute=0.3), unordered=True)])
@rows("kind", [float, int])
def test_fifty_thousand_numbers_are_sorted(rule: KeyRule, kind: type) -> None:
    expected = {"v": [kind(number) for number in range(50_000)]}
    near = [number + 1e-7 * number for number in range(50_000)]
    start = time.process_time()
    assert graded(expected, {"v": rule}, {"v": near[::-1]}).reward == 1
    assert graded(expected, {"v": rule}, {"v": [*near[:-1], 5.5]}).reward == 0
    assert time.process_time() - start < 20


def test_what_takes_too_long_to_pair_is_an_error_at_collection() -> None:
    with pytest.raises(BadRule, match="unordered: 1,000 elements of this kind take too long to compare"):
        rules_by_path({"v": [{"n": number} for number in range(1000)]}, {"v": UNORDERED})
    inner = [[[[number] for number in range(60)] for _ in range(60)]]
    with pytest.raises(BadRule, match="take too long"):
        rules_by_path({"v": inner[0]}, {"v": UNORDERED, "v[*]": UNORDERED})


@pytest.mark.slow
@rows("answer", ["near", "far", "marks", "keys"])
def test_no_answer_stalls_a_pairing(answer: str) -> None:
    number = int((UNORDERED_LIMIT / 2) ** 0.5) - 1
    expected: list[Any] = [[1.0 + index / 1000] for index in range(number)]
    rule = KeyRule(Tolerance(absolute=0.3), unordered=True)
    answered: list[Any] = [[1.0 + index / 1000] for index in range(number - 1)] + [[99.0]]
    if answer == "far":
        answered = [[5.0]] * 250_000
    elif answer == "marks":
        expected, rule = ["x" * 300] * 30 + [{}], UNORDERED
        answered = ["\u0301\u0316" * 1700 + str(index) for index in range(31)]
    elif answer == "keys":
        expected, rule = [{f"k{index}": 1} for index in range(300)], UNORDERED
        answered = [{f"é{key}": 1 for key in range(200)} for _ in range(300)]
    start = time.process_time()
    assert graded({"v": expected}, {"v": rule}, {"v": answered}).reward == 0
    assert time.process_time() - start < 20


# In task.yaml, and in code


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "instruction.md").write_text("Do it.")
    (tmp_path / "expected.json").write_text('{"total": 10, "names": ["a", "b"], "city": "Rome", "rows": [{"n": 1.5}]}')
    return tmp_path


def test_grading_in_task_yaml(folder: Path) -> None:
    (folder / "task.yaml").write_text(
        """
grading:
  total: {relative: 0.1, absolute: 2}
  names: {unordered: true, ignore_case: true}
  city: {one_of: [Roma, Rom]}
  "rows[*].n": {exact: true}
"""
    )
    task = load_task(folder, "t")
    assert task.grading == {
        "total": KeyRule(Tolerance(0.1, 2.0)),
        "names": KeyRule(unordered=True, ignore_case=True),
        "city": KeyRule(one_of=("Roma", "Rom")),
        "rows[*].n": KeyRule(exact=True),
    }
    assert task.expected is not None
    answer = read_answer(b'{"total": 12, "names": ["B", "a"], "city": "Roma", "rows": [{"n": 1.5}]}')
    assert grade_answer(task.expected, answer, task.tolerance, task.rules).reward == 1
    assert grade_answer(task.expected, answer, task.tolerance).reward == 0


@rows(
    ("yaml", "problem"),
    [
        ("grading:\n  total: {relative: 0.1}\n  totl: {exact: true}\n", "3: grading.totl: the expected answer has no"),
        ("grading: {total: {relativ: 0.1}}\n", "1: grading.total.relativ: unknown key; did you mean relative?"),
        ("grading: {total: {}}\n", "1: grading.total: expected at least one rule: relative, absolute, exact"),
        ("grading: {total: 0.1}\n", "1: grading.total: expected a mapping of names to values"),
        ("grading: {total: {relative: 1.5}}\n", "1: grading.total.relative: expected a number below 1"),
        ("grading: {total: {exact: false}}\n", "1: grading.total.exact: expected true, got false"),
        (
            "grading: {total: {exact: true, relative: 0.1}}\n",
            "1: grading.total: exact can't be combined with a tolerance",
        ),
        ("grading: {city: {one_of: []}}\n", "1: grading.city.one_of: expected a list of further correct values"),
        ("grading: {city: {one_of: Roma}}\n", "1: grading.city.one_of: expected a list of further correct values"),
        ("grading: [total]\n", "1: grading: expected a mapping of names to values"),
    ],
)
def test_a_faulty_rule_is_named_with_its_line(folder: Path, yaml: str, problem: str) -> None:
    (folder / "task.yaml").write_text(yaml)
    with pytest.raises(TaskError) as caught:
        load_task(folder, "t")
    assert str(caught.value).startswith(f"{folder / 'task.yaml'}:{problem}")


def test_rules_without_an_expected_answer_are_an_error(folder: Path) -> None:
    (folder / "expected.json").unlink()
    (folder / "grader.py").write_text("def grade(): return 1\n")
    (folder / "task.yaml").write_text("grading: {total: {exact: true}}\n")
    with pytest.raises(TaskError, match=r"grading: needs an expected\.json"):
        load_task(folder, "t")


def test_a_task_made_in_code_is_held_to_the_same_rules() -> None:
    task = Task(id="t", instruction="x", expected={"n": 1}, grading={"n": {"absolute": 1}})  # type: ignore[dict-item]
    assert task.grading == {"n": WITHIN_1}
    with pytest.raises(TaskError, match=r"task 't': grading\.m: the expected answer has no such value"):
        Task(id="t", instruction="x", expected={"n": 1}, grading={"m": WITHIN_1})


def test_rules_are_in_the_grading_digest() -> None:
    plain = Task(id="t", instruction="x", expected={"n": 1})
    ruled = Task(id="t", instruction="x", expected={"n": 1}, grading={"n": WITHIN_1})
    assert plain.grading_digest != ruled.grading_digest
    assert plain.input_digest == ruled.input_digest
