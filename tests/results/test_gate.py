"""Gates on pretended runs, with verdicts worked out by hand."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from pytest_core_rollouts.records.record import RolloutRecord
from pytest_core_rollouts.results.comparison import Baseline
from pytest_core_rollouts.results.gate import AllowedErrors, Judgment, Selection, judge
from pytest_core_rollouts.results.gate_forms import GateError, parse_gate
from pytest_core_rollouts.results.number_text import p_clause
from pytest_core_rollouts.results.summary import Summary, summarize
from tests.support.rows import run
from tests.support.tables import rows

Results = Mapping[str, Sequence[float | str | None]]

YES, NO = (1.0,) * 4, (0.0,) * 4


def one(expression: str, results: Results, baseline: Results | None = None, **fields: Any) -> Judgment:
    """The judgment of one gate on one agent."""
    [judgment] = judge([parse_gate(expression)], summarize(run(results)), earlier(baseline), **fields)
    return judgment


def earlier(results: Results | None) -> Baseline | None:
    return None if results is None else Baseline(Path("main.jsonl"), summarize(run(results, run_id="old")))


# What can be written


@rows(
    ("text", "expression"),
    [
        ("each", "each"),
        (" none ", "none"),
        ("baseline", "baseline"),
        ("mean>=0.7", "mean>=0.7"),
        ("mean >= .5", "mean>=.5"),
        ("mean>=1", "mean>=1"),
        ("pass@4>=0.8", "pass@4>=0.8"),
        ("pass^16 >= 1.0", "pass^16>=1.0"),
        ("lost<=0", "lost<=0"),
    ],
)
def test_what_a_gate_may_be(text: str, expression: str) -> None:
    assert parse_gate(text).expression == expression


@rows(
    "text",
    [
        *("", "all", "Each", "none,each", "mean", "mean>0.7", "mean>=", "mean>=1.1", "mean>=-0.1", "mean>=70%"),
        *(
            "mean>=1e-1",
            "mean>=nan",
            "mean>=0.7 and lost<=1",
            "pass@0>=0.5",
            "pass@>=0.5",
            "pass@04>=0.5",
            "pass4>=0.5",
        ),
        *("lost<=-1", "lost<=1.5", "lost<1", "baseline>=1", "mean>=٠.٥"),
    ],
)
def test_anything_else_is_refused_in_one_line_that_names_the_known(text: str) -> None:
    with pytest.raises(GateError) as caught:
        parse_gate(text)
    known = "each, none, mean>=X, pass@K>=X, pass^K>=X, lost<=N or baseline (X from 0 to 1, such as 0.8); "
    assert str(caught.value).startswith(f"unknown gate {text!r}; use {known}")


def test_only_the_default_asserts_each_rollout() -> None:
    assert [parse_gate(text).asserts_each for text in ("each", "none", "mean>=0", "baseline")] == [
        True,
        False,
        False,
        False,
    ]


# each and none


@rows(
    ("results", "passed", "text"),
    [
        ({"a": YES, "b": YES}, True, "8 of 8 rollouts solved"),
        ({"a": YES, "b": (1.0, 1.0, 1.0, 0.5)}, False, "7 of 8 rollouts solved"),
        ({"a": (1.0, None, None, None)}, None, "1 of 4 rollouts solved (3 without a reward)"),
        (
            {"a": (1.0, 1.0, 1.0, None), "b": (1.0, *["not run"] * 3)},
            None,
            "4 of 8 rollouts solved (1 without a reward, 3 did not run)",
        ),
        ({"a": (0.0, "not run")}, False, "0 of 2 rollouts solved (1 did not run)"),
    ],
)
def test_each(results: Results, passed: bool | None, text: str) -> None:
    assert one("each", results) == Judgment("each", passed, text)


@rows(
    ("results", "passed", "text"),
    [
        ({"a": NO}, True, "4 of 4 rollouts graded"),
        ({"a": (1.0, 1.0, None, None)}, True, "2 of 4 rollouts graded (2 without a reward)"),
        ({"a": (1.0, None, None, None)}, None, "1 of 4 rollouts graded (3 without a reward)"),
        ({"a": (1.0, 1.0, 1.0, "not run")}, None, "3 of 4 rollouts graded (1 did not run)"),
    ],
)
def test_none_never_fails_and_is_undecided_without_enough_rewards(
    results: Results, passed: bool | None, text: str
) -> None:
    assert one("none", results) == Judgment("none", passed, text)


@rows("expression", ["each", "none", "mean>=0", "pass@1>=0", "baseline", "lost<=9"])
def test_a_run_without_a_result_passes_no_gate(expression: str) -> None:
    for summary in (summarize([]), summarize([], planned=4), summarize(run({"a": (None, None)}))):
        [judgment] = judge([parse_gate(expression)], summary, earlier({"a": YES}))
        assert judgment.passed is not True


# Figures


@rows(
    ("expression", "results", "passed", "text"),
    [
        ("mean>=0.7", {"a": (0.7, 0.7), "b": (0.7, 0.7)}, True, "0.700 >= 0.7"),  # as decimals, not as floats
        ("mean>=0.625", {"a": (1.0,), "b": (1.0, 0.0, 0.0, 0.0)}, True, "0.625 >= 0.625"),  # tasks weigh the same
        ("mean>=0.626", {"a": (1.0,), "b": (1.0, 0.0, 0.0, 0.0)}, False, "0.625 < 0.626"),
        ("mean>=0.8", {"a": (0.79996,)}, False, "0.79996 < 0.8"),  # unrounded, and shown so
        ("mean>=0.7", {"a": (2 / 3,)}, False, "0.667 < 0.7"),
        ("mean>=0.6667", {"a": (1.0, 1.0, 0.0)}, False, "0.66667 < 0.6667"),  # 0.667 would be no reason
        ("mean>=0.6667", {"a": (0.6667,)}, True, "0.6667 >= 0.6667"),
        ("mean>=0.001", {"a": (0.00004,)}, False, "0.0001 < 0.001"),  # not 0, which would be another story
        ("mean>=0.8", {"a": (0.799999999999,)}, False, "0.799999999999 < 0.8"),
        ("pass@2>=0.5", {"a": (1.0, 0.0, 0.0, 0.0)}, True, "0.500 >= 0.5"),
        ("pass@4>=1", {"a": (1.0, 0.0, 0.0, 0.0)}, True, "1.000 >= 1"),
        ("pass^2>=0.5", {"a": (1.0, 1.0, 1.0, 0.0)}, True, "0.500 >= 0.5"),
        ("pass^4>=0.1", {"a": (1.0, 1.0, 1.0, 0.0), "b": NO}, False, "0.000 < 0.1"),
        ("pass@4>=0.5", {"a": YES, "b": (1.0,)}, True, "1.000 >= 0.5; 1 of 2 tasks have fewer than 4 samples"),
        ("pass@4>=0.5", {"b": (1.0,)}, None, "no task has 4 samples"),
        # with rewards lacking: decided only where they can't turn it
        (
            "mean>=0.7",
            {"a": (1.0, 1.0, 1.0, None)},
            True,
            "0.750 >= 0.7 even if all had failed that have no reward (1 without a reward)",
        ),
        (
            "mean>=0.7",
            {"a": (0.0, 0.0, 1.0, None)},
            False,
            "0.500 < 0.7 even if all had passed that have no reward (1 without a reward)",
        ),
        (
            "mean>=0.7",
            {"a": (0.0, 1.0, 1.0, None)},
            None,
            "0.500 to 0.750, as those turn out that have no reward (1 without a reward)",
        ),
        (
            "pass@4>=0.6",
            {"a": (1.0, None, None, None), "b": (0.0, 0.0, 0.0, None)},
            None,
            "0.500 to 1.000, as those turn out that have no reward (4 without a reward)",
        ),
        (
            "mean>=0.6666",
            {"a": (0.99977, 1.0, None)},
            None,
            "0.66659 to 0.999, as those turn out that have no reward (1 without a reward)",
        ),
        # a run that is not complete passes nothing, and can fail
        (
            "mean>=0.2",
            {"a": (1.0, 1.0, 1.0, "not run")},
            None,
            "0.750 >= 0.2 even if all had failed that have no reward (1 did not run)",
        ),
        (
            "mean>=0.9",
            {"a": (0.0, 1.0, 1.0, "not run")},
            False,
            "0.750 < 0.9 even if all had passed that have no reward (1 did not run)",
        ),
    ],
)
def test_figures(expression: str, results: Results, passed: bool | None, text: str) -> None:
    judgment = one(expression, results)
    assert (judgment.passed, judgment.text) == (passed, text)


def test_a_task_of_which_nothing_ran_counts_as_missing() -> None:
    judgment = one("mean>=0.4", {"a": (1.0, 1.0), "b": ("not run", "not run")})
    assert judgment.passed is None
    judgment = one("mean>=0.6", {"a": (0.0, 0.0), "b": ("not run", "not run")})
    assert (judgment.passed, judgment.text.split(" even")[0]) == (False, "0.500 < 0.6")


def test_a_gate_holds_for_every_agent() -> None:
    rows = [
        *run({"a": (1.0, 1.0)}, harness="codex", agents=3),
        *run({"a": (1.0, 0.0)}, harness="claude_sdk", agents=3),
    ]
    [judgment] = judge([parse_gate("mean>=0.6")], summarize(rows))
    assert judgment == Judgment(
        "mean>=0.6", False, "claude_sdk: 0.500 < 0.6; codex: 1.000 >= 0.6; others: none of 2 rollouts has run"
    )
    [judgment] = judge([parse_gate("mean>=0.5")], summarize(rows))
    assert judgment.passed is None  # an agent has no result yet


def test_several_gates_are_judged_separately() -> None:
    judgments = judge([parse_gate("mean>=0.5"), parse_gate("pass^2>=0.5")], summarize(run({"a": (1.0, 0.0)})))
    assert [str(judgment) for judgment in judgments] == [
        "gate mean>=0.5: passed: 0.500 >= 0.5",
        "gate pass^2>=0.5: failed: 0.000 < 0.5",
    ]


# Expected failures


def xfail(rows: Sequence[RolloutRecord]) -> list[RolloutRecord]:
    return [dataclasses.replace(row, settings={"xfail": "too hard"}) for row in rows]


def test_what_was_expected_to_fail_is_outside_of_gates() -> None:
    rows = [*run({"a": (1.0, 1.0), "b": (0.0, 0.0)})]
    assert [judgment.passed for judgment in gates(rows)] == [False, False]
    marked = [*rows[:2], *xfail(rows[2:])]
    assert [str(judgment) for judgment in gates(marked)] == [
        "gate mean>=1: passed: 1.000 >= 1",
        "gate each: passed: 2 of 2 rollouts solved",
    ]
    summary = summarize(marked)
    assert (summary.graded, [(one.task, one.solved, one.graded) for one in summary.agents[0].xfails]) == (
        2,
        [("b", 0, 2)],
    )


def test_a_single_expected_failure_and_one_that_did_not_run_leave_the_plan_right() -> None:
    rows = [*run({"a": (1.0, 0.0, 1.0), "b": (0.0, "not run", "not run")})]
    marked = [row if row.reward else xfail([row])[0] for row in rows]
    judged = summarize(marked, planned=6)
    assert (judged.planned, judged.rows, judged.agents[0].planned, judged.agents[0].planned_tasks) == (2, 2, 2, 1)


def gates(rows: Sequence[RolloutRecord]) -> list[Judgment]:
    return judge([parse_gate("mean>=1"), parse_gate("each")], summarize(rows))


# Against a baseline


def test_a_drop_of_one_task_of_thirty_from_four_of_four_to_none() -> None:
    """No single task could fail with so few samples; but nothing else moved, and the drop as a whole is seen."""
    tasks = {f"t{n:02}": YES for n in range(30)}
    noisy = {f"t{n:02}": (1.0, 1.0, 0.0, 0.0) for n in range(30)}
    judgment = one("baseline", {**tasks, "t07": NO}, tasks)
    # 4 of 4 solved samples of a task are the earlier ones by chance: 1 / C(8, 4)
    assert str(judgment) == (
        "gate baseline: failed: mean reward 1.000 -> 0.967 over 30 tasks, a significant drop (p = 0.014, one-sided)"
    )
    judgment = one("baseline", {**noisy, "t07": NO}, {**noisy, "t07": YES})
    assert judgment.passed is True  # among tasks that vary by themselves it is nothing


def test_a_drop_of_all_tasks_is_seen_even_with_one_sample_each() -> None:
    results: Results = dict.fromkeys("abcde", (1.0,))
    judgment = one("baseline", dict.fromkeys("abcde", (0.0,)), results)
    assert str(judgment) == (  # 1 / 2^5
        "gate baseline: failed: mean reward 1.000 -> 0.000 over 5 tasks, a significant drop (p = 0.031, one-sided)"
    )


def test_a_drop_of_one_task_with_samples_enough() -> None:
    # among 3 tasks: C(16, 8) = 12,870; p = 2 / 12,870, times 3 = 0.00047; the mean rose: c gained what a lost
    before: Results = {"a": (1.0,) * 8, "b": (1.0,) * 8, "c": (0.0,) * 8}
    after: Results = {"a": (0.0,) * 8, "b": (1.0,) * 8, "c": (1.0,) * 8}
    assert str(one("baseline", after, before)) == (
        "gate baseline: failed: significant drop on a 8/8 -> 0/8 (p = 0.00047, two-sided)"
    )


def test_the_same_mean_with_tasks_swapped_is_lost_and_no_significant_drop() -> None:
    before, after = {"a": YES, "b": NO}, {"a": NO, "b": YES}
    assert one("baseline", after, before).passed is True
    assert str(one("lost<=0", after, before)) == "gate lost<=0: failed: 1 lost that the baseline always solves: a"
    assert str(one("lost<=1", after, before)) == "gate lost<=1: passed: 1 lost of 2 compared: a"
    assert one("lost<=0", {"a": (1.0, 1.0, 1.0, 0.0), "b": NO}, before).passed is True  # noise


def test_a_run_that_is_not_worse_passes_and_says_so() -> None:
    judgment = one("baseline", {"a": YES, "b": (1.0, 0.0, 1.0, 1.0)}, {"a": YES, "b": YES})
    assert str(judgment) == (
        "gate baseline: passed: mean reward 1.000 -> 0.875 over 2 tasks, no significant drop (p = 0.5, one-sided)"
    )


def test_new_and_changed_tasks_are_not_compared_and_a_missing_result_fails() -> None:
    before = {"A": YES, "B": YES, "C": YES}
    left_out = Selection({}, {("codex", "default", None): frozenset("C")})
    judgment = one("baseline", {"A": YES, "B": YES, "D": NO}, before, selection=left_out)
    assert judgment.passed is True  # C was left out on purpose, D is new
    selection = Selection({("codex", "default", None): frozenset("ABCD")})
    judgment = one("baseline", {"A": YES, "B": YES, "D": NO}, before, selection=selection)
    assert str(judgment) == "gate baseline: failed: no result for C, which the baseline has"
    judgment = one("baseline", {"A": YES, "C": (None,) * 4}, before)
    assert str(judgment) == "gate baseline: failed: no result for C, which the baseline has"


@rows("gate", ["baseline", "lost<=9"])
def test_task_of_the_baseline_without_a_row_leaves_gates_undecided(gate: str) -> None:
    """Rows don't say why a task has none: another shard may have it."""
    before = {"A": YES, "B": YES, "C": YES}
    judgment = one(gate, {"A": YES, "B": YES}, before)
    assert judgment.passed is None
    assert judgment.text.endswith("; no row of C, which the baseline has")
    judgment = one(gate, {"A": YES, "B": YES}, before, accepts_missing=True)
    assert judgment.passed is True
    assert judgment.text.endswith("; accepted: no row of C")
    assert one("lost<=0", {"A": NO, "B": YES}, before).passed is False


