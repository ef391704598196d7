"""`environment` of a creation: the files, variables, commands and skills that prepare a Session's sandbox."""

from __future__ import annotations

import base64
import io
import re
import stat
import zipfile
import zlib
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field

from .bodies import Body, at_most, clip, fault, kind, refuse

FILES = 50
FILE_LIMIT = 5 * 1024 * 1024  # bytes, decoded
FILES_LIMIT = 10 * 1024 * 1024  # bytes, decoded, of all files
COMMANDS = 64
TEXT_LIMIT = 64 * 1024  # bytes of one command, or of one variable: the kernel takes 128 KiB as one argument
ENV_LIMIT = 256 * 1024  # bytes of all variables
WORKSPACE = "/workspace"

SKILLS = 16
ARCHIVE_LIMIT = 5 * 1024 * 1024  # bytes, decoded
CONTENT_LIMIT = 16 * 1024 * 1024  # bytes of one skill's files, unpacked
SKILL_FILES = 256
SKILL_MAIN = "SKILL.md"


# Validators


def _decode(value: Any) -> bytes:
    if not isinstance(value, str):
        raise fault("invalid", f"expected a string, got {kind(value)}")
    try:
        return base64.b64decode(value, validate=True)
    except ValueError:
        raise fault("invalid", "not standard base64") from None


def _check_size(data: bytes) -> bytes:
    if len(data) > FILE_LIMIT:
        raise fault("invalid", f"has {len(data)} bytes; at most {FILE_LIMIT} are accepted")
    return data


def _check_path(path: str) -> str:
    parts = path.split("/")[2:]
    if not path.startswith(f"{WORKSPACE}/"):
        raise fault("invalid", f"expected an absolute path under {WORKSPACE}")
    if "\\" in path or "\x00" in path:
        raise fault("invalid", "must not contain a backslash or NUL")
    if any(part in ("", ".", "..") for part in parts):
        raise fault("invalid", "must not contain an empty, '.' or '..' component")
    if len(path.encode()) > 1024 or any(len(part.encode()) > 255 for part in parts):
        raise fault("invalid", "too long; at most 255 bytes a component and 1024 in total are accepted")
    return path


def _check_files(files: list[InlineFile]) -> list[InlineFile]:
    total = sum(len(file.data) for file in files)
    if total > FILES_LIMIT:
        raise fault("invalid", f"the files have {total} bytes in total; at most {FILES_LIMIT} are accepted")
    if _has_clash([file.path for file in files]):
        raise fault("invalid", "two files have the same path, or one lies below the path of another")
    return files


def _has_clash(paths: list[str]) -> bool:
    """Return whether two files have the same path, or one needs a folder where another is."""
    files = set(paths)
    folders = {path[:end] for path in files for end, letter in enumerate(path) if letter == "/"}
    return len(files) < len(paths) or bool(files & folders)


def _check_env(env: Any) -> Any:
    if not isinstance(env, dict):
        return env  # pydantic refuses it
    total = 0
    for name, value in env.items():
        if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
            raise fault("invalid", f"invalid name of an environment variable: '{clip(name)}'")
        if not isinstance(value, str):
            raise fault("invalid", f"expected a string, got {kind(value)}", below=f".{clip(name)}")
        size = len(name) + len(value.encode())
        if size > TEXT_LIMIT:
            raise fault("invalid", f"has {size} bytes; at most {TEXT_LIMIT} are accepted", below=f".{clip(name)}")
        total += size
    if total > ENV_LIMIT:
        raise fault("invalid", f"the variables have {total} bytes in total; at most {ENV_LIMIT} are accepted")
    return env


def _check_command(command: str) -> str:
    if not command.strip():
        raise fault("invalid", "must not be blank")
    if len(command.encode()) > TEXT_LIMIT:
        raise fault("invalid", f"larger than {TEXT_LIMIT} bytes; send it as a file")
    return command


def _check_folder(path: str) -> str:
    if path and not path.startswith("/"):
        raise fault("invalid", "expected an absolute path")
    return path or WORKSPACE


# Skills


def unpack_skill(value: Any) -> tuple[tuple[str, bytes], ...]:
    """Return the files of a ZIP archive in base64: path below the skill's folder, and content."""
    archive = _decode(value)
    if len(archive) > ARCHIVE_LIMIT:
        raise fault("invalid", f"the archive has {len(archive)} bytes; at most {ARCHIVE_LIMIT} are accepted")
    try:
        with zipfile.ZipFile(io.BytesIO(archive)) as opened:
            files = _read_archive(opened)
    except (zipfile.BadZipFile, zlib.error, NotImplementedError, RuntimeError, EOFError, OSError) as error:
        raise fault("invalid", f"not a readable ZIP archive: {clip(str(error))}") from None
    top = {name.partition("/")[0] for name in files}
    if SKILL_MAIN not in files and len(top) == 1:  # many programs that make archives put all files into one folder
        files = {name.partition("/")[2]: data for name, data in files.items()}
    if SKILL_MAIN not in files:
        raise fault("invalid", f"the archive has no {SKILL_MAIN} at its top")
    return tuple(files.items())


