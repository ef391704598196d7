"""Collection asks nobody and writes nothing, and is the same in every process."""

from __future__ import annotations

import pytest

from tests.integration.conftest import Project, node_ids, outcomes, text_of
from tests.support.fake_core import FakeCore


@pytest.mark.usefixtures("no_core")
@pytest.mark.parametrize("how", ["--collect-only", "--setup-only", "--setup-plan", "--fixtures", "--fixtures-per-test"])
def test_a_dry_run_needs_no_core_and_writes_no_file(project: Project, core: FakeCore, how: str) -> None:
    project.task()
    args = (
        "tasks",
        "--harness",
        "codex",
        "--samples",
        "2",
        "--rollout-report",
        "table.md",
        "--rollout-out",
        "rows.jsonl",
    )
    for workers in ((), ("-n", "2")):
        result = project.run(*args, how, "-p", "no:cacheprovider", *workers)
        assert result.ret == 0, text_of(result)
    assert not core.requests
    assert {path.name for path in project.path.iterdir()} == {"tasks"}


def test_a_dry_run_sends_no_request_to_a_core(project: Project, core: FakeCore) -> None:
    project.task()
    for how in ("--collect-only", "--setup-only", "--setup-plan"):
        assert project.run("tasks", how).ret == 0
    assert not core.requests
    assert not (project.path / "runs").exists()


def test_a_dry_run_does_not_change_an_existing_jsonl(project: Project) -> None:
    project.task()
    project.write("rows.jsonl", "kept")
    assert project.run("tasks", "--rollout-out", "rows.jsonl", "--collect-only").ret == 0
    assert (project.path / "rows.jsonl").read_text() == "kept"


def test_the_order_of_collection_does_not_depend_on_hashes(project: Project) -> None:
    names = ["b", "a/z", "a/b", "C", "10", "9", "é"]
    for name in names:
        project.task(name, yaml="tags: [one, two, three]\nsamples: 2")
    args = ("tasks", "--harness", "codex", "--harness", "mcode", "--model", "y", "--model", "x", "--collect-only", "-q")
    first = node_ids(project.run(*args))
    assert len(first) == len(names) * 8
    assert first == node_ids(project.run_apart(*args, env={"PYTHONHASHSEED": "1"}))
    assert first == node_ids(project.run_apart(*args, env={"PYTHONHASHSEED": "2"}))


def test_workers_collect_the_same_items(project: Project, core: FakeCore) -> None:
    for name in ("a", "b", "c"):
        project.task(name, yaml="tags: [one, two]")
    result = project.run("tasks", "--harness", "codex", "--harness", "mcode", "-n", "2")
    assert outcomes(result) == {"passed": 6}, text_of(result)
    assert len(core.sessions) == 6


@pytest.mark.slow
def test_workers_collect_the_same_items_in_twenty_starts_with_different_hash_seeds(project: Project) -> None:
    for number in range(10):
        project.task(f"t{number}", yaml="tags: [one, two]")
    for seed in range(20):
        result = project.run_apart(
            "tasks", "--samples", "4", "-n", "4", "-k", "t3 or t7", env={"PYTHONHASHSEED": str(seed)}
        )
        assert outcomes(result) == {"passed": 8}, text_of(result)