def test_task_that_is_gone_is_named_and_does_not_block() -> None:
    gone = Selection({("codex", "default", None): frozenset("A")}, gone=frozenset("C"))
    judgment = one("baseline", {"A": YES}, {"A": YES, "C": YES}, selection=gone)
    assert judgment.passed is True
    assert judgment.text.endswith(", no significant drop (p = 1, one-sided); gone: C")
    judgment = one("baseline", {"A": YES}, {"A": YES, "B": YES, "C": YES}, selection=gone)
    assert judgment.passed is None
    assert judgment.text.endswith("; no row of B, which the baseline has; gone: C")


@rows(
    ("gate", "passed", "text"),
    [
        ("mean>=0.7", True, "0.750 >= 0.7; accepted: 4 of 8 rollouts did not run"),
        ("mean>=0.8", False, "0.750 < 0.8; accepted: 4 of 8 rollouts did not run"),
        ("each", False, "3 of 4 rollouts solved; accepted: 4 of 8 rollouts did not run"),
        ("none", True, "4 of 4 rollouts graded; accepted: 4 of 8 rollouts did not run"),
        ("pass@4>=0.5", None, "no task has 4 samples; accepted: 4 of 8 rollouts did not run"),
    ],
)
def test_accepted_missing_rollouts_are_named(gate: str, passed: bool | None, text: str) -> None:
    results: Results = {"a": (1.0, 1.0, "not run", "interrupted"), "b": (1.0, 0.0, "not run", "not run")}
    assert one(gate, results).passed is (False if gate in ("each", "mean>=0.9") else None)
    judgment = one(gate, results, accepts_missing=True)
    assert (judgment.passed, judgment.text) == (passed, text)


