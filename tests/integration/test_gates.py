"""Gates as a CI script meets them: exit codes, what is printed, what JUnit and -r show."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from xml.etree import ElementTree

import pytest

from pytest_core_rollouts.cli import main
from tests.integration.conftest import RIGHT, WRONG, Project, node_ids, outcomes, text_of, usage_error
from tests.support.fake_core import FakeCore, Fault, Request, Script

BROKEN = Script(turn_status="failed", error={"code": "internal_error", "message": "the model endpoint is down"})


def answering(core: FakeCore, **by_task: Sequence[bytes | Script]) -> None:
    """What agents do, task by task (`Do NAME.`), one sample after the other; without an entry they are right."""

    queues = {name: list(answers) for name, answers in by_task.items()}

    def script(body: dict[str, object]) -> Script:
        name = re.search(r"Do (\w+)\.", json.dumps(body))
        assert name is not None
        queue = queues.get(name.group(1))
        one = queue.pop(0) if queue else RIGHT
        return one if isinstance(one, Script) else Script(answer=one)

    core.script = script


def gate_lines(result: pytest.RunResult) -> list[str]:
    """The verdicts, without the spaces that align them."""
    return [" ".join(line.split()) for line in result.outlines if line.startswith("gate ")]


# Exit codes


@pytest.mark.parametrize(
    ("gates", "code", "lines"),
    [
        (
            ["mean>=0.75", "pass@2>=1"],
            0,
            ["gate mean>=0.75: passed: 0.750 >= 0.75", "gate pass@2>=1: passed: 1.000 >= 1"],
        ),
        (["pass^2>=0.6"], 1, ["gate pass^2>=0.6: failed: 0.500 < 0.6"]),
        (
            ["mean>=0.5", "each"],
            1,
            ["gate mean>=0.5: passed: 0.750 >= 0.5", "gate each: failed: 3 of 4 rollouts solved"],
        ),
        (["none"], 0, ["gate none: passed: 4 of 4 rollouts graded"]),
    ],
)
def test_gates_decide_the_exit_code_and_no_rollout_fails(
    project: Project, core: FakeCore, gates: list[str], code: int, lines: list[str]
) -> None:
    project.task("a")
    project.task("b")
    answering(core, b=[WRONG])
    result = project.run("tasks", "--samples", "2", *(f"--rollout-gate={gate}" for gate in gates))
    assert result.ret == code
    assert gate_lines(result) == lines
    assert outcomes(result) == {"solved": 3, "unsolved": 1}


def test_without_a_gate_every_rollout_asserts_and_the_hint_names_the_option(project: Project, core: FakeCore) -> None:
    project.task("a")
    answering(core, a=[WRONG])
    result = project.run("tasks", "--samples", "2")
    assert result.ret == 1
    assert outcomes(result) == {"failed": 1, "passed": 1}
    assert "; use --rollout-gate to judge the run as a whole" in text_of(result)
    assert gate_lines(result) == []


def test_a_passed_gate_hides_no_failure_of_other_tests(project: Project) -> None:
    project.task("a")
    project.write("tests/test_unit.py", "def test_one():\n    assert False\n")
    result = project.run("tasks", "tests", "--rollout-gate", "mean>=0")
    assert result.ret == 1
    assert gate_lines(result) == ["gate mean>=0: passed: 1.000 >= 0"]
    assert outcomes(result) == {"failed": 1, "solved": 1}


def test_an_interrupted_run_exits_with_2(project: Project, core: FakeCore) -> None:
    project.task("a")
    core.fault = lambda request: Fault(status=401, body=b'{"error": {"message": "no"}}') if _creates(request) else None
    result = project.run("tasks", "--samples", "2", "--rollout-gate", "mean>=0")
    assert result.ret == 2, text_of(result)


@pytest.mark.parametrize("workers", [(), pytest.param(("-n2",), marks=pytest.mark.slow)])
def test_a_collection_error_fails_the_run_although_the_gate_passes(project: Project, workers: tuple[str, ...]) -> None:
    for name in "abc":
        project.task(name)
    project.task("bad", expected=[])
    args = ("tasks", "--rollout-gate", "mean>=0", *workers)
    result = project.run(*args, "--continue-on-collection-errors")
    assert result.ret == 1
    assert gate_lines(result) == ["gate mean>=0: passed: 1.000 >= 0"]
    assert outcomes(result) == {"errors": 1, "solved": 3}


@pytest.mark.parametrize("workers", [(), pytest.param(("-n2",), marks=pytest.mark.slow)])
def test_an_internal_error_exits_with_3(project: Project, workers: tuple[str, ...]) -> None:
    project.task("a")
    project.write("conftest.py", "def pytest_runtest_logfinish(nodeid):\n    raise RuntimeError(nodeid)\n")
    assert project.run_apart("tasks", "--rollout-gate", "mean>=0", *workers).ret == 3


def _creates(request: Request) -> bool:
    return request.method == "POST" and request.path.endswith("/sessions")


@pytest.mark.parametrize(
    ("args", "error"),
    [
        (["--rollout-gate", "mean>0.7"], "--rollout-gate: unknown gate 'mean>0.7'; use each"),
        (["--rollout-gate", "baseline"], "--rollout-gate baseline: requires a baseline; add --rollout-baseline"),
        (["--rollout-gate", "lost<=0"], "--rollout-gate lost<=0: requires a baseline"),
        (["--rollout-gate", "pass@4>=0.5"], "--rollout-gate pass@4>=0.5: needs 4 samples per task, but only 1 is"),
        (["--rollout-baseline", "nowhere.jsonl"], "--rollout-baseline: "),
        (["--rollout-allow-errors", "few"], "--rollout-allow-errors: expected a number of rollouts"),
    ],
)  # fmt: skip
def test_an_invalid_gate_is_a_usage_error_before_the_first_session(
    project: Project, core: FakeCore, args: list[str], error: str
) -> None:
    project.task("a")
    result = project.run("tasks", *args)
    assert usage_error(result).startswith(error)
    assert not core.sessions
    assert not project.results


@pytest.mark.parametrize("args", [("-k", "nothing"), pytest.param(("-k", "nothing", "-n2"), marks=pytest.mark.slow)])
def test_a_run_without_selected_rollouts_exits_with_5(project: Project, core: FakeCore, args: tuple[str, ...]) -> None:
    project.task("a")
    for gate in ("mean>=0", "none"):
        assert project.run("tasks", "--rollout-gate", gate, *args).ret == 5
    assert not core.sessions


@pytest.mark.parametrize("args", [(), pytest.param(("-n2",), marks=pytest.mark.slow)])
def test_a_gate_is_undecided_if_every_rollout_was_skipped(project: Project, args: tuple[str, ...]) -> None:
    project.task("a", yaml="skip: not today\n")
    result = project.run("tasks", "--rollout-gate", "none", "--junitxml=j.xml", *args)
    assert result.ret == 1, text_of(result)
    assert gate_lines(result) == ["gate none: undecided: no rollout has run"]
    [case] = [
        case for case in ElementTree.parse(project.path / "j.xml").iter("testcase") if case.find("failure") is not None
    ]
    assert case.get("name") == "none"


# Rewards that are lacking


def test_an_infrastructure_error_fails_the_run_although_the_gate_passes(project: Project, core: FakeCore) -> None:
    project.task("a")
    answering(core, a=[BROKEN])
    result = project.run("tasks", "--samples", "4", "--rollout-retries", "0", "--rollout-gate", "mean>=0.7")
    assert result.ret == 1
    assert outcomes(result) == {"errors": 1, "solved": 3}
    assert gate_lines(result)[0].startswith("gate mean>=0.7: passed: 0.750 >= 0.7 even if all had failed")


@pytest.mark.parametrize(
    ("gate", "allowed", "code", "verdict"),
    [
        ("mean>=0.7", "1", 0, "passed: 0.750 >= 0.7 even if all had failed that have no reward (1 without a reward)"),
        (
            "mean>=0.8",
            "25%",
            1,
            "undecided: 0.750 to 1.000, as those turn out that have no reward (1 without a reward)",
        ),
        ("each", "1", 1, "undecided: 3 of 4 rollouts solved (1 without a reward)"),
        ("mean>=0.7", "0", 1, "passed: 0.750 >= 0.7 even if all had failed that have no reward (1 without a reward)"),
    ],
)
def test_allowed_errors_leave_the_verdict_to_the_gate(
    project: Project, core: FakeCore, gate: str, allowed: str, code: int, verdict: str
) -> None:
    project.task("a")
    answering(core, a=[BROKEN])
    one_by_one = ("--samples", "4", "--rollout-concurrency", "1", "--rollout-retries", "0")  # the first sample breaks
    args = (*one_by_one, "--rollout-gate", gate, "--rollout-allow-errors", allowed)
    result = project.run("tasks", *args, "-ra", "--junitxml=j.xml")
    assert result.ret == code
    assert gate_lines(result)[0] == f"gate {gate}: {verdict}"
    assert outcomes(result) == {"errored": 1, "passed" if gate == "each" else "solved": 3}
    why = "failed: the Turn failed: internal_error: the model endpoint is down"
    assert f"ERRORED tasks/a/instruction.md::default-default-0 - {why}" in result.outlines
    limit = 1 if allowed != "0" else 0
    word = "passed" if limit else "failed"
    assert gate_lines(result)[1] == f"gate errors<={allowed}: {word}: 1 of 4 rollouts without a reward, {limit} allowed"
    [suite] = ElementTree.parse(project.path / "j.xml").getroot()
    red = sum(": passed: " not in line for line in gate_lines(result))
    assert (suite.get("skipped"), suite.get("errors"), suite.get("failures")) == ("1", "0", str(red))


def test_an_undecided_run_prints_the_command_that_finishes_it(project: Project, core: FakeCore) -> None:
    project.task("a")
    answering(core, a=[BROKEN, RIGHT])
    args = ("--samples", "2", "--rollout-retries", "0", "--rollout-gate", "mean>=0.8", "--rollout-out", "a b.jsonl")
    result = project.run("tasks", *args)
    assert result.ret == 1
    [line] = [line for line in result.outlines if line.startswith("to finish: ")]
    assert "tasks --samples 2" in line
    assert "--rollout-gate 'mean>=0.8'" in line
    assert " --rollout-resume 'a b.jsonl" in line


def test_a_gate_is_undecided_if_rollouts_did_not_run(project: Project, core: FakeCore) -> None:
    project.task("a")
    project.task("b")
    answering(core, a=[WRONG] * 4, b=[WRONG] * 4)
    result = project.run("tasks", "--samples", "4", "-x", "--rollout-concurrency", "1")
    assert result.ret == 1
    assert re.search(r"^rows \d of 8 planned$", text_of(result), re.M)
    assert re.search(r"\| +not run +\|", text_of(result))
    answering(core, a=[BROKEN], b=[BROKEN])
    args = ("--rollout-retries", "0", "--rollout-gate", "mean>=0", "--rollout-gate", "none")
    result = project.run("tasks", "--samples", "4", "-x", "--rollout-concurrency", "1", *args)
    assert [line.split(":")[:2] for line in gate_lines(result)] == [
        ["gate mean>=0", " undecided"],
        ["gate none", " undecided"],
    ]
    assert result.ret == 1


# What is reported


def test_the_option_r_lists_solved_and_unsolved_rollouts(project: Project, core: FakeCore) -> None:
    project.task("a")
    answering(core, a=[WRONG])
    quiet = project.run("tasks", "--samples", "2", "--rollout-gate", "none")
    assert "SOLVED" not in text_of(quiet)
    answering(core, a=[WRONG])
    result = project.run("tasks", "--samples", "2", "--rollout-concurrency", "1", "--rollout-gate", "none", "-rA")
    assert [line for line in result.outlines if "SOLVED" in line] == [
        "UNSOLVED tasks/a/instruction.md::default-default-0 - reward 0: x: 1 expected, 2 answered",
        "SOLVED tasks/a/instruction.md::default-default-1 - reward 1",
    ]
    answering(core, a=[WRONG])
    result = project.run("tasks", "--samples", "2", "--rollout-gate", "none", "--color=yes")
    assert "\x1b[31m" not in text_of(result)


def test_junit_shows_unsolved_rollouts_as_passed_with_their_reward(project: Project, core: FakeCore) -> None:
    project.task("a")
    answering(core, a=[WRONG])
    project.run(
        "tasks",
        "--samples",
        "2",
        "--rollout-concurrency",
        "1",
        "--rollout-gate",
        "none",
        "--junitxml=j.xml",
    )
    [suite] = ElementTree.parse(project.path / "j.xml").getroot()
    assert (suite.get("tests"), suite.get("failures"), suite.get("errors")) == ("3", "0", "0")  # and the gate
    rewards = [
        {one.get("name"): one.get("value") for one in case.iter("property")}["reward"]
        for case in suite.iter("testcase")
        if case.get("classname") != "rollouts.gate"
    ]
    assert rewards == ["0.0", "1.0"]


def test_xfails_do_not_count_for_gates(project: Project, core: FakeCore) -> None:
    project.task("a")
    project.task("b", yaml="xfail: beyond all agents\n")
    answering(core, b=[WRONG, WRONG])
    result = project.run("tasks", "--samples", "2", "--rollout-concurrency", "1", "--rollout-gate", "mean>=1")
    assert result.ret == 0, text_of(result)
    assert outcomes(result) == {"solved": 2, "xfailed": 2}
    assert gate_lines(result) == ["gate mean>=1: passed: 1.000 >= 1"]
    assert [
        bool(row["settings"].get("xfail")) for row in sorted(project.records, key=lambda row: str(row["task"]))
    ] == [
        False,
        False,
        True,
        True,
    ]
    assert "- expected to fail, in no figure: b 0/2" in result.outlines


def test_the_gate_none_reports_how_many_groups_have_different_rewards(project: Project, core: FakeCore) -> None:
    for name in "abc":
        project.task(name)
    answering(core, a=[WRONG], b=[WRONG, WRONG])
    text = text_of(project.run("tasks", "--samples", "2", "--rollout-gate", "none"))
    assert "- groups: 3 of 3 complete; 1 with a signal (rewards differ), 1 all 1, 1 all 0" in text


def test_the_report_file_contains_the_verdicts(project: Project, core: FakeCore) -> None:
    project.task("a")
    answering(core, a=[WRONG])
    project.run("tasks", "--samples", "2", "--rollout-gate", "pass^2>=0.5", "--rollout-report", "out/report.md")
    text = (project.path / "out/report.md").read_text()
    assert text.startswith("2 rollouts: 1 task, 2 samples each\n\n- gate pass^2&gt;=0.5: failed: 0.000 &lt; 0.5\n\n| ")


def test_the_report_of_a_run_equals_that_of_the_verb_report(
    project: Project, core: FakeCore, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    for name in "abc":
        project.task(name)
    answering(core, a=[WRONG], b=[BROKEN, WRONG])
    base, gates = "main.jsonl", ["mean>=0.5", "baseline", "lost<=0"]
    project.run("tasks", "--samples", "2", "--rollout-out", base, "--rollout-gate", "none")
    answering(core, b=[BROKEN], c=[WRONG])
    named = [f"--rollout-gate={gate}" for gate in gates]
    args = ("--rollout-out", "now.jsonl", "--rollout-report", "r.md", "--rollout-retries", "0")
    project.run("tasks", "--samples", "2", *args, "--rollout-baseline", base, *named)
    capfdbinary.readouterr()
    main(["report", "now.jsonl", "--baseline", base, *(f"--gate={gate}" for gate in gates)])
    printed = capfdbinary.readouterr().out
    assert printed == (project.path / "r.md").read_bytes()
    assert b"gate lost&lt;=0: " in printed


def test_the_table_of_a_second_run_in_one_file_only_covers_that_run(project: Project, core: FakeCore) -> None:
    project.task("a")
    answering(core, a=[WRONG, WRONG])
    project.run("tasks", "--samples", "2", "--rollout-out", "all.jsonl", "--rollout-gate", "none")
    result = project.run("tasks", "--rollout-out", "all.jsonl", "--rollout-gate", "mean>=1")
    assert result.ret == 0
    assert "1 rollout: 1 task, 1 sample each" in result.outlines
    assert len((project.path / "all.jsonl").read_bytes().splitlines()) == 3


@pytest.mark.parametrize(
    "workers", [(), pytest.param(("-n", "2"), marks=pytest.mark.slow)], ids=["one-process", "workers"]
)
def test_junit_and_lf_follow_the_verdict(project: Project, core: FakeCore, workers: tuple[str, ...]) -> None:
    """A red gate is red in JUnit's XML, and `--lf` after it runs what was unsolved or missing; a green one runs all."""
    for name in ("right", "wrong", "broken"):
        project.task(name)
    scripts = {
        "right": Script(answer=RIGHT),
        "wrong": Script(answer=WRONG),
        "broken": BROKEN,
    }
    core.script = lambda body: scripts[body["metadata"]["task"]]
    args = ("tasks", "--rollout-retries", "0", "--rollout-gate", "mean>=0.9", "--rollout-gate", "mean>=0.1")
    result = project.run_apart(*args, "--junitxml", "junit.xml", *workers)
    assert result.ret == 1
    suite = ElementTree.parse(project.path / "junit.xml").find("testsuite")
    assert suite is not None
    cases = {str(case.get("name")): case for case in suite.iter("testcase") if case.get("classname") == "rollouts.gate"}
    failures = {name: case.find("failure") for name, case in cases.items()}
    assert set(failures) == {"mean>=0.9", "mean>=0.1"}
    assert failures["mean>=0.1"] is None
    failure = failures["mean>=0.9"]
    assert failure is not None
    assert str(failure.get("message")).startswith("gate mean>=0.9: failed: ")
    assert suite.get("tests") == "5"
    figures = {one.get("name"): one.get("value") for one in suite.findall("properties/property")}
    assert figures == {"tasks solved": "1/3", "mean reward": "0.500", "pass@1": "0.500"}
    assert int(str(suite.get("failures"))) == len(suite.findall(".//failure"))
    again = project.run(*args, "--lf", "--collect-only", "-q")
    assert {one.split("/")[1] for one in node_ids(again)} == {"wrong", "broken"}
    core.script = lambda body: Script(answer=RIGHT)
    assert project.run_apart(*args, *workers).ret == 0
    assert len(node_ids(project.run(*args, "--lf", "--collect-only", "-q"))) == 3


