"""Captures joined to the samples they belong to."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from pytest_core_rollouts.records.record import RecordsWarning, RolloutRecord
from tests.support.exporting import Exporter, capture, exchange, write
from tests.support.rows import run


def rows(rewards: Sequence[float | str | None]) -> list[RolloutRecord]:
    return [dataclasses.replace(row, session_id=f"s{row.sample}") for row in run({"t": rewards})]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Captures of samples 0 and 1; nothing of sample 2."""
    folder = tmp_path / "captured"
    for row in rows([1.0, 0.0]):
        capture(folder, row.rollout_id, exchange(f"s{row.sample}", reply="a"), exchange(f"s{row.sample}", reply="b"))
    return folder


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return write(tmp_path / "a.jsonl", rows([1.0, 0.0, None]))


def test_each_sample_has_its_requests(export: Exporter, file: Path, folder: Path) -> None:
    [group] = export(file, "--capture", folder, "--require-token-ids")
    texts = [[json.loads(one["response"])["output"] for one in sample["exchanges"]] for sample in group["samples"]]
    assert texts == [[["a"], ["b"]], [["a"], ["b"]], []]
    first = group["samples"][0]["exchanges"][0]
    assert list(first) == [
        *("started_at", "duration_s", "model", "request", "response", "truncated"),
        *("prompt_token_ids", "token_ids", "logprobs"),
    ]
    assert json.loads(first["request"])["model"] == "my-policy" == first["model"]
    assert (first["prompt_token_ids"], first["token_ids"], first["logprobs"]) == ([1, 2], [3, 4], [-0.5, -1.0])


def test_requests_that_failed_and_earlier_attempts_are_no_part_of_it(
    export: Exporter, file: Path, folder: Path
) -> None:
    rollout_id = rows([1.0])[0].rollout_id
    capture(
        folder,
        rollout_id,
        exchange("s0", status=500, error="server_error: no", response=None, token_ids=None),
        exchange("s0", error="connection_failed: cut"),
        exchange("s-of-an-earlier-attempt", reply="lost"),
    )
    [group] = export(file, "--capture", folder, "--require-token-ids")
    assert len(group["samples"][0]["exchanges"]) == 2


def test_half_a_line_at_the_end_is_named_and_passed_over(export: Exporter, file: Path, folder: Path) -> None:
    path = folder / f"{rows([1.0])[0].rollout_id}.jsonl"
    with path.open("a") as lines:
        lines.write('{"schema": 1, "session_id": "s0", "half')
    with pytest.warns(RecordsWarning) as texts:
        [group] = export(file, "--capture", folder, "--require-token-ids")
    assert len(group["samples"][0]["exchanges"]) == 2
    assert {str(one.message) for one in texts} == {f"{path}:3: skipped an incomplete exchange"}


LACKING: dict[str, tuple[dict[str, Any], str]] = {
    "no ids": ({"token_ids": None}, "no token_ids on the protocol responses; request them with --rollout-capture-to"),
    "none at all": (
        {"token_ids": None, "prompt_token_ids": None},
        "returned no prompt_token_ids and no token_ids",
    ),
    "no prompt": (
        {"prompt_token_ids": None, "protocol": "anthropic"},
        "returned no prompt_token_ids on the protocol anthropic; no known server does; use a harness that speaks",
    ),
    "in part": ({"truncated": True}, "too large, only saved in part"),
    "misfits": ({"logprobs": [-1.0]}, "got 2 token_ids but 1 logprobs"),
}


@pytest.mark.parametrize(("changes", "message"), LACKING.values(), ids=LACKING.keys())
def test_missing_token_ids_are_refused(
    export: Exporter, file: Path, folder: Path, changes: dict[str, Any], message: str
) -> None:
    rollout_id = rows([1.0])[0].rollout_id
    capture(folder, rollout_id, exchange("s0", **changes))
    refusal = export.refused(file, "--capture", folder, "--require-token-ids")
    assert refusal.startswith(f"{folder}: request 3 of {rollout_id}: ")
    assert message in refusal
    assert len(export(file, "--capture", folder)[0]["samples"][0]["exchanges"]) == 3, "joined where not asked for"


