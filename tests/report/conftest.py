"""A real browser for the tests of the HTML report: headless Chromium, driven by Playwright."""

from __future__ import annotations

import importlib.util
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

INSTALL = "needs Chromium and Playwright: apt-get install chromium; pip install 'pytest-core-rollouts[dev]'"
# Without a sandbox: tests may run as root. The rest keeps Chromium from calling anybody.
FLAGS = (
    *("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking"),
    *("--disable-component-update", "--disable-sync"),
)


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    program = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if program is None or importlib.util.find_spec("playwright") is None:
        pytest.skip(INSTALL)
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=program, args=list(FLAGS))
        yield chromium
        chromium.close()


# All observers are called once per frame: after this one, lists hold what is near the window, and no more.
NEXT_FRAME = """() => new Promise((done) => {
    const observer = new IntersectionObserver(() => { observer.disconnect(); done(); });
    observer.observe(document.documentElement);
})"""

TURN = """() => {
    const turn = { over: false };
    addEventListener("hashchange", () => { turn.over = true; }, { once: true });
    return turn;
}"""


def wait_until_drawn(page: Page) -> None:
    """What comes later than a page itself is there: the details of a rollout, and the rows near the window.

    Not needed where filters, folds and j and k are followed by a look at a list's first rows: these are drawn at once.
    """
    page.wait_for_selector(".loading", state="detached")
    page.evaluate(NEXT_FRAME)


@contextmanager
def turning(page: Page) -> Iterator[None]:
    """What is done within leads to another address; afterwards the page there is drawn.

    A click or key is over before `hashchange`, on which the report draws: its listener is older, so it runs first.
    """
    turn = page.evaluate_handle(TURN)
    yield
    page.wait_for_function("turn => turn.over", arg=turn)
    wait_until_drawn(page)


class Viewer:
    """Opens reports, and keeps what the browser complained of and everything it asked the network for."""

    def __init__(self, browser: Browser) -> None:
        self._browser = browser
        self._pages: list[Page] = []
        self.complaints: list[str] = []

    def open(self, report: Path, address: str = "", **options: Any) -> Page:
        """A new page that shows the report at `address` (`#/...`), drawn."""
        page = self._browser.new_page(**{"viewport": {"width": 1280, "height": 900}, **options})
        self._pages.append(page)
        page.set_default_timeout(15_000)
        page.on("console", lambda message: self.complaints.append(f"console {message.type}: {message.text}"))
        page.on("pageerror", lambda error: self.complaints.append(f"error: {error}"))
        page.on("request", lambda request: self._requested(request.url, report))
        page.goto(report.as_uri() + address)
        page.wait_for_selector("html[data-ready]")
        wait_until_drawn(page)
        return page

    def _requested(self, url: str, report: Path) -> None:
        if url.split("#")[0] != report.as_uri():
            self.complaints.append(f"requested {url[:200]}")

    def close(self) -> None:
        for page in self._pages:
            page.close()


@pytest.fixture
def viewer(browser: Browser) -> Iterator[Viewer]:
    """The browser must have nothing to complain of, and ask for nothing but the file."""
    one = Viewer(browser)
    yield one
    one.close()
    assert one.complaints == []