# Scopes


def test_scoped_gates_judge_their_tasks_and_rows_know_the_tags(
    project: Project, core: FakeCore, capfd: pytest.CaptureFixture[str]
) -> None:
    project.task("sql/a", yaml="tags: [sql, core]\n")
    project.task("sql/b", yaml="tags: [sql]\n")
    project.task("web")
    core.script = lambda body: Script(answer=WRONG if "Do sql/b." in json.dumps(body) else RIGHT)
    gates = ["mean[tag:core]>=1", "each[task:web,sql/a]", "mean[tag:sql]>=0.6"]
    args = [arg for gate in gates for arg in ("--rollout-gate", gate)]
    result = project.run("tasks", *args, "--rollout-report", "r.md", "--rollout-out", "runs/x.jsonl")
    assert result.ret == 1
    assert outcomes(result) == {"solved": 2, "unsolved": 1}
    assert gate_lines(result) == [
        "gate mean[tag:core]>=1: passed: 1.000 >= 1",
        "gate each[task:web,sql/a]: passed: 2 of 2 rollouts solved",
        "gate mean[tag:sql]>=0.6: failed: 0.500 < 0.6",
    ]
    rows = [json.loads(line) for line in (project.path / "runs/x.jsonl").read_text().splitlines()]
    assert {row["task"]: row["tags"] for row in rows} == {"sql/a": ["sql", "core"], "sql/b": ["sql"], "web": []}
    capfd.readouterr()
    file = str(project.path / "runs/x.jsonl")
    assert main(["report", file, *(arg.replace("rollout-gate", "gate") for arg in args)]) == 1
    assert capfd.readouterr().out == (project.path / "r.md").read_text()
    assert main(["report", file, "--by", "tag", "--by", "agent"]) == 0
    out = capfd.readouterr().out
    assert [line.split("|")[1:5] for line in out.splitlines() if line.startswith(("| core ", "| sql ", "| (no "))] == [
        [" core     ", " default ", "     1 ", "    1/1 "],
        [" sql      ", " default ", "     2 ", "    2/2 "],
        [" (no tag) ", " default ", "     1 ", "    1/1 "],
    ]
    assert "| agent   | tasks | graded | mean reward |" in out
    assert main(["report", file, "--baseline", file, "--by", "tag", "--gate", "baseline[tag:sql]"]) == 0
    assert "|     2 |  0.500 | 0.500 |  0.000 |             1 |\n" in capfd.readouterr().out