def test_logprobs_need_not_be_there(export: Exporter, file: Path, folder: Path) -> None:
    capture(folder, rows([1.0])[0].rollout_id, exchange("s0", logprobs=None))
    [group] = export(file, "--capture", folder, "--require-token-ids")
    assert group["samples"][0]["exchanges"][2]["logprobs"] == []


def test_a_rollout_that_was_not_captured_is_refused_if_it_used_tokens(
    export: Exporter, folder: Path, tmp_path: Path
) -> None:
    """An agent that asks its model nothing must not be able to stop the export of the others."""
    *others, last = rows([1.0, 0.0, 0.0])
    file = write(tmp_path / "b.jsonl", others, last)
    assert export(file, "--capture", folder, "--require-token-ids")[0]["samples"][2]["exchanges"] == []
    used = write(tmp_path / "c.jsonl", others, dataclasses.replace(last, usage={"total_tokens": 1234}))
    assert export(used, "--capture", folder)[0]["samples"][2]["exchanges"] == []
    assert export.refused(used, "--capture", folder, "--require-token-ids") == (
        f"{folder}: no requests of {last.rollout_id} found, but it used 1,234 tokens; "
        "select the run that was captured with --run"
    )


def test_a_run_that_was_not_captured_is_named(export: Exporter, file: Path, folder: Path, tmp_path: Path) -> None:
    other = [dataclasses.replace(row, session_id="x") for row in run({"t": [1.0]}, run_id="20261130T100000Z-beef")]
    both = write(tmp_path / "b.jsonl", rows([1.0, 0.0]), other)
    assert export.refused(both, "--capture", folder, format="sequences") == (
        f"{folder}: no requests of run {other[0].run_id} found; select the run that was captured with --run"
    )
    assert len(export(both, "--capture", folder, "--run", rows([1.0])[0].run_id, format="sequences")) == 4


def test_the_wrong_folder(export: Exporter, file: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    assert export.refused(file, "--capture", other) == f"--capture: {other} is not a folder"
    other.mkdir()
    assert export.refused(file, "--capture", other).startswith(f"{other}: no requests of these rollouts found")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{half\n", "not valid JSON; remove this line, which was not written completely"),
        ("[1]\n", "not a model request; check that this is the folder of --rollout-capture"),
        ('{"schema": 2}\n', "schema 2 is newer than 1; upgrade pytest-core-rollouts"),
    ],
)
def test_files_that_are_no_captures(export: Exporter, file: Path, folder: Path, line: str, message: str) -> None:
    path = folder / f"{rows([1.0])[0].rollout_id}.jsonl"
    with path.open("a") as lines:
        lines.write(line)
    assert export.refused(file, "--capture", folder) == f"{path}:3: {message}"


def test_texts_of_requests_can_be_left_out(export: Exporter, file: Path, folder: Path) -> None:
    [group] = export(file, "--capture", folder, "--no-text")
    first = group["samples"][0]["exchanges"][0]
    assert (first["request"], first["response"], first["token_ids"]) == ("", "", [3, 4])


def test_options_that_do_not_go_together(export: Exporter, file: Path, folder: Path) -> None:
    assert "requires --capture DIR" in export.refused(file, "--require-token-ids")
    assert "requires --format groups" in export.refused(file, "--capture", folder, format="messages")
    assert "requires --capture DIR" in export.refused(file, format="sequences")
    assert "requires --format groups and --capture" in export.refused(file, "--no-text")


def test_an_id_that_is_a_path_leads_nowhere(export: Exporter, folder: Path, tmp_path: Path) -> None:
    capture(tmp_path, "outside", exchange("s0", reply="secret"))
    [good, bad] = rows([1.0, 0.0])
    file = write(tmp_path / "b.jsonl", good, dataclasses.replace(bad, rollout_id="../outside", session_id="s0"))
    [group] = export(file, "--capture", folder)
    assert group["samples"][1]["exchanges"] == []
