"""FAILED says what differs, ERROR what broke and where to look it up; no answer can break a run or a terminal."""

from __future__ import annotations

import json
import re

import pytest

from tests.integration.conftest import WRONG, Project, outcomes, text_of
from tests.support.fake_core import FakeCore, Fault, Script

EXPECTED = {"north": 10, "rows": [1, 2, 3], "name": "canary-5c1d", "gone": True}
ANSWER = {"north": 11, "rows": [1, 5], "name": "canary-5c1d", "extra": 0}


def wrong(project: Project, core: FakeCore, *args: str, answer: bytes = json.dumps(ANSWER).encode()) -> str:
    project.task("sum", expected=EXPECTED)
    core.script = lambda body: Script(answer=answer)
    result = project.run("tasks", *args)
    assert outcomes(result) == {"failed": 1}
    assert result.ret == 1
    return text_of(result)


def test_a_failure_shows_each_key_that_differs(project: Project, core: FakeCore) -> None:
    text = wrong(project, core, "-v")
    for lines in (
        "north:\n    expected 10\n    answered 11\n",
        "rows[1]:\n    expected 2\n    answered 5\n",
        "rows[2]:\n    expected 3\n    answered (missing)\n",
        "gone:\n    expected true\n    answered (missing)\n",
    ):
        assert lines in text
    assert "canary" not in text
    assert "Session sess_00000001, last request req_" in text
    assert "FAILED tasks/sum/instruction.md::default-default-0" in text
    assert "Traceback" not in text


@pytest.mark.parametrize("workers", [(), ("-n", "1")], ids=["one-process", "worker"])
def test_expected_values_can_be_hidden(project: Project, core: FakeCore, workers: tuple[str, ...]) -> None:
    answer = json.dumps({**EXPECTED, "name": "other"}).encode()
    text = wrong(
        project, core, "--rollout-hide-expected", "--rollout-report", "table.md", "-vv", *workers, answer=answer
    )
    assert 'name:\n    answered "other"' in text
    for path in (*project.results, project.path / "table.md"):
        assert "canary" not in path.read_text()
    assert "canary" not in text


def test_long_failure_texts_are_cut_without_vv(project: Project, core: FakeCore) -> None:
    project.task("sum", expected={f"key{number:03}": "e" * 5000 for number in range(40)})
    core.script = lambda body: Script(answer=b"{}")
    text = text_of(project.run("tasks"))
    assert "... (5,002 characters)" in text
    assert "... and 28 more; -vv shows all" in text
    assert len(text) < 10_000
    assert "key039" in text_of(project.run("tasks", "-vv"))


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (None, "no answer.json; files found: /workspace/outputs/Answer.json"),
        (b"[1]", "expected a JSON object, got an array"),
        (b'```json\n{"x": 1}\n```', "the agent wrote: ```json\\n{"),
        (b'{"x": 1, "x": 1}', "duplicate key"),
        (b"\xff", "not valid JSON"),
    ],
)
def test_a_failure_says_why_an_answer_is_invalid(
    project: Project, core: FakeCore, answer: bytes | None, message: str
) -> None:
    project.task()
    artifacts = {"/workspace/outputs/Answer.json": b"{}"} if answer is None else {}
    core.script = lambda body: Script(answer=answer, artifacts=artifacts)
    result = project.run("tasks")
    assert outcomes(result) == {"failed": 1}
    assert message in text_of(result)


NASTY = {"x": "\x1b[31mred\x00\r\n\u2028\u202egnirts", "y": "\ud835", "z": "é模型"}


@pytest.mark.parametrize("workers", [(), ("-n", "2")], ids=["one-process", "workers"])
def test_hostile_characters_in_answers_are_escaped(project: Project, core: FakeCore, workers: tuple[str, ...]) -> None:
    project.task("sum", expected={"x": "a", "y": "b", "z": "c"}, yaml="samples: 4")
    texts = {"2": json.dumps(NASTY).encode(), "3": b'{"x": "\\ud835 ' + b"\x80" * 9 + b"\x1b]0;title\x07"}
    good = json.dumps({"x": "a", "y": "b", "z": "c"}).encode()
    core.script = lambda body: Script(answer=texts.get(body["metadata"]["sample"], good))
    result = project.run("tasks", *workers)
    assert outcomes(result) == {"passed": 2, "failed": 2}, text_of(result)
    assert result.ret == 1
    assert '    answered "\\u001b[31mred\\u0000\\r\\n\\u2028\\u202egnirts"' in text_of(result)
    assert '    answered "\\ud835"' in text_of(result)
    assert "\x1b" not in text_of(result)
    assert len(project.records) == 4


