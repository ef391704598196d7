"""The HTML report: one file that works from a disk, an artifact store or a mail, without network or server.

Nothing that an agent, a task or a server wrote becomes markup. It is deflated JSON in base64, which the page's script
unpacks and shows as text. The page's policy only allows that script and its style sheet, by their hashes, and forbids
(with Trusted Types) every way to turn text into markup.

The file is written as a stream: the page, the index, the script, then the details in pieces of about a megabyte, each
unpacked only when one of its rollouts is opened. A browser shows the overview as soon as it has read the first part.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import zlib
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from pytest_core_rollouts.records.kept_files import whole_file
from pytest_core_rollouts.report.html_data import details, index, scan
from pytest_core_rollouts.results.comparison import Baseline
from pytest_core_rollouts.results.gate import Judgment
from pytest_core_rollouts.results.prices import Prices

PIECE = 1 << 20
"""Characters of JSON that are packed together; a longer rollout is a separate piece."""

_SCRIPTS = (
    *("dom", "data", "text", "prose", "diff", "items", "find", "charts", "lists", "outcomes", "figures", "verdicts"),
    *("overview", "trajectory", "rollout", "pages", "baseline", "app"),
)
_LEVEL = 6


class HtmlReportError(Exception):
    """The report can't be written. `str()` says why and what to do."""


@dataclass(frozen=True)
class HtmlReport:
    """A written report: its path, its size in bytes, and the number of rollouts and pieces in it."""

    path: Path
    size: int
    rollouts: int
    pieces: int

    @property
    def extent(self) -> str:
        """Size and content before it is opened or sent, such as `(12.3 MB, 5000 rollouts)`."""
        return f"({_size(self.size)}, {self.rollouts} rollout{'' if self.rollouts == 1 else 's'})"

    def __str__(self) -> str:
        return f"{self.path} {self.extent}"


def write_html(
    records_paths: Sequence[Path],
    out: Path,
    *,
    items_limit: int | None = None,
    baseline: Baseline | None = None,
    run_id: str | None = None,
    hide_expected: bool = False,
    judgments: Sequence[Judgment] = (),
    prices: Prices | None = None,
    name: str | None = None,
) -> HtmlReport:
    """Write the report of all rows of `records_paths`, in their order, to `out`, and create missing folders.

    `items_limit` keeps that many Items of each rollout, from both ends. The run is compared with `baseline`. `run_id`
    leaves out the rows of other runs, `hide_expected` leaves out expected values. `judgments` are shown first. With
    `prices` it says what the run cost. `name` is the title of a run without labels. The same files give the same bytes.

    Raises RecordsError for a file that can't be read, and HtmlReportError if the report can't be written; `out` is then
    unchanged.
    """
    render = _template()
    if out.is_dir():
        raise HtmlReportError(f"{out}: is a folder; add a file name")
    if out.exists() and not out.is_file():  # the report would replace a device or a pipe
        raise HtmlReportError(f"{out}: is not a regular file; choose another path")
    found = scan(records_paths, run_id, hide_expected=hide_expected)
    data = index(found, [path.name for path in records_paths], baseline, judgments, prices)
    pieces = _Pieces(details(records_paths, found, items_limit=items_limit, hide_expected=hide_expected))
    try:
        with whole_file(out.resolve()) as file:  # the target of a link, not the link
            for text in render(
                _title(data, name), _pack([json.dumps(data, separators=(",", ":"), allow_nan=False)]), pieces
            ):
                file.write(text.encode("utf-8"))
    except OSError as error:
        raise HtmlReportError(f"{out.resolve()}: can't write the HTML report: {error.strerror or error}") from error
    return HtmlReport(out, out.stat().st_size, len(found.rows), pieces.count)


def _title(data: Mapping[str, Any], name: str | None) -> str:
    """Return what tells this report from others in a browser's tabs: the labels, else `name`, else the run."""
    runs = data["runs"]
    labels = runs[0]["labels"] if runs and all(run["labels"] == runs[0]["labels"] for run in runs) else {}
    if labels or name:
        return ", ".join(f"{key}={text}" for key, text in labels.items()) or str(name)
    return f"Rollouts {runs[0]['id']}" if len(runs) == 1 else f"Rollouts of {len(runs)} runs"


# Pieces


@dataclass
class _Piece:
    first: int
    count: int
    data: str


class _Pieces:
    """The details in pieces, each made shortly before it is needed. Can be iterated once.

    Packing is most of the work. Threads do it a few pieces ahead (zlib releases the GIL).
    """

    def __init__(self, details: Iterable[str]) -> None:
        self._details = details
        self.count = 0

    def __iter__(self) -> Iterator[_Piece]:
        threads = min(4, os.cpu_count() or 1)
        ahead: deque[tuple[int, int, Future[str]]] = deque()
        with ThreadPoolExecutor(threads) as pool:
            for first, texts in self._batches():
                ahead.append((first, len(texts), pool.submit(_pack, _array(texts))))
                if len(ahead) > threads:
                    yield self._piece(*ahead.popleft())
            while ahead:
                yield self._piece(*ahead.popleft())

    def _batches(self) -> Iterator[tuple[int, Sequence[str]]]:
        """Yield the texts of rows that are packed together, with the number of the first."""
        first, size = 0, 0
        texts: list[str] = []
        for text in self._details:
            if texts and size + len(text) > PIECE:
                yield first, texts
                first, size, texts = first + len(texts), 0, []
            texts.append(text)
            size += len(text)
        if texts:
            yield first, texts

    def _piece(self, first: int, count: int, packed: Future[str]) -> _Piece:
        self.count += 1
        return _Piece(first, count, packed.result())


def _array(texts: Iterable[str]) -> Sequence[str]:
    """Return the parts of a JSON array of JSON texts."""
    parts = [part for text in texts for part in (",", text)]
    return ["[", *parts[1:], "]"]


def _pack(texts: Iterable[str]) -> str:
    """Return ASCII texts, deflated as one (zlib, RFC 1950), in base64, which is safe in a script element."""
    deflate = zlib.compressobj(_LEVEL)
    packed = [deflate.compress(text.encode("ascii")) for text in texts]
    return base64.b64encode(b"".join([*packed, deflate.flush()])).decode("ascii")


# The page


def require_jinja() -> None:
    """Raise HtmlReportError if Jinja2 is missing, so that no run is paid for in vain."""
    try:
        import jinja2  # noqa: F401
    except ImportError:
        raise HtmlReportError(
            "the HTML report needs Jinja2: python -m pip install 'pytest-core-rollouts[report]'"
        ) from None


def _template() -> Any:
    """Return a function of title, index and pieces that yields the page's text in parts."""
    require_jinja()
    import jinja2

    script = "\n".join(["(() => {", '"use strict";', *(_file(f"{name}.js") for name in _SCRIPTS), "})();"])
    style = _file("report.css")
    environment = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True)
    template = environment.from_string(_file("report.html"))

    def render(title: str, index: str, pieces: Iterable[_Piece]) -> Iterator[str]:
        return template.generate(
            title=title,
            policy=f"default-src 'none'; script-src {_hash(script)}; style-src {_hash(style)}; base-uri 'none'; "
            "form-action 'none'; require-trusted-types-for 'script'; trusted-types 'none'",
            style=style,
            script=script,
            index=index,
            pieces=pieces,
        )

    return render


def _file(name: str) -> str:
    return (resources.files(__package__) / "templates" / name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def _size(count: int) -> str:
    for unit, size in (("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if count >= size:
            return f"{count / size:.1f} {unit}"
    return f"{count} bytes"
