"""Which folders are tasks, what their ids are, and which paths lead to them."""

from __future__ import annotations

from pathlib import Path

from pytest_core_rollouts.tasks.folders import (
    count_tasks,
    find_task,
    is_task_folder,
    leads_back,
    names_tasks,
    task_around,
    task_id,
)


def make_task(folder: Path) -> Path:
    folder.mkdir(parents=True)
    (folder / "instruction.md").write_text("Do it.")
    (folder / "expected.json").write_text('{"x": 1}')
    return folder


def test_folders_with_an_instruction_and_a_grading_are_tasks(tmp_path: Path) -> None:
    root = tmp_path / "tasks"
    whole = make_task(root / "sql/joins")
    (root / "half").mkdir()
    (root / "half/expected.json").write_text("{}")
    (root / "grader.py").write_text("")
    elsewhere = tmp_path / "docs"
    elsewhere.mkdir()
    (elsewhere / "instruction.md").write_text("")
    assert is_task_folder(whole, [root])
    assert is_task_folder(whole, [])
    assert is_task_folder(root / "half", [root])
    assert not is_task_folder(root / "half", [])
    assert not is_task_folder(root, [root])
    assert not is_task_folder(root / "sql", [root])
    assert not is_task_folder(elsewhere, [root])
    assert count_tasks([root, root / "sql"]) == 2
    assert count_tasks([tmp_path / "missing"]) == 0


def test_task_ids_are_paths_below_the_root(tmp_path: Path) -> None:
    roots = [tmp_path / "tasks", tmp_path / "tasks/sql"]
    joins = make_task(tmp_path / "tasks/sql/joins")
    mine = make_task(tmp_path / "docs/mine")
    assert task_id(joins, roots, tmp_path) == "joins"
    assert task_id(joins, roots[:1], tmp_path) == "sql/joins"
    assert task_id(mine, roots, tmp_path) == "docs/mine"
    assert task_id(joins, [joins], tmp_path) == "joins"
    assert find_task("joins", roots, tmp_path) == joins
    assert find_task("docs/mine", roots, tmp_path) == mine
    for unknown in ("sql/joins", "join", "../tasks/sql/joins", str(joins), "", "."):
        assert find_task(unknown, roots, tmp_path) is None


def test_paths_inside_a_task_are_recognized(tmp_path: Path) -> None:
    roots = [tmp_path / "tasks"]
    folder = make_task(tmp_path / "tasks/sum")
    inner = make_task(folder / "files/looks/like/one")
    assert task_around(inner / "instruction.md", roots) == folder
    assert task_around(folder / "expected.json", roots) == folder
    for path in (folder, folder / "instruction.md", folder.parent, tmp_path):
        assert task_around(path, roots) is None


def test_paths_that_lead_to_tasks_are_recognized(tmp_path: Path) -> None:
    roots = [tmp_path / "tasks"]
    folder = make_task(tmp_path / "tasks/sum")
    mine = make_task(tmp_path / "docs/mine")
    for path in (roots[0], folder, folder / "instruction.md", mine, mine / "instruction.md"):
        assert names_tasks(path, roots)
    for path in (tmp_path, tmp_path / "docs", tmp_path / "tests"):
        assert not names_tasks(path, roots)
    assert not names_tasks(tmp_path / "docs", [tmp_path / "docs/empty"])


def test_links_to_a_parent_folder_end_the_search(tmp_path: Path) -> None:
    root = tmp_path / "tasks"
    folder = make_task(root / "sum")
    outside = make_task(tmp_path / "elsewhere/one").parent
    for link, target, back in (
        (root / "up", tmp_path, True),
        (root / "round", root, True),
        (root / "same", folder, True),
        (root / "far", outside, False),
        (outside / "self", outside, False),
    ):
        link.symlink_to(target)
        assert leads_back(link, [root]) is back
    assert leads_back(root / "far/self", [root])
