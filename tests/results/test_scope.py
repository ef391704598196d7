"""Gates on some tasks only: by tag, by id, and corrected for the number of verdicts."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path

import pytest

from pytest_core_rollouts.report.verdicts import verdict_lines
from pytest_core_rollouts.results.comparison import Baseline
from pytest_core_rollouts.results.gate import Judgment, Selection, judge
from pytest_core_rollouts.results.gate_forms import GateError, parse_gate, scope_problem
from pytest_core_rollouts.results.summary import summarize
from tests.support.rows import run

YES, NO = (1.0,) * 4, (0.0,) * 4


def judged(*gates: str, selection: Selection | None = None, baseline: Baseline | None = None) -> list[Judgment]:
    """Judges sql/a (solved), sql/b (unsolved), both tagged `sql`, and web (solved), tagged `web` and `core`."""
    rows = [
        *run({"sql/a": YES, "sql/b": NO}, tags=["sql"], planned=PLAN),
        *run({"web": YES}, tags=["web", "core"], planned=PLAN),
    ]
    return judge(list(map(parse_gate, gates)), summarize(rows), baseline, selection)


PLAN = {"run": 12, "agent": 12, "tasks": 3, "group": 4}


@pytest.mark.parametrize(
    ("gate", "passed", "text"),
    [
        ("mean[tag:sql]>=0.9", False, "0.500 < 0.9"),
        ("mean [ tag:web ] >= 0.9", True, "1.000 >= 0.9"),
        ("mean[tag:sql,core]>=0.6", True, "0.667 >= 0.6"),
        ("pass^4[task:web]>=1", True, "1.000 >= 1"),
        ("pass@4[task:sql/*]>=0.6", False, "0.500 < 0.6"),
        ("mean[task:*]>=0.6", True, "0.667 >= 0.6"),
        ("mean[task:s*,web]>=0.6", True, "0.667 >= 0.6"),
        ("each[tag:c*]", True, "4 of 4 rollouts solved"),
        ("each[tag:sql]", False, "4 of 8 rollouts solved"),
        ("mean[tag:none]>=0", None, "no task in this scope has run"),
    ],
)
def test_a_scope_selects_the_tasks_that_a_gate_judges(gate: str, passed: bool | None, text: str) -> None:
    [judgment] = judged(gate)
    assert (judgment.passed, judgment.text) == (passed, text)


def test_baseline_and_lost_judge_their_scope_only() -> None:
    old = summarize(run({"sql/a": YES, "sql/b": YES, "web": YES, "gone": YES}, run_id="old"))  # without tags
    gates = ("baseline[tag:sql]", "lost[tag:web]<=0", "lost[tag:sql]<=0", "baseline[task:web]", "baseline[task:*]")
    judgments = judged(*gates, baseline=Baseline(Path("main.jsonl"), old))
    assert [judgment.passed for judgment in judgments] == [False, True, False, True, False]
    assert judgments[0].text == (  # one of C(8, 4) = 70 ways, and three verdicts of the gate baseline
        "mean reward 1.000 -> 0.500 over 2 tasks, a significant drop "
        "(p = 0.014, one-sided; 0.043 after Holm's correction for 3 verdicts)"
    )
    assert judgments[2].text == "1 lost that the baseline always solves: sql/b"


@pytest.mark.parametrize(
    ("gate", "problem"),
    [
        ("mean[tags:sql]>=1", "unknown scope [tags:sql]; use [tag:NAME,...] or [task:ID,...]; a * matches anything"),
        ("mean[sql]>=1", "unknown scope [sql]"),
        ("mean[]>=1", "unknown scope []"),
        ("mean[tag:]>=1", "the scope [tag:] has an empty name"),
        ("mean[tag:a,,b]>=1", "the scope [tag:a,,b] has an empty name"),
        ("none[tag:sql]", "none judges no reward, so it has no scope; remove [tag:sql]"),
        ("mean>=1[tag:sql]", "unknown gate"),
        ("mean[tag:a][tag:b]>=1", "unknown gate"),
    ],
)
def test_an_invalid_scope_is_refused_in_one_line(gate: str, problem: str) -> None:
    with pytest.raises(GateError) as caught:
        parse_gate(gate)
    assert problem in str(caught.value)
    assert "\n" not in str(caught.value)


def test_an_empty_scope_names_what_there_is() -> None:
    tags = {"sql/a": ("sql",), "web": ("core", "web")}
    assert scope_problem(parse_gate("mean[tag:web,x]>=1"), tags) is None
    assert scope_problem(parse_gate("mean[tag:x]>=1"), tags) == (
        "no selected task has such a tag; choose from core, sql, web"
    )
    assert scope_problem(parse_gate("mean[task:sql]>=1"), tags) == (
        "no selected task has such an id; choose from sql/a, web"
    )


def test_a_task_without_a_row_may_be_in_any_scope() -> None:
    """Rows say how many tasks were planned, but not the tags of those that have no row."""
    rows = list(run({"a": YES, "b": ("not run",) * 4}, tags=["sql"]))
    [passing, failing] = judge([parse_gate("mean[tag:sql]>=0.9"), parse_gate("each[tag:sql]")], summarize(rows))
    assert (passing.passed, failing.passed) == (None, None)
    [failing] = judge(
        [parse_gate("mean[tag:sql]>=0.9")], summarize(run({"a": NO, "b": ("not run",) * 4}, tags=["sql"]))
    )
    assert failing.passed is False  # 0.500 even if b is in the scope and passes


def test_skipped_task_of_the_baseline_is_in_its_scope_by_the_tags_of_the_session() -> None:
    agent = ("codex", "default", None)
    old = Baseline(
        Path("main.jsonl"), summarize(run({"sql/a": YES, "sql/b": NO, "web": YES, "off": YES}, run_id="old"))
    )
    selection = Selection({agent: frozenset(["sql/a", "sql/b", "web", "off"])}, tags={"off": ("sql",)})
    [judgment] = judged("baseline[tag:sql]", selection=selection, baseline=old)
    assert str(judgment) == "gate baseline[tag:sql]: failed: no result for off, which the baseline has"


def test_drops_of_several_agents_are_corrected_by_holm() -> None:
    """Five lost tasks of one sample each: p = 1/32 for each agent, and 1/16 for two of them."""
    before, after = dict.fromkeys("abcde", (1.0,)), dict.fromkeys("abcde", (0.0,))
    old = Baseline(
        Path("main.jsonl"),
        summarize([*run(before, run_id="old"), *run(before, run_id="old", harness="claude_sdk")]),
    )
    rows = [*run(after, agents=2), *run(before, harness="claude_sdk", agents=2)]
    [judgment] = judge([parse_gate("baseline")], summarize(rows), old)
    assert judgment.by_agent["codex"].passed is True
    assert judgment.by_agent["codex"].text.endswith(
        "no significant drop (p = 0.031, one-sided; 0.062 after Holm's correction for 2 verdicts)"
    )
    rows = [*run(after, agents=1)]
    [only] = judge([parse_gate("baseline")], summarize(rows), old)
    assert only.passed is False  # one agent, one verdict
    both = judge([parse_gate("baseline")], summarize([*run(after, agents=2)]), old)
    assert both[0].by_agent["codex"].passed is not False  # the other agent's rows are pending, and count already


def test_drops_of_single_tasks_are_corrected_for_all_agents() -> None:
    """8/8 -> 0/8 has p = 2/12870; 8/8 -> 3/8 has p = 0.026: significant as the only one, not among four."""
    before = {"a": (1.0,) * 8, "b": (0.0,) * 8}
    after = {"a": (1.0,) * 3 + (0.0,) * 5, "b": (1.0,) * 5 + (0.0,) * 3}
    rows = [*run(before, run_id="old"), *run(before, run_id="old", harness="claude_sdk")]
    old = Baseline(Path("main.jsonl"), summarize(rows))
    now = summarize([*run(after, agents=2), *run(before, harness="claude_sdk", agents=2)])
    [judgment] = judge([parse_gate("baseline")], now, old)
    assert judgment.passed is True
    lost = summarize([*run({**after, "a": (0.0,) * 8}, agents=2), *run(before, harness="claude_sdk", agents=2)])
    [judgment] = judge([parse_gate("baseline")], lost, old)
    assert judgment.by_agent["codex"].passed is False
    expected = Fraction(2, 12870) * 4
    assert f"a 8/8 -> 0/8 (p = {float(expected):.2g}, two-sided)" in judgment.text


def test_there_is_one_aligned_line_for_each_gate_and_agent() -> None:
    rows = [*run({"a": YES}, agents=2), *run({"a": NO}, harness="claude_sdk", agents=2)]
    gates = [parse_gate("mean>=0.5"), parse_gate("each[task:a]")]
    lines = [line for line, _ in verdict_lines(judge(gates, summarize(rows)), aligned=True)]
    assert lines == [
        "gate mean>=0.5 [claude_sdk]:    failed: 0.000 < 0.5",
        "gate mean>=0.5 [codex]:         passed: 1.000 >= 0.5",
        "gate each[task:a] [claude_sdk]: failed: 0 of 4 rollouts solved",
        "gate each[task:a] [codex]:      passed: 4 of 4 rollouts solved",
    ]
    one = [line for line, _ in verdict_lines(judge(gates[:1], summarize(run({"a": YES}))), aligned=True)]
    assert one == ["gate mean>=0.5: passed: 1.000 >= 0.5"]