@pytest.mark.parametrize(
    ("gate", "samples", "error"),
    [
        ("mean[tag:x]>=1", "1", "no selected task has such a tag; choose from sql"),
        ("mean[task:sql]>=1", "1", "no selected task has such an id; choose from sql/a"),
        ("pass@2[tag:sql]>=1", "1", "needs 2 samples per task, but only 1 is planned"),
        ("mean[label:x]>=1", "1", "unknown scope [label:x]; use [tag:NAME,...] or [task:ID,...]"),
    ],
)
def test_an_empty_scope_is_a_usage_error_before_anything_starts(
    project: Project, core: FakeCore, gate: str, samples: str, error: str
) -> None:
    project.task("sql/a", yaml="tags: [sql]\n")
    assert error in usage_error(project.run("tasks", "--samples", samples, "--rollout-gate", gate))
    assert not core.sessions


# Prices


def test_reports_have_the_cost_of_all_attempts(project: Project, core: FakeCore) -> None:
    project.task("a")
    project.write("prices.yaml", "gpt-5: {input: 100, output: 1000, input_cache_read: 10}\n")
    usage = {"input_tokens": 10_000, "input_tokens_details": {"cached_tokens": 5_000}, "output_tokens": 100}
    broken = Script(turn_status="failed", error={"code": "server_error", "message": "m"}, usage=usage)
    core.script = lambda body: Script(answer=RIGHT, usage=usage) if core.sessions else broken
    args = ("tasks", "--harness", "codex", "--model", "gpt-5", "--rollout-prices", "prices.yaml")
    result = project.run(*args, "--rollout-report", "r.md")
    assert result.ret == 0, text_of(result)
    # two attempts of 5,000 tokens at $100, 5,000 at $10 and 100 at $1,000 per million
    assert "- cost: $1.30, $1.30 per solved task\n" in (project.path / "r.md").read_text()
    assert "- cost: $1.30, $1.30 per solved task" in text_of(result)
    [file] = project.results
    [row] = map(json.loads, file.read_text().splitlines())
    assert (row["usage"], row["earlier_usage"], row["spent"]) == (usage, [usage], 20_200)
    project.write("prices.yaml", "gpt-5: {input: free, output: 1}\n")
    assert "prices.yaml:1: gpt-5.input: expected dollars per million tokens" in usage_error(project.run(*args))
