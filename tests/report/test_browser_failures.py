"""The HTML report in a real browser: what failed and why is seen first, and a filter stays wherever a reader goes."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pytest_core_rollouts.records.record import RolloutRecord
from pytest_core_rollouts.records.rows import read_records
from pytest_core_rollouts.report.html import write_html
from pytest_core_rollouts.results.comparison import load_baseline
from pytest_core_rollouts.results.gate import judge
from pytest_core_rollouts.results.gate_forms import parse_gate
from pytest_core_rollouts.results.summary import summarize
from tests.report.conftest import Viewer, turning, wait_until_drawn
from tests.support.trajectories import many_agents, many_outcomes, row, sixteen_tasks, write

if TYPE_CHECKING:
    from playwright.sync_api import Page

pytestmark = pytest.mark.slow

FOLDERS = ["finance", "git", "logs", "parsing", "sql", "web"]
ROWS = "table.rollouts tbody tr:not([aria-hidden])"


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Sixteen tasks by two agents, with a gate that fails, one that passes, and a baseline."""
    folder = tmp_path_factory.mktemp("report")
    records = write(folder / "run.jsonl", sixteen_tasks())
    baseline = load_baseline(write(folder / "main.jsonl", sixteen_tasks(seed=5)))
    gates = [parse_gate("mean>=0.6"), parse_gate("baseline")]
    judgments = judge(gates, summarize(read_records(records)), baseline)
    write_html([records], folder / "report.html", baseline=baseline, judgments=judgments, name="tasks")
    return folder / "report.html"


def made(tmp_path: Path, records: list[RolloutRecord], **options: Any) -> Path:
    write_html([write(tmp_path / "run.jsonl", records)], tmp_path / "report.html", **options)
    return tmp_path / "report.html"


def texts(page: Page, selector: str) -> list[str]:
    return [" ".join(text.split()) for text in page.locator(selector).all_inner_texts()]