@pytest.mark.parametrize("workers", [(), ("-n", "2")], ids=["one-process", "workers"])
def test_equal_failures_are_shown_once_and_each_has_a_line_that_is_not_cut(
    project: Project, core: FakeCore, monkeypatch: pytest.MonkeyPatch, workers: tuple[str, ...]
) -> None:
    project.task("a" * 60, expected={"x": 1})
    project.task("b", expected={"x": 1})
    project.write("tests/test_unit.py", "def test_unit():\n    assert 1 == 2\n")
    core.script = lambda body: Script(answer=b'{"x": 1}' if body["metadata"]["sample"] == "2" else b'{"x": 2}')
    monkeypatch.setenv("COLUMNS", "80")
    result = project.run("tasks", "tests", "--samples", "4", "--rollout-html", "report.html", *workers)
    assert outcomes(result) == {"passed": 2, "failed": 7}
    text = text_of(result)
    assert re.findall(r"^_+ (\S+ default-default .*?) _+$", text, re.MULTILINE) == [
        f"{'a' * 60} default-default 0-1, 3",
        "b default-default 0-1, 3",
    ]
    assert text.count("    answered 2") == 2
    assert len(re.findall(r"^report\.html#/rollout/\S+\.b\.default-default\.[013]$", text, re.MULTILINE)) == 3
    assert "Session" not in text.partition("= FAILED ROLLOUTS")[2]
    ends = [line for line in result.outlines if line.startswith("FAILED tasks/")]
    assert len(ends) == 6
    assert all(line.endswith(" - reward 0: x: 1 expected, 2 answered") for line in ends)
    assert sum(line.startswith("FAILED tests/test_unit.py::test_unit - ") for line in result.outlines) == 1
    assert "short summary" not in text_of(project.run("tasks", "--tb=no", "-rN"))


@pytest.mark.parametrize("workers", [(), ("-n", "1")], ids=["one-process", "worker"])
def test_an_infrastructure_error_says_what_failed(project: Project, core: FakeCore, workers: tuple[str, ...]) -> None:
    project.task()
    core.script = lambda body: Script(
        turn_status="failed", error={"code": "internal_error", "message": "\ud800 no\x07 disk"}
    )
    result = project.run("tasks", "--rollout-retries", "0", *workers)
    assert outcomes(result) == {"errors": 1}
    text = text_of(result)
    assert "failed, no reward: the Turn failed: internal_error: \\ud800 no\\x07 disk" in text
    assert "ERROR tasks/sum/instruction.md::default-default-0 - " in text
    assert "last request req_" in text
    assert "Traceback" not in text


def test_a_refused_request_is_shown_with_its_id_and_parameter(project: Project, core: FakeCore) -> None:
    project.task()
    error = {"error": {"message": "No such harness.", "code": "invalid_request_error", "param": "harness"}}
    refusal = Fault(status=400, body=json.dumps(error).encode(), headers={"X-Request-Id": "req_abc"})
    core.fault = lambda request: refusal if request.route == "create" else None
    text = text_of(project.run("tasks"))
    for part in ("POST /agents/sessions", "400", "No such harness.", "param", "harness", "req_abc"):
        assert part in text
    assert core.api_key not in text


def test_a_timeout_shows_its_limit(project: Project, core: FakeCore) -> None:
    project.task()
    core.script = lambda body: Script(never_ends=True)
    result = project.run("tasks", "--rollout-timeout", "0.5")
    assert outcomes(result) == {"failed": 1}
    assert "reward 0: over the limit of 0.5 s" in text_of(result)


ASCII = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}


