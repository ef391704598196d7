"""Runs over time: which tasks are compared, where a mean changed, and which tasks are solved sometimes."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from typing import Any

from pytest_core_rollouts.records.record import RolloutRecord
from pytest_core_rollouts.results.history import change_point, histories
from tests.support.rows import run


def night(number: int, results: dict[str, Sequence[float | str | None]], **changes: Any) -> list[RolloutRecord]:
    """Rows of one run; they start in the order of the numbers."""
    return [
        replace(row, started_at=f"2026-11-{number:02}T02:00:00Z", **changes)
        for row in run(results, run_id=f"night-{number:02}")
    ]


def test_only_tasks_that_are_the_same_in_all_runs_are_compared() -> None:
    rows = [
        *night(1, {"a": (1.0, 1.0), "b": (1.0, 0.0), "changed": (1.0, 1.0)}),
        *night(2, {"a": (1.0, 0.0), "b": (1.0, 0.0), "new": (0.0, 0.0)}),
        *[replace(row, input_digest="other") for row in night(2, {"changed": (0.0, 0.0)})],
    ]
    [agent] = histories(rows, 60)
    assert agent.tasks == 2
    assert [run.reward.value for run in agent.runs] == [Fraction(3, 4), Fraction(1, 2)]
    assert agent.runs[1].changes == ("1 task changed", "1 task new")


def test_an_incomplete_run_is_marked_and_in_no_comparison() -> None:
    rows = [*night(1, {"a": (1.0, 1.0), "b": (0.0, 0.0)}), *night(2, {"a": (1.0, 1.0), "b": (0.0, 0.0)})[:2]]
    [agent] = histories([*rows, *night(3, {"a": (1.0, 1.0), "b": (0.0, 0.0)})], 60)
    assert [run.complete for run in agent.runs] == [True, False, True]
    assert agent.tasks == 2
    assert [run.run_id for run in agent.compared] == ["night-01", "night-03"]


def test_a_replay_is_not_a_run_and_runs_of_several_files_are_one() -> None:
    first = night(1, {"a": (1.0, 1.0), "b": (0.0, 0.0)})
    again = [replace(row, run_id="replay", settings={"replay_of": row.rollout_id}) for row in first]
    [agent] = histories([*first[2:], *again, *first[:2]], 60)
    assert [run.run_id for run in agent.runs] == ["night-01"]
    assert agent.runs[0].complete


def test_changes_of_agents_and_programs_are_named_and_only_the_last_runs_are_kept() -> None:
    def versions(version: str) -> dict[str, Any]:
        return {"settings": {"versions": {"codex": version}}}

    rows = [
        *night(1, {"a": (1.0,)}),
        *night(2, {"a": (1.0,)}, **versions("1.0")),
        *night(3, {"a": (1.0,)}, **versions("1.1")),
    ]
    rows += [replace(row, agent={**row.agent, "digest": "other"}, **versions("1.1")) for row in night(4, {"a": (1.0,)})]
    [agent] = histories(rows, 3)
    assert [run.changes for run in agent.runs] == [(), ("codex 1.0 -> 1.1",), ("agent changed",)]


def test_a_change_is_found_where_it_is_and_noise_is_not_called_a_change() -> None:
    source = random.Random(7)
    steady = [source.gauss(0.8, 0.02) for _ in range(30)]
    assert change_point(steady[:5]) is None
    found = change_point([value - 0.1 * (at >= 20) for at, value in enumerate(steady)])
    assert found is not None
    assert abs(found.position - 20) <= 1
    assert found.p <= Fraction(1, 100)
    assert (round(found.before, 1), round(found.after, 1)) == (0.8, 0.7)
    called = sum(
        change.p <= Fraction(1, 100)
        for _ in range(60)
        if (change := change_point([source.gauss(0.8, 0.02) for _ in range(20)])) is not None
    )
    assert called <= 4, "more than 1 in 100, even by chance"
    assert change_point([0.5] * 10) is not None
    constant = change_point([0.5] * 10)
    assert constant is not None
    assert constant.p == 1


def test_tasks_that_are_solved_sometimes_are_listed_by_how_much_they_vary() -> None:
    rows = [
        row
        for number in range(1, 13)
        for row in night(
            number, {"half": (1.0, 0.0), "rare": (float(number == 12), 0.0), "never": (0.0,), "few": (1.0,)}
        )
    ]
    [agent] = histories(rows, 60)
    assert [(one.task, one.solved, one.graded) for one in agent.sometimes] == [("half", 10, 20), ("rare", 1, 20)]
    assert agent.sometimes[0].disagreement == 0.5
