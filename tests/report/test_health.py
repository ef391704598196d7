from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from pytest_core_rollouts.records.record import RolloutRecord
from pytest_core_rollouts.records.rows import append
from pytest_core_rollouts.report.markdown import FEW_TASKS, markdown, terminal
from pytest_core_rollouts.results.health import GroupHealth, fault_kind
from pytest_core_rollouts.results.summary import summarize
from pytest_core_rollouts.training.groups import Choice, read_rows, select
from tests.support.rows import run
from tests.support.tables import rows


def health(rows: list[RolloutRecord]) -> GroupHealth:
    [agent] = summarize(rows).agents
    return agent.groups


def test_groups_by_what_they_could_teach() -> None:
    rows = [
        *run(
            {
                "signal": (1.0, 0.0, 0.0),
                "fractions": (0.25, 0.5, 0.5),
                "solved": (1.0, 1.0, 1.0),
                "hopeless": (0.0, "timeout", 0.0),
                "alike": (0.5, 0.5, 0.5),
                "broken": (None, None, None),
                "partly": (1.0, None, 1.0),
                "cut": (1.0, 0.0, "not run"),
                "never": ("not run",) * 3,
            }
        )
    ]
    assert health(rows) == GroupHealth(total=9, complete=5, signal=3, all_one=2, all_zero=1, alike=1, empty=2)


def test_merged_runs_keep_their_groups_apart() -> None:
    rows = [*run({"a": (1.0, 1.0)}, run_id="r1"), *run({"a": (0.0, 0.0)}, run_id="r2")]
    assert health(rows) == GroupHealth(total=2, complete=2, signal=0, all_one=1, all_zero=1, alike=0, empty=0)
    assert "2 runs merged" in markdown(summarize(rows))


def test_groups_are_those_of_an_export(tmp_path: Path) -> None:
    """Rows of one group that were graded in two ways, or have different labels, are two groups."""
    [*rows] = run({"a": (1.0, 0.0, 0.0, 1.0), "b": (1.0, 0.0), "c": (1.0, 1.0), "d": ("not run",)})
    changes: list[dict[str, Any]] = [{"grading_digest": "new"}, {"labels": {"policy": "1"}}, {}, {}, {}, {}, {}]
    rows = [dataclasses.replace(row, **change) for row, change in zip(rows, [{}, *changes], strict=True)]
    for row in rows:
        append(tmp_path / "rows.jsonl", row, sync=False)
    groups = select(read_rows([tmp_path / "rows.jsonl"], items=False), Choice()).groups
    found = health(rows)
    assert (found.total, found.empty) == (len(groups) + 1, 1) == (6, 1)
    assert (found.signal, found.complete) == (sum(group.signal for group in groups), 2) == (1, 2)


@rows(
    ("error", "kind"),
    [
        (
            "POST /v1/agents/sessions: 503 server_error: overloaded [request req_8f1c2d3e4f5a, attempt 3]",
            "error: POST /v1/agents/sessions: 503 server_error: overloaded [request *, attempt 3]",
        ),
        ("no answer within 12.25 s from 127.0.0.1:40123", "error: no answer within * s from *.*:*"),
        ("first line\nsecond line", "error: first line"),
        ("", "error: no reason given"),
        (None, "error: no reason given"),
        ("x" * 200, "error: " + "x" * 100 + "..."),
    ],
)
def test_faults_of_one_kind_are_one_kind(error: str | None, kind: str) -> None:
    [row] = run({"a": (None,)}, error=error)
    assert fault_kind(row) == kind


def test_errors_by_kind_come_first_and_are_few_in_a_terminal() -> None:
    rows = [
        dataclasses.replace(row, error=f"kind {'abcde'[index % 5]}" if index else "kind a")
        for index, row in enumerate(run({"t": (None,) * 11}))
    ]
    text = terminal(summarize(rows))
    assert "- 3 x error: kind a\n- 2 x error: kind b\n- 2 x error: kind c\n- and 2 more kinds of errors\n" in text
    assert "- 2 x error: kind e\n" in markdown(summarize(rows))


def test_a_terminal_shows_what_needs_a_look_and_v_the_rest() -> None:
    fine = summarize(run(dict.fromkeys("abcde", (1.0, 1.0, 1.0, 1.0))))
    assert terminal(fine).count("|\n") == 3  # one table of one row: the rest follows from it
    assert terminal(fine, 200, whole=True).split() == markdown(fine).split()
    two = summarize(run({"a": (1.0, 0.0), "b": (1.0, 1.0)}))
    assert "pass^2" in terminal(two)  # the first table has no pass@k and no pass^k
    assert "| a " in terminal(two)
    assert "| b " not in terminal(two)
    assert "\n1 more task solved by every rollout.\n" in terminal(two)
    many = summarize(run({f"t{number:02}": (0.0, 1.0, 0.0) for number in range(FEW_TASKS + 5)}))
    assert "\n0 more tasks solved by every rollout, 5 more not (-v shows them).\n" in terminal(many)
    assert "pass^2" in terminal(many)
    assert "groups" not in terminal(many)
    assert "15 with a signal" in terminal(many, groups=True)


def test_a_passing_reward_below_one_is_solved_where_the_task_says_so() -> None:
    [agent] = summarize(run({"a": (0.8, 0.5)}, settings={"pass_threshold": 0.75})).agents
    assert (agent.solved, agent.tasks[0].solved, float(agent.mean_reward.value or 0)) == (1, 1, 0.65)
