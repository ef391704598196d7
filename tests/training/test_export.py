"""`python -m pytest_core_rollouts export`: which rows make which groups."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from pytest_core_rollouts.records.kept_files import keep_items
from pytest_core_rollouts.records.masking import Masker
from pytest_core_rollouts.records.record import RecordsWarning
from tests.support.exporting import Exporter, write
from tests.support.rows import run
from tests.support.trajectories import conversation


def by_sample(group: dict[str, Any], member: str) -> list[Any]:
    return [sample[member] for sample in group["samples"]]


def test_a_line_a_group(export: Exporter, tmp_path: Path) -> None:
    file = write(tmp_path / "a.jsonl", run({"easy": [1.0, 1.0], "hard": [1.0, 0.0, 0.0, 0.0]}))
    easy, hard = export(file)
    assert list(hard) == [
        *("schema", "group_id", "run_id", "task", "harness", "model", "agent", "agent_digest", "labels"),
        *("planned", "used", "complete", "signal", "mean", "std", "samples"),
    ]
    assert (hard["task"], hard["mean"], hard["std"], hard["signal"], hard["complete"]) == (
        "hard",
        0.25,
        0.5,
        True,
        True,
    )
    assert by_sample(hard, "advantage") == [1.5, -0.5, -0.5, -0.5]
    assert list(hard["samples"][0]) == ["rollout_id", "sample", "status", "reward", "advantage", "masked", "error"]
    assert (easy["signal"], by_sample(easy, "advantage")) == (False, [0.0, 0.0])
    assert export.err == "exported 2 groups, 6 samples\n"


def test_metrics_are_the_same_columns_in_each_line(export: Exporter, tmp_path: Path) -> None:
    rows = [*run({"a": [1.0]}, metrics={"style": 1}), *run({"b": [0.0]}, metrics={"lines": 7})]
    file = write(tmp_path / "a.jsonl", rows)
    samples = [group["samples"][0] for group in export(file)]
    assert [sample["metrics"] for sample in samples] == [{"lines": None, "style": 1.0}, {"lines": 7.0, "style": None}]


def test_without_the_deviation(export: Exporter, tmp_path: Path) -> None:
    file = write(tmp_path / "a.jsonl", run({"t": [1.0, 0.0, 0.0, 0.0]}))
    [group] = export(file, "--advantage", "dr-grpo")
    assert by_sample(group, "advantage") == [0.75, -0.25, -0.25, -0.25]


def test_errors_are_masked_and_never_zeros(export: Exporter, tmp_path: Path) -> None:
    file = write(tmp_path / "a.jsonl", run({"t": [1.0, None, 0.0, "timeout"]}, samples=5, error="Core is down"))
    [group] = export(file)
    assert by_sample(group, "reward") == [1.0, None, 0.0, 0.0]
    assert by_sample(group, "masked") == [False, True, False, False]
    assert by_sample(group, "advantage")[1] is None
    assert group["samples"][1]["error"] == "Core is down"
    assert (group["planned"], group["used"], group["complete"]) == (5, 3, False)
    assert group["mean"] == pytest.approx(1 / 3)
    assert export.err == "exported 1 group, 4 samples, masked: 1 error\n"


def test_timeouts_masked_when_asked_for(export: Exporter, tmp_path: Path) -> None:
    file = write(tmp_path / "a.jsonl", run({"t": [1.0, "timeout", 0.0]}))
    assert export(file)[0]["mean"] == pytest.approx(1 / 3)
    [group] = export(file, "--mask-timeouts")
    assert (group["mean"], by_sample(group, "masked")) == (0.5, [False, True, False])
    assert (group["samples"][1]["status"], group["samples"][1]["advantage"]) == ("timeout", None)


def test_groups_left_out_are_counted(export: Exporter, tmp_path: Path) -> None:
    tasks: dict[str, list[float | str | None]] = {
        "good": [1.0, 0.0],
        "alike": [1.0, 1.0],
        "broken": [1.0, None],
        "late": [0.0, "not run"],
        "empty": [None, None],
    }
    file = write(tmp_path / "a.jsonl", run(tasks))
    assert [group["task"] for group in export(file)] == ["good", "alike", "broken", "late"]
    assert export.err.endswith("; groups left out: 1 without a reward\n")
    assert [group["task"] for group in export(file, "--drop-incomplete")] == ["good", "alike"]
    assert export.err.endswith("; groups left out: 2 incomplete, 1 without a reward\n")
    assert [group["task"] for group in export(file, "--drop-incomplete", "--drop-signal-free")] == ["good"]
    assert export(file, "--drop-signal-free") == export(file, "--drop-incomplete", "--drop-signal-free")


def test_a_group_never_mixes_labels(export: Exporter, tmp_path: Path) -> None:
    """A resume under another policy brings rows of one group_id with two labels."""
    rows = list(run({"t": [1.0, 0.0, 1.0, 1.0]}))
    rows = [dataclasses.replace(row, labels={"policy": "7" if row.sample < 2 else "8"}) for row in rows]
    first, second = export(write(tmp_path / "a.jsonl", rows))
    assert [first["labels"], second["labels"]] == [{"policy": "7"}, {"policy": "8"}]
    assert first["group_id"] == second["group_id"]
    assert [first["mean"], second["mean"]] == [0.5, 1.0]
    assert not first["complete"]
    assert not second["complete"]


@pytest.mark.parametrize(
    "change",
    [{"input_digest": "x"}, {"grading_digest": "x"}, {"agent": {"digest": "x"}}, {"settings": {"timeout": 5.0}}],
)
def test_nor_what_was_changed_in_between(export: Exporter, tmp_path: Path, change: dict[str, Any]) -> None:
    rows = list(run({"t": [1.0, 0.0]}))
    rows[1] = dataclasses.replace(rows[1], **change)
    assert [group["used"] for group in export(write(tmp_path / "a.jsonl", rows))] == [1, 1]


def test_labels_have_the_same_members_everywhere(export: Exporter, tmp_path: Path) -> None:
    one = write(tmp_path / "a.jsonl", run({"t": [1.0, 0.0]}, run_id="r1", labels={"policy": "1"}))
    two = write(tmp_path / "b.jsonl", run({"t": [1.0, 0.0]}, run_id="r2", labels={"arm": "b"}))
    assert [group["labels"] for group in export(one, two)] == [{"arm": "", "policy": "1"}, {"arm": "b", "policy": ""}]
    assert [group["run_id"] for group in export(one, two, "--label", "arm=b")] == ["r2"]
    assert [group["run_id"] for group in export(one, two, "--run", "r1")] == ["r1"]


def test_the_row_that_counts(export: Exporter, tmp_path: Path) -> None:
    """A resume ran the one that failed again, in another file, which repeats the other one."""
    before = write(tmp_path / "a.jsonl", run({"t": [0.0, None]}))
    after = write(tmp_path / "b.jsonl", run({"t": [0.0, 1.0]}))
    [group] = export(before, after)
    assert by_sample(group, "reward") == [0.0, 1.0]
    assert group["complete"]


def test_samples_are_in_order_however_they_finished(export: Exporter, tmp_path: Path) -> None:
    rows = list(run({"t": [1.0, 0.0, 0.0]}))
    forward = export(write(tmp_path / "a.jsonl", rows))
    backward = export(write(tmp_path / "b.jsonl", rows[::-1]))
    assert forward == backward
    assert by_sample(forward[0], "sample") == [0, 1, 2]


def test_conversations(export: Exporter, tmp_path: Path) -> None:
    items = conversation("t")
    file = write(tmp_path / "a.jsonl", run({"t": [1.0, None, 0.0, 0.0, 0.0]}, items=items))
    lines = export(file, format="messages")
    assert list(lines[0]) == [
        *("schema", "group_id", "run_id", "task", "harness", "model", "agent", "agent_digest", "labels"),
        *("rollout_id", "sample", "status", "reward", "advantage", "messages"),
    ]
    assert [(line["sample"], line["reward"], line["advantage"]) for line in lines] == [
        *((0, 1.0, 1.5), (2, 0.0, -0.5), (3, 0.0, -0.5), (4, 0.0, -0.5)),
    ]
    assert lines[0]["messages"][0]["role"] == "user"
    assert lines[0]["messages"][-1]["content"] == "The answer is in `/workspace/outputs/answer.json`."


def test_no_conversation_without_items(export: Exporter, tmp_path: Path) -> None:
    rows = list(run({"t": [1.0, None]}))
    assert "has no Items; either the run used --rollout-items none" in export.refused(
        write(tmp_path / "a.jsonl", rows), format="messages"
    )
    rows[0] = dataclasses.replace(rows[0], items=[])
    assert len(export(write(tmp_path / "b.jsonl", rows), format="messages")) == 1, "an error needs no Items"


def test_trajectories_beside_the_rows(export: Exporter, tmp_path: Path) -> None:
    file = tmp_path / "a.jsonl"
    [row] = run({"t": [1.0]})
    kept = keep_items(file, row.rollout_id, 1, conversation("t"), Masker(()))
    write(file, dataclasses.replace(row, items_file=kept))
    inline = write(tmp_path / "b.jsonl", dataclasses.replace(row, items=conversation("t")))
    assert export(file, format="messages") == export(inline, format="messages")
    (tmp_path / kept["file"]).unlink()
    with pytest.warns(RecordsWarning, match=r"a1\.items\.jsonl: missing, but rows of .*a\.jsonl name it"):
        assert "has no Items" in export.refused(file, format="messages")
    assert len(export(file)) == 1, "a group needs no Items"


def test_the_same_rows_give_the_same_bytes(tmp_path: Path) -> None:
    file = write(tmp_path / "a.jsonl", run({"t": [1.0, 0.25, 0.5], "u": [0.1, 0.2, 0.3]}, labels={"b": "1", "a": "2"}))
    outputs = {
        subprocess.run(
            [sys.executable, "-m", "pytest_core_rollouts", "export", "--format", "groups", file],
            capture_output=True,
            check=True,
            env={"PYTHONHASHSEED": seed},
        ).stdout
        for seed in "123"
    }
    assert len(outputs) == 1
    assert outputs.pop().count(b"\n") == 2


def test_what_cannot_be_exported_is_one_line(export: Exporter, tmp_path: Path) -> None:
    file = write(tmp_path / "a.jsonl", run({"t": [1.0]}, labels={"policy": "3"}))
    assert export.refused(file, file) == f"{file} was given twice; remove one of them"
    assert "cannot read rollout records: No such file" in export.refused(tmp_path / "none.jsonl")
    assert export.refused(file, "--label", "policy") == "--label: expected KEY=VALUE, got 'policy'"
    wanted = f"no matching rows in {file}; runs: r; labels: policy=3"
    assert export.refused(file, "--label", "policy=4") == wanted
    assert export.refused(file, "--run", "x") == wanted
    empty = tmp_path / "empty.jsonl"
    empty.touch()
    assert export.refused(empty) == f"no rows in {empty}"
    other = tmp_path / "other.jsonl"
    other.write_text('{"a": 1}\n')
    assert export.refused(other).startswith(f"{other}:1: not a rollout record")
    assert export.run(file, "--advantage", "ppo") == 4
    assert "invalid choice: 'ppo'" in export.err
