"""`python -m pytest_core_rollouts report` and `compare`, on files."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pytest_core_rollouts.cli import main
from pytest_core_rollouts.records.record import RolloutRecord
from pytest_core_rollouts.records.rows import append
from pytest_core_rollouts.report.markdown import markdown
from pytest_core_rollouts.results.summary import summarize
from tests.support.rows import run
from tests.support.tables import rows

YES, NO = (1.0,) * 4, (0.0,) * 4


def written(path: Path, *rows: RolloutRecord) -> Path:
    for row in rows:
        append(path, row, sync=False)
    return path


def run_command(capfd: pytest.CaptureFixture[str], *args: str | Path) -> tuple[int, str, str]:
    code = main([str(arg) for arg in args])
    out, err = capfd.readouterr()
    return code, out, err


def test_the_report_of_a_file_is_the_report_of_its_run(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    rows = [*run({"a": (1.0, None), "b": (0.0, "not run")})]
    assert run_command(capfd, "report", written(tmp_path / "x.jsonl", *rows)) == (0, markdown(summarize(rows)), "")


def test_files_are_merged_and_runs_can_be_chosen(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    one = written(tmp_path / "1.jsonl", *run({"a": (1.0, 1.0)}, run_id="r1"))
    two = written(tmp_path / "2.jsonl", *run({"a": (0.0, 1.0)}, run_id="r2"), *run({"b": (0.0,)}, run_id="r3"))
    code, text, _ = run_command(capfd, "report", one, two)
    assert code == 0
    assert text.startswith("5 rollouts: 2 tasks, 1 to 4 samples each, 3 runs merged\n")
    assert "| a                    |   3/4 |" in text
    _, text, _ = run_command(capfd, "report", two, "--run", "r3")
    assert text.startswith("1 rollout: 1 task, 1 sample each\n")
    assert run_command(capfd, "report", two, "--run", "r9")[2] == "ERROR: no rows of run r9; found runs: r2, r3\n"


def test_the_same_rows_give_the_same_bytes_in_any_order_process_and_locale(tmp_path: Path) -> None:
    source = random.Random(4)
    rows = [*run({name: [source.choice([0.0, 1.0, 0.3, None]) for _ in range(4)] for name in ("ä", "b", "c", "漢字")})]
    base = written(tmp_path / "base.jsonl", *run(dict.fromkeys(("ä", "b", "c"), YES), run_id="old"))
    outputs = set()
    for seed, locale in ((1, "C"), (2, "C.UTF-8"), (3, "POSIX")):
        source.shuffle(rows)
        path = tmp_path / str(seed) / "x.jsonl"
        written(path, *rows)
        command = [sys.executable, "-m", "pytest_core_rollouts", "report", "x.jsonl", "--baseline", str(base)]
        env = {**os.environ, "PYTHONHASHSEED": str(seed), "LC_ALL": locale, "COLUMNS": str(40 * seed)}
        done = subprocess.run(command, cwd=path.parent, env=env, capture_output=True, check=True)
        outputs.add(done.stdout)
    assert len(outputs) == 1
    assert "漢字".encode() in outputs.pop()


@rows(
    ("gate", "code", "line"),
    [
        ("mean>=0.5", 0, "- gate mean&gt;=0.5: passed: 0.500 &gt;= 0.5\n"),
        ("mean>=0.6", 1, "- gate mean&gt;=0.6: failed: 0.500 &lt; 0.6\n"),
        ("lost<=0", 1, "- gate lost&lt;=0: failed: 1 lost that the baseline always solves: b\n"),
    ],
)
def test_gates_on_files(tmp_path: Path, capfd: pytest.CaptureFixture[str], gate: str, code: int, line: str) -> None:
    path = written(tmp_path / "x.jsonl", *run({"a": YES, "b": NO}))
    base = written(tmp_path / "main.jsonl", *run({"a": YES, "b": YES}, run_id="old"))
    got, text, _ = run_command(capfd, "report", path, "--gate", gate, "--baseline", base)
    assert got == code
    assert line in text
    assert "this run compared with main.jsonl: mean reward 1.000 -> 0.500 over 2 tasks, -0.500" in text


def test_two_files_are_compared(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    a = written(tmp_path / "a.jsonl", *run({"t": YES, "u": NO}, run_id="r1", model="gpt-4"))
    b = written(tmp_path / "b.jsonl", *run({"t": NO, "u": NO}, run_id="r2", model="gpt-5"))
    code, text, _ = run_command(capfd, "compare", a, b)
    assert code == 0
    assert text.startswith("b.jsonl compared with a.jsonl: mean reward 0.500 -> 0.000 over 2 tasks, -0.500")
    assert "| t    |    4/4 |   0/4 | -1.000 |         0.029 | 0.057 |\n" in text
    assert text.endswith("\n1 task without a change.\n")


def test_files_that_contradict_each_other_are_refused(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """In whichever order they are named, for a table as for training; equal rows are no contradiction."""
    one, two = (
        written(tmp_path / "a.jsonl", *run({"t": [0.0, 1.0]})),
        written(tmp_path / "b.jsonl", *run({"t": [1.0, 1.0]})),
    )
    for verb in (["report"], ["export", "--format", "groups"]):
        for files in ((one, two), (two, one)):
            code, out, err = run_command(capfd, *verb, *files)
            assert (code, out) == (2, "")
            assert "contradict each other: rollout r.t." in err
            assert str(one) in err
            assert str(two) in err
    same = written(tmp_path / "c.jsonl", *run({"t": [0.0, 1.0]}))
    assert run_command(capfd, "report", one, same)[0] == 0


def test_results_without_a_common_task_are_not_compared(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    one, two = written(tmp_path / "a.jsonl", *run({"t": [1.0]})), written(tmp_path / "b.jsonl", *run({"u": [1.0]}))
    code, _, err = run_command(capfd, "compare", one, two)
    assert code == 2
    assert "nothing can be compared: no unchanged task has a result on both sides" in err


def test_versions_of_an_agent_are_compared_in_order_of_time(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    def version(digest: str, day: int, reward: float) -> list[RolloutRecord]:
        agent = {"name": "mine", "slug": f"mine-{digest}", "digest": digest}
        rows = run({"t": [reward] * 4, "u": [reward] * 4}, run_id=f"r{day}")
        return [replace(row, agent=agent, started_at=f"2026-11-0{day}T00:00:00+00:00") for row in rows]

    for first, then in (("a" * 64, "b" * 64), ("b" * 64, "a" * 64)):
        file = written(tmp_path / f"{first[0]}.jsonl", *version(first, 1, 0.0), *version(then, 2, 1.0))
        for verb in ("compare", "report"):
            assert "0.000 -> 1.000" in run_command(capfd, verb, file)[1]


def test_the_agents_of_one_file_are_compared(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    rows = [
        row for name, results in (("long", YES), ("short", NO)) for row in run({"t": results}, agent={"name": name})
    ]
    path = written(tmp_path / "x.jsonl", *rows)
    code, text, _ = run_command(capfd, "compare", path)
    assert code == 0
    assert text.startswith("short compared with long: mean reward 1.000 -> 0.000 over 1 task, -1.000.\n")
    code, text, _ = run_command(capfd, "compare", f"{path}::short", f"{path}::long")
    assert text.startswith("x.jsonl::long compared with x.jsonl::short: mean reward 0.000 -> 1.000")


@rows(
    ("args", "error"),
    [
        (["report", "none.jsonl"], "none.jsonl: cannot read rollout records: No such file or directory"),
        (["report", "x.jsonl", "x.jsonl"], "x.jsonl was given twice; remove one of them"),
        (["report", "empty.jsonl"], "empty.jsonl: no rows"),
        (["report", "x.jsonl", "--gate", "mean"], "--gate: unknown gate 'mean'; use each, none, mean>=X,"),
        (["report", "x.jsonl", "--gate", "baseline"], "--gate baseline: requires a baseline; add --baseline FILE"),
        (["report", "x.jsonl", "--gate", "mean[tag:q]>=1"], "--gate mean[tag:q]>=1: no selected task has such a tag;"),
        (["report", "x.jsonl", "--baseline", "empty.jsonl"], "--baseline: empty.jsonl: no graded rollouts"),
        (["compare", "x.jsonl"], "x.jsonl: has only one agent, codex; add a second file to compare with"),
        (["compare", "x.jsonl::y", "x.jsonl"], "x.jsonl: unknown agent 'y'; choose from codex"),
        (["compare", "two.jsonl", "x.jsonl"], "no agent is in both files: two.jsonl has codex/m, codex/n, x.jsonl"),
    ],
)  # fmt: skip
def test_what_cannot_be_done_is_one_line_and_exit_code_4(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, args: list[str], error: str
) -> None:
    monkeypatch.chdir(tmp_path)
    written(Path("x.jsonl"), *run({"a": YES}))
    written(Path("two.jsonl"), *run({"a": YES}, model="m", agents=2), *run({"a": YES}, model="n", agents=2))
    Path("empty.jsonl").touch()
    code, out, err = run_command(capfd, *args)
    assert (code, out) == (4, "")
    assert err.startswith(f"ERROR: {error}")
    assert err.count("\n") == 1


def test_a_verb_that_is_not_there_is_4_and_help_is_0(capfd: pytest.CaptureFixture[str]) -> None:
    assert run_command(capfd, "frobnicate")[0] == 4
    assert run_command(capfd)[0] == 4
    code, out, _ = run_command(capfd, "--help")
    assert code == 0
    assert "report" in out


def test_a_reader_that_closes_early_is_not_an_error(tmp_path: Path) -> None:
    path = written(tmp_path / "x.jsonl", *run({f"t{number:03}": NO for number in range(200)}))
    command = f"{sys.executable} -m pytest_core_rollouts report {path} | head -1"
    done = subprocess.run(["bash", "-o", "pipefail", "-c", command], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


@rows(
    "verb",
    [
        ["report", "x.jsonl", "--gate", "mean>=0"],
        ["compare", "x.jsonl", "y.jsonl"],
        ["export", "x.jsonl", "--format", "groups"],
        ["new-task", "a"],
    ],
    ids=lambda verb: verb[0],
)
def test_output_that_cannot_be_written_is_an_error_and_no_verdict(tmp_path: Path, verb: list[str]) -> None:
    if not Path("/dev/full").is_char_device():
        pytest.skip("needs a device that is full")
    for name in ("x.jsonl", "y.jsonl"):
        written(tmp_path / name, *run({"a": YES}))
    command = [sys.executable, "-m", "pytest_core_rollouts", *verb]
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(command, cwd=tmp_path, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert (done.returncode, done.stderr) == (4, "ERROR: the output: No space left on device\n")


def test_an_agent_file_called_like_a_harness_is_judged_apart_from_it(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    same = {"slug": "codex", "digest": "d" * 64}
    rows = [
        *run({"t": YES, "u": YES}, agents=2, agent={**same, "name": "codex"}),
        *run({"t": NO, "u": YES}, agents=2, agent={**same, "name": None}),
    ]
    path = written(tmp_path / "x.jsonl", *rows)
    code, text, _ = run_command(capfd, "report", path, "--gate", "mean>=0.9")
    assert code == 1
    assert "- gate mean&gt;=0.9 \\[codex dddddd\\]: failed: 0.500 &lt; 0.9\n" in text
    assert "- gate mean&gt;=0.9 \\[codex dddddd (2)\\]: passed: 1.000 &gt;= 0.9\n" in text
    assert "| task (solved/graded) | codex dddddd | codex dddddd (2) |\n" in text
    assert "| t                    |          0/4 |              4/4 |\n" in text


@rows(
    ("gate", "code", "line"),
    [("each", 0, "passed: every rollout was expected to fail"), ("mean>=0.5", 1, "undecided: no rollout has run")],
)
def test_a_file_with_only_expected_failures_is_judged_as_its_run_was(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], gate: str, code: int, line: str
) -> None:
    path = written(tmp_path / "x.jsonl", *run({"t": NO}, settings={"xfail": "too hard"}))
    got, text, _ = run_command(capfd, "report", path, "--gate", gate)
    assert got == code
    assert f": {line}\n" in text


def test_a_threshold_of_thousands_of_digits_is_an_invalid_gate(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    path = written(tmp_path / "x.jsonl", *run({"t": YES}))
    code, _, err = run_command(capfd, "report", path, "--gate", f"mean>=0.{'3' * 5000}")
    assert code == 4
    assert err.startswith("ERROR: --gate: unknown gate 'mean>=0.333")


def test_rows_from_a_pipe_make_a_table_but_no_html(tmp_path: Path) -> None:
    path = written(tmp_path / "x.jsonl", *run({"t": YES}))
    for html, code, error in ("", 0, ""), (" --html o.html", 4, "ERROR: --html: /dev/stdin: not a regular file"):
        command = f"cat {path} | {sys.executable} -m pytest_core_rollouts report /dev/stdin{html}"
        done = subprocess.run(["bash", "-c", command], cwd=tmp_path, capture_output=True, text=True, check=False)
        assert done.returncode == code
        assert done.stdout.startswith("4 rollouts: 1 task, 4 samples each\n") == (code == 0)
        assert done.stderr.startswith(error)
    assert not (tmp_path / "o.html").exists()


def test_a_row_that_was_cut_off_is_one_line_and_another_files_text_is_refused(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    path = written(tmp_path / "x.jsonl", *run({"t": YES}))
    path.write_bytes(path.read_bytes()[:-9])
    command = [sys.executable, "-m", "pytest_core_rollouts", "report", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.startswith("rows 3 of 4 planned\n")
    assert done.stderr == f"WARNING: {path}:4: skipped a row that was cut off\n"
    for other in (b"hello", b"\xef\xbb\xbf" + path.read_bytes().split(b"\n")[0], b"\x1f\x8b\x08 packed"):
        path.write_bytes(other)
        code, _, err = run_command(capfd, "report", path)
        assert code == 4
        assert err.startswith(f"ERROR: {path}:1: not JSON (")
        assert err.count("\n") == 1


HUGE = "9" * 400


@pytest.mark.parametrize(
    ("field", "value", "what"),
    [
        ("reward", HUGE, '"reward" is too large a number'),
        ("reward", "1e400", '"reward" is too large a number'),
        ("duration_s", "1e400", '"duration_s" is too large a number'),
        ("duration_s", HUGE, '"duration_s" is too large a number'),
        ("sample", HUGE, '"sample" is too large a number'),
        ("planned", '{"run":"x"}', '"planned" must only hold counts'),
        ("planned", '{"group":-1}', '"planned" must only hold counts'),
        ("planned", '{"tasks":null}', '"planned" must only hold counts'),
        ("notes", '["a",1]', '"notes" must only hold strings'),
        ("outputs", '["a"]', '"outputs" must only hold kept files'),
        ("outputs", '[{"path":"a"}]', '"outputs" must only hold kept files'),
        ("agent", '{"name":1}', 'the agent\'s "name" must be a string'),
    ],
)
def test_values_that_no_run_writes_are_named_by_file_and_line(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], field: str, value: str, what: str
) -> None:
    path = written(tmp_path / "x.jsonl", *run({"t": YES}))
    first, _, rest = path.read_text().partition("\n")
    row = json.loads(first)
    path.write_text(rest + json.dumps(row | {field: "HERE"}).replace('"HERE"', value) + "\n")
    for verb in (["report"], ["compare", str(path)], ["export", "--format", "groups"]):
        code, out, err = run_command(capfd, *verb, path)
        assert (code, out, err) == (4, "", f"ERROR: {path}:4: not a rollout record: {what}\n")


# What is missing


def shards(tmp_path: Path) -> tuple[Path, Path, Path]:
    """A baseline of four tasks, and a run of them whose rows are in two files."""
    results = dict.fromkeys("abcd", YES)
    base = written(tmp_path / "main.jsonl", *run(results, run_id="old"))
    rows = [*run({**results, "d": NO})]
    return base, written(tmp_path / "1.jsonl", *rows[:8]), written(tmp_path / "2.jsonl", *rows[8:])


def test_missing_shard_leaves_gates_undecided(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """All shards give the verdict of the whole; one of them gives none, unless the user says that it may."""
    base, one, two = shards(tmp_path)
    for gate in ("baseline", "lost<=3", "mean>=0.1", "none"):
        args = ("report", one, "--baseline", base, "--gate", gate)
        code, text, _ = run_command(capfd, *args)
        assert code == 1, text
        assert ": undecided: " in text
        code, text, _ = run_command(capfd, *args, "--allow-missing")
        assert code == 0, text
        assert "; accepted: 8 of 16 rollouts did not run" in text
        assert ("no row of c, d" in text) == (gate in ("baseline", "lost<=3"))
    verdicts = {
        run_command(capfd, "report", *files, "--baseline", base, "--gate", "lost<=0")[:2]
        for files in ((one, two), (two, one))
    }
    [(code, text)] = verdicts
    assert code == 1
    assert "failed: 1 lost that the baseline always solves: d\n" in text


def test_report_of_other_tasks_than_the_baselines_is_undecided(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """The rows are complete by their own plan: only the baseline shows that tasks are missing."""
    base, _, _ = shards(tmp_path)
    part = written(tmp_path / "part.jsonl", *run({"a": YES, "b": YES}, run_id="part"))
    code, text, _ = run_command(capfd, "report", part, "--baseline", base, "--gate", "baseline")
    assert (code, "; no row of c, d, which the baseline has" in text) == (1, True)
    assert run_command(capfd, "report", part, "--baseline", base, "--gate", "baseline", "--allow-missing")[0] == 0


@rows("cut", ["at a row's end", "within a row"])
def test_baseline_that_was_cut_is_refused(tmp_path: Path, capfd: pytest.CaptureFixture[str], cut: str) -> None:
    """A task that failed now and was cut from the baseline would be new, and a drop from 4/4 to 0/4 would pass."""
    base = written(tmp_path / "main.jsonl", *run({"t": YES, "u": YES}, run_id="old"))
    now = written(tmp_path / "now.jsonl", *run({"t": YES, "u": NO}, run_id="now"))
    data = base.read_bytes()
    rows = data.splitlines(keepends=True)
    assert run_command(capfd, "report", now, "--baseline", base, "--gate", "lost<=0")[0] == 1
    base.write_bytes(b"".join(rows[:4]) + (rows[4][:50] if cut == "within a row" else b""))
    refused = f"{base} lacks 4 of its 8 planned rollouts; finish that run with --rollout-resume, or accept this with "
    with pytest.warns(match="cut off") if cut == "within a row" else nullcontext():
        code, _, err = run_command(capfd, "report", now, "--baseline", base, "--gate", "baseline")
        assert (code, refused in err) == (4, True), err
        code, _, err = run_command(capfd, "compare", base, now)
        assert (code, refused in err) == (4, True), err
        code, text, _ = run_command(capfd, "report", now, "--baseline", base, "--gate", "baseline", "--allow-missing")
        assert code == 0
        assert f"accepted: {base} lacks 4 of its 8 planned rollouts\n" in text.replace("\\", "")
        assert run_command(capfd, "compare", base, now, "--allow-missing")[0] == 0


def test_baseline_that_was_resumed_or_merged_is_complete(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """It is complete when its rows are, in whatever order, whatever a resume selected, also next to other runs."""
    first = [*run({"t": (None, 1.0), "u": (1.0, "not run")}, run_id="r1")]
    again = [*run({"t": (1.0, "not run"), "u": ("not run", 1.0)}, run_id="r1", samples=1)]
    changed = [*run({"t": (1.0, 1.0)}, run_id="r2", grading_digest="new")]
    base = written(tmp_path / "main.jsonl", *again, *first, *changed)
    now = written(tmp_path / "now.jsonl", *run({"t": (1.0, 1.0), "u": (1.0, 1.0)}, run_id="now"))
    code, _, err = run_command(capfd, "report", now, "--baseline", base, "--gate", "lost<=0")
    assert (code, err) == (0, "")
    old = [replace(row, planned={}) for row in first]
    base = written(tmp_path / "old.jsonl", *old)
    code, _, err = run_command(capfd, "report", now, "--baseline", base, "--gate", "lost<=0")
    assert (code, err) == (0, ""), "rows of versions that did not know `planned` are judged by what they have"


# Expected failures


def test_expected_failures_are_in_no_figure(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """`report --baseline` and `compare` gave two means for the same two files: xfail was in one of them."""
    hard: dict[str, Any] = {"settings": {"xfail": "too hard"}}
    before = [*run({"a": (1.0, 1.0), "b": (1.0, 0.0)}, run_id="r1"), *run({"x": (0.0, 1.0)}, run_id="r1", **hard)]
    after = [*run({"a": (1.0, 0.0), "b": (0.0, 0.0)}, run_id="r2"), *run({"x": (0.0, None)}, run_id="r2", **hard)]
    one, two = written(tmp_path / "1.jsonl", *before), written(tmp_path / "2.jsonl", *after)
    for args in (("report", two, "--baseline", one), ("compare", one, two)):
        code, text, _ = run_command(capfd, *args)
        assert code == 0
        assert "mean reward 0.750 -> 0.250 over 2 tasks" in text
    _, text, _ = run_command(capfd, "report", two)
    assert text.startswith("4 rollouts: 2 tasks, 2 samples each, and 2 expected to fail\n")
    assert "- expected to fail, in no figure: x 0/1 of 2\n" in text
    assert "| x " not in text


def test_order_of_files_changes_nothing(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """A copy from before a resume, and the resumed file: the newer rows count, whichever file is named first."""

    def at(hour: int, row: RolloutRecord, **changes: Any) -> RolloutRecord:
        return replace(row, started_at=f"2026-11-01T0{hour}:00:00+00:00", **changes)

    one, two, three = run({"t": (0.0, None, "interrupted")})
    before = [at(1, one), at(1, two, error="first"), at(1, three)]
    regraded = at(1, one, reward=1.0, grading_digest="new")
    after = [*before, regraded, at(2, two, error="second"), at(2, three, status="error", error="third")]
    files = written(tmp_path / "z.jsonl", *before), written(tmp_path / "a.jsonl", *after)
    for verb in (("report",), ("export", "--format", "groups")):
        first = run_command(capfd, *verb, *files)
        assert run_command(capfd, *verb, *reversed(files))[:2] == first[:2]
        assert first[1] == run_command(capfd, *verb, files[1])[1]
    code, text, err = run_command(capfd, "report", *files)
    assert (code, err) == (0, "3 rollouts in several files, counted once\n")
    assert "second" in text
    assert "first" not in text
