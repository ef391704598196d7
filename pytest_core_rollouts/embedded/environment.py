"""`environment` of a creation: the files, variables and commands that prepare a Session's sandbox."""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from .checked import Checked, wrong_type
from .errors import APIError, invalid, unsupported
from .skills import Skill, read_skills

FILES = 50
FILE_LIMIT = 5 * 1024 * 1024  # bytes, decoded
FILES_LIMIT = 10 * 1024 * 1024  # bytes, decoded, of all files
COMMANDS = 64
TEXT_LIMIT = 64 * 1024  # bytes of one command, or of one variable: the kernel takes 128 KiB as one argument
ENV_LIMIT = 256 * 1024  # bytes of all variables
WORKSPACE = "/workspace"


@dataclass(frozen=True)
class InlineFile:
    path: str
    data: bytes = field(repr=False)


@dataclass(frozen=True)
class SetupCommand:
    command: str
    cwd: str = WORKSPACE


@dataclass(frozen=True)
class Environment:
    """What a sandbox is prepared with. There is never a network."""

    files: tuple[InlineFile, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    setup_commands: tuple[SetupCommand, ...] = ()
    skills: tuple[Skill, ...] = ()


_MEMBERS = (
    "type",
    "capability_directories",
    "env",
    "environment_template_id",
    "files",
    "network",
    "packages",
    "plugins",
    "setup_commands",
    "skills",
)


def read_environment(body: Checked) -> Environment:
    """Check `environment`. Raises APIError (400): `unsupported_or_invalid_configuration` for what needs a real Core."""
    value = body.required("environment")
    if not isinstance(value, dict):
        raise wrong_type("environment", "an object", value)
    kind = Checked(value, "environment", (*_MEMBERS, "workspace_directory"))
    kind.required_text("type")
    if kind.choice("type", ("none", "openai_hosted", "self_hosted")) != "openai_hosted":
        raise unsupported("The embedded Core serves environments of type 'openai_hosted' alone.", "environment.type")
    environment = Checked(value, "environment", _MEMBERS)
    _refuse_unsupported(environment)
    return Environment(
        files=_read_files(environment),
        env=_read_env(environment),
        setup_commands=_read_commands(environment),
        skills=read_skills(environment),
    )


def _refuse_unsupported(environment: Checked) -> None:
    if environment.text("environment_template_id") is not None:
        raise unsupported("The embedded Core keeps no templates.", environment.at("environment_template_id"))
    for member in ("plugins", "capability_directories"):
        if environment.array(member):
            raise unsupported(f"The embedded Core does not support {member} yet.", environment.at(member))
    network = environment.object("network", ("access", "allowed_domains"))
    if environment.get("network") is not None:
        network.required_text("access")
    network.array("allowed_domains")
    if network.choice("access", ("enabled", "disabled", "restricted")) not in (None, "disabled"):
        message = "The embedded Core's sandboxes have no network: use {'access': 'disabled'}."
        raise unsupported(message, network.at("access"))
    packages = environment.object("packages", ("npm", "python", "system"))
    for member in ("npm", "python", "system"):
        if packages.array(member):
            message = "The embedded Core's sandboxes have no network to install packages over."
            raise unsupported(message, packages.at(member))


def _read_files(environment: Checked) -> tuple[InlineFile, ...]:
    values = environment.array("files")
    if len(values) > FILES:
        raise invalid(f"At most {FILES} inline files are accepted, but got {len(values)}.", environment.at("files"))
    files = tuple(_read_file(value, f"{environment.at('files')}[{index}]") for index, value in enumerate(values))
    total = sum(len(file.data) for file in files)
    if total > FILES_LIMIT:
        message = f"The inline files hold {total} bytes; at most {FILES_LIMIT} are accepted in total."
        raise invalid(message, environment.at("files"))
    _refuse_clashes(files, environment.at("files"))
    return files


def _read_file(value: Any, path: str) -> InlineFile:
    file = Checked.of(value, path, ("type", "path", "data", "file_id"))
    file.required_text("type")
    if file.choice("type", ("inline", "file_id")) == "file_id":
        raise unsupported("The embedded Core keeps no uploaded files: send them inline.", file.at("type"))
    file = Checked.of(value, path, ("type", "path", "data"))
    name = file.required_text("path")
    if problem := path_problem(name):
        raise invalid(f"Invalid '{file.at('path')}': {problem}.", file.at("path"))
    try:
        data = base64.b64decode(file.required_text("data"), validate=True)
    except (binascii.Error, ValueError):
        raise invalid(f"'{file.at('data')}' is not standard base64.", file.at("data")) from None
    if len(data) > FILE_LIMIT:
        message = f"The file holds {len(data)} bytes; at most {FILE_LIMIT} are accepted."
        raise invalid(message, file.at("data"))
    return InlineFile(name, data)


def path_problem(path: str) -> str | None:
    """Why a file can't be put at this path, or None."""
    if not path.startswith(f"{WORKSPACE}/"):
        return f"an absolute path under {WORKSPACE} is due"
    if "\\" in path or "\x00" in path:
        return "a backslash or NUL is not accepted"
    parts = path.split("/")[2:]
    if any(part in ("", ".", "..") for part in parts):
        return "an empty, '.' or '..' component is not accepted"
    if len(path.encode()) > 1024 or any(len(part.encode()) > 255 for part in parts):
        return "a component is at most 255 bytes long, the path 1024"
    return None


def _refuse_clashes(files: tuple[InlineFile, ...], param: str) -> None:
    """No two files at one path, and no file where another needs a folder."""
    paths = {file.path for file in files}
    if len(paths) < len(files):
        raise invalid("Two files have the same path.", param)
    for path in paths:
        parts = path.split("/")
        for depth in range(3, len(parts)):
            if "/".join(parts[:depth]) in paths:
                raise invalid("A file's path lies under the path of another file.", param)


def _read_env(environment: Checked) -> dict[str, str]:
    env = environment.mapping("env")
    for name, value in env.items():
        param = f"{environment.at('env')}.{name}"
        if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
            raise invalid("A name in 'environment.env' is no name of an environment variable.", environment.at("env"))
        if not isinstance(value, str):
            raise wrong_type(param, "a string", value)
        if len(name) + len(value.encode()) > TEXT_LIMIT:
            raise invalid(f"A variable has at most {TEXT_LIMIT} bytes.", param)
    if sum(len(name) + len(value.encode()) for name, value in env.items()) > ENV_LIMIT:
        raise invalid(f"The variables have at most {ENV_LIMIT} bytes in total.", environment.at("env"))
    return env


def _read_commands(environment: Checked) -> tuple[SetupCommand, ...]:
    values = environment.array("setup_commands")
    param = environment.at("setup_commands")
    if len(values) > COMMANDS:
        raise invalid(f"At most {COMMANDS} setup commands are accepted, but got {len(values)}.", param)
    commands = []
    for index, value in enumerate(values):
        command = Checked.of(value, f"{param}[{index}]", ("command", "cwd"))
        text = command.required_text("command")
        if not text.strip():
            raise APIError(400, "A setup command is blank.", code="invalid_request_error", param=command.at("command"))
        if len(text.encode()) > TEXT_LIMIT:
            message = f"A setup command has at most {TEXT_LIMIT} bytes: send it as a file."
            raise invalid(message, command.at("command"))
        cwd = command.text("cwd") or WORKSPACE
        if not cwd.startswith("/"):
            raise invalid(f"'{command.at('cwd')}' must be an absolute path.", command.at("cwd"))
        commands.append(SetupCommand(text, cwd))
    return tuple(commands)