COLORS = """() => {
    const light = (color) => {
        const parts = color.match(/[\\d.]+/g).slice(0, 3).map((part) => part / 255);
        const [r, g, b] = parts.map((c) => (c <= 0.03928 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4));
        return 0.2126 * r + 0.7152 * g + 0.0722 * b;
    };
    const contrast = (a, b) => {
        const [low, high] = [light(a), light(b)].sort((x, y) => x - y);
        return (high + 0.05) / (low + 0.05);
    };
    const page = getComputedStyle(document.body).backgroundColor;
    return Object.fromEntries([...document.querySelectorAll(".matrix a.sq")].map((square) => {
        const style = getComputedStyle(square);
        const kind = square.className.split(" ")[1];
        const bar = document.querySelector(`.outcome-bar .${kind.replace("o-", "f-")}`);
        return [kind, {
            mark: contrast(style.color, style.backgroundColor),
            salience: contrast(style.backgroundColor, page),
            sameInBar: getComputedStyle(bar).fill === style.backgroundColor,
        }];
    }));
}"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_failures_stand_out_and_every_mark_can_be_read(viewer: Viewer, tmp_path: Path, scheme: str) -> None:
    colors = viewer.open(made(tmp_path, many_outcomes()), color_scheme=scheme).evaluate(COLORS)
    assert len(colors) == 7
    assert {kind: one["mark"] for kind, one in colors.items() if one["mark"] < 4.5} == {}
    assert {kind for kind, one in colors.items() if not one["sameInBar"]} == set()
    assert colors["o-solved"]["salience"] < 1.7
    assert min(colors[kind]["salience"] for kind in ("o-unsolved", "o-failed", "o-error")) > 4


def test_verdicts_come_first_and_the_title_names_the_tasks(viewer: Viewer, report: Path, tmp_path: Path) -> None:
    page = viewer.open(report)
    assert (page.title(), page.inner_text("#brand")) == ("tasks", "tasks")
    shown = texts(page, ".verdict")
    assert [text.split()[:3] for text in shown[:2]] == [["×", "failed", "mean>=0.6"]] * 2
    assert re.search(r"mean>=0.6 claude_sdk 0\.\d+ < 0.6 even if all had passed", shown[0])
    assert [text.split()[:4] for text in shown[2:4]] == [
        ["✓", "passed", "baseline", agent] for agent in ("claude_sdk", "codex/gpt-x")
    ]
    assert re.match(r"missing \d+ of 120 rollouts have no reward", shown[4])
    assert "Expected to fail, in no figure: web/blame-owner 8/8" in page.inner_text(".xfails")
    pass_at_3 = texts(page, ".agents td[data-label='pass@3']")  # the estimate of the curve, by mean
    page.click("text=Figures")
    assert sorted(text.split()[0] for text in texts(page, ".figures tr:nth-child(3) td")) == sorted(pass_at_3)
    assert shown[5] == "gained web/blame-owner (2 agents): its xfail can go"  # one line, however many agents
    labelled = [RolloutRecord(**row("a", 0, 0, 1.0, labels={"step": "1200"}))]
    assert viewer.open(made(tmp_path, labelled, name="tasks")).title() == "step=1200"


def test_wrong_answers_are_counted_by_place_and_value_and_a_click_shows_them(viewer: Viewer, report: Path) -> None:
    answers = [
        (reasons[0]["path"], reasons[0]["answered"])
        for one in sixteen_tasks()
        if (reasons := one.reasons) and not one.xfail
    ]
    total, at_342 = sum(path == "total" for path, _ in answers), answers.count(("total", 342))
    page = viewer.open(report)
    assert texts(page, ".faults li")[0] == f"× {total} unsolved: wrong total: 342 ×{at_342}, " + (
        f"300 ×{answers.count(('total', 300))}; expected 324"
    )
    assert "over the limit of 900 s" in page.inner_text(".faults")
    with turning(page):
        page.click(".faults >> text=wrong total")
    assert page.locator(ROWS).count() == total
    assert page.evaluate("location.hash") == "#/rollouts?why=wrong+total"
    with turning(page):
        page.go_back()
    with turning(page):
        page.click(".faults li:first-child a.mono")
    assert set(texts(page, ROWS + " .brief")) <= {
        "total: 324 expected, 342 answered", "total: 324 expected, 342 answered (+2 more)"
    }  # fmt: skip
    assert page.locator(ROWS).count() == at_342
    page.click("#is-why")
    assert page.locator(ROWS).count() > total


def test_an_agents_count_of_an_outcome_leads_to_its_rollouts(viewer: Viewer, report: Path) -> None:
    page = viewer.open(report)
    count = page.locator(".agents tr:has-text('gpt-x') .tally a:has-text('unsolved')")
    with turning(page):
        count.click()
    wrong = sum(one.harness == "codex" and one.reward == 0 and one.status == "completed" for one in sixteen_tasks())
    assert page.locator(ROWS).count() == wrong
    assert set(texts(page, ROWS + " td:nth-child(3)")) == {"codex/gpt-x"}


def test_a_search_finds_answers_reasons_failed_commands_tags_and_xfail(viewer: Viewer, report: Path) -> None:
    records = sixteen_tasks()
    page = viewer.open(report, "#/rollouts")
    for text, expected in {
        "342": sum("342" in f"{one.answer} {one.reasons}" for one in records),
        "Donald": sum(len(one.reasons) == 3 for one in records),
        "KeyError": sum(one.items is not None for one in records),
        "xfail": 8,
    }.items():
        page.fill("#search", text)
        count = texts(page, "main > div > p.muted")[0]
        assert count.startswith((f"{expected} of 128", f"{expected} rollouts")), text
    page.fill("#search", "")
    page.click("#is-xfail")
    assert page.locator(ROWS).count() == 8
    page.click("#is-xfail")
    page.select_option("#tag-choice", "sql")
    assert page.locator(ROWS).count() == 24
    assert page.evaluate("location.hash") == "#/rollouts?tag=sql"
    overview = viewer.open(report, "#/?group=folder")
    assert [text.split()[0] for text in texts(overview, ".group-head")] == FOLDERS
    assert "xfail" in overview.inner_text("tr:has-text('web/blame-owner')")
    overview.keyboard.press("j")
    assert overview.evaluate("document.activeElement.getAttribute('aria-label')") == "finance/rebase-conflict"


def test_a_filter_is_in_every_address_and_back_returns_to_the_row(viewer: Viewer, report: Path) -> None:
    page = viewer.open(report, "#/rollouts?is=unsolved")
    for _ in range(30):
        page.keyboard.press("j")
    url, place = page.evaluate("[document.activeElement.dataset.url, scrollY]")
    assert place > 0
    with turning(page):
        page.keyboard.press("Enter")
    assert page.evaluate("location.hash") == url
    assert url.endswith("?is=unsolved")
    page.keyboard.press("j")
    assert page.evaluate("location.hash").endswith("/1?is=unsolved")
    page.reload()
    page.wait_for_selector("html[data-ready]")
    wait_until_drawn(page)
    for _ in range(5):
        with turning(page):
            page.keyboard.press("n")
        assert "unsolved" in page.inner_text(".facts")
    page = viewer.open(report, "#/rollouts?is=unsolved")
    for _ in range(30):
        page.keyboard.press("j")
    with turning(page):
        page.keyboard.press("Enter")
    with turning(page):
        page.go_back()
    assert page.evaluate("[document.activeElement.dataset.url, scrollY]") == [url, place]
    page.keyboard.press("j")
    assert page.evaluate("document.activeElement.dataset.url") != url


def test_a_run_that_stopped_early_says_what_it_saved(viewer: Viewer, tmp_path: Path) -> None:
    planned = {"run": 48, "agent": 48, "group": 4, "tasks": 12}
    fields = {"settings": {"stop": "5%"}, "planned": planned, "usage": {"total_tokens": 1000}}
    rows = [RolloutRecord(**row(f"t{at:02}", sample, 0, 1.0, **fields)) for at in range(12) for sample in range(1)]
    rows.append(RolloutRecord(**row("t00", 1, 0, "error", **fields)))  # of a round that is not complete
    judgments = judge([parse_gate("mean>=0.6")], summarize(rows))
    page = viewer.open(made(tmp_path, rows, judgments=judgments, name="tasks"))
    shown = texts(page, ".verdict")
    assert shown[0].startswith("\u2713 passed mean>=0.6 after round 1 of 4")
    assert shown[1:] == [
        "saved 35 of 48 rollouts were not needed, because the gates are decided; "
        "about 35k tokens not spent (stops early: 5%)"
    ]
    assert "from 1 of 4 rounds" in page.inner_text(".agents .figure")
    assert texts(page, ".agents td[data-label='Graded']") == ["12/12"]


def test_many_tasks_come_hardest_first(viewer: Viewer, tmp_path: Path) -> None:
    rows = [row(f"t{at:02}", sample, 0, float(at != 33)) for at in range(41) for sample in range(2)]
    report = made(tmp_path, [RolloutRecord(**one) for one in rows])
    assert texts(viewer.open(report), ".matrix tbody th")[0] == "t33"
    assert texts(viewer.open(report, "#/rollouts"), ROWS + " td:nth-child(2)")[0] == "t33"


def test_the_baseline_shows_samples_before_and_now_in_groups(viewer: Viewer, report: Path) -> None:
    page = viewer.open(report, "#/baseline")
    panel = page.locator("section.panel").first
    worse, better, same = (int(part) for part in texts(page, ".fact dd")[4].split(" / "))
    assert texts(page, "section.panel:first-of-type h3") == [f"Worse: {worse} tasks", f"Better: {better} tasks"]
    assert panel.locator(".fold-box > summary").inner_text() == f"Same: {same} tasks"
    rows = panel.locator(".c-worse tbody tr")
    assert rows.count() == worse
    for cells in [rows.nth(at).locator("td") for at in range(worse)]:
        before, now = (cells.nth(at).locator(".sq.o-solved").count() for at in (0, 1))
        assert (before, now) == tuple(int(cells.nth(at).locator(".count").inner_text()[0]) for at in (0, 1))
    assert panel.locator(".c-worse .change-bar rect.c-worse").count() == worse
    assert "p = " not in panel.inner_text()
    panel.locator(".chance summary").nth(1).click()
    assert re.search(r"p = [\d.]+, corrected", panel.inner_text())
    assert "Expected to fail now, so in no figure here: web/blame-owner" in panel.inner_text()


# Windows of any width


def test_six_agents_fit_and_no_name_is_broken(viewer: Viewer, tmp_path: Path) -> None:
    report = made(tmp_path, many_agents())
    for width in (1440, 1000):
        page = viewer.open(report, viewport={"width": width, "height": 900})
        scrolls = "all => all.filter(one => one.scrollWidth > one.clientWidth).map(one => one.ariaLabel)"
        assert page.eval_on_selector_all("main > .scroll, section > div > .scroll", scrolls) == []
        assert set(texts(page, ".matrix .agent-head .second")) == {
            "claude-sonnet-5", "gpt-5.5-codex-mini", "qwen3-coder-480b"
        }  # fmt: skip
        assert page.evaluate("getComputedStyle(document.querySelector('.matrix tbody th')).position") == "sticky"


def test_a_phone_shows_everything_and_targets_are_large_enough(viewer: Viewer, report: Path) -> None:
    beyond = """() => [...document.querySelectorAll("main table *, main .verdict *")].filter((one) => {
        const box = one.getBoundingClientRect();
        return box.width > 1 && !one.closest("thead, details, .visually-hidden") && box.right > innerWidth + 1;
    }).map((one) => one.outerHTML.slice(0, 100))"""
    small = """() => [...document.querySelectorAll("main a, main button, main select, main summary")].filter((one) => {
        const box = one.getBoundingClientRect();
        return box.width > 1 && box.height < 24 && !one.closest("thead, p, details");  // p: links in a sentence
    }).map((one) => one.outerHTML.slice(0, 100))"""
    for address in ("#/", "#/rollouts", "#/task/sql%2Fjoins", "#/baseline", "#/run"):
        page = viewer.open(report, address, viewport={"width": 390, "height": 844})
        assert page.evaluate("document.documentElement.scrollWidth") == 390
        assert page.evaluate(beyond) == []
        assert page.evaluate(small) == []
    page = viewer.open(report, viewport={"width": 390, "height": 844})
    assert {"Tasks solved", "pass@1", "Outcomes", "Graded"} <= set(
        page.eval_on_selector_all(".agents td", "cells => cells.map(cell => cell.dataset.label)")
    )
