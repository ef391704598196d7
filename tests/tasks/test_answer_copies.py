"""A copy of the expected answer under `files/` is an error, unless the task says why it is there."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pytest_core_rollouts.checking.checks import TaskChecks, apply_silence
from pytest_core_rollouts.tasks.files import InputFile, TaskError
from pytest_core_rollouts.tasks.loading import load_task
from pytest_core_rollouts.tasks.task import Task
from pytest_core_rollouts.tasks.task_settings import FINDINGS
from tests.integration.conftest import Project, core, outcomes, project, text_of
from tests.support.fake_core import FakeCore

__all__ = ["core", "project"]  # fixtures

ANSWER = {"total": 7, "rows": [{"name": "é", "on": True, "share": 0.5}] * 30}
COPIES = {
    "bytes": b'{"total": 7}',
    "spaces": b'\xef\xbb\xbf\n { "total" :\t7 }\n',
    "a float": b'{"total": 7.0}',
    "escapes": b'{"\\u0074otal": 7}',
}
OTHERS = {
    "more": b'{"total": 7, "other": 1}',
    "another value": b'{"total": 8}',
    "true": b'{"total": true}',
    "a list": b'[{"total": 7}]',
    "no JSON": b"{total: 7}",
    "empty": b"",
}


def folder(path: Path, files: dict[str, bytes], yaml: str = "", expected: object = None) -> Path:
    (path / "files/deep").mkdir(parents=True)
    (path / "instruction.md").write_text("Find the `total`. Write it to `/workspace/outputs/answer.json`.")
    (path / "expected.json").write_text(json.dumps(expected or {"total": 7}))
    (path / "task.yaml").write_text(yaml)
    for name, content in files.items():
        (path / "files" / name).write_bytes(content)
    return path


@pytest.mark.parametrize("yaml", ["", "pack: true\n"])
@pytest.mark.parametrize("name", COPIES)
def test_a_copy_is_an_error_that_names_the_file(tmp_path: Path, name: str, yaml: str) -> None:
    place = folder(tmp_path / "t", {"data.csv": b"1\n", "deep/x.json": COPIES[name]}, yaml)
    with pytest.raises(TaskError, match=r"files/deep/x.json: equals the expected answer") as caught:
        load_task(place, "t")
    assert str(caught.value).startswith(f"{place}/files/deep/x.json: ")


@pytest.mark.parametrize("yaml", ["", "pack: true\n"])
def test_a_file_that_only_contains_the_answer_is_not_a_copy(tmp_path: Path, yaml: str) -> None:
    load_task(folder(tmp_path / "t", OTHERS, yaml), "t")
    loaded = {"true": b'{"total": 1}', "data": json.dumps({"total": True}).encode()}
    with pytest.raises(TaskError, match="files/data: equals"):
        load_task(folder(tmp_path / "u", loaded, yaml, {"total": True}), "u")


@pytest.mark.parametrize("indent", [None, 4])
def test_a_long_answer_is_found_however_it_is_written(tmp_path: Path, indent: int | None) -> None:
    for ascii_only in (True, False):
        text = json.dumps(ANSWER, indent=indent, ensure_ascii=ascii_only)
        place = folder(tmp_path / str(ascii_only), {"a.json": text.encode()}, "", ANSWER)
        with pytest.raises(TaskError, match=r"files/a.json: equals"):
            load_task(place, "t")


def test_tasks_made_in_code_are_held_to_it(tmp_path: Path) -> None:
    files = (InputFile.of("a.json", b'{"total": 7}'),)
    for pack in (False, True):
        with pytest.raises(TaskError, match=r"task 't': files: a.json: equals the expected answer"):
            Task(id="t", instruction="x", expected={"total": 7}, files=files, pack=pack)
    Task(id="t", instruction="x", expected={"total": 7}, files=files, silence={"answer-in-file": "a decoy"})


def test_a_reason_in_task_yaml_silences_it_for_check_too(tmp_path: Path) -> None:
    place = folder(tmp_path / "t", {"x.json": COPIES["bytes"]}, "silence: {answer-in-file: finding it is the task}\n")
    task = load_task(place, "t")
    found = list(TaskChecks(task, lambda task, answer: task.grade(answer)).findings())
    assert [one.message for one in found if one.code == "answer-in-file"] == ["x.json equals the expected answer"]
    codes = {one.code for one in apply_silence(task, found, frozenset(FINDINGS))}
    assert codes == {"no-solution", "warning"}  # neither answer-in-file nor silence-unused


def test_collection_stops_before_anything_is_sent(project: Project, core: FakeCore) -> None:
    project.task("a", expected={"total": 7}, files={"expected.json": '{"total": 7}'})
    result = project.run("tasks")
    assert outcomes(result) == {"errors": 1}
    assert f"{project.path}/tasks/a/files/expected.json: equals the expected answer" in text_of(result)
    assert not core.requests
