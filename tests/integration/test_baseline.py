"""A run measured against an earlier one: what is compared, what is printed before and after, what fails it."""

from __future__ import annotations

import shutil

import pytest

from pytest_core_rollouts.cli import main
from tests.integration.conftest import RIGHT, WRONG, Project, text_of, usage_error
from tests.integration.test_gates import BROKEN, answering, gate_lines
from tests.support.fake_core import FakeCore, Script

pytestmark = pytest.mark.slow

MAIN = ("--rollout-baseline", "main.jsonl")
GATE = ("--rollout-gate", "baseline", *MAIN)


@pytest.fixture
def baseline(project: Project) -> None:
    """Five tasks, solved in all of four samples each, in main.jsonl."""
    for name in "abcde":
        project.task(name)
    result = project.run("tasks", "--samples", "4", "--rollout-out", "main.jsonl", "-q")
    assert result.ret == 0


@pytest.mark.usefixtures("baseline")
@pytest.mark.parametrize("workers", [(), ("-n2",)])
def test_a_drop_fails_and_the_detectable_change_is_shown_before_and_after(
    project: Project, core: FakeCore, workers: tuple[str, ...]
) -> None:
    answering(core, **{name: [WRONG] * 4 for name in "abcde"})
    result = project.run_apart("tasks", "--samples", "4", *GATE, *workers)
    assert result.ret == 1
    before, after = text_of(result).split("= rollouts =")
    assert (
        "gate baseline can see a drop of 0.250 in the mean (5 fewer of 20 rollouts solved, spread over the tasks), "
        "a smaller one only if few tasks bear it\n"
        "gate baseline can fail no single task: even 4/4 -> 0/4 has p = 0.029 (two-sided), 0.14 after Holm's "
        "correction for 5 tasks\n"
    ) in before
    assert "- it could see a drop of 0.250 in the mean" in after
    assert "this run compared with main.jsonl: mean reward 1.000 -> 0.000 over 5 tasks,\n-1.000" in after
    assert gate_lines(result)[-1] == (
        "gate baseline: failed: mean reward 1.000 -> 0.000 over 5 tasks, a significant drop (p < 0.0001, one-sided)"
    )


@pytest.mark.usefixtures("baseline")
def test_noise_passes_and_only_selected_tasks_are_compared(project: Project, core: FakeCore) -> None:
    answering(core, a=[WRONG])
    result = project.run("tasks", "--samples", "4", *GATE, "--rollout-report", "r.md")
    assert result.ret == 0, text_of(result)
    assert gate_lines(result)[-1] == (
        "gate baseline: passed: mean reward 1.000 -> 0.950 over 5 tasks, no significant drop (p = 0.5, one-sided)"
    )
    assert "| a    |    4/4 |   3/4 | -0.250 |             1 |    1 |" in (project.path / "r.md").read_text()
    result = project.run("tasks/b", "tasks/c", *GATE)
    assert "- not selected, or gone: a, d, e" in text_of(result)
    assert gate_lines(result)[-1].startswith("gate baseline: passed: mean reward 1.000 -> 1.000 over 2 tasks")


@pytest.mark.usefixtures("baseline")
@pytest.mark.parametrize("workers", [(), ("-n2",)])
def test_new_changed_removed_and_skipped_tasks_are_named(
    project: Project, core: FakeCore, workers: tuple[str, ...]
) -> None:
    project.task("new")
    shutil.rmtree(project.path / "tasks/b")
    project.write("tasks/c/expected.json", '{"x": 1, "y": 2}')
    result = project.run_apart("tasks", "--samples", "4", *GATE, *workers)
    assert result.ret == 0, text_of(result)
    text = text_of(result)
    assert "- new, not compared: new\n- task changed, not compared: c\n- not selected, or gone: b\n" in text
    assert gate_lines(result)[-1].endswith(", no significant drop (p = 1, one-sided); gone: b")
    project.task("d", yaml="skip: flaky\n")
    result = project.run_apart("tasks", "--samples", "4", *GATE, *workers)
    assert result.ret == 1
    assert gate_lines(result)[-1] == "gate baseline: failed: no result for d, which the baseline has; gone: b"


@pytest.mark.usefixtures("baseline")
def test_the_gate_is_undecided_until_a_resume_has_run_every_task(project: Project, core: FakeCore) -> None:
    answering(core, **{name: [BROKEN] * 4 for name in "abcde"})
    stopped = ("tasks", "--samples", "4", "-x", "--rollout-concurrency", "1", "--rollout-retries", "0", *GATE)
    result = project.run(*stopped, "--rollout-out", "now.jsonl")
    assert result.ret == 1
    verdict = gate_lines(result)[-1]
    assert verdict.startswith("gate baseline: undecided: no result yet for a, b, c, d, e, which the baseline has (")
    assert main(["report", str(project.path / "now.jsonl"), "--gate", "baseline", "--baseline", "main.jsonl"]) == 1
    answering(core)
    result = project.run("tasks", "--samples", "4", *GATE, "--rollout-resume", "now.jsonl")
    assert result.ret == 0
    assert gate_lines(result)[-1].startswith("gate baseline: passed: mean reward 1.000 -> 1.000 over 5 tasks")


