"""The HTML report in a real browser: what a reader sees and does."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from pytest_core_rollouts.records.record import RolloutRecord
from pytest_core_rollouts.report.html import write_html
from pytest_core_rollouts.results.comparison import load_baseline
from tests.report.conftest import Viewer, turning, wait_until_drawn
from tests.support.rows import run
from tests.support.trajectories import TASKS, agent_message, many_outcomes, row, write

if TYPE_CHECKING:
    from playwright.sync_api import Page

pytestmark = pytest.mark.slow

RUN = "20261129T120000Z-1f0c"
WRONG = f"{RUN}.sales-by-region.claude_sdk-default.1"
ROWS = "table.rollouts tbody tr:not([aria-hidden])"
TASK_ROWS = "table.matrix tbody tr:not([aria-hidden])"


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("report")
    write(folder / "run.jsonl", many_outcomes())
    write(folder / "main.jsonl", many_outcomes(seed=9))
    write_html([folder / "run.jsonl"], folder / "report.html", baseline=load_baseline(folder / "main.jsonl"))
    return folder / "report.html"


def made(tmp_path: Path, records: Sequence[RolloutRecord], **options: bool | int | None) -> Path:
    write_html([write(tmp_path / "run.jsonl", records)], tmp_path / "report.html", **options)  # type: ignore[arg-type]
    return tmp_path / "report.html"


def texts(page: Page, selector: str) -> list[str]:
    return [text.strip() for text in page.locator(selector).all_inner_texts()]


# The overview


def test_the_overview_has_figures_curves_health_and_every_sample(viewer: Viewer, report: Path) -> None:
    page = viewer.open(report)
    assert "54 of 56 rollouts planned" in page.inner_text(".headline")
    assert texts(page, "table.agents tbody th") == ["codex\ngpt-x", "claude_sdk"]  # by mean
    assert texts(page, TASK_ROWS + " th") == list(TASKS)
    assert page.locator(".matrix a.sq").count() == 54
    assert page.locator(".matrix .o-not-run").count() == 2
    assert page.locator("svg.chart .series").count() == 2
    assert page.locator("svg.chart .band").count() == 2
    assert page.locator(".health").count() == 2
    assert "503 execution_unavailable" in page.inner_text(".faults")


def test_metrics_are_shown_for_agents_and_rollouts(viewer: Viewer, tmp_path: Path) -> None:
    rows = [*run({"a": [1.0]}, metrics={"style": 0.5}), *run({"b": [0.0]}, metrics={"style": 0.25, "lines": 7})]
    report = made(tmp_path, rows)
    assert {"lines: 7", "style: 0.375"} <= set(texts(viewer.open(report), "table.agents td div"))
    page = viewer.open(report, f"#/rollout/{rows[1].rollout_id}")
    assert {"lines: 7", "style: 0.25"} <= set(texts(page, ".grading li"))


def test_every_outcome_is_shown_by_more_than_its_color(viewer: Viewer, report: Path) -> None:
    page = viewer.open(report)
    shown = page.evaluate(
        """() => Object.fromEntries([...document.querySelectorAll(".matrix a.sq")].map((square) =>
            [square.className.split(" ")[1], square.textContent + getComputedStyle(square, "::after").content]))"""
    )
    assert len(shown) == 7
    assert len(set(shown.values())) == 7, shown


def test_the_curve_can_be_pass_hat_k_and_has_its_figures_as_a_table(viewer: Viewer, report: Path) -> None:
    page = viewer.open(report)
    page.click("text=pass^k")
    assert "all of k samples" in page.inner_text("section[aria-label='pass@k']")
    page.click("text=Figures")
    assert texts(page, ".figures tbody th") == ["1", "2", "3", "4"]


def test_lines_that_differ_are_colored_as_values_are(viewer: Viewer, tmp_path: Path) -> None:
    """One color for what was expected, one for what was answered."""
    reasons = [
        {"path": "n", "expected": 12, "answered": 13},
        {"path": "names", "expected": ["Ada", "Grace"], "answered": ["Ada", "Don"]},
    ]
    wrong = row("a", 0, 0, 0.0, reasons=reasons)
    page = viewer.open(made(tmp_path, [RolloutRecord(**wrong)]), f"#/rollout/{wrong['rollout_id']}")
    hues = page.evaluate(
        """() => ["mark.was", "mark.is", ".d-del", ".d-add"].map((kind) => {
            const color = getComputedStyle(document.querySelector(`.reasons ${kind}`)).backgroundColor;
            const [red, , blue] = color.match(/\\d+/g).map(Number);
            return red > blue ? "warm" : "cool";
        })"""
    )
    assert hues == ["cool", "warm", "cool", "warm"]
    assert texts(page, ".reasons .d-del, .reasons .d-add") == ['-   "Grace"', '+   "Don"']
    assert "- expected, + answered" in page.inner_text(".reasons")


def test_a_task_that_is_solved_for_the_first_time_is_shown_first(viewer: Viewer, tmp_path: Path) -> None:
    beyond = {"settings": {"xfail": "too hard"}, "planned": {"group": 2}}
    results = {"gained": (1.0, 0.0), "still-beyond": (0.0, 0.0)}
    rows = [row(task, at, 0, one, **beyond) for task, both in results.items() for at, one in enumerate(both)]
    page = viewer.open(made(tmp_path, [RolloutRecord(**one) for one in rows]))
    assert texts(page, ".verdict") == ["gained\ngained (codex/gpt-x): its xfail can go"]
    with turning(page):
        page.click(".verdict a")
    assert page.inner_text("h1") == "gained"


# Filters


def test_outcomes_filter_tasks_and_the_address_keeps_them(viewer: Viewer, report: Path) -> None:
    page = viewer.open(report)
    page.click("#is-cancelled")
    shown = texts(page, TASK_ROWS + " th")
    assert 0 < len(shown) < len(TASKS)
    assert page.locator(".matrix a.sq:not(.dim)").count() == page.locator(".matrix a.o-cancelled").count()
    assert page.evaluate("location.hash") == "#/?is=cancelled"
    assert page.evaluate("document.activeElement.id") == "is-cancelled"
    again = viewer.open(report, "#/?is=cancelled")
    assert texts(again, TASK_ROWS + " th") == shown


def test_search_finds_tasks_agents_and_errors(viewer: Viewer, report: Path) -> None:
    page = viewer.open(report, "#/rollouts")
    assert page.locator(ROWS).count() == 54
    page.fill("#search", "sql/joins claude")
    assert page.locator(ROWS).count() == 4
    page.fill("#search", "execution_unavailable")
    assert [text.split()[-1] for text in texts(page, ROWS + " .badge")] == ["error"] * 5
    page.fill("#search", "nothing like this")
    assert "No rollout matches" in page.inner_text("main")
    page.click("text=Clear them")
    wait_until_drawn(page)
    assert page.locator(ROWS).count() == 54
    assert page.input_value("#search") == ""


def test_one_agent_and_another_order(viewer: Viewer, report: Path) -> None:
    page = viewer.open(report)
    page.select_option("#agent-choice", label="codex/gpt-x")
    assert page.locator("table.matrix thead th").count() == 2
    page.select_option("#sort-choice", label="Hardest first")
    assert texts(page, TASK_ROWS + " th")[0] == "sql/windows"
    page.select_option("#sort-choice", label="Easiest first")
    assert texts(page, TASK_ROWS + " th")[-1] == "sql/windows"


def test_the_list_sorts_by_any_column(viewer: Viewer, report: Path) -> None:
    page = viewer.open(report, "#/rollouts")
    page.click("thead >> text=Reward")
    wait_until_drawn(page)
    rewards = [float(text.replace("\u2013", "-1")) for text in texts(page, ROWS + " td:nth-child(5)")]
    assert rewards == sorted(rewards, reverse=True)
    assert page.get_attribute("thead th:nth-child(5)", "aria-sort") == "descending"
    page.click("thead >> text=Reward")
    assert texts(page, ROWS + " td:nth-child(5)")[0] == "\u2013"


# A task, a rollout


def test_a_task_has_its_samples_and_its_instruction(viewer: Viewer, report: Path) -> None:
    page = viewer.open(report)
    with turning(page):
        page.click("text=sales-by-region")
    assert page.locator(ROWS).count() == 8
    heads = "Outcome, Agent, Sample, Reward, Duration, Tokens, Items, Why, Answer"
    assert ", ".join(texts(page, "table.rollouts thead th")) == heads
    assert page.locator(".card").count() == 2
    page.click("summary:has-text('Instruction')")
    page.wait_for_selector("details >> text=holds the rows")


def test_a_deep_link_shows_why_and_the_trajectory(viewer: Viewer, report: Path) -> None:
    page = viewer.open(report, f"#/rollout/{WRONG}")
    assert "unsolved" in page.inner_text(".facts")
    assert texts(page, ".reasons tbody th") == ["total", 'attempts["2001:db8::1f"]', "names"]
    assert (texts(page, "mark.was"), texts(page, "mark.is")) == (["24"], ["42"])
    assert texts(page, ".reasons .d-add") == ['+   "Donald",']
    heads = ["User", "Reasoning", "Command", "Agent", "Command", "Command", "Edit", "docs \u00b7 search"]
    heads += ["Web search", "Command", "Command", "Agent"]
    for _ in heads:
        page.keyboard.press("j")
    wait_until_drawn(page)
    assert texts(page, ".item h3") == heads
    assert "exit 1" in page.inner_text("[data-step='6']")
    assert "1.8 s" in page.inner_text("[data-step='12']")
    assert page.inner_text("[data-step='3'] .command").strip() == "ls -la && head -50 auth.log"
    assert texts(page, "[data-step='5'] .d-del") == ["-    return sum(row.price for row in rows)"]
    assert texts(page, "[data-step='7'] .d-add") == ["+ int(row['qty'])"]
    assert "The file was updated." in page.inner_text("[data-step='7']")
    assert texts(page, "[data-step='11'] .d-hunk") == ["@@ -3,4 +3,4 @@"]
    assert texts(page, "[data-step='4'] .fence") == ["import csv\nprint('rows')"]
    said_so = page.inner_text("[data-step='4']")
    assert "**repeated** lines. I'll run:\n\n```python\n" in said_so  # as it was written, no mark left out
    assert texts(page, "[data-step='4'] strong") == ["repeated"]


def test_output_unfolds_and_an_item_can_be_seen_as_data(viewer: Viewer, report: Path) -> None:
    page = viewer.open(report, f"#/rollout/{WRONG}/3")
    assert page.evaluate("document.activeElement.dataset.step") == "3"
    step = page.locator("[data-step='3']")
    assert re.search(r"\d+ more lines", step.inner_text())
    assert "sshd[2030]" not in step.inner_text()
    step.locator("[data-fold=open]").click()
    assert "sshd[2030]" in step.inner_text()
    step.locator("[data-fold=close]").click()
    assert "sshd[2030]" not in step.inner_text()
    step.locator(".as-data").click()
    assert '"exit_code": 0' in step.inner_text()
    step.locator(".as-data").click()
    assert '"exit_code": 0' not in step.inner_text()


def test_a_trajectory_is_filtered_by_kind_failure_and_text(viewer: Viewer, report: Path) -> None:
    page = viewer.open(report, f"#/rollout/{WRONG}")
    page.click(".chip:has-text('Failed')")
    assert texts(page, ".item .number") == ["6", "9"]
    page.click(".chip:has-text('Failed')")
    page.click(".chip:has-text('Reasoning')")
    assert texts(page, ".item .number") == ["2"]
    page.click(".chip:has-text('Reasoning')")
    page.fill("#find", "KEYERROR")
    assert texts(page, ".item .number") == ["6"]
    page.fill("#find", "nowhere to be found")
    assert "No item matches" in page.inner_text(".trajectory")


def test_a_rollout_that_broke_says_why(viewer: Viewer, report: Path) -> None:
    page = viewer.open(report, f"#/rollout/{RUN}.inventory-bug.codex-gpt-x.0")
    assert "503 execution_unavailable" in page.inner_text(".callout.broken")
    assert "No trajectory was kept" in page.inner_text("main")


def test_particulars_are_there_to_look_up(viewer: Viewer, report: Path) -> None:
    page = viewer.open(report, f"#/rollout/{WRONG}")
    page.click("summary:has-text('Particulars')")
    shown = page.inner_text(".particulars")
    for part in (WRONG, "sess_sales-by-region_1", "prepare 1.2", "in-sales-by-region"):
        assert part in shown


def test_unknown_addresses_say_so(viewer: Viewer, report: Path) -> None:
    for address in ("#/rollout/nobody", "#/task/nothing", "#/elsewhere", "#/rollout/%E0%A4%A"):
        assert page_heading(viewer, report, address) == "Not found"


def page_heading(viewer: Viewer, report: Path, address: str) -> str:
    return viewer.open(report, address).inner_text("h1")


def test_the_baseline_and_the_run_have_pages(viewer: Viewer, report: Path) -> None:
    page = viewer.open(report)
    with turning(page):
        page.click("text=What changed")
    assert page.inner_text("h1") == "Compared with the baseline"
    assert page.locator("section.panel").count() == 2
    page.click("summary:has-text('Chance') >> nth=0")
    assert "this large by chance: p = " in page.inner_text("main")
    with turning(page):
        page.click("nav >> text=Run")
    shown = page.inner_text("main")
    for part in (RUN, "run.jsonl", "pytest-core-rollouts 0.1.0", "access disabled"):
        assert part in shown


def test_without_a_baseline_there_is_no_page_of_it(viewer: Viewer, tmp_path: Path) -> None:
    report = made(tmp_path, many_outcomes())
    page = viewer.open(report, "#/baseline")
    assert page.inner_text("h1") == "Not found"
    assert texts(page, "#nav a") == ["Overview", "Rollouts", "Run"]


def test_hidden_expected_values_are_named_so(viewer: Viewer, tmp_path: Path) -> None:
    page = viewer.open(made(tmp_path, many_outcomes(), hide_expected=True), f"#/rollout/{WRONG}")
    assert texts(page, ".reasons thead th") == ["Place", "Answered"]
    assert "342" in page.inner_text(".reasons")
    assert "324" not in page.inner_text(".reasons")


def test_items_left_out_are_named_where_they_were(viewer: Viewer, tmp_path: Path) -> None:
    page = viewer.open(made(tmp_path, many_outcomes(), items_limit=4), f"#/rollout/{WRONG}")
    assert "9 items left out" in page.inner_text(".gap")
    assert texts(page, ".item .number") == ["1", "2", "12", "13"]


def test_a_report_of_nothing_opens(viewer: Viewer, tmp_path: Path) -> None:
    (tmp_path / "run.jsonl").touch()
    page = viewer.open(made(tmp_path, []))
    assert "0 rollouts" in page.inner_text("main")


def test_a_file_that_was_cut_off_says_so(viewer: Viewer, tmp_path: Path) -> None:
    rows = [RolloutRecord(**row("sum", at, 0, 1.0, items=[agent_message(1, "z" * 700_000)])) for at in range(4)]
    report = made(tmp_path, rows)
    text = report.read_text()
    report.write_text(text[: text.rindex("<script")])
    page = viewer.open(report, f"#/rollout/{rows[-1].rollout_id}")
    assert "the file was cut off" in page.inner_text("main")


# The keyboard


def test_j_and_k_walk_enter_opens_esc_goes_up(viewer: Viewer, report: Path) -> None:
    page = viewer.open(report)
    for key in ("j", "j", "j", "k"):
        page.keyboard.press(key)
    assert page.evaluate("document.activeElement.dataset.url") == "#/task/inventory-bug"
    with turning(page):
        page.keyboard.press("Enter")
    assert page.inner_text("h1") == "inventory-bug"
    page.keyboard.press("j")
    with turning(page):
        page.keyboard.press("o")
    page.keyboard.press("j")
    page.keyboard.press("j")
    assert page.evaluate("document.activeElement.dataset.step") == "2"
    assert page.evaluate("location.hash").endswith("/2")
    with turning(page):
        page.keyboard.press("Escape")
    assert page.inner_text("h1") == "inventory-bug"
    with turning(page):
        page.keyboard.press("Escape")
    assert page.locator(".matrix").count() == 1


def test_n_and_p_walk_through_the_rollouts_that_the_filter_left(viewer: Viewer, report: Path) -> None:
    page = viewer.open(report, "#/rollouts?is=timeout")
    ids = [
        json.loads(f'"{url}"') for url in page.eval_on_selector_all(ROWS, "rows => rows.map(row => row.dataset.url)")
    ]
    page.keyboard.press("j")
    for key, at in (("Enter", 0), ("n", 1), ("n", 2), ("p", 1)):
        with turning(page):
            page.keyboard.press(key)
        assert page.evaluate("location.hash") == ids[at]
        assert page.locator(".item").count() > 0


def test_slash_searches_and_esc_leaves(viewer: Viewer, report: Path) -> None:
    page = viewer.open(report)
    page.keyboard.press("/")
    page.keyboard.type("kkk jjj n?e")
    assert page.input_value("#search") == "kkk jjj n?e"
    assert "No rollout matches" in page.inner_text("main")
    page.keyboard.press("Escape")
    assert page.input_value("#search") == ""
    assert page.locator(TASK_ROWS).count() == len(TASKS)
    page.keyboard.press("Escape")
    assert page.evaluate("document.activeElement.tagName") == "BODY"


def test_a_search_from_any_page_leads_to_the_list(viewer: Viewer, report: Path) -> None:
    page = viewer.open(report, "#/run")
    page.keyboard.press("/")
    page.keyboard.type("windows")
    with turning(page):
        page.keyboard.press("Enter")
    assert page.inner_text("h1") == "Rollouts"
    assert page.locator(ROWS).count() == 8


def test_question_mark_lists_the_keys(viewer: Viewer, report: Path) -> None:
    page = viewer.open(report)
    page.keyboard.press("?")
    assert page.is_visible("dialog")
    page.keyboard.press("j")
    page.keyboard.press("Escape")
    assert not page.is_visible("dialog")
    assert page.evaluate("location.hash") == ""


def test_e_unfolds_all(viewer: Viewer, report: Path) -> None:
    page = viewer.open(report, f"#/rollout/{WRONG}")
    assert page.locator("[data-fold=open]").count() > 0
    page.keyboard.press("e")
    assert page.locator("[data-fold=open]").count() == 0
    page.keyboard.press("e")
    assert page.locator("[data-fold=open]").count() > 0


# Light and dark


def background(page: Page) -> int:
    """Lightness of the page's background, 0 to 255."""
    color = page.evaluate("getComputedStyle(document.body).backgroundColor")
    return max(int(part) for part in re.findall(r"\d+", color)[:3])


def test_it_is_as_light_or_dark_as_the_system(viewer: Viewer, report: Path) -> None:
    assert background(viewer.open(report, color_scheme="light")) > 200
    assert background(viewer.open(report, color_scheme="dark")) < 50


def test_the_theme_can_be_chosen_and_stays(viewer: Viewer, report: Path) -> None:
    page = viewer.open(report, color_scheme="light")
    page.keyboard.press("t")
    page.click("#theme")
    assert page.inner_text("#theme") == "Dark"
    assert background(page) < 50
    page.reload()
    page.wait_for_selector("html[data-ready]")
    assert background(page) < 50