def test_accepting_what_is_missing_accepts_no_error_and_no_empty_run() -> None:
    judgment = one("mean>=0.8", {"a": (1.0, 1.0, None, "not run")}, accepts_missing=True)
    assert judgment.passed is None
    assert judgment.text == (
        "0.667 to 1.000, as those turn out that have no reward (1 without a reward); "
        "accepted: 1 of 4 rollouts did not run"
    )
    for gate in ("mean>=0", "none", "each", "baseline", "lost<=9"):
        results: Results = {"a": ("interrupted", "not run")}
        assert one(gate, results, {"a": YES}, accepts_missing=True).passed is not True


def test_a_result_that_may_still_come_leaves_the_baseline_gate_undecided() -> None:
    before = {"A": YES, "B": YES, "C": YES}
    selected = Selection({("codex", "default", None): frozenset("ABC")})
    rows = [*run({"A": YES, "B": (None, "not run", "not run", "not run"), "C": ("not run",) * 4})]
    then = Baseline(Path("x"), summarize(run(before, run_id="old")))
    [judgment] = judge([parse_gate("baseline")], summarize(rows), then, selected)
    assert judgment.passed is None
    assert judgment.text == "no result yet for B, C, which the baseline has (1 without a reward, 7 did not run)"
    rows = [*run({"A": YES, "B": (None, "interrupted", "not run", "not run")})]  # C was skipped: only B is pending
    [judgment] = judge([parse_gate("baseline")], summarize(rows), then, selected)
    assert (judgment.passed, judgment.text) == (False, "no result for C, which the baseline has")


