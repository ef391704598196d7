"""A run that ended too early goes on: nothing that finished is paid for again, nothing that is lacking is left out."""

from __future__ import annotations

import json
import re
import shlex
import xml.etree.ElementTree as ElementTree
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from pytest_core_rollouts.records.rows import effective_rows, read_records
from tests.integration.conftest import RIGHT, WRONG, Project, outcomes, text_of, usage_error
from tests.support.fake_core import FakeCore, Script

pytestmark = pytest.mark.slow


@pytest.fixture
def two_tasks(project: Project) -> Project:
    project.task("a")
    project.task("b")
    return project


def jsonl(project: Project) -> str:
    """The one JSONL there is, as a user would name it."""
    [path] = project.results
    return str(path.relative_to(project.path))


def resume(project: Project, *args: str) -> pytest.RunResult:
    return project.run("tasks", *args, "--rollout-resume", jsonl(project))


def counted(project: Project) -> dict[str, Any]:
    """The row that counts of each rollout."""
    return {key: row.record for key, row in effective_rows(read_records(project.results[0])).items()}


def failing(core: FakeCore, *names: str) -> None:
    """Rollouts of these names (task and sample) meet a fault of the infrastructure."""

    def script(body: dict[str, Any]) -> Script:
        about = body["metadata"]
        broken = f"{about['task']}{about['sample']}" in names
        return Script(session_failure="the sandbox broke") if broken else Script(answer=RIGHT)

    core.script = script


@pytest.mark.parametrize("workers", [(), ("-n", "2"), ("-n", "2", "--rollout-concurrency", "3")], ids=len)
def test_finished_rollouts_are_kept_and_the_others_run(
    two_tasks: Project, core: FakeCore, workers: tuple[str, ...]
) -> None:
    two_tasks.run("tasks", "--samples", "2")
    before = two_tasks.results[0].read_bytes()
    result = two_tasks.run_apart("tasks", "--samples", "4", *workers, "--rollout-resume", jsonl(two_tasks))
    assert result.ret == 0, text_of(result)
    assert outcomes(result) == {"passed": 8}
    assert len(core.sessions) == 8
    rows = two_tasks.records
    assert len({row["rollout_id"] for row in rows}) == len(rows) == 8
    assert len({row["run_id"] for row in rows}) == 1
    assert two_tasks.results[0].read_bytes().startswith(before)
    result.stdout.fnmatch_lines(["*resume: 4 of 8 rollouts reused, 4 to run*", "*resumed: 4 rollouts were reused*"])
    assert {row["planned"]["run"] for row in rows} == {4, 8}
    assert re.search(r"\b8\b", "\n".join(result.outlines[-12:]))


def test_rows_of_another_core_are_reused_and_counted_in_a_line(
    two_tasks: Project, core: FakeCore, monkeypatch: pytest.MonkeyPatch
) -> None:
    two_tasks.run("tasks")
    assert {row["settings"]["core"] for row in two_tasks.records} == {core.base_url}
    assert "another Core" not in text_of(resume(two_tasks, "--samples", "2"))
    with FakeCore(script=lambda body: Script(answer=RIGHT)) as other:
        monkeypatch.setenv("OPENAI_BASE_URL", other.base_url)
        monkeypatch.setenv("OPENAI_API_KEY", other.api_key)
        result = resume(two_tasks, "--samples", "3")
    assert outcomes(result) == {"passed": 6}
    line = f"resume: 4 of them ran on another Core ({core.base_url}), which counts as the same work"
    assert line in text_of(result)
    assert (len(core.sessions), len(other.sessions)) == (4, 2)


def test_a_finished_run_needs_no_core_and_no_key(
    two_tasks: Project, core: FakeCore, monkeypatch: pytest.MonkeyPatch
) -> None:
    core.script = lambda body: Script(answer=RIGHT if body["metadata"]["task"] == "a" else WRONG)
    first = two_tasks.run("tasks", "--samples", "2")
    before, asked = two_tasks.results[0].read_bytes(), len(core.requests)
    monkeypatch.delenv("OPENAI_API_KEY")
    monkeypatch.delenv("OPENAI_BASE_URL")
    for workers in ((), ("-n", "2")):
        again = two_tasks.run_apart("tasks", "--samples", "2", *workers, "--rollout-resume", jsonl(two_tasks))
        assert outcomes(again) == outcomes(first) == {"passed": 2, "failed": 2}, text_of(again)
        assert "expected 1" in text_of(again)
    assert two_tasks.results[0].read_bytes() == before
    assert len(core.requests) == asked


