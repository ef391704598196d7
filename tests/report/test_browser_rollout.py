"""The page of one rollout in a real browser: where the answer differs, and how to walk through its trajectory."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pytest_core_rollouts.records.record import RolloutRecord
from pytest_core_rollouts.report.html import write_html
from tests.report.conftest import Viewer, wait_until_drawn
from tests.support.trajectories import agent_message, command, conversation, row, user, write

if TYPE_CHECKING:
    from playwright.sync_api import Page

pytestmark = pytest.mark.slow


def opened(viewer: Viewer, tmp_path: Path, *, address: str = "", **fields: Any) -> Page:
    one = row("sum", 0, 0, fields.pop("result", 0.0), **fields)
    write_html([write(tmp_path / "run.jsonl", [RolloutRecord(**one)])], tmp_path / "report.html")
    return viewer.open(tmp_path / "report.html", f"#/rollout/{one['rollout_id']}{address}")


def texts(page: Page, selector: str) -> list[str]:
    return [" ".join(text.split()) for text in page.locator(selector).all_inner_texts()]


INSTRUCTION = """# Failed logins

The gateway's log is `/workspace/auth.log`. Count the **failed** logins of each
address, and write the three addresses with the most of them, with their counts
in descending order.

- The log has repeated lines: "message repeated 3 times" counts for three of
  them, not for one.
- Short entry.

| address | count |
| ------- | ----- |
| ::1     | 3     |

Roses are red,
violets are blue."""


def test_messages_keep_their_marks_and_are_wrapped_once(viewer: Viewer, tmp_path: Path) -> None:
    page = opened(viewer, tmp_path, items=[user(1, INSTRUCTION)])
    page.click(".item .fold")
    shown = page.locator(".item .page").evaluate("one => one.textContent")
    assert "logins of each address, and write" in shown
    assert "counts in descending order." in shown
    assert "for three of them, not for one.\n- Short entry." in shown
    assert "Roses are red,\nviolets are blue." in shown
    assert shown.split() == INSTRUCTION.split()  # no mark is left out
    assert texts(page, ".prose strong") == ["Failed logins", "failed"]
    assert texts(page, ".prose code") == ["/workspace/auth.log"]
    assert "monospace" in page.eval_on_selector(".md-table", "one => getComputedStyle(one).fontFamily")


def test_find_marks_every_hit_unfolds_and_counts_items(viewer: Viewer, tmp_path: Path) -> None:
    lines = "\n".join(f"line {at} {'needle' if at in (5, 30, 31) else 'hay'}" for at in range(60))
    items = [*conversation("sum"), command(20, "cat straw", lines)]
    page = opened(viewer, tmp_path, items=items)
    assert page.inner_text(".said") == "14 items"
    page.fill("#find", "NEEDLE")
    assert texts(page, "mark.hit") == ["needle"] * 3
    assert page.locator("mark.hit").nth(1).is_visible()
    assert page.inner_text(".said") == "1 of 14 items"
    page.fill("#find", "edit")  # a call and its result are two items
    assert page.inner_text(".said") == "2 of 14 items"
    page.fill("#find", "")
    assert page.locator("mark.hit").count() == 0


def test_of_many_places_that_differ_the_first_are_shown(viewer: Viewer, tmp_path: Path) -> None:
    reasons = [{"path": f"rows[{at}]", "expected": at, "answered": -at} for at in range(33)]
    page = opened(viewer, tmp_path, reasons=reasons)
    assert page.locator(".reasons tbody tr").count() == 9
    page.click("text=25 more")
    assert page.locator(".reasons tbody tr").count() == 33


def test_failed_items_are_marked_in_the_outline_and_keys_lead_to_them(viewer: Viewer, tmp_path: Path) -> None:
    page = opened(viewer, tmp_path)
    step = "document.activeElement.dataset.step"
    assert (page.locator(".outline .tick").count(), page.locator(".outline .tick.bad").count()) == (12, 2)
    assert "2 failed" in page.inner_text(".sticky")
    for key, number in (("]", "6"), ("]", "9"), ("]", "9"), ("[", "6")):
        page.keyboard.press(key)
        wait_until_drawn(page)
        assert page.evaluate(step) == number
    box = page.locator(".outline").bounding_box()
    assert box is not None
    page.mouse.click(box["x"] + box["width"] - 2, box["y"] + 5)
    assert page.evaluate(step) == "13"
    assert page.evaluate("location.hash").endswith("/13")
    assert "/6" in (page.get_attribute("[data-step='6'] a.raw", "href") or "")
    page.evaluate(
        "Object.defineProperty(navigator, 'clipboard', {value: {writeText: async (text) => { window.it = text; }}})"
    )
    page.click("[data-step='3'] .copy")
    page.wait_for_function("window.it")
    assert page.evaluate("window.it") == "ls -la && head -50 auth.log"


def test_time_attempts_and_turns_are_shown(viewer: Viewer, tmp_path: Path) -> None:
    items = [{**agent_message(at, f"said {at}"), "turn_id": f"turn_{1 + at // 2}"} for at in range(4)]
    page = opened(
        viewer,
        tmp_path,
        items=items,
        attempt=2,
        notes=["attempt 1: the sandbox was lost"],
        timings={"prepare": 1, "turn": 3},
    )
    assert texts(page, ".phases li") == ["prepare 1.0 s", "turn 3.0 s"]
    widths = page.eval_on_selector_all(".phases rect", "all => all.map(one => Number(one.getAttribute('width')))")
    assert [round(width) for width in widths] == [25, 75]
    assert texts(page, ".tabs button") == ["Attempt 1", "Attempt 2", "Turn 1", "Turn 2"]
    page.click(".tabs >> text=Turn 2")
    assert texts(page, ".item .number") == ["3", "4"]
    page.click(".tabs >> text=Attempt 1")
    assert "the sandbox was lost" in page.inner_text(".trajectory")


def test_a_timeout_says_its_limit_wherever_it_is_shown(viewer: Viewer, tmp_path: Path) -> None:
    page = opened(viewer, tmp_path, result="timeout")
    assert "over the limit of 900 s" in page.inner_text(".grading")
    page = viewer.open(tmp_path / "report.html", "#/rollouts")
    assert texts(page, ".brief") == ["over the limit of 900 s"]
    assert "over the limit of 900 s" in viewer.open(tmp_path / "report.html").inner_text(".faults")
