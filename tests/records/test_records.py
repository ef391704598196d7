from __future__ import annotations

import dataclasses
import errno
import json
import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
import tracemalloc
import warnings
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from pytest_core_rollouts.records.masking import MASK, Masker
from pytest_core_rollouts.records.record import SCHEMA, RecordsError, RecordsWarning, RolloutRecord
from pytest_core_rollouts.records.rows import (
    EffectiveRow,
    append,
    check_writable,
    count_planned,
    effective_rows,
    read_records,
    slim,
)
from pytest_core_rollouts.tasks.task import Task
from tests.support.tables import rows


def record(**fields: Any) -> RolloutRecord:
    values: dict[str, Any] = {
        "rollout_id": "20261129T182233Z-1f0c.a.codex-default.0",
        "task": "a",
        "harness": "codex",
        "model": "default",
        "sample": 0,
        "status": "completed",
        "reward": 1.0,
        "run_id": "20261129T182233Z-1f0c",
        "group_id": "20261129T182233Z-1f0c.a.codex-default",
    }
    return RolloutRecord(**(values | fields))


# One row


def test_fields_stand_in_the_documented_order() -> None:
    line = record().to_line()
    assert list(json.loads(line)) == [
        *("rollout_id", "task", "harness", "model", "sample", "session_id", "status", "reward", "answer"),
        *("duration_s", "usage", "items", "error"),
        *("schema", "run_id", "group_id", "agent", "labels", "attempt", "started_at", "timings", "settings"),
        *("input_digest", "grading_digest", "reasons", "answer_text", "outputs", "items_file", "notes", "planned"),
        *("request_ids", "answer_json", "masked", "spent", "why", "split", "tags", "metrics", "earlier_usage"),
    ]


def test_a_row_comes_back_as_it_was_written() -> None:
    written = record(
        answer={"s": "a\u2028b\u0085c", "n": [1, 2.5, None, True]},
        usage={"total_tokens": 12},
        items=[{"id": "item_1"}],
        agent={"name": None, "digest": "d"},
        reasons=[{"path": "x", "expected": 1, "answered": 2}],
        notes=["one"],
        outputs=[],
        tags=["csv"],
        earlier_usage=[None, {"total_tokens": 3}],
        timings={"create": 0.25},
        started_at="2026-11-29T18:22:33.123+00:00",
    )
    assert RolloutRecord.from_line(written.to_line()) == written


ODD: dict[str, tuple[Any, Any]] = {
    "nan": (float("nan"), None),
    "infinity": ([float("inf"), -float("inf")], [None, None]),
    "decimal": (Decimal("1.10"), "1.10"),
    "path": (Path("/tmp/x"), "/tmp/x"),
    "set": ({"b", "a"}, ["a", "b"]),
    "bytes": (b"\xff\x00a", "\ufffd\u0000a"),
    "surrogate": ({"k\ud800": "\udfff"}, {"k\\ud800": "\\udfff"}),
    "pair": ("\ud83d\ude00", "\U0001f600"),
    "separators": ("a\u2028b\u0085c\r\nd", "a\u2028b\u0085c\r\nd"),
    "keys": ({1: "a", None: "b", (1, 2): "c"}, {"1": "a", "None": "b", "[1, 2]": "c"}),
    "tuple": ((1, "x"), [1, "x"]),
    "status": (errno.ENOSPC, errno.ENOSPC),
    "enum": (signal.SIGTERM, 15),
}


@rows("name", ODD)
def test_values_that_json_has_no_word_for_neither_lose_the_row_nor_break_it(name: str) -> None:
    value, written = ODD[name]
    line = record(answer=value, items=[{"x": value}], usage={"x": value}).to_line()
    assert line.isascii()
    assert line.count(b"\n") == 1
    row = RolloutRecord.from_line(line)
    assert (row.items, row.usage) == ([{"x": written}], {"x": written})
    assert row.answer == (value if name == "surrogate" else written)  # `answer_json` has what was graded


