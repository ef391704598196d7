"""The HTML report in a real browser: hostile content, large content, and readers who need more than eyes or a mouse."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pytest_core_rollouts.records.record import RolloutRecord
from pytest_core_rollouts.report.html import write_html
from pytest_core_rollouts.results.comparison import load_baseline
from tests.report.conftest import INSTALL, Viewer, turning, wait_until_drawn
from tests.support.trajectories import (
    HOSTILE,
    LONG_LINE,
    agent_message,
    command,
    item,
    many_outcomes,
    row,
    thought,
    user,
    write,
)

if TYPE_CHECKING:
    from playwright.sync_api import Page

pytestmark = pytest.mark.slow

RUN = "20261129T120000Z-1f0c"


def made(tmp_path: Path, *rows: dict[str, Any]) -> Path:
    records = write(tmp_path / "run.jsonl", [RolloutRecord(**fields) for fields in rows])
    write_html([records], tmp_path / "report.html")
    return tmp_path / "report.html"


# Hostile content


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Everything an agent, a task or a server can name or write is hostile, and Items have shapes nobody expects."""
    text = "\n".join(HOSTILE)
    shapes: list[Any] = [
        item("command_execution", 90, command=None, output={"not": "text"}, exit_code="1", duration_ms="soon"),
        item("message", 91, role=None, content=None),
        item("message", 92, role="assistant", content=[None, 7, {"type": "new", "x": 1}, {"text": 5}]),
        item("reasoning", 93, summary=None),
        item("function_call", 94, name=None, arguments='{"broken', call_id=None),
        item("mcp_call", 95, arguments={"changes": [{"path": text, "diff": text}]}, output=text, error=None),
        item("constructor", 96, toString=1, __proto__={"x": 1}),
        item("web_search_call", 97, action=None),
        {"type": None}, {}, None, 7, "text", [],
    ]  # fmt: skip
    items = [user(1, text), thought(2, text), command(3, text, text, 1), agent_message(4, text)]
    items += [item("mcp_call", 5, server_label=text, name=text, arguments={text: text}, output=text, error=text)]
    folder = tmp_path_factory.mktemp("hostile")
    fields = row(
        f"task/{text}", 0, 0, 0.0,
        rollout_id=f"id/{text}?#%", harness=f"h {text}", model=text, items=items + shapes, labels={text: text},
        answer={text: text}, answer_text=text, notes=[text], error=text, session_id=text, run_id=f"run {text}",
        reasons=[{"path": text, "expected": text, "answered": f"{text}!"}, "no object", {"path": None}],
        request_ids={text: text}, settings={text: text},
        outputs=[{"path": text, "file": text, "sha256": text, "size": -1}],
    )  # fmt: skip
    fields["agent"] = {"name": text, "digest": text}
    return made(folder, fields, row("plain", 0, 1, 1.0))


def walk(page: Page) -> str:
    """Every page of the hostile report, opened by clicking; all that was seen."""
    seen = [page.inner_text("main")]
    with turning(page):
        page.click(".matrix tbody tr:has-text('task/') th a")
    seen.append(page.inner_text("main"))
    with turning(page):
        page.click("table.rollouts tbody tr:first-child td.num a")
    for summary in page.locator("summary").all():
        summary.click()
    for _ in range(30):
        page.keyboard.press("j")
        seen.append(page.inner_text("main"))
    with turning(page):
        page.click("nav >> text=Run")
    seen.append(page.inner_text("main"))
    return "\n".join(seen)


def test_nothing_an_agent_wrote_runs_or_becomes_markup(viewer: Viewer, hostile: Path) -> None:
    page = viewer.open(hostile)
    seen = walk(page)
    assert page.evaluate("window.pwned") is None
    assert page.locator("main img, main script, main iframe, main [onerror]").count() == 0
    assert "<script>window.pwned = 1</script><img src=x" in seen
    assert "{{ template }}" in seen


