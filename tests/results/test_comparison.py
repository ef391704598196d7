"""Comparisons of pretended runs, and baselines from files."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Iterable
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from pytest_core_rollouts.grading.answers import Grade
from pytest_core_rollouts.records.record import RecordsError, RolloutRecord
from pytest_core_rollouts.records.rows import append
from pytest_core_rollouts.report.changes import changes, detectable_changes
from pytest_core_rollouts.results.comparison import (
    Comparison,
    Power,
    compare,
    comparisons,
    counterpart,
    load_baseline,
    newest_versions,
    power,
)
from pytest_core_rollouts.results.scores import AgentScore
from pytest_core_rollouts.results.significance import LeastDrop
from pytest_core_rollouts.results.summary import summarize
from pytest_core_rollouts.training.groups import advantages
from tests.support.rows import run

YES, NO = (1.0,) * 4, (0.0,) * 4


def agent(rows: Iterable[RolloutRecord]) -> AgentScore:
    [only] = summarize(rows).agents
    return only


def compared(before: dict[str, Any], after: dict[str, Any]) -> Comparison:
    return compare(agent(run(before, run_id="old")), agent(run(after)))


def test_task_by_task() -> None:
    found = compared(
        {"a": YES, "b": (1.0, 0.0), "c": NO, "gone": YES, "silent": (None,)},
        {"a": NO, "b": (0.5, 0.5, 0.5), "c": (1.0, 0.0, 0.0, 0.0), "new": YES, "silent": YES},
    )
    assert [(one.task, one.difference, one.p) for one in found.tasks] == [
        ("a", Fraction(-1), Fraction(2, 70)),
        ("b", Fraction(0), Fraction(2, 5)),  # solved 1 of 2 against 0 of 3: the mean is the same
        ("c", Fraction(1, 4), Fraction(1)),
    ]
    assert [one.corrected for one in found.tasks] == [Fraction(6, 70), Fraction(4, 5), Fraction(1)]
    assert (found.new, found.gone, found.unknown, found.ungraded) == (("new",), ("gone",), ("silent",), ())
    assert found.means == (Fraction(1, 2), Fraction(1, 4))
    assert found.difference == Fraction(-1, 4)
    assert not found.dropped
    assert [one.task for one in found.lost] == ["a"]


def test_equal_credit_added_up_in_any_order_is_no_signal_and_no_drop() -> None:
    """Weights of one answer, in the order in which a grader found them."""
    shuffled, weights = random.Random(0), [0.1, 0.2, 0.3, 0.15, 0.05]

    def sums() -> dict[str, list[float]]:
        return {str(task): [sum(shuffled.sample(weights, 5)) for _ in range(4)] for task in range(100)}

    before, after = sums(), sums()
    assert len({credit for credits in before.values() for credit in credits}) > 1, "floats depend on the order"
    for credits in before.values():
        assert advantages([Grade(credit).reward for credit in credits]) == [0.0] * 4
    found = compared(before, after)
    assert (found.difference, found.dropped, found.means) == (Fraction(0), False, (Fraction(8, 10), Fraction(8, 10)))
    assert Grade(sum([0.1] * 10)).reward == Grade(0.7 + 0.2 + 0.1000000000000002).reward == 1


def test_the_sign_flip_of_three_tasks_by_hand() -> None:
    # differences -1, 0, 1/4: sums of signs +-1 +-1/4 are -5/4, -3/4, 3/4, 5/4; all are at least 3/4
    found = compared({"a": YES, "b": NO, "c": NO}, {"a": NO, "b": NO, "c": (1.0, 0.0, 0.0, 0.0)})
    assert found.p_such_tasks.value == 1


def test_an_empty_comparison_says_nothing() -> None:
    found = compared({"a": YES}, {"b": YES})
    assert (found.difference, found.interval, found.means) == (None, None, (None, None))
    assert found.p_drop.value == found.p_such_tasks.value == 1
    assert changes(found, "x", "y").startswith("y compared with x: no task can be compared.\n")


def test_a_task_is_the_same_only_if_its_digests_are() -> None:
    old = agent([*run({"a": YES}, run_id="old", grading_digest="1"), *run({"b": YES}, run_id="old", input_digest="1")])
    new = agent([*run({"a": NO}, grading_digest="2"), *run({"b": NO}, input_digest="1")])
    found = compare(old, new)
    assert ([one.task for one in found.tasks], found.changed) == (["b"], ("a",))


def test_two_agents_of_one_run_are_compared_with_the_first() -> None:
    rows = [
        *run({"a": (1.0, 0.0), "b": (1.0, 1.0)}, agent={"name": "long"}, agents=2),
        *run({"a": (0.0, 0.0), "b": (1.0, 0.0)}, agent={"name": "short"}, agents=2),
    ]
    [(found, before, after)] = comparisons(summarize(rows), None)
    assert (before, after, found.difference) == ("long", "short", Fraction(-1, 2))


def test_whom_an_agent_is_compared_with() -> None:
    def named(name: str | None, digest: str = "") -> Iterable[RolloutRecord]:
        return run({"a": YES}, agent={"name": name, "digest": digest}, agents=2)

    def pair(now: list[Iterable[RolloutRecord]], then: list[Iterable[RolloutRecord]]) -> list[str | None]:
        own, others = (summarize([row for rows in side for row in rows]) for side in (now, then))
        found = (counterpart(one, others, own) for one in own.agents)
        return [None if other is None else f"{other.digest}{other.name}" for other in found]

    assert pair([named("x", "2")], [named("x", "1"), named("y", "3")]) == ["1x"]  # a prompt that was changed
    assert pair([named("x", "2")], [named("x", "1"), named("x", "2")]) == ["2x"]
    assert pair([named("x", "3")], [named("x", "1"), named("x", "2")]) == [None]
    assert pair([named("x")], [named("y", "4")]) == ["4y"]  # one on each side
    assert pair([named("x"), named("z")], [named("y", "4")]) == [None, None]


# Power


def test_what_30_tasks_of_4_samples_can_see() -> None:
    found = power([(4, 4, 4)] * 30)
    assert found == Power(30, (4, 4, 4), Fraction(2, 70), Fraction(60, 70), LeastDrop(5, Fraction(5, 120)), 120, 120)
    assert not found.detects_single_task
    assert power([(8, 8, 8)] * 30).detects_single_task  # 30 * 2 / 12,870 = 0.0047


def test_what_nothing_can_see() -> None:
    assert power([]) == Power(0, None, Fraction(1), Fraction(1), None, 0, 0)
    assert power([(1, 1, 1)] * 4).overall is None
    assert power([(4, 0, 4)] * 40).overall is None


def test_the_words_for_it() -> None:
    before = {f"t{n:02}": YES for n in range(30)}
    text = changes(compared(before, before), "main.jsonl", "this run")
    assert text == (
        "this run compared with main.jsonl: mean reward 1.000 -> 1.000 over 30 tasks, 0.000 "
        "(95% interval -0.064 to +0.064).\n"
        "- it could see a drop of 0.042 in the mean (5 fewer of 120 rollouts solved, spread over the tasks), a smaller "
        "one only if few tasks bear it\n"
        "- it could fail no single task: even 4/4 -> 0/4 has p = 0.029 (two-sided), 0.86 after Holm's correction "
        "for 30 tasks\n"
        "\n30 tasks without a change.\n"
    )


def test_where_nothing_can_be_seen_the_words_say_why() -> None:
    assert list(detectable_changes(power([(4, 0, 4)] * 40))) == [
        "say nothing of lost rollouts: none of the 40 tasks was solved before"
    ]
    assert list(detectable_changes(power([(2, 2, 2)]))) == [
        "see no drop of the mean, however large: so few samples of 1 task are too few",
        "fail no single task: even 2/2 -> 0/2 has p = 0.33 (two-sided), 0.33 after Holm's correction for 1 task",
    ]


def test_changes_are_listed_worst_first_and_shortly_where_that_is_asked_for() -> None:
    found = compared(
        {"a": YES, "b|x": YES, "c": NO, "d": YES}, {"a": (1.0, 1.0, 1.0, 0.0), "b|x": NO, "c": YES, "d": YES, "e": YES}
    )
    text = changes(found, "old", "new", width=80, whole=False)
    assert max(map(len, text.splitlines())) <= 80
    assert "- worse: b\\|x 4/4 -> 0/4, a 4/4 -> 3/4\n" in text
    assert "- new, not compared: e\n" in text
    table = changes(found, "old", "new").split("\n\n")[1]
    assert table == (
        "| task | before | after | change | p (two-sided) | Holm |\n"
        "| ---- | -----: | ----: | -----: | ------------: | ---: |\n"
        "| b\\|x |    4/4 |   0/4 | -1.000 |         0.029 | 0.11 |\n"
        "| a    |    4/4 |   3/4 | -0.250 |             1 |    1 |\n"
        "| c    |    0/4 |   4/4 | +1.000 |         0.029 | 0.11 |"
    )


# Files


def written(path: Path, *rows: RolloutRecord) -> Path:
    for row in rows:
        append(path, row, sync=False)
    return path


def test_a_baseline_leaves_out_a_run_and_expected_failures(tmp_path: Path) -> None:
    hard = [dataclasses.replace(row, settings={"xfail": "hard"}) for row in run({"b": NO}, run_id="old")]
    path = written(tmp_path / "x.jsonl", *run({"a": YES}, run_id="old"), *hard, *run({"a": NO}, run_id="now"))
    found = load_baseline(path, exclude_run="now")
    assert [(task.task, task.solved, task.graded) for task in found.summary.agents[0].tasks] == [("a", 4, 4)]


def test_of_a_task_that_was_changed_the_newest_version_counts() -> None:
    rows = [
        *run({"a": YES}, run_id="r2", started_at="2026-11-02T00:00:00+00:00", grading_digest="2"),
        *run({"a": NO}, run_id="r1", started_at="2026-11-01T00:00:00+00:00", grading_digest="1"),
    ]
    assert {row.run_id for row in newest_versions(rows)} == {"r2"}


def test_a_file_without_a_reward_is_refused_as_a_baseline(tmp_path: Path) -> None:
    path = written(tmp_path / "x.jsonl", *run({"a": (None, None)}))
    with pytest.raises(RecordsError, match=r"x\.jsonl: no graded rollouts to compare with"):
        load_baseline(path)
    with pytest.raises(RecordsError, match="cannot read"):
        load_baseline(tmp_path / "none.jsonl")
