"""The documentation as a site: it builds without a warning, loads nothing from other hosts, and lists its pages."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("mkdocs", reason="requires mkdocs: pip install -e '.[docs]'")
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return folder


def test_every_page_is_in_the_site_and_links_stay_in_it(site: Path) -> None:
    """mkdocs checks links that end in .md; the examples and the pages outside docs/ are ours."""
    pages = {path.relative_to(site).as_posix() for path in site.rglob("*.html")}
    assert {f"{path.stem}.html" for path in (ROOT / "docs").glob("*.md")} < pages
    assert {"index.html", "zh.html", "security.html", "changelog.html", "examples/index.html"} < pages
    loaded = re.compile(r'(?:src|srcset)="(?:https?:)?//|<link[^>]* rel="stylesheet"[^>]*href="(?:https?:)?//')
    for page in pages - {"404.html"}:  # its links are of the server's root
        text = (site / page).read_text(encoding="utf-8")
        assert not loaded.search(text), page
        links = re.findall(r'(?:href|src|srcset)="([^"#?]+)', text)
        missing = {link for link in links if ":" not in link and not (site / page).parent.joinpath(link).exists()}
        assert not missing, page


def test_llms_txt_lists_every_page_with_a_sentence(site: Path) -> None:
    lines = (site / "llms.txt").read_text(encoding="utf-8").splitlines()
    assert lines[:3] == [
        "# pytest-core-rollouts",
        "",
        "> A pytest plugin where tasks are test cases and agents solve them.",
    ]
    entries = [re.fullmatch(r"- \[.+\]\((\S+\.md)\): \S.+", line) for line in lines[4:]]
    assert all(entries), lines
    assert {path.name for path in (ROOT / "docs").glob("*.md")} < {entry[1] for entry in entries if entry}
    for entry in entries:
        assert entry
        assert (site / entry[1]).read_text(encoding="utf-8")