def test_an_agent_that_has_not_begun_leaves_the_baseline_gate_undecided() -> None:
    then = Baseline(Path("x"), both("gpt-4", "gpt-5"))
    tasks = Selection({("codex", model, None): frozenset("a") for model in ("gpt-4", "gpt-5")})
    begun = summarize(run({"a": YES}, model="gpt-5", agents=2))
    [judgment] = judge([parse_gate("baseline")], begun, then, tasks)
    assert judgment.passed is None
    assert "; codex/gpt-4: no result yet for a, which the baseline has (4 did not run); others: none of 4 " in str(
        judgment
    )


def test_an_agent_without_any_result_fails_too_where_the_baseline_has_some() -> None:
    """For example, all that was selected of it was skipped; the other agent is not worse."""
    then = Baseline(Path("x"), both("gpt-4", "gpt-5"))
    tasks = Selection({("codex", model, None): frozenset("ab") for model in ("gpt-4", "gpt-5", "gpt-6")})
    texts = [str(one) for one in judge([parse_gate("baseline"), parse_gate("lost<=0")], both("gpt-5"), then, tasks)]
    assert texts[0].startswith("gate baseline: failed: codex/gpt-5: mean reward 1.000 -> 1.000 over 1 task, no signif")
    assert texts[0].endswith("; codex/gpt-4: no result for a, which the baseline has")
    assert texts[1].startswith("gate lost<=0: undecided: ")
    assert texts[1].endswith("; codex/gpt-4: 0 to 1 lost, as those turn out that have no reward: a")
    [judgment] = judge(
        [parse_gate("baseline")], both("gpt-5"), then, Selection({("codex", "gpt-5", None): frozenset("a")})
    )
    assert judgment.passed is True  # nothing of the other was selected