@pytest.mark.usefixtures("baseline")
def test_the_gate_lost_fails_and_names_a_task_that_no_longer_passes(project: Project, core: FakeCore) -> None:
    answering(core, a=[WRONG] * 4)
    result = project.run("tasks", "--samples", "4", "--rollout-gate", "lost<=0", *MAIN)
    assert result.ret == 1
    assert gate_lines(result) == ["gate lost<=0: failed: 1 lost that the baseline always solves: a"]


@pytest.mark.usefixtures("baseline")
def test_without_a_gate_the_baseline_is_only_shown(project: Project, core: FakeCore) -> None:
    answering(core, **{name: [WRONG] * 4 for name in "abcde"})
    result = project.run("tasks", "--samples", "4", *MAIN, "--rollout-gate", "none")
    assert result.ret == 0
    assert "- worse: a 4/4 -> 0/4" in text_of(result)
    assert gate_lines(result) == ["gate none: passed: 20 of 20 rollouts graded"]


@pytest.mark.usefixtures("baseline")
def test_one_file_can_be_baseline_and_output(project: Project, core: FakeCore) -> None:
    answering(core, **{name: [WRONG] * 4 for name in "abcde"})
    result = project.run("tasks", "--samples", "4", *GATE, "--rollout-out", "main.jsonl")
    assert result.ret == 1
    assert gate_lines(result)[-1].startswith("gate baseline: failed: mean reward 1.000 -> 0.000")


@pytest.mark.usefixtures("baseline")
def test_an_agent_that_is_missing_in_the_baseline_is_a_usage_error(project: Project, core: FakeCore) -> None:
    created = len(core.sessions)
    result = project.run_apart("tasks", *GATE, "--harness", "codex", "--harness", "default")
    assert usage_error(result).endswith("main.jsonl has no results of codex/default; it has default")
    assert len(core.sessions) == created


@pytest.mark.usefixtures("baseline")
def test_the_only_agent_is_compared_with_the_only_agent_of_the_baseline(project: Project) -> None:
    result = project.run("tasks", *GATE, "--harness", "codex")
    assert result.ret == 0
    assert gate_lines(result)[-1].startswith("gate baseline: passed: mean reward 1.000 -> 1.000 over 5 tasks")


def test_two_agents_of_one_run_are_compared(project: Project, core: FakeCore) -> None:
    for name in "abcdef":
        project.task(name)
    for prompt in ("long", "short"):
        project.write(f"{prompt}.yaml", f"name: {prompt}\nharness: codex\ninstructions: Be {prompt}.\n")
    core.script = lambda body: _answer_if(b"Be long" in repr(body).encode())
    args = ("--rollout-agent", "long.yaml", "--rollout-agent", "short.yaml", "--rollout-gate", "none")
    text = text_of(project.run("tasks", *args))
    assert "short compared with long: mean reward 1.000 -> 0.000 over 6 tasks, -1.000" in text
    assert "p = 0.031 on these tasks, p = 0.031 on" in text.replace("\n  ", " ")  # 2 of 2**6 either way


def _answer_if(right: bool) -> Script:
    return Script(answer=RIGHT if right else WRONG)


@pytest.mark.usefixtures("baseline")
@pytest.mark.parametrize("workers", [(), ("-n2",)])
def test_changed_tasks_and_xfails_do_not_count_for_the_detectable_change(
    project: Project, workers: tuple[str, ...]
) -> None:
    project.write("tasks/a/instruction.md", "Something else.")
    project.task("b", yaml="xfail: {reason: too hard}")
    project.task("f")
    result = project.run_apart("tasks", "--samples", "4", *GATE, *workers)
    assert "4/4 -> 0/4 has p = 0.029 (two-sided), 0.086 after Holm's correction for 3 tasks\n" in text_of(result)


@pytest.mark.usefixtures("baseline")
@pytest.mark.parametrize("workers", [(), ("-n2",)])
def test_a_gate_that_can_compare_nothing_is_a_usage_error(
    project: Project, core: FakeCore, workers: tuple[str, ...]
) -> None:
    project.write("tasks/a/instruction.md", "Something else.")
    project.task("f")
    sessions = len(core.sessions)
    result = project.run_apart("tasks/a", "tasks/f", *GATE, *workers)
    assert result.ret == 4, text_of(result)
    assert "has no results of the selected tasks as they are now" in text_of(result)
    assert len(core.sessions) == sessions


SHARD = """
import pytest

@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config, items):
    mine = [item for at, item in enumerate(items) if at % 2 == 0 and "tasks/e/" not in item.nodeid]
    config.hook.pytest_deselected(items=[item for item in items if item not in mine])
    items[:] = mine
"""
"""What pytest-split and others do: parts of groups, and whole groups, run elsewhere."""