@pytest.mark.parametrize("workers", [(), ("-n", "2")], ids=len)
@pytest.mark.parametrize(("gate", "code"), [("mean>=0.75", 0), ("mean>=0.76", 1), ("pass^2>=1", 1), ("each", 1)])
def test_a_finished_run_is_judged_by_its_rows(
    two_tasks: Project, core: FakeCore, gate: str, code: int, workers: tuple[str, ...]
) -> None:
    def script(body: dict[str, Any]) -> Script:
        about = body["metadata"]
        return Script(answer=WRONG if about["task"] == "b" and about["sample"] == "1" else RIGHT)

    core.script = script
    two_tasks.run("tasks", "--samples", "2", "--rollout-gate", "none")
    args = ("--samples", "2", "--rollout-gate", gate, "--rollout-resume", jsonl(two_tasks))
    result = two_tasks.run_apart("tasks", *args, *workers)
    assert result.ret == code, text_of(result)
    assert len(core.sessions) == 4
    assert re.search(r"\| +4/4 \| +0\.750 \|", text_of(result)), text_of(result)
    assert "0 to run" in text_of(result)


def test_only_rollouts_with_infrastructure_errors_run_again(two_tasks: Project, core: FakeCore) -> None:
    failing(core, "a1", "b0", "b3")
    first = two_tasks.run("tasks", "--samples", "4", "--rollout-retries", "0")
    assert outcomes(first) == {"passed": 5, "errors": 3}
    core.script = lambda body: Script(answer=RIGHT)
    result = resume(two_tasks, "--samples", "4")
    assert outcomes(result) == {"passed": 8}, text_of(result)
    assert len(core.sessions) == 11
    rows = two_tasks.records
    assert Counter(row["status"] for row in rows) == {"completed": 8, "error": 3}
    assert [row["attempt"] for row in rows[8:]] == [2, 2, 2]
    assert {(record.status, record.reward) for record in counted(two_tasks).values()} == {("completed", 1.0)}
    assert len(set(core.by_key)) == 11, "each attempt has its own key"


def test_timeouts_and_failures_of_the_agent_are_kept(two_tasks: Project, core: FakeCore) -> None:
    refused = {"code": "context_length_exceeded", "message": "too long"}
    core.script = lambda body: (
        Script(never_ends=True) if body["metadata"]["task"] == "a" else Script(turn_status="failed", error=refused)
    )
    first = two_tasks.run("tasks", "--rollout-timeout", "0.6")
    assert sorted(row["status"] for row in two_tasks.records) == ["failed", "timeout"], text_of(first)
    result = resume(two_tasks, "--rollout-timeout", "0.6")
    assert outcomes(result) == outcomes(first) == {"failed": 2}
    assert len(core.sessions) == 2


@pytest.mark.parametrize("torn", [b'{"rollout_id":"2026', b'{"rollout_id":"d","ta', b"{", b'{"rollout_id":"x"\0\0\0'])
def test_a_row_that_was_cut_off_only_loses_its_rollout(two_tasks: Project, core: FakeCore, torn: bytes) -> None:
    two_tasks.run("tasks")
    path = two_tasks.results[0]
    whole = path.read_bytes()
    path.write_bytes(whole + torn)
    result = resume(two_tasks, "--samples", "2", "-W", "error")
    assert outcomes(result) == {"passed": 4}, text_of(result)
    assert f"{path}:3: skipped a row that was cut off" in text_of(result)
    assert len(core.sessions) == 4
    assert path.read_bytes().startswith(whole)
    assert len(two_tasks.records) == 4
    assert outcomes(resume(two_tasks, "--samples", "2")) == {"passed": 4}
    assert len(core.sessions) == 4


@pytest.mark.parametrize("option", ["--rollout-resume", "--rollout-baseline", "--rollout-replay"])
@pytest.mark.parametrize("workers", [(), ("-n", "2")], ids=len)
def test_a_row_that_was_cut_off_stops_nothing_if_warnings_are_errors(
    two_tasks: Project, option: str, workers: tuple[str, ...]
) -> None:
    two_tasks.run("tasks", "--rollout-out", "r.jsonl")
    with (two_tasks.path / "r.jsonl").open("ab") as file:
        file.write(b'{"rollout_id":"d","ta')
    result = two_tasks.run_apart("tasks", option, "r.jsonl", "-W", "error", *workers)
    assert result.ret == 0, text_of(result)
    assert outcomes(result)["passed"] == 2
    assert "skipped a row that was cut off" in text_of(result)
    assert "Traceback" not in text_of(result)


