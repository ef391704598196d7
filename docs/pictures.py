"""Pictures of the HTML report: every page at three widths, in light and dark, and those that the README shows.

    python docs/pictures.py FOLDER [--readme] [--only NAME]

Needs the extras `report` and `dev` (Playwright) and Chromium. The rows are those of tests/support.
"""

from __future__ import annotations

import argparse
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent))

from pytest_core_rollouts.records.rows import read_records  # noqa: E402
from pytest_core_rollouts.report.html import write_html  # noqa: E402
from pytest_core_rollouts.results.comparison import load_baseline  # noqa: E402
from pytest_core_rollouts.results.gate import judge  # noqa: E402
from pytest_core_rollouts.results.gate_forms import parse_gate  # noqa: E402
from pytest_core_rollouts.results.summary import summarize  # noqa: E402
from tests.report.conftest import FLAGS  # noqa: E402
from tests.support.trajectories import many_agents, many_outcomes, sixteen_tasks, write  # noqa: E402

if TYPE_CHECKING:
    from playwright.sync_api import Browser

WIDTHS = (1440, 1000, 390)
SCHEMES = ("light", "dark")
RUN = "20261129T120000Z-1f0c"
PAGES = {
    "two": {
        "overview": "#/",
        "grouped": "#/?group=folder&is=unsolved",
        "rollouts": "#/rollouts",
        "task": "#/task/sql%2Fjoins",
        "baseline": "#/baseline",
        "run": "#/run",
    },
    "outcomes": {
        "overview": "#/",
        "unsolved": f"#/rollout/{RUN}.sales-by-region.claude_sdk-default.1",
        "error": f"#/rollout/{RUN}.inventory-bug.codex-gpt-x.0",
        "timeout": f"#/rollout/{RUN}.inventory-bug.claude_sdk-default.0",
    },
    "six": {"overview": "#/"},
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--readme", action="store_true", help="also make docs/report*.png anew")
    parser.add_argument("--only", default="", help="only pictures whose name contains this")
    args = parser.parse_args()
    args.folder.mkdir(parents=True, exist_ok=True)
    from playwright.sync_api import sync_playwright

    reports = dict(make_reports(args.folder))
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=list(FLAGS))
        for report, pages in PAGES.items():
            for name, address in pages.items():
                for width in WIDTHS:
                    for scheme in SCHEMES:
                        out = args.folder / f"{report}-{name}-{width}-{scheme}.png"
                        if args.only in out.name:
                            picture(browser, reports[report], address, out, width, scheme)
        if args.readme:
            for scheme, end in (("light", ""), ("dark", "-dark")):
                picture(browser, reports["two"], "#/", HERE / f"report{end}.png", 1280, scheme, height=1336)
                rollout = PAGES["outcomes"]["unsolved"]
                picture(browser, reports["outcomes"], rollout, HERE / f"rollout{end}.png", 1280, scheme, height=900)
        browser.close()


def make_reports(folder: Path) -> Iterator[tuple[str, Path]]:
    """Write the reports: two agents with gates and a baseline, every outcome, and six agents."""
    runs = {"two": sixteen_tasks(), "outcomes": many_outcomes(), "six": many_agents()}
    before = {"two": sixteen_tasks(seed=5), "outcomes": many_outcomes(seed=9)}
    for name, records in runs.items():
        path, report = folder / f"{name}.jsonl", folder / f"{name}.html"
        path.unlink(missing_ok=True)
        write(path, records)
        baseline = None
        if name in before:
            earlier = folder / f"{name}-main.jsonl"
            earlier.unlink(missing_ok=True)
            baseline = load_baseline(write(earlier, before[name]))
        gates = [parse_gate(text) for text in ("mean>=0.6", "baseline")] if name == "two" else []
        judgments = judge(gates, summarize(read_records(path)), baseline)
        write_html([path], report, baseline=baseline, judgments=judgments, name="tasks")
        yield name, report


def picture(
    browser: Browser, report: Path, address: str, out: Path, width: int, scheme: str, height: int | None = None
) -> None:
    page = browser.new_page(viewport={"width": width, "height": height or 900}, color_scheme=scheme)
    page.set_default_timeout(15_000)
    page.on("pageerror", lambda error: print(f"{out.name}: {error}", file=sys.stderr))
    page.goto(report.as_uri() + address)
    page.wait_for_selector("html[data-ready]")
    page.wait_for_selector(".loading", state="detached")
    if height is None:  # lists only hold what is near the window
        tall = page.evaluate("document.documentElement.scrollHeight")
        page.set_viewport_size({"width": width, "height": min(tall + 400, 6000)})
    page.wait_for_timeout(150)
    shown = height or min(page.evaluate("document.documentElement.scrollHeight"), 3000)
    page.screenshot(path=out, clip={"x": 0, "y": 0, "width": width, "height": shown})
    page.close()


if __name__ == "__main__":
    main()
