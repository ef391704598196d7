"""The HTML report as a file: what is in it, and that nothing in it but its own script can run."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import re
import sys
import tracemalloc
import zlib
from collections.abc import Mapping
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from pytest_core_rollouts.records.record import RecordsError, RolloutRecord
from pytest_core_rollouts.records.rows import append
from pytest_core_rollouts.report import html_data
from pytest_core_rollouts.report.html import HtmlReportError, write_html
from pytest_core_rollouts.report.html_data import outcome
from pytest_core_rollouts.results.comparison import load_baseline
from tests.support.rows import run
from tests.support.tables import rows
from tests.support.trajectories import HOSTILE, TASKS, agent_message, conversation, many_outcomes, row, write


class Elements(HTMLParser):
    """Every element with its attributes, and the text of those that hold any."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.found: list[tuple[str, dict[str, str | None], str]] = []
        self._inside = False
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs), ""))
        self._inside = True

    def handle_endtag(self, tag: str) -> None:
        self._inside = False

    def handle_data(self, data: str) -> None:
        if self._inside:
            tag, attrs, text = self.found[-1]
            self.found[-1] = tag, attrs, text + data

    def of(self, tag: str) -> list[tuple[dict[str, str | None], str]]:
        return [(attrs, text) for name, attrs, text in self.found if name == tag]


def unpack(text: str) -> Any:
    return json.loads(zlib.decompress(base64.b64decode(text, validate=True)))


class Report:
    """A report read back without a browser."""

    def __init__(self, path: Path) -> None:
        self.text = path.read_text(encoding="utf-8")
        self.elements = Elements(self.text)
        scripts = self.elements.of("script")
        self.index: dict[str, Any] = next(unpack(text) for attrs, text in scripts if attrs.get("id") == "index")
        self.pieces = [
            (int(attrs["data-first"] or ""), unpack(text)) for attrs, text in scripts if "data-first" in attrs
        ]
        self.details: list[dict[str, Any]] = [detail for _, piece in self.pieces for detail in piece]

    def detail(self, rollout_id: str) -> dict[str, Any]:
        ids: list[str] = self.index["rollouts"]["id"]
        return self.details[ids.index(rollout_id)]


def report_of(tmp_path: Path, *rows: Mapping[str, Any], **options: Any) -> Report:
    records = write(tmp_path / "run.jsonl", [RolloutRecord(**fields) for fields in rows])
    write_html([records], tmp_path / "out" / "report.html", **options)
    return Report(tmp_path / "out" / "report.html")


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Report:
    folder = tmp_path_factory.mktemp("report")
    write(folder / "run.jsonl", many_outcomes())
    write(folder / "main.jsonl", many_outcomes(seed=9))
    write_html([folder / "run.jsonl"], folder / "report.html", baseline=load_baseline(folder / "main.jsonl"))
    return Report(folder / "report.html")


# One file, nothing from elsewhere, nothing that runs but its own script


def test_the_policy_allows_the_own_script_and_style_by_their_hash_and_nothing_else(report: Report) -> None:
    policy = next(
        attrs["content"] or ""
        for attrs, _ in report.elements.of("meta")
        if attrs.get("http-equiv") == "Content-Security-Policy"
    )
    rules = dict(rule.strip().split(" ", 1) for rule in policy.split(";"))
    [script] = [text for attrs, text in report.elements.of("script") if not attrs]
    [(_, style)] = report.elements.of("style")
    assert rules == {
        "default-src": "'none'",
        "script-src": _hash(script),
        "style-src": _hash(style),
        "base-uri": "'none'",
        "form-action": "'none'",
        "require-trusted-types-for": "'script'",
        "trusted-types": "'none'",
    }


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def test_it_refers_to_nothing_outside_of_itself(report: Report) -> None:
    for tag, attrs, _ in report.elements.found:
        assert tag not in {"link", "img", "iframe", "object", "embed", "base", "form"}
        assert not any(name.startswith("on") or name in {"src", "style"} for name in attrs), (tag, attrs)
        assert (attrs.get("href") or "#").startswith("#")
    [(_, style)] = report.elements.of("style")
    assert "url(" not in style
    assert "@import" not in style


def test_its_script_makes_no_markup_of_text(report: Report) -> None:
    [script] = [text for attrs, text in report.elements.of("script") if not attrs]
    for way in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "new Function", "DOMParser"):
        assert way not in script


