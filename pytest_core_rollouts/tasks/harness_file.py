"""A harness file: any agent as a harness. It is YAML with a command, its mounts, and how it finds its model.

Paths are relative to the file. All that can be wrong with them is found when the file is loaded, before a rollout.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Final

from pytest_core_rollouts.tasks.folders import utf8_name
from pytest_core_rollouts.tasks.strict_yaml import (
    Invalid,
    YamlError,
    YamlFile,
    describe,
    each,
    load_yaml,
    mapping,
    sendable,
    text,
    texts,
)
from pytest_core_rollouts.text import name_problem

ARGUMENT_LIMIT: Final = 128 * 1024 - 1
"""Bytes that the kernel takes as one argument of a program."""

CORE_HARNESS: Final = "command"
"""What the embedded Core calls the harness that runs any program."""

_PLACEHOLDERS: Final = ("instruction", "instruction_file", "model", "base_url", "api_key")
_PROTOCOLS: Final = ("chat_completions", "responses", "anthropic")
_SYSTEM: Final = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32")  # that every sandbox shows
_OF_THE_SANDBOX: Final = ("/workspace", "/home/agent", "/run", "/proc", "/dev", "/sys", "/etc")
_PATH: Final = ("/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin")  # of a sandbox
_HOME: Final = "/home/agent"
_UNITS: Final = {"MiB": 1 << 20, "GiB": 1 << 30}


class HarnessError(Exception):
    """A harness file that can't be used. `str()` names the file, the line and the key, and says what to do."""


@dataclass(frozen=True)
class HarnessFile:
    """An agent program. All paths are absolute.

    * `mounts`: files and folders that a sandbox shows read-only at the same path, with the base Python of each venv.
    * `project`: the folder whose files belong to the agent's digest, if they are in `mounts`.
    """

    name: str
    path: Path
    project: Path
    protocol: str
    command: tuple[str, ...]
    mounts: tuple[str, ...] = ()
    stdin: str = ""
    env: Mapping[str, str] = field(default_factory=dict)
    exit_codes: tuple[int, ...] = (0,)
    resume: tuple[str, ...] | None = None
    memory: int | None = None
    skills: str | None = None
    file: YamlFile | None = field(default=None, repr=False, compare=False)
    """What was read, for messages."""

    @property
    def wire(self) -> dict[str, Any]:
        """The `harness_config` of a Session."""
        given = {
            "name": self.name,
            "protocol": self.protocol,
            "command": list(self.command),
            "mounts": list(self.mounts),
            "stdin": self.stdin,
            "env": dict(self.env),
            "exit_codes": list(self.exit_codes),
            "resume": None if self.resume is None else list(self.resume),
            "memory": self.memory,
            "skills_folder": self.skills,
        }
        return {name: value for name, value in given.items() if value is not None}

    @cached_property
    def digest(self) -> str:
        """SHA-256 (hex) of the file, and of what it mounts from the project."""
        digest = hashlib.sha256(self.path.read_bytes())
        for mount in map(Path, self.mounts):
            if _is_in(str(mount), [str(self.project)]):
                for name, data in _contents(mount):
                    digest.update(hashlib.sha256(name.encode("utf-8", "surrogateescape")).digest() + data)
        return digest.hexdigest()

    @property
    def passes_argument(self) -> bool:
        """Whether the instruction is an argument of the command, so that it can't be very long."""
        return "{instruction}" in (*self.command, *(self.resume or ()))

    def mount_error(self, mount: str, problem: str) -> str:
        """Return a message about one of `mounts`, with file and line."""
        given = self.file.values.get("mounts", []) if self.file is not None else []
        at = next((index for index, one in enumerate(given) if self._absolute(one) == mount), None)
        key = ("mounts",) if at is None else ("mounts", at)
        return str(self.file.error(problem, key)) if self.file is not None else f"{self.path}: {problem}"

    def _absolute(self, path: str) -> str:
        return _absolute(self.path.parent, path)


def is_harness_file(harness: object) -> bool:
    """Return whether the value that names a harness is the path of a harness file."""
    return isinstance(harness, str) and harness.endswith((".yaml", ".yml"))


def load_harness(path: Path | str, project: Path | None = None) -> HarnessFile:
    """Return the harness that a file describes. `project`: see HarnessFile (default: the file's folder).

    Raises HarnessError.
    """
    path = Path(os.path.abspath(path))  # noqa: PTH100 - a link's own folder counts, so it is not resolved
    try:
        file = load_yaml(path, path.read_bytes())
        return _Reading(path, file, path.parent if project is None else project).harness()
    except OSError as error:
        raise HarnessError(f"{path}: can't be read: {error.strerror}; pass the path of a harness file") from None
    except YamlError as error:
        raise HarnessError(str(error)) from None


