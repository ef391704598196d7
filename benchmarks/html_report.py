"""The HTML report of a large run: how long it takes to write, what memory that needs, how soon a browser shows it.

    python benchmarks/html_report.py [--rollouts 5000] [--megabytes 500] [--items-limit N] [--keep FOLDER]

Needs the extras `report` and `dev` (Playwright) and Chromium.
"""

from __future__ import annotations

import argparse
import json
import random
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pytest_core_rollouts.records.record import RolloutRecord
from pytest_core_rollouts.records.rows import count_planned

CHROMIUM = "/usr/bin/chromium"
FLAGS = ("--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking", "--disable-sync")
AGENTS = ("codex", "claude_sdk")
SAMPLES = 8
WORDS = (
    "the",
    "rows",
    "of",
    "total",
    "count",
    "price",
    "region",
    "order",
    "import",
    "print",
    "return",
    "value",
    "test",
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rollouts", type=int, default=5000)
    parser.add_argument("--megabytes", type=float, default=500, help="of Items in all")
    parser.add_argument("--items-limit", type=int, default=None)
    parser.add_argument("--keep", type=Path, default=None, help="folder for the JSONL and the report")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        folder = args.keep or Path(scratch)
        folder.mkdir(parents=True, exist_ok=True)
        records, report = folder / "run.jsonl", folder / "report.html"
        last = make_run(records, args.rollouts, int(args.megabytes * 1e6))
        print(f"records     {records.stat().st_size / 1e6:8.1f} MB, {args.rollouts} rollouts")
        seconds, peak = measure_writing(records, report, args.items_limit)
        print(f"written in  {seconds:8.1f} s, peak memory {peak:.0f} MB")
        print(f"report      {report.stat().st_size / 1e6:8.1f} MB")
        for name, value in measure_browser(report, last).items():
            print(f"{name:28}{value:8.0f} ms")


def make_run(path: Path, rollouts: int, size: int) -> str:
    """Rows of pretended work, with about `size` bytes of Items in all; gives the last one's id."""
    draw = random.Random(1)
    tasks = max(1, rollouts // (len(AGENTS) * SAMPLES))
    names = [f"area-{at % 12:02}/task-{at:04}" for at in range(tasks + 1)]
    work = [(task, agent, sample) for task in names for agent in AGENTS for sample in range(SAMPLES)][:rollouts]
    plan = count_planned((agent, task) for task, agent, _ in work)
    lines = [" ".join(draw.choices(WORDS, k=12)) for _ in range(4000)]
    with path.open("wb") as file:
        for task, agent, sample in work:
            result = draw.choices(("solved", "wrong", "timeout", "error"), (55, 33, 6, 6))[0]
            reward = {"solved": 1.0, "error": None}.get(result, 0.0)
            record = RolloutRecord(
                rollout_id=f"20261129T120000Z-1f0c.{task.replace('/', '-')}.{agent}-default.{sample}",
                task=task,
                harness=agent,
                model="default",
                sample=sample,
                status={"solved": "completed", "wrong": "completed"}.get(result, result),  # type: ignore[arg-type]
                reward=reward,
                duration_s=draw.lognormvariate(4, 0.7),
                usage={"total_tokens": draw.randrange(4000, 400_000)},
                items=make_items(draw, lines, size // rollouts),
                error="no sandbox is free" if result == "error" else None,
                run_id="20261129T120000Z-1f0c",
                group_id=f"{task}.{agent}",
                started_at="2026-11-29T12:00:01+00:00",
                reasons=[{"path": "total", "expected": 324, "answered": draw.randrange(900)}]
                if result == "wrong"
                else (),
                planned=plan[agent, task],
            )
            file.write(record.to_line())
    return record.rollout_id


def make_items(draw: random.Random, lines: list[str], size: int) -> list[dict[str, Any]]:
    """A conversation of commands with output, about `size` bytes long."""
    items: list[dict[str, Any]] = []
    while size > 0:
        output = "\n".join(
            f"{draw.getrandbits(48):012x} {line}" for line in draw.choices(lines, k=draw.randrange(4, 60))
        )
        item = {
            "id": f"item_{draw.getrandbits(64):x}",
            "type": "command_execution",
            "turn_id": "turn_1",
            "status": "completed",
            "command": f"/bin/bash -lc 'sed -n {draw.randrange(999)},+60p {draw.choice(WORDS)}.py'",
            "cwd": "/workspace",
            "duration_ms": draw.randrange(2000),
            "exit_code": 0,
            "output": output,
        }
        items.append(item)
        size -= len(json.dumps(item))
    return items


def measure_writing(records: Path, report: Path, items_limit: int | None) -> tuple[float, float]:
    """Seconds, and the peak memory in MB of its own process."""
    code = (
        "import sys, pathlib; from pytest_core_rollouts.report.html import write_html; "
        "write_html([pathlib.Path(sys.argv[1])], pathlib.Path(sys.argv[2]), items_limit=eval(sys.argv[3]))"
    )
    start = time.perf_counter()
    subprocess.run([sys.executable, "-c", code, str(records), str(report), str(items_limit)], check=True)
    return time.perf_counter() - start, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1000


def measure_browser(report: Path, last: str) -> dict[str, float]:
    """Milliseconds, from the start of loading the file and from each key or click, until it is shown."""
    from playwright.sync_api import Page, sync_playwright

    times = {}

    def timed(name: str, page: Page, act: Callable[[], object], selector: str) -> None:
        start = time.perf_counter()
        act()
        page.wait_for_selector(selector, timeout=60_000)
        page.evaluate("() => new Promise(done => requestAnimationFrame(() => setTimeout(done)))")
        times[name] = (time.perf_counter() - start) * 1000

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=list(FLAGS))
        page = browser.new_page(viewport={"width": 1280, "height": 900})
        address = report.as_uri()
        timed("overview shown", page, lambda: page.goto(address, wait_until="commit"), ".matrix .sq")
        timed("filter by outcome", page, lambda: page.click("#is-timeout"), "#is-timeout[aria-pressed=true]")
        page.click("#is-timeout")
        timed("search", page, lambda: page.fill("#search", "task-0001"), ".matrix tbody:last-child tr:only-child")
        page.fill("#search", "")
        timed("search in reasons", page, lambda: page.fill("#search", "total: 324"), ".matrix .sq.dim")
        page.fill("#search", "")
        timed("cause of failures", page, lambda: page.click(".faults a >> nth=0"), "#is-why")
        timed("list of all rollouts", page, lambda: page.evaluate("location.hash = '#/rollouts'"), ".rollouts .badge")
        start = time.perf_counter()
        page.wait_for_load_state("load", timeout=120_000)
        times["... until the file is read"] = (time.perf_counter() - start) * 1000
        timed("open a rollout", page, lambda: page.click(".rollouts tbody tr:nth-child(3) .num a"), ".item")
        # The page draws after the key is over: without a mark, the items that it leaves would pass for the next ones.
        page.eval_on_selector(".trajectory", "(left) => { left.dataset.left = ''; }")
        timed("next rollout", page, lambda: page.keyboard.press("n"), ".trajectory:not([data-left]) .item")
        page.close()
        page = browser.new_page(viewport={"width": 1280, "height": 900})
        link = f"{address}#/rollout/{last}"
        timed("deep link to the last", page, lambda: page.goto(link, wait_until="commit"), ".item")
        browser.close()
    return times


if __name__ == "__main__":
    main()