@pytest.mark.parametrize("text", HOSTILE, ids=range(len(HOSTILE)))
def test_whatever_an_agent_wrote_changes_nothing_in_the_markup(tmp_path: Path, report: Report, text: str) -> None:
    made = report_of(
        tmp_path,
        row(
            f"task {text}", 0, 0, 0.0,
            rollout_id=f"id {text}", run_id=f"run {text}", harness=f"h {text}", labels={text: text},
            items=[agent_message(1, text)], error=text, answer={text: text}, answer_text=text, notes=[text],
            reasons=[{"path": text, "expected": text, "answered": text}],
        ),
    )  # fmt: skip
    shape = [(tag, sorted(attrs)) for tag, attrs, _ in made.elements.found if not {"data-first"} & attrs.keys()]
    plain = [(tag, sorted(attrs)) for tag, attrs, _ in report.elements.found if not {"data-first"} & attrs.keys()]
    assert shape == plain
    kept = text.replace("\ud835", "\\ud835").replace("\udc00", "\\udc00")  # as the JSONL keeps them
    assert made.details[0]["items"][0]["content"][0]["text"] == kept
    assert made.index["tasks"] == [f"task {kept}"]


# What it says


def test_the_index_has_every_rollout_with_what_lists_show(report: Report) -> None:
    rollouts, records = report.index["rollouts"], many_outcomes()
    assert rollouts["id"] == [record.rollout_id for record in records]
    assert rollouts["reward"] == [record.reward for record in records]
    assert [report.index["tasks"][at] for at in rollouts["task"]] == [record.task for record in records]
    assert [report.index["agents"][at]["harness"] for at in rollouts["agent"]] == [one.harness for one in records]
    assert [report.index["outcomes"][at] for at in rollouts["outcome"]] == [outcome(record) for record in records]
    assert rollouts["items"] == [len(record.items or ()) for record in records]
    assert {len(column) for name, column in rollouts.items() if name != "xfail"} == {len(records)}


def test_figures_are_those_of_every_other_report(tmp_path: Path) -> None:
    # One task, 1 of 4 solved: pass@2 = 1 - C(3,2)/C(4,2) = 1/2, pass^2 = 0; another is solved throughout.
    rows = [row("half", at, 0, 1.0 if at == 0 else 0.0) for at in range(4)] + [
        row("whole", at, 0, 1.0) for at in range(4)
    ]
    [agent] = report_of(tmp_path, *rows).index["agents"]
    assert [(point["k"], point["text"]) for point in agent["passAt"]] == [
        (1, "0.625"),
        (2, "0.750"),
        (3, "0.875"),
        (4, "1.000"),
    ]
    assert [point["text"] for point in agent["passHat"]] == ["0.625", "0.500", "0.500", "0.500"]
    assert agent["meanReward"]["text"] == "0.625"
    low, high = agent["meanReward"]["interval"]
    assert low < 0.625 < high
    groups = agent["groups"]
    assert (groups["signal"], groups["all_one"], groups["all_zero"], groups["complete"]) == (1, 1, 0, 2)


def test_metrics_are_in_the_figures_of_agents_and_in_each_rollout(tmp_path: Path) -> None:
    rows = [*run({"a": [1.0]}, metrics={"style": 0.5}), *run({"b": [0.0]}, metrics={"style": 0.25, "lines": 7})]
    records = write(tmp_path / "run.jsonl", rows)
    write_html([records], tmp_path / "report.html")
    report = Report(tmp_path / "report.html")
    assert [agent["metrics"] for agent in report.index["agents"]] == [[["lines", "7", 1], ["style", "0.375", 2]]]
    assert [detail["metrics"] for detail in report.details] == [{"style": 0.5}, {"style": 0.25, "lines": 7}]


def test_what_never_ran_is_counted_by_task(report: Report) -> None:
    at = TASKS.index("orders-json")
    assert [agent["missing"] for agent in report.index["agents"]] == [{str(at): 1}, {str(at): 1}]
    assert [agent["withoutRow"] for agent in report.index["agents"]] == [1, 1]


def test_what_a_stop_interrupted_has_a_row_and_counts_as_not_run(tmp_path: Path) -> None:
    stopped, others = "the run was interrupted", "the Turn was cancelled by someone else"
    rows = [
        row("sum", 0, 0, 1.0),
        *(row("sum", at, 0, "cancelled", error=error) for at, error in ((1, stopped), (2, others))),
    ]
    index = report_of(tmp_path, *rows).index
    assert [index["outcomes"][at] for at in index["rollouts"]["outcome"]] == ["solved", "not run", "cancelled"]
    [agent] = index["agents"]
    assert (agent["withoutRow"], agent["rows"]) == (agent["planned"] - 3, 2)
    assert [cause["count"] for cause in index["causes"]] == [1]