@pytest.mark.usefixtures("baseline")
@pytest.mark.parametrize("workers", [(), ("-n2",)])
def test_what_a_plugin_takes_out_stays_planned(project: Project, workers: tuple[str, ...]) -> None:
    """A shard of another plugin had "complete" groups of half their size, and passed each gate."""
    project.write("conftest.py", SHARD)
    args = ("tasks", "--samples", "4", *GATE, "--rollout-gate", "mean>=0.1", *workers)
    result = project.run_apart(*args, "--rollout-out", "1.jsonl")
    assert result.ret == 1
    text = text_of(result)
    assert (
        "planned, but not selected: 12 rollouts of a, b, c, d, e, which a plugin or a conftest.py took out; "
        "no gate passes without them (--rollout-allow-missing)\n"
    ) in text
    assert "rows 8 of 20 planned" in text
    assert [line.split(":")[1] for line in gate_lines(result)[-2:]] == [" undecided", " undecided"]
    assert workers or result.parseoutcomes()["deselected"] == 12
    assert main(["report", str(project.path / "1.jsonl"), "--gate", "mean>=0.1"]) == 1
    assert main(["report", str(project.path / "1.jsonl"), "--gate", "mean>=0.1", "--allow-missing"]) == 0
    result = project.run_apart(*args, "--rollout-allow-missing")
    assert result.ret == 0, text_of(result)
    assert "; accepted: 12 of 20 rollouts did not run, no row of e" in gate_lines(result)[-2]
    assert gate_lines(result)[-1].endswith("; accepted: 12 of 20 rollouts did not run")


@pytest.mark.usefixtures("baseline")
@pytest.mark.parametrize("workers", [(), ("-n2",)])
def test_what_the_user_leaves_out_is_left_out_on_purpose(project: Project, workers: tuple[str, ...]) -> None:
    lines = []
    for left_out in (
        ("-k", "not slow"),
        ("-m", "not slow"),
        ("--deselect", "tasks/a"),
        ("--ignore", "tasks/a"),
        ("--ignore-glob", "*/tasks/a"),
        ("--rollout-task", "b", "--rollout-task", "c"),
        ("tasks/b", "tasks/c", "tasks/d"),
        ("tasks/b/instruction.md::default-default-0", "tasks/c"),
    ):
        project.task("a", yaml="tags: [slow]")
        paths = () if left_out[0].startswith("tasks") else ("tasks",)
        result = project.run_apart(*paths, "--samples", "4", *GATE, *left_out, *workers)
        lines.append(gate_lines(result)[-1])
        assert result.ret == 0, text_of(result)
    assert all(", no significant drop (" in line and line.endswith("one-sided)") for line in lines), lines


@pytest.mark.usefixtures("baseline")
@pytest.mark.parametrize("workers", [(), ("-n2",)])
def test_task_that_vanished_in_silence_leaves_the_gate_undecided(project: Project, workers: tuple[str, ...]) -> None:
    """It is there, nobody left it out, and pytest does not collect it: by norecursedirs, or by a conftest.py."""
    args = ("tasks", "--samples", "4", *GATE, *workers)
    for vanish in (
        lambda: project.ini("norecursedirs = a"),
        lambda: project.write("conftest.py", "collect_ignore = ['tasks/a']"),
    ):
        vanish()
        result = project.run_apart(*args)
        assert result.ret == 1
        assert gate_lines(result)[-1].endswith("; no row of a, which the baseline has")
        project.ini("")
    result = project.run_apart(*args, "--rollout-allow-missing")
    assert result.ret == 0
    assert gate_lines(result)[-1].endswith("; accepted: no row of a")
    project.ini("rollout_allow_missing = true")
    assert project.run_apart(*args).ret == 0


@pytest.mark.usefixtures("baseline")
def test_baseline_that_lacks_rows_is_refused_before_anything_is_paid_for(project: Project, core: FakeCore) -> None:
    """Of a task that was cut from it, a drop from 4/4 to 0/4 would pass as new."""
    file = project.path / "main.jsonl"
    rows = [row for row in file.read_bytes().splitlines(keepends=True) if b'"task":"e"' not in row]
    file.write_bytes(b"".join(rows))
    sessions = len(core.sessions)
    result = project.run_apart("tasks", "--samples", "4", *GATE)
    assert usage_error(result) == (
        f"--rollout-baseline: {file} lacks 4 of its 20 planned rollouts; finish that run with --rollout-resume, "
        "or accept this with --rollout-allow-missing"
    )
    assert len(core.sessions) == sessions
    result = project.run_apart("tasks", "--samples", "4", *GATE, "--rollout-allow-missing")
    assert result.ret == 0
    assert gate_lines(result)[-1].endswith(f"; accepted: {file} lacks 4 of its 20 planned rollouts")


@pytest.mark.usefixtures("baseline")
def test_replay_of_a_part_leaves_the_gate_undecided(project: Project) -> None:
    rows = (project.path / "main.jsonl").read_bytes().splitlines(keepends=True)
    project.write("part.jsonl", b"".join(row for row in rows if b'"task":"a"' not in row))
    result = project.run_apart("tasks", "--rollout-replay", "part.jsonl", *GATE)
    assert gate_lines(result)[-1].endswith("; no row of a, which the baseline has")
    assert result.ret == 1
    assert project.run_apart("tasks", "--deselect", "tasks/a", "--rollout-replay", "main.jsonl", *GATE).ret == 0