CHANGES = {
    "timeout": (("--rollout-timeout", "77"), "timeout"),
    "labels": (("--rollout-label", "build=7"), "labels"),
    "network": (("--rollout-network", "enabled"), "network"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_rollouts_with_changed_options_are_named_and_run_again(two_tasks: Project, core: FakeCore, change: str) -> None:
    two_tasks.run("tasks", "--samples", "2")
    args, named = CHANGES[change]
    result = resume(two_tasks, "--samples", "2", *args)
    assert f"resume: to run again, changed since ({named}): a default-default 0-1" in text_of(result)
    assert outcomes(result) == {"passed": 4}
    assert len(core.sessions) == 8
    assert {record.attempt for record in counted(two_tasks).values()} == {2}
    again = resume(two_tasks, "--samples", "2")
    assert "resume: 4 of 4 rollouts reused, 0 to run" in text_of(again), "the first rows are of that work again"
    assert {record.attempt for record in counted(two_tasks).values()} == {1}
    assert len(core.sessions) == 8


def test_rollouts_with_a_changed_input_or_agent_run_again(project: Project, core: FakeCore) -> None:
    project.task("a")
    project.task("b")
    project.write("agents/one.yaml", "name: one\ninstructions: Be quick.\n")
    project.run("tasks", "--rollout-agent", "agents/one.yaml")
    project.write("tasks/a/instruction.md", "Do a otherwise.\n")
    result = resume(project, "--rollout-agent", "agents/one.yaml")
    assert "changed since (input): a one 0" in text_of(result)
    assert len(core.sessions) == 3
    project.write("agents/one.yaml", "name: one\ninstructions: Be slow.\n")
    result = resume(project, "--rollout-agent", "agents/one.yaml")
    assert "changed since (agent): b one 0" in text_of(result)
    assert outcomes(result) == {"passed": 2}
    assert len(core.sessions) == 5


def test_other_agents_and_samples_are_added_to_the_run(two_tasks: Project, core: FakeCore) -> None:
    two_tasks.run("tasks", "--samples", "2")
    result = resume(two_tasks, "--harness", "codex", "--harness", "default")
    assert outcomes(result) == {"passed": 4}, text_of(result)
    assert len(core.sessions) == 6, "fewer samples of the one, one sample of the other"
    assert len(two_tasks.records) == 6
    assert "codex" in text_of(result)


def test_a_filter_resumes_only_the_selected_rollouts(two_tasks: Project, core: FakeCore) -> None:
    failing(core, "a0", "b0")
    two_tasks.run("tasks", "--samples", "2", "--rollout-retries", "0")
    core.script = lambda body: Script(answer=RIGHT)
    result = resume(two_tasks, "--samples", "2", "-k", "b-0 or b")
    assert outcomes(result)["passed"] == 2, text_of(result)
    assert len(core.sessions) == 5
    assert "to finish" not in text_of(result), "all that was asked for has a result"
    assert outcomes(resume(two_tasks, "--samples", "2")) == {"passed": 4}
    assert len(core.sessions) == 6


@pytest.mark.parametrize("workers", [(), ("-n", "2"), ("-n", "2", "--rollout-concurrency", "2")], ids=len)
def test_answers_are_graded_again_without_a_session_if_only_grading_changed(
    two_tasks: Project, core: FakeCore, workers: tuple[str, ...]
) -> None:
    two_tasks.run("tasks", "--samples", "2")
    two_tasks.write("tasks/b/expected.json", json.dumps({"x": 3}))
    requests = len(core.requests)
    result = two_tasks.run_apart("tasks", "--samples", "2", *workers, "--rollout-resume", jsonl(two_tasks))
    assert "resume: 2 of 4 rollouts reused, 2 graded again, 0 to run" in text_of(result)
    assert outcomes(result) == {"passed": 2, "failed": 2}, text_of(result)
    assert len(core.sessions) == 4
    assert {request.route for request in core.requests[requests:]} == {"sessions"}, "only a look for leftovers"
    assert {record.task: record.reward for record in counted(two_tasks).values()} == {"a": 1.0, "b": 0.0}
    assert "4 of 4 rollouts reused" in text_of(resume(two_tasks, "--samples", "2"))
    assert len(two_tasks.records) == 6


GRADER = """
def pytest_rollout_grade(task, answer, rollout):
    {}
"""


@pytest.mark.parametrize("answer", [RIGHT, b"no json", None], ids=["right", "text", "none"])
def test_an_answer_whose_grader_failed_is_graded_again(
    two_tasks: Project, core: FakeCore, answer: bytes | None
) -> None:
    core.script = lambda body: Script(answer=answer)
    two_tasks.write("conftest.py", GRADER.format("raise RuntimeError('no database')"))
    first = two_tasks.run_apart("tasks")
    assert outcomes(first) == {"errors": 2}, text_of(first)
    two_tasks.write("conftest.py", GRADER.format("return 1.0 if answer.value == {'x': 1} else 0.0"))
    result = two_tasks.run_apart("tasks", "--rollout-resume", jsonl(two_tasks))
    assert outcomes(result) == ({"passed": 2} if answer == RIGHT else {"failed": 2}), text_of(result)
    assert len(core.sessions) == 2
    assert {record.reward for record in counted(two_tasks).values()} == {1.0 if answer == RIGHT else 0.0}


def test_a_fixed_grader_gets_the_kept_files(project: Project, core: FakeCore) -> None:
    """A row never forgets its kept files: not while its grader is broken, and not in a replay of a replay."""
    project.task("a", yaml="outputs: ['*.txt']\n")
    right = "def grade(artifacts):\n    return float(artifacts.get('a.txt') == b'right')\n"
    core.script = lambda body: Script(answer=RIGHT, artifacts={"/workspace/outputs/a.txt": b"right"})
    project.write("tasks/a/grader.py", right)
    assert outcomes(project.run("tasks")) == {"passed": 1}
    for source, outcome in (("def grade():\n    return broken\n", "errors"), (right, "passed")):
        project.write("tasks/a/grader.py", source)
        assert outcomes(resume(project)) == {outcome: 1}
    assert len(core.sessions) == 1
    path = project.results[0]
    for _ in range(2):
        result = project.run("--rollout-replay", str(path))
        assert outcomes(result) == {"passed": 1}, text_of(result)
        path = max(project.results)
    for kept in path.parent.glob(".*.files/*/*/*"):
        kept.unlink()
    result = project.run("--rollout-replay", str(path))
    assert outcomes(result) == {"errors": 1}
    assert "include-hidden-files" in text_of(result)


def test_a_new_xfail_applies_without_a_session(two_tasks: Project, core: FakeCore) -> None:
    core.script = lambda body: Script(answer=WRONG)
    two_tasks.run("tasks")
    two_tasks.write("tasks/a/task.yaml", "xfail: not there yet\n")
    result = resume(two_tasks)
    assert outcomes(result) == {"xfailed": 1, "failed": 1}, text_of(result)
    assert len(core.sessions) == 2
    assert {record.task: record.xfail for record in counted(two_tasks).values()} == {"a": True, "b": False}


def test_the_duration_of_a_reused_rollout_is_not_reported_again(two_tasks: Project, core: FakeCore) -> None:
    core.script = lambda body: Script(answer=RIGHT, turn_seconds=0.5)
    two_tasks.run("tasks", "--samples", "2")
    result = resume(two_tasks, "--samples", "2", "--junitxml", "j.xml")
    assert outcomes(result) == {"passed": 4}
    cases = list(ElementTree.parse(two_tasks.path / "j.xml").iter("testcase"))
    assert sum(float(case.attrib["time"]) for case in cases) < 0.2
    assert all(case.find("properties/property[@name='reused']") is not None for case in cases)


# Which file, which run


def test_the_newest_run_of_a_file_is_resumed_unless_another_is_named(two_tasks: Project, core: FakeCore) -> None:
    for task in ("a", "b"):
        two_tasks.run(f"tasks/{task}", "--rollout-out", "all.jsonl")
    lines = (two_tasks.path / "all.jsonl").read_text().splitlines()
    first, second = (json.loads(line)["run_id"] for line in lines)
    if first == second:
        pytest.fail("two runs share an id")
    newest = max(first, second)
    result = two_tasks.run("tasks", "--rollout-resume", "all.jsonl")
    assert f"rollouts: run {newest}" in text_of(result)
    other = min(first, second)
    result = two_tasks.run("tasks", "--rollout-resume", f"all.jsonl::{other}")
    assert f"rollouts: run {other}" in text_of(result)
    rows = [json.loads(line) for line in (two_tasks.path / "all.jsonl").read_text().splitlines()]
    assert Counter(row["run_id"] for row in rows) == {first: 2, second: 2}
    assert len(core.sessions) == 4


def test_a_run_that_was_killed_before_its_first_row_can_be_resumed(two_tasks: Project, core: FakeCore) -> None:
    run_id = "20261129T120000Z-1f0c"
    two_tasks.write(f"runs/{run_id}.jsonl")
    result = resume(two_tasks)
    assert outcomes(result) == {"passed": 2}
    assert {row["run_id"] for row in two_tasks.records} == {run_id}


def test_a_file_that_can_not_be_resumed_is_a_usage_error(two_tasks: Project, core: FakeCore) -> None:
    def refused(*args: str) -> str:
        return usage_error(two_tasks.run("tasks", *args))

    assert "there is no such file to resume" in refused("--rollout-resume", "runs/gone.jsonl")
    two_tasks.write("empty.jsonl")
    assert "holds no rows" in refused("--rollout-resume", "empty.jsonl")
    two_tasks.write("notes.txt", "hello\n")
    assert "notes.txt:1: not JSON" in refused("--rollout-resume", "notes.txt")
    two_tasks.run("tasks/a", "--rollout-out", "r.jsonl")
    assert "holds no rows of run 2026-x" in refused("--rollout-resume", "r.jsonl::2026-x")
    foreign = (two_tasks.path / "r.jsonl").read_text().replace('"run_id":"', '"run_id":"../../')
    two_tasks.write("foreign.jsonl", foreign)
    assert "foreign.jsonl: invalid run id '../../" in refused("--rollout-resume", "foreign.jsonl")
    assert "remove this option" in refused("--rollout-resume", "r.jsonl", "--rollout-out", "other.jsonl")
    both = ("--rollout-resume", "r.jsonl", "--rollout-replay", "r.jsonl")
    assert "can't be combined with --rollout-replay" in refused(*both)
    assert outcomes(two_tasks.run("tasks/a", "--rollout-resume", "r.jsonl", "--rollout-out", "r.jsonl"))["passed"] == 1
    two_tasks.ini("rollout_out = other.jsonl")
    assert two_tasks.run("tasks/a", "--rollout-resume", "r.jsonl").ret == 0, "the command line overrides the ini file"
    assert len(core.sessions) == 1


def test_a_jsonl_outside_the_project_does_not_change_task_ids(
    two_tasks: Project, core: FakeCore, tmp_path: Path
) -> None:
    """Without an ini file pytest's root is what all paths on the command line have in common."""
    out = str(tmp_path.parent / "r.jsonl")
    two_tasks.run("tasks", "--rollout-out", out)
    error = usage_error(two_tasks.run("tasks", "--rollout-resume", out))
    assert f"add --rootdir {two_tasks.path}" in error
    result = two_tasks.run("tasks", "--rollout-resume", out, "--rootdir", str(two_tasks.path))
    assert outcomes(result) == {"passed": 2}, text_of(result)
    two_tasks.ini()
    assert outcomes(two_tasks.run("tasks", "--rollout-resume", out)) == {"passed": 2}
    assert len(core.sessions) == 2


def test_the_printed_resume_command_is_complete(project: Project, core: FakeCore) -> None:
    project.task("a b")
    project.task("c")
    failing(core, "a b0", "c1")
    args = ["tasks", "--samples", "2", "-k", "not (x or y)", "--rollout-retries=0", "--rollout-out", "my runs.jsonl"]
    first = project.run(*args)
    [line] = [line for line in first.outlines if line.startswith("to finish: ")]
    run_id = json.loads((project.path / "my runs.jsonl").read_text().splitlines()[0])["run_id"]
    command = shlex.split(line.removeprefix("to finish: "))
    assert command[0] == "pytest"
    assert command[1:] == [*args[:-2], "--rollout-resume", f"my runs.jsonl::{run_id}"]
    failing(core, "c1")
    second = project.run(*command[1:])
    [line] = [line for line in second.outlines if line.startswith("to finish: ")]
    assert shlex.split(line.removeprefix("to finish: ")) == command
    core.script = lambda body: Script(answer=RIGHT)
    last = project.run(*command[1:])
    assert last.ret == 0
    assert outcomes(last) == {"passed": 4}
    assert "to finish" not in text_of(last)
    assert len(core.sessions) == 4 + 2 + 1


def test_collect_only_prints_and_writes_nothing_about_a_resume(two_tasks: Project, core: FakeCore) -> None:
    two_tasks.run("tasks")
    before = Path(two_tasks.results[0]).read_bytes()
    result = resume(two_tasks, "--collect-only", "-q")
    assert result.ret == 0
    assert two_tasks.results[0].read_bytes() == before