def test_an_agent_without_a_complete_round_keeps_its_place(tmp_path: Path) -> None:
    plan = {"run": 8, "agent": 4, "group": 2, "tasks": 2}
    fields = {"settings": {"stop": "certain"}, "planned": plan}
    rows = [row("a", 0, 0, 1.0, **fields), row("b", 0, 0, 1.0, **fields), row("a", 0, 1, 1.0, **fields)]
    index = report_of(tmp_path, *rows).index
    assert [(agent["harness"], agent["rounds"]) for agent in index["agents"]] == [
        ("claude_sdk", [0, 2]),
        ("codex", [1, 2]),
    ]
    assert index["rollouts"]["agent"] == [1, 1, 0]


def test_details_are_all_of_a_row_that_a_reader_needs(tmp_path: Path) -> None:
    fields = row("sum", 0, 0, 0.0, notes=["a note"], request_ids={"create": "req_1"})
    detail = report_of(tmp_path, fields).details[0]
    assert detail["items"] == fields["items"]
    assert detail["session"] == fields["session_id"]
    assert detail["notes"] == ["a note"]
    assert detail["requests"] == {"create": "req_1"}
    assert detail["settings"] == fields["settings"]
    assert detail["gap"] is None
    assert [reason["path"] for reason in detail["reasons"]] == ["total", 'attempts["2001:db8::1f"]', "names"]


def test_numbers_beyond_a_browsers_are_kept_as_they_were_written(tmp_path: Path) -> None:
    reasons = [{"path": "n", "expected": 2**63, "answered": 2**63 + 1}]
    detail = report_of(tmp_path, row("sum", 0, 0, 0.0, reasons=reasons, answer={"n": 2**63 + 1})).details[0]
    assert detail["reasons"] == [{"path": "n", "expected": "9223372036854775808", "answered": "9223372036854775809"}]
    assert "9223372036854775809" in detail["answer"]


def test_tokens_are_counted_as_in_every_other_report(tmp_path: Path) -> None:
    most = 2**53 - 1
    rows = [row("a", 0, at, 1.0, usage={"total_tokens": count}) for at, count in enumerate((most, most + 1))]
    assert report_of(tmp_path, *rows).index["rollouts"]["tokens"] == [most, None]


def test_only_the_row_that_counts_is_shown(tmp_path: Path) -> None:
    failed = row("sum", 0, 0, "error", attempt=1)
    again = row("sum", 0, 0, 1.0, attempt=2, items=[agent_message(1, "second")])
    made = report_of(tmp_path, failed, row("other", 0, 0, 1.0), again)
    assert sorted(made.index["tasks"]) == ["other", "sum"]
    assert len(made.details) == 2
    detail = made.detail(again["rollout_id"])
    assert (detail["attempt"], detail["items"]) == (2, again["items"])


def test_several_files_are_one_report(tmp_path: Path) -> None:
    one = write(tmp_path / "a.jsonl", [RolloutRecord(**row("a", 0, 0, 1.0))])
    two = write(tmp_path / "b.jsonl", [RolloutRecord(**row("b", 0, 1, 0.0, run_id="other"))])
    write_html([one, two], tmp_path / "r.html")
    made = Report(tmp_path / "r.html")
    assert made.index["files"] == ["a.jsonl", "b.jsonl"]
    assert sorted(run["id"] for run in made.index["runs"]) == ["20261129T120000Z-1f0c", "other"]
    assert [len(detail["items"]) for detail in made.details] == [13, 13]


def test_one_run_of_a_file_of_several(tmp_path: Path) -> None:
    made = report_of(tmp_path, row("a", 0, 0, 1.0, rollout_id="x", run_id="other"), row("b", 0, 0, 1.0), run_id="other")
    assert (made.index["tasks"], made.index["rollouts"]["id"], len(made.details)) == (["a"], ["x"], 1)