def test_a_changed_task_is_not_compared() -> None:
    then = summarize(run({"A": YES, "B": YES}, run_id="old", input_digest="1"))
    now = [*run({"A": NO}, input_digest="1"), *run({"B": NO}, input_digest="2")]
    [judgment] = judge([parse_gate("lost<=0")], summarize(now), Baseline(Path("x"), then))
    assert judgment.text == "1 lost that the baseline always solves: A"
    [judgment] = judge([parse_gate("baseline")], summarize(now[4:]), Baseline(Path("x"), then))
    assert (judgment.passed, judgment.text) == (
        None,
        "no task can be compared: all are new or changed; no row of A, which the baseline has",
    )


def test_rewards_that_are_lacking_leave_a_comparison_undecided() -> None:
    before = dict.fromkeys("abcde", YES)
    broken = dict.fromkeys("abcde", (1.0, None, None, None))
    judgment = one("baseline", broken, before)
    assert judgment.passed is None
    assert judgment.text == (
        "mean reward 1.000 -> 1.000 over 5 tasks; it could be a significant drop, had all failed that have no reward "
        "(15 without a reward)"
    )
    assert one("baseline", {**before, "a": (1.0, 1.0, 1.0, None)}, before).passed is True
    assert one("baseline", {**dict.fromkeys("abcd", NO), "e": (0.0, 0.0, 0.0, None)}, before).passed is False
    assert str(one("lost<=0", {**before, "a": (0.0, 0.0, 0.0, None)}, before)) == (
        "gate lost<=0: undecided: 0 to 1 lost, as those turn out that have no reward: a"
    )
    assert one("lost<=0", {**before, "a": (1.0, None, None, None)}, before).passed is True