@pytest.mark.parametrize("locale", [ASCII, {"LC_ALL": "C", "PYTHONIOENCODING": "ascii"}])
def test_a_locale_without_utf8_changes_neither_requests_nor_rows(
    project: Project, core: FakeCore, locale: dict[str, str]
) -> None:
    project.task("café", expected={"x": "é"}, files={"ü.txt": "ü"}, yaml="env: {NAME: 'é'}")
    project.write("tasks/café/instruction.md", "Résumé 🎉")
    core.script = lambda body: Script(answer='{"x": "ô🎉"}'.encode())
    args = ("tasks", "--model", "é", "--rollout-label", "team=é")
    first = project.run_apart(*args)
    second = project.run_apart(*args, env=locale)
    assert outcomes(first) == outcomes(second) == {"failed": 1}, text_of(second)
    sent = [{**session.body, "metadata": {}} for session in core.sessions.values()]
    assert sent[0] == sent[1]
    assert sent[1]["input"] == "Résumé 🎉"
    rows = [(row["task"], row["model"], row["answer"], row["labels"], row["reasons"]) for row in project.records]
    assert rows[0] == rows[1]
    assert rows[1][0] == "café"


@pytest.mark.parametrize(
    "workers", [(), pytest.param(("-n", "2"), marks=pytest.mark.slow)], ids=["one-process", "workers"]
)
def test_a_task_keeps_its_name_in_a_locale_without_utf8(project: Project, workers: tuple[str, ...]) -> None:
    project.task("sql/naïve 🎉")
    result = project.run_apart("tasks", "--samples", "2", *workers, env=ASCII)
    assert outcomes(result) == {"passed": 2}, text_of(result)
    assert result.ret == 0
    assert "not run" not in text_of(result)
    assert [record["task"] for record in project.records] == ["sql/naïve 🎉"] * 2


def test_options_and_ini_keys_can_name_files_in_a_locale_without_utf8(project: Project) -> None:
    project.ini(
        "rollout_tasks = aufgäben", "rollout_agent = é.yaml", "rollout_out = zeilen/ü.jsonl", "testpaths = tests"
    )
    project.task("übung", root="aufgäben")
    project.task("other", root="aufgäben")
    project.write("é.yaml", "harness: codex")
    project.unit_tests()
    assert outcomes(project.run_apart(env=ASCII)) == {"passed": 2}
    for locale in ({}, ASCII):
        result = project.run_apart("--rollout-task", "übung", env=locale)
        assert outcomes(result) == {"passed": 1}, text_of(result)
        assert result.ret == 0
    rows = [json.loads(line) for line in (project.path / "zeilen/ü.jsonl").read_bytes().splitlines()]
    assert [(row["task"], row["agent"]["name"]) for row in rows] == [("übung", "é")] * 2
    assert rows[0]["agent"] == rows[1]["agent"]


@pytest.mark.parametrize(
    "workers", [(), pytest.param(("-n", "2"), marks=pytest.mark.slow)], ids=["one-process", "workers"]
)
@pytest.mark.parametrize("verbosity", ["on CI", "-vv"])
def test_a_failure_text_is_printed_once(
    project: Project, core: FakeCore, monkeypatch: pytest.MonkeyPatch, workers: tuple[str, ...], verbosity: str
) -> None:
    """pytest's short summary holds whole messages there: of ours the first line."""
    if verbosity == "on CI":
        monkeypatch.setenv("CI", "true")
    core.script = lambda body: Script(turn_status="failed") if body["metadata"]["task"] == "b" else Script(answer=WRONG)
    project.task("a")
    project.task("b")
    result = project.run(
        "tasks",
        "--rollout-retries",
        "0",
        *workers,
        *([verbosity] if verbosity == "-vv" else []),
        "--junitxml=junit.xml",
    )
    summary = text_of(result).partition("= short summary of rollouts")[2].partition("= rollouts")[0].splitlines()[1:-1]
    assert sorted(line.partition(": internal")[0].partition(": x")[0] for line in summary) == [
        "ERROR tasks/b/instruction.md::default-default-0 - failed, no reward: the Turn failed",
        "FAILED tasks/a/instruction.md::default-default-0 - reward 0",
    ], summary
    assert text_of(result).count("    expected 1") == 1, text_of(result)
    assert "expected 1" in (project.path / "junit.xml").read_text()
