"""The verb `history`: what it prints, writes and refuses."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from pytest_core_rollouts.cli import main
from pytest_core_rollouts.records.record import RolloutRecord
from tests.support.rows import run


def night(number: int, solved: int) -> list[RolloutRecord]:
    """Rows of one run of ten tasks, the first `solved` of them solved."""
    results = {f"<task-{at}>": (float(at < solved),) * 2 for at in range(10)}
    rows = run(results, run_id=f"night-{number:02}")
    return [replace(row, started_at=f"2026-11-{number:02}T02:00:00Z", usage={"total_tokens": 50}) for row in rows]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Twelve nights; from the seventh on fewer tasks are solved."""
    for number in range(1, 13):
        rows = night(number, 9 if number < 7 else 4)
        (tmp_path / f"{13 - number}.jsonl").write_bytes(b"".join(row.to_line() for row in rows))
    (tmp_path / "empty.jsonl").touch()
    (tmp_path / "other.jsonl").write_text('{"not": "ours"}\n')
    (tmp_path / "notes.txt").write_text("no rows")
    return tmp_path


def test_prices_show_what_each_run_cost(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (folder / "prices.yaml").write_text("default: {input: 1000, output: 1000}\n")
    rows = [replace(row, usage={"input_tokens": 40, "output_tokens": 10, "total_tokens": 50}) for row in night(20, 9)]
    (folder / "0.jsonl").write_bytes(b"".join(row.to_line() for row in rows))
    page = folder / "history.html"
    assert main(["history", str(folder), "--prices", str(folder / "prices.yaml"), "--html", str(page)]) == 0
    lines = capfd.readouterr().out.splitlines()
    head, *runs = [[cell.strip() for cell in line.split("|")] for line in lines if line.startswith("|")]
    cost = head.index("cost")
    assert runs[-1][cost] == "$1.00"  # twenty rollouts of 5 cents
    assert runs[-2][cost] == "-"  # their usage says too little
    assert page.read_text().count('<td class="number">$1.00</td>') == 1


def test_a_folder_of_runs_is_a_history(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["history", str(folder), "--html", str(folder / "pages" / "history.html")]) == 0
    out, err = capfd.readouterr()
    assert "12 runs, compared over 10 tasks that are the same in all of them" in out
    assert re.search("^\u2588{6}\u2584{6}$", out, re.MULTILINE)
    assert "mean reward 0.900 -> 0.400 from run night-07 on (p = 0.00" in out
    rows = [line for line in out.splitlines() if line.startswith("| night")]
    assert [line.split()[1] for line in rows] == [f"night-{number:02}" for number in range(1, 13)]
    assert rows[0].split("|")[2:7:4] == ["       0.900 ", "  1,000 "]
    assert r"- &lt;task-5&gt;: 12/20" not in out, "the ten newest runs only"
    assert "- &lt;task-5&gt;: 8/20 (two samples differ 48% of the time)" in out
    assert err.count("passed over: ") == 2
    page = (folder / "pages" / "history.html").read_text()
    assert page.count("<circle") == 12
    assert "&lt;task-5&gt;" in page
    assert "<task-" not in page
    assert len(page) < 20_000


def test_the_page_shows_what_its_commands_print(
    folder: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "runs").mkdir()
    for number in range(1, 13):
        rows = [replace(row, task=row.task.strip("<>").replace("task-5", "login")) for row in night(number, 9)]
        if number >= 9:
            rows = [
                replace(row, agent={**row.agent, "digest": "new"}, reward=float(at < 8)) for at, row in enumerate(rows)
            ]
        (folder / "runs" / f"{number}.jsonl").write_bytes(b"".join(row.to_line() for row in rows))
    monkeypatch.chdir(folder)
    page = (Path(__file__).parents[2] / "docs" / "history.md").read_text()
    commands = re.findall(r"^python -m pytest_core_rollouts (.*)$", page, re.MULTILINE)
    assert len(commands) == 2
    for command in commands:
        assert main(command.split()) == 0
    printed = set(capfd.readouterr().out.splitlines())
    shown = page.partition("```text\n")[2].partition("```")[0].splitlines()
    assert [line for line in shown if line not in ("", "...") and line not in printed] == []


def test_the_last_runs_and_single_files(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert (
        main(["history", str(folder / "1.jsonl"), str(folder / "2.jsonl"), str(folder / "3.jsonl"), "--last", "2"]) == 0
    )
    out = capfd.readouterr().out
    assert [line.split()[1] for line in out.splitlines() if line.startswith("| night")] == ["night-11", "night-12"]
    assert "no change in the mean reward (p > 0.01)" in out


def test_what_cannot_be_read_is_exit_code_2_and_a_missing_path_4(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "empty.jsonl").touch()
    assert main(["history", str(tmp_path)]) == 2
    assert capfd.readouterr().err.endswith(f"ERROR: no rows of runs in {tmp_path}\n")
    assert main(["history", str(tmp_path / "none")]) == 4
    assert capfd.readouterr().err == f"ERROR: {tmp_path / 'none'}: no such file or folder\n"
    assert main(["history", str(tmp_path), "--last", "0"]) == 4