def test_cycles_depth_and_huge_integers_are_written_too() -> None:
    cycle: list[Any] = []
    cycle.append(cycle)
    deep: Any = "bottom"
    for _ in range(100_000):
        deep = [deep]
    line = record(answer=cycle, items=[deep], usage={"n": 10**5000}).to_line()
    assert RolloutRecord.from_line(line).usage == {"n": hex(10**5000)}


@rows("answer", [1e300, 10**300, -(2**53), None, True, "x", [], {"x": 1e300}])
def test_an_answer_of_any_shape_is_read_as_it_was(answer: Any) -> None:
    """A row that can't be read would take those of all other rollouts with it."""
    row = RolloutRecord.from_line(record(answer=answer, answer_json="null" if answer is None else None).to_line())
    assert repr(row.answer) == repr(answer)
    assert row.answer_json == ("null" if answer is None else None)


def test_a_secret_in_an_answer_with_a_lone_surrogate_is_masked_and_the_row_can_be_read() -> None:
    secret, key = 'x", "y": "zz', "p\u00e4ssword1"
    answers = [{"a": "x", "y": "zz\ud835"}, {"a": f"{key}\ud835"}, {"\\ud835": key, "\ud835": 1}]
    rows = [RolloutRecord.from_line(record(answer=one).to_line(Masker([secret, key]))) for one in answers]
    assert [row.answer for row in rows] == [answers[0], {"a": "[masked]\ud835"}, {"\\ud835": "[masked]", "\ud835": 1}]
    assert [row.masked for row in rows] == [False, True, True]


def test_a_reward_is_rounded_where_a_row_is_made_or_read() -> None:
    line = record(reward=0.5).to_line()
    assert record(reward=0.1 + 0.2).reward == 0.3
    assert str(record(reward=-0.0).reward) == "0.0"
    assert not record(reward=0.0, settings={"pass_threshold": 1e-13}).solved
    assert RolloutRecord.from_line(line.replace(b'"reward":0.5', b'"reward":0.30000000000000004')).reward == 0.3
    assert RolloutRecord.from_line(line.replace(b'"reward":0.5', b'"reward":1.0000000000000002')).solved
    with pytest.raises(RecordsError, match="expected a reward from 0 to 1"):
        RolloutRecord.from_line(line.replace(b'"reward":0.5', b'"reward":1.000001'))


def test_a_reward_passes_the_threshold_that_it_equals_before_both_are_rounded() -> None:
    for number in (1 / 3, 2 / 3, 0.1 + 0.2, 0.7):
        assert record(reward=number, settings={"pass_threshold": number}).solved
        task = Task(id="a", instruction="x", expected={"x": 1}, pass_threshold=number)
        assert record(reward=number).reward == task.pass_threshold
        assert not record(reward=number - 1e-9, settings={"pass_threshold": number}).solved


def test_scalars_of_numpy_are_numbers() -> None:
    numpy = pytest.importorskip("numpy", reason="pip install numpy")
    reasons = [{"path": "x", "expected": numpy.float32(0.5), "answered": numpy.bool_(True)}, numpy.int64(7)]
    row = RolloutRecord.from_line(record(reasons=reasons).to_line())
    assert row.reasons == [{"path": "x", "expected": 0.5, "answered": True}, 7]


STRICT_READERS = {
    "jq": ["jq", "-c", "."],
    "node": [
        "node",
        "-e",
        "for (const line of require('fs').readFileSync(0, 'utf8').trim().split('\\n'))"
        " console.log(JSON.stringify(JSON.parse(line)))",
    ],
}


@pytest.mark.parametrize("reader", STRICT_READERS)
def test_strict_readers_take_every_row(reader: str) -> None:
    if shutil.which(reader) is None:
        pytest.skip(f"{reader} is not installed")
    lines = b"".join(record(answer=value).to_line() for value, _ in ODD.values())
    done = subprocess.run(STRICT_READERS[reader], input=lines, capture_output=True, check=True)
    answers = [json.loads(line)["answer"] for line in done.stdout.decode().split("\n") if line]
    assert answers == [written for _, written in ODD.values()]


