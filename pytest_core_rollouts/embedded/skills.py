"""`environment.skills` of a creation: ZIP archives, unpacked where a harness looks for skills."""

from __future__ import annotations

import base64
import binascii
import io
import re
import stat
import zipfile
import zlib
from dataclasses import dataclass, field

from .checked import Checked
from .errors import invalid, unsupported

SKILLS = 16
ARCHIVE_LIMIT = 5 * 1024 * 1024  # bytes, decoded
CONTENT_LIMIT = 16 * 1024 * 1024  # bytes of one skill's files, unpacked
FILES = 256

MAIN = "SKILL.md"


@dataclass(frozen=True)
class Skill:
    """`files`: path below the skill's folder, and content; `SKILL.md` is among them."""

    name: str
    description: str
    files: tuple[tuple[str, bytes], ...] = field(repr=False)

    def wire(self) -> dict[str, str]:
        return {"type": "inline", "name": self.name, "description": self.description}


def read_skills(environment: Checked) -> tuple[Skill, ...]:
    """Raises APIError (400)."""
    values = environment.array("skills")
    param = environment.at("skills")
    if len(values) > SKILLS:
        raise invalid(f"At most {SKILLS} skills are accepted, but got {len(values)}.", param)
    skills = tuple(_read_skill(value, f"{param}[{index}]") for index, value in enumerate(values))
    if len({skill.name for skill in skills}) < len(skills):
        raise invalid("Two skills have the same name.", param)
    return skills


def _read_skill(value: object, path: str) -> Skill:
    kind = Checked.of(value, path, ("type", "name", "description", "source", "skill_id", "version"))
    kind.required_text("type")
    if kind.choice("type", ("inline", "skill_reference")) == "skill_reference":
        raise unsupported("The embedded Core keeps no skills: send the skill's files inline.", kind.at("type"))
    skill = Checked.of(value, path, ("type", "name", "description", "source"))
    name, description = skill.required_text("name"), skill.required_text("description")
    if not re.fullmatch(r"[a-z0-9][a-z0-9-]{0,63}", name):
        raise invalid("A skill's name has 1 to 64 lower-case letters, digits and hyphens.", skill.at("name"))
    if not description.strip() or len(description) > 1024:
        raise invalid("A skill's description has 1 to 1024 characters.", skill.at("description"))
    skill.required("source")
    source = skill.object("source", ("type", "media_type", "data"))
    for member, only in (("type", "base64"), ("media_type", "application/zip")):
        source.required_text(member)
        source.choice(member, (only,))
    try:
        archive = base64.b64decode(source.required_text("data"), validate=True)
    except (binascii.Error, ValueError):
        raise invalid("A skill's archive is not standard base64.", source.at("data")) from None
    return Skill(name, description, _unpack(archive, source.at("data")))


def _unpack(archive: bytes, param: str) -> tuple[tuple[str, bytes], ...]:
    if len(archive) > ARCHIVE_LIMIT:
        raise invalid(f"A skill's archive has {len(archive)} bytes; at most {ARCHIVE_LIMIT} are accepted.", param)
    try:
        with zipfile.ZipFile(io.BytesIO(archive)) as opened:
            files = _read_files(opened, param)
    except (zipfile.BadZipFile, zlib.error, NotImplementedError, RuntimeError, EOFError, ValueError, OSError) as error:
        raise invalid(f"A skill's archive is no ZIP archive that can be read: {error}.", param) from None
    top = {name.partition("/")[0] for name in files}
    if MAIN not in files and len(top) == 1:  # all in one folder, as archivers like it
        files = {name.partition("/")[2]: data for name, data in files.items()}
    if MAIN not in files:
        raise invalid(f"A skill's archive has no {MAIN} at its top.", param)
    return tuple(files.items())


def _read_files(opened: zipfile.ZipFile, param: str) -> dict[str, bytes]:
    entries = [entry for entry in opened.infolist() if not entry.is_dir()]
    if len(entries) > FILES:
        raise invalid(f"A skill holds {len(entries)} files; at most {FILES} are accepted.", param)
    files: dict[str, bytes] = {}
    room = CONTENT_LIMIT
    for entry in entries:
        parts = entry.filename.split("/")
        if any(part in ("", ".", "..") for part in parts) or "\\" in entry.filename or len(entry.filename) > 512:
            raise invalid("A skill's archive holds a path that leads out of it.", param)
        if stat.S_IFMT(entry.external_attr >> 16) not in (0, stat.S_IFREG):
            raise invalid("A skill's archive holds something that is no regular file.", param)
        with opened.open(entry) as stream:
            data = stream.read(room + 1)  # what the archive says of sizes need not be true
        room -= len(data)
        if room < 0:
            raise invalid(f"A skill's files have more than {CONTENT_LIMIT} bytes.", param)
        if any(_clash(entry.filename, other) for other in files):
            raise invalid("A skill's archive holds two things under one name.", param)
        files[entry.filename] = data
    return files


def _clash(one: str, other: str) -> bool:
    """Whether two files have one path, or one lies below the other."""
    return f"{one}/".startswith(f"{other}/") or f"{other}/".startswith(f"{one}/")
