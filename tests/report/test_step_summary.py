from __future__ import annotations

from pathlib import Path

from pytest_core_rollouts.report.markdown import CUT, LIMIT, append_summary


def test_text_is_appended(tmp_path: Path) -> None:
    path = tmp_path / "summary.md"
    path.write_text("before\n")
    append_summary(path, "| é |\n")
    append_summary(path, "after\n")
    assert path.read_text(encoding="utf-8") == "before\n| é |\nafter\n"


def test_a_long_report_is_cut_at_a_line(tmp_path: Path) -> None:
    path = tmp_path / "summary.md"
    path.write_text("x" * 1000)
    append_summary(path, "| row é |\n" * 200_000)
    data = path.read_bytes()
    assert LIMIT - 20 < len(data) <= LIMIT
    lines = data.decode("utf-8").removesuffix(CUT).split("\n")
    assert lines[0] == "x" * 1000 + "| row é |"
    assert set(lines[1:-1]) == {"| row é |"}


def test_a_full_page_takes_nothing_more(tmp_path: Path) -> None:
    path = tmp_path / "summary.md"
    path.write_bytes(b"x" * (LIMIT - 10))
    append_summary(path, "a long text\n")
    assert path.stat().st_size == LIMIT - 10