def test_known_secrets_are_in_no_row_and_ids_stay_whole() -> None:
    secret = "sk-canary-123456"
    row = record(
        answer={secret: secret},
        items=[{"text": f"my key is {secret}!"}],
        error=secret,
        notes=[secret],
        answer_text=secret,
    )
    line = row.to_line(Masker([secret, "completed", "20261129T182233Z-1f0c"]))
    assert secret.encode() not in line
    read = RolloutRecord.from_line(line)
    assert (read.status, read.rollout_id) == (row.status, row.rollout_id)
    assert read.items == [{"text": f"my key is {MASK}!"}]


def test_items_can_be_left_out() -> None:
    assert RolloutRecord.from_line(record(items=[{"id": "i"}]).to_line(items="none")).items is None


@rows(
    ("status", "reward"),
    [
        ("error", 0.0),
        ("cancelled", 1.0),
        ("completed", None),
        ("timeout", None),
        ("completed", 1.5),
        ("completed", float("nan")),
        ("failed", -0.1),
        ("done", 1.0),
    ],
)
def test_a_fault_never_has_a_reward_and_a_graded_rollout_always_has(status: str, reward: float | None) -> None:
    with pytest.raises(ValueError, match=r"reward|status"):
        record(status=status, reward=reward)


@rows(
    ("change", "error"),
    [
        ({"schema": SCHEMA + 1}, f"schema {SCHEMA + 1} is newer.*upgrade"),
        ({"schema": "1"}, '"schema"'),
        ({"reward": "1.0"}, '"reward" can\'t be str'),
        ({"reward": True}, '"reward" can\'t be bool'),
        ({"status": "error"}, "can't have a reward"),
        ({"items": {}}, '"items" can\'t be dict'),
        ({"task": None}, '"task" can\'t be NoneType'),
    ],
)
def test_an_invalid_line_is_refused_by_its_name(change: dict[str, Any], error: str) -> None:
    with pytest.raises(RecordsError, match=error):
        RolloutRecord.from_line(json.dumps(json.loads(record().to_line()) | change).encode())


def test_a_missing_field_is_named_and_an_unknown_one_ignored() -> None:
    row = json.loads(record().to_line())
    assert RolloutRecord.from_line(json.dumps(row | {"later": 1}).encode()) == dataclasses.replace(
        record(), reasons=[], notes=[], outputs=[], tags=[], earlier_usage=[]
    )
    del row["run_id"]
    with pytest.raises(RecordsError, match="run_id"):
        RolloutRecord.from_line(json.dumps(row).encode())


# The file


def test_rows_are_appended_and_folders_made(tmp_path: Path) -> None:
    path = tmp_path / "runs" / "deep" / "x.jsonl"
    for sample in range(3):
        append(path, record(sample=sample))
    assert [row.sample for row in read_records(path)] == [0, 1, 2]