def test_the_baseline_is_compared_by_task(tmp_path: Path) -> None:
    now = [row("same", at, 0, 1.0) for at in range(2)] + [row("worse", at, 0, 0.0) for at in range(2)]
    now += [row("rewritten", 0, 0, 1.0), row("new", 0, 0, 1.0)]
    then = [row("same", at, 0, 1.0) for at in range(2)] + [row("worse", at, 0, 1.0) for at in range(2)]
    then += [row("rewritten", 0, 0, 0.0, input_digest="before")]
    baseline = write(tmp_path / "main.jsonl", [RolloutRecord(**fields) for fields in then])
    made = report_of(tmp_path, *now, baseline=load_baseline(baseline)).index
    [agent] = made["baseline"]["agents"]
    assert (agent["before"], agent["after"], agent["change"]["text"], agent["tasks"]) == ("1.000", "0.500", "-0.500", 2)
    assert [(made["tasks"][one["task"]], one["before"], one["after"]) for one in agent["rows"]] == [
        ("worse", "2/2", "0/2"),
        ("same", "2/2", "2/2"),
    ]
    assert agent["rows"][0]["squares"] == [["solved", 1.0]] * 2
    assert ["New", ["new"]] in agent["leftOut"]
    assert ["Task or grading changed, so not compared", ["rewritten"]] in agent["leftOut"]


def test_expected_values_can_be_hidden(tmp_path: Path) -> None:
    secret = [{"path": "total", "expected": "the-right-answer", "answered": 342}]
    made = report_of(tmp_path, row("sum", 0, 0, 0.0, reasons=secret), hide_expected=True)
    assert made.details[0]["reasons"] == [{"path": "total", "answered": "342"}]
    assert "the-right-answer" not in json.dumps([made.index, made.details])


def test_values_hidden_when_the_run_was_made_stay_hidden(tmp_path: Path) -> None:
    made = report_of(tmp_path, row("sum", 0, 0, 0.0, reasons=[{"path": "total", "answered": 342}]))
    assert made.details[0]["reasons"] == [{"path": "total", "answered": "342"}]


@rows(
    ("status", "reward", "expected"),
    [
        ("completed", 1.0, "solved"),
        ("completed", 0.5, "partial"),
        ("completed", 0.0, "unsolved"),
        ("timeout", 0.0, "timeout"),
        ("failed", 0.0, "failed"),
        ("failed", None, "error"),
        ("error", None, "error"),
        ("cancelled", None, "cancelled"),
    ],
)
def test_outcomes(status: str, reward: float | None, expected: str) -> None:
    record = RolloutRecord(**row("sum", 0, 0, 1.0) | {"status": status, "reward": reward})
    assert outcome(record) == expected


# Bounds


def test_items_are_kept_from_both_ends(tmp_path: Path) -> None:
    items = [agent_message(at, str(at)) for at in range(20)]
    detail = report_of(tmp_path, row("sum", 0, 0, 1.0, items=items), items_limit=5).details[0]
    assert [one["id"] for one in detail["items"]] == ["item_0", "item_1", "item_2", "item_18", "item_19"]
    assert detail["gap"] == {"after": 3, "count": 15}


@rows("limit", [0, 1])
def test_hardly_any_items_may_be_kept(tmp_path: Path, limit: int) -> None:
    made = report_of(tmp_path, row("sum", 0, 0, 1.0), items_limit=limit)
    assert len(made.details[0]["items"]) == limit
    assert made.details[0]["gap"] == {"after": limit, "count": 13 - limit}
    assert made.index["rollouts"]["items"] == [13]


def test_an_item_of_many_megabytes_is_cut_within_its_text(tmp_path: Path) -> None:
    text = "start" + "x" * (5 << 20) + "end"
    [kept] = report_of(tmp_path, row("sum", 0, 0, 1.0, items=[agent_message(1, text)])).details[0]["items"]
    shown = kept["content"][0]["text"]
    assert len(shown) < 1 << 20
    assert shown.startswith("startxxx")
    assert shown.endswith("xxxend")
    assert re.search(r"\[[\d,]+ characters left out of the report\]", shown)


def test_a_rollout_of_too_much_loses_its_middle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(html_data, "ROLLOUT_LIMIT", 3000)
    items = [agent_message(at, "y" * 500) for at in range(20)]
    detail = report_of(tmp_path, row("sum", 0, 0, 1.0, items=items)).details[0]
    assert detail["gap"]["count"] + len(detail["items"]) == 20
    assert 2 <= len(detail["items"]) < 6
    assert (detail["items"][0]["id"], detail["items"][-1]["id"]) == ("item_0", "item_19")


