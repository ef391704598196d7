"""Inline skills: which archives are unpacked, and which are refused."""

from __future__ import annotations

import base64
import io
import stat
import zipfile
from typing import Any

import pytest

from pytest_core_rollouts.embedded.environment import ARCHIVE_LIMIT, CONTENT_LIMIT, Skill
from pytest_core_rollouts.embedded.errors import APIError
from pytest_core_rollouts.embedded.harnesses import HARNESSES
from pytest_core_rollouts.embedded.requests import read_creation
from tests.support.agents import creation
from tests.support.tables import rows
from tests.support.wire import HOSTED, Wire

MAIN = ("SKILL.md", b"---\nname: x\ndescription: y\n---\n")


def packed(*files: tuple[str | zipfile.ZipInfo, bytes]) -> bytes:
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as opened:
        for name, data in files:
            opened.writestr(name, data)
    return archive.getvalue()


def sent(archive: bytes, **members: Any) -> dict[str, Any]:
    data = base64.b64encode(archive).decode()
    source = {"type": "base64", "media_type": "application/zip", "data": data}
    return {"type": "inline", "name": "a-skill", "description": "Does it.", "source": source, **members}


def read(*skills: Any) -> list[Skill]:
    body = creation("codex", "https://x.example", environment={"skills": list(skills)})
    return read_creation(body, HARNESSES).environment.skills


def refused(*skills: Any) -> APIError:
    with pytest.raises(APIError) as caught:
        read(*skills)
    assert caught.value.status == 400
    assert caught.value.param is not None
    assert caught.value.param.startswith("environment.skills")
    return caught.value


def test_files_are_unpacked_from_the_top_or_from_a_single_folder() -> None:
    data = ("lib/run.py", b"\x00\xff")
    for prefix in ("", "a-skill/"):
        [skill] = read(sent(packed(*((prefix + name, content) for name, content in (MAIN, data)))))
        assert dict(skill.source.data) == dict((MAIN, data))
        assert skill.wire() == {"type": "inline", "name": "a-skill", "description": "Does it."}


def linking() -> zipfile.ZipInfo:
    link = zipfile.ZipInfo("link")
    link.external_attr = (stat.S_IFLNK | 0o777) << 16
    return link


ARCHIVES = {
    "not a readable ZIP archive": b"nonsense",
    "not a readable ZIP": packed(MAIN)[:-30],
    "no SKILL.md": packed(("other.md", b"")),
    "no SKILL.md at its top": packed(("a/SKILL.md", b""), ("b/x", b"")),
    "leads out": packed(MAIN, ("../x", b"")),
    "leads out of it": packed(MAIN, ("/etc/x", b"")),
    "leads out of": packed(MAIN, ("a\\..\\b", b"")),
    "not a regular file": packed(MAIN, (linking(), b"/etc/passwd")),
    "more than 16777216 bytes": packed(MAIN, ("bomb", bytes(CONTENT_LIMIT))),
    "257 files": packed(MAIN, *((str(number), b"") for number in range(256))),
    "at one path": packed(MAIN, ("a", b""), ("a/b", b"")),
    "entries at one path": packed(MAIN, ("a/b", b""), ("a", b"")),
    "at most 5242880 are accepted": bytes(ARCHIVE_LIMIT + 1),
}


@rows(("why", "archive"), ARCHIVES.items(), ids=ARCHIVES)
def test_invalid_archive_is_refused(why: str, archive: bytes) -> None:
    assert why in refused(sent(archive)).message


def test_invalid_skill_is_refused() -> None:
    good = packed(MAIN)
    assert refused({"type": "skill_reference", "skill_id": "x"}).code == "unsupported_or_invalid_configuration"
    assert "lowercase letters" in refused(sent(good, name="../x")).message
    assert "1 to 1024" in refused(sent(good, description=" ")).message
    assert "base64" in refused(sent(good, source={**sent(good)["source"], "data": "!"})).message
    assert "application/zip" in refused(sent(good, source={**sent(good)["source"], "media_type": "x"})).message
    assert "same name" in refused(sent(good), sent(good)).message
    assert "at most 16" in refused(*(sent(good, name=f"s{number}") for number in range(17))).message
    assert "unknown member" in refused(sent(good, path="x")).message


def test_harness_without_a_skills_folder_refuses_skills(wire: Wire) -> None:
    agent = {"x_agents_core": {"harness": "nop"}}
    body = {"environment": {**HOSTED, "skills": [sent(packed(MAIN))]}, "agent": agent, "input": "x"}
    error = wire.refused(400, "POST", "/sessions", json=body)
    assert (error["param"], error["message"]) == (
        "environment.skills",
        "environment.skills: not supported by harness nop",
    )
    body = creation("codex", "https://x.example", environment={"skills": [sent(b"nonsense")]})
    assert wire.refused(400, "POST", "/sessions", json=body)["param"] == "environment.skills[0].source.data"