def test_what_cannot_be_seen_is_shown(viewer: Viewer, hostile: Path) -> None:
    page = viewer.open(hostile)
    seen = walk(page)
    for code in ("202E", "00AD", "200B", "2028"):
        assert f"\u27e8U+{code}\u27e9" in seen
    assert {"\u27e8NUL\u27e9", "\u27e8BEL\u27e9", "\u27e8ESC\u27e9"} <= set(re.findall("\u27e8[A-Z]{3}\u27e9", seen))
    for hidden in ("\x1b", "\x00", "\u202e", "\u2066", "\u200b", "\ud835"):
        assert hidden not in seen
    assert "\u05e9\u05dc\u05d5\u05dd" in seen  # right-to-left text itself stays


def test_terminal_colors_are_colors_and_other_escapes_are_gone(viewer: Viewer, hostile: Path) -> None:
    page = viewer.open(hostile)
    with turning(page):
        page.click(".matrix tbody tr:has-text('task/') a.sq")
    out = page.locator("[data-step='3'] .output")
    assert out.locator(".t-1").first.inner_text() == "red"
    assert out.locator(".t-2.t-bold").first.inner_text() == "green"
    assert "link" in out.inner_text()
    assert "https://example.com" not in out.inner_text()


def test_items_of_unexpected_shapes_are_shown_as_data(viewer: Viewer, hostile: Path) -> None:
    page = viewer.open(hostile)
    with turning(page):
        page.click(".matrix tbody tr:has-text('task/') a.sq")
    for _ in range(30):
        page.keyboard.press("j")
    wait_until_drawn(page)
    assert page.locator(".item").count() == 19


def test_the_browser_refuses_markup_made_of_text(browser: Any, hostile: Path) -> None:
    page = browser.new_page()
    page.goto(hostile.as_uri())
    page.wait_for_selector("html[data-ready]")
    refused = page.evaluate(
        """() => { try { document.body.innerHTML = "<b>x</b>"; return "allowed"; } catch (e) { return e.name; } }"""
    )
    page.evaluate("document.body.append(Object.assign(document.createElement('img'), {src: 'https://example.com/x'}))")
    script = page.evaluate(
        """() => {
            const made = document.createElement("script");
            try { made.text = "window.ran = 1"; document.body.append(made); } catch {}
            return window.ran;
        }"""
    )
    page.close()
    assert (refused, script) == ("TypeError", None)


# Large content


def test_a_line_of_two_megabytes_is_shown_in_part_and_unfolds_by_pages(viewer: Viewer, tmp_path: Path) -> None:
    items = [command(1, "cat blob", LONG_LINE), command(2, LONG_LINE, "short"), agent_message(3, LONG_LINE)]
    page = viewer.open(made(tmp_path, row("big", 0, 0, 1.0, items=items)))
    with turning(page):
        page.click("a.sq")
    assert page.locator(".item").count() == 3
    assert len(page.inner_text("main")) < 20_000
    step = page.locator("[data-step='1']")
    step.locator("[data-fold=open]").click()
    assert len(step.inner_text()) < 70_000
    step.locator("text=more characters").click()
    assert 110_000 < len(step.inner_text()) < 130_000


def test_a_trajectory_of_20000_items_keeps_few_of_them_on_the_page(viewer: Viewer, tmp_path: Path) -> None:
    items = [command(at, f"echo {at}", f"{at}\n") for at in range(1, 20_001)]
    page = viewer.open(made(tmp_path, row("long", 0, 0, 1.0, items=items)), f"#/rollout/{RUN}.long.codex-gpt-x.0")
    assert 0 < page.locator(".item").count() < 100
    page.evaluate("scrollTo(0, document.body.scrollHeight)")
    wait_until_drawn(page)
    assert page.locator("[data-step='20000']").count() == 1
    assert page.locator(".item").count() < 150
    page.fill("#find", "echo 12345")
    assert page.locator(".item .number").all_inner_texts() == ["12345"]
    deep = viewer.open(tmp_path / "report.html", f"#/rollout/{RUN}.long.codex-gpt-x.0/15000")
    assert deep.evaluate("document.activeElement.dataset.step") == "15000"
    box = deep.locator("[data-step='15000']").bounding_box()
    assert box is not None
    assert 0 < box["y"] < 900