def test_details_come_in_pieces_of_bounded_size(tmp_path: Path) -> None:
    rows = [row("sum", at, 0, 1.0, items=[agent_message(1, "z" * 300_000)]) for at in range(10)]
    made = report_of(tmp_path, *rows)
    assert [(first, len(piece)) for first, piece in made.pieces] == [(0, 3), (3, 3), (6, 3), (9, 1)]


def test_memory_does_not_grow_with_the_trajectories(tmp_path: Path) -> None:
    records = tmp_path / "run.jsonl"
    for at in range(40):
        append(records, RolloutRecord(**row("sum", at, 0, 1.0, items=[agent_message(1, f"{at} " * 200_000)])))
    assert records.stat().st_size > 20e6
    tracemalloc.start()
    write_html([records], tmp_path / "r.html")
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 12e6


def test_the_same_records_give_the_same_bytes(tmp_path: Path) -> None:
    records = write(tmp_path / "run.jsonl", many_outcomes())
    for name in ("a.html", "b.html"):
        write_html([records], tmp_path / name)
    assert (tmp_path / "a.html").read_bytes() == (tmp_path / "b.html").read_bytes()


# Writing


def test_it_says_its_size(tmp_path: Path) -> None:
    records = write(tmp_path / "run.jsonl", many_outcomes())
    made = write_html([records], tmp_path / "r.html")
    assert made.size == (tmp_path / "r.html").stat().st_size
    assert (made.rollouts, made.pieces) == (54, 1)
    assert re.fullmatch(rf"{re.escape(str(tmp_path))}/r\.html \(\d+\.\d kB, 54 rollouts\)", str(made))


def test_no_rows_are_a_report_too(tmp_path: Path) -> None:
    (tmp_path / "run.jsonl").touch()
    write_html([tmp_path / "run.jsonl"], tmp_path / "r.html")
    assert Report(tmp_path / "r.html").index["rollouts"]["id"] == []


def test_records_that_cannot_be_read_leave_the_last_report(tmp_path: Path) -> None:
    (tmp_path / "r.html").write_text("before")
    good = RolloutRecord(**row("sum", 0, 0, 1.0)).to_line()
    (tmp_path / "run.jsonl").write_bytes(good + b"{broken}\n")
    with pytest.raises(RecordsError, match=r"run\.jsonl:2: "):
        write_html([tmp_path / "run.jsonl"], tmp_path / "r.html")
    assert (tmp_path / "r.html").read_text() == "before"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["r.html", "run.jsonl"]


def test_a_report_that_cannot_be_written_says_so(tmp_path: Path) -> None:
    records = write(tmp_path / "run.jsonl", many_outcomes())
    (tmp_path / "folder").mkdir()
    with pytest.raises(HtmlReportError, match="folder: is a folder; add a file name"):
        write_html([records], tmp_path / "folder")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["folder", "run.jsonl"]


def test_a_report_takes_the_place_of_no_device_and_no_link(tmp_path: Path) -> None:
    records = write(tmp_path / "run.jsonl", many_outcomes())
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(HtmlReportError, match="pipe: is not a regular file; choose another path"):
        write_html([records], tmp_path / "pipe")
    assert (tmp_path / "pipe").is_fifo()
    (tmp_path / "latest.html").symlink_to("kept.html")
    for _ in range(2):
        assert write_html([records], tmp_path / "latest.html").path == tmp_path / "latest.html"
    assert (tmp_path / "latest.html").is_symlink()
    assert (tmp_path / "kept.html").stat().st_size > 1000
    assert sorted(path.name for path in tmp_path.iterdir()) == ["kept.html", "latest.html", "pipe", "run.jsonl"]


def test_a_report_that_has_no_place_says_so(tmp_path: Path) -> None:
    records = write(tmp_path / "run.jsonl", many_outcomes())
    with pytest.raises(HtmlReportError, match=r"run\.jsonl/r\.html: can.t write the HTML report: "):
        write_html([records], records / "r.html")


def test_without_jinja_it_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jinja2", None)
    with pytest.raises(HtmlReportError, match=r"pip install 'pytest-core-rollouts\[report\]'"):
        write_html([tmp_path / "run.jsonl"], tmp_path / "r.html")


def test_trajectories_of_a_conversation_survive(tmp_path: Path) -> None:
    made = report_of(tmp_path, row("sum", 0, 0, 1.0, items=conversation("sum", 7)))
    assert made.details[0]["items"] == conversation("sum", 7)