class _Reading:
    """Checks the values of one file against this machine."""

    def __init__(self, path: Path, file: YamlFile, project: Path) -> None:
        self._path, self._file, self._project = path, file, project
        self._folder = path.parent

    def harness(self) -> HarnessFile:
        file, values = self._file, self._file.checked(_RULES)
        for needed in ("command", "protocol"):
            if needed not in values:
                raise file.error(f"missing; write {needed}: {_EXAMPLES[needed]}", (needed,))
        name = utf8_name(self._path.stem)
        if (problem := name_problem(name)) is not None:
            raise file.error(f"the file's name names the harness, and {problem}; rename the file")
        mounts = [self._mount(index, mount) for index, mount in enumerate(values.get("mounts", ()))]
        mounts += [os.path.realpath(mount) for mount in mounts]  # programs may know themselves by that name
        mounts = list(dict.fromkeys([*mounts, *_base_pythons(mounts)]))
        for key in {"command", "resume"} & values.keys():
            values[key] = self._command(key, values[key], mounts)
        values["mounts"] = tuple(sorted(mounts, key=lambda mount: mount.count("/")))
        return HarnessFile(
            **values,
            name=name,
            path=self._path,
            project=Path(os.path.realpath(self._project)),
            file=file,
        )

    def _mount(self, index: int, given: str) -> str:
        mount, key = _absolute(self._folder, given), ("mounts", index)
        if not os.path.lexists(mount) or not os.path.exists(mount):  # noqa: PTH110
            raise self._file.error(f"{mount} does not exist; install the agent there, or correct the path", key)
        if mount in ("/", "/tmp") or _is_in(mount, _OF_THE_SANDBOX):
            raise self._file.error(f"a sandbox has its own {mount}; move what the agent needs elsewhere", key)
        return mount

    def _command(self, key: str, given: tuple[str, ...], mounts: list[str]) -> tuple[str, ...]:
        command = [self._argument((key, index), part, mounts) for index, part in enumerate(given)]
        self._check_program((key, 0), command[0], mounts)
        return tuple(command)

    def _argument(self, key: tuple[str, int], part: str, mounts: list[str]) -> str:
        """Return the argument; a path of a mount as an absolute path."""
        _, index = key
        path = _absolute(self._folder, part)
        is_path = part.startswith(("./", "../")) or (index == 0 and "/" in part)
        if not is_path and not (_is_in(path, mounts) and os.path.exists(path)):  # noqa: PTH110
            return part
        if not _is_in(path, [*mounts, *_shown()]):
            raise self._file.error(f"{path} is in no mount, so no sandbox shows it; add it to `mounts`", key)
        if not os.path.exists(path):  # noqa: PTH110
            raise self._file.error(f"{path} does not exist; install the agent there, or correct the path", key)
        return path

    def _check_program(self, key: tuple[str, int], program: str, mounts: list[str]) -> None:
        if "/" not in program:
            search = os.pathsep.join([f"{sys.base_prefix}/bin", *_PATH])
            if shutil.which(program, path=search) is None:
                problem = f"the program {program} is not in a sandbox's PATH ({search})"
                raise self._file.error(f"{problem}; write its path, and mount its folder", key)
        elif not os.access(program, os.X_OK) or os.path.isdir(program):  # noqa: PTH112
            raise self._file.error(f"{program} is not an executable file; name the program first", key)
        elif not _is_in(real := os.path.realpath(program), [*map(os.path.realpath, mounts), *_shown()]):
            raise self._file.error(f"{program} is a link to {real}, which is in no mount; add its folder", key)


def _absolute(folder: Path, path: str) -> str:
    return os.path.normpath(os.path.join(folder, path))  # noqa: PTH118 - links keep their names in a sandbox


def _is_in(path: str, folders: Iterable[str]) -> bool:
    return any(path == folder or path.startswith(f"{folder.rstrip('/')}/") for folder in folders)


def _shown() -> tuple[str, ...]:
    """Return the folders of programs that every sandbox shows."""
    return (*_SYSTEM, sys.base_prefix, os.path.realpath(sys.base_prefix))


