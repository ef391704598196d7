from __future__ import annotations

import dataclasses
import itertools
import random
from fractions import Fraction
from typing import Any

from pytest_core_rollouts.results.scores import AgentScore, Estimate
from pytest_core_rollouts.results.summary import summarize
from tests.support.rows import run
from tests.support.tables import rows

E4 = (None, None, None, None)


def only(*args: Any, **kwargs: Any) -> AgentScore:
    [agent] = summarize(run(*args, **kwargs)).agents
    return agent


def figures(estimate: Estimate) -> list[float | None]:
    """The estimate and its bounds."""
    return [None if one is None else float(one) for one in (estimate.value, estimate.low, estimate.high)]


def test_errors_reduce_the_graded_count_and_are_counted() -> None:
    agent = only({"A": (1.0, None, None, None), "B": E4})
    assert (agent.rows, agent.graded, agent.errors, agent.planned_tasks) == (8, 1, 7, 2)
    assert [(task.task, task.solved, task.graded, task.planned) for task in agent.tasks] == [
        ("A", 1, 1, 4),
        ("B", 0, 0, 4),
    ]
    assert figures(agent.mean_reward) == [1, 1 / 8, 1]
    assert agent.mean_reward.interval is None
    assert agent.tasks_solved == (1, 2, 2)
    assert figures(agent.pass_at(4)) == [None, 1 / 2, 1]
    assert (agent.pass_at(4).tasks, agent.pass_at(4).tasks_left_out) == (0, 2)


def test_what_a_stop_interrupted_counts_as_not_run() -> None:
    results: dict[str, tuple[float | str | None, ...]] = {
        "A": (1.0, 0.0, "interrupted", None),
        "B": ("interrupted", "interrupted", "not run", "not run"),
    }
    agent = only(results)
    assert (agent.planned, agent.rows, agent.graded, agent.errors, agent.not_run) == (8, 3, 2, 1, 5)
    assert agent.faults == (("error: no reason given", 1),)
    never = only({task: ["not run" if one == "interrupted" else one for one in row] for task, row in results.items()})
    assert agent.mean_reward == never.mean_reward
    assert agent.tasks_solved == never.tasks_solved == (1, 2, 2)
    assert [agent.pass_at(k) for k in (1, 2, 4)] == [never.pass_at(k) for k in (1, 2, 4)]


def test_a_turn_that_somebody_else_cancelled_is_an_error() -> None:
    agent = only({"A": (1.0, None)}, status="cancelled", reward=None, error="the Turn was cancelled by someone else")
    assert (agent.rows, agent.errors, agent.not_run) == (2, 2, 0)


def test_both_readings_of_an_error_can_be_seen() -> None:
    assert figures(only({"A": (1.0, 1.0, None, None)}).pass_at(1)) == [1, 1 / 2, 1]


def test_tasks_weigh_the_same() -> None:
    agent = only({"A": (1.0,), "B": (1.0, 0.0, 0.0, 0.0)})
    assert agent.mean_reward.value == agent.pass_at(1).value == Fraction(5, 8)
    at_4 = agent.pass_at(4)
    assert (figures(at_4)[0], at_4.tasks, at_4.tasks_left_out) == (1, 1, 1)


def test_a_timeout_is_a_grade_and_a_fraction_is_not_a_solution() -> None:
    agent = only({"A": (0.5, "timeout", 1.0, 0.25)})
    assert (agent.graded, agent.timeouts, agent.errors, agent.solved) == (4, 1, 0, 1)
    assert agent.mean_reward.value == Fraction(7, 16)


def test_rollouts_that_never_ran_are_known_from_the_rows_that_did() -> None:
    rows = [*run({"A": (1.0, 1.0, 0.0, 0.0), "B": (1.0, *["not run"] * 3), "C": ["not run"] * 4}, agents=2)]
    summary = summarize(rows)
    assert (summary.planned, summary.rows) == (24, 5)
    [agent] = summary.agents
    assert (agent.planned, agent.not_run, agent.planned_tasks) == (12, 7, 3)
    assert figures(agent.mean_reward)[1:] == [1 / 4, 5 / 6]
    assert agent.tasks_solved == (2, 3, 3)


def test_a_resume_that_selects_less_does_not_shrink_the_plan() -> None:
    first = [*run({"A": (None, 1.0), "B": ("not run", 0.0)})]
    second = [*run({"A": (1.0,)}, samples=1)]
    summary = summarize([*first, *second])
    assert (summary.planned, summary.rows, summary.graded) == (4, 3, 3)


def test_merged_runs_add_up() -> None:
    summary = summarize([*run({"A": (1.0, 0.0)}, run_id="r1"), *run({"A": (1.0, None)}, run_id="r2")])
    [agent] = summary.agents
    assert (summary.planned, agent.planned, agent.planned_tasks, agent.graded) == (4, 4, 1, 3)


def test_without_a_row_the_plan_is_still_shown() -> None:
    summary = summarize([], planned=16)
    assert (summary.agents, summary.planned, summary.rows, summary.samples) == ((), 16, 0, (0, 0))


def test_only_the_row_that_counts_counts() -> None:
    [row] = run({"A": (1.0,)})
    fault = dataclasses.replace(row, status="error", reward=None)
    assert summarize([fault, row, fault]).agents[0].graded == 1


def test_agents_are_separate_and_sorted() -> None:
    rows = [
        *run({"A": (1.0,)}, agent={"name": "short", "digest": "aaaaaa1"}),
        *run({"A": (0.0,)}, agent={"name": "long", "digest": "bbbbbb1"}),
        *run({"A": (0.0,)}, harness="claude_sdk", model="m"),
    ]
    expected = ["claude_sdk/m", "long", "short"]
    for order in itertools.permutations(rows):
        assert [agent.label for agent in summarize(order).agents] == expected


def test_a_changed_agent_of_the_same_name_has_its_own_row() -> None:
    rows = [
        *run({"A": (1.0,)}, agent={"name": "x", "digest": "aaaaaa1"}),
        *run({"A": (0.0,)}, agent={"name": "x", "digest": "bbbbbb1"}),
    ]
    assert [agent.label for agent in summarize(rows).agents] == ["x aaaaaa", "x bbbbbb"]


def test_the_order_of_rows_makes_no_difference() -> None:
    source = random.Random(1)
    rows = [
        *run({name: [source.random(), None, 0.1, 1.0] for name in "ABCDE"}, duration_s=0.1, usage={"total_tokens": 3})
    ]
    expected = summarize(rows)
    for _ in range(20):
        source.shuffle(rows)
        assert summarize(rows) == expected


@rows(
    ("usage", "tokens"),
    [
        (None, None),
        ({}, None),
        ({"total_tokens": 7}, 7),
        ({"input_tokens": 3, "output_tokens": 2}, 5),
        ({"input_tokens": 3}, None),
        ({"total_tokens": "7"}, None),
        ({"total_tokens": None, "input_tokens": 0, "output_tokens": 0}, 0),
    ],
)
def test_tokens_are_counted_where_they_are_known(usage: Any, tokens: int | None) -> None:
    agent = only({"A": (1.0,)}, usage=usage)
    assert (agent.tokens, agent.tokens_unknown) == (tokens, 1 if tokens is None else 0)


def test_mean_duration_is_of_graded_rollouts() -> None:
    rows = [*run({"A": (1.0, 0.0)}, duration_s=10.0), *run({"B": (None,)}, duration_s=0.1)]
    assert summarize(rows).agents[0].mean_duration == 10.0
    assert only({"B": (None,)}, duration_s=0.1).mean_duration is None