def test_agents_are_found_in_the_baseline_by_name_and_a_single_one_by_being_single() -> None:
    then = Baseline(Path("x"), both("gpt-4", "gpt-5"))
    [judgment] = judge([parse_gate("lost<=0")], both("gpt-5", "gpt-6"), then)
    assert judgment == Judgment(
        "lost<=0", None, "codex/gpt-5: 0 lost of 1 compared; codex/gpt-6: the baseline does not have this agent"
    )
    single = Baseline(Path("x"), summarize(run({"a": YES}, model="gpt-4")))
    [judgment] = judge([parse_gate("lost<=0")], summarize(run({"a": YES}, model="gpt-5")), single)
    assert judgment.passed is True


def both(*models: str) -> Summary:
    return summarize([row for model in models for row in run({"a": YES}, model=model, agents=len(models))])


def test_a_p_value_close_to_the_level_is_shown_with_the_digits_that_decide() -> None:
    assert [p_clause(Fraction(one, 10_000)) for one in (500, 501, 499, 546, 286)] == [
        *("p = 0.05", "p = 0.0501", "p = 0.05", "p = 0.055", "p = 0.029"),
    ]


# Errors that are allowed


@rows(
    ("text", "errors", "passed", "allowed"),
    [
        ("0", 1, False, 0),
        ("2", 2, True, 2),
        ("2", 3, False, 2),
        ("25%", 2, True, 2),
        ("24.9%", 2, False, 1),
        ("100%", 8, True, 8),
    ],
)
def test_allowed_errors(text: str, errors: int, passed: bool, allowed: int) -> None:
    results = {"a": (*(None,) * errors, *(1.0,) * (8 - errors))}
    judgment = AllowedErrors.parse(text).judge(summarize(run(results)))
    expected = f"{errors} of 8 rollouts without a reward, {allowed} allowed"
    assert judgment == Judgment(f"errors<={text}", passed, expected)


@rows("text", ["", "-1", "1.5", "101%", "5 %", "%", "1e2", "x"])
def test_an_invalid_number_of_errors_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="expected a number of rollouts"):
        AllowedErrors.parse(text)