def _base_pythons(mounts: Iterable[str]) -> Iterator[str]:
    """Yield the Pythons without which the venvs among the mounts don't run, by the names that the venvs know."""
    for mount in mounts:
        settings = Path(mount, "pyvenv.cfg")
        if settings.is_file():
            for line in settings.read_text("utf-8", "replace").splitlines():
                name, _, value = line.partition("=")
                if name.strip() == "home":
                    base = os.path.dirname(os.path.normpath(value.strip()))  # noqa: PTH120
                    yield from (one for one in (base, os.path.realpath(base)) if not _is_in(one, _shown()))


def _contents(mount: Path) -> Iterator[tuple[str, bytes]]:
    """Yield names and digests of a mount's files; of a venv, which is large, only which packages it has."""
    if mount.is_file():
        yield mount.name, hashlib.sha256(mount.read_bytes()).digest()
    elif (mount / "pyvenv.cfg").is_file():
        for package in sorted(path.name for path in mount.glob("lib/python*/site-packages/*.dist-info")):
            yield package, b""
    else:
        for parent, folders, files in os.walk(mount):
            folders[:] = sorted({*folders} - {"__pycache__", ".git"})
            for name in sorted(files):
                file = Path(parent, name)
                data = os.fsencode(file.readlink()) if file.is_symlink() else file.read_bytes()
                yield str(file.relative_to(mount)), hashlib.sha256(data).digest()


# Rules


def _placeholders(value: str, *, whole: bool) -> str:
    """Return the text. `whole`: {instruction} may only be all of it; it is too long for anything else."""
    for name in re.findall(r"\{([a-z_]+)\}", value):
        if name not in _PLACEHOLDERS:
            raise Invalid(f"unknown placeholder {{{name}}}; known are {', '.join(f'{{{n}}}' for n in _PLACEHOLDERS)}")
    if whole and "{instruction}" in value and value != "{instruction}":
        raise Invalid("{instruction} must be a separate argument; or use stdin or {instruction_file}")
    return value


def _command(value: Any) -> tuple[str, ...]:
    if isinstance(value, str):
        raise Invalid("expected a list: the program and each of its arguments; write it as [program, argument]")
    if not isinstance(value, list) or not value:
        raise Invalid(f"expected a list of strings, got {describe(value) if value != [] else 'an empty one'}")
    return tuple(each(lambda part: _placeholders(text(part), whole=True))(value))


def _stdin(value: Any) -> str:
    return "" if value == "" else _placeholders(text(value), whole=False)


def _env(value: Any) -> dict[str, str]:
    result = {}
    for name, given in mapping(value).items():
        if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
            raise Invalid("invalid name of an environment variable", (name,))
        if not isinstance(given, str):
            raise Invalid(f"expected a string, got {describe(given)}; put it in quotes", (name,))
        try:
            if "{instruction}" in _placeholders(sendable(given), whole=False):
                raise Invalid("the instruction may be too long for a variable; use stdin or {instruction_file}")
        except Invalid as invalid:
            raise invalid.within(name) from None
        result[name] = given
    return result


def _exit_codes(value: Any) -> tuple[int, ...]:
    if not isinstance(value, list) or not value:
        raise Invalid(f"expected a list of exit statuses, got {describe(value)}; write it as [0, 1]")
    for index, code in enumerate(value):
        if type(code) is not int or not 0 <= code <= 255:
            raise Invalid(f"expected an exit status from 0 to 255, got {describe(code)}", (index,))
    return tuple(value)


def _memory(value: Any) -> int:
    match = re.fullmatch(r"([1-9][0-9]{0,5}) ?(MiB|GiB)", value) if isinstance(value, str) else None
    if match is None:
        raise Invalid(f"expected a size such as 512MiB or 2GiB, got {describe(value)}")
    return int(match[1]) * _UNITS[match[2]]


def _protocol(value: Any) -> str:
    if value not in _PROTOCOLS:
        raise Invalid(f"invalid choice {value!r}; choose from {', '.join(_PROTOCOLS)}")
    return str(value)


def _skills(value: Any) -> str:
    folder = os.path.normpath(os.path.join(_HOME, text(value)))  # noqa: PTH118
    if not folder.startswith(f"{_HOME}/"):
        raise Invalid(f"expected a folder below the agent's home, such as .agents/skills, got {value!r}")
    return folder


_RULES: Final = {
    "command": _command,
    "protocol": _protocol,
    "mounts": texts,
    "stdin": _stdin,
    "env": _env,
    "exit_codes": _exit_codes,
    "resume": _command,
    "memory": _memory,
    "skills": _skills,
}
_EXAMPLES: Final = {
    "command": "[python3, agent.py]",
    "protocol": "chat_completions (or responses, anthropic)",
}