def test_unescaped_unicode_separators_do_not_split_a_row(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    row = json.loads(record().to_line()) | {"answer": {"s": "a\u2028b\u0085c\x0b"}}
    path.write_bytes(json.dumps(row, ensure_ascii=False).encode() + b"\n" + record(sample=1).to_line())
    assert [one.answer for one in read_records(str(path))] == [{"s": "a\u2028b\u0085c\x0b"}, None]


def test_a_row_cut_off_at_the_end_is_passed_over_then_cut_away(tmp_path: Path) -> None:
    whole = record().to_line()
    for kept in range(1, len(whole) - 1):
        path = tmp_path / "x.jsonl"
        path.write_bytes(whole + whole[:kept])
        with pytest.warns(RecordsWarning, match=r"x\.jsonl:2: .*cut off"):
            assert len(list(read_records(path))) == 1
        if kept % 97 == 1:  # every append syncs the disk
            append(path, record(sample=7))
            assert [row.sample for row in read_records(path)] == [0, 7]


def test_a_row_cut_off_is_passed_over_where_warnings_are_errors_too(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    path.write_bytes(record().to_line() + b'{"rollout_id":"d","ta')
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("error")
        assert len(list(read_records(path))) == 1
    assert [str(one.message) for one in caught] == [f"{path}:2: skipped a row that was cut off"]


@rows("size", [10, 200_000])
def test_a_whole_last_row_without_its_newline_is_kept(tmp_path: Path, size: int) -> None:
    path = tmp_path / "x.jsonl"
    path.write_bytes(record(answer_text="x" * size).to_line()[:-1])
    assert len(list(read_records(path))) == 1
    append(path, record(sample=1))
    assert [row.sample for row in read_records(path)] == [0, 1]


def test_a_tail_of_zeros_that_a_power_cut_leaves_is_cut_away(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    path.write_bytes(record().to_line() + b'{"rollout_id":"x' + bytes(5000))
    append(path, record(sample=1))
    assert [row.sample for row in read_records(path)] == [0, 1]


def test_a_broken_line_in_the_middle_is_an_error_with_its_number(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    path.write_bytes(record().to_line() + b"\n" + b'{"rollout_id": "torn\n' + record().to_line())
    with pytest.raises(RecordsError, match=r"x\.jsonl:3: not JSON"):
        list(read_records(path))


def test_a_newer_schema_is_refused_also_on_a_last_line_without_newline(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    newer = json.dumps(json.loads(record().to_line()) | {"schema": 99}, separators=(",", ":")).encode()
    path.write_bytes(newer)
    with pytest.raises(RecordsError, match=r"x\.jsonl:1: schema 99 is newer"):
        list(read_records(path))
    append(path, record())
    assert path.read_bytes() == newer + b"\n" + record().to_line()


def test_the_last_line_of_a_foreign_file_is_not_changed(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("my notes\nlast line without newline")
    with pytest.raises(RecordsError, match=r"notes\.txt.*--rollout-out"):
        append(path, record())
    with pytest.raises(RecordsError, match=r"notes\.txt.*--rollout-out"):
        check_writable(path)
    assert path.read_text() == "my notes\nlast line without newline"


def test_a_missing_file_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(RecordsError, match=r"none\.jsonl: cannot read"):
        list(read_records(tmp_path / "none.jsonl"))


def test_reading_streams(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    path.write_bytes(record(items=[1]).to_line() + b"broken\n")
    rows = read_records(path, items=False)
    assert next(rows).items is None
    with pytest.raises(RecordsError):
        next(rows)


def test_reading_holds_one_row_at_a_time(tmp_path: Path) -> None:
    """So that a controller, a report and a resume stay small, however long the trajectories are together."""
    path = tmp_path / "x.jsonl"
    for sample in range(30):
        append(path, record(sample=sample, items=[{"id": "i", "text": "x" * 1_000_000}]), sync=False)
    tracemalloc.start()
    try:
        rows = [slim(row) for row in read_records(path, items=False)]
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(rows) == 30
    assert peak < 8_000_000


# Several writers, a full disk, no permission


def _write_rows(path: Path, writer: int, count: int) -> None:
    for number in range(count):
        size = 300_000 if number % 2 else 20_000
        append(path, record(rollout_id=f"w{writer}.{number}", sample=number, answer_text=chr(97 + writer) * size))


def test_six_processes_write_one_file_without_a_row_lost_or_mixed(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    context = multiprocessing.get_context("spawn")
    writers = [context.Process(target=_write_rows, args=(path, number, 60)) for number in range(6)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join(120)
    assert [writer.exitcode for writer in writers] == [0] * 6
    rows = {row.rollout_id: row for row in read_records(path)}
    assert sorted(rows) == sorted(f"w{writer}.{number}" for writer in range(6) for number in range(60))
    assert all(set(row.answer_text or "") == {chr(97 + int(name[1]))} for name, row in rows.items())


def test_a_full_disk_is_an_error_and_leaves_no_half_row(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    append(path, record())
    before = path.read_bytes()
    script = (
        "import resource, sys; from pathlib import Path\n"
        "from tests.records.test_records import append, record, RecordsError\n"
        f"path = Path({str(path)!r}); room = {len(before) + 1000}\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (room, room))\n"
        "try: append(path, record(answer_text='x' * 5000))\n"
        "except RecordsError as error: print(error); sys.exit(7)\n"
    )
    root = Path(__file__).parents[2]
    done = subprocess.run([sys.executable, "-c", script], cwd=root, capture_output=True, text=True)
    assert done.returncode == 7, done.stderr
    assert "x.jsonl: cannot write rollout records: File too large" in done.stdout
    assert path.read_bytes() == before
    append(path, record(sample=1))
    assert len(list(read_records(path))) == 2


def _below_a_file(folder: Path) -> Path:
    (folder / "file").touch()
    return folder / "file" / "x.jsonl"


def _folder(folder: Path) -> Path:
    return folder


@rows("place", [_below_a_file, _folder, lambda _: Path("/proc/rollouts/x.jsonl"), lambda _: Path("/dev/null")])
def test_where_no_row_can_be_written_is_known_before_the_run(tmp_path: Path, place: Callable[[Path], Path]) -> None:
    path = place(tmp_path)
    with pytest.raises(RecordsError, match=rf"{path}.*--rollout-out"):
        check_writable(path)


def test_a_read_only_folder_is_an_error(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    if os.access(tmp_path, os.W_OK):
        pytest.skip("this user may write everywhere")
    with pytest.raises(RecordsError, match="Permission denied"):
        check_writable(tmp_path / "x.jsonl")
    with pytest.raises(RecordsError, match="Permission denied"):
        append(tmp_path / "x.jsonl", record())


def test_the_check_leaves_nothing_behind(tmp_path: Path) -> None:
    check_writable(tmp_path / "runs" / "x.jsonl")
    assert list(tmp_path.iterdir()) == []
    append(tmp_path / "y.jsonl", record())
    before = (tmp_path / "y.jsonl").read_bytes()
    check_writable(tmp_path / "y.jsonl")
    assert (tmp_path / "y.jsonl").read_bytes() == before


# Which row counts


def test_of_rows_with_the_same_digests_the_first_graded_one_counts() -> None:
    error, first, second = record(status="error", reward=None), record(reward=0.0), record(reward=1.0, attempt=2)
    assert effective_rows([error, first, second, error]) == {error.rollout_id: EffectiveRow(1, first)}


def test_without_a_grade_the_newest_row_counts() -> None:
    rows = [record(status="error", reward=None, error=text) for text in ("one", "two")]
    assert effective_rows(rows)[rows[0].rollout_id].record.error == "two"


@rows(
    "change",
    [
        {"input_digest": "b"},
        {"grading_digest": "b"},
        {"agent": {"digest": "b"}},
        {"labels": {"build": "7"}},
        {"settings": {"timeout": 3.0}},
        {"settings": {"network": {"access": "enabled"}}},
        {"settings": {"xfail": "not yet"}},
    ],
)
def test_rows_of_other_work_than_the_newest_do_not_count(change: dict[str, Any]) -> None:
    old, new = record(reward=1.0), record(status="error", reward=None, **change)
    assert effective_rows([old, new])[old.rollout_id].record is new
    again = record(reward=0.0, **change)
    assert effective_rows([old, new, again])[old.rollout_id].record is again


def test_planned_counts_tell_each_row_of_the_whole() -> None:
    plan = count_planned([("x", "a"), ("x", "a"), ("x", "b"), ("y", "a")])
    assert plan["x", "a"] == {"run": 4, "agent": 3, "tasks": 2, "group": 2}
    assert plan["y", "a"] == {"run": 4, "agent": 1, "tasks": 1, "group": 1}
