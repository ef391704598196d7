"""What a process hides from sandboxes, and how its children learn it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from pytest_core_rollouts.embedded import hidden
from pytest_core_rollouts.embedded.hidden import find_places, hidden_places, hide, merge_places

SHOW = "from pytest_core_rollouts.embedded.hidden import hidden_places; print(*hidden_places(), sep='|')"


@pytest.fixture(autouse=True)
def nothing_hidden(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.delenv(hidden.VARIABLE, raising=False)
    monkeypatch.setattr(hidden, "_counts", type(hidden._counts)())
    yield
    assert hidden_places() == (), "what a test hid, it showed again"
    assert hidden.VARIABLE not in os.environ


def of_child(**options: object) -> list[str]:
    argv = [sys.executable, "-c", SHOW]
    done = subprocess.run(argv, capture_output=True, text=True, check=True, **options)  # type: ignore[call-overload]
    return [place for place in done.stdout.strip().split("|") if place]


def test_child_process_hides_the_same_in_any_working_directory(tmp_path: Path) -> None:
    odd = tmp_path / 'with "quotes"\nand é'
    odd.mkdir()
    first, second = hide([tmp_path / "a"]), hide([tmp_path / "a", odd])
    assert hidden_places() == (str(tmp_path / "a"), str(odd))
    assert "\n".join(of_child(cwd="/")).startswith(f"{tmp_path}/a\n{tmp_path}/with")
    second()
    second()
    assert hidden_places() == (str(tmp_path / "a"),), "the first still hides it"
    first()
    assert of_child() == []


def test_process_with_another_environment_can_be_given_the_places(tmp_path: Path) -> None:
    end = hide([tmp_path])
    code = f"from pytest_core_rollouts.embedded.hidden import hide; hide({hidden_places()!r}); {SHOW}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env={})
    end()
    assert done.stdout.strip() == str(tmp_path)


def test_malformed_variable_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    argv = [sys.executable, "-c", SHOW]
    done = subprocess.run(argv, capture_output=True, text=True, env={**os.environ, hidden.VARIABLE: "/a:/b"})
    assert done.returncode != 0
    assert "CORE_ROLLOUTS_HIDDEN: expected a JSON list of paths, got '/a:/b'; unset it" in done.stderr


def test_path_inside_a_hidden_place_is_merged_unless_programs_are_in_it() -> None:
    assert merge_places(["/srv/p/tasks/a", "/srv/p", "/srv/p2"]) == ("/srv/p", "/srv/p2")
    assert merge_places(["/", "/usr/share/p", "/usr/share/p/tasks"]) == ("/", "/usr/share/p")
    assert merge_places([sys.base_prefix, f"{sys.base_prefix}/lib/tasks"]) == tuple(
        map(os.path.realpath, (sys.base_prefix, f"{sys.base_prefix}/lib/tasks"))
    )


def test_very_many_tasks_fit_into_an_environment_variable() -> None:
    tasks = [f"/srv/tasks-{group}/group/task-{number}" for group in range(200) for number in range(100)]
    places = merge_places(["/usr/share/p", *tasks])
    assert places == tuple(sorted(["/usr/share/p", *(f"/srv/tasks-{group}/group" for group in range(200))]))


def test_folder_around_a_task_is_hidden_unless_programs_are_in_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    programs = [Path(task) for task in ("/task", "/usr/task", "/usr/share/task", "/usr/local/lib/task")]
    places = find_places([], tasks=[tmp_path / "tasks" / "a", tmp_path / "tasks" / "b", *programs])
    assert places.hidden == (f"{tmp_path}/here", f"{tmp_path}/tasks")
    assert set(places.private) == {*map(str, programs), f"{tmp_path}/tasks/a", f"{tmp_path}/tasks/b"}


def test_places_of_a_project_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("project", "tasks/a", "elsewhere/b", "results", "here"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "tasks" / "b").symlink_to(tmp_path / "elsewhere" / "b")
    monkeypatch.chdir(tmp_path / "here")
    places = find_places(
        [tmp_path / "project"],
        tasks=[tmp_path / "tasks" / "a", tmp_path / "tasks" / "b"],
        files=[tmp_path / "results" / "r.jsonl"],
        folders=[tmp_path / "captures"],
    )
    assert [Path(place).relative_to(tmp_path).as_posix() for place in places.hidden] == [
        *("elsewhere", "here", "project", "results", "tasks")
    ]
    assert [Path(place).relative_to(tmp_path).as_posix() for place in places.private] == [
        *("captures", "elsewhere/b", "results/.r.files", "results/r.files", "results/r.jsonl", "tasks/a")
    ]
