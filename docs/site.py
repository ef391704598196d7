"""Hooks of mkdocs: pages of the site that lie outside `docs/`, and `llms.txt`. `mkdocs build` writes the site."""

from __future__ import annotations

import posixpath
import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.nav import Navigation
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]
PAGES = {
    "README.md": "index.md",
    "README.zh.md": "zh.md",
    "SECURITY.md": "security.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
}
"""Pages outside `docs/`, and their names in the site."""

LINK = re.compile(r"(\]\(|(?:src|srcset|href)=\")([^)\s\"#]+)(#[^)\s\"]*)?(?=[)\"])")

_pages: list[Page] = []


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages outside `docs/`, and the examples as files."""
    for source, name in PAGES.items():
        files.append(File.generated(config, name, abs_src_path=str(ROOT / source)))
    for path in sorted((ROOT / "examples").rglob("*")):
        if path.is_file() and "__pycache__" not in path.parts and (path.suffix != ".md" or path.name == "README.md"):
            files.append(File.generated(config, str(path.relative_to(ROOT)), abs_src_path=str(path)))
    return files


def on_nav(nav: Navigation, config: MkDocsConfig, files: Files) -> None:
    """Keep the pages in their order."""
    _pages[:] = nav.pages


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Let links lead to where files are in the site. In the repository, they lead to where files are there."""
    source = Path(str(page.file.abs_src_path)).relative_to(ROOT)
    here = posixpath.dirname(page.file.src_uri)

    def moved(match: re.Match[str]) -> str:
        start, target, anchor = match[1], match[2], match[3] or ""
        if "://" in target:
            return match[0]
        path = posixpath.normpath(posixpath.join(source.parent.as_posix(), target))
        if (ROOT / path).is_dir():
            path = "examples/README.md"
        path = PAGES.get(path, path.removeprefix("docs/"))
        return f"{start}{posixpath.relpath(path, here or '.')}{anchor}"

    return LINK.sub(moved, markdown)


def on_post_build(config: MkDocsConfig) -> None:
    """Write `llms.txt`: each page with its title and its first sentences."""
    lines = [f"# {config.site_name}", "", f"> {config.site_description}", ""]
    lines += [f"- [{page.title}]({page.file.src_uri}): {summary(page)}" for page in _pages]
    (Path(config.site_dir) / "llms.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    for page in _pages:  # the text behind each link
        target = Path(config.site_dir) / page.file.src_uri
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(page.markdown or "", encoding="utf-8")


def summary(page: Page) -> str:
    """Return the first paragraph of a page, or the first point of its first list."""
    paragraphs = re.split(r"\n\s*\n", page.markdown or "")
    found = next((text for text in paragraphs if re.match(r"(- |\d\. )?[A-Z`*\u4e00-\u9fff]", text)), "")
    return " ".join(found.split())