def test_a_report_of_5000_rollouts_keeps_few_rows_on_the_page(viewer: Viewer, tmp_path: Path) -> None:
    with (tmp_path / "run.jsonl").open("wb") as file:
        for task in range(313):
            for agent in (0, 1):
                for sample in range(8):
                    fields = row(f"area/task-{task:03}", sample, agent, float((task + sample + agent) % 3 == 0))
                    fields["items"] = [agent_message(1, f"{task} {sample} " * 800)]
                    file.write(RolloutRecord(**fields).to_line())
    write_html([tmp_path / "run.jsonl"], tmp_path / "report.html")
    page = viewer.open(tmp_path / "report.html")
    assert 0 < page.locator(".matrix tbody tr:not([aria-hidden])").count() < 120
    page.fill("#search", "task-300")
    assert page.locator(".matrix a.sq").count() == 16
    page.fill("#search", "")
    with turning(page):
        page.click("nav >> text=Rollouts")
    assert "5,008 rollouts" in page.inner_text("main")
    assert page.locator("table.rollouts tbody tr:not([aria-hidden])").count() < 200
    page.evaluate("scrollTo(0, document.body.scrollHeight)")
    wait_until_drawn(page)
    assert page.locator("table.rollouts tbody tr:not([aria-hidden])").count() < 200
    with turning(page):
        page.locator("table.rollouts tbody tr:has-text('task-') td.num a").last.click()
    assert page.locator(".item").count() == 1


# Access


PAGES = {
    "overview": "#/",
    "filtered": "#/?is=solved&agent=0",
    "grouped": "#/?group=folder&sort=hardest",
    "rollouts": "#/rollouts",
    "cause": "#/rollouts?why=wrong+total",
    "task": "#/task/sales-by-region",
    "rollout": f"#/rollout/{RUN}.sales-by-region.claude_sdk-default.1",
    "broken": f"#/rollout/{RUN}.inventory-bug.codex-gpt-x.0",
    "baseline": "#/baseline",
    "run": "#/run",
}


RULES = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("report")
    write(folder / "run.jsonl", many_outcomes())
    write(folder / "main.jsonl", many_outcomes(seed=9))
    write_html([folder / "run.jsonl"], folder / "report.html", baseline=load_baseline(folder / "main.jsonl"))
    return folder / "report.html"


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("name", PAGES)
def test_axe_finds_nothing_against_wcag_aa(viewer: Viewer, report: Path, name: str, scheme: str) -> None:
    axe = pytest.importorskip("axe_playwright_python", reason=INSTALL)
    script = (Path(axe.__file__).parent / "axe.min.js").read_text(encoding="utf-8")
    page = viewer.open(report, PAGES[name], color_scheme=scheme, bypass_csp=True)
    for summary in page.locator("summary").all():
        summary.click()
    page.wait_for_selector("details[open] > div:empty", state="detached")  # an instruction is unpacked when asked for
    page.evaluate(script)
    for width in (1280, 390):  # on a phone, tables are cards
        page.set_viewport_size({"width": width, "height": 900})
        page.evaluate("scrollTo(0, 0)")  # nothing is under the bar
        wait_until_drawn(page)
        found = page.evaluate(f"axe.run(document, {{runOnly: {RULES}}})")
        violations = [
            f"{width}: {one['id']}: {one['help']}: {[node['html'][:160] for node in one['nodes'][:3]]}"
            for one in found["violations"]
        ]
        assert violations == []
        assert len(found["passes"]) > 15


@pytest.mark.parametrize("name", PAGES)
def test_a_narrow_window_needs_no_scrolling_sideways(viewer: Viewer, report: Path, name: str) -> None:
    page = viewer.open(report, PAGES[name], viewport={"width": 360, "height": 740})
    assert page.evaluate("document.documentElement.scrollWidth") == 360


def test_what_is_focused_is_seen_to_be(viewer: Viewer, report: Path) -> None:
    page = viewer.open(report)
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"
    assert page.evaluate("document.activeElement.getBoundingClientRect().left") >= 0
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "main"
