"""Skills of agent files: folders are packed, the same everywhere, and bad ones are refused with the file's line."""

from __future__ import annotations

import base64
import io
import zipfile
from pathlib import Path

import pytest

from pytest_core_rollouts.options.agent_file import AgentError, load_agent
from pytest_core_rollouts.tasks.matrix import Agent

HEAD = "---\nname: csv-files\ndescription: How to read CSV.\nlicense: MIT\n---\n"


def agent_with(folder: Path, skill: str) -> Agent:
    (folder / "a.yaml").write_text(f"harness: codex\nskills:\n  - {skill}\n")
    return load_agent(folder / "a.yaml")


def test_folder_is_packed_the_same_every_time(tmp_path: Path) -> None:
    skill = tmp_path / "skills" / "csv"
    (skill / "scripts" / "__pycache__").mkdir(parents=True)
    (skill / "scripts" / "__pycache__" / "x.pyc").touch()
    (skill / "scripts" / "read.py").write_text("print()\n")
    (skill / "SKILL.md").write_text(f"{HEAD}Use the module csv.\n")
    one = agent_with(tmp_path, "skills/csv")
    [sent] = one.skills
    assert (sent["type"], sent["name"], sent["description"]) == ("inline", "csv-files", "How to read CSV.")
    archive = zipfile.ZipFile(io.BytesIO(base64.b64decode(sent["source"]["data"])))
    assert {name: archive.read(name) for name in archive.namelist()} == {
        "SKILL.md": f"{HEAD}Use the module csv.\n".encode(),
        "scripts/read.py": b"print()\n",
    }
    (skill / "SKILL.md").touch()
    assert agent_with(tmp_path, "./skills/csv").digest == one.digest
    (skill / "scripts" / "read.py").write_text("print(1)\n")
    assert agent_with(tmp_path, "skills/csv").digest != one.digest


@pytest.mark.parametrize(
    ("main", "problem"),
    [
        (None, "SKILL.md can't be read ("),
        ("# No head\n", "SKILL.md:1: expected a head between two lines `---`, with `name` and `description`"),
        ("---\nname: CSV\ndescription: x\n---\n", "SKILL.md: name: expected 1 to 64 lowercase letters"),
        ("---\nname: csv\n---\n", "SKILL.md: description: expected a text of 1 to 1,024 characters"),
        ("---\nname: csv\nname: csv\n---\n", "SKILL.md:3: name: a duplicate key"),
        (HEAD + "x" * 6_000_000, "csv has more than 5 MiB; make it smaller"),
        ("link", "link is not a regular file; a skill can only hold files and folders"),
        ("many", "csv has more than 256 files; make it smaller"),
    ],
)
def test_bad_skill_is_refused_with_the_line_of_the_agent_file(tmp_path: Path, main: str | None, problem: str) -> None:
    skill = tmp_path / "csv"
    skill.mkdir()
    if main is not None:
        (skill / "SKILL.md").write_text(HEAD if main in ("link", "many") else main)
    if main == "link":
        (skill / "link").symlink_to("/etc/passwd")
    for number in range(300 if main == "many" else 0):
        (skill / f"{number}.md").touch()
    with pytest.raises(AgentError) as caught:
        agent_with(tmp_path, "csv")
    assert str(caught.value).startswith(f"{tmp_path}/a.yaml:3: skills[0]: {tmp_path}/csv")
    assert problem in str(caught.value)