def _read_archive(opened: zipfile.ZipFile) -> dict[str, bytes]:
    entries = [entry for entry in opened.infolist() if not entry.is_dir()]
    if len(entries) > SKILL_FILES:
        raise fault("invalid", f"the archive has {len(entries)} files; at most {SKILL_FILES} are accepted")
    names = [entry.filename for entry in entries]
    files: dict[str, bytes] = {}
    room = CONTENT_LIMIT
    for entry in entries:
        parts = entry.filename.split("/")
        if any(part in ("", ".", "..") for part in parts) or "\\" in entry.filename or len(entry.filename) > 512:
            raise fault("invalid", "the archive has a path that is too long or leads out of it")
        if stat.S_IFMT(entry.external_attr >> 16) not in (0, stat.S_IFREG):
            raise fault("invalid", "the archive has an entry that is not a regular file")
        with opened.open(entry) as stream:
            data = stream.read(room + 1)  # the sizes that an archive states can be wrong
        room -= len(data)
        if room < 0:
            raise fault("invalid", f"the archive's files have more than {CONTENT_LIMIT} bytes")
        files[entry.filename] = data
    if _has_clash(names):
        raise fault("invalid", "the archive has two entries at one path")
    return files


def _check_skill_name(name: str) -> str:
    if not re.fullmatch(r"[a-z0-9][a-z0-9-]{0,63}", name):
        raise fault("invalid", "expected 1 to 64 lowercase letters, digits and hyphens")
    return name


def _check_description(text: str) -> str:
    if not text.strip() or len(text) > 1024:
        raise fault("invalid", "expected 1 to 1024 characters")
    return text


def _check_skills(skills: list[Skill]) -> list[Skill]:
    if len({skill.name for skill in skills}) < len(skills):
        raise fault("invalid", "two skills have the same name")
    return skills


# Shapes


class InlineFile(Body):
    """A file for the sandbox; `data` is decoded."""

    type: Annotated[
        Literal["inline", "file_id"], refuse("the embedded Core keeps no uploaded files; send them inline", "inline")
    ]
    path: Annotated[str, AfterValidator(_check_path)]
    data: Annotated[bytes, BeforeValidator(_decode), AfterValidator(_check_size)] = Field(repr=False)


class SetupCommand(Body):
    """A shell command that runs once, before the first Turn."""

    command: Annotated[str, AfterValidator(_check_command)]
    cwd: Annotated[str, AfterValidator(_check_folder)] = WORKSPACE


class _SkillSource(Body):
    type: Literal["base64"]
    media_type: Literal["application/zip"]
    data: Annotated[tuple[tuple[str, bytes], ...], BeforeValidator(unpack_skill)] = Field(repr=False)


class Skill(Body):
    """A skill, unpacked: `source.data` are its files, `SKILL.md` among them."""

    type: Annotated[
        Literal["inline", "skill_reference"],
        refuse("the embedded Core keeps no skills; send the skill's files inline", "inline"),
    ]
    name: Annotated[str, AfterValidator(_check_skill_name)]
    description: Annotated[str, AfterValidator(_check_description)]
    source: _SkillSource

    def wire(self) -> dict[str, str]:
        """Return the skill as a Session shows it."""
        return {"type": "inline", "name": self.name, "description": self.description}


_NoPackages = Annotated[list[Any], refuse("sandboxes have no network to install packages over")]
_NotSupported = Annotated[list[Any], refuse("not supported by the embedded Core")]


class _Network(Body):
    access: Annotated[
        Literal["enabled", "disabled", "restricted"],
        refuse("sandboxes have no network; use {'access': 'disabled'}", "disabled"),
    ]
    allowed_domains: list[Any] = []


class _Packages(Body):
    npm: _NoPackages = []
    python: _NoPackages = []
    system: _NoPackages = []


class Environment(Body):
    """What a sandbox is prepared with. It never has a network."""

    type: Annotated[
        Literal["none", "openai_hosted", "self_hosted"],
        refuse("the embedded Core only serves environments of type 'openai_hosted'", "openai_hosted"),
    ]
    capability_directories: _NotSupported = []
    env: Annotated[dict[str, str], BeforeValidator(_check_env)] = {}
    environment_template_id: Annotated[str | None, refuse("the embedded Core keeps no templates")] = None
    files: Annotated[list[InlineFile], at_most(FILES), AfterValidator(_check_files)] = []
    network: _Network | None = None
    packages: _Packages = _Packages()
    plugins: _NotSupported = []
    setup_commands: Annotated[list[SetupCommand], at_most(COMMANDS)] = []
    skills: Annotated[list[Skill], at_most(SKILLS), AfterValidator(_check_skills)] = []
